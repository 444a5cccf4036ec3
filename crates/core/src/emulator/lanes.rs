//! Ordering keys. Each key has a lane: its messages go out in order, to one stream as long as any of them is leased.
//!
//! A message that comes back takes along the later ones of its lane that are leased, as in the service; unlike there,
//! those that were acknowledged stay so. A lane may rest before it is served again: the retry policy.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use bytes::Bytes;

use super::clock::Time;
use super::state::{DeliveryId, Entry, StreamId};

#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<Entry>,
    /// From a delivery's serial to its slot; later messages have higher serials.
    leased: BTreeMap<u64, u32>,
    /// The stream that has the leased ones; nobody when there are none.
    owner: Option<StreamId>,
    /// Its place in the queue it can be served from; there is one at most.
    ticket: Option<u64>,
    /// It has no place in a queue before this moment.
    rests_until: Option<Time>,
}

type Queue = VecDeque<(Bytes, u64)>;

/// The lanes of one subscription.
///
/// Every lane with waiting messages that does not rest has its key in the queue it can be served from: its owner's, or
/// the free one. A queue may hold tickets that count no more; whoever meets one drops it.
#[derive(Debug, Default)]
pub struct Lanes {
    lanes: HashMap<Bytes, Lane>,
    free: Queue,
    /// One queue for each open stream.
    owned: HashMap<StreamId, Queue>,
    resting: BTreeSet<(Time, Bytes)>,
    tickets: u64,
    waiting: usize,
}

impl Lanes {
    /// Let a stream own lanes.
    pub fn open_stream(&mut self, id: StreamId) {
        self.owned.insert(id, VecDeque::new());
    }

    /// What it still owns stays its own until the leases end.
    pub fn close_stream(&mut self, id: StreamId) {
        self.owned.remove(&id);
    }

    /// How many messages wait.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// How many lanes any stream could be served from.
    pub fn free_len(&self) -> usize {
        self.free.len()
    }

    /// Whether there may be something that only this stream can take.
    pub fn has_owned(&self, id: StreamId) -> bool {
        self.owned.get(&id).is_some_and(|queue| !queue.is_empty())
    }

    /// The messages that wait.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.lanes.values().flat_map(|lane| &lane.waiting)
    }

    /// Add a message behind the earlier ones of its key.
    pub fn push(&mut self, entry: Entry) {
        self.waiting += 1;
        let key = entry.message.ordering_key();
        if let Some(lane) = self.lanes.get_mut(key) {
            // Usually the last one.
            let later = lane.waiting.iter().rev().take_while(|other| other.message.id > entry.message.id).count();
            lane.waiting.insert(lane.waiting.len() - later, entry);
            if lane.waiting.len() == 1 {
                let key = Bytes::copy_from_slice(lane.waiting[0].message.ordering_key());
                self.enqueue(key);
            }
            return;
        }
        // A copy: the key must not keep the whole publish request in memory.
        let key = Bytes::copy_from_slice(key);
        self.lanes.insert(key.clone(), Lane { waiting: VecDeque::from([entry]), ..Lane::default() });
        self.enqueue(key);
    }

    /// The size of the message that [`Lanes::pop`] would give this stream. Those published before `horizon` are dropped.
    pub fn next_size_bytes(&mut self, id: StreamId, horizon: Time) -> Option<usize> {
        loop {
            let key = self.next_key(id)?;
            let lane = self.lanes.get_mut(&key)?;
            let front = lane.waiting.front()?;
            if front.message.published > horizon {
                return Some(front.message.size_bytes());
            }
            let old = lane.waiting.iter().take_while(|entry| entry.message.published <= horizon).count();
            lane.waiting.drain(..old);
            self.waiting -= old;
            self.settle(key);
        }
    }

    /// Take the next message for this stream and record its lease.
    pub fn pop(&mut self, id: StreamId, delivery: DeliveryId) -> Option<Entry> {
        let key = self.next_key(id)?;
        let lane = self.lanes.get_mut(&key)?;
        let queue = if lane.owner.is_some() { self.owned.get_mut(&id)? } else { &mut self.free };
        queue.pop_front();
        lane.ticket = None;
        let entry = lane.waiting.pop_front()?;
        self.waiting -= 1;
        lane.leased.insert(delivery.serial, delivery.slot);
        lane.owner = Some(id);
        self.enqueue(key);
        Some(entry)
    }

    /// A lease ended and its message does not come back.
    pub fn end_lease(&mut self, key: &[u8], delivery: DeliveryId) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.leased.remove(&delivery.serial);
        if lane.leased.is_empty() {
            self.settle(Bytes::copy_from_slice(key));
        }
    }

    /// The leases that end when this one does: its own and the later ones of its lane, the last one first.
    pub fn leases_from(&mut self, key: &[u8], delivery: DeliveryId) -> Vec<DeliveryId> {
        let Some(lane) = self.lanes.get_mut(key) else { return Vec::new() };
        let ended = lane.leased.split_off(&delivery.serial);
        ended.into_iter().rev().map(|(serial, slot)| DeliveryId { slot, serial }).collect()
    }

    /// Put back the messages of ended leases of one key, the last one first; the lane may rest for a while.
    pub fn put_back(&mut self, key: &[u8], entries: Vec<Entry>, rests_until: Option<Time>) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let key = Bytes::copy_from_slice(key);
        self.waiting += entries.len();
        for entry in entries {
            lane.waiting.push_front(entry);
        }
        if let Some(until) = rests_until {
            if let Some(before) = lane.rests_until.replace(until) {
                self.resting.remove(&(before, key.clone()));
            }
            self.resting.insert((until, key.clone()));
            lane.ticket = None;
        }
        self.settle(key);
    }

    /// When a lane has rested long enough, next.
    pub fn next_due(&self) -> Option<Time> {
        self.resting.first().map(|(time, _)| *time)
    }

    /// Let the lanes that have rested long enough go on.
    pub fn release_due(&mut self, now: Time) {
        while self.next_due().is_some_and(|due| due <= now) {
            let Some((_, key)) = self.resting.pop_first() else { return };
            if let Some(lane) = self.lanes.get_mut(&key) {
                lane.rests_until = None;
                self.settle(key);
            }
        }
    }

    /// Take out the waiting messages that do not pass.
    pub fn remove_unless(&mut self, mut keep: impl FnMut(&Entry) -> bool) -> Vec<Entry> {
        let mut removed = Vec::new();
        let mut touched = Vec::new();
        for (key, lane) in &mut self.lanes {
            let (kept, out): (VecDeque<_>, VecDeque<_>) = lane.waiting.drain(..).partition(|entry| keep(entry));
            lane.waiting = kept;
            if !out.is_empty() {
                removed.extend(out);
                touched.push(key.clone());
            }
        }
        self.waiting -= removed.len();
        touched.into_iter().for_each(|key| self.settle(key));
        removed
    }

    /// After any change of a lane: without leases any stream may have it, and an empty one is dropped.
    fn settle(&mut self, key: Bytes) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        if lane.leased.is_empty() && lane.owner.is_some() {
            lane.owner = None;
            lane.ticket = None;
        }
        if !lane.waiting.is_empty() {
            return self.enqueue(key);
        }
        lane.ticket = None;
        if let Some(until) = lane.rests_until.take() {
            self.resting.remove(&(until, key.clone()));
        }
        if lane.leased.is_empty() {
            self.lanes.remove(&key);
        }
    }

    /// Give a lane its place in the queue it can be served from, unless it has it or must not have one.
    fn enqueue(&mut self, key: Bytes) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        if lane.waiting.is_empty() || lane.rests_until.is_some() || lane.ticket.is_some() {
            return;
        }
        let queue = match lane.owner {
            None => &mut self.free,
            // A closed stream has no queue: the lane waits for its leases to end.
            Some(owner) => match self.owned.get_mut(&owner) {
                Some(queue) => queue,
                None => return,
            },
        };
        self.tickets += 1;
        lane.ticket = Some(self.tickets);
        queue.push_back((key, self.tickets));
    }

    /// The key at the front of a queue this stream can be served from.
    fn next_key(&mut self, id: StreamId) -> Option<Bytes> {
        for queue in [self.owned.get_mut(&id)?, &mut self.free] {
            while let Some((key, ticket)) = queue.front() {
                if self.lanes.get(key).is_some_and(|lane| lane.ticket == Some(*ticket)) {
                    return Some(key.clone());
                }
                queue.pop_front();
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::{entry, time};
    use super::*;

    const STREAM: StreamId = StreamId(1);

    fn delivery(serial: u64) -> DeliveryId {
        DeliveryId { slot: 0, serial }
    }

    fn queued(lanes: &Lanes) -> usize {
        lanes.free.len() + lanes.owned.values().map(VecDeque::len).sum::<usize>()
    }

    #[test]
    fn a_key_stands_in_a_queue_once_however_often_messages_come_back() {
        let mut lanes = Lanes::default();
        lanes.open_stream(STREAM);
        (1..=5).for_each(|id| lanes.push(entry(id, "k")));
        let mut serial = 0;
        for _ in 0..50 {
            let mut taken = Vec::new();
            for _ in 0..3 {
                serial += 1;
                taken.push((serial, lanes.pop(STREAM, delivery(serial)).unwrap()));
            }
            // The last two come back, one by one; then the first one.
            for (serial, entry) in taken.into_iter().rev() {
                assert_eq!(lanes.leases_from(b"k", delivery(serial)).len(), 1);
                lanes.put_back(b"k", vec![entry], None);
                if lanes.lanes[&b"k"[..]].owner.is_some() {
                    assert_eq!(queued(&lanes), 1);
                }
            }
            // Given free, the lane leaves its place in the stream's queue behind; whoever meets that drops it.
            lanes.next_key(STREAM);
            assert_eq!(queued(&lanes), 1);
        }
        assert_eq!(lanes.len(), 5);
    }

    #[test]
    fn a_resting_lane_is_served_to_nobody_until_its_time() {
        let mut lanes = Lanes::default();
        lanes.open_stream(STREAM);
        lanes.push(entry(1, "k"));
        let taken = lanes.pop(STREAM, delivery(1)).unwrap();
        lanes.leases_from(b"k", delivery(1));
        lanes.put_back(b"k", vec![taken], Some(time(5)));
        lanes.push(entry(2, "k"));
        assert_eq!((lanes.next_key(STREAM), lanes.next_due()), (None, Some(time(5))));
        lanes.release_due(time(4));
        assert_eq!(lanes.next_key(STREAM), None);
        lanes.release_due(time(5));
        assert_eq!(lanes.pop(STREAM, delivery(2)).unwrap().message.id, 1);
        assert_eq!(lanes.pop(STREAM, delivery(3)).unwrap().message.id, 2);
        assert_eq!(lanes.next_due(), None);
    }

    #[test]
    fn an_emptied_lane_leaves_nothing_behind() {
        let mut lanes = Lanes::default();
        lanes.open_stream(STREAM);
        (1..=3).for_each(|id| lanes.push(entry(id, "k")));
        let first = lanes.pop(STREAM, delivery(1)).unwrap();
        lanes.leases_from(b"k", delivery(1));
        lanes.put_back(b"k", vec![first], Some(time(9)));
        assert_eq!(lanes.remove_unless(|_| false).len(), 3);
        assert!(lanes.lanes.is_empty() && lanes.resting.is_empty() && lanes.len() == 0);
        assert_eq!(lanes.next_key(STREAM), None);
    }
}
