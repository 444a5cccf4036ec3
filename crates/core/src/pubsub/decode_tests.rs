use super::*;
use crate::error::ErrorKind;
use crate::pubsub::wire::{PubsubMessage, ReceivedMessage, StreamingPullResponse, Timestamp};
use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, TimestampMicrosecondType};
use prost::Message as _;
use std::collections::HashMap;

const NAMES: [&str; 6] = ["message_id", "publish_time", "data", "attributes", "ordering_key", "delivery_attempt"];

fn any_text() -> String {
    (0..fastrand::usize(0..12)).map(|_| fastrand::char(..)).collect()
}

/// A key that other messages are likely to have as well.
fn any_key() -> String {
    if fastrand::bool() { format!("k{}", fastrand::u8(0..4)) } else { any_text() }
}

fn any_message() -> ReceivedMessage {
    let attributes = if fastrand::u8(0..20) == 0 { fastrand::usize(17..60) } else { fastrand::usize(0..4) };
    ReceivedMessage {
        ack_id: any_text(),
        delivery_attempt: fastrand::i32(0..5),
        message: (fastrand::u8(0..20) > 0).then(|| PubsubMessage {
            data: (0..fastrand::usize(0..300)).map(|_| fastrand::u8(..)).collect(),
            attributes: (0..attributes).map(|_| (any_key(), any_text())).collect(),
            message_id: any_text(),
            publish_time: fastrand::bool()
                .then(|| Timestamp { seconds: fastrand::i64(0..1 << 40), nanos: fastrand::i32(0..1_000_000_000) }),
            ordering_key: any_text(),
        }),
    }
}

fn any_selection() -> Selection {
    let mut columns: Vec<String> = NAMES.map(str::to_owned).to_vec();
    fastrand::shuffle(&mut columns);
    columns.truncate(fastrand::usize(0..=6));
    let attributes: Vec<String> =
        (usize::from(columns.is_empty())..fastrand::usize(1..4)).map(|i| format!("k{i}")).collect();
    let attributes = if columns.is_empty() && attributes.is_empty() { vec!["k0".to_owned()] } else { attributes };
    Selection::new(Some(&columns), &attributes).unwrap()
}

fn select(columns: &[&str], attributes: &[&str]) -> Result<Selection> {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    Selection::new(Some(&owned(columns)), &owned(attributes))
}

fn decode_as(bytes: &[u8], selection: &Selection) -> Result<Vec<Decoded>> {
    let mut builder = ChunkBuilder::new(selection.clone(), CHUNK_ROWS);
    let mut chunks = vec![];
    decode_response(bytes, &mut builder, |chunk| chunks.push(chunk))?;
    chunks.extend(builder.finish()?);
    Ok(chunks)
}

fn decode(bytes: &[u8]) -> Result<Vec<Decoded>> {
    decode_as(bytes, &Selection::default())
}

fn text_at(column: &dyn Array, row: usize) -> Option<&str> {
    let column = column.as_string::<i32>();
    column.is_valid(row).then(|| column.value(row))
}

/// Compare one row with what prost made of it, column by column of the schema.
fn assert_same(rows: &RecordBatch, row: usize, received: &ReceivedMessage) {
    let message = received.message.clone().unwrap_or_default();
    for (field, column) in rows.schema().fields().iter().zip(rows.columns()) {
        match field.name().as_str() {
            "message_id" => assert_eq!(text_at(column, row), Some(message.message_id.as_str())),
            "publish_time" => {
                let times = column.as_primitive::<TimestampMicrosecondType>();
                let expected = message.publish_time.map(|t| t.seconds * 1_000_000 + i64::from(t.nanos) / 1_000);
                assert_eq!(times.is_valid(row).then(|| times.value(row)), expected);
            }
            "data" => assert_eq!(column.as_binary::<i32>().value(row), message.data),
            "attributes" => {
                let entries = column.as_map().value(row);
                let (keys, values) = (entries.column(0).as_string::<i32>(), entries.column(1).as_string::<i32>());
                let found: Vec<(String, String)> =
                    (0..entries.len()).map(|i| (keys.value(i).into(), values.value(i).into())).collect();
                assert_eq!(found.len(), message.attributes.len());
                assert_eq!(HashMap::from_iter(found), message.attributes);
            }
            "ordering_key" => {
                let expected = Some(message.ordering_key.as_str()).filter(|key| !key.is_empty());
                assert_eq!(text_at(column, row), expected);
            }
            "delivery_attempt" => {
                let attempts = column.as_primitive::<Int32Type>();
                let attempt = attempts.is_valid(row).then(|| attempts.value(row));
                assert_eq!(attempt.unwrap_or(0), received.delivery_attempt);
            }
            attribute => assert_eq!(text_at(column, row), message.attributes.get(attribute).map(String::as_str)),
        }
    }
}

#[test]
fn any_message_equals_what_prost_decodes_whatever_is_selected() {
    fastrand::seed(7);
    for round in 0..600 {
        let selection = if round % 2 == 0 { Selection::default() } else { any_selection() };
        let sent =
            StreamingPullResponse { received_messages: (0..fastrand::usize(1..5)).map(|_| any_message()).collect() };
        let bytes = sent.encode_to_vec();
        let chunks = decode_as(&bytes, &selection).unwrap();
        let known = StreamingPullResponse::decode(bytes.as_slice()).unwrap().received_messages;
        let rows = &chunks[0].rows;
        assert_eq!(rows.schema(), *selection.schema());
        assert_eq!((rows.num_rows(), chunks[0].ack_ids.len()), (known.len(), known.len()));
        for (row, expected) in known.iter().enumerate() {
            assert_eq!(chunks[0].ack_ids.value(row), expected.ack_id);
            assert_same(rows, row, expected);
        }
    }
}

/// The bytes of a length-delimited field.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encoding::encode_varint(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

#[test]
fn fields_that_come_more_than_once_are_merged_as_prost_merges_them() {
    let entry = |key: &[u8], value: &[u8]| field(2, &[field(1, key), field(2, value)].concat());
    for many in [1, 40] {
        let first = [entry(b"k0", b"old"), field(3, b"id"), field(4, &[8, 5]), field(1, b"data")].concat();
        let others: Vec<u8> = (1..many).flat_map(|i| entry(format!("k{i}").as_bytes(), b"")).collect();
        let second = [entry(b"k0", b"new"), others, field(4, &[16, 7]), field(1, b"")].concat();
        let received = [field(1, b"a"), field(2, &first), field(1, b"b"), field(2, &second)].concat();
        let known = ReceivedMessage::decode(received.as_slice()).unwrap();
        for selection in [Selection::default(), select(&["publish_time"], &["k0", "nobody"]).unwrap()] {
            let chunks = decode_as(&field(1, &received), &selection).unwrap();
            assert_eq!(chunks[0].ack_ids.value(0), "b");
            assert_same(&chunks[0].rows, 0, &known);
        }
    }
}

#[test]
fn arbitrary_and_mutilated_bytes_never_panic_and_never_leave_half_a_row() {
    fastrand::seed(11);
    let whole = StreamingPullResponse { received_messages: vec![any_message(), any_message()] }.encode_to_vec();
    for round in 0..30_000 {
        let bytes = match round % 3 {
            0 => (0..fastrand::usize(0..64)).map(|_| fastrand::u8(..)).collect(),
            1 => whole[..fastrand::usize(0..whole.len())].to_vec(),
            _ => {
                let mut bent = whole.clone();
                let at = fastrand::usize(0..bent.len());
                bent[at] = fastrand::u8(..);
                bent
            }
        };
        let selection = any_selection();
        let mut builder = ChunkBuilder::new(selection.clone(), CHUNK_ROWS);
        let _ = decode_response(&bytes, &mut builder, |_| {});
        let whole_rows = builder.rows();
        // Whatever came before, what comes next is whole.
        decode_response(&whole, &mut builder, |_| {}).unwrap();
        match builder.finish() {
            Ok(chunk) => {
                let rows = chunk.unwrap().rows;
                assert_eq!(rows.num_rows(), whole_rows + 2);
                assert_eq!(rows.slice(whole_rows, 2), decode_as(&whole, &selection).unwrap()[0].rows);
            }
            Err(error) => assert_eq!(error.kind, ErrorKind::PubSub, "{error}"),
        }
        decode_response(&whole, &mut builder, |_| {}).unwrap();
        assert_eq!(builder.finish().unwrap().unwrap().rows.num_rows(), 2);
    }
}

#[test]
fn a_length_that_is_not_there_allocates_nothing() {
    for length in [1 << 20, 1 << 40, u64::MAX] {
        let mut bytes = vec![10];
        prost::encoding::encode_varint(length, &mut bytes);
        let mut builder = ChunkBuilder::default();
        assert!(decode_response(&bytes, &mut builder, |_| {}).is_err());
        assert_eq!(builder.rows(), 0);
    }
}

#[test]
fn many_attributes_cost_no_more_than_their_number() {
    let entry = |i: usize| field(2, &[field(1, format!("{}", i % 50_000).as_bytes()), field(2, b"v")].concat());
    let message: Vec<u8> = (0..100_000).flat_map(entry).collect();
    let chunks = decode(&field(1, &field(2, &message))).unwrap();
    assert_eq!(chunks[0].rows.column(3).as_map().value(0).len(), 50_000);
}

#[test]
fn text_that_is_no_utf8_is_refused_where_it_is_wanted_and_never_joined_to_its_neighbour() {
    // Two halves of one character, in two messages: valid together, and only together.
    let halves: Vec<u8> = ["é".as_bytes()[..1].to_vec(), "é".as_bytes()[1..].to_vec()]
        .iter()
        .flat_map(|half| field(1, &[field(1, b"ack"), field(2, &field(3, half))].concat()))
        .collect();
    assert!(decode(&halves).unwrap_err().message.contains("malformed"));
    let chunks = decode_as(&halves, &select(&["data"], &[]).unwrap()).unwrap();
    assert_eq!(chunks[0].rows.num_rows(), 2);
    let in_ack_id = field(1, &field(1, b"\xff"));
    assert!(decode_as(&in_ack_id, &select(&["data"], &[]).unwrap()).is_err());
}

#[test]
fn a_chunk_is_closed_at_its_size() {
    let one = StreamingPullResponse { received_messages: vec![any_message(); CHUNK_ROWS + 3] }.encode_to_vec();
    let chunks = decode(&one).unwrap();
    assert_eq!(chunks.iter().map(|c| c.rows.num_rows()).collect::<Vec<_>>(), [CHUNK_ROWS, 3]);
}

#[test]
fn a_small_chunk_after_a_large_one_keeps_no_room_for_a_large_one() {
    let mut builder = ChunkBuilder::default();
    let message = |data: usize| ReceivedMessage {
        message: Some(PubsubMessage { data: vec![0; data].into(), ..Default::default() }),
        ..Default::default()
    };
    for data in [10_000_000, 1] {
        let bytes = StreamingPullResponse { received_messages: vec![message(data)] }.encode_to_vec();
        decode_response(&bytes, &mut builder, |_| {}).unwrap();
        let rows = builder.finish().unwrap().unwrap().rows;
        let held: usize = rows.columns().iter().map(|column| column.get_buffer_memory_size()).sum();
        assert!(held < 2 * data + 4_096, "{held} bytes for {data}");
    }
}

#[test]
fn the_properties_of_the_subscription_are_told() {
    let told = |bytes: &[u8]| decode_response(bytes, &mut ChunkBuilder::default(), |_| {}).unwrap();
    assert_eq!(told(&[]).exactly_once, None);
    assert_eq!(told(&field(4, &[8, 1, 16, 1])).exactly_once, Some(true));
    assert_eq!(told(&field(4, &[16, 1])).exactly_once, Some(false));
    let again = StreamingPullResponse {
        received_messages: [0, 1, 2]
            .map(|delivery_attempt| ReceivedMessage { delivery_attempt, ..any_message() })
            .into(),
    };
    let response = told(&again.encode_to_vec());
    assert_eq!((response.rows, response.redelivered), (3, 1));
}

#[test]
fn a_selection_that_makes_no_sense_is_refused_with_the_fix() {
    for (columns, attributes, expected) in [
        (&["dat"][..], &[][..], "The columns are message_id"),
        (&[], &[], "at least one"),
        (&["data", "data"], &[], "'data'"),
        (&["data"], &["data"], "leave that column out"),
        (&["data"], &["k", "k"], "'k'"),
    ] {
        let error = select(columns, attributes).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Config);
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert!(select(&[], &["data"]).is_ok());
}
