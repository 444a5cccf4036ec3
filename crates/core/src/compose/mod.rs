//! Rows of any columns into messages: the payload is one of the columns or a JSON object of several, and a stamp, if it
//! is wanted, names the row.

mod json;
#[cfg(test)]
mod tests;
mod times;

use std::fmt::Write;
use std::sync::Arc;

use arrow_array::builder::{ArrayBuilder, LargeStringBuilder};
use arrow_array::{Array, ArrayRef, LargeListArray, RecordBatch, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};

use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::publish::Columns;

/// Which columns of a row become what of its message.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// The payload; without one it is a JSON object of all columns that are not named here.
    pub data: Option<String>,
    /// The attributes.
    pub attributes: Option<String>,
    /// The ordering key.
    pub ordering_key: Option<String>,
}

/// An attribute by which a message that is published twice can be told: `prefix/row/checksum`.
///
/// The checksum is that of the message. Whoever drops a repeat then never drops another row that came to the same
/// number, as happens when an attempt reads its rows in another order than the one before.
#[derive(Clone, Debug)]
pub struct Stamp {
    /// The name of the attribute.
    pub attribute: String,
    /// What its value begins with.
    pub prefix: String,
}

/// Makes messages of rows; it counts the rows.
#[derive(Debug)]
pub struct Composer {
    parts: Parts,
    stamp: Option<Stamp>,
    rows: u64,
}

impl Composer {
    /// A composer of batches with `schema`.
    pub fn new(schema: SchemaRef, parts: Parts, stamp: Option<Stamp>) -> Result<Self> {
        let composer = Self { parts, stamp, rows: 0 };
        composer.message_columns(&RecordBatch::new_empty(schema))?;
        Ok(composer)
    }

    /// The messages of a batch: the columns that a publisher takes.
    pub fn compose(&mut self, batch: &RecordBatch) -> Result<RecordBatch> {
        let mut messages = self.message_columns(batch)?;
        if let Some(stamp) = &self.stamp {
            messages = stamp.put_on(&messages, self.rows)?;
        }
        self.rows += batch.num_rows() as u64;
        Ok(messages)
    }

    fn message_columns(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let column = |name: &String| {
            let found = batch.column_by_name(name).cloned();
            found.ok_or_else(|| Error::new(ErrorKind::Config, format!("the batch has no column {name:?}.")))
        };
        let data = match &self.parts.data {
            Some(name) => column(name)?,
            None => self.json(batch)?,
        };
        let mut columns = vec![("data", data)];
        if let Some(name) = &self.parts.attributes {
            columns.push(("attributes", column(name)?));
        }
        if let Some(name) = &self.parts.ordering_key {
            columns.push(("ordering_key", column(name)?));
        }
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
            .map_err(unfit)
    }

    fn json(&self, batch: &RecordBatch) -> Result<ArrayRef> {
        let taken = [self.parts.attributes.as_ref(), self.parts.ordering_key.as_ref()];
        let schema = batch.schema_ref();
        let fields = schema.fields().iter().zip(batch.columns());
        let payload = json::Object::new(fields.filter(|(field, _)| !taken.contains(&Some(field.name()))), "")?;
        Ok(Arc::new(payload.rows(batch.num_rows()).map_err(unfit)?))
    }
}

impl Stamp {
    /// The same messages with the stamp among their attributes; `first_row` is the number of the first of them.
    fn put_on(&self, messages: &RecordBatch, first_row: u64) -> Result<RecordBatch> {
        let columns = Columns::of(messages)?;
        let (mut names, mut values) = (LargeStringBuilder::new(), LargeStringBuilder::new());
        let mut ends = vec![0];
        for row in 0..messages.num_rows() {
            let number = first_row + row as u64;
            let mut checksum = Checksum::default();
            checksum.add(columns.data(row));
            checksum.add(columns.ordering_key(row));
            for (name, value) in columns.attributes(row).filter_map(|entry| columns.attribute(entry)) {
                if name == self.attribute.as_bytes() {
                    return Err(self.taken(number));
                }
                checksum.add(name);
                checksum.add(value);
                names.append_value(String::from_utf8_lossy(name));
                values.append_value(String::from_utf8_lossy(value));
            }
            names.append_value(&self.attribute);
            // Writing to a builder cannot fail.
            let _ = write!(values, "{}/{number}/{:08x}", self.prefix, checksum.value());
            values.append_value("");
            ends.push(names.len() as i64);
        }
        let fields = ["name", "value"].map(|name| Field::new(name, DataType::LargeUtf8, false));
        let (names, values): (ArrayRef, ArrayRef) = (Arc::new(names.finish()), Arc::new(values.finish()));
        let entries = StructArray::try_new(Fields::from(fields.to_vec()), vec![names, values], None).map_err(unfit)?;
        let entry = Arc::new(Field::new("entry", entries.data_type().clone(), false));
        let attributes = LargeListArray::try_new(entry, OffsetBuffer::new(ends.into()), Arc::new(entries), None);
        replaced(messages, "attributes", Arc::new(attributes.map_err(unfit)?))
    }

    fn taken(&self, row: u64) -> Error {
        let name = &self.attribute;
        let message = format!("row {row} of column 'attributes': there is an attribute {name:?} already.");
        Error::new(ErrorKind::Config, message)
            .with_remedy("Choose another name for dedupAttribute, or leave that attribute out of the column.")
    }
}

/// A checksum of several values; where one ends counts.
#[derive(Default)]
struct Checksum(crc32fast::Hasher);

impl Checksum {
    fn add(&mut self, value: &[u8]) {
        self.0.update(&value.len().to_le_bytes());
        self.0.update(value);
    }

    fn value(self) -> u32 {
        self.0.finalize()
    }
}

/// The batch with another column of that name, or one more.
fn replaced(batch: &RecordBatch, name: &str, column: ArrayRef) -> Result<RecordBatch> {
    let schema = batch.schema_ref();
    let mut fields: Vec<_> = schema.fields().iter().cloned().collect();
    let mut columns = batch.columns().to_vec();
    let place = schema.index_of(name).unwrap_or(columns.len());
    let field = Arc::new(Field::new(name, column.data_type().clone(), true));
    fields.splice(place..fields.len().min(place + 1), [field]);
    columns.splice(place..columns.len().min(place + 1), [column]);
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(unfit)
}

fn unfit(error: ArrowError) -> Error {
    Error::new(ErrorKind::Native, format!("the composed columns do not fit: {error}."))
}
