//! The leases of one subscription: found in one step by their delivery, and in the order of their deadlines.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::clock::Time;
use super::state::{DeliveryId, Entry, StreamId};

/// Dead deadlines are swept out when there are this many more of them than leases.
const SWEEP_SLACK: usize = 4_096;

/// A delivered message.
#[derive(Debug)]
pub struct Lease {
    /// The message.
    pub entry: Entry,
    /// When it goes back.
    pub deadline: Time,
    /// Who has it.
    pub stream: StreamId,
}

#[derive(Debug, Default)]
struct Slot {
    serial: u64,
    lease: Option<Lease>,
}

/// The leases.
#[derive(Debug, Default)]
pub struct Leases {
    slots: Vec<Slot>,
    free: Vec<u32>,
    serial: u64,
    live: usize,
    /// An entry for each deadline a lease ever had; only the one that equals the lease's own counts.
    deadlines: BinaryHeap<Reverse<(Time, DeliveryId)>>,
}

impl Leases {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.live
    }

    /// The id that the next [`Leases::insert`] will give.
    pub fn next_id(&self) -> DeliveryId {
        let slot = self.free.last().copied().unwrap_or(self.slots.len() as u32);
        DeliveryId { slot, serial: self.serial + 1 }
    }

    /// Add a lease.
    pub fn insert(&mut self, lease: Lease) -> DeliveryId {
        let id = self.next_id();
        if self.free.pop().is_none() {
            self.slots.push(Slot::default());
        }
        self.serial = id.serial;
        self.live += 1;
        self.deadlines.push(Reverse((lease.deadline, id)));
        self.slots[id.slot as usize] = Slot { serial: id.serial, lease: Some(lease) };
        self.sweep();
        id
    }

    /// Look at a lease.
    pub fn get(&self, id: DeliveryId) -> Option<&Lease> {
        let slot = self.slots.get(id.slot as usize)?;
        if slot.serial == id.serial { slot.lease.as_ref() } else { None }
    }

    /// End a lease.
    pub fn remove(&mut self, id: DeliveryId) -> Option<Lease> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.serial != id.serial {
            return None;
        }
        let lease = slot.lease.take()?;
        self.free.push(id.slot);
        self.live -= 1;
        Some(lease)
    }

    /// Give a lease another deadline. Says whether there is one.
    pub fn set_deadline(&mut self, id: DeliveryId, deadline: Time) -> bool {
        let Some(slot) = self.slots.get_mut(id.slot as usize) else { return false };
        let Some(lease) = slot.lease.as_mut().filter(|_| slot.serial == id.serial) else { return false };
        lease.deadline = deadline;
        self.deadlines.push(Reverse((deadline, id)));
        self.sweep();
        true
    }

    /// The leases, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (DeliveryId, &Lease)> {
        self.slots.iter().zip(0..).filter_map(|(slot, index)| {
            let id = DeliveryId { slot: index, serial: slot.serial };
            slot.lease.as_ref().map(|lease| (id, lease))
        })
    }

    /// A lease whose deadline has come, and when that was.
    pub fn next_expired(&mut self, now: Time) -> Option<(DeliveryId, Time)> {
        while let Some(Reverse((deadline, id))) = self.deadlines.peek().copied()
            && deadline <= now
        {
            self.deadlines.pop();
            if self.get(id).is_some_and(|lease| lease.deadline == deadline) {
                return Some((id, deadline));
            }
        }
        None
    }

    /// Before this time no lease expires; it may be too early when leases have ended or were extended.
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadlines.peek().map(|Reverse((deadline, _))| *deadline)
    }

    /// Dead entries would stay until their time comes; their number is kept at that of the leases.
    fn sweep(&mut self) {
        if self.deadlines.len() > 2 * self.live + SWEEP_SLACK {
            let mut deadlines = std::mem::take(&mut self.deadlines);
            deadlines.retain(|Reverse((deadline, id))| self.get(*id).is_some_and(|lease| lease.deadline == *deadline));
            self.deadlines = deadlines;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::{entry, time};
    use super::*;

    fn lease(deadline_s: u64) -> Lease {
        Lease { entry: entry(1, ""), deadline: time(deadline_s), stream: StreamId(1) }
    }

    #[test]
    fn an_ended_lease_is_not_found_in_a_slot_that_is_used_again() {
        let mut leases = Leases::default();
        let first = leases.insert(lease(1));
        assert!(leases.remove(first).is_some());
        let second = leases.insert(lease(2));
        assert_eq!(first.slot, second.slot);
        assert!(leases.get(first).is_none() && leases.remove(first).is_none() && !leases.set_deadline(first, time(9)));
        assert_eq!(leases.len(), 1);
    }

    #[test]
    fn leases_expire_in_the_order_of_their_last_deadlines() {
        let mut leases = Leases::default();
        let extended = leases.insert(lease(1));
        let second = leases.insert(lease(2));
        let ended = leases.insert(lease(3));
        leases.set_deadline(extended, time(5));
        leases.remove(ended);
        assert_eq!(leases.next_expired(time(1)), None);
        assert_eq!(leases.next_expired(time(4)), Some((second, time(2))));
        assert_eq!(leases.next_expired(time(4)), None);
        assert_eq!(leases.next_expired(time(5)), Some((extended, time(5))));
    }

    #[test]
    fn deadlines_of_ended_leases_do_not_pile_up() {
        let mut leases = Leases::default();
        for _ in 0..10 * SWEEP_SLACK {
            let id = leases.insert(lease(1));
            leases.set_deadline(id, time(600));
            leases.remove(id);
        }
        assert!(leases.deadlines.len() <= SWEEP_SLACK + 2, "{}", leases.deadlines.len());
        assert_eq!(leases.slots.len(), 1);
    }
}
