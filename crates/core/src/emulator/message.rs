//! Messages as the emulator keeps them: encoded once at publish, shared by every subscription and delivery.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message as _;
use tonic::Status;

use super::clock::Time;
use super::protobuf::{Digits, Fields, put_delimited};
use crate::pubsub::wire::{MAX_PUBLISH_BYTES, MAX_PUBLISH_MESSAGES, Timestamp};

const MAX_ATTRIBUTES: usize = 100;
const MAX_ATTRIBUTE_KEY_BYTES: usize = 256;
const MAX_ATTRIBUTE_VALUE_BYTES: usize = 1_024;
const MAX_ORDERING_KEY_BYTES: usize = 1_024;

/// Room for the server's id and time behind each message.
const STAMP_BYTES: usize = 48;
/// The messages of a request share buffers of this size: few allocations, and a message that stays for long keeps no more
/// than this of its neighbours in memory.
const CHUNK_BYTES: usize = 64 * 1024;
/// A message that comes back gets a buffer of its own when it is smaller than this part of the shared one.
const WORTH_COPYING: usize = 4;

/// A published message. Clones share the bytes.
#[derive(Clone, Debug)]
pub struct Message {
    /// The server's id.
    pub id: u64,
    /// The encoded `PubsubMessage`, id and publish time included.
    pub bytes: Bytes,
    /// When it was published.
    pub published: Time,
    /// Where the ordering key lies in `bytes`; empty for none.
    key: (u32, u32),
    /// The size of the buffer that `bytes` is a part of.
    chunk_bytes: u32,
}

impl Message {
    /// A message from the bytes it was kept as.
    pub fn restored(bytes: Bytes) -> Option<Self> {
        let (mut id, mut published, mut key) = (None, None, (0, 0));
        for field in Fields::of(&bytes) {
            let field = field.ok()?;
            match field.number {
                3 => id = std::str::from_utf8(field.value).ok()?.parse().ok(),
                4 => published = Timestamp::decode(field.value).ok(),
                5 => key = ((field.end - field.value.len()) as u32, field.end as u32),
                _ => {}
            }
        }
        let chunk_bytes = bytes.len() as u32;
        Some(Self { id: id?, published: Time::from_timestamp(published?), key, chunk_bytes, bytes })
    }

    /// The ordering key, or nothing.
    pub fn ordering_key(&self) -> &[u8] {
        &self.bytes[self.key.0 as usize..self.key.1 as usize]
    }

    /// The size that counts against flow control.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The value of an attribute. Only filters ask: it reads the encoded message.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let entries = Fields::of(&self.bytes).flatten().filter(|field| field.number == 2);
        // As in a map, the last one of a name counts.
        entries
            .filter_map(|entry| read_attribute(entry.value).ok())
            .filter(|(key, _)| *key == name)
            .last()
            .map(|(_, v)| v)
    }

    /// Leave the shared buffer where that frees memory: the message is expected to stay.
    pub fn detach(&mut self) {
        if self.bytes.len() * WORTH_COPYING < self.chunk_bytes as usize {
            self.bytes = Bytes::copy_from_slice(&self.bytes);
            self.chunk_bytes = self.bytes.len() as u32;
        }
    }

    /// The same message published anew, with further attributes in the place of those of the same name.
    pub fn forwarded(&self, id: u64, now: Time, attributes: &[(&str, String)]) -> Self {
        let mut buffer = BytesMut::with_capacity(self.bytes.len() + attributes.len() * 128 + STAMP_BYTES);
        let mut key = (0, 0);
        for field in Fields::of(&self.bytes).flatten() {
            let is_kept = match field.number {
                1 | 5 => true,
                2 => !read_attribute(field.value).is_ok_and(|(name, _)| attributes.iter().any(|(new, _)| *new == name)),
                _ => false,
            };
            if is_kept {
                buffer.put_slice(&self.bytes[field.start..field.end]);
            }
            if field.number == 5 {
                key = ((buffer.len() - field.value.len()) as u32, buffer.len() as u32);
            }
        }
        for (name, value) in attributes {
            let mut entry = Vec::new();
            put_delimited(&mut entry, 1, name.as_bytes());
            put_delimited(&mut entry, 2, value.as_bytes());
            put_delimited(&mut buffer, 2, &entry);
        }
        put_stamp(&mut buffer, id, &now.to_timestamp().encode_to_vec());
        let chunk_bytes = buffer.len() as u32;
        Self { id, bytes: buffer.freeze(), published: now, key, chunk_bytes }
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
            return Err(too_large("message_count", messages.len(), MAX_PUBLISH_MESSAGES));
        }
        if body.len() > MAX_PUBLISH_BYTES {
            return Err(too_large("request_size", body.len(), MAX_PUBLISH_BYTES));
        }
        Ok(Self { topic, body, messages })
    }

    /// How many messages it has.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// The messages as they are kept, with ids from `first_id` on; they share a few buffers.
    pub fn stamp(&self, first_id: u64, now: Time) -> Result<Vec<Message>, Status> {
        let time = now.to_timestamp().encode_to_vec();
        let mut messages = Vec::with_capacity(self.messages.len());
        let mut rest_bytes = self.messages.iter().map(|range| range.len() + STAMP_BYTES).sum::<usize>();
        let mut buffer = BytesMut::new();
        let mut chunk: Vec<(u64, Range<usize>, (u32, u32))> = Vec::new();
        let mut common_key: Option<Bytes> = None;
        let mut close = |buffer: &mut BytesMut, chunk: &mut Vec<_>| {
            let bytes = std::mem::take(buffer).freeze();
            let chunk_bytes = bytes.len() as u32;
            messages.extend(chunk.drain(..).map(|(id, range, key)| Message {
                id,
                bytes: bytes.slice(range),
                published: now,
                key,
                chunk_bytes,
            }));
        };
        for (id, range) in (first_id..).zip(&self.messages) {
            let needed_bytes = range.len() + STAMP_BYTES;
            if buffer.len() + needed_bytes > buffer.capacity() {
                close(&mut buffer, &mut chunk);
                buffer = BytesMut::with_capacity(rest_bytes.min(CHUNK_BYTES).max(needed_bytes));
            }
            rest_bytes -= needed_bytes;
            let start = buffer.len();
            let key = copy_valid(&self.body[range.clone()], &mut buffer)?;
            let key_bytes = &buffer[start + key.0 as usize..start + key.1 as usize];
            if *common_key.get_or_insert_with(|| Bytes::copy_from_slice(key_bytes)) != key_bytes {
                return Err(Status::invalid_argument(
                    "In a single publish request, all messages must have no ordering key or they must all have the same \
                     ordering key.",
                ));
            }
            put_stamp(&mut buffer, id, &time);
            chunk.push((id, start..buffer.len(), key));
        }
        close(&mut buffer, &mut chunk);
        Ok(messages)
    }
}

fn put_stamp(buffer: &mut BytesMut, id: u64, time: &[u8]) {
    let mut digits = Digits::default();
    put_delimited(buffer, 3, digits.write(id));
    put_delimited(buffer, 4, time);
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

fn read_attribute(entry: &[u8]) -> Result<(&str, &str), Status> {
    let (mut key, mut value) = ("", "");
    for field in Fields::of(entry) {
        let field = field?;
        match field.number {
            1 => key = text(field.value, "attribute key")?,
            2 => value = text(field.value, "attribute value")?,
            _ => {}
        }
    }
    Ok((key, value))
}

fn check_attribute(entry: &[u8]) -> Result<(), Status> {
    let (key, value) = read_attribute(entry)?;
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

fn too_large(what: &str, given: usize, maximum: usize) -> Status {
    Status::invalid_argument(format!(
        "The value for {what} is too large. You passed {given} in the request, but the maximum value is {maximum}."
    ))
}

fn too_long(what: &str, value: &[u8], maximum: usize) -> Status {
    Status::invalid_argument(format!("The {what} has {} bytes; the maximum is {maximum}.", value.len()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pubsub::wire::{PublishRequest, PubsubMessage};
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
        second.ordering_key = "key".to_owned();
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
        assert_eq!((kept[0].ordering_key(), kept[1].ordering_key()), (&b"key"[..], &b"key"[..]));
        assert_eq!((kept[0].id, kept[1].id), (7, 8));
    }

    #[test]
    fn a_kept_message_is_restored_from_its_bytes() {
        let mut first = message(b"a");
        first.ordering_key = "key".to_owned();
        let kept = stamp(vec![first]).unwrap().remove(0);
        let restored = Message::restored(kept.bytes.clone()).unwrap();
        assert_eq!((restored.id, restored.published, restored.ordering_key()), (kept.id, kept.published, &b"key"[..]));
        assert!(Message::restored(Bytes::from_static(b"no message")).is_none());
    }

    #[test]
    fn the_messages_of_a_large_request_share_buffers_of_a_bounded_size() {
        let large = PubsubMessage { data: vec![7; 3 * CHUNK_BYTES].into(), ..Default::default() };
        let mut sent = vec![PubsubMessage { data: vec![1; 1_000].into(), ..Default::default() }; 300];
        sent.insert(100, large);
        let kept = stamp(sent.clone()).unwrap();
        assert_eq!(kept.len(), sent.len());
        for (index, (kept, sent)) in kept.iter().zip(&sent).enumerate() {
            assert_eq!(PubsubMessage::decode(kept.bytes.clone()).unwrap().data, sent.data);
            assert_eq!(kept.id, 7 + index as u64);
            assert!(kept.chunk_bytes as usize <= CHUNK_BYTES.max(kept.size_bytes()));
        }
        let chunks: std::collections::HashSet<_> = kept.iter().map(|message| message.chunk_bytes).collect();
        assert!(chunks.len() <= 8, "few buffers: {chunks:?}");
    }

    #[test]
    fn a_detached_message_has_a_buffer_of_its_own_when_that_frees_memory() {
        let mut kept = stamp(vec![message(b"a"); 3]).unwrap();
        let before = kept[0].bytes.as_ptr();
        kept[0].detach();
        assert_eq!(kept[0].bytes.as_ptr(), before, "three of a kind are no waste");
        let mut kept = stamp(vec![message(b"a"); 300]).unwrap();
        let (before, bytes) = (kept[5].bytes.as_ptr(), kept[5].bytes.clone());
        kept[5].detach();
        assert_ne!(kept[5].bytes.as_ptr(), before);
        assert_eq!(kept[5].bytes, bytes);
    }

    #[test]
    fn attributes_are_found_by_name() {
        let mut one = message(b"x");
        one.attributes = [("a", "1"), ("b", "")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let kept = stamp(vec![one]).unwrap().remove(0);
        assert_eq!([kept.attribute("a"), kept.attribute("b"), kept.attribute("c")], [Some("1"), Some(""), None]);
    }

    #[test]
    fn a_forwarded_message_keeps_all_but_id_and_time_and_gets_attributes() {
        let mut first = message(b"a");
        first.ordering_key = "key".to_owned();
        first.attributes = [("k", "v"), ("count", "1")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let kept = stamp(vec![first.clone()]).unwrap().remove(0);
        let now = Time::since_epoch(Duration::from_secs(9));
        let forwarded = kept.forwarded(70, now, &[("count", "2".to_owned()), ("source", "s".to_owned())]);
        assert_eq!((forwarded.id, forwarded.published, forwarded.ordering_key()), (70, now, &b"key"[..]));
        let expected = [("k", "v"), ("count", "2"), ("source", "s")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        first.attributes = expected.into();
        first.message_id = "70".to_owned();
        first.publish_time = Some(Timestamp { seconds: 9, nanos: 0 });
        assert_eq!(PubsubMessage::decode(forwarded.bytes).unwrap(), first);
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
        let keyed = PubsubMessage { ordering_key: "k".to_owned(), ..message(b"x") };
        assert_eq!(stamp(vec![message(b"x"), keyed.clone()]).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(stamp(vec![keyed, message(b"x")]).unwrap_err().code(), Code::InvalidArgument);
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
}
