use std::sync::Arc;

use arrow_array::builder::{MapBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DurationMicrosecondArray, Float32Array,
    Float64Array, Int64Array, ListArray, NullArray, RecordBatch, StringArray, StructArray, Time64NanosecondArray,
    TimestampMicrosecondArray,
};
use arrow_schema::{DataType, Field};

use super::*;

fn json(columns: Vec<(&str, ArrayRef)>) -> Vec<String> {
    let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true))).unwrap();
    let messages = Composer::new(batch.schema(), Parts::default(), None).unwrap().compose(&batch).unwrap();
    payloads(&messages)
}

fn payloads(messages: &RecordBatch) -> Vec<String> {
    let data = messages.column_by_name("data").unwrap().as_binary::<i64>();
    data.iter().map(|payload| String::from_utf8(payload.unwrap().to_vec()).unwrap()).collect()
}

fn values(array: impl Array + 'static) -> Vec<String> {
    let rows = json(vec![("c", Arc::new(array))]);
    rows.iter().map(|row| row.strip_prefix("{\"c\":").unwrap().strip_suffix('}').unwrap().to_owned()).collect()
}

#[test]
fn null_fields_are_left_out_and_null_elements_are_not() {
    let numbers = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), None]), None, Some(vec![])]);
    let inner: ArrayRef = Arc::new(Int64Array::from(vec![Some(7), None, None]));
    let inner = StructArray::from(vec![(Arc::new(Field::new("x", DataType::Int64, true)), inner)]);
    let rows = json(vec![
        ("a", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]))),
        ("n", Arc::new(NullArray::new(3))),
        ("l", Arc::new(numbers)),
        ("s", Arc::new(inner)),
    ]);
    assert_eq!(rows, [r#"{"a":true,"l":[1,null],"s":{"x":7}}"#, r#"{"s":{}}"#, r#"{"a":false,"l":[],"s":{}}"#]);
}

#[test]
fn a_slice_is_written_from_where_it_starts() {
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>((0..6).map(|n| Some(vec![Some(n); n as usize])));
    let texts = StringArray::from(vec!["a", "b", "c", "d", "e", "f"]);
    let rows = json(vec![("l", lists.slice(2, 2).into_data_ref()), ("t", texts.slice(2, 2).into_data_ref())]);
    assert_eq!(rows, [r#"{"l":[2,2],"t":"c"}"#, r#"{"l":[3,3,3],"t":"d"}"#]);
}

trait IntoRef {
    fn into_data_ref(self) -> ArrayRef;
}

impl<A: Array + 'static> IntoRef for A {
    fn into_data_ref(self) -> ArrayRef {
        Arc::new(self)
    }
}

#[test]
fn floating_point_numbers_are_as_java_prints_them() {
    let given = vec![0.0, -0.0, 0.1, 1e7, 9_999_999.0, 1e-3, 9.999e-4, 5e-324, f64::MAX, f64::NAN, f64::NEG_INFINITY];
    let expected = [
        "0.0",
        "-0.0",
        "0.1",
        "1.0E7",
        "9999999.0",
        "0.001",
        "9.999E-4",
        "4.9E-324",
        "1.7976931348623157E308",
        "\"NaN\"",
        "\"-Infinity\"",
    ];
    assert_eq!(values(Float64Array::from(given)), expected);
    let given = vec![0.1_f32, 1e10, 1e-45, f32::MAX, f32::INFINITY];
    assert_eq!(values(Float32Array::from(given)), ["0.1", "1.0E10", "1.4E-45", "3.4028235E38", "\"Infinity\""]);
}

#[test]
fn decimals_are_as_java_prints_them() {
    let of = |values: Vec<i128>, precision, scale| {
        Decimal128Array::from(values).with_precision_and_scale(precision, scale).unwrap()
    };
    assert_eq!(values(of(vec![12_345, -5, 0], 10, 2)), ["123.45", "-0.05", "0.00"]);
    assert_eq!(values(of(vec![10, 1, 123, 0], 10, 7)), ["0.0000010", "1E-7", "0.0000123", "0E-7"]);
    assert_eq!(values(of(vec![123, -12], 38, 18)), ["1.23E-16", "-1.2E-17"]);
    assert_eq!(values(of(vec![10_i128.pow(38) - 1], 38, 0)), ["9".repeat(38)]);
}

#[test]
fn strings_are_escaped_and_bytes_are_base64() {
    let text = "a\"b\\c/\n\t\u{8}\u{c}\r\u{1}\u{1f}\u{7f}é😀";
    assert_eq!(
        values(StringArray::from(vec![text, ""])),
        ["\"a\\\"b\\\\c/\\n\\t\\b\\f\\r\\u0001\\u001F\u{7f}é😀\"", "\"\""]
    );
    assert_eq!(values(BinaryArray::from(vec![&[0, 255, 16][..], b""])), ["\"AP8Q\"", "\"\""]);
}

#[test]
fn dates_and_times_are_iso_8601_in_utc() {
    let days = vec![19_782, -719_162, -719_528, -719_529, 2_932_897, i32::MAX, i32::MIN];
    let expected =
        ["2024-02-29", "0001-01-01", "0000-01-01", "-0001-12-31", "+10000-01-01", "+5881580-07-11", "-5877641-06-23"];
    assert_eq!(values(Date32Array::from(days)), expected.map(|date| format!("\"{date}\"")));
    let micros = vec![1_709_210_096_789_000, 1_709_210_096_789_012, -1, i64::MAX, i64::MIN];
    let expected = [
        "2024-02-29T12:34:56.789",
        "2024-02-29T12:34:56.789012",
        "1969-12-31T23:59:59.999999",
        "+294247-01-10T04:00:54.775807",
        "-290308-12-21T19:59:05.224192",
    ];
    let local = TimestampMicrosecondArray::from(micros);
    assert_eq!(values(local.clone()), expected.map(|time| format!("\"{time}\"")));
    assert_eq!(values(local.with_timezone("Europe/Berlin")), expected.map(|time| format!("\"{time}Z\"")));
    let nanos = vec![0, 45_296_789_012_000, 45_296_500_000_000];
    assert_eq!(values(Time64NanosecondArray::from(nanos)), ["\"00:00:00\"", "\"12:34:56.789012\"", "\"12:34:56.5\""]);
    let micros = vec![93_784_500_000, -5, i64::MIN];
    let expected = ["1 02:03:04.5", "-0 00:00:00.000005", "-106751991 04:00:54.775808"];
    let expected = expected.map(|text| format!("\"INTERVAL '{text}' DAY TO SECOND\""));
    assert_eq!(values(DurationMicrosecondArray::from(micros)), expected);
}

fn attributes(rows: &[&[(&str, Option<&str>)]]) -> ArrayRef {
    let mut builder = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    for row in rows {
        for (name, value) in *row {
            builder.keys().append_value(name);
            builder.values().append_option(*value);
        }
        builder.append(true).unwrap();
    }
    Arc::new(builder.finish())
}

fn stamped(batch: &RecordBatch, times: usize) -> Result<Vec<Vec<(String, String)>>> {
    let parts = Parts {
        data: Some("Data".to_owned()),
        attributes: batch.column_by_name("attributes").map(|_| "attributes".to_owned()),
        ordering_key: None,
    };
    let stamp = Stamp { attribute: "id".to_owned(), prefix: "q/1/2".to_owned() };
    let mut composer = Composer::new(batch.schema(), parts, Some(stamp))?;
    let mut rows = vec![];
    for _ in 0..times {
        let messages = composer.compose(batch)?;
        let columns = Columns::of(&messages)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        rows.extend((0..messages.num_rows()).map(|row| {
            let found = columns.attributes(row).filter_map(|entry| columns.attribute(entry));
            found.map(|(name, value)| (text(name), text(value))).collect::<Vec<_>>()
        }));
    }
    Ok(rows)
}

#[test]
fn a_stamp_names_the_row_and_its_content_next_to_the_other_attributes() {
    let data: ArrayRef = Arc::new(StringArray::from(vec!["same", "same"]));
    let plain = RecordBatch::try_from_iter([("Data", data.clone())]).unwrap();
    let stamps = stamped(&plain, 2).unwrap();
    let checksum = stamps[0][0].1.rsplit('/').next().unwrap().to_owned();
    let expected: Vec<_> = (0..4).map(|row| vec![("id".to_owned(), format!("q/1/2/{row}/{checksum}"))]).collect();
    assert_eq!(stamps, expected);

    let others = attributes(&[&[("a", Some("x")), ("gone", None)], &[]]);
    let batch = RecordBatch::try_from_iter([("Data", data), ("attributes", others)]).unwrap();
    let rows = stamped(&batch, 1).unwrap();
    assert_eq!(rows[0][0], ("a".to_owned(), "x".to_owned()));
    assert_eq!(rows[0].len(), 2);
    assert_ne!(rows[0][1].1, format!("q/1/2/0/{checksum}"), "the content differs");
    assert_eq!(rows[1], [("id".to_owned(), format!("q/1/2/1/{checksum}"))]);
}

#[test]
fn an_attribute_with_the_name_of_the_stamp_is_an_error_that_names_the_row() {
    let data: ArrayRef = Arc::new(StringArray::from(vec!["x", "y"]));
    let batch =
        RecordBatch::try_from_iter([("Data", data), ("attributes", attributes(&[&[], &[("id", Some("1"))]]))]).unwrap();
    let error = stamped(&batch, 1).unwrap_err();
    assert!(error.to_string().starts_with("row 1 of column 'attributes'"), "{error}");
}

#[test]
fn maps_are_objects_and_keys_that_are_no_names_are_refused() {
    let map = attributes(&[&[("k\"", Some("v")), ("n", None)], &[]]);
    assert_eq!(json(vec![("m", map)]), [r#"{"m":{"k\"":"v","n":null}}"#, r#"{"m":{}}"#]);
    let mut builder = MapBuilder::new(None, arrow_array::builder::Date32Builder::new(), StringBuilder::new());
    builder.append(true).unwrap();
    let batch = RecordBatch::try_from_iter([("m", Arc::new(builder.finish()) as ArrayRef)]).unwrap();
    let error = Composer::new(batch.schema(), Parts::default(), None).unwrap_err();
    assert_eq!(error.kind, ErrorKind::UnsupportedType);
    assert!(error.message.contains("m.key"), "{error}");
}
