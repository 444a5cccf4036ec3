//! Projecting payloads from Python.

use std::sync::{Arc, Mutex};

use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, Schema};
use pyo3::prelude::*;
use solstice_core::error::{Error, ErrorKind, Result};
use solstice_core::project as core;

use crate::arrow::{ArrowStream, import_schema, import_stream};
use crate::errors::{call, to_python};

/// Reads JSON or Avro payloads into the columns of a schema.
#[pyclass(frozen)]
pub struct Projection {
    core: Mutex<core::Projection>,
}

#[pymethods]
impl Projection {
    #[new]
    #[pyo3(signature = (format, schema, mode, *, metadata, avro_schema=None, reasons=false))]
    fn new(
        py: Python<'_>,
        format: &str,
        schema: &Bound<'_, PyAny>,
        mode: &str,
        metadata: Vec<String>,
        avro_schema: Option<&str>,
        reasons: bool,
    ) -> PyResult<Self> {
        let schema = import_schema(schema)?;
        let build = || core::Projection::new(parse_format(format, avro_schema)?, &schema, parse_mode(mode)?, metadata);
        let core = build().map_err(|error| to_python(py, &error))?;
        Ok(Self { core: Mutex::new(if reasons { core.with_reasons() } else { core }) })
    }

    /// The projected rows of all batches of `data`, which rows of it were corrupt, and why if that was asked for.
    #[allow(clippy::type_complexity)]
    fn project(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<(ArrowStream, Vec<usize>, Vec<String>)> {
        let batches = import_stream(data)?;
        let nothing = RecordBatch::new_empty(batches.schema());
        call(py, || {
            let mut core = self.core.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let mut rows: Vec<RecordBatch> = vec![];
            let (mut corrupt, mut reasons) = (vec![], vec![]);
            let mut before = 0;
            for batch in batches {
                let batch = batch.map_err(broken)?;
                let projected = core.project(&batch)?;
                corrupt.extend(projected.corrupt.into_iter().map(|row| before + row));
                reasons.extend(projected.reasons);
                before += batch.num_rows();
                rows.push(projected.rows);
            }
            if rows.is_empty() {
                // pyarrow makes a stream without batches of a batch without rows.
                rows.push(core.project(&nothing)?.rows);
            }
            let schema = rows[0].schema();
            let reader = RecordBatchIterator::new(rows.into_iter().map(Ok), schema);
            Ok((ArrowStream::new(Box::new(reader)), corrupt, reasons))
        })
    }

    /// The columns that come from the payload, without rows: their types are the schema's, nullable at every level.
    fn payload_columns(&self) -> ArrowStream {
        let core = self.core.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let schema = Arc::new(Schema::new(core.payload_fields()));
        ArrowStream::new(Box::new(RecordBatchIterator::new(std::iter::empty(), schema)))
    }
}

fn parse_format<'a>(format: &str, avro_schema: Option<&'a str>) -> Result<core::Format<'a>> {
    match (format, avro_schema) {
        ("json", None) => Ok(core::Format::Json),
        ("json", Some(_)) => Err(Error::new(ErrorKind::Config, "an Avro schema was given for the format json.")),
        ("avro", Some(schema)) => Ok(core::Format::Avro(schema)),
        ("avro", None) => Err(Error::new(ErrorKind::Config, "the format avro needs the schema of the writer.")
            .with_remedy("Give it as JSON text, in avro_schema.")),
        _ => Err(Error::new(ErrorKind::Config, format!("there is no payload format {format:?}."))
            .with_remedy("Use json or avro.")),
    }
}

fn parse_mode(mode: &str) -> Result<core::Mode> {
    match mode {
        "PERMISSIVE" => Ok(core::Mode::Permissive),
        "DROPMALFORMED" => Ok(core::Mode::DropMalformed),
        "FAILFAST" => Ok(core::Mode::FailFast),
        _ => Err(Error::new(ErrorKind::Config, format!("there is no mode {mode:?}."))
            .with_remedy("Use PERMISSIVE, DROPMALFORMED or FAILFAST.")),
    }
}

fn broken(error: ArrowError) -> Error {
    Error::new(ErrorKind::Config, format!("the Arrow data to project is broken: {error}."))
}
