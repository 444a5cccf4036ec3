//! Publishing from Python.

use pyo3::prelude::*;
use solstice_core::error::{Error, ErrorKind};
use solstice_core::pubsub::client::Client;
use solstice_core::pubsub::publish as core_publish;
use solstice_core::runtime;

use crate::arrow::import_stream;
use crate::errors::call;

/// Publish Arrow data to a topic at a plaintext address; returns the number of messages, all of which have an id.
#[pyfunction]
#[pyo3(signature = (address, topic, data))]
pub fn publish(py: Python<'_>, address: String, topic: String, data: &Bound<'_, PyAny>) -> PyResult<usize> {
    let batches = import_stream(data)?;
    call(py, move || {
        runtime::handle()?.block_on(async {
            let client = Client::connect_plaintext(&address).await?;
            let batches = batches.map(|batch| {
                batch.map_err(|e| Error::new(ErrorKind::Config, format!("the Arrow data to publish is broken: {e}.")))
            });
            core_publish::publish(&client, &topic, batches).await
        })
    })
}
