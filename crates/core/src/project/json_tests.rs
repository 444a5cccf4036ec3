//! JSON beyond what the comparison with Spark covers: any document, any bytes.

use std::sync::Arc;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_schema::{DataType, Field, Fields, Schema, TimeUnit};
use serde_json::{Map, Value, json};

use super::lenient::Lenient;
use super::tests::{project, schema};
use super::{Mode, Outcome};

fn any_text() -> String {
    (0..fastrand::usize(0..10)).map(|_| fastrand::char(..)).collect()
}

fn any_value(depth: usize) -> Value {
    match fastrand::u8(..if depth == 0 { 6 } else { 8 }) {
        0 => Value::Null,
        1 => json!(fastrand::bool()),
        2 => json!(fastrand::i64(..)),
        3 => json!(fastrand::u64(..)),
        4 => json!(fastrand::f64() * 10_f64.powi(fastrand::i32(-30..30))),
        5 => json!(any_text()),
        6 => (0..fastrand::usize(0..4)).map(|_| any_value(depth - 1)).collect(),
        _ => Value::Object((0..fastrand::usize(0..4)).map(|_| (any_text(), any_value(depth - 1))).collect()),
    }
}

fn any_document() -> Value {
    let names = ["a", "b", "c", "l", "m", "s", "other"];
    let fields = (0..fastrand::usize(0..6)).map(|_| (names[fastrand::usize(..names.len())].to_owned(), any_value(3)));
    Value::Object(fields.collect::<Map<_, _>>())
}

/// A column of each kind.
fn wide_schema() -> Schema {
    let list = DataType::List(Arc::new(Field::new("element", DataType::Int64, true)));
    let map = Field::new_map(
        "m",
        "entries",
        Field::new("key", DataType::Utf8, false),
        Field::new("value", list.clone(), true),
        false,
        true,
    );
    let inner = Fields::from(vec![
        Field::new("a", DataType::Decimal128(20, 5), true),
        Field::new("b", DataType::Boolean, true),
        map.clone(),
    ]);
    schema(&[
        ("a", DataType::Int64),
        ("b", DataType::Utf8),
        ("c", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
        ("l", list),
        ("m", map.data_type().clone()),
        ("s", DataType::Struct(inner)),
    ])
}

#[test]
fn the_lenient_parser_builds_the_tape_of_simd_json_for_any_valid_document() {
    fastrand::seed(3);
    let mut lenient = Lenient::default();
    for round in 0..2_000 {
        let value = any_value(4);
        let text = if round % 2 == 0 { value.to_string() } else { serde_json::to_string_pretty(&value).unwrap() };
        let mut strict = text.clone().into_bytes();
        let tape = simd_json::to_tape(&mut strict).unwrap();
        lenient.parse(text.as_bytes()).unwrap();
        // Whole numbers may be signed for the one and not for the other.
        let same = |node: &simd_json::Node<'_>| format!("{node:?}").replace("U64", "I64");
        let nodes: Vec<_> = lenient.nodes().iter().map(same).collect();
        assert_eq!(nodes, tape.0.iter().map(same).collect::<Vec<_>>(), "{text}");
    }
}

#[test]
fn any_value_in_a_string_column_reads_back_as_the_same_json() {
    fastrand::seed(5);
    let schema = schema(&[("a", DataType::Utf8)]);
    for _ in 0..500 {
        let value = any_value(4);
        let document = json!({ "a": value }).to_string();
        let projected = project(&schema, Mode::FailFast, &[document.as_bytes()]).unwrap();
        let texts = projected.rows.column(1).as_string::<i32>();
        match &value {
            Value::Null => assert!(texts.is_null(0)),
            Value::String(text) => assert_eq!(texts.value(0), text),
            _ => {
                let (mut back, mut sent) = (texts.value(0).to_owned().into_bytes(), value.to_string().into_bytes());
                let (back, sent) = (simd_json::to_tape(&mut back).unwrap(), simd_json::to_tape(&mut sent).unwrap());
                assert_eq!(back.0, sent.0, "{document}");
            }
        }
    }
}

#[test]
fn whole_numbers_and_strings_of_any_document_arrive_as_they_are() {
    fastrand::seed(9);
    for _ in 0..200 {
        let documents: Vec<_> = (0..20).map(|_| any_document()).collect();
        let texts: Vec<_> = documents.iter().map(Value::to_string).collect();
        let payloads: Vec<_> = texts.iter().map(String::as_bytes).collect();
        let rows = project(&wide_schema(), Mode::Permissive, &payloads).unwrap().rows;
        for (row, document) in documents.iter().enumerate() {
            let numbers = rows.column(1).as_primitive::<Int64Type>();
            assert_eq!(numbers.is_valid(row).then(|| numbers.value(row)), document["a"].as_i64(), "{document}");
            if let Some(text) = document["b"].as_str() {
                assert_eq!(rows.column(2).as_string::<i32>().value(row), text);
            }
        }
    }
}

#[test]
fn noise_is_singled_out_between_good_rows() {
    fastrand::seed(13);
    let good: &[u8] = br#"{"a":7,"b":"good","l":[1,2],"s":{"a":1.5,"b":true}}"#;
    let bend = |document: &[u8]| {
        let mut bent = document.to_vec();
        match fastrand::u8(..4) {
            0 => bent.truncate(fastrand::usize(..bent.len())),
            1 => bent = (0..fastrand::usize(1..80)).map(|_| fastrand::u8(..)).collect(),
            2 => bent[fastrand::usize(..document.len())] = fastrand::u8(..),
            _ => bent.insert(fastrand::usize(..document.len()), b"{}[],:\"'\\0-eNI"[fastrand::usize(..14)]),
        }
        bent
    };
    for _ in 0..3_000 {
        let noise = [bend(good), bend(good), bend(any_document().to_string().as_bytes())];
        let payloads: [&[u8]; 5] = [good, &noise[0], &noise[1], &noise[2], good];
        let projected = project(&wide_schema(), Mode::Permissive, &payloads).unwrap();
        for row in [0, 4] {
            assert!(!projected.corrupt.contains(&row));
            assert_eq!(projected.rows.column(1).as_primitive::<Int64Type>().value(row), 7);
            assert_eq!(projected.rows.column(4).as_list::<i32>().value(row).len(), 2);
        }
        assert_eq!(projected.rows.num_rows(), 5);
    }
}

#[test]
fn a_bad_value_deep_inside_leaves_no_trace_in_the_columns() {
    let payloads: [&[u8]; 4] = [
        br#"{"l":[1,2,"bad"],"m":{"x":[1],"y":["bad"]}}"#,
        br#"{"l":[3],"m":{"z":[4]}}"#,
        br#"{"a":1,"a":2,"l":[5],"l":["bad"],"s":{"a":1,"a":"bad"}}"#,
        br#"{"l":[6]}"#,
    ];
    let projected = project(&wide_schema(), Mode::Permissive, &payloads).unwrap();
    assert_eq!(projected.corrupt, [0, 2]);
    let lists = projected.rows.column(4).as_list::<i32>();
    assert!(lists.is_null(0));
    let items: Vec<_> = lists.values().as_primitive::<Int64Type>().values().to_vec();
    assert_eq!(items, [3, 5, 6]);
    let maps = projected.rows.column(5).as_map();
    assert!(maps.is_null(0));
    assert_eq!(maps.keys().as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["z"]);
    assert_eq!(projected.rows.column(1).as_primitive::<Int64Type>().value(2), 2);
}

#[test]
fn deep_documents_end_at_the_limit_and_not_on_the_stack() {
    let deep = |levels: usize| [b"{\"b\":".to_vec(), b"[".repeat(levels), b"]".repeat(levels), b"}".to_vec()].concat();
    let bomb = b"[".repeat(5_000_000);
    let projected = project(&wide_schema(), Mode::Permissive, &[&deep(999), &deep(1_000), &bomb]).unwrap();
    assert_eq!(projected.corrupt, [1, 2]);
    assert_eq!(projected.rows.column(2).as_string::<i32>().value(0).len(), 2 * 999);
}

#[test]
fn many_exact_decimals_in_one_document_take_linear_time() {
    let element = Field::new("element", DataType::Decimal128(38, 18), true);
    let schema = schema(&[("l", DataType::List(Arc::new(element)))]);
    let document = format!("{{\"l\":[{}]}}", vec!["0.123456789012345678"; 200_000].join(","));
    let projected = project(&schema, Mode::FailFast, &[document.as_bytes()]).unwrap();
    let lists = projected.rows.column(1).as_list::<i32>();
    let decimals = lists.values().as_primitive::<arrow_array::types::Decimal128Type>();
    assert_eq!(decimals.len(), 200_000);
    assert!(decimals.values().iter().all(|decimal| *decimal == 123_456_789_012_345_678));
}

#[test]
fn the_worse_outcome_wins() {
    assert_eq!(Outcome::Whole.and(Outcome::Partial), Outcome::Partial);
    assert_eq!(Outcome::Partial.and(Outcome::Whole), Outcome::Partial);
    assert_eq!(Outcome::Partial.and(Outcome::Failed), Outcome::Failed);
}
