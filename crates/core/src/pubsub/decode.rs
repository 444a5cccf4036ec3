//! StreamingPull responses, from bytes straight into Arrow columns.
//!
//! One pass per message collects borrowed slices of its fields; only a message that parsed whole is appended, so a
//! malformed one never leaves columns of different lengths.

use std::sync::Arc;

use arrow_array::builder::{
    ArrayBuilder, BinaryBuilder, Int32Builder, MapBuilder, MapFieldNames, StringBuilder, TimestampMicrosecondBuilder,
};
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};

use crate::error::{Error, ErrorKind, Result};

/// A chunk is closed at this many rows: what a Spark task likes to receive as one batch.
pub const CHUNK_ROWS: usize = 10_000;
/// A chunk is closed at this many bytes, far below the 2 GiB that 32-bit offsets can address.
pub const CHUNK_BYTES: usize = 32 << 20;

/// The raw schema: what a Pub/Sub message is.
pub fn raw_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("message_id", DataType::Utf8, true),
        Field::new("publish_time", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
        Field::new("data", DataType::Binary, true),
        Field::new_map(
            "attributes",
            "entries",
            Field::new("key", DataType::Utf8, false),
            Field::new("value", DataType::Utf8, true),
            false,
            true,
        ),
        Field::new("ordering_key", DataType::Utf8, true),
        Field::new("delivery_attempt", DataType::Int32, true),
    ]))
}

/// Rows and the deliveries they came in, of equal length.
#[derive(Debug)]
pub struct Decoded {
    /// Rows of [`raw_schema`].
    pub rows: RecordBatch,
    /// One per row.
    pub ack_ids: StringArray,
    /// What the rows weigh, for budgets.
    pub bytes: usize,
}

/// Columns under construction.
pub struct ChunkBuilder {
    schema: SchemaRef,
    message_id: StringBuilder,
    publish_time: TimestampMicrosecondBuilder,
    data: BinaryBuilder,
    attributes: MapBuilder<StringBuilder, StringBuilder>,
    ordering_key: StringBuilder,
    delivery_attempt: Int32Builder,
    ack_ids: StringBuilder,
    bytes: usize,
}

impl Default for ChunkBuilder {
    fn default() -> Self {
        let names = MapFieldNames { entry: "entries".into(), key: "key".into(), value: "value".into() };
        Self {
            schema: raw_schema(),
            message_id: StringBuilder::new(),
            publish_time: TimestampMicrosecondBuilder::new().with_timezone("UTC"),
            data: BinaryBuilder::new(),
            attributes: MapBuilder::new(Some(names), StringBuilder::new(), StringBuilder::new()),
            ordering_key: StringBuilder::new(),
            delivery_attempt: Int32Builder::new(),
            ack_ids: StringBuilder::new(),
            bytes: 0,
        }
    }
}

impl ChunkBuilder {
    /// How many rows are waiting.
    pub fn rows(&self) -> usize {
        self.ack_ids.len()
    }

    /// Whether the chunk has reached its size.
    pub fn is_full(&self) -> bool {
        self.rows() >= CHUNK_ROWS || self.bytes >= CHUNK_BYTES
    }

    /// Append one message.
    fn append(&mut self, message: &Message<'_>) -> Result<()> {
        let publish_time_us = message
            .publish_s
            .checked_mul(1_000_000)
            .and_then(|us| us.checked_add(i64::from(message.publish_nanos) / 1_000))
            .ok_or_else(|| malformed("a publish_time out of range"))?;
        self.message_id.append_value(message.message_id);
        self.publish_time.append_value(publish_time_us);
        self.data.append_value(message.data);
        for (key, value) in &message.attributes {
            self.attributes.keys().append_value(key);
            self.attributes.values().append_value(value);
        }
        self.attributes.append(true).map_err(|e| malformed(&e.to_string()))?;
        self.ordering_key.append_option((!message.ordering_key.is_empty()).then_some(message.ordering_key));
        self.delivery_attempt.append_option((message.delivery_attempt > 0).then_some(message.delivery_attempt));
        self.ack_ids.append_value(message.ack_id);
        self.bytes += message.bytes;
        Ok(())
    }

    /// Close the chunk and start the next one; None when there is nothing in it.
    pub fn finish(&mut self) -> Result<Option<Decoded>> {
        if self.rows() == 0 {
            return Ok(None);
        }
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.message_id.finish()),
            Arc::new(self.publish_time.finish()),
            Arc::new(self.data.finish()),
            Arc::new(self.attributes.finish()),
            Arc::new(self.ordering_key.finish()),
            Arc::new(self.delivery_attempt.finish()),
        ];
        let rows = RecordBatch::try_new(self.schema.clone(), columns)
            .map_err(|e| Error::new(ErrorKind::Native, format!("the columns of a chunk do not fit: {e}.")))?;
        let decoded = Decoded { rows, ack_ids: self.ack_ids.finish(), bytes: self.bytes };
        self.bytes = 0;
        Ok(Some(decoded))
    }
}

/// Append the messages of a response; `closed` receives each chunk that gets full on the way.
pub fn decode_response(response: &[u8], into: &mut ChunkBuilder, mut closed: impl FnMut(Decoded)) -> Result<usize> {
    let mut rows = 0;
    let mut message = Message::default();
    let mut fields = Reader { bytes: response };
    while let Some((number, value)) = fields.next_field()? {
        // 1 is received_messages; confirmations and properties of the stream are not used yet.
        if let (1, Value::Bytes(bytes)) = (number, value) {
            message.parse(bytes)?;
            into.append(&message)?;
            rows += 1;
            if into.is_full()
                && let Some(chunk) = into.finish()?
            {
                closed(chunk);
            }
        }
    }
    Ok(rows)
}

fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::PubSub, format!("Pub/Sub sent a malformed response: {what}."))
}

/// The fields of one delivery, borrowed from the response.
#[derive(Default)]
struct Message<'a> {
    ack_id: &'a str,
    message_id: &'a str,
    publish_s: i64,
    publish_nanos: i32,
    data: &'a [u8],
    attributes: Vec<(&'a str, &'a str)>,
    ordering_key: &'a str,
    delivery_attempt: i32,
    bytes: usize,
}

impl<'a> Message<'a> {
    /// Parse a ReceivedMessage, keeping only the capacity of what was here before.
    fn parse(&mut self, received: &'a [u8]) -> Result<()> {
        let mut attributes = std::mem::take(&mut self.attributes);
        attributes.clear();
        *self = Message { attributes, bytes: received.len(), ..Message::default() };
        let mut fields = Reader { bytes: received };
        while let Some((number, value)) = fields.next_field()? {
            match (number, value) {
                (1, Value::Bytes(bytes)) => self.ack_id = text(bytes)?,
                (2, Value::Bytes(bytes)) => self.parse_message(bytes)?,
                (3, Value::Number(number)) => self.delivery_attempt = number as i32,
                _ => {}
            }
        }
        Ok(())
    }

    fn parse_message(&mut self, message: &'a [u8]) -> Result<()> {
        let mut fields = Reader { bytes: message };
        while let Some((number, value)) = fields.next_field()? {
            match (number, value) {
                (1, Value::Bytes(bytes)) => self.data = bytes,
                (2, Value::Bytes(bytes)) => self.parse_attribute(bytes)?,
                (3, Value::Bytes(bytes)) => self.message_id = text(bytes)?,
                (4, Value::Bytes(bytes)) => self.parse_time(bytes)?,
                (5, Value::Bytes(bytes)) => self.ordering_key = text(bytes)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn parse_attribute(&mut self, entry: &'a [u8]) -> Result<()> {
        let (mut key, mut value) = ("", "");
        let mut fields = Reader { bytes: entry };
        while let Some((number, field)) = fields.next_field()? {
            match (number, field) {
                (1, Value::Bytes(bytes)) => key = text(bytes)?,
                (2, Value::Bytes(bytes)) => value = text(bytes)?,
                _ => {}
            }
        }
        // A map has one value a key, the last one; few attributes make a scan cheaper than a hash.
        match self.attributes.iter_mut().find(|(known, _)| *known == key) {
            Some(entry) => entry.1 = value,
            None => self.attributes.push((key, value)),
        }
        Ok(())
    }

    fn parse_time(&mut self, timestamp: &'a [u8]) -> Result<()> {
        let mut fields = Reader { bytes: timestamp };
        while let Some((number, value)) = fields.next_field()? {
            match (number, value) {
                (1, Value::Number(number)) => self.publish_s = number as i64,
                (2, Value::Number(number)) => self.publish_nanos = number as i32,
                _ => {}
            }
        }
        Ok(())
    }
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| malformed("a string that is not UTF-8"))
}

/// A field's value as far as these messages need it.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Fixed-width values: none of ours, skipped.
    Skipped,
}

/// Walks the fields of one message.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn next_field(&mut self) -> Result<Option<(u64, Value<'a>)>> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = tag >> 3;
        if number == 0 {
            return Err(malformed("a field number 0"));
        }
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.take(8).map(|_| Value::Skipped)?,
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(usize::try_from(length).map_err(|_| malformed("a length out of range"))?)?)
            }
            5 => self.take(4).map(|_| Value::Skipped)?,
            wire_type => return Err(malformed(&format!("a wire type {wire_type}"))),
        };
        Ok(Some((number, value)))
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for (index, byte) in self.bytes.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.bytes = &self.bytes[index + 1..];
                return Ok(value);
            }
        }
        Err(malformed("a number without an end"))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        if length > self.bytes.len() {
            return Err(malformed("a field longer than its message"));
        }
        let (taken, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pubsub::wire::{PubsubMessage, ReceivedMessage, StreamingPullResponse, Timestamp};
    use arrow_array::Array;
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Int32Type, TimestampMicrosecondType};
    use prost::Message as _;

    fn any_text() -> String {
        (0..fastrand::usize(0..12)).map(|_| fastrand::char(..)).collect()
    }

    fn any_message() -> ReceivedMessage {
        ReceivedMessage {
            ack_id: any_text(),
            delivery_attempt: fastrand::i32(0..5),
            message: Some(PubsubMessage {
                data: (0..fastrand::usize(0..300)).map(|_| fastrand::u8(..)).collect(),
                attributes: (0..fastrand::usize(0..4)).map(|_| (any_text(), any_text())).collect(),
                message_id: any_text(),
                publish_time: Some(Timestamp {
                    seconds: fastrand::i64(0..1 << 40),
                    nanos: fastrand::i32(0..1_000_000_000),
                }),
                ordering_key: any_text(),
            }),
        }
    }

    fn decode(bytes: &[u8]) -> Result<Vec<Decoded>> {
        let mut builder = ChunkBuilder::default();
        let mut chunks = vec![];
        decode_response(bytes, &mut builder, |chunk| chunks.push(chunk))?;
        chunks.extend(builder.finish()?);
        Ok(chunks)
    }

    #[test]
    fn any_message_equals_what_prost_decodes() {
        fastrand::seed(7);
        for _ in 0..300 {
            let sent = StreamingPullResponse {
                received_messages: (0..fastrand::usize(1..5)).map(|_| any_message()).collect(),
            };
            let chunks = decode(&sent.encode_to_vec()).unwrap();
            let rows = &chunks[0].rows;
            assert_eq!(rows.num_rows(), sent.received_messages.len());
            for (row, expected) in sent.received_messages.iter().enumerate() {
                let message = expected.message.as_ref().unwrap();
                let time = message.publish_time.unwrap();
                assert_eq!(chunks[0].ack_ids.value(row), expected.ack_id);
                assert_eq!(rows.column(0).as_string::<i32>().value(row), message.message_id);
                assert_eq!(
                    rows.column(1).as_primitive::<TimestampMicrosecondType>().value(row),
                    time.seconds * 1_000_000 + i64::from(time.nanos) / 1_000
                );
                assert_eq!(rows.column(2).as_binary::<i32>().value(row), message.data);
                let entries = rows.column(3).as_map().value(row);
                let (keys, values) = (entries.column(0).as_string::<i32>(), entries.column(1).as_string::<i32>());
                let attributes = (0..entries.len()).map(|i| (keys.value(i).into(), values.value(i).into())).collect();
                assert_eq!(message.attributes, attributes);
                let key = rows.column(4).as_string::<i32>();
                assert_eq!(key.is_null(row), message.ordering_key.is_empty());
                assert_eq!(key.value(row), message.ordering_key);
                let attempt = rows.column(5).as_primitive::<Int32Type>();
                assert_eq!(if attempt.is_valid(row) { attempt.value(row) } else { 0 }, expected.delivery_attempt);
            }
        }
    }

    #[test]
    fn arbitrary_and_mutilated_bytes_never_panic() {
        fastrand::seed(11);
        for _ in 0..20_000 {
            let noise: Vec<u8> = (0..fastrand::usize(0..64)).map(|_| fastrand::u8(..)).collect();
            let _ = decode(&noise);
        }
        let whole = StreamingPullResponse { received_messages: vec![any_message(), any_message()] }.encode_to_vec();
        for end in 0..whole.len() {
            let _ = decode(&whole[..end]);
        }
        for _ in 0..5_000 {
            let mut bent = whole.clone();
            let at = fastrand::usize(0..bent.len());
            bent[at] = fastrand::u8(..);
            let _ = decode(&bent);
        }
    }

    #[test]
    fn a_chunk_is_closed_at_its_size() {
        let one = StreamingPullResponse { received_messages: vec![any_message(); CHUNK_ROWS + 3] }.encode_to_vec();
        let chunks = decode(&one).unwrap();
        assert_eq!(chunks.iter().map(|c| c.rows.num_rows()).collect::<Vec<_>>(), [CHUNK_ROWS, 3]);
    }
}
