//! Avro: what arrow-avro writes is read back; every type of the specification; any bytes.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Decimal128Type, Int64Type, Time64NanosecondType, TimestampMicrosecondType};
use arrow_array::{Array, RecordBatch};
use arrow_avro::schema::AvroSchema;
use arrow_avro::writer::WriterBuilder;
use arrow_avro::writer::format::{AvroBinaryFormat, AvroSoeFormat};
use arrow_schema::{DataType, Field, Fields, Schema, TimeUnit};
use serde_json::json;

use super::tests::{raw, schema};
use super::{Format, Mode, Projected, Projection};
use crate::error::{Error, ErrorKind, Result};

fn try_project(writer: &str, schema: &Schema, mode: Mode, payloads: &[&[u8]]) -> Result<Projected> {
    let payloads: Vec<_> = payloads.iter().copied().map(Some).collect();
    Projection::new(Format::Avro(writer), schema, mode, vec![])?.project(&raw(&payloads))
}

fn project(writer: &str, columns: &[(&str, DataType)], payloads: &[&[u8]]) -> Projected {
    try_project(writer, &schema(columns), Mode::Permissive, payloads).unwrap()
}

fn refused(writer: &str, columns: &[(&str, DataType)]) -> Error {
    match Projection::new(Format::Avro(writer), &schema(columns), Mode::Permissive, vec![]) {
        Err(error) => error,
        Ok(_) => panic!("{writer} was taken"),
    }
}

/// A record with one field `f` of the given type, as the text of its schema.
fn record(field: serde_json::Value) -> String {
    json!({"type": "record", "name": "r", "fields": [{"name": "f", "type": field}]}).to_string()
}

/// A zigzag number, with which most things start.
fn long(value: i64) -> Vec<u8> {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    let mut bytes = vec![];
    while rest > 0x7f {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

fn sized(bytes: &[u8]) -> Vec<u8> {
    [long(bytes.len() as i64), bytes.to_vec()].concat()
}

const UTC_MICROS: fn() -> DataType = || DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
const NTZ_MICROS: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);

/// Rows of all types that arrow-avro writes, made from random JSON.
fn any_rows() -> RecordBatch {
    let list = DataType::List(Arc::new(Field::new("element", DataType::Utf8, true)));
    let inner = Fields::from(vec![Field::new("x", DataType::Int32, true), Field::new("y", list.clone(), true)]);
    let (key, value) =
        (Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Struct(inner.clone()), true));
    let map = Field::new_map("m", "entries", key, value, false, true);
    let schema = schema(&[
        ("bool", DataType::Boolean),
        ("int", DataType::Int32),
        ("long", DataType::Int64),
        ("float", DataType::Float32),
        ("double", DataType::Float64),
        ("decimal", DataType::Decimal128(20, 4)),
        ("text", DataType::Utf8),
        ("bytes", DataType::Binary),
        ("date", DataType::Date32),
        ("utc", UTC_MICROS()),
        ("ntz", NTZ_MICROS),
        ("list", list),
        ("struct", DataType::Struct(inner)),
        ("map", map.data_type().clone()),
    ]);
    let any = || {
        let (number, short) = (fastrand::i64(..), fastrand::i32(..));
        let nested = json!({"x": short, "y": [number.to_string(), null]});
        let row = json!({
            "bool": short % 2 == 0, "int": short, "long": number, "float": fastrand::f32(), "double": fastrand::f64(),
            "decimal": format!("{}.{}", short, fastrand::u16(..10_000)), "text": format!("{number}é"),
            "bytes": "aGVsbG8=", "date": "2024-02-29", "utc": short, "ntz": "1969-12-31T23:59:59.25",
            "list": [null, "a", short], "struct": nested, "map": {"k": nested, "l": null},
        });
        let keep = |(name, value): (String, serde_json::Value)| (fastrand::u8(..4) > 0).then_some((name, value));
        let row = row.as_object().unwrap().clone().into_iter().filter_map(keep);
        serde_json::Value::Object(row.collect()).to_string()
    };
    let documents: Vec<_> = (0..50).map(|_| any()).collect();
    let documents: Vec<_> = documents.iter().map(|document| Some(document.as_bytes())).collect();
    let mut projection = Projection::new(Format::Json, &schema, Mode::FailFast, vec![]).unwrap();
    projection.project(&raw(&documents)).unwrap().rows
}

fn written<F: arrow_avro::writer::format::AvroFormat>(rows: &RecordBatch) -> (String, Vec<Vec<u8>>) {
    let mut encoder = WriterBuilder::new(rows.schema().as_ref().clone()).build_encoder::<F>().unwrap();
    encoder.encode(rows).unwrap();
    let writer = AvroSchema::try_from(rows.schema().as_ref()).unwrap().json_string;
    (writer, encoder.flush().iter().map(|row| row.to_vec()).collect())
}

#[test]
fn whatever_arrow_avro_writes_is_read_back_with_and_without_a_header() {
    fastrand::seed(17);
    for _ in 0..30 {
        let rows = any_rows();
        for (writer, payloads) in [written::<AvroBinaryFormat>(&rows), written::<AvroSoeFormat>(&rows)] {
            let payloads: Vec<_> = payloads.iter().map(Vec::as_slice).collect();
            let back = try_project(&writer, &rows.schema(), Mode::FailFast, &payloads).unwrap().rows;
            assert_eq!(back, rows);
        }
    }
}

#[test]
fn columns_are_found_by_name_in_any_order_and_missing_ones_are_null() {
    fastrand::seed(19);
    let rows = any_rows();
    let (writer, payloads) = written::<AvroBinaryFormat>(&rows);
    let payloads: Vec<_> = payloads.iter().map(Vec::as_slice).collect();
    let columns = [("text", DataType::Utf8), ("absent", DataType::Int64), ("long", DataType::Int64)];
    let projected = project(&writer, &columns, &payloads);
    assert_eq!(projected.rows.column(0), rows.column_by_name("text").unwrap());
    assert_eq!(projected.rows.column(2), rows.column_by_name("long").unwrap());
    assert_eq!(projected.rows.column(1).null_count(), rows.num_rows());
}

#[test]
fn truncated_bent_and_random_datums_are_singled_out_between_good_ones() {
    fastrand::seed(23);
    let rows = any_rows();
    let (writer, payloads) = written::<AvroBinaryFormat>(&rows);
    let mut projection = Projection::new(Format::Avro(&writer), &rows.schema(), Mode::Permissive, vec![]).unwrap();
    let mut narrow = Projection::new(
        Format::Avro(&writer),
        &schema(&[("map", rows.schema().field(13).data_type().clone())]),
        Mode::Permissive,
        vec![],
    )
    .unwrap();
    for round in 0..6_000 {
        let good = &payloads[round % payloads.len()];
        let mut noise = good.clone();
        match fastrand::u8(..3) {
            0 => noise.truncate(fastrand::usize(..noise.len())),
            1 => noise = (0..fastrand::usize(..60)).map(|_| fastrand::u8(..)).collect(),
            _ => noise[fastrand::usize(..good.len())] = fastrand::u8(..),
        }
        let raw = raw(&[Some(good), Some(&noise), Some(good)]);
        let projected = projection.project(&raw).unwrap();
        for row in [0, 2] {
            assert!(!projected.corrupt.contains(&row));
            assert_eq!(projected.rows.slice(row, 1), rows.slice(round % payloads.len(), 1));
        }
        assert!(!narrow.project(&raw).unwrap().corrupt.contains(&2));
    }
}

#[test]
fn a_truncated_datum_and_one_with_more_bytes_are_malformed_with_a_reason() {
    let writer = record(json!("string"));
    let reason = |payload: &[u8]| {
        try_project(&writer, &schema(&[("f", DataType::Utf8)]), Mode::FailFast, &[payload]).unwrap_err().message
    };
    assert_eq!(reason(b"\x06ab"), "message id-0: no datum of the Avro schema: the datum ends too early at byte 1.");
    assert_eq!(
        reason(b"\x02abc"),
        "message id-0: no datum of the Avro schema: there are bytes after the datum at byte 2."
    );
    assert!(reason(b"\x02\xff").contains("not UTF-8"));
    assert!(reason(b"\x01").contains("negative length"));
    assert!(reason(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff").contains("number has no end"));
}

#[test]
fn a_claim_of_countless_items_allocates_nothing() {
    for items in [json!("null"), json!({"type": "record", "name": "empty", "fields": []}), json!("long")] {
        let writer = record(json!({"type": "array", "items": items}));
        let element = match &items {
            serde_json::Value::String(kind) if kind == "long" => DataType::Int64,
            _ => DataType::Null,
        };
        let list = DataType::List(Arc::new(Field::new("element", element, true)));
        for count in [1 << 20, 1 << 40, i64::MAX, i64::MIN + 1, i64::MIN] {
            let bomb = [long(count), long(0), long(0)].concat();
            assert_eq!(project(&writer, &[("f", list.clone())], &[&bomb]).corrupt, [0]);
            assert_eq!(project(&writer, &[], &[&bomb]).corrupt, [0]);
        }
    }
}

#[test]
fn a_record_that_contains_itself_is_skipped_to_a_bounded_depth() {
    let node = json!({"type": "record", "name": "node", "fields": [
        {"name": "next", "type": ["null", "node"]}, {"name": "f", "type": "long"}]});
    let chain = |depth: usize| [long(1).repeat(depth), long(0), long(5).repeat(depth + 1)].concat();
    let columns = [("f", DataType::Int64)];
    let projected = project(&node.to_string(), &columns, &[&chain(3), &chain(10_000), &chain(0)]);
    assert_eq!(projected.corrupt, [1]);
    assert_eq!(
        projected.rows.column(0).as_primitive::<Int64Type>().iter().collect::<Vec<_>>(),
        [Some(5), None, Some(5)]
    );
}

#[test]
fn a_branch_of_a_union_that_does_not_fit_is_null_in_a_corrupt_row() {
    let writer = record(json!(["null", "long", "string", {"type": "array", "items": "int"}]));
    let payloads =
        [long(0), [long(1), long(7)].concat(), [long(2), sized(b"x")].concat(), [long(3), long(0)].concat(), long(4)];
    let payloads: Vec<_> = payloads.iter().map(Vec::as_slice).collect();
    let projected = project(&writer, &[("f", DataType::Int64)], &payloads);
    assert_eq!(projected.corrupt, [2, 3, 4]);
    assert_eq!(projected.rows.column(0).as_primitive::<Int64Type>().value(1), 7);
    let error = try_project(&writer, &schema(&[("f", DataType::Int64)]), Mode::FailFast, &payloads).unwrap_err();
    assert_eq!(error.message, "message id-2: field \"f\": this string does not fit the type Int64.");
}

#[test]
fn types_that_never_fit_are_refused_at_construction() {
    let cases = [
        (json!("string"), DataType::Int64),
        (json!(["null", "string"]), DataType::Boolean),
        (json!("double"), DataType::Float32),
        (json!("long"), UTC_MICROS()),
        (json!({"type": "array", "items": "string"}), DataType::Utf8),
        (json!({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 4}), DataType::Decimal128(9, 2)),
    ];
    for (writer, column) in cases {
        let error = refused(&record(writer), &[("f", column)]);
        assert_eq!(error.kind, ErrorKind::UnsupportedType);
        assert!(error.message.contains("column \"f\": the Avro type"), "{error}");
    }
}

#[test]
fn enums_fixed_and_uuids_are_read() {
    let colour = json!({"type": "enum", "name": "colour", "symbols": ["RED", "BLUE"]});
    let projected = project(&record(colour), &[("f", DataType::Utf8)], &[&long(1), &long(2), &long(-1)]);
    assert_eq!(projected.rows.column(0).as_string::<i32>().value(0), "BLUE");
    assert_eq!(projected.corrupt, [1, 2]);
    let id: Vec<u8> = (0..16).collect();
    let fixed = json!({"type": "fixed", "name": "id", "size": 16, "logicalType": "uuid"});
    let text = "00010203-0405-0607-0809-0a0b0c0d0e0f";
    let projected = project(&record(fixed.clone()), &[("f", DataType::Utf8)], &[&id]);
    assert_eq!(projected.rows.column(0).as_string::<i32>().value(0), text);
    assert_eq!(
        project(&record(fixed), &[("f", DataType::Binary)], &[&id]).rows.column(0).as_binary::<i32>().value(0),
        id
    );
    let uuid = json!({"type": "string", "logicalType": "uuid"});
    let projected = project(&record(uuid), &[("f", DataType::Utf8)], &[&sized(text.as_bytes())]);
    assert_eq!(projected.rows.column(0).as_string::<i32>().value(0), text);
}

#[test]
fn dates_times_and_timestamps_of_every_unit_are_read() {
    let logical = |kind: &str, name: &str| record(json!({"type": kind, "logicalType": name}));
    let micros = |kind: &str, column: DataType, value: i64| {
        let rows = project(&logical("long", kind), &[("f", column)], &[&long(value)]).rows;
        rows.column(0).as_primitive::<TimestampMicrosecondType>().value(0)
    };
    assert_eq!(micros("timestamp-millis", UTC_MICROS(), -1), -1_000);
    assert_eq!(micros("timestamp-micros", UTC_MICROS(), 5), 5);
    assert_eq!(micros("timestamp-nanos", UTC_MICROS(), -1), -1);
    assert_eq!(micros("local-timestamp-millis", NTZ_MICROS, 7), 7_000);
    assert_eq!(micros("local-timestamp-nanos", NTZ_MICROS, 7_999), 7);
    let overflow = project(&logical("long", "timestamp-millis"), &[("f", UTC_MICROS())], &[&long(i64::MAX)]);
    assert_eq!(overflow.corrupt, [0]);
    let date = project(&logical("int", "date"), &[("f", DataType::Date32)], &[&long(-3), &long(1 << 40)]);
    assert_eq!((date.rows.column(0).as_primitive::<Date32Type>().value(0), date.corrupt), (-3, vec![1]));
    let clock = DataType::Time64(TimeUnit::Nanosecond);
    let time = project(&logical("int", "time-millis"), &[("f", clock.clone())], &[&long(5), &long(86_400_000)]);
    assert_eq!(
        (time.rows.column(0).as_primitive::<Time64NanosecondType>().value(0), time.corrupt),
        (5_000_000, vec![1])
    );
    let time = project(&logical("long", "time-micros"), &[("f", clock)], &[&long(5)]);
    assert_eq!(time.rows.column(0).as_primitive::<Time64NanosecondType>().value(0), 5_000);
}

#[test]
fn decimals_are_rescaled_and_too_large_ones_are_mismatches() {
    let decimal = json!({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2});
    let payloads: Vec<_> =
        [&[0xff][..], &[0x01, 0x00], &[], &[0x7f; 17], &[0xff; 20]].iter().map(|bytes| sized(bytes)).collect();
    let payloads: Vec<_> = payloads.iter().map(Vec::as_slice).collect();
    let projected = project(&record(decimal), &[("f", DataType::Decimal128(10, 4))], &payloads);
    let values: Vec<_> = projected.rows.column(0).as_primitive::<Decimal128Type>().iter().collect();
    assert_eq!(values, [Some(-100), Some(25_600), Some(0), None, Some(-100)]);
    assert_eq!(projected.corrupt, [3]);
    let fixed = json!({"type": "fixed", "name": "d", "size": 2, "logicalType": "decimal", "precision": 4});
    let projected = project(&record(fixed), &[("f", DataType::Decimal128(4, 0))], &[&[0xff, 0x00]]);
    assert_eq!(projected.rows.column(0).as_primitive::<Decimal128Type>().value(0), -256);
}

#[test]
fn numbers_widen_and_out_of_range_ones_are_mismatches() {
    let writer = record(json!("long"));
    let payloads: [&[u8]; 2] = [&long(127), &long(128)];
    assert_eq!(project(&writer, &[("f", DataType::Int8)], &payloads).corrupt, [1]);
    assert_eq!(project(&writer, &[("f", DataType::Float64)], &payloads).corrupt, [0; 0]);
    assert_eq!(project(&writer, &[("f", DataType::Decimal128(3, 1))], &payloads).corrupt, [0, 1]);
    let text = project(&record(json!("bytes")), &[("f", DataType::Utf8)], &[&sized(b"ok"), &sized(b"\xff")]);
    assert_eq!(text.corrupt, [1]);
}

#[test]
fn a_header_of_another_schema_is_not_taken_for_ours() {
    let writer = record(json!("string"));
    let foreign = [&[0xc3, 0x01][..], &[7; 8], &sized(b"x")].concat();
    assert_eq!(project(&writer, &[("f", DataType::Utf8)], &[&foreign]).corrupt, [0]);
}

#[test]
fn names_are_resolved_within_their_namespace() {
    let writer = json!({"type": "record", "name": "outer", "namespace": "a.b", "fields": [
        {"name": "x", "type": {"type": "fixed", "name": "id", "size": 1}},
        {"name": "f", "type": {"type": "array", "items": "id"}},
        {"name": "g", "type": ["null", "a.b.id"]}]});
    let list = DataType::List(Arc::new(Field::new("element", DataType::Binary, true)));
    let datum = [b"x".to_vec(), long(2), b"yz".to_vec(), long(0), long(1), b"g".to_vec()].concat();
    let projected = project(&writer.to_string(), &[("f", list), ("g", DataType::Binary)], &[&datum]);
    assert_eq!(projected.rows.column(0).as_list::<i32>().values().as_binary::<i32>().value(1), b"z");
    assert_eq!(projected.rows.column(1).as_binary::<i32>().value(0), b"g");
}

#[test]
fn schemas_that_cannot_be_used_are_refused_with_a_reason() {
    let cases = [
        ("{", "no JSON"),
        ("\"string\"", "no record"),
        (&record(json!("unknown")), "not defined"),
        (&record(json!({"type": "fixed", "name": "x"})), "without a size"),
        (&record(json!(3)), "is no type"),
        (r#"{"type":"record","name":"r"}"#, "no fields"),
        (
            r#"{"type":"record","name":"r","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}"#,
            "two fields",
        ),
    ];
    for (writer, reason) in cases {
        let error = refused(writer, &[]);
        assert_eq!(error.kind, ErrorKind::Config);
        assert!(error.message.contains(reason), "{error}");
    }
}
