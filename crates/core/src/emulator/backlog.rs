//! Where the messages of one subscription wait: fresh, given back, delayed by the retry policy, or in the lane of their
//! ordering key.

use std::collections::{BTreeMap, VecDeque};

use super::clock::Time;
use super::lanes::Lanes;
use super::state::{DeliveryId, Entry, StreamId};

/// Where a message is taken from.
#[derive(Clone, Copy, Debug)]
pub enum Queue {
    /// Given back.
    Returned,
    /// In order.
    Lanes,
    /// Never delivered.
    Fresh,
}

const QUEUES: [Queue; 3] = [Queue::Returned, Queue::Lanes, Queue::Fresh];

/// The waiting messages.
#[derive(Debug, Default)]
pub struct Backlog {
    /// Whether ordering keys count.
    ordered: bool,
    fresh: VecDeque<Entry>,
    returned: VecDeque<Entry>,
    /// By the moment they can be delivered, then by arrival.
    delayed: BTreeMap<(Time, u64), Entry>,
    delays: u64,
    lanes: Lanes,
    /// Which queue is looked at first: neither a poisonous message nor a long backlog starves the rest.
    turn: usize,
    /// What was published until then is past its retention.
    horizon: Time,
}

impl Backlog {
    /// An empty one; an ordered one keeps the order of each ordering key.
    pub fn new(ordered: bool) -> Self {
        Self { ordered, ..Self::default() }
    }

    /// Let a stream own lanes.
    pub fn open_stream(&mut self, id: StreamId) {
        self.lanes.open_stream(id);
    }

    /// What it still owns stays its own until the leases end.
    pub fn close_stream(&mut self, id: StreamId) {
        self.lanes.close_stream(id);
    }

    /// Whether the order of this message counts.
    pub fn has_lane(&self, entry: &Entry) -> bool {
        self.ordered && !entry.message.ordering_key().is_empty()
    }

    /// How many messages wait; some of them may be past their retention.
    pub fn len(&self) -> usize {
        self.fresh.len() + self.returned.len() + self.delayed.len() + self.lanes.len()
    }

    /// At most so many streams find something that any stream can take.
    pub fn shared_len(&self) -> usize {
        self.fresh.len() + self.returned.len() + self.lanes.free_len()
    }

    /// Whether there may be something that only this stream can take.
    pub fn has_owned(&self, id: StreamId) -> bool {
        self.lanes.has_owned(id)
    }

    /// The messages that wait, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.fresh.iter().chain(&self.returned).chain(self.delayed.values()).chain(self.lanes.iter())
    }

    /// Add a message that is due.
    pub fn push(&mut self, entry: Entry) {
        if self.has_lane(&entry) {
            self.lanes.push(entry);
        } else {
            self.fresh.push_back(entry);
        }
    }

    /// Add messages that may be older than those that wait.
    pub fn restore(&mut self, entries: Vec<Entry>) {
        entries.into_iter().for_each(|entry| self.push(entry));
        self.fresh.make_contiguous().sort_by_key(|entry| entry.message.id);
    }

    /// The queue to serve a stream from, and the size of its first message.
    pub fn next_queue(&mut self, id: StreamId) -> Option<(Queue, usize)> {
        for offset in 0..QUEUES.len() {
            let queue = QUEUES[(self.turn + offset) % QUEUES.len()];
            let size_bytes = match queue {
                Queue::Returned => first_size_bytes(&mut self.returned, self.horizon),
                Queue::Lanes => self.lanes.next_size_bytes(id, self.horizon),
                Queue::Fresh => first_size_bytes(&mut self.fresh, self.horizon),
            };
            if let Some(size_bytes) = size_bytes {
                return Some((queue, size_bytes));
            }
        }
        None
    }

    /// Take the first message of a queue; `delivery` will be its lease.
    pub fn pop(&mut self, queue: Queue, id: StreamId, delivery: DeliveryId) -> Option<Entry> {
        self.turn = queue as usize + 1;
        match queue {
            Queue::Returned => self.returned.pop_front(),
            Queue::Lanes => self.lanes.pop(id, delivery),
            Queue::Fresh => self.fresh.pop_front(),
        }
    }

    /// A lease ended and its message does not come back.
    pub fn end_lease(&mut self, entry: &Entry, delivery: DeliveryId) {
        if self.has_lane(entry) {
            self.lanes.end_lease(entry.message.ordering_key(), delivery);
        }
    }

    /// The leases that end when this one does: its own and the later ones of its key, the last one first.
    pub fn leases_from(&mut self, key: &[u8], delivery: DeliveryId) -> Vec<DeliveryId> {
        self.lanes.leases_from(key, delivery)
    }

    /// Put back the messages of ended leases of one key, the last one first. With a time they wait until then.
    pub fn put_back_in_lane(&mut self, key: &[u8], entries: Vec<Entry>, due: Option<Time>) {
        self.lanes.put_back(key, entries, due);
    }

    /// Put back a message without an ordering key. With a time it waits until then.
    pub fn put_back(&mut self, entry: Entry, due: Option<Time>) {
        match due {
            None => self.returned.push_back(entry),
            Some(due) => {
                self.delays += 1;
                self.delayed.insert((due, self.delays), entry);
            }
        }
    }

    /// When a delayed message can be delivered, next.
    pub fn next_due(&self) -> Option<Time> {
        let delayed = self.delayed.first_key_value().map(|((due, _), _)| *due);
        delayed.into_iter().chain(self.lanes.next_due()).min()
    }

    /// Let the delayed messages go whose time has come.
    pub fn release_due(&mut self, now: Time) {
        while let Some(first) = self.delayed.first_entry()
            && first.key().0 <= now
        {
            self.returned.push_back(first.remove());
        }
        self.lanes.release_due(now);
    }

    /// What was published until then is dropped: the fresh messages now, the others when they are met.
    pub fn set_horizon(&mut self, horizon: Time) {
        self.horizon = horizon;
        first_size_bytes(&mut self.fresh, horizon);
    }

    /// Drop everything that is past its retention now.
    pub fn sweep(&mut self) {
        let horizon = self.horizon;
        self.remove_unless(|entry| entry.message.published > horizon);
    }

    /// Take out the messages that do not pass.
    pub fn remove_unless(&mut self, mut keep: impl FnMut(&Entry) -> bool) -> Vec<Entry> {
        let mut removed = self.lanes.remove_unless(&mut keep);
        for queue in [&mut self.fresh, &mut self.returned] {
            let (kept, out): (VecDeque<_>, VecDeque<_>) = queue.drain(..).partition(|entry| keep(entry));
            *queue = kept;
            removed.extend(out);
        }
        let (kept, out): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.delayed).into_iter().partition(|(_, entry)| keep(entry));
        self.delayed = kept;
        removed.extend(out.into_values());
        removed
    }
}

/// The size of the first message that is within its retention; the older ones before it are dropped.
fn first_size_bytes(queue: &mut VecDeque<Entry>, horizon: Time) -> Option<usize> {
    while let Some(front) = queue.front() {
        if front.message.published > horizon {
            return Some(front.message.size_bytes());
        }
        queue.pop_front();
    }
    None
}
