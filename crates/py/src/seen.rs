//! The ids of messages that were seen, from Python.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use solstice_core::error::{Error, ErrorKind};
use solstice_core::pubsub::seen as core;

use crate::arrow::{ArrowStream, import_stream};
use crate::errors::call;

/// Message ids, exactly: which were seen.
#[pyclass(frozen)]
pub struct SeenIds {
    core: Arc<Mutex<core::SeenIds>>,
}

#[pymethods]
impl SeenIds {
    #[new]
    fn new() -> Self {
        Self { core: Arc::default() }
    }

    fn __len__(&self) -> usize {
        self.core.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).len()
    }

    /// The rows of a stream whose ids were not seen before; as they are read, they are seen.
    fn fresh(&self, data: &Bound<'_, PyAny>) -> PyResult<ArrowStream> {
        Ok(ArrowStream::new(Box::new(core::Fresh::new(self.core.clone(), import_stream(data)?))))
    }

    /// The ids in a stream of rows were not seen.
    fn forget(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let batches = import_stream(data)?;
        call(py, || {
            for batch in batches {
                let batch = batch.map_err(|e| Error::new(ErrorKind::Native, format!("ids to forget: {e}.")))?;
                self.core.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).forget(&batch)?;
            }
            Ok(())
        })
    }
}
