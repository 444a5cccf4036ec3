//! Pulling from Python.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use arrow_array::{Array, RecordBatch, StringArray, StructArray, ffi};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use solstice_core::error::{Error, ErrorKind, Result};
use solstice_core::pubsub::client::Client;
use solstice_core::pubsub::columns::Selection;
use solstice_core::pubsub::lease::LeaseTerms;
use solstice_core::pubsub::ledger::Ledger;
use solstice_core::pubsub::puller::{self, PullerOptions};
use solstice_core::pubsub::settle::Outcome;
use solstice_core::{pubsub::connection, runtime};

use crate::connection::Connection;
use crate::errors::{call, to_python};
use crate::pending::Pending;
use crate::process::Here;

/// What giving back may take at the end; then the leases simply run out.
const FAREWELL: Duration = Duration::from_secs(5);

struct Inner {
    connection: connection::Connection,
    options: PullerOptions,
    terms: LeaseTerms,
    opened: OnceLock<puller::Puller<Ledger>>,
}

impl Inner {
    fn opened(&self) -> Result<&puller::Puller<Ledger>> {
        self.opened.get().ok_or_else(|| {
            Error::new(ErrorKind::Config, "the puller is not open.").with_remedy("Use it within `with`.")
        })
    }

    async fn open(&self) -> Result<()> {
        let client = Client::connect(&self.connection).await?;
        let puller = puller::Puller::start(client, self.options.clone(), Ledger::new(self.terms)).await?;
        let again =
            |_| Error::new(ErrorKind::Config, "the puller was opened already.").with_remedy("Make another one.");
        self.opened.set(puller).map_err(again)
    }
}

/// Pulls from one subscription. Making one starts nothing.
#[pyclass(frozen, module = "solstice._native")]
pub struct Puller {
    inner: Here<Arc<Inner>>,
}

#[pymethods]
impl Puller {
    #[new]
    #[pyo3(signature = (
        connection, subscription, *, client_id, columns, attribute_columns, streams, max_outstanding_messages,
        max_outstanding_bytes, ack_deadline_s, max_lease_s, max_batch_rows, linger_s
    ))]
    #[allow(clippy::too_many_arguments)] // they are keywords in Python
    fn new(
        py: Python<'_>,
        connection: &Connection,
        subscription: String,
        client_id: String,
        columns: Option<Vec<String>>,
        attribute_columns: Vec<String>,
        streams: usize,
        max_outstanding_messages: i64,
        max_outstanding_bytes: i64,
        ack_deadline_s: f64,
        max_lease_s: f64,
        max_batch_rows: usize,
        linger_s: f64,
    ) -> PyResult<Self> {
        let selection = call(py, || Selection::new(columns.as_deref(), &attribute_columns))?;
        let options = PullerOptions {
            subscription,
            client_id,
            streams,
            max_outstanding_messages,
            max_outstanding_bytes,
            selection,
            batch_rows: max_batch_rows,
            linger: Duration::from_secs_f64(linger_s),
            tell_early: false,
        };
        let terms = LeaseTerms {
            ack_deadline: Duration::from_secs_f64(ack_deadline_s),
            max_lease: Duration::from_secs_f64(max_lease_s),
        };
        let connection = connection.inner.clone();
        Ok(Self { inner: Here::new(Arc::new(Inner { connection, options, terms, opened: OnceLock::new() })) })
    }

    /// Connect, see that the subscription may be pulled from, and pull.
    fn open(&self, py: Python<'_>) -> PyResult<Pending> {
        let inner = self.inner.get(py)?.clone();
        Pending::start(py, async move { inner.open().await })
    }

    /// The next batch, if there is one.
    fn take(&self, py: Python<'_>) -> PyResult<Option<PulledBatch>> {
        let inner = self.inner.get(py)?;
        let taken = call(py, || inner.opened()?.take())?;
        Ok(taken.and_then(|taken| Some(PulledBatch::new(inner, taken.ticket, taken.batches.into_iter().next()?))))
    }

    /// Done when `take` has something to say: a batch, or an error. Or after `wait_s` without a message.
    #[pyo3(signature = (wait_s = None))]
    fn ready(&self, py: Python<'_>, wait_s: Option<f64>) -> PyResult<Pending> {
        let inner = self.inner.get(py)?.clone();
        let wait = wait_s.map(|wait_s| Duration::from_secs_f64(wait_s.max(0.0)));
        Pending::start(py, async move {
            inner.opened()?.ready(wait).await;
            Ok(())
        })
    }

    /// Counts by name, a JSON object.
    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        let inner = self.inner.get(py)?;
        call(py, || {
            let stats = inner.opened()?.stats();
            serde_json::to_string(&stats).map_err(|e| Error::new(ErrorKind::Native, format!("counts as JSON: {e}.")))
        })
    }

    /// End the streams and give back what was not acknowledged. It goes on also when nobody waits for it.
    fn close(&self, py: Python<'_>) -> PyResult<Pending> {
        let inner = self.inner.get(py)?.clone();
        Pending::start(py, async move {
            let closing = tokio::spawn(async move {
                if let Ok(puller) = inner.opened() {
                    puller.close(FAREWELL).await;
                }
            });
            closing.await.map_err(|e| Error::new(ErrorKind::Native, format!("closing died: {e}.")))
        })
    }
}

/// What became of a batch.
#[derive(Default)]
struct Settled {
    ack_ids: Vec<StringArray>,
    outcome: Outcome,
}

/// Rows that are leased to us until they are acknowledged or given back.
#[pyclass(frozen, module = "solstice._native")]
pub struct PulledBatch {
    inner: Here<Arc<Inner>>,
    ticket: u64,
    rows: RecordBatch,
    settled: Arc<Mutex<Settled>>,
}

impl PulledBatch {
    fn new(inner: &Arc<Inner>, ticket: u64, rows: RecordBatch) -> Self {
        Self { inner: Here::new(inner.clone()), ticket, rows, settled: Arc::default() }
    }
}

#[pymethods]
impl PulledBatch {
    fn __len__(&self) -> usize {
        self.rows.num_rows()
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let _ = requested_schema; // the protocol lets a producer ignore it; consumers check the schema they get
        let rows = StructArray::from(self.rows.clone());
        let (array, schema) = ffi::to_ffi(&rows.to_data())
            .map_err(|e| to_python(py, &Error::new(ErrorKind::Native, format!("rows cannot be exported: {e}."))))?;
        let schema = PyCapsule::new_with_value(py, schema, c"arrow_schema")?;
        let array = PyCapsule::new_with_value(py, array, c"arrow_array")?;
        PyTuple::new(py, [schema, array])
    }

    /// The first `rows` rows and the others, as batches of their own; this one is used up.
    fn split(&self, py: Python<'_>, rows: usize) -> PyResult<(Self, Self)> {
        let inner = self.inner.get(py)?;
        let at = rows.min(self.rows.num_rows());
        let rest = call(py, || {
            let puller = inner.opened()?;
            puller.book().split(self.ticket, at).ok_or_else(|| gone(puller))
        })?;
        let (first, others) = (self.rows.slice(0, at), self.rows.slice(at, self.rows.num_rows() - at));
        Ok((Self::new(inner, self.ticket, first), Self::new(inner, rest, others)))
    }

    /// Acknowledge: done when Pub/Sub has confirmed or refused; `refused` tells which.
    fn ack(&self, py: Python<'_>) -> PyResult<Pending> {
        let inner = self.inner.get(py)?;
        let settled = self.settled.clone();
        let acknowledged = call(py, || {
            let _inside = runtime::handle()?.enter();
            let puller = inner.opened()?;
            let ack_ids = puller.book().acknowledge(self.ticket, Instant::now()).ok_or_else(|| gone(puller))?;
            lock(&self.settled).ack_ids.clone_from(&ack_ids);
            Ok(puller.acknowledge(self.ticket, ack_ids))
        })?;
        Pending::start(py, async move {
            let mut outcome = acknowledged.await.map_err(|_| puller::unanswered())?;
            let error = outcome.error.take();
            lock(&settled).outcome = outcome;
            error.map_or(Ok(()), Err)
        })
    }

    /// Give back: done when Pub/Sub has confirmed.
    fn nack(&self, py: Python<'_>) -> PyResult<Pending> {
        let inner = self.inner.get(py)?;
        let given_back = call(py, || {
            let _inside = runtime::handle()?.enter();
            let puller = inner.opened()?;
            let ack_ids = puller.book().give_back(self.ticket).ok_or_else(|| gone(puller))?;
            Ok(puller.give_back(ack_ids))
        })?;
        Pending::start(py, async move {
            // Deliveries whose lease has ended are with Pub/Sub already.
            let outcome = given_back.await.map_err(|_| puller::unanswered())?;
            outcome.error.map_or(Ok(()), Err)
        })
    }

    /// The acknowledgements that Pub/Sub refused for good, as (row, ack id, reason).
    fn refused(&self) -> Vec<(usize, String, String)> {
        let settled = lock(&self.settled);
        let refused: HashMap<&str, &str> =
            settled.outcome.refused.iter().map(|r| (r.ack_id.as_str(), r.reason.as_str())).collect();
        let rows = settled.ack_ids.iter().flat_map(|ids| ids.iter().flatten()).enumerate();
        rows.filter_map(|(row, id)| Some((row, id.to_owned(), (*refused.get(id)?).to_owned()))).collect()
    }

    /// How many rows are leased to us no longer, although they were not settled.
    fn expired(&self, py: Python<'_>) -> PyResult<usize> {
        let inner = self.inner.get(py)?;
        call(py, || Ok(inner.opened()?.book().no_longer_ours(self.ticket)))
    }
}

fn lock(settled: &Mutex<Settled>) -> std::sync::MutexGuard<'_, Settled> {
    settled.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gone(puller: &puller::Puller<Ledger>) -> Error {
    if puller.is_closed() {
        return puller::closed();
    }
    Error::new(ErrorKind::Config, "this batch was acknowledged or given back already.")
}
