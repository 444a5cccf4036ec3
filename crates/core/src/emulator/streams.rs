//! The streams of one subscription: what each may still take, which of them wait, and whom to wake.

use std::collections::{HashMap, VecDeque};
use std::task::Waker;
use std::time::Duration;

use tonic::Code;

use super::backlog::Backlog;
use super::delivery::Confirmations;
use super::state::StreamId;

/// How much may be outstanding on a stream; nothing means no limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowControl {
    /// Messages delivered and not yet acknowledged, given back or expired.
    pub max_messages: Option<usize>,
    /// Their bytes. A message that is larger goes out alone.
    pub max_bytes: Option<usize>,
}

/// Why a stream ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The client has sent its last request.
    ClientDone,
    /// A request of the client failed.
    Failed(Code, String),
    /// The subscription is gone.
    Deleted,
    /// The subscription was cut off its topic.
    Detached,
    /// The emulator stops.
    Stopped,
}

/// What a stream is doing, as far as waking it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Sending; it will ask again by itself.
    Busy,
    /// Found nothing; stands in the queue of the hungry.
    Hungry,
    /// At its flow-control limit.
    Full,
    /// Woken, and has not asked yet.
    Awake,
}

/// A stream.
#[derive(Debug)]
pub struct Stream {
    flow: FlowControl,
    /// The lease of its deliveries.
    pub ack_deadline: Duration,
    outstanding: usize,
    outstanding_bytes: usize,
    mode: Mode,
    waker: Waker,
    /// Why it ends, when it does.
    pub end: Option<End>,
    /// What became of its acknowledgements, for the next response.
    pub confirmations: Option<Box<Confirmations>>,
    /// It is to look again, whatever there is.
    poked: bool,
}

impl Stream {
    /// Whether flow control lets a message of this size out.
    pub fn has_room_for(&self, size_bytes: usize) -> bool {
        self.flow.max_messages.is_none_or(|limit| self.outstanding < limit)
            && (self.outstanding == 0
                || self.flow.max_bytes.is_none_or(|limit| self.outstanding_bytes + size_bytes <= limit))
    }

    /// A message of this size goes out.
    pub fn add(&mut self, size_bytes: usize) {
        self.outstanding += 1;
        self.outstanding_bytes += size_bytes;
    }

    /// It found nothing: it waits, in this mode.
    pub fn wait(&mut self, mode: Mode, waker: &Waker) {
        self.waker.clone_from(waker);
        self.mode = mode;
    }

    fn must_wake(&self) -> bool {
        self.end.is_some() || self.confirmations.is_some() || self.poked
    }
}

/// The open streams.
#[derive(Debug, Default)]
pub struct Streams {
    open: HashMap<StreamId, Stream>,
    serial: u64,
    hungry: VecDeque<StreamId>,
    awake: usize,
    /// Why every stream ends, those that open later included.
    end: Option<End>,
}

impl Streams {
    /// Open one.
    pub fn open(&mut self, flow: FlowControl, ack_deadline: Duration) -> StreamId {
        self.serial += 1;
        let id = StreamId(self.serial);
        let stream = Stream {
            flow,
            ack_deadline,
            outstanding: 0,
            outstanding_bytes: 0,
            mode: Mode::Busy,
            waker: Waker::noop().clone(),
            end: self.end.clone(),
            confirmations: None,
            poked: false,
        };
        self.open.insert(id, stream);
        id
    }

    /// Forget one.
    pub fn close(&mut self, id: StreamId) {
        if self.open.remove(&id).is_some_and(|stream| stream.mode == Mode::Awake) {
            self.awake -= 1;
        }
        self.hungry.retain(|hungry| *hungry != id);
    }

    /// Let one end; the first reason stands.
    pub fn end(&mut self, id: StreamId, end: End) {
        if let Some(stream) = self.open.get_mut(&id)
            && stream.end.is_none()
        {
            stream.end = Some(end);
            self.reconsider(id);
        }
    }

    /// Let every one end, also those that open from now on; the first reason stands.
    pub fn end_all(&mut self, end: &End) {
        self.end.get_or_insert_with(|| end.clone());
        let ids: Vec<StreamId> = self.open.keys().copied().collect();
        for id in ids {
            self.end(id, end.clone());
        }
    }

    /// Why all is over, when it is.
    pub fn ended(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// How many were woken and have not asked yet.
    pub fn awake(&self) -> usize {
        self.awake
    }

    /// Change the lease length of a stream's further deliveries.
    pub fn set_ack_deadline(&mut self, id: StreamId, ack_deadline: Duration) {
        if let Some(stream) = self.open.get_mut(&id) {
            stream.ack_deadline = ack_deadline;
        }
    }

    /// Tell a stream what became of its acknowledgements.
    pub fn confirm(&mut self, id: StreamId, confirmations: Confirmations) {
        if let Some(stream) = self.open.get_mut(&id) {
            stream.confirmations.get_or_insert_default().add(confirmations);
            self.reconsider(id);
        }
    }

    /// Let every stream look again.
    pub fn poke(&mut self) {
        let ids: Vec<StreamId> = self.open.keys().copied().collect();
        for id in ids {
            if let Some(stream) = self.open.get_mut(&id) {
                stream.poked = true;
                self.reconsider(id);
            }
        }
    }

    /// Take a stream out that asks: it and the queues change together.
    pub fn begin(&mut self, id: StreamId) -> Option<Stream> {
        let mut stream = self.open.remove(&id)?;
        match stream.mode {
            Mode::Awake => self.awake -= 1,
            Mode::Hungry => self.hungry.retain(|hungry| *hungry != id),
            Mode::Busy | Mode::Full => {}
        }
        stream.mode = Mode::Busy;
        stream.poked = false;
        Some(stream)
    }

    /// Put it back.
    pub fn settle(&mut self, id: StreamId, stream: Stream) {
        if stream.mode == Mode::Hungry {
            self.hungry.push_back(id);
        }
        self.open.insert(id, stream);
    }

    /// A lease of a message of this size ended.
    pub fn remove(&mut self, id: StreamId, size_bytes: usize) {
        if let Some(stream) = self.open.get_mut(&id) {
            stream.outstanding -= 1;
            stream.outstanding_bytes -= size_bytes;
            self.reconsider(id);
        }
    }

    /// The streams to wake, because there is something for them. Each is named once until it has asked.
    pub fn wakers(&mut self, backlog: &Backlog) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let shared = backlog.shared_len();
        let mut index = 0;
        while let Some(id) = self.hungry.get(index).copied() {
            let Some(stream) = self.open.get_mut(&id) else { break };
            if stream.must_wake() || self.awake < shared || backlog.has_owned(id) {
                stream.mode = Mode::Awake;
                self.awake += 1;
                wakers.push(stream.waker.clone());
                self.hungry.remove(index);
            } else {
                index += 1;
            }
        }
        wakers
    }

    /// A stream that stood at its limit may go on: it queues with the hungry.
    fn reconsider(&mut self, id: StreamId) {
        if let Some(stream) = self.open.get_mut(&id)
            && stream.mode == Mode::Full
        {
            stream.mode = Mode::Hungry;
            self.hungry.push_back(id);
        }
    }
}
