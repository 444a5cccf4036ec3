//! The ids of messages that were seen, from Python.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use solstice_core::error::{Error, ErrorKind, Result};
use solstice_core::pubsub::seen as core;

use crate::arrow::{ArrowStream, import_stream};
use crate::errors::{call, to_python};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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
        lock(&self.core).len()
    }

    /// The rows of a stream whose ids were not seen before; as they are read, they are seen.
    fn fresh(&self, data: &Bound<'_, PyAny>) -> PyResult<FreshRows> {
        let ids: Arc<Mutex<core::Ids>> = Arc::default();
        let rows = core::Fresh::new(self.core.clone(), ids.clone(), import_stream(data)?);
        Ok(FreshRows { rows: ArrowStream::new(Box::new(rows)), ids })
    }

    /// Ids, as `FreshRows.ids` gives them, were seen.
    fn learn(&self, py: Python<'_>, ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let batches = import_stream(ids)?;
        call(py, || each(batches, |batch| lock(&self.core).learn(batch)))
    }

    /// Ids, as `FreshRows.ids` gives them, were not seen.
    fn forget(&self, py: Python<'_>, ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let batches = import_stream(ids)?;
        call(py, || each(batches, |batch| lock(&self.core).forget(batch)))
    }
}

fn each(batches: impl RecordBatchReader, mut work: impl FnMut(&RecordBatch) -> Result<()>) -> Result<()> {
    for batch in batches {
        work(&batch.map_err(|e| Error::new(ErrorKind::Native, format!("ids: {e}.")))?)?;
    }
    Ok(())
}

/// A stream of rows that Python can take once, and their ids.
#[pyclass(frozen)]
pub struct FreshRows {
    rows: ArrowStream,
    ids: Arc<Mutex<core::Ids>>,
}

#[pymethods]
impl FreshRows {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        self.rows.__arrow_c_stream__(py, requested_schema)
    }

    /// The ids of the rows that were read since the last call: one row of lists.
    fn ids(&self, py: Python<'_>) -> PyResult<ArrowStream> {
        let ids = lock(&self.ids).take().map_err(|error| to_python(py, &error))?;
        let schema = ids.schema();
        Ok(ArrowStream::new(Box::new(RecordBatchIterator::new([Ok(ids)], schema))))
    }
}
