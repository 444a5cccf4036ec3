//! What holds for every format: modes, names, types, sizes.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, BinaryArray, LargeBinaryArray, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Fields, IntervalUnit, Schema, TimeUnit};

use super::{Format, Mode, Projected, Projection};
use crate::error::{Error, ErrorKind, Result};

/// A raw batch with the payloads and a message id a row.
pub(super) fn raw(payloads: &[Option<&[u8]>]) -> RecordBatch {
    let ids: StringArray = (0..payloads.len()).map(|row| Some(format!("id-{row}"))).collect();
    let payloads: BinaryArray = payloads.iter().copied().collect();
    let columns: Vec<(&str, ArrayRef)> = vec![("message_id", Arc::new(ids)), ("data", Arc::new(payloads))];
    RecordBatch::try_from_iter(columns).unwrap()
}

pub(super) fn schema(columns: &[(&str, DataType)]) -> Schema {
    let field = |(name, data_type): &(&str, DataType)| Field::new(*name, data_type.clone(), true);
    Schema::new(columns.iter().map(field).collect::<Vec<_>>())
}

pub(super) fn project(schema: &Schema, mode: Mode, payloads: &[&[u8]]) -> Result<Projected> {
    let payloads: Vec<_> = payloads.iter().copied().map(Some).collect();
    Projection::new(Format::Json, schema, mode, vec!["message_id".to_owned()])?.project(&raw(&payloads))
}

const PAYLOADS: [&[u8]; 5] =
    [b"{\"a\":1,\"b\":\"x\"}", b"{\"a\":", b"{\"a\":\"bad\",\"b\":\"y\"}", b"", b"{\"b\":\"z\"}"];

fn two_columns() -> Schema {
    schema(&[("a", DataType::Int64), ("_corrupt_record", DataType::Binary), ("b", DataType::Utf8)])
}

fn texts(rows: &RecordBatch, name: &str) -> Vec<Option<String>> {
    rows.column_by_name(name).unwrap().as_string::<i32>().iter().map(|text| text.map(str::to_owned)).collect()
}

fn some(texts: &[&str]) -> Vec<Option<String>> {
    texts.iter().map(|text| if text.is_empty() { None } else { Some((*text).to_owned()) }).collect()
}

#[test]
fn permissive_keeps_every_row_and_what_could_be_read_of_it() {
    let projected = project(&two_columns(), Mode::Permissive, &PAYLOADS).unwrap();
    let rows = projected.rows;
    assert_eq!(projected.corrupt, [1, 2]);
    let names: Vec<_> = rows.schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["message_id", "a", "_corrupt_record", "b"]);
    let numbers: Vec<_> = rows.column(1).as_primitive::<Int64Type>().iter().collect();
    assert_eq!(numbers, [Some(1), None, None, None, None]);
    assert_eq!(texts(&rows, "b"), some(&["x", "", "y", "", "z"]));
    let corrupt: Vec<_> = rows.column(2).as_binary::<i32>().iter().collect();
    assert_eq!(corrupt, [None, Some(PAYLOADS[1]), Some(PAYLOADS[2]), None, None]);
}

#[test]
fn dropmalformed_leaves_corrupt_rows_out_with_their_metadata() {
    let projected = project(&two_columns(), Mode::DropMalformed, &PAYLOADS).unwrap();
    assert_eq!(projected.corrupt, [1, 2]);
    assert_eq!(texts(&projected.rows, "message_id"), some(&["id-0", "id-3", "id-4"]));
    assert_eq!(texts(&projected.rows, "b"), some(&["x", "", "z"]));
    assert_eq!(projected.rows.column_by_name("_corrupt_record").unwrap().null_count(), 3);
}

#[test]
fn failfast_names_the_message_the_field_and_the_reason_and_the_next_batch_is_whole() {
    let mut projection = Projection::new(Format::Json, &two_columns(), Mode::FailFast, vec![]).unwrap();
    let malformed = projection.project(&raw(&[Some(PAYLOADS[0]), Some(PAYLOADS[1])])).unwrap_err();
    assert_eq!(malformed.kind, ErrorKind::CorruptRow);
    assert_eq!(malformed.message, "message id-1: no JSON: the end at byte 5.");
    let nested = schema(&[("s", DataType::Struct(Fields::from(vec![Field::new("x", DataType::Int64, true)])))]);
    let mismatch = project(&nested, Mode::FailFast, &[b"{}", b"{\"s\":{\"x\":true}}"]).unwrap_err();
    assert_eq!(mismatch.message, "message id-1: field \"s.x\": a boolean does not fit the type Int64.");
    let next = projection.project(&raw(&[Some(b"{}"), Some(PAYLOADS[4])])).unwrap();
    assert_eq!(texts(&next.rows, "b"), some(&["", "z"]));
}

#[test]
fn every_corrupt_row_has_its_own_reason_where_they_are_asked_for() {
    let projection = || Projection::new(Format::Json, &two_columns(), Mode::DropMalformed, vec![]).unwrap();
    let payloads = raw(&PAYLOADS.map(Some));
    let said = projection().with_reasons().project(&payloads).unwrap();
    assert_eq!(said.corrupt, [1, 2]);
    assert_eq!(said.reasons.len(), 2);
    assert_eq!(said.reasons[0], "no JSON: the end at byte 5");
    assert!(said.reasons[1].starts_with("field \"a\""), "{}", said.reasons[1]);
    assert!(projection().project(&payloads).unwrap().reasons.is_empty());
}

#[test]
fn a_null_payload_is_a_row_of_nulls_and_not_corrupt() {
    let mut projection = Projection::new(Format::Json, &two_columns(), Mode::FailFast, vec![]).unwrap();
    let projected = projection.project(&raw(&[None, Some(PAYLOADS[0])])).unwrap();
    assert_eq!(texts(&projected.rows, "b"), some(&["", "x"]));
}

#[test]
fn a_projection_serves_batch_after_batch() {
    let mut projection = Projection::new(Format::Json, &two_columns(), Mode::Permissive, vec![]).unwrap();
    for _ in 0..3 {
        let projected = projection.project(&raw(&PAYLOADS.map(Some))).unwrap();
        assert_eq!(projected.corrupt, [1, 2]);
        assert_eq!(texts(&projected.rows, "b"), some(&["x", "", "y", "", "z"]));
    }
    assert_eq!(projection.project(&raw(&[])).unwrap().rows.num_rows(), 0);
}

#[test]
fn large_binary_payloads_and_slices_of_batches_are_read() {
    let payloads: LargeBinaryArray = PAYLOADS.iter().map(Some).collect();
    let columns: Vec<(&str, ArrayRef)> = vec![("data", Arc::new(payloads))];
    let raw = RecordBatch::try_from_iter(columns).unwrap().slice(4, 1);
    let mut projection = Projection::new(Format::Json, &two_columns(), Mode::FailFast, vec![]).unwrap();
    assert_eq!(texts(&projection.project(&raw).unwrap().rows, "b"), some(&["z"]));
}

#[test]
fn no_column_at_all_still_counts_rows() {
    let mut projection = Projection::new(Format::Json, &Schema::empty(), Mode::Permissive, vec![]).unwrap();
    let projected = projection.project(&raw(&PAYLOADS.map(Some))).unwrap();
    assert_eq!((projected.rows.num_rows(), projected.corrupt), (5, vec![1]));
}

#[test]
fn fields_that_must_not_be_null_become_nullable_at_every_level() {
    let inner = Field::new("x", DataType::Int64, false);
    let list = DataType::List(Arc::new(Field::new("element", DataType::Struct(Fields::from(vec![inner])), false)));
    let schema = Schema::new(vec![Field::new("l", list, false)]);
    let projected = project(&schema, Mode::FailFast, &[b"{\"l\":[{}]}"]).unwrap();
    let field = projected.rows.schema().field(1).clone();
    assert!(field.is_nullable());
    let DataType::List(element) = field.data_type() else { panic!("{field}") };
    let DataType::Struct(fields) = element.data_type() else { panic!("{element}") };
    assert!(element.is_nullable() && fields[0].is_nullable());
}

fn refused(name: &str, data_type: DataType, metadata: &[&str]) -> Error {
    let metadata = metadata.iter().map(|name| (*name).to_owned()).collect();
    match Projection::new(Format::Json, &schema(&[(name, data_type)]), Mode::Permissive, metadata) {
        Err(error) => error,
        Ok(_) => panic!("{name} was taken"),
    }
}

#[test]
fn a_payload_field_with_the_name_of_a_kept_metadata_column_is_refused_with_the_fix() {
    let error = refused("Data", DataType::Utf8, &["message_id", "data"]);
    assert_eq!(error.kind, ErrorKind::Config);
    assert!(error.message.contains("\"Data\""), "{error}");
    assert!(error.remedy.unwrap().contains("Leave data out of the metadata columns"));
    assert!(refused("ack_id", DataType::Utf8, &[]).message.contains("ack_id"));
    let without = Projection::new(Format::Json, &schema(&[("data", DataType::Utf8)]), Mode::Permissive, vec![]);
    let projected = without.unwrap().project(&raw(&[Some(b"{\"data\":\"of the payload\"}")])).unwrap();
    assert_eq!(texts(&projected.rows, "data"), some(&["of the payload"]));
}

#[test]
fn types_that_no_payload_holds_are_refused_by_column_and_fix() {
    let marked =
        Field::new("metadata", DataType::Binary, false).with_metadata([("variant".to_owned(), "true".to_owned())]);
    let variant = DataType::Struct(Fields::from(vec![Field::new("value", DataType::Binary, false), marked]));
    let keyed = |key| Field::new_map("m", "entries", Field::new("key", key, false), value(), false, true);
    let cases = [
        (variant, "variant", "parse_json"),
        (DataType::Interval(IntervalUnit::MonthDayNano), "calendar interval", "CAST(c AS INTERVAL)"),
        (DataType::UInt64, "UInt64", "STRING"),
        (DataType::Timestamp(TimeUnit::Nanosecond, None), "Timestamp", "microseconds"),
        (DataType::Timestamp(TimeUnit::Microsecond, Some("Europe/Berlin".into())), "Timestamp", "UTC"),
        (keyed(DataType::Int32).data_type().clone(), "Int32", "strings"),
    ];
    for (data_type, found, fix) in cases {
        let error = refused("outer", DataType::List(Arc::new(Field::new("element", data_type, true))), &[]);
        assert_eq!(error.kind, ErrorKind::UnsupportedType);
        assert!(error.message.contains("outer.element") && error.message.contains(found), "{error}");
        assert!(error.remedy.as_ref().unwrap().contains(fix), "{error}");
    }
    assert_eq!(refused("_corrupt_record", DataType::Int64, &[]).kind, ErrorKind::UnsupportedType);
    assert!(keyed(DataType::Utf8).is_nullable());
}

fn value() -> Field {
    Field::new("value", DataType::Utf8, true)
}

#[test]
fn a_batch_without_the_columns_it_needs_is_refused_by_name() {
    let other = RecordBatch::try_from_iter([("other", Arc::new(StringArray::from(vec!["x"])) as ArrayRef)]).unwrap();
    let mut projection = Projection::new(Format::Json, &two_columns(), Mode::Permissive, vec![]).unwrap();
    assert_eq!(projection.project(&other).unwrap_err().message, "the batch has no column \"data\"; it has other.");
    let text = RecordBatch::try_from_iter([("data", Arc::new(StringArray::from(vec!["x"])) as ArrayRef)]).unwrap();
    assert!(projection.project(&text).unwrap_err().message.contains("not binary"));
    let mut projection =
        Projection::new(Format::Json, &two_columns(), Mode::Permissive, vec!["publish_time".to_owned()]).unwrap();
    assert!(projection.project(&raw(&[])).unwrap_err().message.contains("publish_time"));
}
