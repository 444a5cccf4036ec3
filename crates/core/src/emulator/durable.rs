//! Where the emulator writes down what it does before it says so: a journal in the folder of the user's choice, or
//! nowhere.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use prost::Message as _;
use tonic::Status;

use super::clock::{Clock, Time};
use super::journal::{Journal, Records, Sum};
use super::registry::stopped;
use super::store::{Record, Store};
use super::sync::{read, write};
use crate::error::Result;

/// A journal below this size is not condensed while the emulator runs...
const MIN_CONDENSE_BYTES: u64 = 64 * 1024 * 1024;
/// ...and a larger one when it has grown so many times since it was.
const CONDENSE_GROWTH: u64 = 4;

/// The way to the journal. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Durable(Option<Arc<Kept>>);

#[derive(Debug)]
struct Kept {
    /// Gone when the emulator has stopped.
    journal: RwLock<Option<Journal>>,
    condense_at_bytes: AtomicU64,
    clock: Arc<Clock>,
}

impl Durable {
    /// Keep everything in a folder; and what it holds already.
    pub fn open(folder: &Path, clock: Arc<Clock>) -> Result<(Self, Store)> {
        let mut sum = Pruned { store: Store::default(), now: clock.now() };
        let journal = Journal::open(folder, &mut sum)?;
        let condense_at_bytes = AtomicU64::new(condense_at_bytes(&journal));
        let kept = Kept { journal: RwLock::new(Some(journal)), condense_at_bytes, clock };
        Ok((Self(Some(Arc::new(kept))), sum.store))
    }

    /// Whether there is a journal.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Write a record; what it tells may be done and said when this has returned.
    pub fn write(&self, record: impl FnOnce() -> Record) -> std::result::Result<(), Status> {
        let Some(kept) = &self.0 else { return Ok(()) };
        let journal = read(&kept.journal);
        let Some(journal) = &*journal else { return Err(stopped()) };
        let written = journal.append(&record().encode_to_vec());
        written.map_err(|why| Status::resource_exhausted(format!("The call was not carried out: {why}.")))?;
        kept.condense_if_due(journal);
        Ok(())
    }

    /// Let go of the folder. What comes now is refused.
    pub fn close(&self) {
        if let Some(kept) = &self.0 {
            drop(write(&kept.journal).take());
        }
    }
}

impl Kept {
    fn condense_if_due(&self, journal: &Journal) {
        let due = self.condense_at_bytes.load(Ordering::Relaxed);
        // Of those that see it is due, one does it.
        let is_mine = journal.length_bytes() >= due
            && self.condense_at_bytes.compare_exchange(due, u64::MAX, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !is_mine {
            return;
        }
        let mut sum = Pruned { store: Store::default(), now: self.clock.now() };
        if let Err(error) = journal.condense(&mut sum) {
            log::warn!("the journal stays as long as it is: {error}");
        }
        self.condense_at_bytes.store(condense_at_bytes(journal), Ordering::Relaxed);
    }
}

fn condense_at_bytes(journal: &Journal) -> u64 {
    (journal.length_bytes() * CONDENSE_GROWTH).max(MIN_CONDENSE_BYTES)
}

/// The sum of the records without what is past its retention.
struct Pruned {
    store: Store,
    now: Time,
}

impl Sum for Pruned {
    fn add(&mut self, record: &[u8]) -> Result<()> {
        self.store.replay(record)
    }

    fn write(&mut self, records: &mut Records) -> io::Result<()> {
        self.store.prune(self.now);
        self.store.records().try_for_each(|record| records.add(&record.encode_to_vec()))
    }
}
