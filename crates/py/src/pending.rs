//! Calls of the core that are under way, for Python to wait for: with an ear for Ctrl-C, or in an event loop.

use std::future::Future;
use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use solstice_core::error::{Error, ErrorKind, Result};
use solstice_core::runtime;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::errors::{call, to_python};
use crate::process::Here;
use crate::waiting::wait;

/// What a call came to, and who wants to hear of it.
#[derive(Default)]
struct Slot {
    state: Mutex<State>,
    done: Notify,
}

#[derive(Default)]
struct State {
    outcome: Option<Result<()>>,
    bell: Option<UnixStream>,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, outcome: Result<()>) {
        let mut state = self.lock();
        state.outcome = Some(outcome);
        state.bell.take().into_iter().for_each(ring);
        drop(state);
        self.done.notify_waiters();
    }

    async fn finished(&self) -> Result<()> {
        loop {
            let mut done = std::pin::pin!(self.done.notified());
            done.as_mut().enable();
            if let Some(outcome) = self.lock().outcome.clone() {
                return outcome;
            }
            done.await;
        }
    }
}

/// One byte, and the end: the other side becomes readable. If it is gone, nobody listens any more.
fn ring(mut bell: UnixStream) {
    let _ = bell.write(&[1]);
}

/// A call under way. Dropping it is not wanting to know: the call may go on or not.
#[pyclass(frozen, module = "solstice._native")]
pub struct Pending {
    inner: Here<Call>,
}

struct Call {
    slot: Arc<Slot>,
    task: AbortHandle,
    listening: Mutex<Option<UnixStream>>,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Pending {
    /// Start `work` on the runtime of this process.
    pub fn start(py: Python<'_>, work: impl Future<Output = Result<()>> + Send + 'static) -> PyResult<Self> {
        let slot = Arc::new(Slot::default());
        let finish = slot.clone();
        let task = call(py, move || {
            let runtime = runtime::handle()?;
            let work = runtime.spawn(work);
            let abort = work.abort_handle();
            runtime.spawn(async move {
                let died = |e| Err(Error::new(ErrorKind::Native, format!("a call of the core died: {e}.")));
                finish.finish(work.await.unwrap_or_else(died));
            });
            Ok(abort)
        })?;
        Ok(Self { inner: Here::new(Call { slot, task, listening: Mutex::new(None) }) })
    }
}

#[pymethods]
impl Pending {
    /// Wait for it; an error of it is raised.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        wait(py, self.inner.get(py)?.slot.finished())
    }

    /// A descriptor that becomes readable when it is done; for event loops.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        let pending = self.inner.get(py)?;
        let mut listening = pending.listening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(listening) = &*listening {
            return Ok(listening.as_raw_fd());
        }
        let (ours, bell) = UnixStream::pair()?;
        let mut state = pending.slot.lock();
        match state.outcome {
            Some(_) => ring(bell),
            None => state.bell = Some(bell),
        }
        Ok(listening.insert(ours).as_raw_fd())
    }

    /// Raise its error, if it has one. It must be done.
    fn result(&self, py: Python<'_>) -> PyResult<()> {
        let outcome = self.inner.get(py)?.slot.lock().outcome.clone();
        let early = || Err(Error::new(ErrorKind::Native, "the call is still under way."));
        outcome.unwrap_or_else(early).map_err(|error| to_python(py, &error))
    }
}
