//! Avro datums into columns.
//!
//! The schema of the writer and the columns are matched once, by name, into a [`Plan`]; a datum is then read straight
//! into the columns. A datum that ends too early is taken back.

use super::avro_schema::{Meaning, Type, TypeId, WriterSchema};
use super::column::{Column, Fields, Values};
use super::{Fault, Outcome, numbers};
use crate::error::{Error, ErrorKind, Result};

/// A record may contain itself; deeper values are malformed.
const MAX_DEPTH: usize = 64;
/// Items that take no bytes (nulls, empty records) may be claimed in any number; so many are believed, a datum.
const MAX_EMPTY_ITEMS: usize = 1_024;
/// The single-object encoding: these two bytes, the fingerprint, the datum.
const SINGLE_OBJECT: [u8; 2] = [0xc3, 0x01];

/// Reads datums of one writer's schema.
pub(super) struct Decoder {
    schema: WriterSchema,
    header: [u8; 10],
    root: RecordPlan,
}

/// The fields of the writer in their order, with the columns they go to.
type RecordPlan = Vec<(Plan, Option<usize>)>;

/// How a value of the writer becomes one of a column.
enum Plan {
    Scalar(TypeId),
    Record(RecordPlan),
    Array(Box<Plan>),
    Map(Box<Plan>),
    Union(Vec<Plan>),
    Null,
    /// Read and forget; null in the column, if there is one.
    Skip(TypeId),
    /// A branch of a union that the column cannot hold.
    Mismatch(TypeId),
}

type Read<T> = std::result::Result<T, &'static str>;

impl Decoder {
    pub fn new(writer_schema: &str, columns: &Fields) -> Result<Self> {
        let schema = WriterSchema::parse(writer_schema)?;
        let mut header = [0; 10];
        header[..2].copy_from_slice(&SINGLE_OBJECT);
        header[2..].copy_from_slice(&schema.fingerprint.to_le_bytes());
        let root = plan_record(&schema, schema.root(), columns)?;
        Ok(Self { schema, header, root })
    }

    /// Append a datum to the columns as one row, or say why it is malformed and append nothing.
    pub fn append(&mut self, datum: &[u8], row: &mut Fields, fault: &mut Fault) -> Outcome {
        let bytes = datum.strip_prefix(&self.header).unwrap_or(datum);
        let items = bytes.len() + MAX_EMPTY_ITEMS;
        let mut reader = Reader { schema: &self.schema, bytes, items, outcome: Outcome::Whole, fault };
        let read = match (reader.record(&self.root, row), reader.bytes) {
            (Ok(()), [_, ..]) => Err("there are bytes after the datum"),
            (read, _) => read,
        };
        let (left, outcome) = (reader.bytes.len(), reader.outcome);
        match read {
            Ok(()) => {
                row.end_row();
                outcome
            }
            Err(reason) => {
                row.take_back();
                fault.say(|| format!("no datum of the Avro schema: {reason} at byte {}", datum.len() - left));
                Outcome::Failed
            }
        }
    }
}

fn plan_record(schema: &WriterSchema, fields: &[(Box<str>, TypeId)], columns: &Fields) -> Result<RecordPlan> {
    let plan = |(name, id): &(Box<str>, TypeId)| match columns.find(name) {
        Some(index) => Ok((plan(schema, *id, &columns.columns[index])?, Some(index))),
        None => Ok((Plan::Skip(*id), None)),
    };
    fields.iter().map(plan).collect()
}

fn plan(schema: &WriterSchema, id: TypeId, column: &Column) -> Result<Plan> {
    match fit(schema, id, column)? {
        Some(plan) => Ok(plan),
        None => {
            let (found, wanted) = (name(schema.get(id)), column.field.data_type());
            Err(Error::new(
                ErrorKind::UnsupportedType,
                format!("column {:?}: the Avro type {found} cannot be read as {wanted}.", column.path),
            )
            .with_remedy("Declare the column with the type that the Avro schema has."))
        }
    }
}

/// The plan to read a type into a column; `None` if no value of it ever fits.
fn fit(schema: &WriterSchema, id: TypeId, column: &Column) -> Result<Option<Plan>> {
    let writer = schema.get(id);
    Ok(Some(match (writer, &column.values) {
        (Type::Null, _) => Plan::Null,
        (_, Values::Null(_)) => Plan::Skip(id),
        (Type::Union(branches), _) => {
            let mut plans = vec![];
            for branch in branches {
                plans.push(fit(schema, *branch, column)?.unwrap_or(Plan::Mismatch(*branch)));
            }
            if !plans.is_empty()
                && plans.iter().all(|plan| matches!(plan, Plan::Null | Plan::Mismatch(_)))
                && plans.iter().any(|plan| matches!(plan, Plan::Mismatch(_)))
            {
                return Ok(None);
            }
            Plan::Union(plans)
        }
        (Type::Array(items), Values::List(_, element)) => Plan::Array(Box::new(plan(schema, *items, element)?)),
        (Type::Map(values), Values::Map(_, _, value)) => Plan::Map(Box::new(plan(schema, *values, value)?)),
        (Type::Record(fields), Values::Struct(columns)) => Plan::Record(plan_record(schema, fields, columns)?),
        (Type::Boolean, Values::Boolean(_))
        | (
            Type::Integer(_),
            Values::Int8(_)
            | Values::Int16(_)
            | Values::Int32(_)
            | Values::Int64(_)
            | Values::Float32(_)
            | Values::Float64(_),
        )
        | (Type::Integer(Meaning::Plain), Values::Decimal(..))
        | (Type::Integer(Meaning::Date), Values::Date(_))
        | (Type::Integer(Meaning::Time(_)), Values::Time(_))
        | (Type::Integer(Meaning::Timestamp(_)), Values::Timestamp(_))
        | (Type::Integer(Meaning::LocalTimestamp(_)), Values::TimestampNtz(_))
        | (Type::Float, Values::Float32(_) | Values::Float64(_))
        | (Type::Double, Values::Float64(_))
        | (Type::String | Type::Bytes(Meaning::Plain), Values::Text(_) | Values::Binary(_))
        | (Type::Bytes(Meaning::Decimal(_)) | Type::Fixed(..), Values::Binary(_))
        | (Type::Fixed(_, Meaning::Uuid) | Type::Enum(_), Values::Text(_)) => Plan::Scalar(id),
        (
            Type::Bytes(Meaning::Decimal(writer_scale)) | Type::Fixed(_, Meaning::Decimal(writer_scale)),
            Values::Decimal(_, _, scale),
        ) if scale >= writer_scale => Plan::Scalar(id),
        _ => return Ok(None),
    }))
}

fn name(writer: &Type) -> String {
    match writer {
        Type::Record(_) => "record".to_owned(),
        Type::Enum(_) => "enum".to_owned(),
        Type::Array(_) => "array".to_owned(),
        Type::Map(_) => "map".to_owned(),
        Type::Union(_) => "union".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// Reads one datum.
struct Reader<'a> {
    schema: &'a WriterSchema,
    bytes: &'a [u8],
    /// How many more items of arrays and maps are believed.
    items: usize,
    outcome: Outcome,
    fault: &'a mut Fault,
}

impl<'a> Reader<'a> {
    fn record(&mut self, plan: &RecordPlan, into: &mut Fields) -> Read<()> {
        for (plan, column) in plan {
            match (plan, column) {
                (plan, Some(index)) => self.value(plan, &mut into.columns[*index])?,
                (Plan::Skip(id), None) => self.skip(*id, 0)?,
                _ => return Err("a field without a place"),
            }
        }
        Ok(())
    }

    fn value(&mut self, plan: &Plan, column: &mut Column) -> Read<()> {
        match (plan, &mut column.values) {
            (Plan::Scalar(id), _) => return self.scalar(*id, column),
            (Plan::Union(plans), _) => {
                let branch = usize::try_from(self.long()?).ok();
                let plan = branch.and_then(|branch| plans.get(branch)).ok_or("a union has no such branch")?;
                return self.value(plan, column);
            }
            (Plan::Record(plan), Values::Struct(fields)) => {
                self.record(plan, fields)?;
                fields.end_row();
                column.append_valid();
            }
            (Plan::Array(plan), Values::List(offsets, element)) => {
                while let Some(count) = self.block()? {
                    for _ in 0..count {
                        self.value(plan, element)?;
                    }
                }
                offsets.end(element.len());
                column.append_valid();
            }
            (Plan::Map(plan), Values::Map(offsets, keys, value)) => {
                while let Some(count) = self.block()? {
                    for _ in 0..count {
                        keys.push(self.text()?.as_bytes());
                        self.value(plan, value)?;
                    }
                }
                offsets.end(value.len());
                column.append_valid();
            }
            (Plan::Null, _) => column.append_null(),
            (Plan::Skip(id), _) => {
                self.skip(*id, 0)?;
                column.append_null();
            }
            (Plan::Mismatch(id), _) => {
                self.skip(*id, 0)?;
                self.mismatch(*id, column);
            }
            _ => return Err("a value without a place"),
        }
        Ok(())
    }

    /// A value without values inside. It is read whole before it turns out whether it fits.
    fn scalar(&mut self, id: TypeId, column: &mut Column) -> Read<()> {
        let fits = match (self.schema.get(id), &mut column.values) {
            (Type::Boolean, Values::Boolean(values)) => {
                values.append(self.boolean()?);
                true
            }
            (Type::Integer(meaning), values) => append_integer(self.long()?, *meaning, values),
            (Type::Float, Values::Float32(values)) => put(Some(f32::from_le_bytes(self.array()?)), values),
            (Type::Float, Values::Float64(values)) => put(Some(f64::from(f32::from_le_bytes(self.array()?))), values),
            (Type::Double, Values::Float64(values)) => put(Some(f64::from_le_bytes(self.array()?)), values),
            (Type::String, Values::Text(values) | Values::Binary(values)) => {
                values.push(self.text()?.as_bytes());
                true
            }
            (Type::Bytes(_), Values::Binary(values)) => {
                values.push(self.sized()?);
                true
            }
            (Type::Bytes(_), Values::Text(values)) => {
                let text = std::str::from_utf8(self.sized()?).ok();
                text.map(|text| values.push(text.as_bytes())).is_some()
            }
            (Type::Bytes(Meaning::Decimal(from)), Values::Decimal(values, precision, scale)) => {
                put(decimal(self.sized()?, *from, *precision, *scale), values)
            }
            (Type::Fixed(size, Meaning::Decimal(from)), Values::Decimal(values, precision, scale)) => {
                put(decimal(self.take(*size)?, *from, *precision, *scale), values)
            }
            (Type::Fixed(size, _), Values::Binary(values)) => {
                values.push(self.take(*size)?);
                true
            }
            (Type::Fixed(..), Values::Text(values)) => {
                write_uuid(self.array()?, &mut values.bytes);
                values.end();
                true
            }
            (Type::Enum(symbols), Values::Text(values)) => {
                let symbol = usize::try_from(self.long()?).ok().and_then(|symbol| symbols.get(symbol));
                values.push(symbol.ok_or("an enum has no such symbol")?.as_bytes());
                true
            }
            _ => return Err("a scalar without a place"),
        };
        if fits {
            column.append_valid();
        } else {
            self.mismatch(id, column);
        }
        Ok(())
    }

    fn mismatch(&mut self, id: TypeId, column: &mut Column) {
        column.append_null();
        self.outcome = Outcome::Partial;
        let found = self.schema.get(id);
        self.fault.say(|| {
            format!("field {:?}: this {} does not fit the type {}", column.path, name(found), column.field.data_type())
        });
    }

    fn skip(&mut self, id: TypeId, depth: usize) -> Read<()> {
        if depth > MAX_DEPTH {
            return Err("values are nested too deeply");
        }
        match self.schema.get(id) {
            Type::Null => {}
            Type::Boolean => drop(self.boolean()?),
            Type::Integer(_) => drop(self.long()?),
            Type::Float => drop(self.take(4)?),
            Type::Double => drop(self.take(8)?),
            Type::Bytes(_) => drop(self.sized()?),
            Type::String => drop(self.text()?),
            Type::Fixed(size, _) => drop(self.take(*size)?),
            Type::Enum(symbols) => {
                let symbol = usize::try_from(self.long()?).ok().and_then(|symbol| symbols.get(symbol));
                symbol.ok_or("an enum has no such symbol")?;
            }
            Type::Array(items) => {
                while let Some(count) = self.block()? {
                    for _ in 0..count {
                        self.skip(*items, depth + 1)?;
                    }
                }
            }
            Type::Map(values) => {
                while let Some(count) = self.block()? {
                    for _ in 0..count {
                        self.text()?;
                        self.skip(*values, depth + 1)?;
                    }
                }
            }
            Type::Record(fields) => {
                for (_, field) in fields {
                    self.skip(*field, depth + 1)?;
                }
            }
            Type::Union(branches) => {
                let branch = usize::try_from(self.long()?).ok().and_then(|branch| branches.get(branch));
                self.skip(*branch.ok_or("a union has no such branch")?, depth + 1)?;
            }
        }
        Ok(())
    }

    /// The number of items in the next block of an array or map; `None` after the last.
    fn block(&mut self) -> Read<Option<u64>> {
        let count = self.long()?;
        if count == 0 {
            return Ok(None);
        }
        if count < 0 {
            self.long()?; // the size of the block in bytes, for those who skip it
        }
        let count = count.unsigned_abs();
        let left = usize::try_from(count).ok().and_then(|count| self.items.checked_sub(count));
        self.items = left.ok_or("more items than the datum can hold")?;
        Ok(Some(count))
    }

    fn boolean(&mut self) -> Read<bool> {
        match self.take(1)? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err("a boolean is neither 0 nor 1"),
        }
    }

    /// A zigzag number of up to ten bytes.
    fn long(&mut self) -> Read<i64> {
        let mut value = 0;
        for (index, byte) in self.bytes.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.bytes = &self.bytes[index + 1..];
                return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
            }
        }
        Err("a number has no end")
    }

    fn text(&mut self) -> Read<&'a str> {
        std::str::from_utf8(self.sized()?).map_err(|_| "a string is not UTF-8")
    }

    fn sized(&mut self) -> Read<&'a [u8]> {
        let len = usize::try_from(self.long()?).map_err(|_| "a negative length")?;
        self.take(len)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| "the datum ends too early")
    }

    fn take(&mut self, len: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(len).ok_or("the datum ends too early")?;
        self.bytes = rest;
        Ok(taken)
    }
}

fn put<T>(value: Option<T>, values: &mut Vec<T>) -> bool {
    value.map(|value| values.push(value)).is_some()
}

fn append_integer(value: i64, meaning: Meaning, values: &mut Values) -> bool {
    match (values, meaning) {
        (Values::Int8(values), _) => put(value.try_into().ok(), values),
        (Values::Int16(values), _) => put(value.try_into().ok(), values),
        (Values::Int32(values), _) => put(value.try_into().ok(), values),
        (Values::Int64(values), _) => put(Some(value), values),
        (Values::Float32(values), _) => put(Some(value as f32), values),
        (Values::Float64(values), _) => put(Some(value as f64), values),
        (Values::Decimal(values, precision, scale), _) => {
            put(numbers::whole_decimal(i128::from(value), *precision, *scale), values)
        }
        (Values::Date(values), _) => put(value.try_into().ok(), values),
        (Values::Time(values), Meaning::Time(unit)) => {
            let nanos = value.checked_mul(1_000_000_000 / unit);
            put(nanos.filter(|nanos| (0..86_400_000_000_000).contains(nanos)), values)
        }
        (Values::Timestamp(values), Meaning::Timestamp(unit))
        | (Values::TimestampNtz(values), Meaning::LocalTimestamp(unit)) => put(micros(value, unit), values),
        _ => false,
    }
}

/// A count of 1/`unit` seconds in microseconds, rounded down.
fn micros(value: i64, unit: i64) -> Option<i64> {
    if unit <= 1_000_000 { value.checked_mul(1_000_000 / unit) } else { Some(value.div_euclid(unit / 1_000_000)) }
}

/// A big-endian two's complement number.
fn decimal(bytes: &[u8], from_scale: i8, precision: u8, scale: i8) -> Option<i128> {
    let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    let filler = if negative { 0xff } else { 0 };
    let mut whole = [filler; 16];
    let (surplus, bytes) = bytes.split_at(bytes.len().saturating_sub(16));
    whole[16 - bytes.len()..].copy_from_slice(bytes);
    let value = i128::from_be_bytes(whole);
    let fits = surplus.iter().all(|byte| *byte == filler) && (value < 0) == negative;
    numbers::whole_decimal(fits.then_some(value)?, precision, scale - from_scale)
}

fn write_uuid(bytes: [u8; 16], into: &mut Vec<u8>) {
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            into.push(b'-');
        }
        for digit in [byte >> 4, byte & 0xf] {
            into.push(b"0123456789abcdef"[usize::from(digit)]);
        }
    }
}
