//! Where Pub/Sub is and who asks; one channel for each such place in a process, shared by everybody.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tonic::Status;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

use crate::error::{Error, ErrorKind, Result, causes};
use crate::per_process::PerProcess;
use crate::pubsub::credentials::Credentials;
use crate::runtime;

const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// What a stream may bring before it is read.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
/// What a server may put into one frame: fewer frames are fewer wake-ups.
const MAX_FRAME_BYTES: u32 = 1 << 20;
/// More than all streams together: those that nobody reads must not keep the answers to other calls away.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;
/// What a refusal of 1,000 acknowledgements weighs, which names each of them in its headers; more breaks the connection.
const HEADER_BYTES: u32 = 1 << 20;
/// A connection that died without a word is noticed by pings that nobody answers.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_DEADLINE: Duration = Duration::from_secs(10);
/// What a TLS server begins its complaint with.
const TLS_ALERT: u8 = 0x15;
const PROBE_DEADLINE: Duration = Duration::from_secs(1);
const USER_AGENT: &str = concat!("solstice/", env!("CARGO_PKG_VERSION"));

/// Where Pub/Sub is, and whose credentials to show there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Connection {
    /// `host:port`.
    pub endpoint: String,
    /// Without TLS and without credentials: an emulator.
    pub plaintext: bool,
    /// A file with credentials; without one they are looked for where Google's own tools leave them.
    pub credentials_file: Option<PathBuf>,
}

/// A connection that was made. When it breaks, the next call on its channel connects again.
pub(crate) struct Opened {
    /// What calls go over.
    pub channel: Channel,
    /// Whose calls they are; nobody's without TLS.
    pub credentials: Option<Arc<Credentials>>,
    connection: Connection,
    speaks_http2: AtomicBool,
}

type Pool = Mutex<HashMap<Connection, Arc<OnceCell<Arc<Opened>>>>>;

/// What this process has opened. A child of a fork opens its own.
static POOL: PerProcess<Pool> = PerProcess::new();

impl Connection {
    /// The one connection of this process to there, made on first use.
    pub(crate) async fn open(&self) -> Result<Arc<Opened>> {
        let cell = {
            let mut pool = POOL.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
            pool.entry(self.clone()).or_default().clone()
        };
        cell.get_or_try_init(|| self.open_anew()).await.cloned()
    }

    async fn open_anew(&self) -> Result<Arc<Opened>> {
        let credentials = match self.plaintext {
            true => None,
            false => Some(Arc::new(Credentials::find(self.credentials_file.as_deref()))),
        };
        let channel = self.connect().await?;
        if let Some(credentials) = &credentials {
            // Now rather than with the first call: whoever has none hears of it at once.
            credentials.token().await?;
        }
        Ok(Arc::new(Opened { channel, credentials, connection: self.clone(), speaks_http2: false.into() }))
    }

    async fn connect(&self) -> Result<Channel> {
        let endpoint = self.transport()?;
        // On the runtime of the process, which lives as long as the pool does.
        let connecting = runtime::handle()?.spawn(async move { endpoint.connect().await });
        match tokio::time::timeout(CONNECT_DEADLINE, connecting).await {
            Ok(Ok(Ok(channel))) => Ok(channel),
            Ok(Ok(Err(error))) => Err(self.unreachable(&causes(&error))),
            Ok(Err(died)) => Err(Error::new(ErrorKind::Native, format!("connecting died: {died}."))),
            Err(_) => Err(self.unreachable(&format!("no answer within {} s", CONNECT_DEADLINE.as_secs()))),
        }
    }

    fn transport(&self) -> Result<Endpoint> {
        let scheme = if self.plaintext { "http" } else { "https" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{}", self.endpoint))
            .and_then(|endpoint| endpoint.user_agent(USER_AGENT))
            .map_err(|e| {
                Error::new(ErrorKind::Config, format!("'{}' is no address: {}.", self.endpoint, causes(&e)))
                    .with_remedy("Give host:port.")
            })?
            .connect_timeout(CONNECT_DEADLINE)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(MAX_FRAME_BYTES)
            .http2_max_header_list_size(HEADER_BYTES)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_DEADLINE)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        if self.plaintext {
            return Ok(endpoint);
        }
        let roots = ClientTlsConfig::new().with_native_roots().timeout(CONNECT_DEADLINE);
        endpoint.tls_config(roots).map_err(|e| {
            Error::new(ErrorKind::Config, format!("TLS to {} cannot be set up: {}.", self.endpoint, causes(&e)))
                .with_remedy("Install the system's CA certificates, or point SSL_CERT_FILE to a file of them.")
        })
    }

    fn unreachable(&self, cause: &str) -> Error {
        let remedy = if self.plaintext {
            "Start it there (solstice pubsub emulator), or correct emulatorHost / PUBSUB_EMULATOR_HOST."
        } else if cause.contains("invalid peer certificate") {
            "For a server with a CA of its own, point SSL_CERT_FILE to that CA's certificate."
        } else if cause.contains("InvalidContentType") {
            "It does not speak TLS: for a server without TLS give http://host:port, for an emulator emulatorHost."
        } else {
            "Check the network and the option endpoint; for an emulator set emulatorHost."
        };
        Error::new(ErrorKind::Unavailable, format!("no Pub/Sub answers at {}: {cause}.", self.endpoint))
            .with_remedy(remedy)
    }
}

impl Opened {
    /// The same status; or the fix, where the cause is that a server with TLS is spoken to without.
    pub async fn explained(&self, status: Status) -> Status {
        let by_transport = status.source().is_some_and(|source| source.is::<tonic::transport::Error>());
        if !self.connection.plaintext || !by_transport || self.speaks_http2.load(Ordering::Relaxed) {
            return status;
        }
        let place = &self.connection.endpoint;
        match tokio::time::timeout(PROBE_DEADLINE, first_byte(place)).await {
            Ok(Ok(TLS_ALERT)) => {
                Error::new(ErrorKind::Config, format!("the server at {place} speaks TLS, and was spoken to without."))
                    .with_remedy(format!("Set the option endpoint to https://{place} instead of emulatorHost."))
                    .into_status()
            }
            Ok(Ok(_)) => {
                self.speaks_http2.store(true, Ordering::Relaxed);
                status
            }
            _ => status,
        }
    }
}

/// How a server answers the beginning of HTTP/2: with settings, or with an alert.
async fn first_byte(place: &str) -> std::io::Result<u8> {
    let mut stream = TcpStream::connect(place).await?;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await?;
    stream.read_u8().await
}
