//! The ids of messages that were seen, exactly: a message taken for one that it is not would be lost.
//!
//! Pub/Sub's ids are decimal numbers: those are kept as such, in 10 to 21 bytes each; anything else is kept as text.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex};

use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef, BooleanArray, ListArray, RecordBatch, RecordBatchReader, StringArray, UInt64Array};
use arrow_buffer::{BooleanBufferBuilder, OffsetBuffer};
use arrow_schema::{ArrowError, DataType, Field, SchemaRef};
use arrow_select::filter::filter_record_batch;

use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::puller::lock;

const COLUMN: &str = "message_id";
const NUMBERS: &str = "numbers";
const TEXTS: &str = "texts";

/// See the module.
#[derive(Default)]
pub struct SeenIds {
    numbers: HashSet<u64, BuildHasherDefault<NumberHasher>>,
    texts: HashSet<Box<str>>,
}

impl SeenIds {
    /// Which rows have an id that was not seen; it is now, and it is added to `ids`. None stands for all of them. A row
    /// without an id is never one that was seen.
    pub fn fresh(&mut self, rows: &RecordBatch, ids: &mut Ids) -> Result<Option<BooleanArray>> {
        let column = rows.column_by_name(COLUMN).filter(|column| column.data_type() == &DataType::Utf8);
        let column: &StringArray = column.map(|column| column.as_string()).ok_or_else(|| missing(COLUMN))?;
        let mut mask: Option<BooleanBufferBuilder> = None;
        for (row, id) in column.iter().enumerate() {
            let fresh = id.is_none_or(|id| self.insert(id, ids));
            if !fresh && mask.is_none() {
                let mut all_so_far = BooleanBufferBuilder::new(column.len());
                all_so_far.append_n(row, true);
                mask = Some(all_so_far);
            }
            mask.as_mut().into_iter().for_each(|mask| mask.append(fresh));
        }
        Ok(mask.map(|mut mask| BooleanArray::new(mask.finish(), None)))
    }

    /// These ids were seen.
    pub fn learn(&mut self, ids: &RecordBatch) -> Result<()> {
        let (numbers, texts) = lists(ids)?;
        self.numbers.extend(numbers.values());
        self.texts.extend(texts.iter().flatten().map(Box::from));
        Ok(())
    }

    /// These ids were not seen.
    pub fn forget(&mut self, ids: &RecordBatch) -> Result<()> {
        let (numbers, texts) = lists(ids)?;
        for number in numbers.values() {
            self.numbers.remove(number);
        }
        for text in texts.iter().flatten() {
            self.texts.remove(text);
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

    fn insert(&mut self, id: &str, ids: &mut Ids) -> bool {
        match number(id) {
            Some(number) => {
                let fresh = self.numbers.insert(number);
                if fresh {
                    ids.numbers.push(number);
                }
                fresh
            }
            None if id.is_empty() => true,
            None => {
                let fresh = self.texts.insert(id.into());
                if fresh {
                    ids.texts.push(id.into());
                }
                fresh
            }
        }
    }
}

/// Ids in the form in which they are stored: one row with a list of numbers and a list of texts.
#[derive(Default)]
pub struct Ids {
    numbers: Vec<u64>,
    texts: Vec<Box<str>>,
}

impl Ids {
    /// All of them; none are left.
    pub fn take(&mut self) -> Result<RecordBatch> {
        let numbers = UInt64Array::from(std::mem::take(&mut self.numbers));
        let item = Arc::new(Field::new_list_field(DataType::UInt64, true));
        let numbers = ListArray::new(item, OffsetBuffer::from_lengths([numbers.len()]), Arc::new(numbers), None);
        let mut texts = ListBuilder::new(StringBuilder::new());
        texts.append_value(self.texts.drain(..).map(Some));
        let columns: [(&str, ArrayRef); 2] = [(NUMBERS, Arc::new(numbers)), (TEXTS, Arc::new(texts.finish()))];
        RecordBatch::try_from_iter(columns).map_err(|e| Error::new(ErrorKind::Native, format!("ids as Arrow: {e}.")))
    }
}

/// The values of the lists in a batch of ids, however many rows it has.
fn lists(ids: &RecordBatch) -> Result<(&UInt64Array, &StringArray)> {
    let values = |name| {
        let list = ids.column_by_name(name).and_then(|column| column.as_list_opt::<i32>());
        // Values of rows that were sliced away would still be among them.
        let whole = |list: &&ListArray| {
            list.value_offsets()[0] == 0 && list.offsets().lengths().sum::<usize>() == list.values().len()
        };
        list.filter(whole).map(ListArray::values).ok_or_else(|| missing(name))
    };
    let numbers = values(NUMBERS)?.as_primitive_opt::<UInt64Type>().ok_or_else(|| missing(NUMBERS))?;
    let texts = values(TEXTS)?.as_string_opt::<i32>().ok_or_else(|| missing(TEXTS))?;
    Ok((numbers, texts))
}

fn missing(column: &str) -> Error {
    Error::new(ErrorKind::Native, format!("there is no column {column} of the right type."))
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

/// Spreads numbers over the table, but leaves eight that follow each other side by side, as messages that were published
/// together do: they come together too, and are then found in one line of the cache. The service makes the numbers, so
/// that no enemy chooses them.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, number: u64) {
        let wide = u128::from((number >> 3) ^ 0x243f_6a88_85a3_08d3) * 0x9e37_79b9_7f4a_7c15;
        let mixed = (wide as u64) ^ (wide >> 64) as u64;
        let low = number & 7;
        // The table looks at the lowest bits for the place, and at the highest seven for a first comparison.
        self.0 = ((mixed & !7) | low) ^ (low << 57);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }
}

/// A stream of rows without those whose ids were seen, in `seen` or earlier in the stream. The others go to `ids`.
pub struct Fresh<R> {
    seen: Arc<Mutex<SeenIds>>,
    ids: Arc<Mutex<Ids>>,
    rows: R,
}

impl<R: RecordBatchReader> Fresh<R> {
    /// Over `rows`, which have a column of ids.
    pub fn new(seen: Arc<Mutex<SeenIds>>, ids: Arc<Mutex<Ids>>, rows: R) -> Self {
        Self { seen, ids, rows }
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
            let mask = lock(&self.seen).fresh(&batch, &mut lock(&self.ids));
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
    use arrow_array::RecordBatchIterator;

    fn rows(ids: &[Option<&str>]) -> RecordBatch {
        RecordBatch::try_from_iter([(COLUMN, Arc::new(StringArray::from(ids.to_vec())) as ArrayRef)]).unwrap()
    }

    fn fresh(seen: &mut SeenIds, ids: &[&str]) -> Vec<bool> {
        let ids: Vec<_> = ids.iter().copied().map(Some).collect();
        let mask = seen.fresh(&rows(&ids), &mut Ids::default()).unwrap();
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
            let mut ids = Ids::default();
            assert!(seen.fresh(&rows(&[None, Some(""), Some(""), None]), &mut ids).unwrap().is_none());
            assert!(ids.numbers.is_empty() && ids.texts.is_empty());
        }
        assert!(seen.is_empty());
    }

    #[test]
    fn what_is_forgotten_is_fresh_again_and_what_is_learnt_is_not() {
        let (mut seen, mut ids) = (SeenIds::default(), Ids::default());
        seen.fresh(&rows(&[Some("1"), Some("x"), Some("1")]), &mut ids).unwrap();
        fresh(&mut seen, &["2"]);
        let ids = ids.take().unwrap();
        assert_eq!(ids.num_rows(), 1);
        seen.forget(&ids).unwrap();
        assert_eq!(fresh(&mut seen, &["1", "2", "x"]), [true, false, true]);
        let mut other = SeenIds::default();
        other.learn(&ids).unwrap();
        assert_eq!(fresh(&mut other, &["1", "2", "x"]), [false, true, false]);
    }

    #[test]
    fn ids_of_several_rows_are_all_of_them() {
        let (mut seen, mut ids) = (SeenIds::default(), Ids::default());
        let mut several = vec![];
        for id in ["1", "x", "2"] {
            seen.fresh(&rows(&[Some(id)]), &mut ids).unwrap();
            several.push(ids.take().unwrap());
        }
        let several = arrow_select::concat::concat_batches(&several[0].schema(), &several).unwrap();
        seen.forget(&several).unwrap();
        assert!(seen.is_empty());
        assert!(seen.learn(&several.slice(1, 2)).is_err() && seen.learn(&several.slice(0, 2)).is_err());
    }

    #[test]
    fn numbers_that_follow_each_other_spread_over_the_table() {
        let hash = |number: u64| {
            let mut hasher = NumberHasher::default();
            hasher.write_u64(number);
            hasher.finish()
        };
        for (low, step) in [(true, 1), (true, 8), (true, 1_000), (false, 1)] {
            let slots: HashSet<u64> = (0..4_096)
                .map(|i| hash(11_650_321_771_950_000 + step * i))
                .map(|h| if low { h & 0xfff } else { h >> 52 })
                .collect();
            // Numbers that leave the same rest by eight: at every eighth place, as eight of a kind have room there.
            let least = if low && step % 8 == 0 {
                2_000 / 8
            } else if low {
                1_800
            } else {
                2_000
            };
            assert!(slots.len() > least, "{} of 4096 slots for every {step}th number", slots.len());
        }
    }

    #[test]
    fn a_stream_loses_its_copies_and_nothing_else() {
        let seen = Arc::new(Mutex::new(SeenIds::default()));
        let batches = [rows(&[Some("1"), Some("2")]), rows(&[Some("2"), Some("1")]), rows(&[Some("3"), Some("1")])];
        let schema = batches[0].schema();
        let stream = RecordBatchIterator::new(batches.into_iter().map(Ok), schema);
        let ids = Arc::default();
        let left: Vec<_> = Fresh::new(seen, Arc::clone(&ids), stream).map(|batch| batch.unwrap()).collect();
        assert_eq!(lock(&ids).numbers, [1, 2, 3]);
        assert_eq!(left, [rows(&[Some("1"), Some("2")]), rows(&[Some("3")])]);
    }

    #[test]
    fn rows_without_a_column_of_ids_are_refused() {
        let other = RecordBatch::try_from_iter([("data", Arc::new(StringArray::from(vec!["1"])) as ArrayRef)]).unwrap();
        assert!(SeenIds::default().fresh(&other, &mut Ids::default()).is_err());
    }
}
