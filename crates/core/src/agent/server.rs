//! The agent's life: from its planner's first word to the end of the control socket, and not a second longer.

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream as BlockingUnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::agent::book::{Book, Cut, CutLimits, Offset};
use crate::agent::control::{Batch, Config, Next, Reply, Request};
use crate::agent::frame;
use crate::agent::part::{self, Executor, Status};
use crate::agent::timing::{Drain, Linger};
use crate::agent::workers;
use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::client::Client;
use crate::pubsub::columns::Selection;
use crate::pubsub::decode::CHUNK_ROWS;
use crate::pubsub::lease::LeaseTerms;
use crate::pubsub::pull::AbortOnDrop;
use crate::pubsub::puller::{Look, Puller, PullerOptions, lock};
use crate::runtime;

/// What giving back may take at the end; then the leases simply run out.
const FAREWELL: Duration = Duration::from_millis(800);
/// Executors that have not read for so long may be gone.
const EXECUTOR_MEMORY: Duration = Duration::from_secs(600);

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
    let config: Config = match frame::read_async(&mut control, frame::MAX_BYTES).await {
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
    if answer(&mut control, &Reply::Ready(agent.port)).await.is_ok() {
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

struct Agent {
    shared: Arc<Shared>,
    port: Option<u16>,
    _servants: Vec<AbortOnDrop<()>>,
}

/// What the agent's tasks share.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) puller: Puller<Book>,
    born: Instant,
    drain: Option<Mutex<Drain>>,
    /// Batches whose acknowledgements are under way (true), or did not all arrive in time.
    unconfirmed: Mutex<HashMap<Offset, bool>>,
    /// The cores of the executors, and when they last read.
    executors: Mutex<HashMap<String, (usize, Instant)>>,
}

impl Agent {
    async fn start(config: Config) -> Result<Self> {
        let client = Client::connect(&config.connection).await?;
        let listener = UnixListener::bind(&config.socket).map_err(|e| {
            Error::new(ErrorKind::Config, format!("the agent cannot listen at {}: {e}.", config.socket.display()))
                .with_remedy("Point TMPDIR to a folder with a short path that can be written.")
        })?;
        let tcp = match &config.tcp {
            None => None,
            Some((host, port)) => Some(TcpListener::bind((host.as_str(), *port)).await.map_err(|e| {
                Error::new(ErrorKind::Config, format!("the agent cannot listen at {host}:{port} for executors: {e}."))
                    .with_remedy(
                        "Set agentHost to an address of the driver's host and agentPort to a free port (0 takes any).",
                    )
            })?),
        };
        let port = tcp.as_ref().and_then(|tcp| tcp.local_addr().ok()).map(|address| address.port());
        let terms = LeaseTerms {
            ack_deadline: Duration::from_secs(config.ack_deadline_s.unsigned_abs().into()),
            max_lease: Duration::from_secs(config.max_lease_s),
        };
        let options = PullerOptions {
            subscription: config.subscription.clone(),
            client_id: config.epoch.clone(),
            streams: config.streams,
            max_outstanding_messages: config.max_outstanding_messages,
            max_outstanding_bytes: config.max_outstanding_bytes,
            selection: Selection::new(config.columns.as_deref(), &config.attribute_columns)?,
            batch_rows: CHUNK_ROWS,
            linger: Duration::ZERO,
            tell_early: config.available_now_idle_ms.is_some(),
        };
        let puller = Puller::start(client, options, Book::new(config.epoch.clone(), terms)).await?;
        log::info!("agent {} pulls from {}", config.epoch, config.subscription);
        let born = Instant::now();
        let drain = config.available_now_idle_ms.map(|idle| Mutex::new(Drain::new(Duration::from_millis(idle), born)));
        let shared = Arc::new(Shared {
            config,
            puller,
            born,
            drain,
            unconfirmed: Mutex::default(),
            executors: Mutex::default(),
        });
        let mut servants = vec![AbortOnDrop(tokio::spawn(workers::serve(listener, shared.clone())))];
        servants.extend(tcp.map(|tcp| AbortOnDrop(tokio::spawn(workers::serve(tcp, shared.clone())))));
        Ok(Self { shared, port, _servants: servants })
    }

    /// Answer the planner until it is gone. Its end is noticed also while an answer is being waited for.
    async fn serve(&self, control: UnixStream) {
        let (mut reader, mut writer) = control.into_split();
        let (requests, mut waiting) = mpsc::channel::<Request>(1);
        let mut ended = AbortOnDrop(tokio::spawn(async move {
            while let Ok(request) = frame::read_async(&mut reader, frame::MAX_BYTES).await {
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

    /// Give back what is held, within a bounded time.
    async fn stop(self) {
        let count = self.shared.puller.close(FAREWELL).await;
        log::info!("agent {} gave back {count} messages and ends with its planner", self.shared.config.epoch);
    }
}

impl Shared {
    async fn handle(self: &Arc<Self>, request: Request) -> Reply {
        match request {
            Request::Status => Reply::Status(self.status()),
            Request::Write { end, files } => match self.write(&end, files).await {
                Ok(outcome) => Reply::Written(outcome.map_err(|e| (e.raw_os_error().unwrap_or(0), e.to_string()))),
                Err(error) => Reply::Failed(error),
            },
            Request::Acknowledge { end } if self.settle(&end) => Reply::Acknowledging,
            Request::Acknowledge { end } => Reply::Failed(Error::new(
                ErrorKind::Native,
                format!("batch {} is to be acknowledged, but the Pub/Sub agent does not hold it.", end.seq),
            )),
            Request::Confirmed { end } => Reply::Confirmed(match lock(&self.unconfirmed).get(&end) {
                Some(true) => None,
                Some(false) => Some(false),
                None => Some(end.epoch == self.config.epoch),
            }),
            Request::Cut { start, max_rows, max_bytes, max_parts, wait_ms } => {
                let learned = if self.config.grow_parts { self.executor_cores() } else { 0 };
                let max_parts = max_parts.max(learned);
                let limits = CutLimits { max_rows, max_bytes, max_parts };
                match self.cut(&start, limits, Duration::from_millis(wait_ms)).await {
                    Ok(next) => Reply::Cut(next),
                    Err(error) => Reply::Failed(error),
                }
            }
        }
    }

    pub(super) fn status(&self) -> Status {
        Status {
            stats: self.puller.stats(),
            uptime_s: self.born.elapsed().as_secs_f64(),
            memory_bytes: memory_bytes(),
            executor_cores: self.executor_cores(),
        }
    }

    /// An executor reads.
    pub(super) fn saw(&self, executor: Executor) {
        lock(&self.executors).insert(executor.id, (executor.cores, Instant::now()));
    }

    fn executor_cores(&self) -> usize {
        let mut executors = lock(&self.executors);
        executors.retain(|_, (_, seen)| seen.elapsed() < EXECUTOR_MEMORY);
        executors.values().map(|(cores, _)| cores).sum()
    }

    async fn cut(self: &Arc<Self>, start: &Offset, limits: CutLimits, wait: Duration) -> Result<Next> {
        self.settle(start);
        if let Some(drain) = &self.drain {
            lock(drain).ask(start, Instant::now());
        }
        let deadline = Instant::now() + wait;
        let mut linger = Linger::default();
        let look = || {
            // Before the rows: other streams may go on for ever after one has failed.
            if let Some(error) = self.puller.failed() {
                return Look::Found(Err(error));
            }
            if let Some(known) = self.puller.book().known(start) {
                return Look::Found(Ok(batch(known)));
            }
            let (rows, bytes) = self.puller.waiting();
            let now = Instant::now();
            if rows == 0 || !self.may_cut(now) {
                return Look::Nothing;
            }
            if rows < limits.max_rows
                && bytes < limits.max_bytes
                && now < deadline
                && let Some(then) = linger.until(rows, now)
            {
                return Look::At(then);
            }
            self.puller.collect();
            self.puller.book().cut(start, limits, now).map_or(Look::Nothing, |cut| Look::Found(Ok(batch(cut))))
        };
        match self.puller.wait_for(Some(deadline), look).await {
            Some(batch) => batch.map(Next::Batch),
            None if self.is_drained() => Ok(Next::Drained),
            None => Ok(Next::Nothing),
        }
    }

    /// Whether what is in the buffer may become a batch: always, unless this run ends with what was there at its start.
    fn may_cut(&self, now: Instant) -> bool {
        let Some(drain) = &self.drain else { return true };
        self.puller.collect();
        let has_early = self.puller.book().ledger.has_early_rows();
        lock(drain).may_cut(has_early, self.puller.is_full(), now)
    }

    fn is_drained(&self) -> bool {
        let Some(drain) = &self.drain else { return false };
        let acking = self.puller.stats().counters.acking;
        let over = lock(drain).is_over(self.puller.breaks(), acking, self.puller.is_full(), Instant::now());
        if over && acking > 0 {
            log::warn!("the run ends before Pub/Sub answered {acking} acknowledgements; these messages may come again");
        }
        over
    }

    /// Write the parts of a batch to files, side by side. The inner error is the machine's.
    async fn write(&self, end: &Offset, files: Vec<PathBuf>) -> Result<io::Result<()>> {
        let mut writing = JoinSet::new();
        for (index, file) in files.into_iter().enumerate() {
            let part = self.puller.book().part(end, index)?;
            writing.spawn_blocking(move || part::write(&part, &file));
        }
        let mut outcome = Ok(());
        while let Some(written) = writing.join_next().await {
            outcome = outcome.and(written.map_err(io::Error::other).flatten());
        }
        Ok(outcome)
    }

    /// `start` is durable: acknowledge its batch, give back what was cut for another start. Tells whether there was such
    /// a batch.
    fn settle(self: &Arc<Self>, start: &Offset) -> bool {
        let (ticket, settled) = self.puller.book().settle(start, Instant::now());
        if let Some(ticket) = ticket {
            let acknowledged = self.puller.acknowledge(ticket, settled.acks);
            lock(&self.unconfirmed).insert(start.clone(), true);
            let (shared, end) = (self.clone(), start.clone());
            tokio::spawn(async move {
                let Ok(outcome) = acknowledged.await else { return };
                if outcome.late == 0 && outcome.refused.is_empty() && outcome.error.is_none() {
                    lock(&shared.unconfirmed).remove(&end);
                } else {
                    lock(&shared.unconfirmed).insert(end, false);
                }
                if !outcome.refused.is_empty() {
                    let count = outcome.refused.len();
                    log::warn!("{count} acknowledgements came too late; Pub/Sub delivers these messages again");
                }
                if let Some(error) = outcome.error {
                    shared.puller.fail(error);
                }
            });
        }
        if !settled.nacks.is_empty() {
            drop(self.puller.give_back(settled.nacks));
        }
        ticket.is_some()
    }
}

fn batch(cut: &Cut) -> Batch {
    Batch { end: cut.end.clone(), parts: cut.parts.iter().map(|part| part.rows).collect() }
}

/// The memory that this process has, as Linux counts it.
fn memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = resident.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1_024
}
