//! For any columns, in any layout: the encoded bytes decode to exactly the rows.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::{MapBuilder, StringBuilder};
use arrow_array::types::{Int8Type, Int32Type};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, DictionaryArray, LargeBinaryArray, LargeListArray, LargeStringArray,
    ListArray, RecordBatch, StringArray, StringViewArray, StructArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Fields};
use fastrand::Rng;
use prost::Message;

use super::columns::Columns;
use super::encode::{framed_len, measure, read_ids};
use super::request::Filler;
use super::rows::Failure;
use crate::pubsub::framed::FRAME_HEAD_BYTES;
use crate::pubsub::wire::{MAX_PUBLISH_BYTES, PublishRequest, PublishResponse, PubsubMessage};

const TOPIC: &str = "projects/p/topics/ttt";

#[derive(Clone, Debug, Default)]
struct Row {
    data: Option<Vec<u8>>,
    attributes: Option<Vec<(String, Option<String>)>>,
    key: Option<String>,
}

impl Row {
    fn message(&self) -> PubsubMessage {
        let attributes = self.attributes.iter().flatten();
        PubsubMessage {
            data: self.data.clone().unwrap_or_default().into(),
            attributes: attributes.filter_map(|(name, value)| Some((name.clone(), value.clone()?))).collect(),
            ordering_key: self.key.clone().unwrap_or_default(),
            ..Default::default()
        }
    }
}

fn random_text(random: &mut Rng, longest: usize) -> String {
    let length = [0, 1, 2, 3, 4, 7, 8, 9, 16, 17, 127, 128, longest][random.usize(..13)].min(longest);
    (0..length).map(|_| random.alphanumeric()).collect()
}

fn random_row(random: &mut Rng) -> Row {
    let attributes = (random.u8(..4) > 0).then(|| {
        (0..random.usize(..4))
            .map(|number| {
                (
                    format!("{number}{}", random_text(random, 255)),
                    (random.u8(..4) > 0).then(|| random_text(random, 1_024)),
                )
            })
            .collect()
    });
    // Never empty: those are refused.
    let length = [1, 5, 127, 128, 300, 20_000][random.usize(..6)];
    let data = (0..length).map(|_| random.alphanumeric() as u8).collect();
    Row { data: Some(data), attributes, key: (random.u8(..3) > 0).then(|| random_text(random, 3)) }
}

/// A text column of `cells` in one of the layouts.
fn text_column(random: &mut Rng, cells: &[Option<String>]) -> ArrayRef {
    let cells = cells.iter().map(Option::as_deref);
    match random.u8(..5) {
        0 => Arc::new(StringArray::from_iter(cells)),
        1 => Arc::new(LargeStringArray::from_iter(cells)),
        2 => Arc::new(StringViewArray::from_iter(cells)),
        3 => Arc::new(cells.collect::<DictionaryArray<Int32Type>>()),
        _ => {
            let plain = StringArray::from_iter(cells.clone());
            let mut different: Vec<_> = cells.flatten().collect();
            different.sort_unstable();
            different.dedup();
            if different.len() > 100 {
                return Arc::new(plain);
            }
            Arc::new(plain.iter().collect::<DictionaryArray<Int8Type>>())
        }
    }
}

fn data_column(random: &mut Rng, rows: &[Row]) -> ArrayRef {
    let cells = rows.iter().map(|row| row.data.as_deref());
    match random.u8(..4) {
        0 => Arc::new(BinaryArray::from_iter(cells)),
        1 => Arc::new(LargeBinaryArray::from_iter(cells)),
        2 => Arc::new(BinaryViewArray::from_iter(cells)),
        _ => {
            let texts: Vec<_> =
                rows.iter().map(|row| row.data.clone().and_then(|data| String::from_utf8(data).ok())).collect();
            text_column(random, &texts)
        }
    }
}

fn attribute_column(random: &mut Rng, rows: &[Row]) -> ArrayRef {
    if random.bool() {
        let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
        for row in rows {
            for (name, value) in row.attributes.iter().flatten() {
                map.keys().append_value(name);
                map.values().append_option(value.as_deref());
            }
            map.append(row.attributes.is_some()).unwrap();
        }
        return Arc::new(map.finish());
    }
    let entries: Vec<_> = rows.iter().flat_map(|row| row.attributes.clone().unwrap_or_default()).collect();
    let names = text_column(random, &entries.iter().map(|(name, _)| Some(name.clone())).collect::<Vec<_>>());
    let values = text_column(random, &entries.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>());
    let fields: Fields =
        vec![Field::new("key", names.data_type().clone(), true), Field::new("value", values.data_type().clone(), true)]
            .into();
    let item = Arc::new(Field::new("item", DataType::Struct(fields.clone()), true));
    let structs: ArrayRef = Arc::new(StructArray::new(fields, vec![names, values], None));
    let lengths = rows.iter().map(|row| row.attributes.as_ref().map_or(0, Vec::len));
    let nulls = Some(NullBuffer::from_iter(rows.iter().map(|row| row.attributes.is_some())));
    match random.bool() {
        true => Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths), structs, nulls)),
        false => Arc::new(LargeListArray::new(item, OffsetBuffer::from_lengths(lengths), structs, nulls)),
    }
}

fn batch(random: &mut Rng, rows: &[Row]) -> RecordBatch {
    let mut columns = vec![("data", data_column(random, rows))];
    if random.bool() || rows.iter().any(|row| row.attributes.is_some()) {
        columns.push(("attributes", attribute_column(random, rows)));
    }
    let keys: Vec<_> = rows.iter().map(|row| row.key.clone()).collect();
    if random.bool() || keys.iter().any(Option::is_some) {
        columns.push(("ordering_key", text_column(random, &keys)));
    }
    random.shuffle(&mut columns);
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true))).unwrap()
}

/// The messages of a batch by row number, from the requests that a filler makes of it.
fn published(batch: &RecordBatch, max_messages: usize, max_bytes: usize) -> HashMap<u64, PubsubMessage> {
    let columns = Columns::of(batch).unwrap();
    let mut filler = Filler::new(TOPIC, max_messages, max_bytes);
    let sizes = measure(&columns, batch.num_rows(), 0, filler.head_bytes()).unwrap();
    let mut requests = vec![];
    for (row, bytes) in sizes.into_iter().enumerate() {
        let key = columns.ordering_key(row);
        if !filler.has_room(key, bytes) {
            requests.extend(filler.take(key, || Some(vec![7; 1_000])));
        }
        filler.add(&columns, row, bytes, row as u64);
    }
    for key in filler.keys() {
        requests.extend(filler.take(&key, || None));
    }
    assert!(filler.is_empty());
    assert_eq!(filler.keyed_bytes(), 0);
    let mut found = HashMap::new();
    for request in requests {
        let (head, body) = request.body.split_at(FRAME_HEAD_BYTES);
        assert_eq!((head[0], u32::from_be_bytes(head[1..].try_into().unwrap()) as usize), (0, body.len()));
        let decoded = PublishRequest::decode(body).unwrap();
        assert_eq!(decoded.topic, TOPIC);
        assert_eq!(decoded.messages.len(), request.messages);
        assert!(request.messages <= max_messages);
        assert!(body.len() <= max_bytes || request.messages == 1);
        let keys: Vec<_> = decoded.messages.iter().map(|message| message.ordering_key.as_bytes()).collect();
        assert!(keys.iter().all(|key| *key == request.key.as_deref().unwrap_or_default()), "one key a request");
        let numbers: Vec<_> = request.rows.iter().collect();
        assert!(numbers.is_sorted());
        found.extend(numbers.into_iter().zip(decoded.messages));
    }
    found
}

#[test]
fn any_columns_in_any_layout_decode_to_exactly_their_rows() {
    for seed in 0..300 {
        let mut random = Rng::with_seed(seed);
        let rows: Vec<_> = (0..random.usize(1..60)).map(|_| random_row(&mut random)).collect();
        let whole = batch(&mut random, &rows);
        let start = random.usize(..rows.len());
        let length = random.usize(..=rows.len() - start);
        for (part, rows) in [(whole.clone(), &rows[..]), (whole.slice(start, length), &rows[start..start + length])] {
            let max_bytes = [50_000, 1_000_000][random.usize(..2)];
            let found = published(&part, random.usize(1..=1_000), max_bytes);
            assert_eq!(found.len(), rows.len(), "seed {seed}");
            for (number, row) in rows.iter().enumerate() {
                assert_eq!(found[&(number as u64)], row.message(), "seed {seed}, row {number}");
            }
        }
    }
}

#[test]
fn entries_of_a_list_that_are_null_are_no_attributes() {
    let names: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    let values: ArrayRef = Arc::new(StringArray::from(vec!["1", "2"]));
    let fields: Fields =
        vec![Field::new("key", DataType::Utf8, true), Field::new("value", DataType::Utf8, true)].into();
    let entries = StructArray::new(fields.clone(), vec![names, values], Some(NullBuffer::from(vec![false, true])));
    let item = Arc::new(Field::new("item", DataType::Struct(fields), true));
    let list = ListArray::new(item, OffsetBuffer::from_lengths([2]), Arc::new(entries), None);
    let batch = RecordBatch::try_from_iter([
        ("data", Arc::new(StringArray::from(vec!["x"])) as ArrayRef),
        ("attributes", Arc::new(list) as ArrayRef),
    ]);
    let message = &published(&batch.unwrap(), 10, 1_000)[&0];
    assert_eq!(message.attributes, HashMap::from([("b".to_owned(), "2".to_owned())]));
}

#[test]
fn a_dictionary_without_values_is_a_column_of_nulls() {
    let nothing: DictionaryArray<Int32Type> = [None::<&str>, None].into_iter().collect();
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("data", Arc::new(StringArray::from(vec!["x", "y"])) as ArrayRef, true),
        ("ordering_key", Arc::new(nothing) as ArrayRef, true),
    ]);
    assert!(published(&batch.unwrap(), 10, 1_000).values().all(|message| message.ordering_key.is_empty()));
}

fn refused(rows: Vec<Row>) -> Vec<Failure> {
    let batch = batch(&mut Rng::with_seed(1), &rows);
    measure(&Columns::of(&batch).unwrap(), rows.len(), 100, 50).unwrap_err()
}

fn fine() -> Row {
    Row { data: Some(b"x".to_vec()), ..Default::default() }
}

fn with(name: &str, value: &str) -> Row {
    Row { attributes: Some(vec![(name.to_owned(), Some(value.to_owned()))]), ..fine() }
}

#[test]
fn what_the_service_would_refuse_is_named_by_row_and_column() {
    let many = (0..101).map(|number| (number.to_string(), Some(String::new()))).collect();
    let cases = [
        (Row { data: None, ..fine() }, "row 101 of column 'data': neither data nor attributes"),
        (Row { data: Some(vec![]), attributes: Some(vec![("a".into(), None)]), key: None }, "'data': neither data"),
        (
            Row { data: Some(vec![b'x'; 11_000_000]), ..fine() },
            "'data': a message of 11000005 bytes; Pub/Sub takes at most 10000000",
        ),
        (with("", "v"), "row 101 of column 'attributes': an attribute without a name"),
        (with("googclient_x", "v"), "attribute 'googclient_x' begins with 'goog'"),
        (with(&"k".repeat(257), "v"), "the name of attribute 'kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk' of 257 bytes"),
        (with("k", &"v".repeat(1_025)), "the value of attribute 'k' of 1025 bytes; Pub/Sub takes at most 1024"),
        (Row { attributes: Some(many), ..fine() }, "101 attributes; Pub/Sub takes at most 100"),
        (Row { key: Some("k".repeat(1_025)), ..fine() }, "row 101 of column 'ordering_key': a key of 1025 bytes"),
    ];
    for (row, expected) in cases {
        let failures = refused(vec![fine(), row, fine(), fine()]);
        let texts: Vec<_> = failures.iter().map(ToString::to_string).collect();
        assert_eq!(texts[0], "row 100: not sent, because row 101 of its batch is refused");
        assert!(texts[1].contains(expected), "{texts:?}");
        assert_eq!(texts[2], "rows 102 to 103: not sent, because row 101 of its batch is refused");
    }
}

#[test]
fn everything_at_its_limit_is_taken() {
    let most = (0..100).map(|number| (format!("{number:k>256}"), Some("v".repeat(1_024)))).collect();
    let row = Row { attributes: Some(most), key: Some("k".repeat(1_024)), data: None };
    let batch = batch(&mut Rng::with_seed(1), std::slice::from_ref(&row));
    assert_eq!(published(&batch, 1, 1)[&0], row.message());
    let head = Filler::new(TOPIC, 1, 1).head_bytes();
    // Tag and length of the data take 5 bytes here, as those of the message do.
    let largest = Row { data: Some(vec![b'x'; MAX_PUBLISH_BYTES - head - 10]), ..fine() };
    let batch =
        RecordBatch::try_from_iter([("data", Arc::new(BinaryArray::from_iter([largest.data.as_deref()])) as ArrayRef)])
            .unwrap();
    let columns = Columns::of(&batch).unwrap();
    let bytes = measure(&columns, 1, 0, head).unwrap()[0];
    assert_eq!(head + framed_len(bytes), MAX_PUBLISH_BYTES);
    assert!(measure(&columns, 1, 0, head + 1).is_err());
}

#[test]
fn of_many_bad_rows_a_hundred_are_named_and_all_are_accounted_for() {
    let failures = refused(vec![Row::default(); 1_000]);
    assert_eq!(failures.len(), 101);
    assert_eq!(failures.iter().map(|failure| failure.rows.end - failure.rows.start).sum::<u64>(), 1_000);
}

#[test]
fn columns_that_are_no_part_of_a_message_or_of_another_type_are_refused_by_name() {
    let text = || Arc::new(StringArray::from(vec!["x"])) as ArrayRef;
    let number = || Arc::new(arrow_array::Int64Array::from(vec![1])) as ArrayRef;
    for (columns, expected) in [
        (vec![("data", text()), ("message_id", text())], "column 'message_id' is no part of a message"),
        (vec![("data", text()), ("data", text())], "two columns 'data'"),
        (vec![("ordering_key", text())], "no column 'data'"),
        (vec![("data", number())], "column 'data' is Int64; it must be binary or string"),
        (vec![("data", text()), ("ordering_key", number())], "column 'ordering_key' is Int64; it must be string"),
        (vec![("data", text()), ("attributes", text())], "column 'attributes' is Utf8; it must be map"),
    ] {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let error = Columns::of(&batch).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn ids_are_read_as_prost_reads_them_and_garbage_is_noticed() {
    let ids: Vec<_> = (0..1_000).map(|number| number.to_string()).collect();
    let mut bytes = PublishResponse { message_ids: ids.clone() }.encode_to_vec();
    bytes.extend([0x18, 0x96, 0x01]); // a field that a newer server might add
    let mut found = vec![];
    assert_eq!(read_ids(&bytes, |id| found.push(String::from_utf8(id.to_vec()).unwrap())), Some(1_000));
    assert_eq!(found, ids);
    let mut random = Rng::with_seed(1);
    for _ in 0..20_000 {
        let noise: Vec<_> = (0..random.usize(..40)).map(|_| random.u8(..)).collect();
        let count = read_ids(&noise, |_| ());
        if let Ok(response) = PublishResponse::decode(&noise[..]) {
            assert_eq!(count, Some(response.message_ids.len()), "{noise:?}");
        }
    }
    assert_eq!(read_ids(&[0x0a, 0x05, b'x'], |_| ()), None);
}
