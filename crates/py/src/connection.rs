//! Where Pub/Sub is, for everything that talks to it.

use std::path::PathBuf;

use pyo3::prelude::*;
use solstice_core::error::{Error, ErrorKind};
use solstice_core::pubsub::connection;

use crate::errors::call;

/// An endpoint and the credentials to show there. Making one connects nothing.
#[pyclass(frozen, eq, hash, module = "solstice._native")]
#[derive(PartialEq, Eq, Hash)]
pub struct Connection {
    pub(crate) inner: connection::Connection,
}

#[pymethods]
impl Connection {
    /// `host:port`; plaintext is without TLS and without credentials.
    #[new]
    #[pyo3(signature = (endpoint, plaintext, credentials_file = None))]
    fn new(endpoint: String, plaintext: bool, credentials_file: Option<PathBuf>) -> Self {
        Self { inner: connection::Connection { endpoint, plaintext, credentials_file } }
    }

    /// As the agent's configuration has it.
    fn as_json(&self, py: Python<'_>) -> PyResult<String> {
        call(py, || {
            serde_json::to_string(&self.inner)
                .map_err(|e| Error::new(ErrorKind::Config, format!("the connection cannot be written as JSON: {e}.")))
        })
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.inner)
    }
}
