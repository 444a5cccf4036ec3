//! The ledger: every delivery that was received and is neither acknowledged nor given back. Pure state: no I/O, and the
//! time comes in as an argument.
//!
//! A delivery is in the buffer, then taken by a consumer, then being acknowledged; its lease is kept all the while. A
//! lease that ends in the buffer takes its rows along, because a copy will come; one that ends later changes nothing but
//! a counter, and the acknowledgement is sent all the same.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use arrow_array::{RecordBatch, StringArray};
use serde::{Deserialize, Serialize};

use crate::pubsub::decode::Decoded;
use crate::pubsub::lease::{EXACTLY_ONCE_LEASE, Lease, LeaseTerms, ProcessingTimes};

/// Counts of deliveries, for the user and for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Received from Pub/Sub.
    pub received: u64,
    /// Received once more, where Pub/Sub counts deliveries (under a dead-letter policy).
    pub redelivered: u64,
    /// Waiting for a consumer.
    pub buffered: u64,
    /// Neither acknowledged nor given back: in the buffer, with a consumer, or being acknowledged.
    pub leased: u64,
    /// Acknowledgement under way.
    pub acking: u64,
    /// Acknowledged and confirmed.
    pub acked: u64,
    /// Given back.
    pub nacked: u64,
    /// Acknowledged too late: Pub/Sub refused them for good (exactly-once delivery).
    pub refused: u64,
    /// Lost their lease while we held them.
    pub expired: u64,
    /// Bytes of messages held.
    pub held_bytes: u64,
}

/// How much to take from the buffer.
#[derive(Clone, Copy, Debug)]
pub struct TakeLimits {
    /// At most so many rows.
    pub max_rows: usize,
    /// At most so many bytes, but always one row.
    pub max_bytes: usize,
    /// At most so many record batches.
    pub max_batches: usize,
}

/// Rows that a consumer has taken.
#[derive(Debug)]
pub struct Taken {
    /// Names them in the ledger.
    pub ticket: u64,
    /// The rows, in the order of their coming.
    pub batches: Vec<RecordBatch>,
}

/// Leases to extend with one call or a few.
#[derive(Debug)]
pub struct Extension {
    /// Names it in [`Ledger::extended`].
    pub ticket: u64,
    /// The deliveries.
    pub ack_ids: Vec<StringArray>,
    /// What to ask for.
    pub length: Duration,
}

struct Chunk {
    rows: RecordBatch,
    lease: Lease,
    bytes: usize,
}

impl Chunk {
    fn slice(&self, from: usize, count: usize) -> Self {
        Self {
            rows: self.rows.slice(from, count),
            lease: self.lease.slice(from, count),
            bytes: self.bytes * count / self.lease.len().max(1),
        }
    }
}

struct Group {
    leases: Vec<Lease>,
    bytes: usize,
    acking: bool,
}

impl Group {
    fn rows(&self) -> usize {
        rows(&self.leases)
    }
}

/// See the module.
pub struct Ledger {
    terms: LeaseTerms,
    exactly_once: bool,
    processing: ProcessingTimes,
    buffer: VecDeque<Chunk>,
    buffered: usize,
    buffered_bytes: usize,
    groups: BTreeMap<u64, Group>,
    taken: usize,
    taken_bytes: usize,
    acking: usize,
    next_ticket: u64,
    early_until: u64,
    counters: Counters,
}

impl AsMut<Ledger> for Ledger {
    fn as_mut(&mut self) -> &mut Ledger {
        self
    }
}

impl Ledger {
    /// An empty ledger.
    pub fn new(terms: LeaseTerms) -> Self {
        Self {
            terms,
            exactly_once: false,
            processing: ProcessingTimes::default(),
            buffer: VecDeque::new(),
            buffered: 0,
            buffered_bytes: 0,
            groups: BTreeMap::new(),
            taken: 0,
            taken_bytes: 0,
            acking: 0,
            next_ticket: 0,
            early_until: 0,
            counters: Counters::default(),
        }
    }

    /// The subscription delivers exactly once, or not.
    pub fn set_exactly_once(&mut self, exactly_once: bool) {
        self.exactly_once = exactly_once;
    }

    /// What an extension asks for now.
    pub fn lease_length(&self) -> Duration {
        self.processing.lease(self.first_lease())
    }

    /// The lease that a stream asks for its deliveries.
    pub fn first_lease(&self) -> Duration {
        let least = if self.exactly_once { EXACTLY_ONCE_LEASE } else { Duration::ZERO };
        self.terms.ack_deadline.max(least)
    }

    /// Take received rows.
    pub fn add(&mut self, decoded: Decoded, received_at: Instant) {
        self.counters.received += decoded.rows.num_rows() as u64;
        if decoded.early {
            self.early_until = self.counters.received;
        }
        let lease = Lease::new(decoded.ack_ids, received_at, self.first_lease());
        self.push_back(Chunk { rows: decoded.rows, lease, bytes: decoded.bytes });
    }

    /// So many of the rows that were received had been delivered before.
    pub fn add_redelivered(&mut self, rows: usize) {
        self.counters.redelivered += rows as u64;
    }

    /// Whether there is something to take.
    pub fn has_rows(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Whether the buffer may have a row that was published before the moment its chunks tell of: rows leave it in the
    /// order of their coming, so that counting is enough.
    pub fn has_early_rows(&self) -> bool {
        self.counters.received - (self.buffered as u64) < self.early_until
    }

    /// Messages in the buffer, and their bytes.
    pub fn buffered(&self) -> (usize, usize) {
        (self.buffered, self.buffered_bytes)
    }

    /// Bytes of messages held, in the buffer or taken.
    pub fn held_bytes(&self) -> usize {
        self.buffered_bytes + self.taken_bytes
    }

    /// Messages held, in the buffer or taken.
    pub fn held_rows(&self) -> usize {
        self.buffered + self.taken
    }

    /// Whether a ticket's rows are with their consumer.
    pub fn holds(&self, ticket: u64) -> bool {
        self.groups.get(&ticket).is_some_and(|group| !group.acking)
    }

    /// How many of a ticket's rows Pub/Sub may give to somebody else by now.
    pub fn no_longer_ours(&self, ticket: u64) -> usize {
        self.groups.get(&ticket).map_or(0, |group| group.leases.iter().map(Lease::no_longer_ours).sum())
    }

    /// Take rows off the front of the buffer, splitting the last chunk where a limit falls into it. No row whose lease
    /// has ended is among them.
    pub fn take(&mut self, limits: TakeLimits, now: Instant) -> Option<Taken> {
        let (mut rows_left, mut bytes_left) = (limits.max_rows.max(1), limits.max_bytes);
        let (mut batches, mut leases, mut bytes) = (vec![], vec![], 0);
        while batches.len() < limits.max_batches.max(1) && rows_left > 0 {
            let Some(chunk) = self.pop() else { break };
            if chunk.lease.deadline <= now {
                self.counters.expired += chunk.lease.len() as u64;
                continue;
            }
            let total = chunk.lease.len();
            let by_bytes = if chunk.bytes <= bytes_left {
                total
            } else {
                // Rows of one chunk are taken as equally heavy: a budget, not a promise to the byte.
                (total * bytes_left / chunk.bytes.max(1)).max(usize::from(batches.is_empty()))
            };
            let count = total.min(rows_left).min(by_bytes);
            if count < total {
                let mut rest = chunk.slice(count, total - count);
                rest.bytes = chunk.bytes - chunk.bytes * count / total;
                self.push_front(rest);
            }
            if count > 0 {
                let first = if count < total { chunk.slice(0, count) } else { chunk };
                rows_left -= count;
                bytes_left = bytes_left.saturating_sub(first.bytes);
                bytes += first.bytes;
                batches.push(first.rows);
                leases.push(first.lease);
            }
            if count < total {
                break;
            }
        }
        if batches.is_empty() {
            return None;
        }
        let ticket = self.ticket();
        self.taken += rows(&leases);
        self.taken_bytes += bytes;
        self.groups.insert(ticket, Group { leases, bytes, acking: false });
        Some(Taken { ticket, batches })
    }

    /// Leave a ticket its first `rows` rows; the others get a ticket of their own. None if they are not held.
    pub fn split(&mut self, ticket: u64, rows: usize) -> Option<u64> {
        if !self.holds(ticket) {
            return None;
        }
        let other = self.ticket();
        let group = self.groups.get_mut(&ticket)?;
        let (total, mut left) = (group.rows().max(1), rows.min(group.rows()));
        let mut rest = vec![];
        for lease in &mut group.leases {
            let kept = left.min(lease.len());
            left -= kept;
            if kept < lease.len() {
                rest.push(lease.slice(kept, lease.len() - kept));
                *lease = lease.slice(0, kept);
            }
        }
        let bytes = group.bytes * self::rows(&rest) / total;
        group.bytes -= bytes;
        self.groups.insert(other, Group { leases: rest, bytes, acking: false });
        Some(other)
    }

    /// A ticket's rows are done with: what to acknowledge, or None if they are not held. Report the outcome with
    /// [`Ledger::acked`].
    pub fn acknowledge(&mut self, ticket: u64, now: Instant) -> Option<Vec<StringArray>> {
        let group = self.groups.get_mut(&ticket).filter(|group| !group.acking)?;
        group.acking = true;
        self.taken -= group.rows();
        self.taken_bytes -= group.bytes;
        self.acking += group.rows();
        for lease in &group.leases {
            self.processing.observe(now.saturating_duration_since(lease.received_at));
        }
        Some(ids(&group.leases))
    }

    /// The acknowledgements of a ticket ended: so many were confirmed, so many refused for good.
    pub fn acked(&mut self, ticket: u64, confirmed: usize, refused: usize) {
        if let Some(group) = self.groups.remove(&ticket) {
            self.acking -= group.rows();
            self.counters.acked += confirmed as u64;
            self.counters.refused += refused as u64;
        }
    }

    /// A ticket's rows are not wanted: what to give back, or None if they are not held.
    pub fn give_back(&mut self, ticket: u64) -> Option<Vec<StringArray>> {
        if !self.holds(ticket) {
            return None;
        }
        let group = self.groups.remove(&ticket)?;
        self.taken -= group.rows();
        self.taken_bytes -= group.bytes;
        self.counters.nacked += group.rows() as u64;
        Some(ids(&group.leases))
    }

    /// Everything that is held and not being acknowledged, to give back at the end.
    pub fn close(&mut self) -> Vec<StringArray> {
        let mut held = vec![];
        while let Some(chunk) = self.pop() {
            self.counters.nacked += chunk.lease.len() as u64;
            held.push(chunk.lease.ack_ids);
        }
        let taken: Vec<u64> = self.groups.keys().copied().collect();
        held.extend(taken.into_iter().filter_map(|ticket| self.give_back(ticket)).flatten());
        held
    }

    /// The leases that should be extended now, in extensions of at most `max_ids` deliveries (or one lease). Report
    /// every extension with [`Ledger::extended`].
    pub fn due(&mut self, now: Instant, max_ids: usize) -> Vec<Extension> {
        let (terms, length, mut ticket) = (self.terms, self.lease_length(), self.next_ticket);
        let mut extensions: Vec<Extension> = vec![];
        let mut ids = max_ids;
        for lease in self.leases_mut().filter(|lease| terms.is_due(lease, now)) {
            if ids + lease.len() > max_ids || extensions.is_empty() {
                ticket += 1;
                extensions.push(Extension { ticket, ack_ids: vec![], length });
                ids = 0;
            }
            ids += lease.len();
            lease.extension = Some((ticket, length));
            if let Some(extension) = extensions.last_mut() {
                extension.ack_ids.push(lease.ack_ids.clone());
            }
        }
        self.next_ticket = ticket;
        extensions
    }

    /// An extension that was asked for at `asked_at` ended; `granted` tells whether Pub/Sub took all of it.
    pub fn extended(&mut self, ticket: u64, asked_at: Instant, granted: bool) {
        for lease in self.leases_mut() {
            if let Some((_, length)) = lease.extension.filter(|(under_way, _)| *under_way == ticket) {
                lease.extension = None;
                if granted {
                    lease.deadline = asked_at + length;
                    lease.length = length;
                }
            }
        }
    }

    /// Pub/Sub said that these deliveries are no longer ours. Returns how many of them were held.
    pub fn lost(&mut self, gone: &HashSet<String>) -> usize {
        let mut lost = 0;
        for _ in 0..self.buffer.len() {
            let Some(chunk) = self.pop() else { break };
            let kept = runs(&chunk.lease.ack_ids, |id| !gone.contains(id));
            lost += chunk.lease.len() - kept.iter().map(|run| run.1).sum::<usize>();
            for (from, count) in kept {
                self.push_back(chunk.slice(from, count));
            }
        }
        for lease in self.groups.values_mut().flat_map(|group| &mut group.leases) {
            lost += lease.lose(gone);
        }
        self.counters.expired += lost as u64;
        lost
    }

    /// Notice leases that ended. Returns how many deliveries they were.
    pub fn expire(&mut self, now: Instant) -> u64 {
        let mut expired = 0;
        for _ in 0..self.buffer.len() {
            let Some(chunk) = self.pop() else { break };
            if chunk.lease.deadline <= now {
                expired += chunk.lease.len();
            } else {
                self.push_back(chunk);
            }
        }
        for lease in self.groups.values_mut().flat_map(|group| &mut group.leases) {
            if !lease.expired && lease.deadline <= now {
                expired += lease.len() - lease.lost.len();
                lease.expired = true;
            }
        }
        self.counters.expired += expired as u64;
        expired as u64
    }

    /// When the delivery came that is held longest.
    pub fn oldest(&self) -> Option<Instant> {
        let buffered = self.buffer.iter().map(|chunk| chunk.lease.received_at);
        let taken = self.groups.values().flat_map(|group| &group.leases).map(|lease| lease.received_at);
        buffered.chain(taken).min()
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        Counters {
            buffered: self.buffered as u64,
            leased: (self.buffered + self.taken + self.acking) as u64,
            acking: self.acking as u64,
            held_bytes: self.held_bytes() as u64,
            ..self.counters
        }
    }

    fn leases_mut(&mut self) -> impl Iterator<Item = &mut Lease> {
        let taken = self.groups.values_mut().flat_map(|group| &mut group.leases);
        self.buffer.iter_mut().map(|chunk| &mut chunk.lease).chain(taken)
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    fn pop(&mut self) -> Option<Chunk> {
        let chunk = self.buffer.pop_front()?;
        self.buffered -= chunk.lease.len();
        self.buffered_bytes -= chunk.bytes;
        Some(chunk)
    }

    fn push_back(&mut self, chunk: Chunk) {
        self.buffered += chunk.lease.len();
        self.buffered_bytes += chunk.bytes;
        self.buffer.push_back(chunk);
    }

    fn push_front(&mut self, chunk: Chunk) {
        self.buffered += chunk.lease.len();
        self.buffered_bytes += chunk.bytes;
        self.buffer.push_front(chunk);
    }
}

fn rows(leases: &[Lease]) -> usize {
    leases.iter().map(Lease::len).sum()
}

fn ids(leases: &[Lease]) -> Vec<StringArray> {
    leases.iter().map(|lease| lease.ack_ids.clone()).collect()
}

/// The runs of neighbours that are kept, as (from, count).
fn runs(ids: &StringArray, keep: impl Fn(&str) -> bool) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = vec![];
    for (index, _) in ids.iter().flatten().enumerate().filter(|(_, id)| keep(id)) {
        match runs.last_mut() {
            Some((from, count)) if *from + *count == index => *count += 1,
            _ => runs.push((index, 1)),
        }
    }
    runs
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
