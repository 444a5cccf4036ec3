//! Requests being filled: one for the rows without an ordering key, and one for each key.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::columns::Columns;
use super::encode::{framed_len, put_message, put_topic};
use super::rows::Rows;
use crate::pubsub::framed::{FRAME_HEAD_BYTES, write_frame_head};

/// What a request that is being filled costs beyond its bytes, roughly: many keys must not be many for free.
const OVERHEAD_BYTES: usize = 256;

/// An ordering key; rows of one key are sent in their order.
pub type Key = Arc<[u8]>;

/// A request ready to be sent.
#[derive(Debug)]
pub struct Request {
    /// The encoded `PublishRequest`, framed for the wire.
    pub body: Bytes,
    /// Its messages.
    pub messages: usize,
    /// The rows that its messages are.
    pub rows: Rows,
    /// The key of all its messages, if they have one: the service takes no request with two.
    pub key: Option<Key>,
}

/// Rows on their way into requests.
pub struct Filler {
    head: Vec<u8>,
    max_messages: usize,
    max_bytes: usize,
    unordered: Filling,
    keyed: HashMap<Key, Filling>,
    keyed_bytes: usize,
}

#[derive(Default)]
struct Filling {
    /// Written up to `bytes`; what follows is left from a request before.
    body: Vec<u8>,
    bytes: usize,
    messages: usize,
    rows: Rows,
}

impl Filler {
    /// Requests to `topic` within the limits; a single message may exceed `max_bytes`.
    pub fn new(topic: &str, max_messages: usize, max_bytes: usize) -> Self {
        let mut head = vec![0; FRAME_HEAD_BYTES];
        put_topic(&mut head, topic);
        Self { head, max_messages, max_bytes, unordered: Filling::default(), keyed: HashMap::new(), keyed_bytes: 0 }
    }

    /// What a request has before its messages.
    pub fn head_bytes(&self) -> usize {
        self.head.len() - FRAME_HEAD_BYTES
    }

    /// Whether a message of `bytes` can be added under `key`; else the request of that key has to leave first.
    #[inline]
    pub fn has_room(&self, key: &[u8], bytes: usize) -> bool {
        self.filling(key).is_none_or(|filling| {
            filling.messages == 0
                || (filling.messages < self.max_messages
                    && filling.bytes + framed_len(bytes) <= self.max_bytes + FRAME_HEAD_BYTES)
        })
    }

    /// The size of the request of `key`.
    pub fn request_bytes(&self, key: &[u8]) -> usize {
        self.filling(key).map_or(0, |filling| filling.bytes)
    }

    #[inline]
    fn filling(&self, key: &[u8]) -> Option<&Filling> {
        if key.is_empty() { Some(&self.unordered) } else { self.keyed.get(key) }
    }

    /// Take the request of `key` out. `spare` is a used buffer for the next one, if there is one.
    pub fn take(&mut self, key: &[u8], spare: impl FnOnce() -> Option<Vec<u8>>) -> Option<Request> {
        if key.is_empty() {
            let filling = std::mem::take(&mut self.unordered);
            // The next request will be about as large: growing to it step by step would copy it twice over.
            self.unordered.body = spare().unwrap_or_else(|| vec![0; filling.bytes]);
            return filling.into_request(None);
        }
        let (key, filling) = self.keyed.remove_entry(key)?;
        self.keyed_bytes -= filling.bytes + OVERHEAD_BYTES;
        filling.into_request(Some(key))
    }

    /// Add a row's message; there is room for it.
    #[inline]
    pub fn add(&mut self, columns: &Columns<'_>, row: usize, bytes: usize, row_number: u64) {
        let key = columns.ordering_key(row);
        if key.is_empty() {
            self.unordered.add(&self.head, columns, row, bytes, row_number);
            return;
        }
        if !self.keyed.contains_key(key) {
            self.keyed.insert(Key::from(key), Filling::default());
            self.keyed_bytes += OVERHEAD_BYTES;
        }
        if let Some(filling) = self.keyed.get_mut(key) {
            let before = filling.bytes;
            filling.add(&self.head, columns, row, bytes, row_number);
            self.keyed_bytes += filling.bytes - before;
        }
    }

    /// What the requests of all keys take.
    pub fn keyed_bytes(&self) -> usize {
        self.keyed_bytes
    }

    /// Whether no row is in a request that has not left.
    pub fn is_empty(&self) -> bool {
        self.unordered.messages == 0 && self.keyed.is_empty()
    }

    /// The keys of the requests that have rows; empty for the one without a key.
    pub fn keys(&self) -> Vec<Key> {
        let unordered = (self.unordered.messages > 0).then(|| Key::from([]));
        unordered.into_iter().chain(self.keyed.keys().cloned()).collect()
    }
}

impl Filling {
    #[inline]
    fn add(&mut self, head: &[u8], columns: &Columns<'_>, row: usize, bytes: usize, row_number: u64) {
        if self.messages == 0 {
            self.room(head.len()).copy_from_slice(head);
        }
        put_message(columns, row, bytes, self.room(framed_len(bytes)));
        self.messages += 1;
        self.rows.push(row_number);
    }

    #[inline(always)]
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        let (start, end) = (self.bytes, self.bytes + bytes);
        if end > self.body.len() {
            self.body.resize(end.max(2 * self.body.len()), 0);
        }
        self.bytes = end;
        &mut self.body[start..end]
    }

    fn into_request(self, key: Option<Key>) -> Option<Request> {
        let Self { mut body, bytes, messages, rows } = self;
        body.truncate(bytes);
        write_frame_head(&mut body);
        (messages > 0).then(|| Request { body: body.into(), messages, rows, key })
    }
}
