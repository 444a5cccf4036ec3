//! One tokio runtime per process, started on first use and never inherited across a fork.

use std::sync::Mutex;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{Error, ErrorKind, Result};

static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

/// The handle of this process's runtime.
///
/// Spark forks its Python workers: a child sees the parent's runtime object but not its threads, so a runtime belongs
/// to the process id that made it. The one a fork leaves behind is never dropped: dropping would join those threads.
pub fn handle() -> Result<Handle> {
    let mut slot = RUNTIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let pid = std::process::id();
    if let Some((owner, runtime)) = *slot
        && owner == pid
    {
        return Ok(runtime.handle().clone());
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("solstice")
        .enable_all()
        .build()
        .map_err(|e| Error::new(ErrorKind::Native, format!("the native runtime did not start: {e}.")))?;
    let runtime: &'static Runtime = Box::leak(Box::new(runtime));
    *slot = Some((pid, runtime));
    Ok(runtime.handle().clone())
}
