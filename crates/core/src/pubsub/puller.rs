//! A puller: streams of one subscription into one ledger, with its leases kept and its acknowledgements sent.
//!
//! The agent pulls into its book, the Python API into a bare ledger: `B` is either, and all of it is behind one lock
//! that is held only for moments.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use arrow_array::{Array, StringArray};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinSet;

use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::client::Client;
use crate::pubsub::columns::Selection;
use crate::pubsub::decode::{ChunkBuilder, decode_response};
use crate::pubsub::ledger::{Counters, Extension, Ledger, TakeLimits, Taken};
use crate::pubsub::pull::{AbortOnDrop, Inbox, pull};
use crate::pubsub::settle::{MAX_REQUEST_IDS, Outcome, Settler};
use crate::pubsub::wire::StreamingPullRequest;

/// How often leases are looked at.
const LEASE_TICK: Duration = Duration::from_secs(1);
/// The clocks of the service's many servers differ: what is published so soon after the start counts as before it.
const SKEW_MARGIN: Duration = Duration::from_secs(1);
/// A stream that has been opening for so long is taken for open: the service may say nothing before the first message.
const OPENING: Duration = Duration::from_secs(10);

/// What to pull, and how.
#[derive(Clone, Debug)]
pub struct PullerOptions {
    /// `projects/P/subscriptions/S`.
    pub subscription: String,
    /// Stable for the life of the puller; each stream adds its number.
    pub client_id: String,
    /// How many streams to hold.
    pub streams: usize,
    /// Flow control over all streams, and the bound on what is held here.
    pub max_outstanding_messages: i64,
    /// Flow control over all streams, and the bound on what is held here.
    pub max_outstanding_bytes: i64,
    /// The columns of the rows.
    pub selection: Selection,
    /// The most rows of a record batch.
    pub batch_rows: usize,
    /// How long a batch that is not full waits for more rows.
    pub linger: Duration,
    /// Tell rows that were published before the start of the puller from later ones.
    pub tell_early: bool,
}

/// What a puller can tell of itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Stats {
    /// Counts of deliveries.
    #[serde(flatten)]
    pub counters: Counters,
    /// How often a stream was opened again.
    pub reconnects: u64,
    /// The age of the delivery that is held longest.
    pub oldest_unacked_s: f64,
}

/// Rows that are still being collected.
struct Open {
    builder: ChunkBuilder,
    since: Option<Instant>,
}

/// One stream's rows on their way into the ledger, with their number and weight for whoever must not wait for the lock.
struct Stream {
    open: Mutex<Open>,
    rows: AtomicUsize,
    bytes: AtomicUsize,
    link: Mutex<Link>,
}

/// How a stream stands with the service.
#[derive(Clone, Copy)]
enum Link {
    /// It is being opened since then.
    Opening(Instant),
    /// What there is to receive comes.
    Open,
    /// It broke, and waits before it is opened again.
    Broken,
}

impl Stream {
    fn new(builder: ChunkBuilder) -> Self {
        let open = Mutex::new(Open { builder, since: None });
        Self { open, rows: AtomicUsize::new(0), bytes: AtomicUsize::new(0), link: Mutex::new(Link::Broken) }
    }

    fn weigh(&self, open: &Open) {
        self.rows.store(open.builder.rows(), Ordering::Relaxed);
        self.bytes.store(open.builder.bytes(), Ordering::Relaxed);
    }
}

/// What the puller's tasks share.
struct Shared<B> {
    options: PullerOptions,
    settler: Arc<Settler>,
    book: Mutex<B>,
    streams: Vec<Stream>,
    arrived: Notify,
    room: Notify,
    fatal: Mutex<Option<Error>>,
    reconnects: AtomicU64,
    settling: Mutex<JoinSet<()>>,
    closing: watch::Sender<bool>,
}

/// See the module. Dropping it ends its tasks; what it holds is given back by [`Puller::close`] only.
pub struct Puller<B> {
    shared: Arc<Shared<B>>,
    streams: Mutex<Vec<AbortOnDrop<()>>>,
    keeper: AbortOnDrop<()>,
}

/// The value behind a lock, also after a panic under it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B: AsMut<Ledger> + Send + 'static> Puller<B> {
    /// See that the subscription may be pulled from, and pull from it into `book`.
    pub async fn start(client: Client, options: PullerOptions, mut book: B) -> Result<Self> {
        let found = client.check_subscription(&options.subscription).await?;
        book.as_mut().set_exactly_once(found.is_some_and(|found| found.enable_exactly_once_delivery));
        let early = options.tell_early.then(|| client.service_time() + SKEW_MARGIN).map(|moment| {
            let since = moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            (since.as_secs() as i64, since.subsec_nanos() as i32)
        });
        let builder = || ChunkBuilder::new(options.selection.clone(), options.batch_rows).telling_early(early);
        let stream = |_| Stream::new(builder());
        let shared = Arc::new(Shared {
            settler: Settler::new(client.clone(), options.subscription.clone()),
            book: Mutex::new(book),
            streams: (0..options.streams.max(1)).map(stream).collect(),
            arrived: Notify::new(),
            room: Notify::new(),
            fatal: Mutex::new(None),
            reconnects: AtomicU64::new(0),
            settling: Mutex::new(JoinSet::new()),
            closing: watch::Sender::new(false),
            options,
        });
        let streams = (0..shared.streams.len())
            .map(|stream| AbortOnDrop(tokio::spawn(supervise(client.clone(), shared.clone(), stream))))
            .collect();
        let keeper = AbortOnDrop(tokio::spawn(keep_leases(shared.clone())));
        Ok(Self { shared, streams: Mutex::new(streams), keeper })
    }

    /// What is held. The lock is for moments.
    pub fn book(&self) -> MutexGuard<'_, B> {
        lock(&self.shared.book)
    }

    /// Put all that has come into the ledger, also batches that are not full.
    pub fn collect(&self) {
        self.shared.close_open(Duration::ZERO);
    }

    /// Rows in the buffer, and their bytes, also of batches that are not full.
    pub fn waiting(&self) -> (usize, usize) {
        let (open, buffered) = (self.shared.open(), lock(&self.shared.book).as_mut().buffered());
        (open.0 + buffered.0, open.1 + buffered.1)
    }

    /// Whether as much is held as may be, so that nothing more can come.
    pub fn is_full(&self) -> bool {
        let ((rows, bytes), options) = (self.shared.held(), &self.shared.options);
        rows >= options.max_outstanding_messages.unsigned_abs() || bytes >= options.max_outstanding_bytes.unsigned_abs()
    }

    /// How often a stream broke; None while one is not open.
    pub fn breaks(&self) -> Option<u64> {
        let is_open = |stream: &Stream| match *lock(&stream.link) {
            Link::Open => true,
            Link::Opening(since) => since.elapsed() >= OPENING,
            Link::Broken => false,
        };
        self.shared.streams.iter().all(is_open).then(|| self.shared.reconnects.load(Ordering::Relaxed))
    }

    /// Why it pulls no more, if so.
    pub fn failed(&self) -> Option<Error> {
        lock(&self.shared.fatal).clone()
    }

    /// It cannot go on.
    pub fn fail(&self, error: Error) {
        self.shared.fail(error);
    }

    /// Wait until `look` finds something or `deadline` comes; it looks again whenever something happens.
    pub async fn wait_for<T>(&self, deadline: Option<Instant>, mut look: impl FnMut() -> Look<T>) -> Option<T> {
        loop {
            let mut arrived = std::pin::pin!(self.shared.arrived.notified());
            // From here on nothing that happens is missed.
            arrived.as_mut().enable();
            let until = match look() {
                Look::Found(found) => return Some(found),
                Look::Nothing => deadline,
                Look::At(then) => Some(deadline.map_or(then, |deadline| deadline.min(then))),
            };
            match until {
                None => arrived.await,
                Some(until) => {
                    let _ = tokio::time::timeout_at(until.into(), arrived).await;
                }
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return if let Look::Found(found) = look() { Some(found) } else { None };
            }
        }
    }

    /// Acknowledge the deliveries of a ticket. It goes on also when nobody waits for the outcome.
    pub fn acknowledge(&self, ticket: u64, ack_ids: Vec<StringArray>) -> oneshot::Receiver<Outcome> {
        let shared = self.shared.clone();
        self.shared.settle(async move {
            let mut outcome = shared.settler.acknowledge(&ack_ids).await;
            shared.expire();
            let mut book = lock(&shared.book);
            outcome.late = book.as_mut().no_longer_ours(ticket);
            book.as_mut().acked(ticket, outcome.confirmed, outcome.refused.len());
            outcome
        })
    }

    /// Give deliveries back. It goes on also when nobody waits for the outcome.
    pub fn give_back(&self, ack_ids: Vec<StringArray>) -> oneshot::Receiver<Outcome> {
        let settler = self.shared.settler.clone();
        self.shared.settle(async move { settler.give_back(&ack_ids).await })
    }

    /// Counts.
    pub fn stats(&self) -> Stats {
        let shared = &self.shared;
        let (mut counters, oldest) = {
            let mut book = lock(&shared.book);
            let ledger = book.as_mut();
            (ledger.counters(), ledger.oldest())
        };
        let (rows, bytes) = shared.open();
        counters.received += rows as u64;
        counters.buffered += rows as u64;
        counters.leased += rows as u64;
        counters.held_bytes += bytes as u64;
        Stats {
            counters,
            reconnects: shared.reconnects.load(Ordering::Relaxed),
            oldest_unacked_s: oldest.map_or(0.0, |oldest| oldest.elapsed().as_secs_f64()),
        }
    }

    /// End the streams and give back what is held, within a bounded time. Acknowledgements under way get the same time,
    /// side by side. Returns how many were given back.
    pub async fn close(&self, patience: Duration) -> usize {
        let shared = &self.shared;
        shared.closing.send_replace(true);
        shared.arrived.notify_waiters();
        let streams = std::mem::take(&mut *lock(&self.streams));
        let ended = async {
            for mut stream in streams {
                let _ = (&mut stream.0).await;
            }
        };
        // The streams end first, so that no row arrives after the last look at what is held.
        let _ = tokio::time::timeout(patience / 4, ended).await;
        shared.close_open(Duration::ZERO);
        let held = lock(&shared.book).as_mut().close();
        let count: usize = held.iter().map(Array::len).sum();
        let mut settling = std::mem::take(&mut *lock(&shared.settling));
        let settled = async { while settling.join_next().await.is_some() {} };
        let given_back = shared.settler.give_back(&held);
        match tokio::time::timeout(patience, async { tokio::join!(settled, given_back) }).await {
            Ok(((), Outcome { error: None, .. })) => {}
            Ok(((), Outcome { error: Some(error), .. })) => {
                log::warn!("{error} They come again when their leases end.")
            }
            Err(_) => {
                let name = &shared.options.subscription;
                log::warn!("{name} was closed before Pub/Sub answered; what it held comes again when its leases end");
            }
        }
        self.keeper.0.abort();
        count
    }

    /// Whether [`Puller::close`] was called.
    pub fn is_closed(&self) -> bool {
        *self.shared.closing.borrow()
    }
}

/// What a look found; see [`Puller::wait_for`].
pub enum Look<T> {
    /// This.
    Found(T),
    /// Nothing: look again when something happens.
    Nothing,
    /// Nothing: look again when something happens, or then.
    At(Instant),
}

impl Puller<Ledger> {
    /// The next batch, if there is one: full, or one that has waited for more long enough.
    pub fn take(&self) -> Result<Option<Taken>> {
        if self.is_closed() {
            return Err(closed());
        }
        if let Some(error) = self.failed() {
            return Err(error);
        }
        self.shared.close_open(self.shared.options.linger);
        let limits = TakeLimits { max_rows: usize::MAX, max_bytes: usize::MAX, max_batches: 1 };
        Ok(self.book().take(limits, Instant::now()))
    }

    /// Wait until [`Puller::take`] has something to say, or until nothing has come for `wait`.
    pub async fn ready(&self, wait: Option<Duration>) {
        let linger = self.shared.options.linger;
        let look = || {
            if self.is_closed() || self.failed().is_some() || self.book().has_rows() {
                return Look::Found(());
            }
            match self.shared.streams.iter().filter_map(|stream| lock(&stream.open).since).min() {
                Some(since) if since.elapsed() >= linger => Look::Found(()),
                Some(since) => Look::At(since + linger),
                None => Look::Nothing,
            }
        };
        let deadline = wait.map(|wait| Instant::now() + wait);
        if self.wait_for(deadline, look).await.is_none() && self.shared.open().0 > 0 {
            // Something has come, and waits for more.
            self.wait_for(Some(Instant::now() + linger), look).await;
        }
    }
}

/// The error of using a puller that was closed.
pub fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the puller was closed, and what it held was given back.")
        .with_remedy("Use batches inside the `with` block of their puller.")
}

/// The error of waiting for an answer of Pub/Sub when the puller was closed.
pub fn unanswered() -> Error {
    Error::new(ErrorKind::Closed, "the puller was closed before Pub/Sub answered; these messages may come again.")
        .with_remedy("Close it after its batches are settled.")
}

impl<B: AsMut<Ledger> + Send + 'static> Shared<B> {
    fn settle(&self, work: impl Future<Output = Outcome> + Send + 'static) -> oneshot::Receiver<Outcome> {
        let (done, outcome) = oneshot::channel();
        let mut settling = lock(&self.settling);
        while settling.try_join_next().is_some() {}
        settling.spawn(async move {
            // Nobody has to wait for it.
            let _ = done.send(work.await);
        });
        // What is being settled no longer counts as held.
        self.room.notify_waiters();
        outcome
    }

    /// Close the chunks that have been collected for `age`.
    fn close_open(&self, age: Duration) {
        for stream in &self.streams {
            let mut open = lock(&stream.open);
            let Some(since) = open.since.filter(|since| since.elapsed() >= age) else { continue };
            open.since = None;
            match open.builder.finish() {
                Ok(Some(chunk)) => lock(&self.book).as_mut().add(chunk, since),
                Ok(None) => {}
                Err(error) => self.fail(error),
            }
            stream.weigh(&open);
        }
    }

    /// Rows, and their bytes, that are still being collected.
    fn open(&self) -> (usize, usize) {
        let load = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        self.streams.iter().fold((0, 0), |(rows, bytes), s| (rows + load(&s.rows), bytes + load(&s.bytes)))
    }

    /// Whether less is held than may be.
    fn has_room(&self) -> bool {
        let ((rows, bytes), options) = (self.held(), &self.options);
        rows <= options.max_outstanding_messages.unsigned_abs() && bytes <= options.max_outstanding_bytes.unsigned_abs()
    }

    /// Messages held, and their bytes.
    fn held(&self) -> (u64, u64) {
        let (open_rows, open_bytes) = self.open();
        let mut book = lock(&self.book);
        let ledger = book.as_mut();
        ((ledger.held_rows() + open_rows) as u64, (ledger.held_bytes() + open_bytes) as u64)
    }

    /// Notice leases that ended.
    fn expire(&self) {
        let expired = lock(&self.book).as_mut().expire(Instant::now());
        if expired > 0 {
            let name = &self.options.subscription;
            log::warn!("the leases of {expired} messages of {name} ended; Pub/Sub delivers them again");
        }
    }

    fn fail(&self, error: Error) {
        log::error!("{error}");
        lock(&self.fatal).get_or_insert(error);
        self.arrived.notify_waiters();
    }
}

/// One stream's way into the ledger.
struct StreamInbox<B> {
    shared: Arc<Shared<B>>,
    stream: usize,
}

impl<B: AsMut<Ledger> + Send + 'static> Inbox for StreamInbox<B> {
    fn first_request(&self) -> StreamingPullRequest {
        let options = &self.shared.options;
        let streams = self.shared.streams.len() as i64;
        let lease = lock(&self.shared.book).as_mut().first_lease();
        *lock(&self.shared.streams[self.stream].link) = Link::Opening(Instant::now());
        StreamingPullRequest {
            subscription: options.subscription.clone(),
            stream_ack_deadline_seconds: lease.as_secs() as i32,
            client_id: format!("{}-{}", options.client_id, self.stream),
            max_outstanding_messages: (options.max_outstanding_messages / streams).max(1),
            max_outstanding_bytes: (options.max_outstanding_bytes / streams).max(1),
            ..StreamingPullRequest::default()
        }
    }

    async fn room(&self) {
        while !self.shared.has_room() {
            // The tick covers a wake-up that came between the look and the wait.
            let _ = tokio::time::timeout(LEASE_TICK, self.shared.room.notified()).await;
        }
    }

    fn receive(&self, response: &[u8]) -> Result<()> {
        let (shared, stream) = (&self.shared, &self.shared.streams[self.stream]);
        let now = Instant::now();
        let mut open = lock(&stream.open);
        let open = &mut *open;
        let mut since = open.since.unwrap_or(now);
        let told = decode_response(response, &mut open.builder, |chunk| {
            lock(&shared.book).as_mut().add(chunk, since);
            since = now;
        });
        open.since = (open.builder.rows() > 0).then_some(since);
        stream.weigh(open);
        let told = told?;
        if told.redelivered > 0 || told.exactly_once.is_some() {
            let mut book = lock(&shared.book);
            book.as_mut().add_redelivered(told.redelivered);
            told.exactly_once.into_iter().for_each(|exactly_once| book.as_mut().set_exactly_once(exactly_once));
        }
        if told.rows > 0 {
            shared.arrived.notify_waiters();
        }
        Ok(())
    }

    fn opened(&self) {
        *lock(&self.shared.streams[self.stream].link) = Link::Open;
    }

    fn reconnecting(&self) {
        *lock(&self.shared.streams[self.stream].link) = Link::Broken;
        self.shared.reconnects.fetch_add(1, Ordering::Relaxed);
    }
}

/// Run one stream; its end, by an error or a panic, is the puller's error.
async fn supervise<B: AsMut<Ledger> + Send + 'static>(client: Client, shared: Arc<Shared<B>>, stream: usize) {
    let inbox = StreamInbox { shared: shared.clone(), stream };
    let mut pulling = AbortOnDrop(tokio::spawn(pull(client, inbox, shared.closing.subscribe())));
    match (&mut pulling.0).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => shared.fail(error),
        Err(died) => shared.fail(Error::new(ErrorKind::Native, format!("stream {stream} of the puller died: {died}."))),
    }
}

/// Extend leases in time, and notice those that ended all the same. No call is waited for: one that hangs must not keep
/// the others from being made.
async fn keep_leases<B: AsMut<Ledger> + Send + 'static>(shared: Arc<Shared<B>>) {
    let mut tick = tokio::time::interval(LEASE_TICK);
    let mut calls = JoinSet::new();
    loop {
        tick.tick().await;
        while calls.try_join_next().is_some() {}
        shared.close_open(shared.options.linger);
        let now = Instant::now();
        for extension in lock(&shared.book).as_mut().due(now, MAX_REQUEST_IDS) {
            calls.spawn(extend(shared.clone(), extension, now));
        }
        shared.expire();
        shared.room.notify_waiters();
    }
}

async fn extend<B: AsMut<Ledger>>(shared: Arc<Shared<B>>, extension: Extension, now: Instant) {
    // A third of it, so that two more tries fit in.
    let patience = extension.length / 3;
    let call = shared.settler.extend(&extension.ack_ids, extension.length.as_secs() as i32);
    let (mut granted, name) = (false, &shared.options.subscription);
    match tokio::time::timeout(patience, call).await {
        Err(_) => log::warn!("extending leases of {name}: no answer within {} s; trying again", patience.as_secs()),
        Ok(Outcome { refused, error, .. }) => {
            granted = error.is_none();
            if !refused.is_empty() {
                let gone = refused.into_iter().map(|refusal| refusal.ack_id).collect();
                let lost = lock(&shared.book).as_mut().lost(&gone);
                log::warn!("Pub/Sub has taken back {lost} messages of {name}; it delivers them again");
            }
            error.into_iter().for_each(|error| log::warn!("{error} Trying again."));
        }
    }
    lock(&shared.book).as_mut().extended(extension.ticket, now, granted);
}

#[cfg(test)]
#[path = "puller_tests.rs"]
mod tests;
