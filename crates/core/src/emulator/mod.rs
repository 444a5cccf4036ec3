//! A Pub/Sub server in this process, for tests, demos and benchmarks: topics, subscriptions, publish, StreamingPull,
//! acknowledge, modifyAckDeadline, redelivery and ordering keys, as the official clients use them.
//!
//! - [`Emulator`]: starts it on a port, reads its counters, stops it.
//! - `service`: the gRPC calls by path; `stream`: StreamingPull.
//! - `registry`: the topics and subscriptions by name, and what the calls do to them.
//! - `state`: one subscription's messages and streams, with `leases` and, for ordering keys, `lanes`; pure, the time
//!   comes in as a parameter.
//! - `message`, `delivery`: messages are encoded once, at publish; a delivery puts an ack id before the kept bytes.
//! - `filter`: the language of subscription filters.
//! - `names`, `clock`, `idset`: the rules for names, the time scale, the acknowledged ids.

mod clock;
mod delivery;
#[cfg_attr(not(test), expect(dead_code, reason = "subscriptions do not take filters yet"))]
mod filter;
mod idset;
#[cfg_attr(not(test), expect(dead_code, reason = "nothing is written yet"))]
mod journal;
mod lanes;
mod leases;
mod message;
mod names;
mod registry;
mod service;
mod state;
mod stream;

use std::net::{TcpListener, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::wire;
use crate::runtime;

use registry::Registry;
use service::PubSubService;
pub use state::Counters;

/// What the emulator lets a publisher send in one HTTP/2 frame, and ahead of being read.
const MAX_FRAME_BYTES: u32 = 1024 * 1024;
const WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// How long stopping waits for the clients to take their last answers.
const STOP_WAIT: Duration = Duration::from_secs(2);

/// A running emulator. Dropping it stops it.
#[derive(Debug)]
pub struct Emulator {
    port: u16,
    registry: Arc<Registry>,
    runtime: Handle,
    server: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Emulator {
    /// Listen on `host:port`; port 0 takes a free one.
    pub fn start(host: &str, port: u16) -> Result<Self> {
        let runtime = runtime::handle()?;
        let listener = bind(host, port)?;
        let port = listener.local_addr().map_err(|e| cannot_listen(host, port, &e))?.port();
        let incoming = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(|e| cannot_listen(host, port, &e))?
        };
        let incoming = TcpIncoming::from(incoming).with_nodelay(Some(true));
        let registry = Arc::new(Registry::new(runtime.clone()));
        let (stop, stopped) = oneshot::channel();
        let server = Server::builder()
            .max_frame_size(MAX_FRAME_BYTES)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .serve_with_incoming_shutdown(PubSubService::new(registry.clone()), incoming, async {
                // A dropped sender means the same.
                let _ = stopped.await;
            });
        let task = runtime.spawn(async {
            if let Err(error) = server.await {
                log::error!("the emulator's server failed: {error}");
            }
        });
        let server = Mutex::new(Some(Running { stop, task }));
        Ok(Self { port, registry, runtime, server })
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// End every stream with UNAVAILABLE and close the port. Counters can still be read. Doing it twice is fine.
    pub fn stop(&self) {
        if let Some(task) = self.begin_stop() {
            // Connections that do not end in time end with their clients.
            let _ = self.runtime.block_on(async { tokio::time::timeout(STOP_WAIT, task).await });
        }
    }

    /// Create a topic.
    pub fn create_topic(&self, name: &str) -> Result<()> {
        let topic = wire::Topic { name: name.to_owned(), ..Default::default() };
        let created = self.registry.create_topic(topic);
        created.map(drop).map_err(|status| Error::from_status(&format!("creating topic {name}"), &status))
    }

    /// Create a subscription.
    pub fn create_subscription(&self, subscription: wire::Subscription) -> Result<()> {
        let doing = format!("creating subscription {}", subscription.name);
        self.registry.create_subscription(subscription).map(drop).map_err(|status| Error::from_status(&doing, &status))
    }

    /// How many messages were published to a topic.
    pub fn published(&self, topic: &str) -> Result<u64> {
        self.registry.published(topic).map_err(|status| Error::from_status("reading the counters", &status))
    }

    /// A subscription's counters.
    pub fn counters(&self, subscription: &str) -> Result<Counters> {
        self.registry.counters(subscription).map_err(|status| Error::from_status("reading the counters", &status))
    }

    /// The ids of the messages a subscription has acknowledged, in the order of publishing.
    pub fn acked_ids(&self, subscription: &str) -> Result<Vec<u64>> {
        self.registry.acked_ids(subscription).map_err(|status| Error::from_status("reading the counters", &status))
    }

    fn begin_stop(&self) -> Option<JoinHandle<()>> {
        let running = self.server.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        self.registry.stop();
        // Fails only when the server has ended already.
        let _ = running.stop.send(());
        Some(running.task)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.begin_stop();
    }
}

fn bind(host: &str, port: u16) -> Result<TcpListener> {
    let addresses: Vec<_> = (host, port).to_socket_addrs().map_err(|e| cannot_listen(host, port, &e))?.collect();
    let listener = TcpListener::bind(&addresses[..]).map_err(|e| cannot_listen(host, port, &e))?;
    listener.set_nonblocking(true).map_err(|e| cannot_listen(host, port, &e))?;
    Ok(listener)
}

fn cannot_listen(host: &str, port: u16, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Config, format!("the emulator cannot listen on {host}:{port}: {error}."))
        .with_remedy("Choose another host or port; port 0 takes a free one.")
}
