//! One tokio runtime per process, started on first use.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{Error, ErrorKind, Result};
use crate::per_process::PerProcess;

static RUNTIME: PerProcess<io::Result<Runtime>> = PerProcess::new();

/// The handle of this process's runtime.
pub fn handle() -> Result<Handle> {
    let start = || Builder::new_multi_thread().worker_threads(2).thread_name("solstice").enable_all().build();
    match RUNTIME.get(start) {
        Ok(runtime) => Ok(runtime.handle().clone()),
        Err(error) => Err(Error::new(ErrorKind::Native, format!("the native runtime did not start: {error}."))),
    }
}
