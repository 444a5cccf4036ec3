//! The columns of a message in a record batch, whatever layout they come in: libraries differ in which one they export.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::ByteArrayType;
use arrow_array::{Array, ArrayRef, BinaryViewArray, GenericByteArray, RecordBatch, StructArray};
use arrow_buffer::{ArrowNativeType, NullBuffer};
use arrow_schema::DataType;

use crate::error::{Error, ErrorKind, Result};

/// The columns a message is made of.
const NAMES: [&str; 3] = ["data", "attributes", "ordering_key"];

/// The columns of one batch. A null is what the message does not have: no data, no attribute, no key.
pub struct Columns<'a> {
    data: Cells<'a>,
    attributes: Option<Attributes<'a>>,
    ordering_key: Option<Cells<'a>>,
}

impl<'a> Columns<'a> {
    /// The columns of `batch`, which must have nothing else: what is not published would be lost without a word.
    pub fn of(batch: &'a RecordBatch) -> Result<Self> {
        let schema = batch.schema_ref();
        for (index, field) in schema.fields().iter().enumerate() {
            let name = field.name().as_str();
            if !NAMES.contains(&name) {
                return Err(Error::new(
                    ErrorKind::Config,
                    format!("column '{name}' is no part of a message, which has data, attributes and ordering_key."),
                )
                .with_remedy("Drop it, or put it into 'data' or 'attributes'."));
            }
            if schema.fields().iter().skip(index + 1).any(|other| other.name() == name) {
                return Err(Error::new(ErrorKind::Config, format!("there are two columns '{name}'."))
                    .with_remedy("Drop one of them."));
            }
        }
        let Some(data) = batch.column_by_name("data") else {
            return Err(Error::new(ErrorKind::Config, "there is no column 'data' to publish.")
                .with_remedy("Name one column 'data'."));
        };
        let data = Cells::of(data).ok_or_else(|| wrong_type("data", data, "binary or string"))?;
        let ordering_key = match batch.column_by_name("ordering_key") {
            None => None,
            Some(keys) => Some(Cells::of_text(keys).ok_or_else(|| wrong_type("ordering_key", keys, "string"))?),
        };
        let attributes = match batch.column_by_name("attributes") {
            None => None,
            Some(column) => {
                let wanted = "map<string, string>, or a list of structs of two strings";
                Some(Attributes::of(column).ok_or_else(|| wrong_type("attributes", column, wanted))?)
            }
        };
        Ok(Self { data, attributes, ordering_key })
    }

    /// The payload of a row; empty for none.
    #[inline(always)]
    pub fn data(&self, row: usize) -> &[u8] {
        self.data.get(row).unwrap_or_default()
    }

    /// The ordering key of a row; empty for none.
    #[inline(always)]
    pub fn ordering_key(&self, row: usize) -> &[u8] {
        self.ordering_key.as_ref().and_then(|keys| keys.get(row)).unwrap_or_default()
    }

    /// Where the attributes of a row are, for [`Columns::attribute`].
    #[inline(always)]
    pub fn attributes(&self, row: usize) -> Range<usize> {
        self.attributes.as_ref().map_or(0..0, |attributes| attributes.of_row(row))
    }

    /// The name and value of an attribute; None if it has no value. Without a name, its name is empty.
    #[inline(always)]
    pub fn attribute(&self, entry: usize) -> Option<(&[u8], &[u8])> {
        self.attributes.as_ref().and_then(|attributes| attributes.get(entry))
    }
}

fn wrong_type(name: &str, column: &ArrayRef, wanted: &str) -> Error {
    Error::new(ErrorKind::Config, format!("column '{name}' is {}; it must be {wanted}.", column.data_type()))
        .with_remedy("Cast the column.")
}

/// Strings or bytes.
pub enum Cells<'a> {
    Small(&'a [i32], &'a [u8], Option<&'a NullBuffer>),
    Large(&'a [i64], &'a [u8], Option<&'a NullBuffer>),
    View(BinaryViewArray),
    Dictionary(Vec<usize>, Option<NullBuffer>, Box<Cells<'a>>),
}

impl<'a> Cells<'a> {
    /// The cells of a column; None if it has something else.
    pub fn of(column: &'a ArrayRef) -> Option<Self> {
        match column.data_type() {
            DataType::Binary => Some(Self::small(column.as_binary_opt::<i32>()?)),
            DataType::LargeBinary => Some(Self::large(column.as_binary_opt::<i64>()?)),
            DataType::BinaryView => Some(Self::View(column.as_binary_view_opt()?.clone())),
            DataType::Dictionary(..) => Self::dictionary(column, Self::of),
            _ => Self::of_text(column),
        }
    }

    fn of_text(column: &'a ArrayRef) -> Option<Self> {
        match column.data_type() {
            DataType::Utf8 => Some(Self::small(column.as_string_opt::<i32>()?)),
            DataType::LargeUtf8 => Some(Self::large(column.as_string_opt::<i64>()?)),
            DataType::Utf8View => Some(Self::View(column.as_string_view_opt()?.clone().to_binary_view())),
            DataType::Dictionary(..) => Self::dictionary(column, Self::of_text),
            _ => None,
        }
    }

    fn small<T: ByteArrayType<Offset = i32>>(array: &'a GenericByteArray<T>) -> Self {
        Self::Small(array.value_offsets(), array.value_data(), array.nulls())
    }

    fn large<T: ByteArrayType<Offset = i64>>(array: &'a GenericByteArray<T>) -> Self {
        Self::Large(array.value_offsets(), array.value_data(), array.nulls())
    }

    fn dictionary(column: &'a ArrayRef, values: fn(&'a ArrayRef) -> Option<Self>) -> Option<Self> {
        let dictionary = column.as_any_dictionary_opt()?;
        let values = values(dictionary.values())?;
        // With no values every row is null, and there is nothing that a key could be normalized to.
        let keys = if dictionary.values().is_empty() { vec![0; column.len()] } else { dictionary.normalized_keys() };
        Some(Self::Dictionary(keys, dictionary.nulls().cloned(), Box::new(values)))
    }

    /// What a row has; None for a null.
    #[inline(always)]
    pub fn get(&self, row: usize) -> Option<&[u8]> {
        match self {
            Self::Small(offsets, values, nulls) => valid(*nulls, row).then(|| slice(offsets, values, row)),
            Self::Large(offsets, values, nulls) => valid(*nulls, row).then(|| slice(offsets, values, row)),
            Self::View(cells) => cells.is_valid(row).then(|| cells.value(row)),
            Self::Dictionary(keys, nulls, values) => look_up(keys, nulls.as_ref(), values, row),
        }
    }
}

/// Apart, so that the layouts without a detour are compiled into their callers.
#[inline(never)]
fn look_up<'a>(keys: &[usize], nulls: Option<&NullBuffer>, values: &'a Cells<'_>, row: usize) -> Option<&'a [u8]> {
    if valid(nulls, row) { values.get(keys[row]) } else { None }
}

#[inline(always)]
fn valid(nulls: Option<&NullBuffer>, row: usize) -> bool {
    nulls.is_none_or(|nulls| nulls.is_valid(row))
}

#[inline(always)]
fn slice<'a, O: ArrowNativeType>(offsets: &[O], values: &'a [u8], row: usize) -> &'a [u8] {
    &values[offsets[row].as_usize()..offsets[row + 1].as_usize()]
}

/// Names and values: a map, or what a map is underneath, for libraries that have no maps.
struct Attributes<'a> {
    nulls: Option<&'a NullBuffer>,
    offsets: Offsets<'a>,
    entry_nulls: Option<&'a NullBuffer>,
    names: Cells<'a>,
    values: Cells<'a>,
}

enum Offsets<'a> {
    Small(&'a [i32]),
    Large(&'a [i64]),
}

impl<'a> Attributes<'a> {
    fn of(column: &'a ArrayRef) -> Option<Self> {
        let (offsets, entries) = match column.data_type() {
            DataType::Map(..) => {
                let map = column.as_map_opt()?;
                (Offsets::Small(map.value_offsets()), map.entries())
            }
            DataType::List(_) => {
                let list = column.as_list_opt::<i32>()?;
                (Offsets::Small(list.value_offsets()), list.values().as_struct_opt()?)
            }
            DataType::LargeList(_) => {
                let list = column.as_list_opt::<i64>()?;
                (Offsets::Large(list.value_offsets()), list.values().as_struct_opt()?)
            }
            _ => return None,
        };
        let (names, values) = Self::pair(entries)?;
        Some(Self { nulls: column.nulls(), offsets, entry_nulls: entries.nulls(), names, values })
    }

    fn pair(entries: &'a StructArray) -> Option<(Cells<'a>, Cells<'a>)> {
        match entries.columns() {
            [names, values] => Some((Cells::of_text(names)?, Cells::of_text(values)?)),
            _ => None,
        }
    }

    #[inline(always)]
    fn of_row(&self, row: usize) -> Range<usize> {
        if !valid(self.nulls, row) {
            return 0..0;
        }
        match &self.offsets {
            Offsets::Small(offsets) => offsets[row].as_usize()..offsets[row + 1].as_usize(),
            Offsets::Large(offsets) => offsets[row].as_usize()..offsets[row + 1].as_usize(),
        }
    }

    #[inline(always)]
    fn get(&self, entry: usize) -> Option<(&[u8], &[u8])> {
        if !valid(self.entry_nulls, entry) {
            return None;
        }
        let value = self.values.get(entry)?;
        Some((self.names.get(entry).unwrap_or_default(), value))
    }
}
