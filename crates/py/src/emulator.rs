//! The Pub/Sub emulator, for `solstice.testing`.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use solstice_core::emulator;
use solstice_core::pubsub::wire;

use crate::errors::call;

/// A running emulator.
#[pyclass(frozen, module = "solstice._native")]
pub struct Emulator {
    inner: emulator::Emulator,
}

#[pymethods]
impl Emulator {
    /// Listen on `host:port`; port 0 takes a free one.
    #[staticmethod]
    fn start(py: Python<'_>, host: &str, port: u16) -> PyResult<Self> {
        Ok(Self { inner: call(py, || emulator::Emulator::start(host, port))? })
    }

    /// Where it listens.
    #[getter]
    fn port(&self) -> u16 {
        self.inner.port()
    }

    /// End every stream and close the port.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        call(py, || {
            self.inner.stop();
            Ok(())
        })
    }

    /// Create a topic.
    fn create_topic(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let topic = wire::Topic { name: name.to_owned(), ..Default::default() };
        call(py, || self.inner.create_topic(topic))
    }

    /// Create a subscription.
    fn create_subscription(
        &self,
        py: Python<'_>,
        name: String,
        topic: String,
        ack_deadline_s: i32,
        enable_message_ordering: bool,
    ) -> PyResult<()> {
        let subscription = wire::Subscription {
            name,
            topic,
            ack_deadline_seconds: ack_deadline_s,
            enable_message_ordering,
            ..Default::default()
        };
        call(py, || self.inner.create_subscription(subscription))
    }

    /// How many messages were published to a topic.
    fn published(&self, py: Python<'_>, topic: &str) -> PyResult<u64> {
        call(py, || self.inner.published(topic))
    }

    /// A subscription's counters.
    fn counters<'py>(&self, py: Python<'py>, subscription: &str) -> PyResult<Bound<'py, PyDict>> {
        let counters = call(py, || self.inner.counters(subscription))?;
        let named = PyDict::new(py);
        for (name, value) in [
            ("outstanding", counters.outstanding),
            ("backlog", counters.backlog),
            ("acked", counters.acked),
            ("nacked", counters.nacked),
            ("expired", counters.expired),
            ("delivered", counters.delivered),
            ("redelivered", counters.redelivered),
        ] {
            named.set_item(name, value)?;
        }
        Ok(named)
    }

    /// The ids of the messages a subscription has acknowledged, in the order of publishing.
    fn acked_ids(&self, py: Python<'_>, subscription: &str) -> PyResult<Vec<String>> {
        let ids = call(py, || self.inner.acked_ids(subscription))?;
        Ok(ids.into_iter().map(|id| id.to_string()).collect())
    }
}
