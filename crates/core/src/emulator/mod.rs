//! A Pub/Sub server in this process, for tests, demos and benchmarks: what the official clients use of Publisher and
//! Subscriber, with the codes of the service, a clock that tests turn and faults that they ask for.
//!
//! - [`Emulator`]: starts it on a port, reads its counters, turns its clock, asks for faults, stops it.
//! - `service`: the gRPC calls by path; `stream`: StreamingPull and Pull.
//! - `registry`: the topics, subscriptions and (in `snapshot`) snapshots by name, and what the calls do to them;
//!   `settings`: their rules and updates; `listing`: pages.
//! - `topic`: hands what is published to its subscriptions, and keeps what must be kept (`history`).
//! - `subscription`: a state behind a lock, with a timer and the way to the dead-letter topic.
//! - `state`: one subscription's messages. They wait in the `backlog` (with ordering keys in `lanes`), are held in
//!   `leases`, and go to `streams`, by the rules of a `policy`. Pure: the time comes in as a parameter.
//! - `message`, `delivery`: messages are encoded once, at publish; a delivery puts an ack id before the kept bytes.
//! - `access`: TLS, the token a caller must show, the permissions it lacks.
//! - `durable`: writes what is done to a `journal` before it is said, when there is a folder for it; `store`: what the
//!   journal's records add up to.
//! - `filter`: the language of subscription filters; `faults`: what tests ask to go wrong, and the calls counted.
//! - `names`, `clock`, `idset`, `protobuf`, `sync`: names, the time scale, the acknowledged ids, encoding, locks.
//!
//! Not there: push and export subscriptions, schemas, transforms, customer keys, ingestion. They are refused with
//! UNIMPLEMENTED.

mod access;
mod backlog;
mod clock;
mod delivery;
mod durable;
mod faults;
mod filter;
mod history;
mod idset;
mod journal;
mod lanes;
mod leases;
mod listing;
mod message;
mod names;
mod policy;
mod protobuf;
mod registry;
mod service;
mod settings;
mod snapshot;
mod state;
mod store;
mod stream;
mod streams;
mod subscription;
mod sync;
mod topic;

use std::collections::BTreeMap;
use std::net::{TcpListener, ToSocketAddrs};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Code;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::wire;
use crate::runtime;

use access::{Access, Guarded, TlsIdentity, with_tls};
use registry::Registry;
use service::PubSubService;
pub use state::Counters;
use sync::lock;

/// What the emulator lets a publisher send in one HTTP/2 frame, and ahead of being read.
const MAX_FRAME_BYTES: u32 = 1024 * 1024;
const WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// How long stopping waits for the clients to take their last answers.
const STOP_WAIT: Duration = Duration::from_secs(2);

/// A running emulator. Dropping it stops it.
#[derive(Debug)]
pub struct Emulator {
    /// The process it runs in; a fork has but a picture of it.
    process: u32,
    port: u16,
    access: Arc<Access>,
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
    /// Listen on `host:port`; port 0 takes a free one. With a certificate and its key (PEM) it speaks TLS. With a folder,
    /// everything that a client was told is done is there after a restart, however this life ended.
    pub fn start(host: &str, port: u16, tls: Option<TlsIdentity>, data_dir: Option<&Path>) -> Result<Self> {
        let runtime = runtime::handle()?;
        let listener = bind(host, port)?;
        let port = listener.local_addr().map_err(|e| cannot_listen(host, port, &e))?.port();
        let incoming = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(|e| cannot_listen(host, port, &e))?
        };
        let incoming = TcpIncoming::from(incoming).with_nodelay(Some(true));
        let registry = Arc::new(Registry::open(runtime.clone(), data_dir)?);
        let access = Arc::new(Access::default());
        let service = Guarded::new(PubSubService::new(registry.clone()), access.clone(), registry.clock.clone());
        let (stop, stopped) = oneshot::channel();
        let server = with_tls(Server::builder(), tls)?
            .max_frame_size(MAX_FRAME_BYTES)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .serve_with_incoming_shutdown(service, incoming, async {
                // A dropped sender means the same.
                let _ = stopped.await;
            });
        let task = runtime.spawn(async {
            if let Err(error) = server.await {
                log::error!("the emulator's server failed: {error}");
            }
        });
        let server = Mutex::new(Some(Running { stop, task }));
        Ok(Self { process: std::process::id(), port, access, registry, runtime, server })
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// End every stream with UNAVAILABLE and close the port. Counters can still be read. Doing it twice is fine. In a
    /// fork it does nothing.
    pub fn stop(&self) {
        if let Some(task) = self.begin_stop() {
            // Connections that do not end in time end with their clients.
            let _ = self.runtime.block_on(async { tokio::time::timeout(STOP_WAIT, task).await });
            self.registry.close();
        }
    }

    /// What callers must show and may do.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Create a topic.
    pub fn create_topic(&self, topic: wire::Topic) -> Result<()> {
        let doing = format!("creating topic {}", topic.name);
        self.registry.create_topic(topic).map(drop).map_err(|status| Error::from_status(&doing, &status))
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

    /// Turn the clock forward. On return, leases have ended, delayed messages are due and old ones are gone.
    pub fn advance(&self, by: Duration) {
        self.registry.advance(by);
    }

    /// How often each method was called, failed calls included.
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.registry.faults.calls()
    }

    /// Answer the next calls of a method (such as `Publish`) with a code (such as `UNAVAILABLE`).
    pub fn answer(&self, method: &str, code: &str, times: u64) -> Result<()> {
        self.registry.faults.answer(known_method(method)?, known_code(code)?, times);
        Ok(())
    }

    /// Let the next calls of a method wait.
    pub fn delay(&self, method: &str, delay: Duration, times: u64) -> Result<()> {
        self.registry.faults.delay(known_method(method)?, delay, times);
        Ok(())
    }

    /// End streams with UNAVAILABLE after so many messages, so many times; without `times`, always.
    pub fn cut_streams(&self, after: u64, times: Option<u64>) {
        self.registry.faults.cut_streams(after, times);
        self.registry.poke_streams();
    }

    /// Deliver every n-th message twice.
    pub fn duplicate(&self, every: NonZeroU64) {
        self.registry.faults.duplicate(every);
    }

    /// Answer the next acknowledge requests with OK and forget them.
    pub fn drop_acks(&self, times: u64) {
        self.registry.faults.drop_acks(times);
    }

    /// No faults any more.
    pub fn clear_faults(&self) {
        self.registry.faults.clear();
    }

    fn begin_stop(&self) -> Option<JoinHandle<()>> {
        if std::process::id() != self.process {
            return None;
        }
        let running = lock(&self.server).take()?;
        self.registry.stop();
        // Fails only when the server has ended already.
        let _ = running.stop.send(());
        Some(running.task)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // Only what this process has stopped is at rest: a fork may have inherited locks that nobody lets go of.
        if self.begin_stop().is_some() {
            self.registry.close();
        }
    }
}

fn bind(host: &str, port: u16) -> Result<TcpListener> {
    let addresses: Vec<_> = (host, port).to_socket_addrs().map_err(|e| cannot_listen(host, port, &e))?.collect();
    let listener = TcpListener::bind(&addresses[..]).map_err(|e| cannot_listen(host, port, &e))?;
    listener.set_nonblocking(true).map_err(|e| cannot_listen(host, port, &e))?;
    Ok(listener)
}

fn known_method(name: &str) -> Result<&'static str> {
    service::method(name).ok_or_else(|| {
        Error::new(ErrorKind::Config, format!("the emulator has no method {name:?}."))
            .with_remedy("Name a method of Publisher or Subscriber, such as Publish or StreamingPull.")
    })
}

fn known_code(name: &str) -> Result<Code> {
    let is_named = |code: &Code| format!("{code:?}").eq_ignore_ascii_case(&name.replace('_', ""));
    // OK, 0, is no fault.
    (1..=16).map(Code::from).find(is_named).ok_or_else(|| {
        Error::new(ErrorKind::Config, format!("{name:?} is no code of a failed gRPC call."))
            .with_remedy("Name one such as UNAVAILABLE or PERMISSION_DENIED.")
    })
}

fn cannot_listen(host: &str, port: u16, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Config, format!("the emulator cannot listen on {host}:{port}: {error}."))
        .with_remedy("Choose another host or port; port 0 takes a free one.")
}
