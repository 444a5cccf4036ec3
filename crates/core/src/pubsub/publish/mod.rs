//! Publishing Arrow rows: requests within the limits of the service, several in flight, one for each ordering key, and
//! every row with a server id or a reason.
//!
//! A row goes through `columns` (Arrow in any layout), `encode` (checked, and written as the wire has it), `request` (put
//! together with others) and `outbox` (its turn comes) to `send` (tried until it has an id or the time is up). `rows` says
//! which rows failed and why.

mod columns;
mod encode;
#[cfg(test)]
mod encode_tests;
mod outbox;
#[cfg(test)]
mod publisher_tests;
mod request;
mod rows;
mod send;

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::builder::StringBuilder;
use arrow_array::{RecordBatch, StringArray};
use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use self::outbox::{Account, Outbox};
use self::request::Filler;
use self::rows::Rows;
use self::send::Sender;
use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::client::Client;
pub(crate) use columns::{Cells, Columns};
pub use rows::Failure;

/// What the unfinished requests of all ordering keys may take; beyond it they are sent as they are.
const MAX_KEYED_BYTES: usize = 16 << 20;
/// Failures that an error's text spells out; it carries all of them.
const SHOWN_FAILURES: usize = 3;

/// How to publish.
#[derive(Clone, Debug)]
pub struct PublishOptions {
    /// The most messages of a request, up to what the service takes.
    pub batch_size: usize,
    /// The most bytes of a request of several messages, up to what the service takes.
    pub max_batch_bytes: usize,
    /// How long a request waits for more rows.
    pub linger: Duration,
    /// From the first try of a request to the end of its last one.
    pub timeout: Duration,
    /// Compress the requests.
    pub gzip: bool,
    /// Keep the ids of the messages for [`Published::ids`].
    pub keep_ids: bool,
}

/// All rows that were given have a server id.
#[derive(Debug)]
pub struct Published {
    /// The number of rows.
    pub messages: u64,
    /// The ids by row, if they were to be kept.
    pub ids: Option<StringArray>,
}

/// Some rows that were given have no server id.
#[derive(Debug)]
pub struct Unpublished {
    /// What happened, in words.
    pub error: Error,
    /// Rows that were taken; those after them were not looked at.
    pub taken: u64,
    /// Of them, rows with a server id.
    pub published: u64,
    /// The other rows that were taken.
    pub failures: Vec<Failure>,
}

/// Why not everything was published.
#[derive(Debug)]
pub enum PublishFailure {
    /// It concerns the topic as a whole, and nothing was published.
    Topic(Error),
    /// It concerns rows.
    Rows(Box<Unpublished>),
}

/// Publishes rows to one topic. Dropping it stops the sending.
pub struct Publisher {
    inner: Arc<Inner>,
}

struct Inner {
    topic: String,
    linger: Duration,
    runtime: Handle,
    filling: Mutex<Filling>,
    keep_ids: bool,
    outbox: Arc<Outbox>,
}

struct Filling {
    filler: Filler,
    rows: u64,
    refused: bool,
    lingering: bool,
}

impl Publisher {
    /// A publisher over a connection; `runtime` is where the requests run.
    pub fn new(client: Client, topic: &str, options: &PublishOptions, runtime: Handle) -> Self {
        let sender = Sender { client, topic: topic.to_owned(), timeout: options.timeout, gzip: options.gzip };
        let filler = Filler::new(topic, options.batch_size, options.max_batch_bytes);
        let inner = Inner {
            topic: topic.to_owned(),
            linger: options.linger,
            runtime: runtime.clone(),
            keep_ids: options.keep_ids,
            filling: Mutex::new(Filling { filler, rows: 0, refused: false, lingering: false }),
            outbox: Outbox::new(runtime, sender, options.keep_ids),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Take the rows of a batch; waits while too much is on its way. False: no more rows are taken, and
    /// [`Publisher::flush`] says why. Nothing of a batch is sent if the service would refuse one of its rows.
    ///
    /// When the future is dropped, the sending stops.
    pub async fn feed(&self, batch: &RecordBatch) -> Result<bool> {
        let columns = Columns::of(batch)?;
        let inner = &self.inner;
        let mut filling = inner.filling.lock().await;
        let first_row = filling.rows;
        let mut left = Left { outbox: &inner.outbox, next: first_row, end: first_row + batch.num_rows() as u64 };
        filling.rows = left.end;
        if filling.refused {
            let reason = "not sent, because an earlier row is refused".into();
            left.next = left.end;
            inner.outbox.refuse([Failure { rows: first_row..left.end, column: None, reason, code: None }]);
        }
        if filling.refused || inner.outbox.is_stopped() {
            return Ok(false);
        }
        let sizes = match encode::measure(&columns, batch.num_rows(), first_row, filling.filler.head_bytes()) {
            Ok(sizes) => sizes,
            Err(failures) => {
                left.next = left.end;
                filling.refused = true;
                inner.outbox.refuse(failures);
                return Ok(false);
            }
        };
        for (row, bytes) in sizes.into_iter().enumerate() {
            let key = columns.ordering_key(row);
            if !filling.filler.has_room(key, bytes) && !inner.submit(&mut filling.filler, key).await {
                return Ok(false);
            }
            filling.filler.add(&columns, row, bytes, left.next);
            left.next += 1;
            if filling.filler.keyed_bytes() > MAX_KEYED_BYTES {
                inner.submit_all(&mut filling.filler).await;
            }
        }
        if inner.linger.is_zero() {
            inner.submit_all(&mut filling.filler).await;
        } else if !filling.lingering && !filling.filler.is_empty() {
            filling.lingering = true;
            inner.runtime.spawn(inner.clone().linger());
        }
        Ok(true)
    }

    /// Wait until every row that was taken has a server id, or a reason why not.
    pub async fn flush(&self) -> std::result::Result<Published, PublishFailure> {
        let mut filling = self.inner.filling.lock().await;
        self.inner.submit_all(&mut filling.filler).await;
        self.inner.outbox.settled().await;
        let Account { published, failures, fatal, answers } = self.inner.outbox.account();
        let rows = filling.rows;
        drop(filling);
        let fatal = match fatal {
            Some(error) => Some(self.inner.explained(error).await),
            None => None,
        };
        if failures.is_empty() {
            let ids = self.inner.keep_ids.then(|| ids_by_row(rows, &answers));
            return Ok(Published { messages: published, ids });
        }
        match fatal {
            Some(error) if published == 0 => Err(PublishFailure::Topic(error)),
            _ => {
                let error = self.inner.error(rows, published, &failures, fatal);
                Err(PublishFailure::Rows(Box::new(Unpublished { error, taken: rows, published, failures })))
            }
        }
    }

    /// Rows with a server id so far.
    pub fn published(&self) -> u64 {
        self.inner.outbox.published()
    }

    /// Stop at once: nothing is sent any more, and no answer is waited for.
    pub fn cancel(&self) {
        self.inner.outbox.cancel();
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.inner.outbox.cancel();
    }
}

impl Inner {
    /// Hand the request of `key` over when there is room for it; false when nothing is sent any more.
    async fn submit(&self, filler: &mut Filler, key: &[u8]) -> bool {
        let room = self.outbox.room(filler.request_bytes(key)).await;
        let sent = room.is_some();
        if let Some(request) = filler.take(key, || self.outbox.spare()) {
            self.outbox.submit(request, room);
        }
        // Room may be there every time; whoever waits for this future wants to be heard now and then.
        tokio::task::yield_now().await;
        sent
    }

    async fn submit_all(&self, filler: &mut Filler) {
        for key in filler.keys() {
            self.submit(filler, &key).await;
        }
    }

    /// Send what is left in the filler when no more rows have come in time.
    async fn linger(self: Arc<Self>) {
        tokio::time::sleep(self.linger).await;
        let mut filling = self.filling.lock().await;
        filling.lingering = false;
        self.submit_all(&mut filling.filler).await;
    }

    /// Where the topic is missing or may not be written to: the same with what exactly is missing.
    async fn explained(&self, error: Error) -> Error {
        if !matches!(error.kind, ErrorKind::NotFound | ErrorKind::PermissionDenied) {
            return error;
        }
        let found = self.outbox.client().check_topic(&self.topic).await.err();
        found.filter(|found| found.kind == error.kind).unwrap_or(error)
    }

    fn error(&self, rows: u64, published: u64, failures: &[Failure], fatal: Option<Error>) -> Error {
        let refused = failures.iter().any(|failure| failure.column.is_some());
        let mut message = format!("published {published} of {rows} rows to {}; failed: ", self.topic);
        // First the causes, then what was not sent because of them.
        let (causes, others): (Vec<_>, Vec<_>) = failures.iter().partition(|failure| failure.is_cause());
        for (index, failure) in causes.into_iter().chain(others).take(SHOWN_FAILURES).enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            // Writing to a string cannot fail.
            let _ = write!(message, "{separator}{failure}");
        }
        match failures.len().saturating_sub(SHOWN_FAILURES) {
            0 => message.push('.'),
            more => message.push_str(&format!("; and {more} more.")),
        }
        let code = failures.iter().find_map(|failure| failure.code);
        let (kind, fix) = match fatal {
            Some(error) => (error.kind, error.remedy),
            None if refused => (ErrorKind::InvalidRequest, Some("Correct these rows.".to_owned())),
            None => (ErrorKind::PubSub, None),
        };
        // When it has ended early, whoever gave the rows may have more of them.
        let ended = refused || self.outbox.is_stopped();
        let rest = if ended { format!(", and what follows row {}", rows.saturating_sub(1)) } else { String::new() };
        let again = format!(
            "Publish only the failed rows again, the error lists them{rest}; one that got no answer may have arrived."
        );
        let remedy = fix.map_or_else(|| again.clone(), |fix| format!("{fix} {again}"));
        Error { kind, message, remedy: Some(remedy), code }
    }
}

/// Rows of a batch that are not in a request yet. What is left when it is dropped is accounted for.
struct Left<'a> {
    outbox: &'a Outbox,
    next: u64,
    end: u64,
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        if self.next < self.end {
            if !self.outbox.is_stopped() {
                self.outbox.cancel();
            }
            self.outbox.leave_out(self.next..self.end);
        }
    }
}

/// The ids of all rows, in their order; every row has an answer.
fn ids_by_row(rows: u64, answers: &[(Rows, Bytes)]) -> StringArray {
    let mut by_row: Vec<&[u8]> = vec![&[]; rows as usize];
    let mut bytes = 0;
    for (rows, answer) in answers {
        let mut rows = rows.iter();
        encode::read_ids(answer, |id| {
            bytes += id.len();
            if let Some(place) = rows.next().and_then(|row| by_row.get_mut(row as usize)) {
                *place = id;
            }
        });
    }
    let mut ids = StringBuilder::with_capacity(by_row.len(), bytes);
    for id in by_row {
        ids.append_value(String::from_utf8_lossy(id));
    }
    ids.finish()
}
