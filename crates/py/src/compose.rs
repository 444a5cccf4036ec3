//! Composing messages from Python.

use std::sync::{Arc, Mutex};

use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::ArrowError;
use pyo3::prelude::*;
use solstice_core::compose as core;
use solstice_core::error::{Error, ErrorKind};

use crate::arrow::{ArrowStream, import_schema, import_stream};
use crate::errors::{call, to_python};

/// Makes messages of rows.
#[pyclass(frozen)]
pub struct Composer {
    core: Mutex<core::Composer>,
}

#[pymethods]
impl Composer {
    #[new]
    #[pyo3(signature = (schema, *, data, attributes, ordering_key, stamp=None))]
    fn new(
        py: Python<'_>,
        schema: &Bound<'_, PyAny>,
        data: Option<String>,
        attributes: Option<String>,
        ordering_key: Option<String>,
        stamp: Option<(String, String)>,
    ) -> PyResult<Self> {
        let schema = Arc::new(import_schema(schema)?);
        let parts = core::Parts { data, attributes, ordering_key };
        let stamp = stamp.map(|(attribute, prefix)| core::Stamp { attribute, prefix });
        let core = core::Composer::new(schema, parts, stamp).map_err(|error| to_python(py, &error))?;
        Ok(Self { core: Mutex::new(core) })
    }

    /// The messages of all batches of `data`, as a publisher takes them.
    fn compose(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<ArrowStream> {
        let batches = import_stream(data)?;
        let nothing = RecordBatch::new_empty(batches.schema());
        call(py, || {
            let mut core = self.core.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            // Without batches the stream still has a schema.
            let mut messages = vec![core.compose(&nothing)?];
            for batch in batches {
                messages.push(core.compose(&batch.map_err(broken)?)?);
            }
            let schema = messages[0].schema();
            Ok(ArrowStream::new(Box::new(RecordBatchIterator::new(messages.into_iter().map(Ok), schema))))
        })
    }
}

fn broken(error: ArrowError) -> Error {
    Error::new(ErrorKind::Config, format!("the Arrow data to publish is broken: {error}."))
}
