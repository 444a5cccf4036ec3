//! Which columns rows have, and those columns under construction.
//!
//! Text is checked to be UTF-8 once per column, when it is finished: all of it together, and that every value begins
//! where a character does. That costs a fraction of checking every value, and nothing for columns nobody asked for.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow_array::builder::{Int32Builder, TimestampMicrosecondBuilder};
use arrow_array::{Array, ArrayRef, BinaryArray, MapArray, RecordBatch, StringArray, StructArray};
use arrow_buffer::{Buffer, NullBuffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};

use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::decode::{Malformed, Parsed};

/// So many attributes are compared with each other sooner than put into a hash table.
const FEW_ATTRIBUTES: usize = 16;

/// A column of the raw schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    MessageId,
    PublishTime,
    Data,
    Attributes,
    OrderingKey,
    DeliveryAttempt,
}

impl Column {
    const ALL: [Self; 6] =
        [Self::MessageId, Self::PublishTime, Self::Data, Self::Attributes, Self::OrderingKey, Self::DeliveryAttempt];

    fn name(self) -> &'static str {
        match self {
            Self::MessageId => "message_id",
            Self::PublishTime => "publish_time",
            Self::Data => "data",
            Self::Attributes => "attributes",
            Self::OrderingKey => "ordering_key",
            Self::DeliveryAttempt => "delivery_attempt",
        }
    }

    fn field(self) -> Field {
        let data_type = match self {
            Self::MessageId | Self::OrderingKey => DataType::Utf8,
            Self::PublishTime => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Self::Data => DataType::Binary,
            Self::Attributes => DataType::Map(Arc::new(entries_field()), false),
            Self::DeliveryAttempt => DataType::Int32,
        };
        Field::new(self.name(), data_type, true)
    }
}

fn entry_fields() -> arrow_schema::Fields {
    arrow_schema::Fields::from(vec![
        Field::new("key", DataType::Utf8, false),
        Field::new("value", DataType::Utf8, true),
    ])
}

fn entries_field() -> Field {
    Field::new("entries", DataType::Struct(entry_fields()), false)
}

/// The columns of rows: some of the raw schema, then attributes by name as text columns of their own.
#[derive(Clone, Debug)]
pub struct Selection {
    pub(super) columns: Vec<Column>,
    pub(super) attributes: Vec<String>,
    schema: SchemaRef,
}

impl Default for Selection {
    fn default() -> Self {
        Self::of(Column::ALL.to_vec(), vec![])
    }
}

impl Selection {
    /// The columns of these names, or all of them, and these attributes.
    pub fn new(columns: Option<&[String]>, attributes: &[String]) -> Result<Self> {
        let known = || Column::ALL.map(Column::name).join(", ");
        let columns = match columns {
            None => Column::ALL.to_vec(),
            Some(names) => names
                .iter()
                .map(|name| {
                    Column::ALL.into_iter().find(|column| column.name() == name).ok_or_else(|| {
                        Error::new(ErrorKind::Config, format!("columns names '{name}', which is no column."))
                            .with_remedy(format!(
                                "The columns are {}; an attribute is one of attributeColumns.",
                                known()
                            ))
                    })
                })
                .collect::<Result<_>>()?,
        };
        let selection = Self::of(columns, attributes.to_vec());
        let names: Vec<&String> = selection.schema.fields().iter().map(|field| field.name()).collect();
        if names.is_empty() {
            return Err(Error::new(ErrorKind::Config, "no column is selected.")
                .with_remedy(format!("Name at least one of {}, or an attribute in attributeColumns.", known())));
        }
        if let Some(twice) = names.iter().enumerate().find(|(i, name)| names[..*i].contains(name)) {
            return Err(Error::new(ErrorKind::Config, format!("two columns would be called '{}'.", twice.1))
                .with_remedy(
                    "Name it once; for an attribute with the name of a column, leave that column out of columns, or \
                     take the attribute from the column attributes.",
                ));
        }
        Ok(selection)
    }

    fn of(columns: Vec<Column>, attributes: Vec<String>) -> Self {
        let named = attributes.iter().map(|name| Field::new(name, DataType::Utf8, true));
        let fields: Vec<Field> = columns.iter().map(|column| column.field()).chain(named).collect();
        Self { columns, attributes, schema: Arc::new(Schema::new(fields)) }
    }

    /// The schema of the rows.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }
}

/// The raw schema: what a Pub/Sub message is.
pub fn raw_schema() -> SchemaRef {
    Selection::default().schema
}

pub(super) fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::PubSub, format!("Pub/Sub sent a malformed response: {what}."))
}

/// Take what was collected and leave room for as much again; what is much larger than its content is cut to it.
fn take<T>(collected: &mut Vec<T>) -> Vec<T> {
    let room = Vec::with_capacity(collected.len());
    let mut taken = std::mem::replace(collected, room);
    if taken.len() < taken.capacity() / 2 {
        taken.shrink_to_fit();
    }
    taken
}

fn take_offsets(collected: &mut Vec<i32>) -> OffsetBuffer<i32> {
    let taken = take(collected);
    collected.push(0);
    OffsetBuffer::new(ScalarBuffer::from(taken))
}

/// Values of any length, one after the other.
pub(super) struct Values {
    bytes: Vec<u8>,
    offsets: Vec<i32>,
}

impl Default for Values {
    fn default() -> Self {
        Self { bytes: vec![], offsets: vec![0] }
    }
}

impl Values {
    pub fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.end_value();
    }

    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    fn get(&self, index: usize) -> &[u8] {
        &self.bytes[self.offsets[index] as usize..self.offsets[index + 1] as usize]
    }

    /// The value under construction becomes one.
    fn end_value(&mut self) {
        // Fits: a chunk is closed at some ten megabytes, and one message has no more than that.
        self.offsets.push(self.bytes.len() as i32);
    }

    /// Drop the value under construction.
    fn drop_begun(&mut self) {
        let end = self.offsets[self.len()] as usize;
        self.bytes.truncate(end);
    }

    fn truncate(&mut self, count: usize) {
        self.offsets.truncate(count + 1);
        self.drop_begun();
    }

    pub fn finish_text(&mut self, nulls: Option<NullBuffer>) -> Result<StringArray> {
        let (offsets, bytes) = (take_offsets(&mut self.offsets), Buffer::from_vec(take(&mut self.bytes)));
        StringArray::try_new(offsets, bytes, nulls).map_err(|e| malformed(&format!("a text that is none: {e}")))
    }

    fn finish_binary(&mut self) -> Result<BinaryArray> {
        let (offsets, bytes) = (take_offsets(&mut self.offsets), Buffer::from_vec(take(&mut self.bytes)));
        BinaryArray::try_new(offsets, bytes, None).map_err(|e| malformed(&e.to_string()))
    }
}

/// Text that may be missing.
struct OptionalTexts {
    values: Values,
    nulls: NullBufferBuilder,
}

impl Default for OptionalTexts {
    fn default() -> Self {
        Self { values: Values::default(), nulls: NullBufferBuilder::new(0) }
    }
}

impl OptionalTexts {
    fn end_value(&mut self, valid: bool) {
        self.values.end_value();
        self.nulls.append(valid);
    }

    fn finish(&mut self) -> Result<StringArray> {
        let nulls = self.nulls.finish();
        self.values.finish_text(nulls)
    }
}

/// The attributes as a map.
struct Maps {
    keys: Values,
    values: Values,
    offsets: Vec<i32>,
}

impl Maps {
    fn row_start(&self) -> usize {
        self.offsets.last().map_or(0, |offset| *offset as usize)
    }

    fn end_row(&mut self) {
        let start = self.row_start();
        if has_duplicate(&self.keys, start) {
            self.keep_last_of_each_key(start);
        }
        self.offsets.push(self.keys.len() as i32);
    }

    /// A map has one value a key, the last one.
    fn keep_last_of_each_key(&mut self, start: usize) {
        let mut entries: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        for index in start..self.keys.len() {
            entries.insert(self.keys.get(index).to_vec(), self.values.get(index).to_vec());
        }
        self.keys.truncate(start);
        self.values.truncate(start);
        for (key, value) in entries {
            self.keys.push(&key);
            self.values.push(&value);
        }
    }

    fn finish(&mut self) -> Result<MapArray> {
        let columns: Vec<ArrayRef> =
            vec![Arc::new(self.keys.finish_text(None)?), Arc::new(self.values.finish_text(None)?)];
        let offsets = take_offsets(&mut self.offsets);
        let entries = StructArray::try_new(entry_fields(), columns, None);
        entries
            .and_then(|entries| MapArray::try_new(Arc::new(entries_field()), offsets, entries, None, false))
            .map_err(|e| malformed(&e.to_string()))
    }
}

/// Whether two of the values from `start` on are equal.
fn has_duplicate(values: &Values, start: usize) -> bool {
    let count = values.len() - start;
    if count <= FEW_ATTRIBUTES {
        (start..values.len()).any(|one| (start..one).any(|other| values.get(one) == values.get(other)))
    } else {
        let mut seen = HashSet::with_capacity(count);
        (start..values.len()).any(|index| !seen.insert(values.get(index)))
    }
}

/// One attribute as a column.
struct Named {
    name: String,
    texts: OptionalTexts,
    found: bool,
}

/// The selected columns under construction. A row's attributes are put in as they are parsed, then the row is ended.
pub(super) struct Columns {
    selection: Selection,
    message_id: Option<Values>,
    publish_time: Option<TimestampMicrosecondBuilder>,
    data: Option<Values>,
    maps: Option<Maps>,
    ordering_key: Option<OptionalTexts>,
    delivery_attempt: Option<Int32Builder>,
    named: Vec<Named>,
}

/// The fields of a message that are one value each, borrowed from the response.
#[derive(Default)]
pub(super) struct Row<'a> {
    pub message_id: &'a [u8],
    pub publish_time: Option<(i64, i32)>,
    pub data: &'a [u8],
    pub ordering_key: &'a [u8],
    pub delivery_attempt: i32,
}

impl Columns {
    pub fn new(selection: Selection) -> Self {
        let has = |column| selection.columns.contains(&column);
        let named = |name: &String| Named { name: name.clone(), texts: OptionalTexts::default(), found: false };
        Self {
            message_id: has(Column::MessageId).then(Values::default),
            publish_time: has(Column::PublishTime).then(|| TimestampMicrosecondBuilder::new().with_timezone("UTC")),
            data: has(Column::Data).then(Values::default),
            maps: has(Column::Attributes).then(|| Maps {
                keys: Values::default(),
                values: Values::default(),
                offsets: vec![0],
            }),
            ordering_key: has(Column::OrderingKey).then(OptionalTexts::default),
            delivery_attempt: has(Column::DeliveryAttempt).then(Int32Builder::new),
            named: selection.attributes.iter().map(named).collect(),
            selection,
        }
    }

    pub fn wants_attributes(&self) -> bool {
        self.maps.is_some() || !self.named.is_empty()
    }

    pub fn wants_publish_time(&self) -> bool {
        self.publish_time.is_some()
    }

    /// Put an attribute into the row under construction.
    pub fn push_attribute(&mut self, key: &[u8], value: &[u8]) {
        if let Some(maps) = &mut self.maps {
            maps.keys.push(key);
            maps.values.push(value);
        }
        for named in self.named.iter_mut().filter(|named| named.name.as_bytes() == key) {
            named.texts.values.drop_begun();
            named.texts.values.bytes.extend_from_slice(value);
            named.found = true;
        }
    }

    /// End the row under construction.
    pub fn end_row(&mut self, row: &Row<'_>) -> Parsed<()> {
        if let Some(column) = &mut self.publish_time {
            column.append_option(row.publish_time.map(micros).transpose()?);
        }
        if let Some(column) = &mut self.message_id {
            column.push(row.message_id);
        }
        if let Some(column) = &mut self.data {
            column.push(row.data);
        }
        if let Some(column) = &mut self.maps {
            column.end_row();
        }
        if let Some(column) = &mut self.ordering_key {
            column.values.bytes.extend_from_slice(row.ordering_key);
            column.end_value(!row.ordering_key.is_empty());
        }
        if let Some(column) = &mut self.delivery_attempt {
            column.append_option((row.delivery_attempt > 0).then_some(row.delivery_attempt));
        }
        for named in &mut self.named {
            named.texts.end_value(named.found);
            named.found = false;
        }
        Ok(())
    }

    /// Drop what was put into the row under construction.
    pub fn drop_row(&mut self) {
        if let Some(maps) = &mut self.maps {
            let start = maps.row_start();
            maps.keys.truncate(start);
            maps.values.truncate(start);
        }
        for named in &mut self.named {
            named.texts.values.drop_begun();
            named.found = false;
        }
    }

    /// The rows that were ended; from here on, new ones.
    pub fn finish(&mut self) -> Result<RecordBatch> {
        let finished = self.finish_columns();
        if finished.is_err() {
            // No column may keep rows that another one has lost.
            *self = Self::new(self.selection.clone());
        }
        finished
    }

    fn finish_columns(&mut self) -> Result<RecordBatch> {
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.selection.schema.fields().len());
        for column in &self.selection.columns {
            columns.extend(
                match column {
                    Column::MessageId => self.message_id.as_mut().map(|c| c.finish_text(None).map(shared)),
                    Column::PublishTime => self.publish_time.as_mut().map(|c| Ok(shared(c.finish()))),
                    Column::Data => self.data.as_mut().map(|c| c.finish_binary().map(shared)),
                    Column::Attributes => self.maps.as_mut().map(|c| c.finish().map(shared)),
                    Column::OrderingKey => self.ordering_key.as_mut().map(|c| c.finish().map(shared)),
                    Column::DeliveryAttempt => self.delivery_attempt.as_mut().map(|c| Ok(shared(c.finish()))),
                }
                .transpose()?,
            );
        }
        for named in &mut self.named {
            columns.push(shared(named.texts.finish()?));
        }
        RecordBatch::try_new(self.selection.schema.clone(), columns)
            .map_err(|e| Error::new(ErrorKind::Native, format!("the columns of a chunk do not fit: {e}.")))
    }
}

fn shared(array: impl Array + 'static) -> ArrayRef {
    Arc::new(array)
}

fn micros((seconds, nanos): (i64, i32)) -> Parsed<i64> {
    seconds.checked_mul(1_000_000).and_then(|us| us.checked_add(i64::from(nanos) / 1_000)).ok_or(Malformed::PublishTime)
}
