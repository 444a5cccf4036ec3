//! Requests on their way: which may be sent now, and what became of them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tonic::Code;

use super::request::{Key, Request};
use super::rows::{Failure, Failures, Rows};
use super::send::{Failed, Sender};
use crate::error::Error;
use crate::pubsub::client::Client;

/// Requests on the wire. Small ones (one row per ordering key) need many to hide a round trip.
const MAX_FLYING: usize = 32;
/// What finished requests may take, waiting and flying; whoever gives more waits.
const MAX_OUTSTANDING_BYTES: usize = 64 << 20;
/// The grain in which that is counted.
const PERMIT_BYTES: usize = 1_024;
/// Failures beyond this end the publishing: somebody should look at them first.
const MAX_FAILURES: usize = 10_000;

/// How far the publishing may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Everything is sent.
    Running,
    /// Nothing new is sent or tried again; answers are still waited for.
    Stopped,
    /// Nothing is waited for either.
    Cancelled,
}

/// Shared by the one who gives rows and the requests on the wire.
pub struct Outbox {
    runtime: Handle,
    sender: Sender,
    room: Arc<Semaphore>,
    phase: watch::Sender<Phase>,
    state: Mutex<State>,
    landed: Notify,
}

#[derive(Default)]
struct State {
    /// May be sent as soon as fewer are flying.
    ready: VecDeque<Outgoing>,
    /// Keys with a request in `ready` or flying, and what waits behind it.
    busy_keys: HashMap<Key, VecDeque<Outgoing>>,
    /// Keys of which a request failed: sending what follows would tear a hole into their order.
    paused_keys: HashMap<Key, Arc<str>>,
    flying: usize,
    published: u64,
    failures: Failures,
    /// The answers, if the ids are wanted.
    answers: Option<Vec<(Rows, Bytes)>>,
    /// Why nothing more is sent.
    stopped: Option<Stop>,
    /// Buffers of requests that have landed: fresh ones would cost a page fault for every 4 KB.
    spare: Vec<Vec<u8>>,
}

#[derive(Clone)]
struct Stop {
    reason: Arc<str>,
    error: Option<Error>,
}

struct Outgoing {
    request: Request,
    _room: Option<OwnedSemaphorePermit>,
}

/// What became of the rows so far.
pub struct Account {
    /// Rows with a server id.
    pub published: u64,
    /// The other rows that were given, by row.
    pub failures: Vec<Failure>,
    /// What ended the publishing, if it concerns the topic as a whole.
    pub fatal: Option<Error>,
    /// The rows and answers of each request since the last account, if ids are wanted.
    pub answers: Vec<(Rows, Bytes)>,
}

impl Outbox {
    /// Nothing on its way yet.
    pub fn new(runtime: Handle, sender: Sender, keep_ids: bool) -> Arc<Self> {
        let state = State { answers: keep_ids.then(Vec::new), ..State::default() };
        Arc::new(Self {
            runtime,
            sender,
            room: Arc::new(Semaphore::new(MAX_OUTSTANDING_BYTES / PERMIT_BYTES)),
            phase: watch::Sender::new(Phase::Running),
            state: Mutex::new(state),
            landed: Notify::new(),
        })
    }

    /// What the requests go over.
    pub fn client(&self) -> &Client {
        &self.sender.client
    }

    /// Wait for room for a request of `bytes`; None when nothing more is sent.
    pub async fn room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        self.room.clone().acquire_many_owned(permits).await.ok()
    }

    /// Send a request when its turn comes; without room it is not sent. Those of one key go in the order they come here.
    pub fn submit(self: &Arc<Self>, request: Request, room: Option<OwnedSemaphorePermit>) {
        let mut state = self.state();
        let outgoing = Outgoing { request, _room: room };
        if let Some(stop) = &state.stopped {
            let reason = stop.reason.clone();
            state.fail(&outgoing.request.rows, &reason, None);
            return;
        }
        let Some(key) = outgoing.request.key.clone() else {
            state.ready.push_back(outgoing);
            self.pump(&mut state);
            return;
        };
        if let Some(reason) = state.paused_keys.get(&key).cloned() {
            state.fail(&outgoing.request.rows, &reason, None);
        } else if let Some(waiting) = state.busy_keys.get_mut(&key) {
            waiting.push_back(outgoing);
        } else {
            state.busy_keys.insert(key, VecDeque::new());
            state.ready.push_back(outgoing);
            self.pump(&mut state);
        }
    }

    fn pump(self: &Arc<Self>, state: &mut State) {
        while state.flying < MAX_FLYING
            && let Some(outgoing) = state.ready.pop_front()
        {
            state.flying += 1;
            let (outbox, phase) = (self.clone(), self.phase.subscribe());
            self.runtime.spawn(async move {
                let landing = Landing { outbox: &outbox, outgoing: Some(outgoing) };
                let outcome = match &landing.outgoing {
                    Some(outgoing) => outbox.sender.send(&outgoing.request, phase).await,
                    None => return,
                };
                landing.done(outcome);
            });
        }
    }

    fn settle(self: &Arc<Self>, outgoing: Outgoing, outcome: Result<Bytes, Failed>) {
        let mut state = self.state();
        state.flying -= 1;
        let Request { body, messages, rows, key } = outgoing.request;
        if key.is_none() && body.is_unique() && state.spare.len() < MAX_FLYING {
            state.spare.push(Vec::from(body));
        }
        match outcome {
            Ok(answer) => {
                state.published += messages as u64;
                if let Some(answers) = &mut state.answers {
                    answers.push((rows, answer));
                }
                if let Some(key) = key {
                    match state.busy_keys.get_mut(&key).and_then(VecDeque::pop_front) {
                        Some(next) => state.ready.push_back(next),
                        None => drop(state.busy_keys.remove(&key)),
                    }
                }
            }
            Err(failed) => {
                state.fail(&rows, &failed.reason, failed.error.code);
                if let Some(key) = key {
                    let shown = String::from_utf8_lossy(&key).into_owned();
                    let reason: Arc<str> = format!("not sent, because ordering key '{shown}' failed before").into();
                    for waiting in state.busy_keys.remove(&key).unwrap_or_default() {
                        state.fail(&waiting.request.rows, &reason, None);
                    }
                    state.paused_keys.insert(key, reason);
                }
                if failed.fatal {
                    let reason = format!("not sent, because publishing had failed: {}", failed.reason).into();
                    self.stop(&mut state, Phase::Stopped, Stop { reason, error: Some(failed.error) });
                } else if state.failures.len() > MAX_FAILURES {
                    let reason = format!("not sent, because there were more than {MAX_FAILURES} failures").into();
                    self.stop(&mut state, Phase::Stopped, Stop { reason, error: None });
                }
            }
        }
        self.pump(&mut state);
        drop(state);
        self.landed.notify_waiters();
    }

    /// A buffer that was used before.
    pub fn spare(&self) -> Option<Vec<u8>> {
        self.state().spare.pop()
    }

    /// Record rows that were never made into requests.
    pub fn refuse(&self, failures: impl IntoIterator<Item = Failure>) {
        let mut state = self.state();
        for failure in failures {
            state.failures.add(failure);
        }
    }

    /// Record rows that are not sent because the publishing has ended.
    pub fn leave_out(&self, rows: std::ops::Range<u64>) {
        let mut state = self.state();
        let reason = state.stopped.as_ref().map_or_else(|| "not sent".into(), |stop| stop.reason.clone());
        state.failures.add(Failure { rows, column: None, reason, code: None });
    }

    /// Stop at once: nothing is sent any more, and no answer is waited for.
    pub fn cancel(&self) {
        let mut state = self.state();
        let stop = Stop { reason: "not sent, because publishing was interrupted".into(), error: None };
        self.stop(&mut state, Phase::Cancelled, stop);
    }

    fn stop(&self, state: &mut State, phase: Phase, stop: Stop) {
        self.phase.send_modify(|now| *now = if *now == Phase::Cancelled { *now } else { phase });
        self.room.close();
        let reason = state.stopped.get_or_insert(stop).reason.clone();
        let waiting = std::mem::take(&mut state.busy_keys).into_values().flatten();
        for outgoing in std::mem::take(&mut state.ready).into_iter().chain(waiting) {
            state.fail(&outgoing.request.rows, &reason, None);
        }
    }

    /// Whether anything more is sent.
    pub fn is_stopped(&self) -> bool {
        self.state().stopped.is_some()
    }

    /// Rows with a server id so far.
    pub fn published(&self) -> u64 {
        self.state().published
    }

    /// Wait until every request that was submitted has its outcome.
    pub async fn settled(&self) {
        loop {
            let landed = self.landed.notified();
            let mut landed = std::pin::pin!(landed);
            landed.as_mut().enable();
            if self.state().is_settled() {
                return;
            }
            landed.await;
        }
    }

    /// What became of the rows so far.
    pub fn account(&self) -> Account {
        let mut state = self.state();
        Account {
            published: state.published,
            failures: state.failures.sorted(),
            fatal: state.stopped.as_ref().and_then(|stop| stop.error.clone()),
            answers: state.answers.as_mut().map(std::mem::take).unwrap_or_default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_settled(&self) -> bool {
        self.flying == 0 && self.ready.is_empty() && self.busy_keys.is_empty()
    }

    fn fail(&mut self, rows: &Rows, reason: &Arc<str>, code: Option<Code>) {
        for run in rows.runs() {
            self.failures.add(Failure { rows: run.clone(), column: None, reason: reason.clone(), code });
        }
    }
}

/// Sees to it that a request has an outcome, also when its task is dropped or panics.
struct Landing<'a> {
    outbox: &'a Arc<Outbox>,
    outgoing: Option<Outgoing>,
}

impl Landing<'_> {
    fn done(mut self, outcome: Result<Bytes, Failed>) {
        if let Some(outgoing) = self.outgoing.take() {
            self.outbox.settle(outgoing, outcome);
        }
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        if let Some(outgoing) = self.outgoing.take() {
            self.outbox.settle(outgoing, Err(Failed::died()));
        }
    }
}
