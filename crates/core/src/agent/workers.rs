//! The agent's side of its workers: who may ask, and what each is sent. Whoever does not show the token costs little.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::agent::frame;
use crate::agent::part::{self, Answer, Ask, Call};
use crate::agent::server::Shared;
use crate::error::{Error, ErrorKind};

/// A worker asks at once; what is silent for so long is no worker.
const REQUEST_DEADLINE: Duration = Duration::from_secs(5);
/// A request is small, and so is what a stranger can make us allocate.
const REQUEST_BYTES: u32 = 16 << 10;
/// So many may be about to ask at a time; more wait for their turn.
const ASKING: usize = 256;
/// A worker's host that is gone is noticed after a minute.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// A worker that takes nothing for so long is stuck. Not sooner: its task may be slow.
const WRITE_DEADLINE: Duration = Duration::from_secs(600);

/// Where workers connect.
pub(super) trait Listener: Send + Sync + 'static {
    type Stream: Connection;

    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// A worker that connected.
pub(super) trait Connection: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    type Blocking: Write + Send + 'static;

    /// The same, for a thread of its own.
    fn into_blocking(self) -> io::Result<Self::Blocking>;
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }
}

impl Connection for UnixStream {
    type Blocking = std::os::unix::net::UnixStream;

    fn into_blocking(self) -> io::Result<Self::Blocking> {
        let stream = self.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(stream)
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.accept().await?;
        let socket = SockRef::from(&stream);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3).with_retries(3);
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(WRITE_DEADLINE))?;
        socket.set_tcp_nodelay(true)?;
        Ok(stream)
    }
}

impl Connection for TcpStream {
    type Blocking = std::net::TcpStream;

    fn into_blocking(self) -> io::Result<Self::Blocking> {
        let stream = self.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(stream)
    }
}

/// Serve workers for as long as the agent lives.
pub(super) async fn serve<L: Listener>(listener: L, shared: Arc<Shared>) {
    let asking = Arc::new(Semaphore::new(ASKING));
    loop {
        let Ok(turn) = asking.clone().acquire_owned().await else { return };
        let connection = match listener.next().await {
            Ok(connection) => connection,
            Err(error) => {
                log::warn!("accepting a worker: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let shared = shared.clone();
        tokio::spawn(async move {
            let answered = timeout(REQUEST_DEADLINE, answer(connection, shared)).await;
            drop(turn);
            match answered {
                Ok(Ok(())) => {}
                Ok(Err(error)) => log::warn!("answering a worker: {error}"),
                Err(_) => log::warn!("somebody connected to the agent and did not ask for anything"),
            }
        });
    }
}

/// Answer one question. Rows are sent by a thread of their own, as fast as the worker reads; it is not waited for.
async fn answer(mut connection: impl Connection, shared: Arc<Shared>) -> io::Result<()> {
    let call: Call = frame::read_async(&mut connection, REQUEST_BYTES).await?;
    let answer = if part::same(&call.token, &shared.config.token) {
        match call.ask {
            Ask::Status => Answer::Status(shared.status()),
            Ask::Part(request) => {
                request.executor.into_iter().for_each(|executor| shared.saw(executor));
                let found = shared.puller.book().part(&request.end, request.index);
                match found {
                    Ok(part) => {
                        let target = connection.into_blocking()?;
                        tokio::task::spawn_blocking(move || {
                            if let Err(error) = part::send(target, &part) {
                                log::warn!("sending a part: {error}");
                            }
                        });
                        return Ok(());
                    }
                    Err(error) => Answer::Failed(error),
                }
            }
        }
    } else {
        Answer::Failed(Error::new(ErrorKind::PartUnavailable, "the agent does not accept this token."))
    };
    connection.write_all(&frame::encode(&answer)?).await
}
