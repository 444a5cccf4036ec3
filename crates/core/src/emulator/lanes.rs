//! Ordering keys. Each key has a lane: its messages go out in order, to one stream as long as any of them is leased.
//!
//! A message that comes back takes along the later ones of its lane that are leased, as in the service; unlike there,
//! those that were acknowledged stay so.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;

use super::state::{DeliveryId, Entry, StreamId};

#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<Entry>,
    /// From a delivery's serial to its slot; later messages have higher serials.
    leased: BTreeMap<u64, u32>,
    /// The stream that has the leased ones; nobody when there are none.
    owner: Option<StreamId>,
}

/// The lanes of one subscription.
///
/// Every lane with waiting messages has its key in the queue it can be served from: its owner's, or the free one. A
/// queue may hold keys that have moved on; whoever meets one drops it.
#[derive(Debug, Default)]
pub struct Lanes {
    lanes: HashMap<Bytes, Lane>,
    free: VecDeque<Bytes>,
    /// One queue for each open stream.
    owned: HashMap<StreamId, VecDeque<Bytes>>,
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

    /// Add a published message.
    pub fn push(&mut self, entry: Entry) {
        self.waiting += 1;
        let key = entry.message.ordering_key();
        if let Some(lane) = self.lanes.get_mut(key) {
            lane.waiting.push_back(entry);
            if lane.waiting.len() == 1 {
                let (key, owner) = (Bytes::copy_from_slice(lane.waiting[0].message.ordering_key()), lane.owner);
                self.enqueue(key, owner);
            }
            return;
        }
        // A copy: the key must not keep the whole publish request in memory.
        let key = Bytes::copy_from_slice(key);
        self.lanes.insert(key.clone(), Lane { waiting: VecDeque::from([entry]), ..Lane::default() });
        self.free.push_back(key);
    }

    /// The size of the message that [`Lanes::pop`] would give this stream.
    pub fn next_size_bytes(&mut self, id: StreamId) -> Option<usize> {
        let key = self.next_key(id)?;
        Some(self.lanes.get(&key)?.waiting.front()?.message.size_bytes())
    }

    /// Take the next message for this stream and record its lease.
    pub fn pop(&mut self, id: StreamId, delivery: DeliveryId) -> Option<Entry> {
        let key = self.next_key(id)?;
        let lane = self.lanes.get_mut(&key)?;
        let queue = if lane.owner.is_some() { self.owned.get_mut(&id)? } else { &mut self.free };
        queue.pop_front();
        let entry = lane.waiting.pop_front()?;
        self.waiting -= 1;
        lane.leased.insert(delivery.serial, delivery.slot);
        lane.owner = Some(id);
        if !lane.waiting.is_empty() {
            self.enqueue(key, Some(id));
        }
        Some(entry)
    }

    /// A leased message was acknowledged.
    pub fn acknowledge(&mut self, entry: &Entry, delivery: DeliveryId) {
        let key = entry.message.ordering_key();
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.leased.remove(&delivery.serial);
        if lane.leased.is_empty() {
            self.release(Bytes::copy_from_slice(key));
        }
    }

    /// The leases that end when this one does: its own and the later ones of its lane, the last one first.
    pub fn leases_from(&mut self, key: &[u8], delivery: DeliveryId) -> Vec<DeliveryId> {
        let Some(lane) = self.lanes.get_mut(key) else { return Vec::new() };
        let ended = lane.leased.split_off(&delivery.serial);
        ended.into_iter().rev().map(|(serial, slot)| DeliveryId { slot, serial }).collect()
    }

    /// Put back the messages of ended leases, the last one first.
    pub fn put_back(&mut self, entries: Vec<Entry>) {
        let Some(key) = entries.first().map(|entry| Bytes::copy_from_slice(entry.message.ordering_key())) else {
            return;
        };
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        self.waiting += entries.len();
        for entry in entries {
            lane.waiting.push_front(entry);
        }
        let owner = lane.owner;
        if lane.leased.is_empty() {
            self.release(key);
        } else {
            self.enqueue(key, owner);
        }
    }

    /// No message of a lane is leased any more: any stream may have it; an empty one is dropped.
    fn release(&mut self, key: Bytes) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        lane.owner = None;
        if lane.waiting.is_empty() {
            self.lanes.remove(&key);
        } else {
            self.enqueue(key, None);
        }
    }

    fn enqueue(&mut self, key: Bytes, owner: Option<StreamId>) {
        match owner {
            None => self.free.push_back(key),
            Some(owner) => {
                if let Some(queue) = self.owned.get_mut(&owner) {
                    queue.push_back(key);
                }
            }
        }
    }

    /// The key at the front of a queue this stream can be served from.
    fn next_key(&mut self, id: StreamId) -> Option<Bytes> {
        for owner in [Some(id), None] {
            let queue = if owner.is_some() { self.owned.get_mut(&id)? } else { &mut self.free };
            while let Some(key) = queue.front() {
                if self.lanes.get(key).is_some_and(|lane| lane.owner == owner && !lane.waiting.is_empty()) {
                    return Some(key.clone());
                }
                queue.pop_front();
            }
        }
        None
    }
}
