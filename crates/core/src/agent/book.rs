//! The book of a streaming query: which rows of its ledger were cut into which batch.
//!
//! Pure state: no I/O, and the time comes in as an argument. The rules that keep every message are here, and in the
//! [`Ledger`] that keeps the leases:
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
use std::time::Instant;

use arrow_array::{RecordBatch, StringArray};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::lease::LeaseTerms;
use crate::pubsub::ledger::{Ledger, TakeLimits};

/// Parts smaller than this are not worth a Spark task of their own.
const MIN_PART_ROWS: usize = 5_000;

/// Where a batch ends: the agent's life and the batch's number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    ticket: u64,
}

/// What a new start settles.
#[derive(Debug, Default)]
pub struct Settled {
    /// Durable in the sink: acknowledge.
    pub acks: Vec<StringArray>,
    /// Nobody will read them here: give back.
    pub nacks: Vec<StringArray>,
}

/// See the module.
pub struct Book {
    epoch: String,
    /// The deliveries and their leases.
    pub ledger: Ledger,
    cuts: Vec<Cut>,
}

impl AsMut<Ledger> for Book {
    fn as_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }
}

impl Book {
    /// An empty book of one life.
    pub fn new(epoch: String, terms: LeaseTerms) -> Self {
        Self { epoch, ledger: Ledger::new(terms), cuts: vec![] }
    }

    /// Spark asks for what follows `start`: rules 1 and 2. The acknowledgements are due at once; report their outcome to
    /// the ledger under the ticket that comes along.
    pub fn settle(&mut self, start: &Offset, now: Instant) -> (Option<u64>, Settled) {
        let mut settled = Settled::default();
        let mut ticket = None;
        for cut in std::mem::take(&mut self.cuts) {
            if cut.end == *start {
                ticket = Some(cut.ticket);
                settled.acks.extend(self.ledger.acknowledge(cut.ticket, now).into_iter().flatten());
            } else if cut.start == *start {
                self.cuts.push(cut);
            } else {
                settled.nacks.extend(self.ledger.give_back(cut.ticket).into_iter().flatten());
            }
        }
        (ticket, settled)
    }

    /// The batch that was cut for `start` before, if there is one.
    pub fn known(&self, start: &Offset) -> Option<&Cut> {
        self.cuts.iter().find(|cut| cut.start == *start)
    }

    /// The batch that follows `start`: the one that was cut for it before (rule 4), a new one, or None when there is
    /// nothing to cut. No row whose lease has ended gets into a new one (rule 7).
    pub fn cut(&mut self, start: &Offset, limits: CutLimits, now: Instant) -> Option<&Cut> {
        if let Some(known) = self.cuts.iter().position(|cut| cut.start == *start) {
            return Some(&self.cuts[known]);
        }
        let CutLimits { max_rows, max_bytes, max_parts } = limits;
        let taken = self.ledger.take(TakeLimits { max_rows, max_bytes, max_batches: usize::MAX }, now)?;
        self.cuts.push(Cut {
            start: start.clone(),
            end: Offset { epoch: self.epoch.clone(), seq: start.seq + 1 },
            parts: into_parts(taken.batches, max_parts),
            ticket: taken.ticket,
        });
        self.cuts.last()
    }

    /// A part, for a task to read: rule 6.
    pub fn part(&self, end: &Offset, index: usize) -> Result<Arc<Part>> {
        let cut = self.cuts.iter().find(|cut| cut.end == *end && self.ledger.holds(cut.ticket));
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
