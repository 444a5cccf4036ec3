//! Arrow across the border without copying: the PyCapsule interface, both ways.

use std::sync::Mutex;

use arrow_array::RecordBatchReader;
use arrow_array::ffi::FFI_ArrowSchema;
use arrow_array::ffi_stream::{FFI_ArrowArrayStream, RecordBatchStreamReader};
use arrow_schema::Schema;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

const STREAM: &std::ffi::CStr = c"arrow_array_stream";
const SCHEMA: &std::ffi::CStr = c"arrow_schema";

/// A stream of record batches that Python can take once, through `__arrow_c_stream__`.
#[pyclass(frozen)]
pub struct ArrowStream {
    reader: Mutex<Option<Box<dyn RecordBatchReader + Send>>>,
}

impl ArrowStream {
    /// A stream over `reader`.
    pub fn new(reader: Box<dyn RecordBatchReader + Send>) -> Self {
        Self { reader: Mutex::new(Some(reader)) }
    }
}

#[pymethods]
impl ArrowStream {
    #[pyo3(signature = (requested_schema=None))]
    pub fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema; // the protocol lets a producer ignore it; consumers check the schema they get
        let reader = self.reader.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        let reader = reader.ok_or_else(|| PyValueError::new_err("this Arrow stream was taken already"))?;
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(reader), STREAM)
    }
}

/// A reader over any Python object with `__arrow_c_stream__`.
#[allow(unsafe_code)]
pub fn import_stream(object: &Bound<'_, PyAny>) -> PyResult<RecordBatchStreamReader> {
    if !object.hasattr("__arrow_c_stream__")? {
        let found = object.get_type().name()?.to_string();
        return Err(PyTypeError::new_err(format!(
            "expected Arrow data (an object with __arrow_c_stream__, such as a pyarrow.Table), got {found}"
        )));
    }
    let capsule = object.call_method0("__arrow_c_stream__")?.cast_into::<PyCapsule>()?;
    let pointer = capsule.pointer_checked(Some(STREAM))?.cast::<FFI_ArrowArrayStream>();
    // SAFETY: the name says that the capsule holds an ArrowArrayStream; from_raw moves it out and leaves an empty one
    // behind, as the protocol asks for.
    unsafe { RecordBatchStreamReader::from_raw(pointer.as_ptr()) }.map_err(|e| PyValueError::new_err(e.to_string()))
}

/// The schema of any Python object with `__arrow_c_schema__`.
#[allow(unsafe_code)]
pub fn import_schema(object: &Bound<'_, PyAny>) -> PyResult<Schema> {
    if !object.hasattr("__arrow_c_schema__")? {
        let found = object.get_type().name()?.to_string();
        return Err(PyTypeError::new_err(format!(
            "expected an Arrow schema (an object with __arrow_c_schema__, such as a pyarrow.Schema), got {found}"
        )));
    }
    let capsule = object.call_method0("__arrow_c_schema__")?.cast_into::<PyCapsule>()?;
    let pointer = capsule.pointer_checked(Some(SCHEMA))?.cast::<FFI_ArrowSchema>();
    // SAFETY: the name says that the capsule holds an ArrowSchema, and the capsule outlives the borrow.
    let schema = unsafe { pointer.as_ref() };
    Schema::try_from(schema).map_err(|e| PyValueError::new_err(e.to_string()))
}
