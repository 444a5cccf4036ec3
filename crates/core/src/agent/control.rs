//! What planner and agent say to each other, and the planner's side of it.

use std::io::{self, ErrorKind as IoKind};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agent::book::Offset;
use crate::agent::frame;
use crate::agent::part::Status;
use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::connection::Connection;

/// Far longer than any answer takes: an agent that is silent for so long is stuck.
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);

/// Disks can be slow.
const WRITE_DEADLINE: Duration = Duration::from_secs(600);

/// The first message: what the agent is to do.
#[derive(Clone, Serialize, Deserialize)]
pub struct Config {
    /// Names this life of planner and agent.
    pub epoch: String,
    /// `projects/P/subscriptions/S`.
    pub subscription: String,
    /// Where Pub/Sub is.
    pub connection: Connection,
    /// How many StreamingPull streams to hold.
    pub streams: usize,
    /// The lease of a delivery.
    pub ack_deadline_s: i32,
    /// Leases are extended no longer than this.
    pub max_lease_s: u64,
    /// Flow control over all streams.
    pub max_outstanding_messages: i64,
    /// Flow control over all streams, and the bound on the agent's own buffer.
    pub max_outstanding_bytes: i64,
    /// The columns of the rows; all of the raw schema by default.
    pub columns: Option<Vec<String>>,
    /// Attributes that are columns of their own.
    pub attribute_columns: Vec<String>,
    /// More parts than asked for, if the executors have more cores.
    pub grow_parts: bool,
    /// Where workers on this host connect.
    pub socket: PathBuf,
    /// Where the agent listens for workers on other hosts, as (host, port).
    pub tcp: Option<(String, u16)>,
    /// What workers must show.
    pub token: String,
    /// Set, the run ends when nothing that was published before its start has come for so long.
    pub available_now_idle_ms: Option<u64>,
}

/// A request of the planner.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Everything up to `start` is durable; what comes next?
    Cut {
        /// Where the last batch ended.
        start: Offset,
        /// At most so many rows.
        max_rows: usize,
        /// At most so many bytes.
        max_bytes: usize,
        /// At most so many parts.
        max_parts: usize,
        /// How long to wait for rows when there are none.
        wait_ms: u64,
    },
    /// Write the parts of the batch that ends here to files of this machine, as Arrow files.
    Write {
        /// Where it ends.
        end: Offset,
        /// One for each part.
        files: Vec<PathBuf>,
    },
    /// The batch that ends here is safe where it was written: acknowledge it now.
    Acknowledge {
        /// Where it ends.
        end: Offset,
    },
    /// Has Pub/Sub confirmed every acknowledgement of the batch that ends here, before any lease of it ended?
    Confirmed {
        /// Where it ends.
        end: Offset,
    },
    /// Count.
    Status,
}

/// The next batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Where it ends.
    pub end: Offset,
    /// The rows of each part.
    pub parts: Vec<usize>,
}

/// What follows a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Next {
    /// This batch.
    Batch(Batch),
    /// Nothing yet.
    Nothing,
    /// Nothing: all that was there at the start of the run has been read, and is acknowledged.
    Drained,
}

/// An answer of the agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// It pulls, and listens for workers of other hosts at this port.
    Ready(Option<u16>),
    /// What comes next.
    Cut(Next),
    /// The files are written, or the number and text of the error that the machine gave.
    Written(std::result::Result<(), (i32, String)>),
    /// The acknowledgements are on their way.
    Acknowledging,
    /// Whether they all arrived in time; None while they are under way.
    Confirmed(Option<bool>),
    /// The counts.
    Status(Status),
    /// It cannot go on, or not do this.
    Failed(Error),
}

/// The planner's end of the control socket. The agent lives until this is dropped.
pub struct AgentClient {
    stream: UnixStream,
    /// Where workers of other hosts find the agent.
    pub port: Option<u16>,
}

impl AgentClient {
    /// Tell a newborn agent what to do, and wait until it pulls.
    pub fn start(stream: UnixStream, config: &Config) -> Result<Self> {
        stream.set_read_timeout(Some(ANSWER_DEADLINE)).map_err(lost)?;
        let mut client = Self { stream, port: None };
        match client.ask(config)? {
            Reply::Ready(port) => Ok(Self { port, ..client }),
            other => Err(unexpected(&other)),
        }
    }

    /// What follows a batch: the answer to [`Request::Cut`].
    pub fn cut(&mut self, request: &Request) -> Result<Next> {
        match self.ask(request)? {
            Reply::Cut(next) => Ok(next),
            other => Err(unexpected(&other)),
        }
    }

    /// Write the parts of the batch that ends at `end` to files of this machine; an inner error is the machine's.
    pub fn write(&mut self, end: Offset, files: Vec<PathBuf>) -> Result<std::result::Result<(), (i32, String)>> {
        self.stream.set_read_timeout(Some(WRITE_DEADLINE)).map_err(lost)?;
        let reply = self.ask(&Request::Write { end, files })?;
        self.stream.set_read_timeout(Some(ANSWER_DEADLINE)).map_err(lost)?;
        match reply {
            Reply::Written(outcome) => Ok(outcome),
            other => Err(unexpected(&other)),
        }
    }

    /// Acknowledge the batch that ends at `end`, without waiting for Pub/Sub.
    pub fn acknowledge(&mut self, end: Offset) -> Result<()> {
        match self.ask(&Request::Acknowledge { end })? {
            Reply::Acknowledging => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Whether Pub/Sub has confirmed every acknowledgement of the batch that ends at `end`, while its leases lasted; None
    /// while they are under way.
    pub fn confirmed(&mut self, end: Offset) -> Result<Option<bool>> {
        match self.ask(&Request::Confirmed { end })? {
            Reply::Confirmed(confirmed) => Ok(confirmed),
            other => Err(unexpected(&other)),
        }
    }

    /// The agent's counts.
    pub fn status(&mut self) -> Result<Status> {
        match self.ask(&Request::Status)? {
            Reply::Status(status) => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    fn ask(&mut self, request: &impl Serialize) -> Result<Reply> {
        let answered = frame::write(&mut self.stream, request).and_then(|()| frame::read(&mut self.stream));
        match answered {
            Ok(Reply::Failed(error)) => Err(error),
            Ok(reply) => Ok(reply),
            Err(error) => {
                // A late answer to this question must not be taken for the answer to the next one.
                let _ = self.stream.shutdown(Shutdown::Both);
                Err(lost(error))
            }
        }
    }
}

fn lost(error: io::Error) -> Error {
    let what = match error.kind() {
        IoKind::WouldBlock | IoKind::TimedOut => {
            format!("the Pub/Sub agent has not answered for {} s.", ANSWER_DEADLINE.as_secs())
        }
        _ => format!("the Pub/Sub agent of this query is gone ({error})."),
    };
    Error::new(ErrorKind::AgentLost, what)
        .with_remedy("Nothing is lost: start the query again, what was not acknowledged comes again.")
}

fn unexpected(reply: &Reply) -> Error {
    Error::new(ErrorKind::Native, format!("the Pub/Sub agent answered out of turn: {reply:?}."))
}
