//! How this binary was built.

use pyo3::prelude::*;

/// "release" or "debug".
#[pyfunction]
pub fn build_profile() -> &'static str {
    env!("SOLSTICE_PROFILE")
}

/// A hash of the sources this binary was built from.
#[pyfunction]
pub fn source_fingerprint() -> &'static str {
    env!("SOLSTICE_SOURCE_FINGERPRINT")
}
