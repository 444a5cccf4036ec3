//! Columns under construction, nested as the schema is.
//!
//! Values are appended at the end, and the end can be taken back ([`Column::truncate`]): what turns out to be bad half
//! way through a row or an array leaves no trace.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, DurationMicrosecondType, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, Time64NanosecondType, TimestampMicrosecondType,
};
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, ListArray, MapArray, NullArray, PrimitiveArray, StringArray, StructArray,
};
use arrow_buffer::{BooleanBufferBuilder, Buffer, NullBuffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, TimeUnit};

use crate::error::{Error, ErrorKind, Result};

/// Columns hold 32-bit offsets; one batch of payloads may not come near what those can address.
pub(super) const MAX_PAYLOAD_BYTES: usize = i32::MAX as usize / 4;

/// A column of one field of the schema.
pub(super) struct Column {
    pub field: FieldRef,
    /// Where it stands in the schema, for errors.
    pub path: Box<str>,
    pub values: Values,
    nulls: NullBufferBuilder,
}

/// The values of a column; a null has a place here too, with any value.
pub(super) enum Values {
    /// Spark's `void`: the number of nulls.
    Null(usize),
    Boolean(BooleanBufferBuilder),
    Int8(Vec<i8>),
    Int16(Vec<i16>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Float32(Vec<f32>),
    Float64(Vec<f64>),
    Decimal(Vec<i128>, u8, i8),
    Text(Bytes),
    Binary(Bytes),
    /// Days since 1970.
    Date(Vec<i32>),
    /// Microseconds since 1970, UTC.
    Timestamp(Vec<i64>),
    /// Microseconds since 1970 on the wall clock.
    TimestampNtz(Vec<i64>),
    /// Nanoseconds of the day.
    Time(Vec<i64>),
    /// Microseconds.
    DayTime(Vec<i64>),
    List(Offsets, Box<Column>),
    Map(Offsets, Bytes, Box<Column>),
    Struct(Fields),
}

impl Column {
    /// An empty column of a field of the user's schema; `path` names it in errors.
    pub fn new(field: &Field, path: &str) -> Result<Self> {
        let values = match field.data_type() {
            DataType::Null => Values::Null(0),
            DataType::Boolean => Values::Boolean(BooleanBufferBuilder::new(0)),
            DataType::Int8 => Values::Int8(vec![]),
            DataType::Int16 => Values::Int16(vec![]),
            DataType::Int32 => Values::Int32(vec![]),
            DataType::Int64 => Values::Int64(vec![]),
            DataType::Float32 => Values::Float32(vec![]),
            DataType::Float64 => Values::Float64(vec![]),
            DataType::Decimal128(precision, scale) if *scale >= 0 => Values::Decimal(vec![], *precision, *scale),
            DataType::Utf8 => Values::Text(Bytes::default()),
            DataType::Binary => Values::Binary(Bytes::default()),
            DataType::Date32 => Values::Date(vec![]),
            DataType::Timestamp(TimeUnit::Microsecond, Some(zone)) if &**zone == "UTC" => Values::Timestamp(vec![]),
            DataType::Timestamp(TimeUnit::Microsecond, None) => Values::TimestampNtz(vec![]),
            DataType::Time64(TimeUnit::Nanosecond) => Values::Time(vec![]),
            DataType::Duration(TimeUnit::Microsecond) => Values::DayTime(vec![]),
            DataType::List(element) => {
                Values::List(Offsets::default(), Box::new(Self::new(element, &format!("{path}.element"))?))
            }
            DataType::Map(entries, _) => Self::map(entries, path)?,
            DataType::Struct(fields) if is_marked(fields) => return Err(unsupported(field, path)),
            DataType::Struct(fields) => Values::Struct(Fields::new(fields, path)?),
            _ => return Err(unsupported(field, path)),
        };
        // Whatever the schema says, a payload may lack the field.
        let data_type = match &values {
            Values::List(_, element) => DataType::List(element.field.clone()),
            Values::Map(_, _, value) => DataType::Map(Arc::new(map_entries(value)), false),
            Values::Struct(fields) => DataType::Struct(fields.columns.iter().map(|c| c.field.clone()).collect()),
            _ => field.data_type().clone(),
        };
        let field = field.clone().with_data_type(data_type).with_nullable(true);
        Ok(Self { field: Arc::new(field), path: path.into(), values, nulls: NullBufferBuilder::new(0) })
    }

    fn map(entries: &Field, path: &str) -> Result<Values> {
        let DataType::Struct(fields) = entries.data_type() else { return Err(unsupported(entries, path)) };
        let [key, value] = &fields[..] else { return Err(unsupported(entries, path)) };
        if key.data_type() != &DataType::Utf8 {
            return Err(unsupported(key, &format!("{path}.key")));
        }
        let value = Self::new(value, &format!("{path}.value"))?;
        Ok(Values::Map(Offsets::default(), Bytes::default(), Box::new(value)))
    }

    pub fn len(&self) -> usize {
        match &self.values {
            Values::Null(len) => *len,
            _ => self.nulls.len(),
        }
    }

    pub fn append_null(&mut self) {
        match &mut self.values {
            Values::Null(len) => {
                *len += 1;
                return;
            }
            Values::Boolean(values) => values.append(false),
            Values::Int8(values) => values.push(0),
            Values::Int16(values) => values.push(0),
            Values::Int32(values) | Values::Date(values) => values.push(0),
            Values::Int64(values)
            | Values::Timestamp(values)
            | Values::TimestampNtz(values)
            | Values::Time(values)
            | Values::DayTime(values) => values.push(0),
            Values::Float32(values) => values.push(0.0),
            Values::Float64(values) => values.push(0.0),
            Values::Decimal(values, ..) => values.push(0),
            Values::Text(values) | Values::Binary(values) => values.end(),
            Values::List(offsets, element) => offsets.end(element.len()),
            Values::Map(offsets, _, value) => offsets.end(value.len()),
            Values::Struct(fields) => {
                fields.columns.iter_mut().for_each(Self::append_null);
                fields.rows += 1;
            }
        }
        self.nulls.append_null();
    }

    /// Declare the value that was just put into `values` to be one.
    #[inline]
    pub fn append_valid(&mut self) {
        self.nulls.append_non_null();
    }

    /// Take back all values after the first `len`, finished or not.
    pub fn truncate(&mut self, len: usize) {
        match &mut self.values {
            Values::Null(count) => *count = len,
            Values::Boolean(values) => values.truncate(len),
            Values::Int8(values) => values.truncate(len),
            Values::Int16(values) => values.truncate(len),
            Values::Int32(values) | Values::Date(values) => values.truncate(len),
            Values::Int64(values)
            | Values::Timestamp(values)
            | Values::TimestampNtz(values)
            | Values::Time(values)
            | Values::DayTime(values) => values.truncate(len),
            Values::Float32(values) => values.truncate(len),
            Values::Float64(values) => values.truncate(len),
            Values::Decimal(values, ..) => values.truncate(len),
            Values::Text(values) | Values::Binary(values) => values.truncate(len),
            Values::List(offsets, element) => {
                let items = offsets.truncate(len);
                element.truncate(items);
            }
            Values::Map(offsets, keys, value) => {
                let items = offsets.truncate(len);
                keys.truncate(items);
                value.truncate(items);
            }
            Values::Struct(fields) => {
                fields.columns.iter_mut().for_each(|column| column.truncate(len));
                fields.rows = len;
            }
        }
        self.nulls.truncate(len);
    }

    /// The finished array; the column is empty again.
    pub fn finish(&mut self) -> std::result::Result<ArrayRef, ArrowError> {
        let nulls = self.nulls.finish();
        Ok(match &mut self.values {
            Values::Null(len) => Arc::new(NullArray::new(std::mem::take(len))),
            Values::Boolean(values) => Arc::new(BooleanArray::new(values.finish(), nulls)),
            Values::Int8(values) => primitive::<Int8Type>(values, nulls),
            Values::Int16(values) => primitive::<Int16Type>(values, nulls),
            Values::Int32(values) => primitive::<Int32Type>(values, nulls),
            Values::Int64(values) => primitive::<Int64Type>(values, nulls),
            Values::Float32(values) => primitive::<Float32Type>(values, nulls),
            Values::Float64(values) => primitive::<Float64Type>(values, nulls),
            Values::Decimal(values, precision, scale) => {
                let values = PrimitiveArray::<Decimal128Type>::new(taken(values), nulls);
                Arc::new(values.with_precision_and_scale(*precision, *scale)?)
            }
            Values::Date(values) => primitive::<Date32Type>(values, nulls),
            Values::Timestamp(values) => {
                let values = PrimitiveArray::<TimestampMicrosecondType>::new(taken(values), nulls);
                Arc::new(values.with_timezone("UTC"))
            }
            Values::TimestampNtz(values) => primitive::<TimestampMicrosecondType>(values, nulls),
            Values::Time(values) => primitive::<Time64NanosecondType>(values, nulls),
            Values::DayTime(values) => primitive::<DurationMicrosecondType>(values, nulls),
            Values::Text(values) => Arc::new(values.finish_text(nulls)?),
            Values::Binary(values) => Arc::new(values.finish_binary(nulls)?),
            Values::List(offsets, element) => {
                let offsets = offsets.finish(element.len())?;
                Arc::new(ListArray::try_new(element.field.clone(), offsets, element.finish()?, nulls)?)
            }
            Values::Map(offsets, keys, value) => {
                let entries = map_entries(value);
                let DataType::Struct(fields) = entries.data_type().clone() else {
                    return Err(ArrowError::ComputeError("a map without entries".into()));
                };
                let offsets = offsets.finish(value.len())?;
                let columns: Vec<ArrayRef> = vec![Arc::new(keys.finish_text(None)?), value.finish()?];
                let pairs = StructArray::try_new(fields, columns, None)?;
                Arc::new(MapArray::try_new(Arc::new(entries), offsets, pairs, nulls, false)?)
            }
            Values::Struct(fields) => {
                let len = fields.rows;
                let arrays = fields.finish()?;
                let DataType::Struct(inner) = self.field.data_type().clone() else {
                    return Err(ArrowError::ComputeError("a struct without fields".into()));
                };
                Arc::new(StructArray::try_new_with_length(inner, arrays, nulls, len)?)
            }
        })
    }
}

fn primitive<T: ArrowPrimitiveType>(values: &mut Vec<T::Native>, nulls: Option<NullBuffer>) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::new(taken(values), nulls))
}

/// The values without a copy; the next batch is likely to be of the same size.
fn taken<T: arrow_buffer::ArrowNativeType>(values: &mut Vec<T>) -> ScalarBuffer<T> {
    let next = Vec::with_capacity(values.len());
    std::mem::replace(values, next).into()
}

fn map_entries(value: &Column) -> Field {
    let key = Field::new("key", DataType::Utf8, false);
    Field::new_struct("entries", vec![Arc::new(key), value.field.clone()], false)
}

/// Strings or byte strings.
#[derive(Default)]
pub(super) struct Bytes {
    pub bytes: Vec<u8>,
    offsets: Offsets,
}

impl Bytes {
    #[inline]
    pub fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.end();
    }

    /// Close a value whose bytes were written to `bytes`.
    #[inline]
    pub fn end(&mut self) {
        self.offsets.end(self.bytes.len());
    }

    pub fn truncate(&mut self, len: usize) {
        let bytes = self.offsets.truncate(len);
        self.bytes.truncate(bytes);
    }

    fn finish(&mut self) -> std::result::Result<(OffsetBuffer<i32>, Buffer), ArrowError> {
        let bytes = std::mem::take(&mut self.bytes);
        self.bytes.reserve(bytes.len());
        Ok((self.offsets.finish(bytes.len())?, bytes.into()))
    }

    pub fn finish_text(&mut self, nulls: Option<NullBuffer>) -> std::result::Result<StringArray, ArrowError> {
        let (offsets, bytes) = self.finish()?;
        StringArray::try_new(offsets, bytes, nulls)
    }

    pub fn finish_binary(&mut self, nulls: Option<NullBuffer>) -> std::result::Result<BinaryArray, ArrowError> {
        let (offsets, bytes) = self.finish()?;
        BinaryArray::try_new(offsets, bytes, nulls)
    }
}

/// Where values end.
#[derive(Default)]
pub(super) struct Offsets(Vec<i32>);

impl Offsets {
    #[inline]
    pub fn end(&mut self, at: usize) {
        self.0.push(at as i32);
    }

    /// The end of the last value that stays.
    fn truncate(&mut self, len: usize) -> usize {
        self.0.truncate(len);
        self.0.last().map_or(0, |end| *end as usize)
    }

    /// The offsets; `end` is that of the last value. JSON stays far below the limit (see [`MAX_PAYLOAD_BYTES`]), but
    /// Avro has values that take no room in the payload.
    fn finish(&mut self, end: usize) -> std::result::Result<OffsetBuffer<i32>, ArrowError> {
        let mut offsets = Vec::with_capacity(self.0.len() + 1);
        offsets.push(0);
        offsets.append(&mut self.0);
        i32::try_from(end).map_err(|_| ArrowError::OffsetOverflowError(end))?;
        Ok(OffsetBuffer::new(offsets.into()))
    }
}

/// The fields of a struct, or of the row, found by name.
pub(super) struct Fields {
    pub columns: Vec<Column>,
    pub rows: usize,
    by_name: HashMap<Box<str>, usize>,
    /// What stood at a place of the object before: producers write their fields in the same order every time.
    last_seen: Vec<(String, Option<usize>)>,
}

/// Places and lengths of names that are worth remembering.
const REMEMBERED_PLACES: usize = 256;
const REMEMBERED_BYTES: usize = 128;

impl Fields {
    pub fn new<'a>(fields: impl IntoIterator<Item = &'a FieldRef>, path: &str) -> Result<Self> {
        let mut columns = vec![];
        let mut by_name = HashMap::new();
        for field in fields {
            let path = if path.is_empty() { field.name().clone() } else { format!("{path}.{}", field.name()) };
            if by_name.insert(field.name().as_str().into(), columns.len()).is_some() {
                return Err(Error::new(ErrorKind::Config, format!("the schema has two columns named {path:?}."))
                    .with_remedy("Rename one of them: payload fields are found by name."));
            }
            columns.push(Column::new(field, &path)?);
        }
        Ok(Self { columns, rows: 0, by_name, last_seen: vec![] })
    }

    /// The column of the field that stands at `place` of an object.
    #[inline]
    pub fn find_at(&mut self, place: usize, name: &str) -> Option<usize> {
        match self.last_seen.get(place) {
            Some((seen, column)) if seen == name => *column,
            _ => self.find_and_remember(place, name),
        }
    }

    #[cold]
    fn find_and_remember(&mut self, place: usize, name: &str) -> Option<usize> {
        let column = self.find(name);
        if place < REMEMBERED_PLACES && name.len() <= REMEMBERED_BYTES {
            if self.last_seen.len() <= place {
                self.last_seen.resize(place + 1, (String::new(), self.by_name.get("").copied()));
            }
            let (seen, remembered) = &mut self.last_seen[place];
            seen.clear();
            seen.push_str(name);
            *remembered = column;
        }
        column
    }

    pub fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// End the row: what got no value is null.
    pub fn end_row(&mut self) {
        for column in &mut self.columns {
            if column.len() == self.rows {
                column.append_null();
            }
        }
        self.rows += 1;
    }

    /// Take back what was appended since the last `end_row`.
    pub fn take_back(&mut self) {
        let rows = self.rows;
        self.columns.iter_mut().for_each(|column| column.truncate(rows));
    }

    pub fn finish(&mut self) -> std::result::Result<Vec<ArrayRef>, ArrowError> {
        self.rows = 0;
        self.columns.iter_mut().map(Column::finish).collect()
    }
}

/// Types that Spark writes as a struct with a mark on one of its fields: variant, geometry, geography.
fn is_marked(fields: &arrow_schema::Fields) -> bool {
    let marks = ["variant", "geometry", "geography"];
    fields.iter().any(|field| marks.iter().any(|mark| field.metadata().get(mark).is_some_and(|set| set == "true")))
}

fn unsupported(field: &Field, path: &str) -> Error {
    let (found, remedy) = match field.data_type() {
        DataType::Struct(fields) if fields.iter().any(|field| field.metadata().contains_key("variant")) => {
            ("variant".to_owned(), "Declare it as STRING and use parse_json(c) in Spark.")
        }
        DataType::Struct(_) => {
            ("a spatial type".to_owned(), "Declare it as BINARY and use ST_GeomFromWKB(c) in Spark.")
        }
        DataType::Interval(_) => {
            ("a calendar interval".to_owned(), "Declare it as STRING and use CAST(c AS INTERVAL) in Spark.")
        }
        DataType::Timestamp(..) => {
            (field.data_type().to_string(), "Declare it with microseconds, in UTC or without a time zone.")
        }
        _ if path.ends_with(".key") => (field.data_type().to_string(), "Keys of maps are strings in JSON and Avro."),
        other => (other.to_string(), "Declare it as a type that Spark has and payloads can hold, for example STRING."),
    };
    Error::new(ErrorKind::UnsupportedType, format!("column {path:?}: {found} cannot be read from a payload."))
        .with_remedy(remedy)
}
