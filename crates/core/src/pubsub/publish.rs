//! Publishing Arrow rows: requests within the limits of the service, several in flight, each with server ids or an error.

use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, LargeBinaryArray, LargeStringArray, RecordBatch, StringArray,
    StringViewArray,
};
use arrow_schema::DataType;
use bytes::Bytes;
use prost::Message;
use tokio::task::JoinSet;

use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::client::Client;
use crate::pubsub::wire::{MAX_PUBLISH_BYTES, MAX_PUBLISH_MESSAGES, PublishRequest, PubsubMessage};
use crate::retry::{Backoff, is_transient};

/// Enough to hide a round trip; more only costs memory.
const IN_FLIGHT: usize = 8;
/// Tries of one request; the last one waits about ten seconds.
const ATTEMPTS: usize = 8;

/// Publish the rows of `batches`; the number of messages that have a server id, which is all of them.
///
/// Columns: `data` (binary or string, required), `attributes` (map of strings), `ordering_key` (string).
pub async fn publish(
    client: &Client,
    topic: &str,
    batches: impl Iterator<Item = Result<RecordBatch>>,
) -> Result<usize> {
    let (mut published, mut row) = (0, 0);
    let mut flying: JoinSet<Result<usize>> = JoinSet::new();
    let mut request = Pending::new(topic);
    for batch in batches {
        for message in messages(&batch?, row)? {
            row += 1;
            let bytes = message.encoded_len();
            if bytes > MAX_PUBLISH_BYTES {
                return Err(Error::new(
                    ErrorKind::InvalidRequest,
                    format!("row {} has {bytes} bytes; Pub/Sub takes at most {MAX_PUBLISH_BYTES} a message.", row - 1),
                ));
            }
            if !request.fits(bytes) {
                published += make_way(&mut flying, &request).await?;
                flying.spawn(send(client.clone(), request.take()));
            }
            request.add(message, bytes);
        }
    }
    if !request.message.messages.is_empty() {
        published += make_way(&mut flying, &request).await?;
        flying.spawn(send(client.clone(), request.take()));
    }
    while !flying.is_empty() {
        published += landed(&mut flying).await?;
    }
    Ok(published)
}

/// Wait until `next` may be sent. Requests with ordering keys go one after the other: two in flight could overtake each
/// other, and so could a retry.
async fn make_way(flying: &mut JoinSet<Result<usize>>, next: &Pending) -> Result<usize> {
    let room = if next.is_ordered() { 0 } else { IN_FLIGHT - 1 };
    let mut published = 0;
    while flying.len() > room {
        published += landed(flying).await?;
    }
    Ok(published)
}

async fn landed(flying: &mut JoinSet<Result<usize>>) -> Result<usize> {
    match flying.join_next().await {
        None => Ok(0),
        Some(Ok(outcome)) => outcome,
        Some(Err(died)) => Err(Error::new(ErrorKind::Native, format!("publishing died: {died}."))),
    }
}

/// A request that is being filled.
struct Pending {
    message: PublishRequest,
    bytes: usize,
}

impl Pending {
    fn new(topic: &str) -> Self {
        Self { message: PublishRequest { topic: topic.to_owned(), messages: vec![] }, bytes: 0 }
    }

    /// Each message costs up to five bytes of framing; a kilobyte is left for the topic's name.
    fn fits(&self, bytes: usize) -> bool {
        let messages = &self.message.messages;
        messages.is_empty()
            || (messages.len() < MAX_PUBLISH_MESSAGES && self.bytes + bytes + 5 <= MAX_PUBLISH_BYTES - 1_024)
    }

    fn is_ordered(&self) -> bool {
        self.message.messages.iter().any(|message| !message.ordering_key.is_empty())
    }

    fn add(&mut self, message: PubsubMessage, bytes: usize) {
        self.bytes += bytes + 5;
        self.message.messages.push(message);
    }

    fn take(&mut self) -> PublishRequest {
        self.bytes = 0;
        let messages = std::mem::take(&mut self.message.messages);
        PublishRequest { topic: self.message.topic.clone(), messages }
    }
}

async fn send(client: Client, request: PublishRequest) -> Result<usize> {
    let doing = || format!("publishing {} messages to {}", request.messages.len(), request.topic);
    let mut backoff = Backoff::default();
    let mut attempts_left = ATTEMPTS;
    loop {
        attempts_left -= 1;
        match client.publish(request.clone()).await {
            Ok(response) if response.message_ids.len() == request.messages.len() => return Ok(request.messages.len()),
            Ok(response) => {
                let count = response.message_ids.len();
                return Err(Error::new(ErrorKind::PubSub, format!("{}: only {count} got an id.", doing())));
            }
            Err(status) if attempts_left > 0 && is_transient(status.code()) => {
                log::info!("{}: {status}; trying again", doing());
                tokio::time::sleep(backoff.next_delay()).await;
            }
            Err(status) => return Err(Error::from_status(&doing(), &status)),
        }
    }
}

/// The rows of a batch as messages; `first_row` numbers them in errors.
fn messages(batch: &RecordBatch, first_row: usize) -> Result<Vec<PubsubMessage>> {
    let data = batch.column_by_name("data").ok_or_else(|| {
        Error::new(ErrorKind::Config, "there is no column 'data' to publish.").with_remedy("Name one column 'data'.")
    })?;
    let data = Cells::of(data).ok_or_else(|| wrong_type("data", data, "binary or string"))?;
    let mut messages = vec![PubsubMessage::default(); batch.num_rows()];
    for (row, message) in messages.iter_mut().enumerate() {
        message.data = Bytes::copy_from_slice(data.get(row).unwrap_or_default());
    }
    if let Some(keys) = batch.column_by_name("ordering_key") {
        let keys = Cells::of_text(keys).ok_or_else(|| wrong_type("ordering_key", keys, "string"))?;
        for (row, message) in messages.iter_mut().enumerate() {
            message.ordering_key = keys.text(row);
        }
    }
    if let Some(attributes) = batch.column_by_name("attributes") {
        let wrong = || wrong_type("attributes", attributes, "map<string, string>");
        let map = attributes.as_map_opt().ok_or_else(wrong)?;
        let (keys, values) =
            (Cells::of_text(map.keys()).ok_or_else(wrong)?, Cells::of_text(map.values()).ok_or_else(wrong)?);
        let offsets = map.offsets();
        for (row, message) in messages.iter_mut().enumerate().filter(|(row, _)| map.is_valid(*row)) {
            let entries = offsets[row] as usize..offsets[row + 1] as usize;
            message.attributes = entries.map(|entry| (keys.text(entry), values.text(entry))).collect();
        }
    }
    let bare = |message: &PubsubMessage| message.data.is_empty() && message.attributes.is_empty();
    if let Some(row) = messages.iter().position(bare) {
        return Err(Error::new(
            ErrorKind::InvalidRequest,
            format!("row {} has neither data nor attributes; Pub/Sub takes no empty message.", first_row + row),
        ));
    }
    Ok(messages)
}

fn wrong_type(name: &str, column: &ArrayRef, wanted: &str) -> Error {
    Error::new(ErrorKind::Config, format!("column '{name}' is {}; it must be {wanted}.", column.data_type()))
}

/// Strings or bytes in any of Arrow's layouts: libraries differ in which one they export.
enum Cells<'a> {
    Binary(&'a BinaryArray),
    LargeBinary(&'a LargeBinaryArray),
    BinaryView(&'a BinaryViewArray),
    Utf8(&'a StringArray),
    LargeUtf8(&'a LargeStringArray),
    Utf8View(&'a StringViewArray),
}

impl<'a> Cells<'a> {
    fn of(column: &'a ArrayRef) -> Option<Self> {
        match column.data_type() {
            DataType::Binary => column.as_binary_opt().map(Self::Binary),
            DataType::LargeBinary => column.as_binary_opt().map(Self::LargeBinary),
            DataType::BinaryView => column.as_binary_view_opt().map(Self::BinaryView),
            _ => Self::of_text(column),
        }
    }

    fn of_text(column: &'a ArrayRef) -> Option<Self> {
        match column.data_type() {
            DataType::Utf8 => column.as_string_opt().map(Self::Utf8),
            DataType::LargeUtf8 => column.as_string_opt().map(Self::LargeUtf8),
            DataType::Utf8View => column.as_string_view_opt().map(Self::Utf8View),
            _ => None,
        }
    }

    fn get(&self, row: usize) -> Option<&'a [u8]> {
        match self {
            Self::Binary(cells) => cells.is_valid(row).then(|| cells.value(row)),
            Self::LargeBinary(cells) => cells.is_valid(row).then(|| cells.value(row)),
            Self::BinaryView(cells) => cells.is_valid(row).then(|| cells.value(row)),
            Self::Utf8(cells) => cells.is_valid(row).then(|| cells.value(row).as_bytes()),
            Self::LargeUtf8(cells) => cells.is_valid(row).then(|| cells.value(row).as_bytes()),
            Self::Utf8View(cells) => cells.is_valid(row).then(|| cells.value(row).as_bytes()),
        }
    }

    /// The cell as a string, empty for null. Used on text columns only, which are UTF-8 by their type.
    fn text(&self, row: usize) -> String {
        String::from_utf8_lossy(self.get(row).unwrap_or_default()).into_owned()
    }
}
