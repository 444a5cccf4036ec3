//! One subscription's messages: waiting, leased, acknowledged; and the streams that take them.
//!
//! Pure state: no I/O, no clock, no runtime. Time comes in as a parameter; whom to wake goes out as wakers, and what has
//! to leave for the dead-letter topic as a list.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::num::NonZeroU64;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;

use super::backlog::Backlog;
use super::clock::Time;
use super::delivery::{Confirmations, Delivery};
use super::idset::IdSet;
use super::leases::{Lease, Leases};
use super::message::Message;
use super::policy::Policy;
pub use super::streams::{End, FlowControl};
use super::streams::{Mode, Stream, Streams};

/// The most messages of one response.
pub const MAX_BATCH_MESSAGES: usize = 1_000;
/// The most bytes of one response of several messages: large HTTP/2 frames are filled, and a client that takes 4 MB at
/// a time gets every message below that.
const MAX_BATCH_BYTES: usize = 512 * 1024;
/// A request of which less than this part matches the filter is not kept in memory for it.
const WORTH_DETACHING: usize = 4;

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

/// What a stream gets when it asks.
#[derive(Debug)]
pub enum Taken {
    /// Leased messages, or news of earlier ones.
    Batch(Batch),
    /// Nothing now; its waker will be called.
    Nothing,
    /// Nothing ever again.
    Ended(End),
}

/// A response.
#[derive(Debug)]
pub struct Batch {
    /// Leased messages.
    pub deliveries: Vec<Delivery>,
    /// What became of the stream's acknowledgements; only with exactly-once delivery.
    pub confirmations: Option<Box<Confirmations>>,
    /// Whether the subscription has exactly-once delivery.
    pub exactly_once: bool,
}

/// What faults ask of a response.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// At most so many messages.
    pub max_messages: usize,
    /// Every so many deliveries one is made twice.
    pub duplicate_every: Option<NonZeroU64>,
}

impl Default for Terms {
    fn default() -> Self {
        Self { max_messages: MAX_BATCH_MESSAGES, duplicate_every: None }
    }
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
    /// Forwarded to the dead-letter topic.
    pub dead_lettered: u64,
    /// Published, and not kept because of the filter.
    pub filtered: u64,
}

/// What a seek did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sought {
    /// The ids of messages that became acknowledged.
    pub acked: BTreeSet<u64>,
    /// The ids of messages that became unacknowledged.
    pub unacked: BTreeSet<u64>,
}

/// A message that waits, or is leased.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The message.
    pub message: Message,
    /// How often it was delivered.
    pub deliveries: u32,
    /// How often it was given back, or its lease expired.
    pub failures: u32,
}

impl Entry {
    fn new(message: Message) -> Self {
        Self { message, deliveries: 0, failures: 0 }
    }
}

/// Why a message goes back.
#[derive(Clone, Copy, Debug)]
enum Return {
    Nacked,
    Expired,
}

/// The state of one subscription.
#[derive(Debug, Default)]
pub struct State {
    policy: Policy,
    backlog: Backlog,
    leases: Leases,
    streams: Streams,
    /// The second deliveries that a fault asked for, and the first ones.
    twins: HashMap<u64, DeliveryId>,
    /// The messages delivered while that fault was on.
    duplicable: u64,
    /// Acknowledged messages that are still kept, by id.
    retained: BTreeMap<u64, Message>,
    /// What has to leave for the dead-letter topic.
    dead: Vec<Entry>,
    /// Under a dead-letter policy: the ids of messages that failed since this was last asked for, and how often.
    failed: Vec<(u64, u32)>,
    timer: Option<Time>,
    counters: Counters,
    acked: IdSet,
}

impl State {
    /// The state of a new subscription; an ordered one keeps the order of each ordering key.
    pub fn new(ordered: bool, policy: Policy) -> Self {
        Self { policy, backlog: Backlog::new(ordered), ..Self::default() }
    }

    /// Change the settings.
    pub fn set_policy(&mut self, policy: Policy) {
        if !policy.retain_acked {
            self.retained.clear();
        }
        self.policy = policy;
    }

    /// Whether failed acknowledgements are told.
    pub fn is_exactly_once(&self) -> bool {
        self.policy.exactly_once
    }

    /// Open a stream.
    pub fn open_stream(&mut self, flow: FlowControl, ack_deadline: Duration) -> StreamId {
        let id = self.streams.open(flow, ack_deadline);
        self.backlog.open_stream(id);
        id
    }

    /// Forget a stream. Its leases go on until they are acknowledged or expire.
    pub fn close_stream(&mut self, id: StreamId) {
        self.streams.close(id);
        self.backlog.close_stream(id);
    }

    /// Let a stream end; the first reason stands.
    pub fn end_stream(&mut self, id: StreamId, end: End) {
        self.streams.end(id, end);
    }

    /// Let every stream end, also those that open from now on.
    pub fn end(&mut self, end: &End) {
        self.streams.end_all(end);
    }

    /// Why all is over, when it is: deleted, detached, or the emulator stops.
    pub fn ended(&self) -> Option<&End> {
        self.streams.ended()
    }

    /// Change the lease length of a stream's further deliveries.
    pub fn set_ack_deadline(&mut self, id: StreamId, ack_deadline: Duration) {
        self.streams.set_ack_deadline(id, ack_deadline);
    }

    /// Tell a stream what became of its acknowledgements.
    pub fn confirm(&mut self, id: StreamId, confirmations: Confirmations) {
        self.streams.confirm(id, confirmations);
    }

    /// Let every stream look again.
    pub fn poke_streams(&mut self) {
        self.streams.poke();
    }

    /// Add published messages.
    pub fn push(&mut self, messages: &[Message]) {
        let Some(filter) = &self.policy.filter else {
            messages.iter().for_each(|message| self.backlog.push(Entry::new(message.clone())));
            return;
        };
        let matching = messages.iter().filter(|message| filter.matches(|name| message.attribute(name)));
        let mut matching: Vec<Message> = matching.cloned().collect();
        self.counters.filtered += (messages.len() - matching.len()) as u64;
        if matching.len() * WORTH_DETACHING < messages.len() {
            matching.iter_mut().for_each(Message::detach);
        }
        matching.into_iter().for_each(|message| self.backlog.push(Entry::new(message)));
    }

    /// Lease messages to a stream; when there are none for it, `waker` is called as soon as there are.
    pub fn take(&mut self, id: StreamId, terms: Terms, now: Time, waker: &Waker) -> Taken {
        let Some(mut stream) = self.streams.begin(id) else { return Taken::Ended(End::Deleted) };
        let taken = match stream.end.clone() {
            Some(end) if stream.confirmations.is_none() => Taken::Ended(end),
            Some(_) => self.respond(&mut stream, Vec::new()),
            None => self.fill(id, &mut stream, terms, now, waker),
        };
        self.streams.settle(id, stream);
        taken
    }

    fn fill(&mut self, id: StreamId, stream: &mut Stream, terms: Terms, now: Time, waker: &Waker) -> Taken {
        // Streams that were woken for the same messages get their share.
        let share = self.backlog.len().div_ceil(self.streams.awake() + 1).min(terms.max_messages);
        let mut batch = Vec::with_capacity(share.min(MAX_BATCH_MESSAGES));
        let mut batch_bytes = 0;
        let mut mode = Mode::Hungry;
        while batch.len() < share.min(MAX_BATCH_MESSAGES) {
            let Some((queue, size_bytes)) = self.backlog.next_queue(id) else { break };
            if !batch.is_empty() && batch_bytes + size_bytes > MAX_BATCH_BYTES {
                break;
            }
            if !stream.has_room_for(size_bytes) {
                mode = Mode::Full;
                break;
            }
            let Some(entry) = self.backlog.pop(queue, id, self.leases.next_id()) else { break };
            stream.add(size_bytes);
            batch_bytes += size_bytes;
            let deadline = now.plus(stream.ack_deadline);
            if self.is_to_be_duplicated(terms) {
                stream.add(size_bytes);
                batch.extend(self.lease_twice(entry, id, deadline));
            } else {
                batch.push(self.lease(entry, id, deadline));
            }
        }
        if !batch.is_empty() || stream.confirmations.is_some() {
            return self.respond(stream, batch);
        }
        stream.wait(mode, waker);
        Taken::Nothing
    }

    fn respond(&self, stream: &mut Stream, deliveries: Vec<Delivery>) -> Taken {
        let confirmations = stream.confirmations.take();
        Taken::Batch(Batch { deliveries, confirmations, exactly_once: self.policy.exactly_once })
    }

    /// End a lease for good. Says whether there was one: late and repeated acknowledgements do nothing.
    pub fn acknowledge(&mut self, delivery: DeliveryId) -> bool {
        let Some(entry) = self.end_lease(delivery) else { return false };
        if let Some(first) = self.take_twin(delivery) {
            self.acknowledge(first);
            return true;
        }
        self.backlog.end_lease(&entry, delivery);
        self.counters.acked += 1;
        self.acked.insert(entry.message.id);
        self.retain(entry.message);
        true
    }

    /// Give a lease a new deadline, or with no time left give the message back. Says whether there was a lease.
    pub fn modify_deadline(&mut self, delivery: DeliveryId, remaining: Duration, now: Time) -> bool {
        if remaining.is_zero() {
            return self.give_back(delivery, Return::Nacked, now);
        }
        self.leases.set_deadline(delivery, now.plus(remaining))
    }

    /// Let time take effect: leases end, delayed messages become due, old ones go.
    pub fn expire(&mut self, now: Time) {
        while let Some((delivery, deadline)) = self.leases.next_expired(now) {
            self.give_back(delivery, Return::Expired, deadline);
        }
        self.backlog.release_due(now);
        let horizon = now.minus(self.policy.retention);
        self.backlog.set_horizon(horizon);
        while let Some(first) = self.retained.first_entry()
            && first.get().published <= horizon
        {
            first.remove();
        }
    }

    /// The streams to wake, because there is something for them. Each is named once until it has asked.
    pub fn wakers(&mut self) -> Vec<Waker> {
        self.streams.wakers(&self.backlog)
    }

    /// When to call [`State::expire`] next. The timer is then set to it.
    pub fn set_timer(&mut self) -> Option<Time> {
        self.timer = self.next_event();
        self.timer
    }

    /// Whether something happens before the timer would ring.
    pub fn timer_is_late(&self) -> bool {
        self.next_event().is_some_and(|next| self.timer.is_none_or(|timer| next < timer))
    }

    fn next_event(&self) -> Option<Time> {
        self.leases.next_deadline().into_iter().chain(self.backlog.next_due()).min()
    }

    /// The counters.
    pub fn counters(&mut self) -> Counters {
        self.backlog.sweep();
        Counters { outstanding: self.leases.len() as u64, backlog: self.backlog.len() as u64, ..self.counters }
    }

    /// The ids of the acknowledged messages, in order.
    pub fn acked_ids(&self) -> Vec<u64> {
        self.acked.iter().collect()
    }

    /// The messages of an earlier life.
    pub fn restore(&mut self, unacked: Vec<Entry>, retained: impl IntoIterator<Item = Message>) {
        self.backlog.restore(unacked);
        self.retained.extend(retained.into_iter().map(|message| (message.id, message)));
    }

    /// The message of a lease.
    pub fn leased_id(&self, delivery: DeliveryId) -> Option<u64> {
        Some(self.leases.get(delivery)?.entry.message.id)
    }

    /// Under a dead-letter policy: the ids of messages that failed since the last call, and how often each has.
    pub fn take_failed(&mut self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.failed)
    }

    /// What has to leave for the dead-letter topic: the caller forwards it, or gives it to [`State::keep_dead`].
    pub fn take_dead(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.dead)
    }

    /// Forwarded: as good as acknowledged.
    pub fn settle_dead(&mut self, entries: Vec<Entry>) {
        self.counters.dead_lettered += entries.len() as u64;
        entries.into_iter().for_each(|entry| self.retain(entry.message));
    }

    /// What could not be forwarded is delivered again.
    pub fn keep_dead(&mut self, entries: Vec<Entry>) {
        self.backlog.restore(entries);
    }

    /// The messages that are not acknowledged, by id.
    pub fn unacked(&self) -> BTreeMap<u64, Message> {
        let leased = self.leases.iter().map(|(_, lease)| &lease.entry);
        self.backlog.iter().chain(leased).map(|entry| (entry.message.id, entry.message.clone())).collect()
    }

    /// The acknowledged messages that are still kept.
    pub fn retained(&self) -> impl Iterator<Item = &Message> {
        self.retained.values()
    }

    /// Seek: unacknowledged messages that do not pass become acknowledged, and `restored` ones unacknowledged.
    pub fn seek(&mut self, is_unacked: impl Fn(&Message) -> bool, restored: Vec<Message>) -> Sought {
        let mut sought = Sought::default();
        for entry in self.backlog.remove_unless(|entry| is_unacked(&entry.message)) {
            sought.acked.insert(entry.message.id);
            self.retain(entry.message);
        }
        let leased = self.leases.iter().filter(|(_, lease)| !is_unacked(&lease.entry.message));
        for delivery in leased.map(|(delivery, _)| delivery).collect::<Vec<_>>() {
            if let Some(entry) = self.end_lease(delivery)
                && self.take_twin(delivery).is_none()
            {
                self.backlog.end_lease(&entry, delivery);
                sought.acked.insert(entry.message.id);
                self.retain(entry.message);
            }
        }
        let present: HashSet<u64> = self.unacked().into_keys().collect();
        let filter = self.policy.filter.clone();
        let passes = |message: &Message| filter.as_ref().is_none_or(|f| f.matches(|name| message.attribute(name)));
        let restored = restored.into_iter().filter(|message| !present.contains(&message.id) && passes(message));
        let restored: Vec<Entry> = restored.map(Entry::new).collect();
        for entry in &restored {
            sought.unacked.insert(entry.message.id);
            self.retained.remove(&entry.message.id);
            self.recall(entry);
        }
        self.backlog.restore(restored);
        sought
    }

    /// Forget every message: the subscription was detached.
    pub fn clear(&mut self) {
        self.seek(|_| false, Vec::new());
        self.retained.clear();
        self.dead.clear();
    }

    /// An earlier message of this one's key comes back: the leased ones have to follow it.
    fn recall(&mut self, entry: &Entry) {
        if self.backlog.has_lane(entry) {
            let key = entry.message.ordering_key();
            let ended = self.backlog.leases_from(key, DeliveryId { slot: 0, serial: 0 });
            let entries = ended.into_iter().filter_map(|delivery| self.end_lease(delivery)).collect();
            self.backlog.put_back_in_lane(key, entries, None);
        }
    }

    fn retain(&mut self, message: Message) {
        if self.policy.retain_acked {
            self.retained.insert(message.id, message);
        }
    }

    fn lease(&mut self, mut entry: Entry, stream: StreamId, deadline: Time) -> Delivery {
        self.counters.delivered += 1;
        self.counters.redelivered += u64::from(entry.deliveries > 0);
        entry.deliveries += 1;
        let attempt = if self.policy.dead_letter_after.is_some() { entry.failures + 1 } else { 0 };
        let message = entry.message.bytes.clone();
        Delivery { id: self.leases.insert(Lease { entry, deadline, stream }), attempt, message }
    }

    fn is_to_be_duplicated(&mut self, terms: Terms) -> bool {
        let Some(every) = terms.duplicate_every else { return false };
        self.duplicable += 1;
        self.duplicable.is_multiple_of(every.get())
    }

    /// Deliver a message twice, under two ack ids.
    fn lease_twice(&mut self, entry: Entry, stream: StreamId, deadline: Time) -> [Delivery; 2] {
        let mut twin = entry.clone();
        twin.deliveries += 1;
        let first = self.lease(entry, stream, deadline);
        let second = self.lease(twin, stream, deadline);
        self.twins.insert(second.id.serial, first.id);
        [first, second]
    }

    /// The first delivery, when this is a second one that a fault asked for.
    fn take_twin(&mut self, delivery: DeliveryId) -> Option<DeliveryId> {
        if self.twins.is_empty() { None } else { self.twins.remove(&delivery.serial) }
    }

    fn end_lease(&mut self, delivery: DeliveryId) -> Option<Entry> {
        let lease = self.leases.remove(delivery)?;
        self.streams.remove(lease.stream, lease.entry.message.size_bytes());
        Some(lease.entry)
    }

    fn give_back(&mut self, delivery: DeliveryId, why: Return, at: Time) -> bool {
        if self.leases.get(delivery).is_some() && self.take_twin(delivery).is_some() {
            self.end_lease(delivery);
            return true;
        }
        let Some(lease) = self.leases.get(delivery) else { return false };
        let key =
            self.backlog.has_lane(&lease.entry).then(|| Bytes::copy_from_slice(lease.entry.message.ordering_key()));
        let ended = match &key {
            Some(key) => self.backlog.leases_from(key, delivery),
            None => vec![delivery],
        };
        // The last one first: the one that failed is the last of the list.
        let mut entries: Vec<Entry> = ended.into_iter().filter_map(|id| self.end_lease(id)).collect();
        match why {
            Return::Nacked => self.counters.nacked += entries.len() as u64,
            Return::Expired => self.counters.expired += entries.len() as u64,
        }
        entries.iter_mut().for_each(|entry| entry.message.detach());
        let Some(mut failed) = entries.pop() else { return true };
        failed.failures += 1;
        if self.policy.dead_letter_after.is_some() {
            self.failed.push((failed.message.id, failed.failures));
        }
        let mut due = None;
        if self.policy.dead_letter_after.is_some_and(|limit| failed.failures >= limit) {
            self.dead.push(failed);
        } else {
            due = self.policy.retry.map(|backoff| at.plus(backoff.after(failed.failures)));
            entries.push(failed);
        }
        match key {
            Some(key) => self.backlog.put_back_in_lane(&key, entries, due),
            None => entries.into_iter().for_each(|entry| self.backlog.put_back(entry, due)),
        }
        true
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
pub mod tests;

#[cfg(test)]
#[path = "state_policy_tests.rs"]
mod policy_tests;
