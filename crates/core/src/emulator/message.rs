//! Messages as the emulator keeps them: encoded once at publish, shared by every subscription and delivery.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message as _;
use tonic::Status;

use super::clock::Time;
use crate::pubsub::wire::{MAX_PUBLISH_BYTES, MAX_PUBLISH_MESSAGES};

const MAX_ATTRIBUTES: usize = 100;
const MAX_ATTRIBUTE_KEY_BYTES: usize = 256;
const MAX_ATTRIBUTE_VALUE_BYTES: usize = 1_024;
const MAX_ORDERING_KEY_BYTES: usize = 1_024;

/// Room for the server's id and time behind each message.
const STAMP_BYTES: usize = 48;

/// A published message. Clones share the bytes.
#[derive(Clone, Debug)]
pub struct Message {
    /// The server's id.
    pub id: u64,
    /// The encoded `PubsubMessage`, id and publish time included.
    pub bytes: Bytes,
    /// Where the ordering key lies in `bytes`; empty for none.
    key: (u32, u32),
}

impl Message {
    /// The ordering key, or nothing.
    pub fn ordering_key(&self) -> &[u8] {
        &self.bytes[self.key.0 as usize..self.key.1 as usize]
    }

    /// The size that counts against flow control.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// A publish request, taken apart but not copied.
#[derive(Debug)]
pub struct Publish {
    /// The topic's name, as given.
    pub topic: String,
    body: Bytes,
    messages: Vec<Range<usize>>,
}

impl Publish {
    /// Take an encoded `PublishRequest` apart and hold it against the service's limits.
    pub fn decode(body: Bytes) -> Result<Self, Status> {
        let mut topic = String::new();
        let mut messages = Vec::new();
        for field in Fields::of(&body) {
            let field = field?;
            match field.number {
                1 => topic = text(field.value, "topic")?.to_owned(),
                2 if field.is_delimited => messages.push(field.end - field.value.len()..field.end),
                _ => {}
            }
        }
        if messages.is_empty() {
            return Err(Status::invalid_argument("The request has no messages; the minimum is 1."));
        }
        if messages.len() > MAX_PUBLISH_MESSAGES {
            let count = messages.len();
            return Err(Status::invalid_argument(format!(
                "The request has {count} messages; the maximum is {MAX_PUBLISH_MESSAGES}."
            )));
        }
        if body.len() > MAX_PUBLISH_BYTES {
            let size = body.len();
            return Err(Status::invalid_argument(format!(
                "The request has {size} bytes; the maximum is {MAX_PUBLISH_BYTES}."
            )));
        }
        Ok(Self { topic, body, messages })
    }

    /// How many messages it has.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// The messages as they are kept, with ids from `first_id` on: one buffer for all of them.
    pub fn stamp(&self, first_id: u64, time: Time) -> Result<Vec<Message>, Status> {
        let time = time.to_timestamp().encode_to_vec();
        let mut buffer = BytesMut::with_capacity(self.body.len() + self.messages.len() * STAMP_BYTES);
        let mut messages = Vec::with_capacity(self.messages.len());
        for (id, range) in (first_id..).zip(&self.messages) {
            let start = buffer.len();
            let key = copy_valid(&self.body[range.clone()], &mut buffer)?;
            let mut digits = Digits::default();
            let id_text = digits.write(id);
            put_delimited(&mut buffer, 3, id_text);
            put_delimited(&mut buffer, 4, &time);
            messages.push((id, start..buffer.len(), key));
        }
        let buffer = buffer.freeze();
        Ok(messages.into_iter().map(|(id, range, key)| Message { id, bytes: buffer.slice(range), key }).collect())
    }
}

/// Copy the fields a publisher may set, check them, and say where the ordering key lies in the copy.
fn copy_valid(message: &[u8], out: &mut BytesMut) -> Result<(u32, u32), Status> {
    let start = out.len();
    let mut key = (0, 0);
    let mut attributes = 0;
    let mut has_data = false;
    for field in Fields::of(message) {
        let field = field?;
        match field.number {
            1 if field.is_delimited => has_data = !field.value.is_empty(),
            2 if field.is_delimited => {
                attributes += 1;
                check_attribute(field.value)?;
            }
            5 if field.is_delimited => {
                if text(field.value, "ordering key")?.len() > MAX_ORDERING_KEY_BYTES {
                    return Err(too_long("ordering key", field.value, MAX_ORDERING_KEY_BYTES));
                }
                let end = out.len() - start + (field.end - field.start);
                key = ((end - field.value.len()) as u32, end as u32);
            }
            // The id and the time are the server's; what is unknown is dropped.
            _ => continue,
        }
        out.put_slice(&message[field.start..field.end]);
    }
    if !has_data && attributes == 0 {
        return Err(Status::invalid_argument("A message must have data or at least one attribute."));
    }
    if attributes > MAX_ATTRIBUTES {
        return Err(Status::invalid_argument(format!(
            "A message has {attributes} attributes; the maximum is {MAX_ATTRIBUTES}."
        )));
    }
    Ok(key)
}

fn check_attribute(entry: &[u8]) -> Result<(), Status> {
    let (mut key, mut value) = ("", "");
    for field in Fields::of(entry) {
        let field = field?;
        match field.number {
            1 => key = text(field.value, "attribute key")?,
            2 => value = text(field.value, "attribute value")?,
            _ => {}
        }
    }
    if key.is_empty() || key.starts_with("goog") {
        return Err(Status::invalid_argument(format!(
            "The attribute key {key:?} is invalid: it must not be empty and must not begin with \"goog\"."
        )));
    }
    if key.len() > MAX_ATTRIBUTE_KEY_BYTES {
        return Err(too_long("attribute key", key.as_bytes(), MAX_ATTRIBUTE_KEY_BYTES));
    }
    if value.len() > MAX_ATTRIBUTE_VALUE_BYTES {
        return Err(too_long("attribute value", value.as_bytes(), MAX_ATTRIBUTE_VALUE_BYTES));
    }
    Ok(())
}

fn text<'a>(value: &'a [u8], what: &str) -> Result<&'a str, Status> {
    std::str::from_utf8(value).map_err(|_| Status::invalid_argument(format!("The {what} is not valid UTF-8.")))
}

fn too_long(what: &str, value: &[u8], maximum: usize) -> Status {
    Status::invalid_argument(format!("The {what} has {} bytes; the maximum is {maximum}.", value.len()))
}

/// A field of an encoded protobuf message.
struct Field<'a> {
    number: u32,
    /// Where the field lies in the message, its key included.
    start: usize,
    end: usize,
    /// The bytes of a length-delimited field, else empty.
    value: &'a [u8],
    is_delimited: bool,
}

/// The fields of an encoded protobuf message, in their order on the wire.
struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn advance(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let value = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(value)
    }

    fn field(&mut self) -> Option<Field<'a>> {
        let start = self.at;
        let key = self.varint()?;
        let mut field = Field { number: u32::try_from(key >> 3).ok()?, start, end: 0, value: &[], is_delimited: false };
        match key & 7 {
            0 => drop(self.varint()?),
            1 => drop(self.advance(8)?),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                field.value = self.advance(length)?;
                field.is_delimited = true;
            }
            5 => drop(self.advance(4)?),
            _ => return None,
        }
        field.end = self.at;
        Some(field)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at == self.bytes.len() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.at = self.bytes.len();
        }
        Some(field.ok_or_else(|| Status::invalid_argument("The request is not a valid protobuf message.")))
    }
}

/// Append a length-delimited field.
pub fn put_delimited(out: &mut impl BufMut, number: u8, value: &[u8]) {
    out.put_u8(number << 3 | 2);
    put_varint(out, value.len() as u64);
    out.put_slice(value);
}

/// Append a varint.
pub fn put_varint(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// How many bytes `put_delimited` writes for a value of this length.
pub fn delimited_len(length: usize) -> usize {
    let bits = usize::BITS - (length | 1).leading_zeros();
    1 + (bits as usize).div_ceil(7) + length
}

/// A number as decimal text, without an allocation.
#[derive(Default)]
pub struct Digits([u8; 20]);

impl Digits {
    /// The text of `value`.
    pub fn write(&mut self, mut value: u64) -> &[u8] {
        let mut at = self.0.len();
        loop {
            at -= 1;
            self.0[at] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                return &self.0[at..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pubsub::wire::{PublishRequest, PubsubMessage, Timestamp};
    use tonic::Code;

    fn stamp(messages: Vec<PubsubMessage>) -> Result<Vec<Message>, Status> {
        let request = PublishRequest { topic: "projects/p/topics/t".to_owned(), messages };
        Publish::decode(request.encode_to_vec().into())?.stamp(7, Time::since_epoch(Duration::from_secs(1)))
    }

    fn message(data: &'static [u8]) -> PubsubMessage {
        PubsubMessage { data: Bytes::from_static(data), ..Default::default() }
    }

    #[test]
    fn what_is_kept_decodes_to_what_was_published_with_the_servers_id_and_time() {
        let mut first = message(b"a");
        first.attributes.insert("k".to_owned(), "v".to_owned());
        first.ordering_key = "key".to_owned();
        let mut second = message(b"b");
        second.message_id = "forged".to_owned();
        second.publish_time = Some(Timestamp { seconds: 9, nanos: 9 });

        let kept = stamp(vec![first.clone(), second.clone()]).unwrap();

        // Zero nanoseconds are not on the wire: forged ones would shine through.
        let time = Some(Timestamp { seconds: 1, nanos: 0 });
        first.message_id = "7".to_owned();
        first.publish_time = time;
        second.message_id = "8".to_owned();
        second.publish_time = time;
        assert_eq!(PubsubMessage::decode(kept[0].bytes.clone()).unwrap(), first);
        assert_eq!(PubsubMessage::decode(kept[1].bytes.clone()).unwrap(), second);
        assert_eq!((kept[0].ordering_key(), kept[1].ordering_key()), (&b"key"[..], &b""[..]));
        assert_eq!((kept[0].id, kept[1].id), (7, 8));
    }

    #[test]
    fn messages_beyond_the_limits_are_invalid() {
        let with = |key: &str, value: &str| {
            let mut message = message(b"x");
            message.attributes.insert(key.to_owned(), value.to_owned());
            message
        };
        let mut crowded = message(b"x");
        crowded.attributes = (0..=MAX_ATTRIBUTES).map(|n| (n.to_string(), String::new())).collect();
        let mut long_key = message(b"x");
        long_key.ordering_key = "k".repeat(MAX_ORDERING_KEY_BYTES + 1);
        for bad in [
            message(b""),
            with("", "v"),
            with("googclient_x", "v"),
            with(&"k".repeat(MAX_ATTRIBUTE_KEY_BYTES + 1), "v"),
            with("k", &"v".repeat(MAX_ATTRIBUTE_VALUE_BYTES + 1)),
            crowded,
            long_key,
        ] {
            assert_eq!(stamp(vec![bad]).unwrap_err().code(), Code::InvalidArgument);
        }
        assert!(stamp(vec![with(&"k".repeat(MAX_ATTRIBUTE_KEY_BYTES), "")]).is_ok());
    }

    #[test]
    fn requests_beyond_the_limits_are_invalid() {
        assert_eq!(stamp(vec![]).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(stamp(vec![message(b"x"); MAX_PUBLISH_MESSAGES + 1]).unwrap_err().code(), Code::InvalidArgument);
        assert!(stamp(vec![message(b"x"); MAX_PUBLISH_MESSAGES]).is_ok());
        let big = PubsubMessage { data: vec![0; MAX_PUBLISH_BYTES].into(), ..Default::default() };
        assert_eq!(stamp(vec![big]).unwrap_err().code(), Code::InvalidArgument);
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_read_but_never_panic() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..random.usize(0..40)).map(|_| random.u8(..)).collect();
            if let Ok(publish) = Publish::decode(bytes.into()) {
                let _ = publish.stamp(1, Time::since_epoch(Duration::ZERO));
            }
        }
    }

    #[test]
    fn lengths_and_digits_are_as_written() {
        for length in [0, 1, 127, 128, 16_383, 16_384, 70_000] {
            let mut out = Vec::new();
            put_delimited(&mut out, 2, &vec![0; length]);
            assert_eq!(out.len(), delimited_len(length));
        }
        for value in [0, 7, 10, 1_234, u64::MAX] {
            assert_eq!(Digits::default().write(value), value.to_string().as_bytes());
        }
    }
}
