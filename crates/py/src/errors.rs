//! One mapping from the core's errors to the classes of `solstice.errors`, and one way to call into the core.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use solstice_core::error::{Error, ErrorKind, Result};

/// Run `work` without the GIL; errors and panics become Python exceptions.
pub fn call<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    let outcome = py.detach(|| catch_unwind(AssertUnwindSafe(work)));
    outcome.unwrap_or_else(|panic| Err(from_panic(panic.as_ref()))).map_err(|error| to_python(py, &error))
}

fn from_panic(panic: &(dyn Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    Error::new(ErrorKind::Native, format!("the native core panicked: {text}."))
        .with_remedy("This is a bug in Solstice: please report it with this message.")
}

/// The Python exception of a core error.
pub fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    let class = match error.kind {
        ErrorKind::Config => "ConfigError",
        ErrorKind::UnsupportedType => "UnsupportedTypeError",
        ErrorKind::NotFound => "NotFoundError",
        ErrorKind::AlreadyExists => "AlreadyExistsError",
        ErrorKind::PermissionDenied => "PermissionDeniedError",
        ErrorKind::Unauthenticated => "UnauthenticatedError",
        ErrorKind::InvalidRequest => "InvalidRequestError",
        ErrorKind::Unavailable => "UnavailableError",
        ErrorKind::AgentLost => "AgentLostError",
        ErrorKind::PartUnavailable => "PartUnavailableError",
        ErrorKind::Closed => "PullerClosedError",
        ErrorKind::CorruptRow => "CorruptRowError",
        ErrorKind::PubSub => "PubSubError",
        ErrorKind::Native => "NativeError",
    };
    build(py, class, error).unwrap_or_else(|failed| failed)
}

fn build(py: Python<'_>, class: &str, error: &Error) -> PyResult<PyErr> {
    let fields = PyDict::new(py);
    fields.set_item("remedy", error.remedy.as_deref())?;
    if let Some(code) = error.code {
        fields.set_item("code", status_name(code))?;
    }
    let class = py.import("solstice.errors")?.getattr(class)?;
    Ok(PyErr::from_value(class.call((&error.message,), Some(&fields))?))
}

/// `NotFound` as gRPC spells it: `NOT_FOUND`.
pub fn status_name(code: impl std::fmt::Debug) -> String {
    let mut name = String::new();
    for (index, letter) in format!("{code:?}").char_indices() {
        if index > 0 && letter.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// Panic inside the core: how tests show that a panic becomes a Python exception.
#[pyfunction]
#[allow(clippy::panic)] // the one place that is meant to
pub fn provoke_panic(py: Python<'_>, message: String) -> PyResult<()> {
    call(py, move || panic!("{message}"))
}
