//! One subscription's messages: waiting, leased, acknowledged; and the streams that take them.
//!
//! Pure state: no I/O, no clock, no runtime. Time comes in as a parameter; whom to wake goes out as wakers.

use std::collections::{HashMap, VecDeque};
use std::task::Waker;
use std::time::Duration;

use super::clock::Time;
use super::delivery::Delivery;
use super::idset::IdSet;
use super::lanes::Lanes;
use super::leases::{Lease, Leases};
use super::message::Message;

/// The most messages of one response.
const MAX_BATCH_MESSAGES: usize = 1_000;
/// The most bytes of one response of several messages: large HTTP/2 frames are filled, and a client that takes 4 MB at
/// a time gets every message below that.
const MAX_BATCH_BYTES: usize = 512 * 1024;

/// Names a delivery within its subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeliveryId {
    /// Where the lease is kept; used again when it has ended.
    pub slot: u32,
    /// Unique for ever, and rising.
    pub serial: u64,
}

/// Names a stream within its subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId(pub u64);

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
    /// The client sent something invalid.
    Invalid(String),
    /// The subscription is gone.
    Deleted,
    /// The emulator stops.
    Stopped,
}

/// What a stream gets when it asks.
#[derive(Debug)]
pub enum Taken {
    /// Leased messages.
    Batch(Vec<Delivery>),
    /// Nothing now; its waker will be called.
    Nothing,
    /// Nothing ever again.
    Ended(End),
}

/// What happened to a subscription's messages so far, and where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Delivered, and neither acknowledged nor given back nor expired.
    pub outstanding: u64,
    /// Waiting for a (further) delivery.
    pub backlog: u64,
    /// Acknowledged.
    pub acked: u64,
    /// Given back by a deadline of 0; with ordering also the later ones of the key that came back with it.
    pub nacked: u64,
    /// Leases that ended by themselves; with ordering also the later ones of the key that came back with it.
    pub expired: u64,
    /// Deliveries, repeated ones included.
    pub delivered: u64,
    /// Deliveries of a message that was delivered before.
    pub redelivered: u64,
}

/// A message that waits, or is leased.
#[derive(Debug)]
pub struct Entry {
    /// The message.
    pub message: Message,
    /// How often it was delivered.
    pub deliveries: u32,
}

/// What a stream is doing, as far as waking it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Sending; it will ask again by itself.
    Busy,
    /// Found nothing; stands in the queue of the hungry.
    Hungry,
    /// At its flow-control limit.
    Full,
    /// Woken, and has not asked yet.
    Awake,
}

#[derive(Debug)]
struct Stream {
    flow: FlowControl,
    ack_deadline: Duration,
    outstanding: usize,
    outstanding_bytes: usize,
    mode: Mode,
    waker: Waker,
    end: Option<End>,
}

impl Stream {
    fn has_room_for(&self, size_bytes: usize) -> bool {
        self.flow.max_messages.is_none_or(|limit| self.outstanding < limit)
            && (self.outstanding == 0
                || self.flow.max_bytes.is_none_or(|limit| self.outstanding_bytes + size_bytes <= limit))
    }
}

/// Where a message waits.
#[derive(Clone, Copy, Debug)]
enum Queue {
    Returned,
    Lanes,
    Fresh,
}

const QUEUES: [Queue; 3] = [Queue::Returned, Queue::Lanes, Queue::Fresh];

/// Why a message goes back.
#[derive(Clone, Copy, Debug)]
enum Return {
    Nacked,
    Expired,
}

/// The state of one subscription.
#[derive(Debug, Default)]
pub struct State {
    /// Whether ordering keys count.
    ordered: bool,
    fresh: VecDeque<Entry>,
    returned: VecDeque<Entry>,
    lanes: Lanes,
    /// Which queue is looked at first: neither a poisonous message nor a long backlog starves the rest.
    turn: usize,
    leases: Leases,
    streams: HashMap<StreamId, Stream>,
    stream_serial: u64,
    hungry: VecDeque<StreamId>,
    awake: usize,
    /// Why every stream ends, those that open later included.
    end: Option<End>,
    timer: Option<Time>,
    counters: Counters,
    acked: IdSet,
}

impl State {
    /// The state of a new subscription; an ordered one keeps the order of each ordering key.
    pub fn new(ordered: bool) -> Self {
        Self { ordered, ..Self::default() }
    }

    /// Open a stream.
    pub fn open_stream(&mut self, flow: FlowControl, ack_deadline: Duration) -> StreamId {
        self.stream_serial += 1;
        let id = StreamId(self.stream_serial);
        let stream = Stream {
            flow,
            ack_deadline,
            outstanding: 0,
            outstanding_bytes: 0,
            mode: Mode::Busy,
            waker: Waker::noop().clone(),
            end: self.end.clone(),
        };
        self.streams.insert(id, stream);
        self.lanes.open_stream(id);
        id
    }

    /// Forget a stream. Its leases go on until they are acknowledged or expire.
    pub fn close_stream(&mut self, id: StreamId) {
        if self.streams.remove(&id).is_some_and(|stream| stream.mode == Mode::Awake) {
            self.awake -= 1;
        }
        self.hungry.retain(|hungry| *hungry != id);
        self.lanes.close_stream(id);
    }

    /// Let a stream end; the first reason stands.
    pub fn end_stream(&mut self, id: StreamId, end: End) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.end.is_none()
        {
            stream.end = Some(end);
            self.reconsider(id);
        }
    }

    /// Let every stream end, also those that open from now on.
    pub fn end(&mut self, end: &End) {
        self.end = Some(end.clone());
        let ids: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in ids {
            self.end_stream(id, end.clone());
        }
    }

    /// Whether all is over: the subscription is deleted, or the emulator stops.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Change the lease length of a stream's further deliveries.
    pub fn set_ack_deadline(&mut self, id: StreamId, ack_deadline: Duration) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.ack_deadline = ack_deadline;
        }
    }

    /// Add published messages.
    pub fn push(&mut self, messages: &[Message]) {
        for message in messages {
            let entry = Entry { message: message.clone(), deliveries: 0 };
            if self.has_lane(&entry) {
                self.lanes.push(entry);
            } else {
                self.fresh.push_back(entry);
            }
        }
    }

    /// Lease messages to a stream; when there are none for it, `waker` is called as soon as there are.
    pub fn take(&mut self, id: StreamId, now: Time, waker: &Waker) -> Taken {
        // Taken out for the time being: it and the queues change together.
        let Some(mut stream) = self.streams.remove(&id) else { return Taken::Ended(End::Deleted) };
        match stream.mode {
            Mode::Awake => self.awake -= 1,
            Mode::Hungry => self.hungry.retain(|hungry| *hungry != id),
            Mode::Busy | Mode::Full => {}
        }
        stream.mode = Mode::Busy;
        let taken = match stream.end.clone() {
            Some(end) => Taken::Ended(end),
            None => self.fill(id, &mut stream, now, waker),
        };
        self.streams.insert(id, stream);
        taken
    }

    fn fill(&mut self, id: StreamId, stream: &mut Stream, now: Time, waker: &Waker) -> Taken {
        // Streams that were woken for the same messages get their share.
        let share = self.backlog().div_ceil(self.awake + 1).min(MAX_BATCH_MESSAGES);
        let mut batch = Vec::with_capacity(share);
        let mut batch_bytes = 0;
        let mut mode = Mode::Hungry;
        while batch.len() < share {
            let Some((queue, size_bytes)) = self.next_queue(id) else { break };
            if !batch.is_empty() && batch_bytes + size_bytes > MAX_BATCH_BYTES {
                break;
            }
            if !stream.has_room_for(size_bytes) {
                mode = Mode::Full;
                break;
            }
            let Some(entry) = self.pop(queue, id) else { break };
            stream.outstanding += 1;
            stream.outstanding_bytes += size_bytes;
            batch_bytes += size_bytes;
            batch.push(self.lease(entry, id, now.plus(stream.ack_deadline)));
        }
        if !batch.is_empty() {
            return Taken::Batch(batch);
        }
        stream.waker.clone_from(waker);
        stream.mode = mode;
        if mode == Mode::Hungry {
            self.hungry.push_back(id);
        }
        Taken::Nothing
    }

    /// End a lease for good. Says whether there was one: late and repeated acknowledgements do nothing.
    pub fn acknowledge(&mut self, delivery: DeliveryId) -> bool {
        let Some(entry) = self.end_lease(delivery) else { return false };
        if self.has_lane(&entry) {
            self.lanes.acknowledge(&entry, delivery);
        }
        self.counters.acked += 1;
        self.acked.insert(entry.message.id);
        true
    }

    /// Give a lease a new deadline, or with no time left give the message back. Says whether there was a lease.
    pub fn modify_deadline(&mut self, delivery: DeliveryId, remaining: Duration, now: Time) -> bool {
        if remaining.is_zero() {
            return self.give_back(delivery, Return::Nacked);
        }
        self.leases.set_deadline(delivery, now.plus(remaining))
    }

    /// End the leases whose deadline has come.
    pub fn expire(&mut self, now: Time) {
        while let Some(delivery) = self.leases.next_expired(now) {
            self.give_back(delivery, Return::Expired);
        }
    }

    /// The streams to wake, because there is something for them. Each is named once until it has asked.
    pub fn wakers(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let shared = self.fresh.len() + self.returned.len() + self.lanes.free_len();
        let mut index = 0;
        while let Some(id) = self.hungry.get(index).copied() {
            let Some(stream) = self.streams.get_mut(&id) else { break };
            if stream.end.is_some() || self.awake < shared || self.lanes.has_owned(id) {
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

    /// When to call [`State::expire`] next. The timer is then set to it.
    pub fn set_timer(&mut self) -> Option<Time> {
        self.timer = self.leases.next_deadline();
        self.timer
    }

    /// Whether a lease ends before the timer would ring.
    pub fn timer_is_late(&self) -> bool {
        self.leases.next_deadline().is_some_and(|next| self.timer.is_none_or(|timer| next < timer))
    }

    /// The counters.
    pub fn counters(&self) -> Counters {
        Counters { outstanding: self.leases.len() as u64, backlog: self.backlog() as u64, ..self.counters }
    }

    /// The ids of the acknowledged messages, in order.
    pub fn acked_ids(&self) -> Vec<u64> {
        self.acked.iter().collect()
    }

    fn backlog(&self) -> usize {
        self.fresh.len() + self.returned.len() + self.lanes.len()
    }

    fn has_lane(&self, entry: &Entry) -> bool {
        self.ordered && !entry.message.ordering_key().is_empty()
    }

    /// The queue to serve a stream from, and the size of its first message.
    fn next_queue(&mut self, id: StreamId) -> Option<(Queue, usize)> {
        let first_size = |queue: &VecDeque<Entry>| queue.front().map(|entry| entry.message.size_bytes());
        for offset in 0..QUEUES.len() {
            let queue = QUEUES[(self.turn + offset) % QUEUES.len()];
            let size_bytes = match queue {
                Queue::Returned => first_size(&self.returned),
                Queue::Lanes => self.lanes.next_size_bytes(id),
                Queue::Fresh => first_size(&self.fresh),
            };
            if let Some(size_bytes) = size_bytes {
                return Some((queue, size_bytes));
            }
        }
        None
    }

    fn pop(&mut self, queue: Queue, id: StreamId) -> Option<Entry> {
        self.turn = queue as usize + 1;
        match queue {
            Queue::Returned => self.returned.pop_front(),
            Queue::Lanes => self.lanes.pop(id, self.leases.next_id()),
            Queue::Fresh => self.fresh.pop_front(),
        }
    }

    fn lease(&mut self, mut entry: Entry, stream: StreamId, deadline: Time) -> Delivery {
        self.counters.delivered += 1;
        self.counters.redelivered += u64::from(entry.deliveries > 0);
        entry.deliveries += 1;
        let message = entry.message.bytes.clone();
        Delivery { id: self.leases.insert(Lease { entry, deadline, stream }), message }
    }

    fn end_lease(&mut self, delivery: DeliveryId) -> Option<Entry> {
        let lease = self.leases.remove(delivery)?;
        if let Some(stream) = self.streams.get_mut(&lease.stream) {
            stream.outstanding -= 1;
            stream.outstanding_bytes -= lease.entry.message.size_bytes();
            self.reconsider(lease.stream);
        }
        Some(lease.entry)
    }

    fn give_back(&mut self, delivery: DeliveryId, why: Return) -> bool {
        let Some(lease) = self.leases.get(delivery) else { return false };
        let count = if self.has_lane(&lease.entry) {
            let ended = self.lanes.leases_from(lease.entry.message.ordering_key(), delivery);
            let entries: Vec<Entry> = ended.into_iter().filter_map(|id| self.end_lease(id)).collect();
            let count = entries.len();
            self.lanes.put_back(entries);
            count
        } else {
            let entry = self.end_lease(delivery);
            self.returned.extend(entry);
            1
        };
        match why {
            Return::Nacked => self.counters.nacked += count as u64,
            Return::Expired => self.counters.expired += count as u64,
        }
        true
    }

    /// A stream that stood at its limit may go on: it queues with the hungry.
    fn reconsider(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.mode == Mode::Full
        {
            stream.mode = Mode::Hungry;
            self.hungry.push_back(id);
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
pub mod tests;
