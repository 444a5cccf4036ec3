//! The agent's life: from its planner's first word to the end of the control socket, and not a second longer.

use std::io;
use std::os::unix::net::UnixStream as BlockingUnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use crate::agent::book::{Book, CutLimits, LeaseTerms, Offset};
use crate::agent::control::{Batch, Config, Reply, Request, Status};
use crate::agent::{frame, part};
use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::client::Client;
use crate::pubsub::decode::{ChunkBuilder, decode_response};
use crate::pubsub::lease;
use crate::pubsub::pull::{AbortOnDrop, Inbox, PullOptions, pull};
use crate::runtime;

/// How often leases are looked at.
const LEASE_TICK: Duration = Duration::from_secs(1);
/// What giving back may take at the end; then the leases simply run out.
const FAREWELL: Duration = Duration::from_millis(800);

/// Be the agent at the other end of `control`; returns when the planner is gone.
pub fn run(control: BlockingUnixStream) -> Result<()> {
    let runtime = runtime::handle()?;
    let _entered = runtime.enter();
    let failed = |e: io::Error| Error::new(ErrorKind::Native, format!("the agent's control socket: {e}."));
    control.set_nonblocking(true).map_err(failed)?;
    let control = UnixStream::from_std(control).map_err(failed)?;
    runtime.block_on(live(control));
    Ok(())
}

async fn live(mut control: UnixStream) {
    let config: Config = match frame::read_async(&mut control).await {
        Ok(config) => config,
        Err(error) => return log::warn!("the planner went away before it said what to do: {error}"),
    };
    let started = tokio::select! {
        started = Agent::start(config) => started,
        () = ended(&control) => return log::info!("the planner went away while the agent started"),
    };
    let agent = match started {
        Ok(agent) => agent,
        Err(error) => {
            let _ = answer(&mut control, &Reply::Failed(error)).await;
            return;
        }
    };
    if answer(&mut control, &Reply::Ready).await.is_ok() {
        agent.serve(control).await;
    }
    agent.stop().await;
}

async fn answer(control: &mut (impl AsyncWriteExt + Unpin), reply: &Reply) -> io::Result<()> {
    control.write_all(&frame::encode(reply)?).await
}

/// Wait for the end of the control socket at a time when the planner has nothing to say.
async fn ended(control: &UnixStream) {
    while control.readable().await.is_ok() {
        match control.try_read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => return,
        }
    }
}

/// Rows that are still being collected into a chunk.
#[derive(Default)]
struct Open {
    builder: ChunkBuilder,
    since: Option<Instant>,
}

/// What the agent's tasks share.
struct Shared {
    config: Config,
    client: Client,
    book: Mutex<Book>,
    open: Vec<Mutex<Open>>,
    arrived: Notify,
    room: Notify,
    fatal: Mutex<Option<Error>>,
    reconnects: AtomicU64,
    settling: Mutex<JoinSet<()>>,
    closing: watch::Sender<bool>,
}

struct Agent {
    shared: Arc<Shared>,
    streams: Vec<AbortOnDrop<()>>,
    _servants: [AbortOnDrop<()>; 2],
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Agent {
    async fn start(config: Config) -> Result<Self> {
        let client = Client::connect(&config.connection).await?;
        client.check_subscription(&config.subscription).await?;
        let listener = UnixListener::bind(&config.socket).map_err(|e| {
            Error::new(ErrorKind::Config, format!("the agent cannot listen at {}: {e}.", config.socket.display()))
                .with_remedy("Point TMPDIR to a folder with a short path that can be written.")
        })?;
        let terms = LeaseTerms {
            ack_deadline: Duration::from_secs(config.ack_deadline_s.unsigned_abs().into()),
            max_lease: Duration::from_secs(config.max_lease_s),
        };
        let shared = Arc::new(Shared {
            book: Mutex::new(Book::new(config.epoch.clone(), terms)),
            open: (0..config.streams).map(|_| Mutex::new(Open::default())).collect(),
            arrived: Notify::new(),
            room: Notify::new(),
            fatal: Mutex::new(None),
            reconnects: AtomicU64::new(0),
            settling: Mutex::new(JoinSet::new()),
            closing: watch::Sender::new(false),
            client,
            config,
        });
        let servants = [
            AbortOnDrop(tokio::spawn(serve_parts(listener, shared.clone()))),
            AbortOnDrop(tokio::spawn(keep_leases(shared.clone()))),
        ];
        let streams = (0..shared.config.streams)
            .map(|stream| AbortOnDrop(tokio::spawn(supervise(stream, shared.clone()))))
            .collect();
        log::info!("agent {} pulls from {}", shared.config.epoch, shared.config.subscription);
        Ok(Self { shared, streams, _servants: servants })
    }

    /// Answer the planner until it is gone. Its end is noticed also while an answer is being waited for.
    async fn serve(&self, control: UnixStream) {
        let (mut reader, mut writer) = control.into_split();
        let (requests, mut waiting) = mpsc::channel::<Request>(1);
        let mut ended = AbortOnDrop(tokio::spawn(async move {
            while let Ok(request) = frame::read_async(&mut reader).await {
                if requests.send(request).await.is_err() {
                    return;
                }
            }
        }));
        while let Some(request) = waiting.recv().await {
            let reply = tokio::select! {
                reply = self.shared.handle(request) => reply,
                _ = &mut ended.0 => return,
            };
            if answer(&mut writer, &reply).await.is_err() {
                return;
            }
        }
    }

    /// Give back what is held, within a bounded time. Acknowledgements under way get the same time, side by side.
    async fn stop(self) {
        let shared = self.shared;
        shared.closing.send_replace(true);
        let streams = async {
            for mut stream in self.streams {
                let _ = (&mut stream.0).await;
            }
        };
        // The streams end first, so that no row arrives after the last look at what is held.
        let _ = tokio::time::timeout(FAREWELL / 4, streams).await;
        shared.close_open();
        let held = lock(&shared.book).close();
        let count: usize = held.iter().map(arrow_array::Array::len).sum();
        let mut settling = std::mem::take(&mut *lock(&shared.settling));
        let settled = async { while settling.join_next().await.is_some() {} };
        let given_back = lease::modify(&shared.client, &shared.config.subscription, &held, 0);
        if tokio::time::timeout(FAREWELL, async { tokio::join!(settled, given_back) }).await.is_err() {
            log::warn!("{count} messages could not be given back in time; they come again when their leases end");
        }
        log::info!("agent {} gave back {count} messages and ends with its planner", shared.config.epoch);
    }
}

impl Shared {
    async fn handle(self: &Arc<Self>, request: Request) -> Reply {
        match request {
            Request::Status => Reply::Status(self.status()),
            Request::Cut { start, max_rows, max_bytes, max_parts, wait_ms } => {
                let limits = CutLimits { max_rows, max_bytes, max_parts };
                match self.cut(&start, limits, Duration::from_millis(wait_ms)).await {
                    Ok(batch) => Reply::Cut(batch),
                    Err(error) => Reply::Failed(error),
                }
            }
        }
    }

    fn status(&self) -> Status {
        self.close_open();
        Status { counters: lock(&self.book).counters(), reconnects: self.reconnects.load(Ordering::Relaxed) }
    }

    async fn cut(self: &Arc<Self>, start: &Offset, limits: CutLimits, wait: Duration) -> Result<Option<Batch>> {
        self.settle(start);
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            // Before the rows: other streams may go on for ever after one has failed.
            if let Some(error) = lock(&self.fatal).clone() {
                return Err(error);
            }
            self.close_open();
            if let Some(cut) = lock(&self.book).cut(start, limits, Instant::now()) {
                let parts = cut.parts.iter().map(|part| part.rows).collect();
                return Ok(Some(Batch { end: cut.end.clone(), parts }));
            }
            if tokio::time::timeout_at(deadline, self.arrived.notified()).await.is_err() {
                return Ok(None);
            }
        }
    }

    /// `start` is durable: acknowledge its batch, give back what was cut for another start.
    fn settle(self: &Arc<Self>, start: &Offset) {
        let (ticket, settled) = lock(&self.book).settle(start);
        let mut settling = lock(&self.settling);
        while settling.try_join_next().is_some() {}
        if let Some(ticket) = ticket {
            let shared = self.clone();
            settling.spawn(async move {
                let done = lease::acknowledge(&shared.client, &shared.config.subscription, &settled.acks).await;
                lock(&shared.book).acked(ticket, done.is_ok());
                if let Err(error) = done {
                    shared.fail(error);
                }
            });
        }
        if !settled.nacks.is_empty() {
            let shared = self.clone();
            settling.spawn(async move {
                lease::modify(&shared.client, &shared.config.subscription, &settled.nacks, 0).await;
            });
        }
        self.room.notify_waiters();
    }

    /// Close the chunks that are being collected, so that a cut sees all that has come.
    fn close_open(&self) {
        for open in &self.open {
            let mut open = lock(open);
            let since = open.since.take().unwrap_or_else(Instant::now);
            match open.builder.finish() {
                Ok(Some(chunk)) => lock(&self.book).add(chunk, since),
                Ok(None) => {}
                Err(error) => self.fail(error),
            }
        }
    }

    fn fail(&self, error: Error) {
        log::error!("{error}");
        lock(&self.fatal).get_or_insert(error);
        self.arrived.notify_one();
    }
}

/// One stream's way into the book.
struct StreamInbox(Arc<Shared>);

impl Inbox for StreamInbox {
    async fn room(&self) {
        let limit = usize::try_from(self.0.config.max_outstanding_bytes).unwrap_or(usize::MAX);
        while lock(&self.0.book).held_bytes() > limit {
            // The tick covers a wake-up that came between the look and the wait.
            let _ = tokio::time::timeout(LEASE_TICK, self.0.room.notified()).await;
        }
    }

    fn receive(&self, stream: usize, response: &[u8]) -> Result<()> {
        let mut open = lock(&self.0.open[stream]);
        let open = &mut *open;
        let since = *open.since.get_or_insert_with(Instant::now);
        decode_response(response, &mut open.builder, |chunk| lock(&self.0.book).add(chunk, since))?;
        self.0.arrived.notify_one();
        Ok(())
    }

    fn reconnecting(&self) {
        self.0.reconnects.fetch_add(1, Ordering::Relaxed);
    }
}

/// Run one stream; its end, by an error or a panic, is the query's error.
async fn supervise(stream: usize, shared: Arc<Shared>) {
    let streams = shared.config.streams.max(1) as i64;
    let options = PullOptions {
        subscription: shared.config.subscription.clone(),
        ack_deadline_s: shared.config.ack_deadline_s,
        max_outstanding_messages: (shared.config.max_outstanding_messages / streams).max(1),
        max_outstanding_bytes: (shared.config.max_outstanding_bytes / streams).max(1),
        client_id: shared.config.epoch.clone(),
    };
    let mut pulling =
        AbortOnDrop(tokio::spawn(pull(shared.client.clone(), options, stream, StreamInbox(shared.clone()))));
    let mut closing = shared.closing.subscribe();
    let closed = async move { closing.wait_for(|closing| *closing).await.is_ok() };
    tokio::select! {
        ended = &mut pulling.0 => shared.fail(match ended {
            Ok(error) => error,
            Err(died) => Error::new(ErrorKind::Native, format!("the agent's stream {stream} died: {died}.")),
        }),
        _ = closed => {
            pulling.0.abort();
            let _ = (&mut pulling.0).await;
        }
    }
}

/// Extend leases in time, and notice those that ended all the same. No call is waited for: one that hangs must not keep
/// the others from being made.
async fn keep_leases(shared: Arc<Shared>) {
    let mut tick = tokio::time::interval(LEASE_TICK);
    let mut calls = JoinSet::new();
    loop {
        tick.tick().await;
        while calls.try_join_next().is_some() {}
        shared.close_open();
        let now = Instant::now();
        for extension in lock(&shared.book).due(now, lease::MAX_REQUEST_IDS) {
            let shared = shared.clone();
            calls.spawn(async move {
                let seconds = shared.config.ack_deadline_s;
                let patience = Duration::from_secs(seconds.unsigned_abs().into()) / 3;
                let call = lease::modify(&shared.client, &shared.config.subscription, &extension.ack_ids, seconds);
                let granted = tokio::time::timeout(patience, call).await.unwrap_or(false);
                lock(&shared.book).extended(extension.ticket, now, granted);
            });
        }
        lock(&shared.book).expire(Instant::now());
        shared.room.notify_waiters();
    }
}

/// Serve parts to workers, each connection on a thread of its own: they send as fast as the worker reads.
async fn serve_parts(listener: UnixListener, shared: Arc<Shared>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::warn!("accepting a worker: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let shared = shared.clone();
        tokio::task::spawn_blocking(move || {
            let served = stream.into_std().and_then(|stream| {
                stream.set_nonblocking(false)?;
                part::serve(stream, &shared.config.token, |request| {
                    lock(&shared.book).part(&request.end, request.index)
                })
            });
            if let Err(error) = served {
                log::warn!("serving a part: {error}");
            }
        });
    }
}
