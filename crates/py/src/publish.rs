//! Publishing from Python.

use pyo3::prelude::*;
use solstice_core::error::{Error, ErrorKind};
use solstice_core::pubsub::client::Client;
use solstice_core::pubsub::publish as core_publish;
use solstice_core::runtime;

use crate::arrow::import_stream;
use crate::connection::Connection;
use crate::errors::call;

/// Publish Arrow data to a topic; returns the number of messages, all of which have an id.
#[pyfunction]
#[pyo3(signature = (connection, topic, data))]
pub fn publish(py: Python<'_>, connection: &Connection, topic: String, data: &Bound<'_, PyAny>) -> PyResult<usize> {
    let batches = import_stream(data)?;
    call(py, move || {
        runtime::handle()?.block_on(async {
            let client = Client::connect(&connection.inner).await?;
            let batches = batches.map(|batch| {
                batch.map_err(|e| Error::new(ErrorKind::Config, format!("the Arrow data to publish is broken: {e}.")))
            });
            core_publish::publish(&client, &topic, batches).await
        })
    })
}
