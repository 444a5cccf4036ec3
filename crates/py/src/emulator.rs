//! The Pub/Sub emulator, for `solstice.testing`.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use solstice_core::emulator;
use solstice_core::error::{Error, ErrorKind, Result};
use solstice_core::pubsub::wire;

use crate::errors::call;

/// The settings of a subscription, as a dict.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Settings {
    ack_deadline_s: i32,
    enable_message_ordering: bool,
    enable_exactly_once_delivery: bool,
    filter: String,
    dead_letter_topic: Option<String>,
    max_delivery_attempts: i32,
    minimum_backoff_s: Option<f64>,
    maximum_backoff_s: Option<f64>,
    retain_acked_messages: bool,
    message_retention_s: Option<f64>,
    labels: HashMap<String, String>,
}

impl Settings {
    fn into_wire(self, name: String, topic: String) -> Result<wire::Subscription> {
        let max_delivery_attempts = self.max_delivery_attempts;
        let minimum_backoff = self.minimum_backoff_s.map(wire_duration).transpose()?;
        let maximum_backoff = self.maximum_backoff_s.map(wire_duration).transpose()?;
        Ok(wire::Subscription {
            name,
            topic,
            ack_deadline_seconds: self.ack_deadline_s,
            enable_message_ordering: self.enable_message_ordering,
            enable_exactly_once_delivery: self.enable_exactly_once_delivery,
            filter: self.filter,
            dead_letter_policy: self
                .dead_letter_topic
                .map(|dead_letter_topic| wire::DeadLetterPolicy { dead_letter_topic, max_delivery_attempts }),
            retry_policy: (minimum_backoff.is_some() || maximum_backoff.is_some())
                .then_some(wire::RetryPolicy { minimum_backoff, maximum_backoff }),
            retain_acked_messages: self.retain_acked_messages,
            message_retention_duration: self.message_retention_s.map(wire_duration).transpose()?,
            labels: self.labels,
            ..Default::default()
        })
    }
}

/// A running emulator.
#[pyclass(frozen, module = "solstice._native")]
pub struct Emulator {
    inner: emulator::Emulator,
}

#[pymethods]
impl Emulator {
    /// Listen on `host:port`; port 0 takes a free one. With a certificate and its key (PEM) it speaks TLS; with a folder
    /// it keeps everything there.
    #[staticmethod]
    #[pyo3(signature = (host, port, *, tls = None, data_dir = None))]
    fn start(
        py: Python<'_>,
        host: &str,
        port: u16,
        tls: Option<(String, String)>,
        data_dir: Option<PathBuf>,
    ) -> PyResult<Self> {
        Ok(Self { inner: call(py, || emulator::Emulator::start(host, port, tls, data_dir.as_deref()))? })
    }

    /// Serve only who shows this bearer token; with None, everybody.
    fn require_token(&self, token: Option<String>) {
        self.inner.access().require_token(token);
    }

    /// Deny these permissions, and no others.
    fn deny(&self, permissions: Vec<String>) {
        self.inner.access().deny(permissions);
    }

    /// Where it listens.
    #[getter]
    fn port(&self) -> u16 {
        self.inner.port()
    }

    /// End every stream and close the port.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.infallible(py, emulator::Emulator::stop)
    }

    /// Create a topic.
    fn create_topic(
        &self,
        py: Python<'_>,
        name: String,
        message_retention_s: Option<f64>,
        labels: HashMap<String, String>,
    ) -> PyResult<()> {
        call(py, || {
            let message_retention_duration = message_retention_s.map(wire_duration).transpose()?;
            self.inner.create_topic(wire::Topic { name, labels, message_retention_duration, ..Default::default() })
        })
    }

    /// Create a subscription.
    fn create_subscription(&self, py: Python<'_>, name: String, topic: String, settings: Settings) -> PyResult<()> {
        call(py, || self.inner.create_subscription(settings.into_wire(name, topic)?))
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
            ("dead_lettered", counters.dead_lettered),
            ("filtered", counters.filtered),
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

    /// How often each method was called.
    fn calls(&self, py: Python<'_>) -> PyResult<BTreeMap<&'static str, u64>> {
        call(py, || Ok(self.inner.calls()))
    }

    /// Turn the clock forward.
    fn advance(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        call(py, || {
            self.inner.advance(duration(seconds)?);
            Ok(())
        })
    }

    /// Answer the next calls of a method with a code.
    fn answer(&self, py: Python<'_>, method: &str, code: &str, times: u64) -> PyResult<()> {
        call(py, || self.inner.answer(method, code, times))
    }

    /// Let the next calls of a method wait.
    fn delay(&self, py: Python<'_>, method: &str, seconds: f64, times: u64) -> PyResult<()> {
        call(py, || self.inner.delay(method, duration(seconds)?, times))
    }

    /// End streams after so many messages.
    fn cut_streams(&self, py: Python<'_>, after: u64, times: Option<u64>) -> PyResult<()> {
        self.infallible(py, |inner| inner.cut_streams(after, times))
    }

    /// Deliver every n-th message twice.
    fn duplicate(&self, py: Python<'_>, every: NonZeroU64) -> PyResult<()> {
        self.infallible(py, |inner| inner.duplicate(every))
    }

    /// Forget the next acknowledge requests.
    fn drop_acks(&self, py: Python<'_>, times: u64) -> PyResult<()> {
        self.infallible(py, |inner| inner.drop_acks(times))
    }

    /// No faults any more.
    fn clear_faults(&self, py: Python<'_>) -> PyResult<()> {
        self.infallible(py, emulator::Emulator::clear_faults)
    }
}

impl Emulator {
    fn infallible(&self, py: Python<'_>, work: impl FnOnce(&emulator::Emulator) + Send) -> PyResult<()> {
        call(py, || {
            work(&self.inner);
            Ok(())
        })
    }
}

fn duration(seconds: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|error| Error::new(ErrorKind::Config, format!("{seconds} s is no duration: {error}.")))
}

fn wire_duration(seconds: f64) -> Result<wire::Duration> {
    let duration = duration(seconds)?;
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Ok(wire::Duration { seconds, nanos: i32::try_from(duration.subsec_nanos()).unwrap_or(0) })
}
