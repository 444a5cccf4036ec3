//! Results as Python values, column by column: what pyarrow would do, without importing it, and faster.
//!
//! Values are those that PySpark gives. What needs the time zone of the process is asked of Python, once per day.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, DurationMicrosecondType, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType,
};
use arrow_array::{Array, OffsetSizeTrait, RecordBatch};
use arrow_buffer::ArrowNativeType;
use arrow_ipc::reader::StreamReader;
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, TimeUnit};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use solstice_core::calendar;

type Values<'py> = Vec<Bound<'py, PyAny>>;
/// The names of a result's columns, their values, and the number of rows.
type Columns<'py> = (Bound<'py, PyTuple>, Vec<Bound<'py, PyList>>, usize);

const DAY_US: i64 = 86_400_000_000;
const SECOND_US: i64 = 1_000_000;
/// The proleptic Gregorian ordinal of 1970-01-01, as Python counts.
const EPOCH_ORDINAL: i64 = 719_163;
/// The last day of the year 9999.
const MAX_ORDINAL: i64 = 3_652_059;

/// The columns of each record batch in an Arrow IPC stream, as lists of Python values.
///
/// `row_class` gives the class for structs with some names. `day_offset_s` gives the offset of the local clock on a day
/// since 1970, or None where it changes about then; `local` gives the local time of such a moment, in microseconds.
#[pyfunction]
pub fn decode_columns<'py>(
    py: Python<'py>,
    data: PyBackedBytes,
    row_class: Bound<'py, PyAny>,
    day_offset_s: Bound<'py, PyAny>,
    local: Bound<'py, PyAny>,
) -> PyResult<Vec<Columns<'py>>> {
    let broken = |error: ArrowError| PyValueError::new_err(format!("the result is no Arrow data: {error}"));
    let stream = StreamReader::try_new(&*data, None).map_err(broken)?;
    let schema = stream.schema();
    check(py, &schema)?;
    let mut decoder = Decoder::new(py, row_class, day_offset_s, local)?;
    stream.map(|batch| decoder.columns(&schema, &batch.map_err(broken)?)).collect()
}

/// Refuse a schema that has values which no Python object can hold.
fn check(py: Python<'_>, schema: &Schema) -> PyResult<()> {
    schema.fields().iter().try_for_each(|field| check_field(py, field, field.name()))
}

fn check_field(py: Python<'_>, field: &Field, path: &str) -> PyResult<()> {
    let inside = |part: &Field| check_field(py, part, &format!("{path}.{}", part.name()));
    match field.data_type() {
        DataType::Interval(_) => Err(unsupported(
            py,
            path,
            "interval",
            format!("the column '{path}' is an interval that is no length of time, for which Python has no type."),
            format!("Cast it in the query, for example: cast({path} as string)."),
        )),
        DataType::Map(entries, _) => {
            let DataType::Struct(parts) = entries.data_type() else { return Ok(()) };
            if parts.first().is_some_and(|key| has_mutable_part(key.data_type())) {
                return Err(unsupported(
                    py,
                    path,
                    "map",
                    format!(
                        "the column '{path}' is a map whose keys have arrays in them, which no key of a dict can have."
                    ),
                    format!("Use to_arrow(), or map_entries({path}) in the query."),
                ));
            }
            parts.iter().try_for_each(|part| inside(part))
        }
        DataType::Struct(parts) => parts.iter().try_for_each(|part| inside(part)),
        DataType::List(part) | DataType::LargeList(part) => inside(part),
        _ => Ok(()),
    }
}

fn has_mutable_part(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(_) | DataType::LargeList(_) | DataType::Map(_, _) => true,
        DataType::Struct(parts) => parts.iter().any(|part| has_mutable_part(part.data_type())),
        _ => false,
    }
}

/// The classes and functions of Python that values are made with.
struct Decoder<'py> {
    py: Python<'py>,
    none: Bound<'py, PyAny>,
    row_class: Bound<'py, PyAny>,
    date: Bound<'py, PyAny>,
    datetime: Bound<'py, PyAny>,
    timedelta: Bound<'py, PyAny>,
    time: Bound<'py, PyAny>,
    decimal: Bound<'py, PyAny>,
    day_offset_s: Bound<'py, PyAny>,
    local: Bound<'py, PyAny>,
    dates: ByDay<Bound<'py, PyAny>>,
    offsets_us: ByDay<Option<i64>>,
}

type ByDay<T> = HashMap<i64, T, BuildHasherDefault<DayHasher>>;

/// Days are looked up for every value, and nobody gains by making them collide: one multiplication is enough.
#[derive(Default)]
struct DayHasher(u64);

impl Hasher for DayHasher {
    fn write_i64(&mut self, day: i64) {
        self.0 = day.cast_unsigned().wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl<'py> Decoder<'py> {
    fn new(
        py: Python<'py>,
        row_class: Bound<'py, PyAny>,
        day_offset_s: Bound<'py, PyAny>,
        local: Bound<'py, PyAny>,
    ) -> PyResult<Self> {
        static DATE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static DATETIME: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static TIMEDELTA: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static TIME: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static DECIMAL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let class = |cell: &'static PyOnceLock<Py<PyAny>>, module: &str, name: &str| {
            let found = cell.get_or_try_init(py, || Ok::<_, PyErr>(py.import(module)?.getattr(name)?.unbind()))?;
            Ok::<_, PyErr>(found.bind(py).clone())
        };
        Ok(Self {
            py,
            none: py.None().into_bound(py),
            row_class,
            date: class(&DATE, "datetime", "date")?,
            datetime: class(&DATETIME, "datetime", "datetime")?,
            timedelta: class(&TIMEDELTA, "datetime", "timedelta")?,
            time: class(&TIME, "datetime", "time")?,
            decimal: class(&DECIMAL, "decimal", "Decimal")?,
            day_offset_s,
            local,
            dates: ByDay::default(),
            offsets_us: ByDay::default(),
        })
    }

    fn columns(&mut self, schema: &Schema, batch: &RecordBatch) -> PyResult<Columns<'py>> {
        let mut columns = Vec::with_capacity(batch.num_columns());
        for (field, column) in schema.fields().iter().zip(batch.columns()) {
            columns.push(PyList::new(self.py, self.values(field.name(), column)?)?);
        }
        Ok((self.names(schema.fields())?, columns, batch.num_rows()))
    }

    fn names(&self, fields: &Fields) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(self.py, fields.iter().map(|field| field.name()))
    }

    fn values(&mut self, path: &str, array: &dyn Array) -> PyResult<Values<'py>> {
        let py = self.py;
        match array.data_type() {
            DataType::Null => Ok(vec![self.none.clone(); array.len()]),
            DataType::Boolean => {
                let array = array.as_boolean();
                self.each(array, |_, row| Ok(PyBool::new(py, array.value(row)).to_owned().into_any()))
            }
            DataType::Int8 => self.integers::<Int8Type>(array),
            DataType::Int16 => self.integers::<Int16Type>(array),
            DataType::Int32 => self.integers::<Int32Type>(array),
            DataType::Int64 => self.integers::<Int64Type>(array),
            DataType::Float32 => self.floats::<Float32Type>(array),
            DataType::Float64 => self.floats::<Float64Type>(array),
            DataType::Utf8 => self.texts::<i32>(array),
            DataType::LargeUtf8 => self.texts::<i64>(array),
            DataType::Binary => self.binaries::<i32>(array),
            DataType::LargeBinary => self.binaries::<i64>(array),
            DataType::Decimal128(_, _) => {
                let array = array.as_primitive::<Decimal128Type>();
                self.each(array, |this, row| this.decimal.call1((array.value_as_string(row),)))
            }
            DataType::Date32 => {
                let days = array.as_primitive::<Date32Type>();
                self.each(days, |this, row| this.day(path, i64::from(days.value(row))))
            }
            DataType::Timestamp(TimeUnit::Microsecond, zone) => {
                let (zoned, ticks) = (zone.is_some(), array.as_primitive::<TimestampMicrosecondType>());
                self.each(ticks, |this, row| this.moment(path, ticks.value(row), zoned))
            }
            DataType::Duration(TimeUnit::Microsecond) => {
                let lengths = array.as_primitive::<DurationMicrosecondType>();
                self.each(lengths, |this, row| {
                    let length = lengths.value(row);
                    this.timedelta.call1((0, length.div_euclid(SECOND_US), length.rem_euclid(SECOND_US)))
                })
            }
            DataType::Time64(TimeUnit::Nanosecond) => {
                let ticks = array.as_primitive::<Time64NanosecondType>();
                self.each(ticks, |this, row| this.time.call1(clock(ticks.value(row) / 1000)))
            }
            DataType::Time64(TimeUnit::Microsecond) => {
                let ticks = array.as_primitive::<Time64MicrosecondType>();
                self.each(ticks, |this, row| this.time.call1(clock(ticks.value(row))))
            }
            DataType::Struct(fields) => self.structs(path, fields, array),
            DataType::List(part) => self.lists::<i32>(path, part, array),
            DataType::LargeList(part) => self.lists::<i64>(path, part, array),
            DataType::Map(_, _) => self.maps(path, array),
            other => Err(unsupported(
                py,
                path,
                &other.to_string(),
                format!("the column '{path}' has the Arrow type {other}, for which there is no Python value."),
                "Use to_arrow(), or cast the column in the query.".to_owned(),
            )),
        }
    }

    /// A value for each row, None where the row has none.
    fn each(
        &mut self,
        array: &dyn Array,
        mut value: impl FnMut(&mut Self, usize) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Values<'py>> {
        let none = self.none.clone();
        match array.nulls() {
            None => (0..array.len()).map(|row| value(self, row)).collect(),
            Some(valid) => (0..array.len())
                .map(|row| if valid.is_valid(row) { value(self, row) } else { Ok(none.clone()) })
                .collect(),
        }
    }

    fn integers<T: ArrowPrimitiveType>(&mut self, array: &dyn Array) -> PyResult<Values<'py>>
    where
        i64: From<T::Native>,
    {
        let (py, array) = (self.py, array.as_primitive::<T>());
        self.each(array, |_, row| Ok(PyInt::new(py, i64::from(array.value(row))).into_any()))
    }

    fn floats<T: ArrowPrimitiveType>(&mut self, array: &dyn Array) -> PyResult<Values<'py>>
    where
        f64: From<T::Native>,
    {
        let (py, array) = (self.py, array.as_primitive::<T>());
        self.each(array, |_, row| Ok(PyFloat::new(py, f64::from(array.value(row))).into_any()))
    }

    fn texts<O: OffsetSizeTrait>(&mut self, array: &dyn Array) -> PyResult<Values<'py>> {
        let (py, array) = (self.py, array.as_string::<O>());
        self.each(array, |_, row| Ok(PyString::new(py, array.value(row)).into_any()))
    }

    fn binaries<O: OffsetSizeTrait>(&mut self, array: &dyn Array) -> PyResult<Values<'py>> {
        let (py, array) = (self.py, array.as_binary::<O>());
        self.each(array, |_, row| Ok(PyBytes::new(py, array.value(row)).into_any()))
    }

    fn structs(&mut self, path: &str, fields: &Fields, array: &dyn Array) -> PyResult<Values<'py>> {
        let array = array.as_struct();
        let class = self.row_class.call1((self.names(fields)?,))?;
        let mut parts = Vec::with_capacity(fields.len());
        for (field, part) in fields.iter().zip(array.columns()) {
            parts.push(self.values(&format!("{path}.{}", field.name()), part)?);
        }
        let py = self.py;
        self.each(array, |_, row| class.call1((PyTuple::new(py, parts.iter().map(|part| &part[row]))?,)))
    }

    fn lists<O: OffsetSizeTrait>(&mut self, path: &str, part: &Field, array: &dyn Array) -> PyResult<Values<'py>> {
        let array = array.as_list::<O>();
        let items = self.values(&format!("{path}.{}", part.name()), array.values())?;
        let (py, ends) = (self.py, array.value_offsets());
        self.each(array, |_, row| {
            Ok(PyList::new(py, &items[ends[row].as_usize()..ends[row + 1].as_usize()])?.into_any())
        })
    }

    fn maps(&mut self, path: &str, array: &dyn Array) -> PyResult<Values<'py>> {
        let array = array.as_map();
        let keys = self.values(&format!("{path}.key"), array.keys())?;
        let items = self.values(&format!("{path}.value"), array.values())?;
        let (py, ends) = (self.py, array.value_offsets());
        self.each(array, |_, row| {
            let entries = PyDict::new(py);
            for entry in ends[row].as_usize()..ends[row + 1].as_usize() {
                entries.set_item(&keys[entry], &items[entry])?;
            }
            Ok(entries.into_any())
        })
    }

    fn day(&mut self, path: &str, day: i64) -> PyResult<Bound<'py, PyAny>> {
        if let Some(known) = self.dates.get(&day) {
            return Ok(known.clone());
        }
        let ordinal = self.ordinal(path, "date", day)?;
        let date = self.date.call_method1("fromordinal", (ordinal,))?;
        self.dates.insert(day, date.clone());
        Ok(date)
    }

    fn moment(&mut self, path: &str, ticks: i64, zoned: bool) -> PyResult<Bound<'py, PyAny>> {
        let mut ticks = ticks;
        if zoned {
            match self.offset_us(ticks.div_euclid(DAY_US))? {
                Some(offset) => ticks += offset,
                None => return self.local.call1((ticks,)),
            }
        }
        self.ordinal(path, "timestamp", ticks.div_euclid(DAY_US))?;
        let (year, month, day) = calendar::date(ticks.div_euclid(DAY_US));
        let (hour, minute, second, micro) = clock(ticks.rem_euclid(DAY_US));
        // The ten bytes that a pickled datetime is made of: a third of the time that seven numbers take.
        let byte = |number: i64| number as u8;
        let state = [
            byte(year >> 8),
            byte(year),
            byte(month),
            byte(day),
            byte(hour),
            byte(minute),
            byte(second),
            byte(micro >> 16),
            byte(micro >> 8),
            byte(micro),
        ];
        self.datetime.call1((PyBytes::new(self.py, &state),))
    }

    fn offset_us(&mut self, day: i64) -> PyResult<Option<i64>> {
        if let Some(known) = self.offsets_us.get(&day) {
            return Ok(*known);
        }
        let asked: Option<i64> = if (-EPOCH_ORDINAL..=MAX_ORDINAL).contains(&day) {
            self.day_offset_s.call1((day,))?.extract()?
        } else {
            Some(0) // out of range in any zone
        };
        let offset = asked.map(|seconds| seconds * SECOND_US);
        self.offsets_us.insert(day, offset);
        Ok(offset)
    }

    /// Python's number of a day since 1970, if Python has it.
    fn ordinal(&self, path: &str, kind: &str, day: i64) -> PyResult<i64> {
        let ordinal = day + EPOCH_ORDINAL;
        if (1..=MAX_ORDINAL).contains(&ordinal) {
            return Ok(ordinal);
        }
        Err(unsupported(
            self.py,
            path,
            kind,
            format!(
                "the column '{path}' has a {kind} outside of the years 1 to 9999, which Python's datetime cannot hold."
            ),
            "Use to_arrow(), or cast the column to a string in the query.".to_owned(),
        ))
    }
}

/// Hour, minute, second and microsecond of a time within a day.
fn clock(micros: i64) -> (i64, i64, i64, i64) {
    let seconds = micros / SECOND_US;
    (seconds / 3600, seconds / 60 % 60, seconds % 60, micros % SECOND_US)
}

fn unsupported(py: Python<'_>, column: &str, value: &str, message: String, remedy: String) -> PyErr {
    let build = || {
        let fields = PyDict::new(py);
        fields.set_item("column", column)?;
        fields.set_item("value", value)?;
        fields.set_item("remedy", remedy)?;
        let class = py.import("solstice.errors")?.getattr("UnsupportedTypeError")?;
        Ok(PyErr::from_value(class.call((message,), Some(&fields))?))
    };
    build().unwrap_or_else(|failed: PyErr| failed)
}
