//! Things that belong to the process that made them.

use pyo3::prelude::*;
use solstice_core::error::{Error, ErrorKind};

use crate::errors::to_python;

/// A value that a forked child can neither use nor drop: it has none of the threads behind it, and does not know who
/// holds its locks.
pub struct Here<T> {
    value: Option<T>,
    process: u32,
}

impl<T> Here<T> {
    /// A value of this process.
    pub fn new(value: T) -> Self {
        Self { value: Some(value), process: std::process::id() }
    }

    /// The value, or an error in another process.
    pub fn get(&self, py: Python<'_>) -> PyResult<&T> {
        let here = std::process::id();
        self.value.as_ref().filter(|_| self.process == here).ok_or_else(|| {
            let belongs = format!("this belongs to process {}, and process {here} was forked from it.", self.process);
            to_python(py, &Error::new(ErrorKind::Config, belongs).with_remedy("Open one of its own in each process."))
        })
    }
}

impl<T> Drop for Here<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.value.take());
        }
    }
}
