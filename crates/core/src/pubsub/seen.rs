//! The ids of messages that were seen, exactly: a message taken for one that it is not would be lost.
//!
//! Pub/Sub's ids are decimal numbers: those are kept as such, in 10 to 21 bytes each; anything else is kept as text.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex};

use arrow_array::cast::AsArray;
use arrow_array::{Array, BooleanArray, RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, DataType, SchemaRef};
use arrow_select::filter::filter_record_batch;

use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::puller::lock;

const COLUMN: &str = "message_id";

/// See the module.
#[derive(Default)]
pub struct SeenIds {
    numbers: HashSet<u64, BuildHasherDefault<NumberHasher>>,
    texts: HashSet<Box<str>>,
}

impl SeenIds {
    /// Which rows have an id that was not seen; it is now. None stands for all of them. A row without an id is never
    /// one that was seen.
    pub fn fresh(&mut self, rows: &RecordBatch) -> Result<Option<BooleanArray>> {
        let ids = ids_of(rows)?;
        let mut copies = 0;
        let mask = (0..ids.len()).map(|row| {
            let fresh = ids.is_null(row) || self.insert(ids.value(row));
            copies += usize::from(!fresh);
            Some(fresh)
        });
        let mask: BooleanArray = mask.collect();
        Ok((copies > 0).then_some(mask))
    }

    /// These ids were not seen.
    pub fn forget(&mut self, rows: &RecordBatch) -> Result<()> {
        for id in ids_of(rows)?.iter().flatten() {
            match number(id) {
                Some(number) => self.numbers.remove(&number),
                None => self.texts.remove(id),
            };
        }
        Ok(())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.numbers.len() + self.texts.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn insert(&mut self, id: &str) -> bool {
        match number(id) {
            Some(number) => self.numbers.insert(number),
            None => id.is_empty() || self.texts.insert(id.into()),
        }
    }
}

fn ids_of(rows: &RecordBatch) -> Result<&arrow_array::StringArray> {
    let column = rows.column_by_name(COLUMN).filter(|column| column.data_type() == &DataType::Utf8);
    column.map(|column| column.as_string()).ok_or_else(no_ids)
}

fn no_ids() -> Error {
    Error::new(ErrorKind::Native, format!("rows have no text column {COLUMN}."))
}

/// The number that is written as exactly this text.
fn number(id: &str) -> Option<u64> {
    let digits = id.as_bytes();
    if !matches!(digits, [b'0'] | [b'1'..=b'9', ..]) {
        return None;
    }
    // Fewer digits than that cannot overflow.
    if digits.len() > 19 {
        return id.parse().ok();
    }
    digits.iter().try_fold(0, |value: u64, digit| digit.is_ascii_digit().then(|| value * 10 + u64::from(digit - b'0')))
}

/// Spreads numbers over the table. The service makes them, so that no enemy chooses them.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, number: u64) {
        let wide = u128::from(number ^ 0x243f_6a88_85a3_08d3) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (wide as u64) ^ (wide >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }
}

/// A stream of rows without those whose ids were seen, in `seen` or earlier in the stream.
pub struct Fresh<R> {
    seen: Arc<Mutex<SeenIds>>,
    rows: R,
}

impl<R: RecordBatchReader> Fresh<R> {
    /// Over `rows`, which have a column of ids.
    pub fn new(seen: Arc<Mutex<SeenIds>>, rows: R) -> Self {
        Self { seen, rows }
    }
}

impl<R: RecordBatchReader> Iterator for Fresh<R> {
    type Item = std::result::Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let batch = match self.rows.next()? {
                Ok(batch) => batch,
                failed => return Some(failed),
            };
            let mask = lock(&self.seen).fresh(&batch);
            let fresh = match mask {
                Ok(None) => Ok(batch),
                Ok(Some(mask)) => filter_record_batch(&batch, &mask),
                Err(error) => Err(ArrowError::ExternalError(Box::new(error))),
            };
            if fresh.as_ref().map_or(true, |batch| batch.num_rows() > 0) {
                return Some(fresh);
            }
        }
    }
}

impl<R: RecordBatchReader> RecordBatchReader for Fresh<R> {
    fn schema(&self) -> SchemaRef {
        self.rows.schema()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, RecordBatchIterator, StringArray};

    fn rows(ids: &[Option<&str>]) -> RecordBatch {
        RecordBatch::try_from_iter([(COLUMN, Arc::new(StringArray::from(ids.to_vec())) as ArrayRef)]).unwrap()
    }

    fn fresh(seen: &mut SeenIds, ids: &[&str]) -> Vec<bool> {
        let ids: Vec<_> = ids.iter().copied().map(Some).collect();
        let mask = seen.fresh(&rows(&ids)).unwrap();
        mask.map_or(vec![true; ids.len()], |mask| mask.iter().flatten().collect())
    }

    #[test]
    fn an_id_is_fresh_once_also_within_a_call() {
        let mut seen = SeenIds::default();
        assert_eq!(fresh(&mut seen, &["1", "2", "1"]), [true, true, false]);
        assert_eq!(fresh(&mut seen, &["2", "3"]), [false, true]);
        assert_eq!(seen.len(), 3);
    }

    #[test]
    fn ids_that_look_alike_are_not_the_same() {
        let alike = [
            "7",
            "07",
            "+7",
            " 7",
            "7 ",
            "-7",
            "٧",
            "0",
            "00",
            "a",
            "A",
            "18446744073709551615",
            "18446744073709551616",
            "018446744073709551615",
            "10000000000000000007",
            "99999999999999999999999999999999",
            "1844674407370955161x",
            "184467440737095516150",
        ];
        let mut seen = SeenIds::default();
        assert!(fresh(&mut seen, &alike).iter().all(|fresh| *fresh));
        assert!(fresh(&mut seen, &alike).iter().all(|fresh| !fresh));
        assert_eq!(seen.len(), alike.len());
    }

    #[test]
    fn rows_without_an_id_are_always_fresh() {
        let mut seen = SeenIds::default();
        for _ in 0..2 {
            assert!(seen.fresh(&rows(&[None, Some(""), Some(""), None])).unwrap().is_none());
        }
        assert!(seen.is_empty());
    }

    #[test]
    fn what_is_forgotten_is_fresh_again() {
        let mut seen = SeenIds::default();
        fresh(&mut seen, &["1", "2", "x"]);
        seen.forget(&rows(&[Some("1"), Some("x"), Some("9"), None])).unwrap();
        assert_eq!(fresh(&mut seen, &["1", "2", "x"]), [true, false, true]);
    }

    #[test]
    fn numbers_that_follow_each_other_spread_over_the_table() {
        let hash = |number: u64| {
            let mut hasher = NumberHasher::default();
            hasher.write_u64(number);
            hasher.finish()
        };
        for low in [true, false] {
            let slots: HashSet<u64> = (0..4_096)
                .map(|i| hash(11_650_321_771_950_000 + i))
                .map(|h| if low { h & 0xfff } else { h >> 52 })
                .collect();
            assert!(slots.len() > 2_000, "{} of 4096 slots", slots.len());
        }
    }

    #[test]
    fn a_stream_loses_its_copies_and_nothing_else() {
        let seen = Arc::new(Mutex::new(SeenIds::default()));
        let batches = [rows(&[Some("1"), Some("2")]), rows(&[Some("2"), Some("1")]), rows(&[Some("3"), Some("1")])];
        let schema = batches[0].schema();
        let stream = RecordBatchIterator::new(batches.into_iter().map(Ok), schema);
        let left: Vec<_> = Fresh::new(seen, stream).map(|batch| batch.unwrap()).collect();
        assert_eq!(left, [rows(&[Some("1"), Some("2")]), rows(&[Some("3")])]);
    }

    #[test]
    fn rows_without_a_column_of_ids_are_refused() {
        let other = RecordBatch::try_from_iter([("data", Arc::new(StringArray::from(vec!["1"])) as ArrayRef)]).unwrap();
        assert!(SeenIds::default().fresh(&other).is_err());
    }
}
