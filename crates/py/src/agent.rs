//! The agent process and the planner's handle on it.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use solstice_core::agent::book::Offset;
use solstice_core::agent::control::{AgentClient, Config, Next, Request};
use solstice_core::agent::part::{self, Executor, PartReader, PartRequest, Place, Status};
use solstice_core::agent::server;
use solstice_core::error::{Error, ErrorKind, Result};

use crate::arrow::ArrowStream;
use crate::errors::call;

/// Take over a file descriptor of a connected Unix socket.
#[allow(unsafe_code)]
fn adopt(fd: RawFd) -> UnixStream {
    // SAFETY: the Python caller has detached the descriptor from its socket object and never uses it again.
    UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Be the agent at the other end of the control socket `fd`; returns when the planner is gone.
#[pyfunction]
pub fn run_agent(py: Python<'_>, fd: RawFd) -> PyResult<()> {
    let control = adopt(fd);
    call(py, move || server::run(control))
}

/// The planner's handle on its agent, which lives until this is closed.
#[pyclass(frozen)]
pub struct Agent {
    client: Mutex<Option<AgentClient>>,
}

#[pymethods]
impl Agent {
    /// Tell the agent at the other end of `fd` what to do (a JSON object), and wait until it pulls.
    #[new]
    fn new(py: Python<'_>, fd: RawFd, config: String) -> PyResult<Self> {
        let control = adopt(fd);
        let client = call(py, move || {
            let config: Config = serde_json::from_str(&config)
                .map_err(|e| Error::new(ErrorKind::Config, format!("the agent's configuration is incomplete: {e}.")))?;
            AgentClient::start(control, &config)
        })?;
        Ok(Self { client: Mutex::new(Some(client)) })
    }

    /// Where workers of other hosts find the agent, if it listens for them.
    #[getter]
    fn port(&self) -> Option<u16> {
        self.client.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).as_ref().and_then(|client| client.port)
    }

    /// The batch after `start` as ((epoch, seq), rows of each part), or None when nothing came within the wait; and
    /// whether all has been read that was there at the start of a run that ends then.
    #[pyo3(signature = (start, *, max_rows, max_bytes, max_parts, wait_ms))]
    #[allow(clippy::type_complexity)]
    fn cut(
        &self,
        py: Python<'_>,
        start: (String, u64),
        max_rows: usize,
        max_bytes: usize,
        max_parts: usize,
        wait_ms: u64,
    ) -> PyResult<(Option<((String, u64), Vec<usize>)>, bool)> {
        let start = Offset { epoch: start.0, seq: start.1 };
        let request = Request::Cut { start, max_rows, max_bytes, max_parts, wait_ms };
        Ok(match self.ask(py, move |client| client.cut(&request))? {
            Next::Batch(batch) => (Some(((batch.end.epoch, batch.end.seq), batch.parts)), false),
            Next::Nothing => (None, false),
            Next::Drained => (None, true),
        })
    }

    /// Write the parts of the batch that ends at `end` (epoch, seq) to files of this machine.
    fn write(&self, py: Python<'_>, end: (String, u64), files: Vec<PathBuf>) -> PyResult<()> {
        let outcome = self.ask(py, |client| client.write(Offset { epoch: end.0, seq: end.1 }, files))?;
        outcome.map_err(|(number, text)| PyOSError::new_err((number, text)))
    }

    /// Acknowledge the batch that ends at `end` (epoch, seq), without waiting for Pub/Sub.
    fn acknowledge(&self, py: Python<'_>, end: (String, u64)) -> PyResult<()> {
        self.ask(py, |client| client.acknowledge(Offset { epoch: end.0, seq: end.1 }))
    }

    /// Whether Pub/Sub has confirmed every acknowledgement of the batch that ends at `end`, while its leases lasted; None
    /// while they are under way.
    fn confirmed(&self, py: Python<'_>, end: (String, u64)) -> PyResult<Option<bool>> {
        self.ask(py, |client| client.confirmed(Offset { epoch: end.0, seq: end.1 }))
    }

    /// The agent's counts by name, a JSON object.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        self.ask(py, |client| to_json(&client.status()?))
    }

    /// Let the agent go: it gives back what it holds and ends.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        call(py, || {
            self.client.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
            Ok(())
        })
    }
}

impl Agent {
    fn ask<T: Send>(&self, py: Python<'_>, question: impl FnOnce(&mut AgentClient) -> Result<T> + Send) -> PyResult<T> {
        call(py, || {
            let mut client = self.client.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let client =
                client.as_mut().ok_or_else(|| Error::new(ErrorKind::AgentLost, "the Pub/Sub agent was stopped."))?;
            question(client)
        })
    }
}

fn to_json(status: &Status) -> Result<String> {
    serde_json::to_string(status).map_err(|e| Error::new(ErrorKind::Native, format!("counts as JSON: {e}.")))
}

/// The counts of an agent on this host by name, a JSON object.
#[pyfunction]
pub fn agent_status(py: Python<'_>, socket: PathBuf, token: String) -> PyResult<String> {
    call(py, move || to_json(&part::status(socket, token)?))
}

/// One part of a batch as an Arrow stream that fails unless all its rows come. `tcp`: (host, port), for where the socket
/// is not seen; `executor`: (id, cores) of the process of Spark that asks.
#[pyfunction]
#[pyo3(signature = (socket, tcp, *, token, epoch, seq, index, rows, executor))]
#[allow(clippy::too_many_arguments)]
pub fn read_part(
    py: Python<'_>,
    socket: PathBuf,
    tcp: Option<(String, u16)>,
    token: String,
    epoch: String,
    seq: u64,
    index: usize,
    rows: usize,
    executor: Option<(String, usize)>,
) -> PyResult<ArrowStream> {
    let executor = executor.map(|(id, cores)| Executor { id, cores });
    let request = PartRequest { end: Offset { epoch, seq }, index, executor };
    let reader = call(py, move || PartReader::open(&Place { socket, tcp }, token, request, rows))?;
    Ok(ArrowStream::new(Box::new(reader)))
}
