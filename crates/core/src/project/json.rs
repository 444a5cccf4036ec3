//! JSON payloads into columns, with the values that Spark's `from_json` gives.
//!
//! A document is first parsed whole, by simd-json into a tape of nodes; one that simd-json refuses is tried again with
//! the leniency of Spark's parser ([`lenient`]). Only then anything is appended: a malformed document costs no more
//! than its parse.

use std::cell::Cell;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use simd_json::{Buffers, INPUT_PADDING, Node, StaticNode, Tape, fill_tape_padded};

use super::column::{Bytes, Column, Fields, Offsets, Values};
use super::document::{Document, Starts, width, write_json};
use super::lenient::{self, Lenient};
use super::{Fault, Outcome, numbers, times};

/// Padding is needed; bits beyond the last byte are not looked at.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// Parses documents; keeps its buffers from one to the next.
pub(super) struct Decoder {
    scratch: Vec<u8>,
    buffers: Buffers,
    tape: Tape<'static>,
    lenient: Lenient,
}

impl Decoder {
    pub fn new() -> Self {
        Self {
            scratch: vec![],
            buffers: Buffers::with_max_depth(1_024, lenient::MAX_DEPTH),
            tape: Tape(vec![]),
            lenient: Lenient::default(),
        }
    }

    /// Append a document to the columns as one row, or say why it is malformed and append nothing.
    pub fn append(&mut self, source: &[u8], row: &mut Fields, fault: &mut Fault) -> Outcome {
        self.scratch.clear();
        self.scratch.extend_from_slice(source);
        self.scratch.resize(source.len() + INPUT_PADDING, b' ');
        let mut tape = std::mem::replace(&mut self.tape, Tape(vec![])).reset();
        let parsed = fill_tape_padded(&mut self.scratch, source.len(), &mut self.buffers, &mut tape);
        let outcome = match parsed {
            Ok(()) => {
                let starts = Starts::Structural(self.buffers.structural_indexes(), Cell::new((0, 0)));
                append_root(&Document { nodes: &tape.0, source, starts }, row, fault)
            }
            Err(_) => append_leniently(&mut self.lenient, source, row, fault),
        };
        self.tape = tape.reset();
        outcome
    }
}

#[cold]
fn append_leniently(parser: &mut Lenient, source: &[u8], row: &mut Fields, fault: &mut Fault) -> Outcome {
    if source.iter().all(|byte| lenient::is_space(*byte)) {
        return Outcome::Blank;
    }
    match parser.parse(source) {
        Ok(()) => {
            let nodes = parser.nodes();
            let starts = Starts::Nodes(parser.starts());
            append_root(&Document { nodes: &nodes, source: parser.source(), starts }, row, fault)
        }
        Err((at, reason)) => {
            fault.say(|| format!("no JSON: {reason} at byte {at}"));
            Outcome::Failed
        }
    }
}

fn append_root(document: &Document<'_>, row: &mut Fields, fault: &mut Fault) -> Outcome {
    if !matches!(document.nodes.first(), Some(Node::Object { .. })) {
        fault.say(|| "the document is no object".to_owned());
        return Outcome::Failed;
    }
    append_object(document, 0, row, fault)
}

/// Append the object at `at` as a row of `fields`; never [`Outcome::Failed`].
fn append_object(document: &Document<'_>, at: usize, fields: &mut Fields, fault: &mut Fault) -> Outcome {
    let Node::Object { len, .. } = document.nodes[at] else { return Outcome::Failed };
    let mut outcome = Outcome::Whole;
    let mut node = at + 1;
    for place in 0..len {
        let Node::String(name) = document.nodes[node] else { return Outcome::Failed };
        node += 1;
        if let Some(index) = fields.find_at(place, name) {
            let column = &mut fields.columns[index];
            if column.len() > fields.rows {
                fields.take_back();
                return append_object_with_repeated_names(document, at, fields, fault);
            }
            outcome = outcome.and(append_field(document, node, column, fault));
        }
        node += width(&document.nodes[node]);
    }
    fields.end_row();
    outcome
}

/// Append a value, or null where it does not fit.
#[inline]
fn append_field(document: &Document<'_>, at: usize, column: &mut Column, fault: &mut Fault) -> Outcome {
    match append(document, at, column, fault) {
        Outcome::Failed => {
            column.append_null();
            Outcome::Partial
        }
        appended => appended,
    }
}

/// Of values with one name the last that fits is taken; each that does not makes the row corrupt.
#[cold]
fn append_object_with_repeated_names(
    document: &Document<'_>,
    at: usize,
    fields: &mut Fields,
    fault: &mut Fault,
) -> Outcome {
    let Node::Object { len, .. } = document.nodes[at] else { return Outcome::Failed };
    let mut outcome = Outcome::Whole;
    let mut fitting = vec![None; fields.columns.len()];
    let mut node = at + 1;
    for _ in 0..len {
        let Node::String(name) = document.nodes[node] else { return Outcome::Failed };
        node += 1;
        if let Some(index) = fields.find(name) {
            let column = &mut fields.columns[index];
            match append(document, node, column, fault) {
                Outcome::Failed => outcome = Outcome::Partial,
                fits => {
                    outcome = outcome.and(fits);
                    fitting[index] = Some(node);
                }
            }
            column.truncate(fields.rows);
        }
        node += width(&document.nodes[node]);
    }
    for (column, node) in fields.columns.iter_mut().zip(fitting) {
        if let Some(node) = node {
            append(document, node, column, fault);
        }
    }
    fields.end_row();
    outcome
}

/// Append a value; [`Outcome::Failed`] if it does not fit, and then the column is as it was.
#[inline]
fn append(document: &Document<'_>, at: usize, column: &mut Column, fault: &mut Fault) -> Outcome {
    let node = &document.nodes[at];
    if let Node::Static(StaticNode::Null) = node {
        column.append_null();
        return Outcome::Whole;
    }
    let mut outcome = Outcome::Whole;
    let fits = match (&mut column.values, node) {
        (Values::Text(values), Node::String(text)) => push(text.as_bytes(), |text| values.push(text)),
        (Values::Int64(values), Node::Static(number)) => put(integer(number), values),
        (Values::Int32(values), Node::Static(number)) => put(integer(number), values),
        (Values::Int16(values), Node::Static(number)) => put(integer(number), values),
        // Spark's parser takes 128 to 255 as unsigned bytes.
        (Values::Int8(values), Node::Static(number)) => {
            let byte = integer::<i16>(number).filter(|byte| (-128..=255).contains(byte));
            put(byte.map(|byte| byte as i8), values)
        }
        (Values::Float64(values), Node::Static(number)) => put(double(number), values),
        (Values::Float64(values), Node::String(text)) => put(special_double(text), values),
        (Values::Float32(values), Node::Static(number)) => put(float(document, at, number), values),
        (Values::Float32(values), Node::String(text)) => put(special_double(text).map(|value| value as f32), values),
        (Values::Boolean(values), Node::Static(StaticNode::Bool(value))) => push(*value, |value| values.append(value)),
        (Values::Timestamp(values), Node::String(text)) => put(times::timestamp(text), values),
        // Seconds since 1970; Spark lets the product overflow.
        (Values::Timestamp(values), Node::Static(number)) => {
            put(integer::<i64>(number).map(|seconds| seconds.wrapping_mul(1_000_000)), values)
        }
        (Values::TimestampNtz(values), Node::String(text)) => put(times::timestamp_ntz(text), values),
        (Values::Date(values), Node::String(text)) => put(times::date(text), values),
        (Values::Time(values), Node::String(text)) => put(times::time(text), values),
        (Values::DayTime(values), Node::String(text)) => put(times::day_time_interval(text), values),
        (Values::Decimal(values, precision, scale), node) => {
            put(decimal(document, at, node, *precision, *scale), values)
        }
        (Values::Binary(values), Node::String(text)) => append_base64(text.as_bytes(), values),
        (Values::Text(values), _) => {
            write_json(document, at, &mut values.bytes);
            values.end();
            true
        }
        (Values::List(offsets, element), Node::Array { len, .. }) => {
            outcome = append_list(document, at + 1, *len, element, fault);
            offsets_end(outcome, offsets, element)
        }
        (Values::Map(offsets, keys, value), Node::Object { len, .. }) => {
            outcome = append_map(document, at + 1, *len, (keys, value), fault);
            offsets_end(outcome, offsets, value)
        }
        (Values::Struct(fields), Node::Object { .. }) => {
            outcome = append_object(document, at, fields, fault);
            true
        }
        (Values::Null(_), _) => {
            column.append_null();
            return Outcome::Whole;
        }
        _ => false,
    };
    if fits {
        column.append_valid();
        outcome
    } else {
        fault.say(|| {
            let found = describe(&document.nodes[at]);
            format!("field {:?}: {found} does not fit the type {}", column.path, column.field.data_type())
        });
        Outcome::Failed
    }
}

#[inline]
fn push<T>(value: T, into: impl FnOnce(T)) -> bool {
    into(value);
    true
}

#[inline]
fn put<T>(value: Option<T>, values: &mut Vec<T>) -> bool {
    value.map(|value| values.push(value)).is_some()
}

fn offsets_end(outcome: Outcome, offsets: &mut Offsets, items: &Column) -> bool {
    let fits = outcome != Outcome::Failed;
    if fits {
        offsets.end(items.len());
    }
    fits
}

/// One element that does not fit spoils the whole array; a struct with such a field does not.
fn append_list(
    document: &Document<'_>,
    mut node: usize,
    len: usize,
    element: &mut Column,
    fault: &mut Fault,
) -> Outcome {
    let before = element.len();
    let mut outcome = Outcome::Whole;
    for _ in 0..len {
        outcome = outcome.and(append(document, node, element, fault));
        if outcome == Outcome::Failed {
            element.truncate(before);
            break;
        }
        node += width(&document.nodes[node]);
    }
    outcome
}

/// Names that come more than once stay, as in Spark; one value that does not fit spoils the whole map.
fn append_map(
    document: &Document<'_>,
    mut node: usize,
    len: usize,
    (keys, value): (&mut Bytes, &mut Column),
    fault: &mut Fault,
) -> Outcome {
    let before = value.len();
    let mut outcome = Outcome::Whole;
    for _ in 0..len {
        let Node::String(name) = document.nodes[node] else { return Outcome::Failed };
        keys.push(name.as_bytes());
        outcome = outcome.and(append(document, node + 1, value, fault));
        if outcome == Outcome::Failed {
            keys.truncate(before);
            value.truncate(before);
            break;
        }
        node += 1 + width(&document.nodes[node + 1]);
    }
    outcome
}

#[inline]
fn integer<T: TryFrom<i64> + TryFrom<u64>>(node: &StaticNode) -> Option<T> {
    match node {
        StaticNode::U64(number) => T::try_from(*number).ok(),
        StaticNode::I64(number) => T::try_from(*number).ok(),
        _ => None,
    }
}

fn double(node: &StaticNode) -> Option<f64> {
    match node {
        StaticNode::F64(number) => Some(*number),
        StaticNode::U64(number) => Some(*number as f64),
        StaticNode::I64(number) => Some(*number as f64),
        _ => None,
    }
}

fn float(document: &Document<'_>, at: usize, node: &StaticNode) -> Option<f32> {
    Some(match node {
        // The middle between two floats: the double may have been rounded to it, and then rounding again goes astray.
        StaticNode::F64(number) if number.to_bits() & 0x1fff_ffff == 0x1000_0000 => {
            document.number(at)?.parse().unwrap_or(*number as f32)
        }
        StaticNode::F64(number) => *number as f32,
        StaticNode::U64(number) => *number as f32,
        StaticNode::I64(number) => *number as f32,
        _ => return None,
    })
}

fn special_double(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" | "+Infinity" | "+INF" => Some(f64::INFINITY),
        "-Infinity" | "-INF" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

fn decimal(document: &Document<'_>, at: usize, node: &Node<'_>, precision: u8, scale: i8) -> Option<i128> {
    match node {
        Node::Static(StaticNode::U64(number)) => numbers::whole_decimal(i128::from(*number), precision, scale),
        Node::Static(StaticNode::I64(number)) => numbers::whole_decimal(i128::from(*number), precision, scale),
        Node::Static(StaticNode::F64(_)) => numbers::decimal(document.number(at)?.as_bytes(), precision, scale),
        Node::String(text) if text.contains(',') => {
            numbers::decimal(text.replace(',', "").as_bytes(), precision, scale)
        }
        Node::String(text) => numbers::decimal(text.as_bytes(), precision, scale),
        _ => None,
    }
}

/// Groups of four with padding, white space before each.
fn append_base64(text: &[u8], values: &mut Bytes) -> bool {
    let before = values.bytes.len();
    let mut rest = text;
    loop {
        rest = rest.trim_ascii_start();
        while let [..=b' ', after @ ..] = rest {
            rest = after;
        }
        if rest.is_empty() {
            values.end();
            return true;
        }
        let mut group = [0; 3];
        match rest.get(..4).map(|four| BASE64.decode_slice(four, &mut group)) {
            Some(Ok(len)) => values.bytes.extend_from_slice(&group[..len]),
            _ => {
                values.bytes.truncate(before);
                return false;
            }
        }
        rest = &rest[4..];
    }
}

fn describe(node: &Node<'_>) -> &'static str {
    match node {
        Node::String(_) => "this string",
        Node::Object { .. } => "an object",
        Node::Array { .. } => "this array",
        Node::Static(StaticNode::Bool(_)) => "a boolean",
        Node::Static(StaticNode::Null) => "null",
        Node::Static(_) => "this number",
    }
}
