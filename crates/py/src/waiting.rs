//! Waiting for the core, with an ear for Ctrl-C.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use pyo3::prelude::*;
use solstice_core::error::Result;
use solstice_core::runtime;

use crate::errors::call;

/// How long a signal may go unnoticed.
const LISTEN_EVERY: Duration = Duration::from_millis(100);

/// Wait for `work` without the GIL. When a Python signal handler raises (Ctrl-C does), `work` is dropped.
pub fn wait<T: Send>(py: Python<'_>, work: impl Future<Output = Result<T>> + Send) -> PyResult<T> {
    let mut work = pin!(work);
    loop {
        let step = || {
            let outcome =
                runtime::handle()?.block_on(async { tokio::time::timeout(LISTEN_EVERY, work.as_mut()).await });
            outcome.map_or(Ok(None), |done| done.map(Some))
        };
        if let Some(done) = call(py, step)? {
            return Ok(done);
        }
        py.check_signals()?;
    }
}
