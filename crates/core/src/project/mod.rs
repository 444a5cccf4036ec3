//! Payloads into typed columns: JSON with the values of Spark's `from_json`, Avro by the schema of its writer.
//!
//! - [`json`], [`lenient`], [`document`]: documents; [`avro`], [`avro_schema`]: datums. Both append to [`column`].
//! - [`times`], [`numbers`]: values in text.
//!
//! A payload that cannot be read is singled out: its row is null and counts as corrupt, the others of the batch are not
//! touched. What becomes of corrupt rows is the [`Mode`].

mod avro;
mod avro_schema;
#[cfg(test)]
mod avro_tests;
mod column;
mod document;
mod json;
#[cfg(test)]
mod json_tests;
mod lenient;
pub(crate) mod numbers;
#[cfg(test)]
mod tests;
mod times;

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, BooleanArray, GenericBinaryArray, OffsetSizeTrait, RecordBatch, RecordBatchOptions, StringArray,
};
use arrow_buffer::NullBufferBuilder;
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Schema};
use arrow_select::filter::filter_record_batch;

use crate::error::{Error, ErrorKind, Result};
use column::{Bytes, Fields, MAX_PAYLOAD_BYTES};

/// The column of a raw batch that holds the payloads.
const PAYLOAD: &str = "data";
/// The column of a raw batch that names the messages, if it is there.
const MESSAGE_ID: &str = "message_id";
/// The column of the schema that takes the payloads of corrupt rows.
const CORRUPT_RECORD: &str = "_corrupt_record";
/// A name that no payload field may have: it may become a metadata column.
const ACK_ID: &str = "ack_id";

/// How payloads are encoded.
#[derive(Clone, Copy, Debug)]
pub enum Format<'a> {
    /// One JSON object a payload.
    Json,
    /// One Avro datum a payload, with or without the header of the single-object encoding; the schema of the writer.
    Avro(&'a str),
}

/// What becomes of rows that are malformed or do not fit the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They stay: what could not be read is null, and the payload stands in `_corrupt_record`.
    Permissive,
    /// They are left out.
    DropMalformed,
    /// The first one is an error.
    FailFast,
}

/// A projected batch.
#[derive(Debug)]
pub struct Projected {
    /// The kept metadata columns and the columns of the schema.
    pub rows: RecordBatch,
    /// The rows of the raw batch that were corrupt, ascending.
    pub corrupt: Vec<usize>,
    /// Why each of them was, if the projection was asked to say.
    pub reasons: Vec<String>,
}

/// Reads payloads into the columns of a schema.
pub struct Projection {
    decoder: Decoder,
    mode: Mode,
    metadata: Vec<String>,
    columns: Fields,
    corrupt_record: Option<CorruptRecord>,
    says_reasons: bool,
}

enum Decoder {
    Json(Box<json::Decoder>),
    Avro(Box<avro::Decoder>),
}

/// The column of the payloads of corrupt rows.
struct CorruptRecord {
    place: usize,
    field: FieldRef,
    values: Bytes,
    nulls: NullBufferBuilder,
}

/// How well a value, or a whole row, fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Nothing to say.
    Whole,
    /// Appended, with nulls for what did not fit.
    Partial,
    /// Nothing could be appended.
    Failed,
    /// Nothing there to append: not corrupt.
    Blank,
}

impl Outcome {
    /// The worse of the two.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Failed, _) | (_, Self::Failed) => Self::Failed,
            (Self::Partial, _) | (_, Self::Partial) => Self::Partial,
            _ => Self::Whole,
        }
    }
}

/// The first reason why a row is corrupt, where somebody wants to know.
struct Fault {
    wanted: bool,
    reason: Option<String>,
}

impl Fault {
    fn say(&mut self, reason: impl FnOnce() -> String) {
        if self.wanted && self.reason.is_none() {
            self.reason = Some(reason());
        }
    }

    fn take(&mut self) -> String {
        self.reason.take().unwrap_or_else(|| "it does not fit the schema".to_owned())
    }
}

impl Projection {
    /// A projection to the columns of `schema`, next to the columns named `metadata` of the raw batches.
    pub fn new(format: Format<'_>, schema: &Schema, mode: Mode, metadata: Vec<String>) -> Result<Self> {
        let mut corrupt_record = None;
        let mut payload: Vec<FieldRef> = vec![];
        for (place, field) in schema.fields().iter().enumerate() {
            check_name(field, &metadata)?;
            if field.name() != CORRUPT_RECORD {
                payload.push(field.clone());
            } else if matches!(field.data_type(), DataType::Utf8 | DataType::Binary) {
                let field = Arc::new(field.as_ref().clone().with_nullable(true));
                let nulls = NullBufferBuilder::new(0);
                corrupt_record = Some(CorruptRecord { place, field, values: Bytes::default(), nulls });
            } else {
                return Err(Error::new(
                    ErrorKind::UnsupportedType,
                    format!("column {CORRUPT_RECORD:?}: {} cannot hold the payload of a row.", field.data_type()),
                )
                .with_remedy("Declare it as STRING or BINARY."));
            }
        }
        let columns = Fields::new(&payload, "")?;
        let decoder = match format {
            Format::Json => Decoder::Json(Box::new(json::Decoder::new())),
            Format::Avro(writer_schema) => Decoder::Avro(Box::new(avro::Decoder::new(writer_schema, &columns)?)),
        };
        Ok(Self { decoder, mode, metadata, columns, corrupt_record, says_reasons: false })
    }

    /// Say of every corrupt row why it is.
    pub fn with_reasons(self) -> Self {
        Self { says_reasons: true, ..self }
    }

    /// The columns of the schema as they come out: nullable at every level, because a payload may lack any field.
    pub fn payload_fields(&self) -> Vec<FieldRef> {
        let mut fields: Vec<FieldRef> = self.columns.columns.iter().map(|column| column.field.clone()).collect();
        if let Some(corrupt) = &self.corrupt_record {
            fields.insert(corrupt.place, corrupt.field.clone());
        }
        fields
    }

    /// Project a raw batch.
    pub fn project(&mut self, raw: &RecordBatch) -> Result<Projected> {
        let schema = raw.schema();
        let mut fields: Vec<FieldRef> = vec![];
        let mut arrays: Vec<ArrayRef> = vec![];
        for name in &self.metadata {
            let (place, field) = schema.column_with_name(name).ok_or_else(|| no_column(name, &schema))?;
            fields.push(Arc::new(field.clone()));
            arrays.push(raw.column(place).clone());
        }
        let payloads = raw.column_by_name(PAYLOAD).ok_or_else(|| no_column(PAYLOAD, &schema))?;
        let ids = raw.column_by_name(MESSAGE_ID).and_then(|column| column.as_string_opt::<i32>());
        let (corrupt, reasons) = match payloads.data_type() {
            DataType::Binary => self.append_all(payloads.as_binary::<i32>(), ids)?,
            DataType::LargeBinary => self.append_all(payloads.as_binary::<i64>(), ids)?,
            other => {
                return Err(Error::new(ErrorKind::Config, format!("the column {PAYLOAD:?} is {other}, not binary.")));
            }
        };
        fields.extend(self.payload_fields());
        arrays.extend(self.finish().map_err(unfit)?);
        let count = RecordBatchOptions::new().with_row_count(Some(raw.num_rows()));
        let rows = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &count).map_err(unfit)?;
        let rows = match self.mode {
            Mode::DropMalformed if !corrupt.is_empty() => without(&rows, &corrupt).map_err(unfit)?,
            _ => rows,
        };
        Ok(Projected { rows, corrupt, reasons })
    }

    /// Append all payloads; which of them were corrupt, and why if that is wanted. `ids` name them in an error.
    fn append_all<O: OffsetSizeTrait>(
        &mut self,
        payloads: &GenericBinaryArray<O>,
        ids: Option<&StringArray>,
    ) -> Result<(Vec<usize>, Vec<String>)> {
        let offsets = payloads.value_offsets();
        check_size(offsets[payloads.len()].as_usize() - offsets[0].as_usize())?;
        // What an error left behind in the middle of a batch.
        self.columns.rows = 0;
        self.columns.take_back();
        if let Some(corrupt) = &mut self.corrupt_record {
            corrupt.values.truncate(0);
            corrupt.nulls.truncate(0);
        }
        let (mut corrupt, mut reasons) = (vec![], vec![]);
        let mut fault = Fault { wanted: self.says_reasons || self.mode == Mode::FailFast, reason: None };
        for (row, payload) in payloads.iter().enumerate() {
            fault.reason = None;
            let outcome = match payload {
                None => Outcome::Blank,
                Some(payload) => match &mut self.decoder {
                    Decoder::Json(decoder) => decoder.append(payload, &mut self.columns, &mut fault),
                    Decoder::Avro(decoder) => decoder.append(payload, &mut self.columns, &mut fault),
                },
            };
            if matches!(outcome, Outcome::Failed | Outcome::Blank) {
                self.columns.end_row();
            }
            let is_corrupt = matches!(outcome, Outcome::Failed | Outcome::Partial);
            if is_corrupt {
                if self.mode == Mode::FailFast {
                    return Err(corrupt_row(row, ids.map(|ids| ids.value(row)), fault));
                }
                corrupt.push(row);
                if self.says_reasons {
                    reasons.push(fault.take());
                }
            }
            if let Some(column) = &mut self.corrupt_record {
                column.append(payload.filter(|_| is_corrupt && self.mode == Mode::Permissive));
            }
        }
        Ok((corrupt, reasons))
    }

    fn finish(&mut self) -> std::result::Result<Vec<ArrayRef>, ArrowError> {
        let mut arrays = self.columns.finish()?;
        if let Some(corrupt) = &mut self.corrupt_record {
            arrays.insert(corrupt.place, corrupt.finish()?);
        }
        Ok(arrays)
    }
}

impl CorruptRecord {
    fn append(&mut self, payload: Option<&[u8]>) {
        match payload {
            Some(payload) if self.field.data_type() == &DataType::Utf8 => {
                self.values.push(String::from_utf8_lossy(payload).as_bytes());
            }
            Some(payload) => self.values.push(payload),
            None => self.values.end(),
        }
        self.nulls.append(payload.is_some());
    }

    fn finish(&mut self) -> std::result::Result<ArrayRef, ArrowError> {
        let nulls = self.nulls.finish();
        Ok(match self.field.data_type() {
            DataType::Utf8 => Arc::new(self.values.finish_text(nulls)?),
            _ => Arc::new(self.values.finish_binary(nulls)?),
        })
    }
}

fn check_name(field: &Field, metadata: &[String]) -> Result<()> {
    let name = field.name();
    let remedy = if name.eq_ignore_ascii_case(ACK_ID) {
        "Rename the field in the payload; the name is reserved.".to_owned()
    } else if let Some(kept) = metadata.iter().find(|kept| kept.eq_ignore_ascii_case(name)) {
        format!("Leave {kept} out of the metadata columns (option columns), or rename the field in the payload.")
    } else {
        return Ok(());
    };
    let message = format!("the schema has a payload column {name:?}, which is also the name of message metadata.");
    Err(Error::new(ErrorKind::Config, message).with_remedy(remedy))
}

fn check_size(bytes: usize) -> Result<()> {
    if bytes <= MAX_PAYLOAD_BYTES {
        return Ok(());
    }
    let message = format!("a batch of {bytes} payload bytes is too large: at most {MAX_PAYLOAD_BYTES} at a time.");
    Err(Error::new(ErrorKind::Config, message).with_remedy("Slice it first."))
}

fn without(rows: &RecordBatch, corrupt: &[usize]) -> std::result::Result<RecordBatch, ArrowError> {
    let mut kept = vec![true; rows.num_rows()];
    for row in corrupt {
        kept[*row] = false;
    }
    filter_record_batch(rows, &BooleanArray::from(kept))
}

fn corrupt_row(row: usize, id: Option<&str>, mut fault: Fault) -> Error {
    let place = id.map_or_else(|| format!("row {row}"), |id| format!("message {id}"));
    Error::new(ErrorKind::CorruptRow, format!("{place}: {}.", fault.take()))
        .with_remedy("Mend the payload or the schema, or use the mode PERMISSIVE or DROPMALFORMED.")
}

fn no_column(name: &str, schema: &Schema) -> Error {
    let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    Error::new(ErrorKind::Config, format!("the batch has no column {name:?}; it has {}.", names.join(", ")))
}

fn unfit(error: ArrowError) -> Error {
    Error::new(ErrorKind::Native, format!("the projected columns do not fit: {error}."))
}
