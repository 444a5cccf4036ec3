//! Publishing from Python.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchIterator};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyRange};
use solstice_core::error::{Error, ErrorKind};
use solstice_core::pubsub::client::Client;
use solstice_core::pubsub::publish::{self as core, Failure, PublishFailure, PublishOptions, Unpublished};
use solstice_core::runtime;

use crate::arrow::{ArrowStream, import_stream};
use crate::connection::Connection;
use crate::errors::{call, status_name, to_python};
use crate::process::Here;
use crate::waiting::wait;

/// Publishes Arrow rows to one topic.
#[pyclass(frozen, module = "solstice._native")]
pub struct Publisher {
    inner: Here<core::Publisher>,
}

#[pymethods]
impl Publisher {
    /// Connect.
    #[new]
    #[pyo3(signature = (connection, topic, *, batch_size, max_batch_bytes, linger_s, timeout_s, gzip, keep_ids))]
    #[allow(clippy::too_many_arguments)] // they are keywords in Python
    fn new(
        py: Python<'_>,
        connection: &Connection,
        topic: &str,
        batch_size: usize,
        max_batch_bytes: usize,
        linger_s: f64,
        timeout_s: f64,
        gzip: bool,
        keep_ids: bool,
    ) -> PyResult<Self> {
        let options = PublishOptions {
            batch_size,
            max_batch_bytes,
            linger: Duration::from_secs_f64(linger_s),
            timeout: Duration::from_secs_f64(timeout_s),
            gzip,
            keep_ids,
        };
        let inner = wait(py, async {
            let client = Client::connect(&connection.inner).await?;
            Ok(core::Publisher::new(client, topic, &options, runtime::handle()?))
        })?;
        Ok(Self { inner: Here::new(inner) })
    }

    /// Take the rows of anything with `__arrow_c_stream__`. False: no more rows are taken, and `flush` says why.
    fn feed(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<bool> {
        let publisher = self.inner.get(py)?;
        let mut batches = import_stream(data)?;
        let broken = |e| Error::new(ErrorKind::Config, format!("the Arrow data to publish is broken: {e}."));
        while let Some(batch) = call(py, || batches.next().transpose().map_err(broken))? {
            if !wait(py, publisher.feed(&batch))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Wait until every row has a server id: how many there are, and the ids by row if they were to be kept.
    fn flush(&self, py: Python<'_>) -> PyResult<(u64, Option<ArrowStream>)> {
        let publisher = self.inner.get(py)?;
        match wait(py, async { Ok(publisher.flush().await) })? {
            Ok(published) => {
                let ids = published.ids.map(|ids| Arc::new(ids) as ArrayRef);
                Ok((published.messages, ids.map(|ids| stream_of(py, ids)).transpose()?))
            }
            Err(PublishFailure::Topic(error)) => Err(to_python(py, &error)),
            Err(PublishFailure::Rows(rows)) => Err(publish_error(py, &rows).unwrap_or_else(|failed| failed)),
        }
    }

    /// Rows with a server id so far.
    fn published(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.inner.get(py)?.published())
    }

    /// Stop at once: nothing is sent any more, and no answer is waited for.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.get(py)?.cancel();
        Ok(())
    }
}

fn stream_of(py: Python<'_>, ids: ArrayRef) -> PyResult<ArrowStream> {
    let batch = RecordBatch::try_from_iter([("message_id", ids)]);
    let batch = batch.map_err(|e| to_python(py, &Error::new(ErrorKind::Native, format!("no batch of ids: {e}."))))?;
    let schema = batch.schema();
    Ok(ArrowStream::new(Box::new(RecordBatchIterator::new([Ok(batch)], schema))))
}

fn publish_error(py: Python<'_>, rows: &Unpublished) -> PyResult<PyErr> {
    let errors = py.import("solstice.errors")?;
    let row_failure = errors.getattr("RowFailure")?;
    let failures = PyList::empty(py);
    for Failure { rows, column, reason, code } in &rows.failures {
        let rows = PyRange::new(py, rows.start as isize, rows.end as isize)?;
        failures.append(row_failure.call1((rows, reason.as_ref(), *column, code.map(status_name)))?)?;
    }
    let fields = PyDict::new(py);
    fields.set_item("taken", rows.taken)?;
    fields.set_item("published", rows.published)?;
    fields.set_item("failures", failures.to_tuple())?;
    fields.set_item("code", rows.error.code.map(status_name))?;
    fields.set_item("remedy", rows.error.remedy.as_deref())?;
    Ok(PyErr::from_value(errors.getattr("PublishError")?.call((&rows.error.message,), Some(&fields))?))
}
