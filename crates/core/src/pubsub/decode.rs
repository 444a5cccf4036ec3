//! StreamingPull responses, from bytes straight into Arrow columns.
//!
//! One pass per message: attributes go into their columns as they come, the other fields are borrowed until the message
//! has parsed whole. A malformed message leaves nothing behind, so that columns never differ in length.

use arrow_array::{RecordBatch, StringArray};

use crate::error::{Error, Result};
use crate::pubsub::columns::{Columns, Row, Selection, Values, malformed};

/// A chunk is closed at this many rows: what a Spark task likes to receive as one batch.
pub const CHUNK_ROWS: usize = 10_000;
/// A chunk is closed at this many bytes, far below the 2 GiB that 32-bit offsets can address.
pub const CHUNK_BYTES: usize = 32 << 20;
/// What a row weighs besides its message: offsets, and the like in the ledger. It bounds what empty messages cost.
const ROW_BYTES: usize = 64;

/// Rows and the deliveries they came in, of equal length.
#[derive(Debug)]
pub struct Decoded {
    /// Rows of the selection's schema.
    pub rows: RecordBatch,
    /// One per row.
    pub ack_ids: StringArray,
    /// What the rows weigh, for budgets.
    pub bytes: usize,
    /// Whether one of them was published before the builder's moment.
    pub early: bool,
}

/// What a response said besides its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// How many rows it had.
    pub rows: usize,
    /// How many of them Pub/Sub counted as delivered before.
    pub redelivered: usize,
    /// Whether the subscription delivers exactly once, where the response says so.
    pub exactly_once: Option<bool>,
}

/// Rows under construction.
pub struct ChunkBuilder {
    columns: Columns,
    ack_ids: Values,
    bytes: usize,
    max_rows: usize,
    moment: Option<(i64, i32)>,
    early: bool,
}

impl Default for ChunkBuilder {
    fn default() -> Self {
        Self::new(Selection::default(), CHUNK_ROWS)
    }
}

impl ChunkBuilder {
    /// Rows of the selected columns, in chunks of at most `max_rows`.
    pub fn new(selection: Selection, max_rows: usize) -> Self {
        Self {
            columns: Columns::new(selection),
            ack_ids: Values::default(),
            bytes: 0,
            max_rows: max_rows.max(1),
            moment: None,
            early: false,
        }
    }

    /// The same, telling chunks with a row that was published before `moment` (seconds and nanoseconds since 1970).
    #[must_use]
    pub fn telling_early(mut self, moment: Option<(i64, i32)>) -> Self {
        self.moment = moment;
        self
    }

    /// How many rows are waiting.
    pub fn rows(&self) -> usize {
        self.ack_ids.len()
    }

    /// What they weigh.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn is_full(&self) -> bool {
        self.rows() >= self.max_rows || self.bytes >= CHUNK_BYTES
    }

    /// Close the chunk and start the next one; None when there is nothing in it.
    pub fn finish(&mut self) -> Result<Option<Decoded>> {
        if self.rows() == 0 {
            return Ok(None);
        }
        // Both are finished before an error of one ends this, so that the next chunk starts empty.
        let (rows, ack_ids) = (self.columns.finish(), self.ack_ids.finish_text(None));
        let (bytes, early) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.early));
        Ok(Some(Decoded { rows: rows?, ack_ids: ack_ids?, bytes, early }))
    }

    /// Append a `ReceivedMessage`; returns how often Pub/Sub says it was delivered, 0 where it does not count.
    fn append(&mut self, received: &[u8]) -> Parsed<i32> {
        let appended = self.parse(received);
        match appended {
            Ok(_) => self.bytes += received.len() + ROW_BYTES,
            Err(_) => self.columns.drop_row(),
        }
        appended
    }

    fn parse(&mut self, received: &[u8]) -> Parsed<i32> {
        let mut row = Row::default();
        let mut ack_id: &[u8] = &[];
        let mut fields = Reader { bytes: received };
        while !fields.bytes.is_empty() {
            match fields.varint()? {
                ACK_ID => ack_id = fields.bytes()?,
                MESSAGE => self.parse_message(fields.bytes()?, &mut row)?,
                DELIVERY_ATTEMPT => row.delivery_attempt = fields.varint()? as i32,
                other => fields.skip(other)?,
            }
        }
        self.columns.end_row(&row)?;
        self.early |= self.moment.is_some_and(|moment| row.publish_time.is_none_or(|time| time < moment));
        self.ack_ids.push(ack_id);
        Ok(row.delivery_attempt)
    }

    fn parse_message<'a>(&mut self, message: &'a [u8], row: &mut Row<'a>) -> Parsed<()> {
        let mut fields = Reader { bytes: message };
        while !fields.bytes.is_empty() {
            match fields.varint()? {
                DATA => row.data = fields.bytes()?,
                ATTRIBUTE if self.columns.wants_attributes() => self.parse_attribute(fields.bytes()?)?,
                MESSAGE_ID => row.message_id = fields.bytes()?,
                PUBLISH_TIME if self.moment.is_some() || self.columns.wants_publish_time() => {
                    let time = row.publish_time.get_or_insert_default();
                    parse_time(fields.bytes()?, time)?;
                }
                ORDERING_KEY => row.ordering_key = fields.bytes()?,
                other => fields.skip(other)?,
            }
        }
        Ok(())
    }

    fn parse_attribute(&mut self, entry: &[u8]) -> Parsed<()> {
        let (mut key, mut value): (&[u8], &[u8]) = (&[], &[]);
        let mut fields = Reader { bytes: entry };
        while !fields.bytes.is_empty() {
            match fields.varint()? {
                KEY => key = fields.bytes()?,
                VALUE => value = fields.bytes()?,
                other => fields.skip(other)?,
            }
        }
        self.columns.push_attribute(key, value);
        Ok(())
    }
}

fn parse_time(timestamp: &[u8], (seconds, nanos): &mut (i64, i32)) -> Parsed<()> {
    let mut fields = Reader { bytes: timestamp };
    while !fields.bytes.is_empty() {
        match fields.varint()? {
            SECONDS => *seconds = fields.varint()? as i64,
            NANOS => *nanos = fields.varint()? as i32,
            other => fields.skip(other)?,
        }
    }
    Ok(())
}

/// Append the messages of a response; `closed` receives each chunk that gets full on the way.
///
/// Confirmations are skipped: they answer acknowledgements sent over the stream, and ours are calls of their own.
pub fn decode_response(response: &[u8], into: &mut ChunkBuilder, mut closed: impl FnMut(Decoded)) -> Result<Response> {
    let mut told = Response::default();
    let mut fields = Reader { bytes: response };
    while !fields.bytes.is_empty() {
        match fields.varint()? {
            RECEIVED_MESSAGE => {
                let attempt = into.append(fields.bytes()?)?;
                told.rows += 1;
                told.redelivered += usize::from(attempt > 1);
                if into.is_full()
                    && let Some(chunk) = into.finish()?
                {
                    closed(chunk);
                }
            }
            PROPERTIES => told.exactly_once = Some(parse_properties(fields.bytes()?)?),
            other => fields.skip(other)?,
        }
    }
    Ok(told)
}

fn parse_properties(properties: &[u8]) -> Parsed<bool> {
    let mut exactly_once = false;
    let mut fields = Reader { bytes: properties };
    while !fields.bytes.is_empty() {
        match fields.varint()? {
            EXACTLY_ONCE => exactly_once = fields.varint()? != 0,
            other => fields.skip(other)?,
        }
    }
    Ok(exactly_once)
}

// A field's number and wire type, as one number: 0 for a varint, 2 for bytes.
const RECEIVED_MESSAGE: u64 = 1 << 3 | 2;
const PROPERTIES: u64 = 4 << 3 | 2;
const EXACTLY_ONCE: u64 = 1 << 3;
const ACK_ID: u64 = 1 << 3 | 2;
const MESSAGE: u64 = 2 << 3 | 2;
const DELIVERY_ATTEMPT: u64 = 3 << 3;
const DATA: u64 = 1 << 3 | 2;
const ATTRIBUTE: u64 = 2 << 3 | 2;
const MESSAGE_ID: u64 = 3 << 3 | 2;
const PUBLISH_TIME: u64 = 4 << 3 | 2;
const ORDERING_KEY: u64 = 5 << 3 | 2;
const KEY: u64 = 1 << 3 | 2;
const VALUE: u64 = 2 << 3 | 2;
const SECONDS: u64 = 1 << 3;
const NANOS: u64 = 2 << 3;

/// What is wrong with a response. Small, unlike an [`Error`]: it is part of what every step of the parsing returns.
#[derive(Clone, Copy, Debug)]
pub(super) enum Malformed {
    Number,
    Length,
    FieldNumber,
    WireType,
    PublishTime,
}

pub(super) type Parsed<T> = std::result::Result<T, Malformed>;

impl From<Malformed> for Error {
    fn from(what: Malformed) -> Self {
        malformed(match what {
            Malformed::Number => "a number without an end",
            Malformed::Length => "a field longer than its message",
            Malformed::FieldNumber => "a field number 0",
            Malformed::WireType => "a wire type that nobody uses",
            Malformed::PublishTime => "a publish_time out of range",
        })
    }
}

/// Walks the fields of one message.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    fn varint(&mut self) -> Parsed<u64> {
        match self.bytes.split_first() {
            Some((byte, rest)) if byte & 0x80 == 0 => {
                self.bytes = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Parsed<u64> {
        let mut value = 0;
        for (index, byte) in self.bytes.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.bytes = &self.bytes[index + 1..];
                return Ok(value);
            }
        }
        Err(Malformed::Number)
    }

    #[inline]
    fn bytes(&mut self) -> Parsed<&'a [u8]> {
        let length = self.varint()?;
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    #[inline]
    fn take(&mut self, length: usize) -> Parsed<&'a [u8]> {
        match self.bytes.split_at_checked(length) {
            Some((taken, rest)) => {
                self.bytes = rest;
                Ok(taken)
            }
            None => Err(Malformed::Length),
        }
    }

    /// Step over the value of a field that nobody wants.
    fn skip(&mut self, tag: u64) -> Parsed<()> {
        if tag >> 3 == 0 {
            return Err(Malformed::FieldNumber);
        }
        match tag & 7 {
            0 => self.varint().map(|_| ()),
            1 => self.take(8).map(|_| ()),
            2 => self.bytes().map(|_| ()),
            5 => self.take(4).map(|_| ()),
            _ => Err(Malformed::WireType),
        }
    }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
