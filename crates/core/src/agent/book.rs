//! The book of a streaming query: what was received, what was cut into batches, what is being acknowledged.
//!
//! Pure state: no I/O, and the time comes in as an argument. The rules that keep every message are here:
//!
//! 1. A batch is acknowledged when Spark asks for what follows it, which it does only once the batch is durable.
//! 2. Exactly the batch whose (epoch, seq) equals that start is acknowledged. What else was cut, but not for this very
//!    start, goes back to Pub/Sub.
//! 4. Asked again for the same start, the same batch: a cut never changes.
//! 5. `seq` goes on from the start, also from one of another epoch.
//! 6. A part that is not in the book is an error, never an empty answer.
//! 7. What is served is what is acknowledged. A lease that ends before the cut takes its rows out of the buffer; one that
//!    ends after it changes nothing but a counter.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{RecordBatch, StringArray};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::decode::Decoded;
use crate::pubsub::lease::Lease;

/// Parts smaller than this are not worth a Spark task of their own.
const MIN_PART_ROWS: usize = 5_000;

/// Where a batch ends: the agent's life and the batch's number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offset {
    /// A uuid of the agent that cut the batch; empty before the first one.
    pub epoch: String,
    /// Counts batches of a query through all its restarts.
    pub seq: u64,
}

/// How much one batch may hold.
#[derive(Clone, Copy, Debug)]
pub struct CutLimits {
    /// At most so many rows.
    pub max_rows: usize,
    /// At most so many bytes, but always one row.
    pub max_bytes: usize,
    /// At most so many parts.
    pub max_parts: usize,
}

/// One part of a batch: what one Spark task reads.
#[derive(Debug)]
pub struct Part {
    /// Its rows, in order.
    pub batches: Vec<RecordBatch>,
    /// How many there are.
    pub rows: usize,
}

/// A frozen batch.
#[derive(Debug)]
pub struct Cut {
    start: Offset,
    /// The offset that Spark knows it by.
    pub end: Offset,
    /// What its tasks read.
    pub parts: Vec<Arc<Part>>,
    leases: Vec<Lease>,
    bytes: usize,
}

/// What a new start settles.
#[derive(Debug, Default)]
pub struct Settled {
    /// Durable in the sink: acknowledge.
    pub acks: Vec<StringArray>,
    /// Nobody will read them here: give back.
    pub nacks: Vec<StringArray>,
}

/// Leases to extend with one call or a few.
#[derive(Debug)]
pub struct Extension {
    /// Names it in [`Book::extended`].
    pub ticket: u64,
    /// The deliveries.
    pub ack_ids: Vec<StringArray>,
}

struct Chunk {
    rows: RecordBatch,
    lease: Lease,
    bytes: usize,
}

/// Counts of deliveries, for the user and for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Received from Pub/Sub.
    pub received: u64,
    /// Waiting for a cut.
    pub buffered: u64,
    /// Cut, not yet durable.
    pub cut: u64,
    /// Durable, acknowledgement under way.
    pub acking: u64,
    /// Acknowledged and confirmed.
    pub acked: u64,
    /// Given back.
    pub nacked: u64,
    /// Lost their lease while we held them.
    pub expired: u64,
    /// Bytes of messages held.
    pub held_bytes: u64,
}

/// How long deliveries are held.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTerms {
    /// What one extension asks for.
    pub ack_deadline: Duration,
    /// Extended no longer than this after receipt.
    pub max_lease: Duration,
}

impl LeaseTerms {
    fn is_due(&self, lease: &Lease, now: Instant) -> bool {
        let soon = now + self.ack_deadline / 3 * 2;
        lease.extension.is_none()
            && !lease.expired
            && lease.deadline <= soon
            && now < lease.received_at + self.max_lease
    }
}

/// See the module.
pub struct Book {
    epoch: String,
    terms: LeaseTerms,
    buffer: VecDeque<Chunk>,
    cuts: Vec<Cut>,
    acking: Vec<(u64, Lease)>,
    next_ticket: u64,
    counters: Counters,
}

impl Book {
    /// An empty book of one life.
    pub fn new(epoch: String, terms: LeaseTerms) -> Self {
        Self {
            epoch,
            terms,
            buffer: VecDeque::new(),
            cuts: vec![],
            acking: vec![],
            next_ticket: 0,
            counters: Counters::default(),
        }
    }

    /// Take received rows.
    pub fn add(&mut self, decoded: Decoded, received_at: Instant) {
        self.counters.received += decoded.rows.num_rows() as u64;
        let lease = Lease::new(decoded.ack_ids, received_at, self.terms.ack_deadline);
        self.buffer.push_back(Chunk { rows: decoded.rows, lease, bytes: decoded.bytes });
    }

    /// Whether a cut would hold anything.
    pub fn has_rows(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Bytes of messages held, cut or not.
    pub fn held_bytes(&self) -> usize {
        self.buffer.iter().map(|c| c.bytes).sum::<usize>() + self.cuts.iter().map(|c| c.bytes).sum::<usize>()
    }

    /// Spark asks for what follows `start`: rules 1 and 2. The acknowledgements are due at once; report them with
    /// [`Book::acked`] when Pub/Sub has confirmed them.
    pub fn settle(&mut self, start: &Offset) -> (Option<u64>, Settled) {
        let mut settled = Settled::default();
        let mut ticket = None;
        for cut in std::mem::take(&mut self.cuts) {
            if cut.end == *start {
                self.next_ticket += 1;
                let id = self.next_ticket;
                ticket = Some(id);
                settled.acks.extend(cut.leases.iter().map(|lease| lease.ack_ids.clone()));
                self.acking.extend(cut.leases.into_iter().map(|lease| (id, lease)));
            } else if cut.start == *start {
                self.cuts.push(cut);
            } else {
                self.counters.nacked += rows(&cut.leases);
                settled.nacks.extend(cut.leases.into_iter().map(|lease| lease.ack_ids));
            }
        }
        (ticket, settled)
    }

    /// The acknowledgements of a ticket ended; `confirmed` says whether Pub/Sub took them.
    pub fn acked(&mut self, ticket: u64, confirmed: bool) {
        let before: u64 = self.acking.iter().map(|(_, lease)| lease.len() as u64).sum();
        self.acking.retain(|(id, _)| *id != ticket);
        let after: u64 = self.acking.iter().map(|(_, lease)| lease.len() as u64).sum();
        if confirmed {
            self.counters.acked += before - after;
        }
    }

    /// The batch that follows `start`: the one that was cut for it before (rule 4), a new one, or None when there is
    /// nothing to cut. No row whose lease has ended gets into a new one (rule 7).
    pub fn cut(&mut self, start: &Offset, limits: CutLimits, now: Instant) -> Option<&Cut> {
        if let Some(known) = self.cuts.iter().position(|cut| cut.start == *start) {
            return Some(&self.cuts[known]);
        }
        self.expire(now);
        let chunks = self.take(limits);
        if chunks.is_empty() {
            return None;
        }
        let bytes = chunks.iter().map(|chunk| chunk.bytes).sum();
        let (batches, leases): (Vec<_>, Vec<_>) = chunks.into_iter().map(|chunk| (chunk.rows, chunk.lease)).unzip();
        self.cuts.push(Cut {
            start: start.clone(),
            end: Offset { epoch: self.epoch.clone(), seq: start.seq + 1 },
            parts: into_parts(batches, limits.max_parts),
            leases,
            bytes,
        });
        self.cuts.last()
    }

    /// A part, for a task to read: rule 6.
    pub fn part(&self, end: &Offset, index: usize) -> Result<Arc<Part>> {
        let cut = self.cuts.iter().find(|cut| cut.end == *end);
        cut.and_then(|cut| cut.parts.get(index)).cloned().ok_or_else(|| {
            Error::new(
                ErrorKind::PartUnavailable,
                format!(
                    "part {index} of batch {} of agent {} is not here (this is agent {}).",
                    end.seq, end.epoch, self.epoch
                ),
            )
            .with_remedy("Restart the query; its messages were not acknowledged and come again.")
        })
    }

    /// The leases that should be extended now, in extensions of at most `max_ids` deliveries (or one lease): a third of
    /// each has passed, so two more tries fit in. Report every extension with [`Book::extended`].
    pub fn due(&mut self, now: Instant, max_ids: usize) -> Vec<Extension> {
        let (terms, mut ticket) = (self.terms, self.next_ticket);
        let mut extensions: Vec<Extension> = vec![];
        let mut ids = max_ids;
        for lease in self.leases_mut().filter(|lease| terms.is_due(lease, now)) {
            if ids + lease.len() > max_ids || extensions.is_empty() {
                ticket += 1;
                extensions.push(Extension { ticket, ack_ids: vec![] });
                ids = 0;
            }
            ids += lease.len();
            lease.extension = Some(ticket);
            if let Some(extension) = extensions.last_mut() {
                extension.ack_ids.push(lease.ack_ids.clone());
            }
        }
        self.next_ticket = ticket;
        extensions
    }

    /// An extension that was asked for at `asked_at` ended; `granted` tells whether Pub/Sub took all of it.
    pub fn extended(&mut self, ticket: u64, asked_at: Instant, granted: bool) {
        let ack_deadline = self.terms.ack_deadline;
        for lease in self.leases_mut().filter(|lease| lease.extension == Some(ticket)) {
            lease.extension = None;
            if granted {
                lease.deadline = asked_at + ack_deadline;
            }
        }
    }

    /// Notice leases that ended: rule 7.
    pub fn expire(&mut self, now: Instant) {
        let mut expired = 0;
        self.buffer.retain(|chunk| {
            let keep = now < chunk.lease.deadline;
            if !keep {
                expired += chunk.lease.len() as u64;
            }
            keep
        });
        for lease in self.leases_mut() {
            if !lease.expired && lease.deadline <= now {
                lease.expired = true;
                expired += lease.len() as u64;
            }
        }
        self.counters.expired += expired;
    }

    /// Everything that is held and not being acknowledged, to give back at the end.
    pub fn close(&mut self) -> Vec<StringArray> {
        let held: Vec<Lease> = self
            .buffer
            .drain(..)
            .map(|chunk| chunk.lease)
            .chain(self.cuts.drain(..).flat_map(|cut| cut.leases))
            .collect();
        self.counters.nacked += rows(&held);
        held.into_iter().map(|lease| lease.ack_ids).collect()
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        Counters {
            buffered: self.buffer.iter().map(|chunk| chunk.lease.len() as u64).sum(),
            cut: self.cuts.iter().map(|cut| rows(&cut.leases)).sum(),
            acking: self.acking.iter().map(|(_, lease)| lease.len() as u64).sum(),
            held_bytes: self.held_bytes() as u64,
            ..self.counters
        }
    }

    fn leases_mut(&mut self) -> impl Iterator<Item = &mut Lease> {
        let buffered = self.buffer.iter_mut().map(|chunk| &mut chunk.lease);
        let cut = self.cuts.iter_mut().flat_map(|cut| &mut cut.leases);
        buffered.chain(cut).chain(self.acking.iter_mut().map(|(_, lease)| lease))
    }

    /// Take rows off the front of the buffer, splitting the last chunk where a limit falls into it.
    fn take(&mut self, limits: CutLimits) -> Vec<Chunk> {
        let (mut taken, mut rows_left, mut bytes_left) = (vec![], limits.max_rows.max(1), limits.max_bytes);
        while let Some(chunk) = self.buffer.pop_front() {
            let total = chunk.lease.len();
            let by_bytes = if chunk.bytes <= bytes_left {
                total
            } else {
                // Rows of one chunk are taken as equally heavy: a budget, not a promise to the byte.
                (total * bytes_left / chunk.bytes.max(1)).max(usize::from(taken.is_empty()))
            };
            let count = total.min(rows_left).min(by_bytes);
            if count == 0 {
                self.buffer.push_front(chunk);
                break;
            }
            let (first, rest) = split(chunk, count);
            rows_left -= count;
            bytes_left = bytes_left.saturating_sub(first.bytes);
            taken.push(first);
            if let Some(rest) = rest {
                self.buffer.push_front(rest);
                break;
            }
            if rows_left == 0 {
                break;
            }
        }
        taken
    }
}

fn rows(leases: &[Lease]) -> u64 {
    leases.iter().map(|lease| lease.len() as u64).sum()
}

fn split(mut chunk: Chunk, count: usize) -> (Chunk, Option<Chunk>) {
    let total = chunk.lease.len();
    if count == total {
        return (chunk, None);
    }
    let bytes = chunk.bytes * count / total;
    let lease = chunk.lease.split_off(count);
    let rest = Chunk { rows: chunk.rows.slice(count, total - count), lease, bytes: chunk.bytes - bytes };
    (Chunk { rows: chunk.rows.slice(0, count), lease: chunk.lease, bytes }, Some(rest))
}

/// Spread rows over parts of equal size, in order.
fn into_parts(batches: Vec<RecordBatch>, max_parts: usize) -> Vec<Arc<Part>> {
    let total: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let parts = total.div_ceil(MIN_PART_ROWS).clamp(1, max_parts.max(1));
    let mut batches: VecDeque<RecordBatch> = batches.into();
    let mut result = Vec::with_capacity(parts);
    for index in 0..parts {
        let rows = total * (index + 1) / parts - total * index / parts;
        let (mut part, mut missing) = (vec![], rows);
        while missing > 0
            && let Some(batch) = batches.pop_front()
        {
            if batch.num_rows() > missing {
                batches.push_front(batch.slice(missing, batch.num_rows() - missing));
                part.push(batch.slice(0, missing));
                missing = 0;
            } else {
                missing -= batch.num_rows();
                part.push(batch);
            }
        }
        result.push(Arc::new(Part { batches: part, rows }));
    }
    result
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
