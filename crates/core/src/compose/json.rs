//! Rows as JSON objects, in the text of Spark's `to_json`: a field that is null is left out, an element or an entry of a map
//! that is null is `null`, numbers are as Java prints them.

use std::io::Write;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, DurationMicrosecondType, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, Time64NanosecondType, TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef, LargeBinaryArray, MapArray};
use arrow_buffer::{ArrowNativeType, Buffer, NullBuffer, OffsetBuffer};
use arrow_schema::{ArrowError, DataType, FieldRef, TimeUnit};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::times;
use crate::error::{Error, ErrorKind, Result};
use crate::project::numbers;
use crate::pubsub::publish::Cells;

/// The marks by which Spark's types that travel as structs can be told.
const MARKS: [&str; 3] = ["variant", "geometry", "geography"];

/// The fields of objects: those of the rows themselves, or of a struct in them.
pub(super) struct Object<'a> {
    /// Each with its name as it stands in front of the value.
    fields: Vec<(Vec<u8>, Column<'a>)>,
}

/// The values of a column.
struct Column<'a> {
    nulls: Option<NullBuffer>,
    write: WriteValue<'a>,
}

/// Writes the value of a row that is not null.
type WriteValue<'a> = Box<dyn Fn(usize, &mut Vec<u8>) + 'a>;

impl<'a> Object<'a> {
    /// Objects of these columns; `path` is where they are, for errors.
    pub fn new(columns: impl Iterator<Item = (&'a FieldRef, &'a ArrayRef)>, path: &str) -> Result<Self> {
        let fields = columns.map(|(field, array)| {
            let mut name = vec![];
            write_string(field.name().as_bytes(), &mut name);
            name.push(b':');
            Ok((name, Column::new(array, &join(path, field.name()))?))
        });
        Ok(Self { fields: fields.collect::<Result<_>>()? })
    }

    /// All rows.
    pub fn rows(&self, count: usize) -> std::result::Result<LargeBinaryArray, ArrowError> {
        let mut text = vec![];
        let mut ends = Vec::with_capacity(count + 1);
        ends.push(0);
        for row in 0..count {
            self.write(row, &mut text);
            ends.push(text.len() as i64);
        }
        LargeBinaryArray::try_new(OffsetBuffer::new(ends.into()), Buffer::from_vec(text), None)
    }

    fn write(&self, row: usize, into: &mut Vec<u8>) {
        into.push(b'{');
        let mut first = true;
        for (name, column) in &self.fields {
            if column.is_valid(row) {
                if !first {
                    into.push(b',');
                }
                first = false;
                into.extend_from_slice(name);
                (column.write)(row, into);
            }
        }
        into.push(b'}');
    }
}

impl<'a> Column<'a> {
    fn new(array: &'a ArrayRef, path: &str) -> Result<Self> {
        Ok(Self { nulls: array.logical_nulls(), write: writer(array, path)? })
    }

    #[inline]
    fn is_valid(&self, row: usize) -> bool {
        self.nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row))
    }

    /// Where a null has to be said.
    fn write_or_null(&self, row: usize, into: &mut Vec<u8>) {
        if self.is_valid(row) {
            (self.write)(row, into);
        } else {
            into.extend_from_slice(b"null");
        }
    }
}

fn writer<'a>(array: &'a ArrayRef, path: &str) -> Result<WriteValue<'a>> {
    Ok(match array.data_type() {
        DataType::Null => Box::new(|_, _| ()),
        DataType::Boolean => {
            let array = array.as_boolean();
            Box::new(|row, into| into.extend_from_slice(if array.value(row) { b"true" } else { b"false" }))
        }
        DataType::Int8 => integers::<Int8Type>(array),
        DataType::Int16 => integers::<Int16Type>(array),
        DataType::Int32 => integers::<Int32Type>(array),
        DataType::Int64 => integers::<Int64Type>(array),
        DataType::Float32 => values::<Float32Type>(array, |value, into| {
            or_quoted(value.is_finite(), into, |into| numbers::write_float(value, into));
        }),
        DataType::Float64 => values::<Float64Type>(array, |value, into| {
            or_quoted(value.is_finite(), into, |into| numbers::write_double(value, into));
        }),
        DataType::Decimal128(_, scale) => {
            let scale = *scale;
            values::<Decimal128Type>(array, move |value, into| numbers::write_decimal(value, scale, into))
        }
        DataType::Utf8 | DataType::LargeUtf8 => texts(array, path, write_string)?,
        DataType::Binary | DataType::LargeBinary => {
            texts(array, path, |bytes, into| quoted(into, |into| write_base64(bytes, into)))?
        }
        DataType::Date32 => values::<Date32Type>(array, |days, into| {
            quoted(into, |into| times::write_date(days.into(), into));
        }),
        DataType::Timestamp(TimeUnit::Microsecond, zone) => {
            let zone: &[u8] = if zone.is_some() { b"Z" } else { b"" };
            values::<TimestampMicrosecondType>(array, move |micros, into| {
                quoted(into, |into| times::write_timestamp(micros, zone, into));
            })
        }
        DataType::Time64(TimeUnit::Nanosecond) => values::<Time64NanosecondType>(array, |nanos, into| {
            quoted(into, |into| times::write_time(nanos, into));
        }),
        DataType::Duration(TimeUnit::Microsecond) => values::<DurationMicrosecondType>(array, |micros, into| {
            quoted(into, |into| times::write_interval(micros, into));
        }),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            elements(list.value_offsets(), list.values(), path)?
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            elements(list.value_offsets(), list.values(), path)?
        }
        DataType::Map(..) => entries(array.as_map(), path)?,
        DataType::Struct(fields) => {
            if let Some(mark) = fields.iter().find_map(mark_of) {
                return Err(refused(path, mark));
            }
            let object = Object::new(fields.iter().zip(array.as_struct().columns()), path)?;
            Box::new(move |row, into| object.write(row, into))
        }
        other => return Err(refused(path, &other.to_string())),
    })
}

fn mark_of(field: &FieldRef) -> Option<&'static str> {
    MARKS.into_iter().find(|mark| field.metadata().get(mark).is_some_and(|value| value == "true"))
}

fn refused(path: &str, kind: &str) -> Error {
    Error::new(ErrorKind::UnsupportedType, format!("column {path:?}: {kind} has no place in JSON.")).with_remedy(
        "Convert it in Spark first: to_json for a variant, st_asbinary for a geometry, CAST(... AS STRING) for others.",
    )
}

fn values<'a, T: ArrowPrimitiveType>(
    array: &'a ArrayRef,
    write: impl Fn(T::Native, &mut Vec<u8>) + 'a,
) -> WriteValue<'a> {
    let values = array.as_primitive::<T>().values();
    Box::new(move |row, into| write(values[row], into))
}

fn integers<T: ArrowPrimitiveType<Native: itoa::Integer>>(array: &ArrayRef) -> WriteValue<'_> {
    values::<T>(array, |value, into| into.extend_from_slice(itoa::Buffer::new().format(value).as_bytes()))
}

fn texts<'a>(array: &'a ArrayRef, path: &str, write: impl Fn(&[u8], &mut Vec<u8>) + 'a) -> Result<WriteValue<'a>> {
    let unreadable = || Error::new(ErrorKind::Native, format!("column {path:?}: neither text nor bytes."));
    let cells = Cells::of(array).ok_or_else(unreadable)?;
    Ok(Box::new(move |row, into| write(cells.get(row).unwrap_or_default(), into)))
}

fn elements<'a, O: ArrowNativeType>(offsets: &'a [O], values: &'a ArrayRef, path: &str) -> Result<WriteValue<'a>> {
    let values = Column::new(values, &join(path, "element"))?;
    Ok(Box::new(move |row, into| {
        into.push(b'[');
        let (start, end) = (offsets[row].as_usize(), offsets[row + 1].as_usize());
        for element in start..end {
            if element > start {
                into.push(b',');
            }
            values.write_or_null(element, into);
        }
        into.push(b']');
    }))
}

fn entries<'a>(map: &'a MapArray, path: &str) -> Result<WriteValue<'a>> {
    let write_name = names(map.keys(), &join(path, "key"))?;
    let values = Column::new(map.values(), &join(path, "value"))?;
    let offsets = map.value_offsets();
    Ok(Box::new(move |row, into| {
        into.push(b'{');
        let (start, end) = (offsets[row].as_usize(), offsets[row + 1].as_usize());
        for entry in start..end {
            if entry > start {
                into.push(b',');
            }
            write_name(entry, into);
            into.push(b':');
            values.write_or_null(entry, into);
        }
        into.push(b'}');
    }))
}

/// The keys of a map as names of fields.
fn names<'a>(keys: &'a ArrayRef, path: &str) -> Result<WriteValue<'a>> {
    let write = writer(keys, path)?;
    match keys.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 => Ok(write),
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 | DataType::Boolean => {
            Ok(Box::new(move |row, into| quoted(into, |into| write(row, into))))
        }
        other => {
            let message = format!("column {path:?}: {other} cannot be the name of a field in JSON.");
            Err(Error::new(ErrorKind::UnsupportedType, message)
                .with_remedy("Make the keys strings: transform_keys(c, (k, v) -> CAST(k AS STRING))."))
        }
    }
}

fn quoted(into: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    into.push(b'"');
    write(into);
    into.push(b'"');
}

fn or_quoted(plain: bool, into: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    if plain { write(into) } else { quoted(into, write) }
}

/// A string. Bytes that are no UTF-8, which Spark lets pass, become U+FFFD.
fn write_string(bytes: &[u8], into: &mut Vec<u8>) {
    let text = String::from_utf8_lossy(bytes);
    let bytes = text.as_bytes();
    quoted(into, |into| {
        let mut written = 0;
        for (at, byte) in bytes.iter().enumerate() {
            if *byte >= b' ' && *byte != b'"' && *byte != b'\\' {
                continue;
            }
            into.extend_from_slice(&bytes[written..at]);
            written = at + 1;
            match byte {
                b'"' => into.extend_from_slice(b"\\\""),
                b'\\' => into.extend_from_slice(b"\\\\"),
                b'\n' => into.extend_from_slice(b"\\n"),
                b'\r' => into.extend_from_slice(b"\\r"),
                b'\t' => into.extend_from_slice(b"\\t"),
                0x08 => into.extend_from_slice(b"\\b"),
                0x0c => into.extend_from_slice(b"\\f"),
                // Writing to a vector cannot fail.
                other => drop(write!(into, "\\u{other:04X}")),
            }
        }
        into.extend_from_slice(&bytes[written..]);
    });
}

fn write_base64(bytes: &[u8], into: &mut Vec<u8>) {
    let start = into.len();
    into.resize(start + bytes.len().div_ceil(3) * 4, 0);
    // It fails only where there is too little room.
    let _ = BASE64.encode_slice(bytes, &mut into[start..]);
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
