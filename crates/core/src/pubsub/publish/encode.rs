//! Rows as the bytes of a `PublishRequest`, straight from the Arrow buffers, and the ids of its response.

use std::fmt::Display;
use std::sync::Arc;

use bytes::BufMut;
use prost::encoding::{DecodeContext, decode_key, decode_varint, encode_varint, encoded_len_varint, skip_field};

use super::columns::Columns;
use super::rows::Failure;
use crate::pubsub::wire::MAX_PUBLISH_BYTES;

const MAX_ATTRIBUTES: usize = 100;
const MAX_ATTRIBUTE_NAME_BYTES: usize = 256;
const MAX_ATTRIBUTE_VALUE_BYTES: usize = 1_024;
const MAX_ORDERING_KEY_BYTES: usize = 1_024;
const RESERVED_PREFIX: &[u8] = b"goog";
/// Bad rows of a batch that are named one by one; a batch with more of them has one cause.
const MAX_NAMED: usize = 100;

// Field numbers and wire type 2 (a length, then bytes), as they stand in front of a field.
const REQUEST_TOPIC: u8 = 0x0a;
const REQUEST_MESSAGE: u8 = 0x12;
const MESSAGE_DATA: u8 = 0x0a;
const MESSAGE_ATTRIBUTE: u8 = 0x12;
const MESSAGE_ORDERING_KEY: u8 = 0x2a;
const ATTRIBUTE_NAME: u8 = 0x0a;
const ATTRIBUTE_VALUE: u8 = 0x12;
const RESPONSE_ID: u8 = 0x0a;

/// Begin a request to a topic.
pub fn put_topic(request: &mut Vec<u8>, topic: &str) {
    request.push(REQUEST_TOPIC);
    encode_varint(topic.len() as u64, request);
    request.extend_from_slice(topic.as_bytes());
}

/// The bytes that a message of `bytes`, or any field, takes: tag, length, and itself.
#[inline(always)]
pub fn framed_len(bytes: usize) -> usize {
    let length = if bytes < 0x80 { 1 } else { encoded_len_varint(bytes as u64) };
    1 + length + bytes
}

/// The encoded size of every row's message, if the service would take all of them; else what is wrong with which row,
/// and that the others are not sent either. `head_bytes` is what a request has before its messages.
pub fn measure(
    columns: &Columns<'_>,
    rows: usize,
    first_row: u64,
    head_bytes: usize,
) -> Result<Vec<usize>, Vec<Failure>> {
    let mut sizes = Vec::with_capacity(rows);
    let mut refused = Vec::new();
    for row in 0..rows {
        match measure_row(columns, row, head_bytes) {
            Ok(bytes) => sizes.push(bytes),
            Err((column, reason)) => {
                let row = first_row + row as u64;
                refused.push(Failure { rows: row..row + 1, column: Some(column), reason: reason.into(), code: None });
                if refused.len() == MAX_NAMED {
                    break;
                }
            }
        }
    }
    if refused.is_empty() { Ok(sizes) } else { Err(with_rest(refused, first_row..first_row + rows as u64)) }
}

/// The refused rows, and the rows between them.
fn with_rest(refused: Vec<Failure>, rows: std::ops::Range<u64>) -> Vec<Failure> {
    let reason: Arc<str> = format!("not sent, because row {} of its batch is refused", refused[0].rows.start).into();
    let rest = |from: u64, to: u64| Failure { rows: from..to, column: None, reason: reason.clone(), code: None };
    let mut all = Vec::with_capacity(2 * refused.len() + 1);
    let mut next = rows.start;
    for failure in refused {
        if failure.rows.start > next {
            all.push(rest(next, failure.rows.start));
        }
        next = failure.rows.end;
        all.push(failure);
    }
    if next < rows.end {
        all.push(rest(next, rows.end));
    }
    all
}

type Refusal = (&'static str, String);

#[inline]
fn measure_row(columns: &Columns<'_>, row: usize, head_bytes: usize) -> Result<usize, Refusal> {
    let (data, key) = (columns.data(row), columns.ordering_key(row));
    let mut bytes = field_len(data) + field_len(key);
    let mut attributes = 0;
    for entry in columns.attributes(row) {
        if let Some((name, value)) = columns.attribute(entry) {
            check_attribute(name, value)?;
            attributes += 1;
            bytes += framed_len(attribute_len(name, value));
        }
    }
    if attributes > MAX_ATTRIBUTES {
        return Err(("attributes", format!("{attributes} attributes; Pub/Sub takes at most {MAX_ATTRIBUTES}")));
    }
    if key.len() > MAX_ORDERING_KEY_BYTES {
        return Err(("ordering_key", too_long("a key", key.len(), MAX_ORDERING_KEY_BYTES)));
    }
    if data.is_empty() && attributes == 0 {
        return Err(("data", "neither data nor attributes; Pub/Sub takes no empty message".to_owned()));
    }
    if head_bytes + framed_len(bytes) > MAX_PUBLISH_BYTES {
        return Err(("data", too_long("a message", bytes, MAX_PUBLISH_BYTES)));
    }
    Ok(bytes)
}

#[inline(always)]
fn check_attribute(name: &[u8], value: &[u8]) -> Result<(), Refusal> {
    let fine = !name.is_empty()
        && name.len() <= MAX_ATTRIBUTE_NAME_BYTES
        && value.len() <= MAX_ATTRIBUTE_VALUE_BYTES
        && !name.starts_with(RESERVED_PREFIX);
    if fine { Ok(()) } else { Err(("attributes", attribute_problem(name, value))) }
}

#[cold]
fn attribute_problem(name: &[u8], value: &[u8]) -> String {
    let called = format!("attribute '{}'", String::from_utf8_lossy(&name[..name.len().min(40)]));
    if name.is_empty() {
        "an attribute without a name".to_owned()
    } else if name.len() > MAX_ATTRIBUTE_NAME_BYTES {
        too_long(format_args!("the name of {called}"), name.len(), MAX_ATTRIBUTE_NAME_BYTES)
    } else if value.len() > MAX_ATTRIBUTE_VALUE_BYTES {
        too_long(format_args!("the value of {called}"), value.len(), MAX_ATTRIBUTE_VALUE_BYTES)
    } else {
        format!("{called} begins with 'goog', which Pub/Sub keeps to itself")
    }
}

fn too_long(what: impl Display, bytes: usize, limit: usize) -> String {
    format!("{what} of {bytes} bytes; Pub/Sub takes at most {limit}")
}

/// Write the message of a row, whose size is `bytes`, into its place in a request: [`framed_len`] bytes of it.
#[inline]
pub fn put_message(columns: &Columns<'_>, row: usize, bytes: usize, place: &mut [u8]) {
    let mut out = Writer { place, at: 0 };
    out.head(REQUEST_MESSAGE, bytes);
    let data = columns.data(row);
    if !data.is_empty() {
        out.head(MESSAGE_DATA, data.len());
        out.long(data);
    }
    for entry in columns.attributes(row) {
        if let Some((name, value)) = columns.attribute(entry) {
            out.head(MESSAGE_ATTRIBUTE, attribute_len(name, value));
            out.field(ATTRIBUTE_NAME, name);
            out.field(ATTRIBUTE_VALUE, value);
        }
    }
    let key = columns.ordering_key(row);
    if !key.is_empty() {
        out.field(MESSAGE_ORDERING_KEY, key);
    }
}

#[inline]
fn attribute_len(name: &[u8], value: &[u8]) -> usize {
    framed_len(name.len()) + framed_len(value.len())
}

/// The bytes of a field that is left out when it is empty.
#[inline]
fn field_len(value: &[u8]) -> usize {
    if value.is_empty() { 0 } else { framed_len(value.len()) }
}

/// Writes one thing after the other. A vector would check for room, and keep its length in memory, at every byte.
struct Writer<'a> {
    place: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    #[inline(always)]
    fn head(&mut self, tag: u8, bytes: usize) {
        // Most lengths are a byte, nearly all of them two.
        if bytes < 0x80 {
            self.fixed([tag, bytes as u8]);
        } else if bytes < 0x4000 {
            self.fixed([tag, bytes as u8 | 0x80, (bytes >> 7) as u8]);
        } else {
            let mut rest = &mut self.place[self.at..];
            let before = rest.len();
            rest.put_u8(tag);
            encode_varint(bytes as u64, &mut rest);
            self.at += before - rest.len();
        }
    }

    #[inline(always)]
    fn field(&mut self, tag: u8, value: &[u8]) {
        self.head(tag, value.len());
        self.short(value);
    }

    #[inline(always)]
    fn long(&mut self, bytes: &[u8]) {
        self.place[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    /// Names and values mostly have a few bytes, for which calling a copying function takes longer than copying.
    #[inline(always)]
    fn short(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        match bytes.len() {
            8..=16 => self.ends::<8>(bytes),
            4..8 => self.ends::<4>(bytes),
            2..4 => self.ends::<2>(bytes),
            _ => self.place[self.at..end].copy_from_slice(bytes),
        }
        self.at = end;
    }

    /// The first and the last bytes, which together are all.
    #[inline(always)]
    fn ends<const N: usize>(&mut self, bytes: &[u8]) {
        let place = &mut self.place[self.at..self.at + bytes.len()];
        if let (Some(to), Some(from)) = (place.first_chunk_mut::<N>(), bytes.first_chunk::<N>()) {
            *to = *from;
        }
        if let (Some(to), Some(from)) = (place.last_chunk_mut::<N>(), bytes.last_chunk::<N>()) {
            *to = *from;
        }
    }

    #[inline(always)]
    fn fixed<const N: usize>(&mut self, bytes: [u8; N]) {
        if let Some(to) = self.place[self.at..].first_chunk_mut::<N>() {
            *to = bytes;
        }
        self.at += N;
    }
}

/// Hand every id of a `PublishResponse` to `take`; the number of ids, or None if the response cannot be read.
pub fn read_ids<'a>(mut response: &'a [u8], mut take: impl FnMut(&'a [u8])) -> Option<usize> {
    let mut count = 0;
    while let Some(&tag) = response.first() {
        if tag == RESPONSE_ID {
            response = &response[1..];
            let bytes = usize::try_from(decode_varint(&mut response).ok()?).ok()?;
            let (id, rest) = response.split_at_checked(bytes)?;
            take(id);
            count += 1;
            response = rest;
        } else {
            let (number, wire_type) = decode_key(&mut response).ok()?;
            skip_field(wire_type, number, &mut response, DecodeContext::default()).ok()?;
        }
    }
    Some(count)
}
