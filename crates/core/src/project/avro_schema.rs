//! The schema of an Avro writer, read from its JSON.

use std::collections::HashMap;

use arrow_avro::schema::{AvroSchema, Fingerprint, FingerprintAlgorithm};
use serde_json::Value;

use crate::error::{Error, ErrorKind, Result};

/// Types of a writer's schema; they name each other by their place, because records may contain themselves.
pub(super) struct WriterSchema {
    types: Vec<Type>,
    /// CRC-64-AVRO of the canonical form, which the single-object encoding puts before a datum.
    pub fingerprint: u64,
}

/// The place of a type.
pub(super) type TypeId = usize;

#[derive(Debug)]
pub(super) enum Type {
    Null,
    Boolean,
    /// int and long are encoded alike.
    Integer(Meaning),
    Float,
    Double,
    Bytes(Meaning),
    String,
    Fixed(usize, Meaning),
    Enum(Vec<Box<str>>),
    Array(TypeId),
    Map(TypeId),
    Record(Vec<(Box<str>, TypeId)>),
    Union(Vec<TypeId>),
}

/// The logical types that change how a value is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Plain,
    Date,
    /// So many a second.
    Time(i64),
    Timestamp(i64),
    LocalTimestamp(i64),
    /// The scale.
    Decimal(i8),
    Uuid,
}

impl WriterSchema {
    pub fn parse(text: &str) -> Result<Self> {
        let json: Value = serde_json::from_str(text).map_err(|e| invalid(&format!("it is no JSON: {e}")))?;
        let mut parser = Parser { types: vec![], names: HashMap::new() };
        // The root stands at place 0, which is reserved for it.
        parser.types.push(Type::Null);
        match parser.parse(&json, "", Some(0))? {
            0 => {}
            _ => return Err(invalid("it is no record").with_remedy("Columns come from the fields of a record.")),
        }
        let fingerprint = AvroSchema::new(text.to_owned()).fingerprint(FingerprintAlgorithm::Rabin);
        match fingerprint.map_err(|e| invalid(&e.to_string()))? {
            Fingerprint::Rabin(fingerprint) => Ok(Self { types: parser.types, fingerprint }),
            other => Err(Error::new(ErrorKind::Native, format!("an unexpected fingerprint: {other:?}."))),
        }
    }

    pub fn get(&self, id: TypeId) -> &Type {
        &self.types[id]
    }

    /// The fields of the record that the whole schema is.
    pub fn root(&self) -> &[(Box<str>, TypeId)] {
        match &self.types[0] {
            Type::Record(fields) => fields,
            _ => &[],
        }
    }
}

struct Parser {
    types: Vec<Type>,
    names: HashMap<String, TypeId>,
}

impl Parser {
    /// The place of a type. A record goes to `place` if that is given; it is known by its name before its fields are
    /// read.
    fn parse(&mut self, json: &Value, namespace: &str, place: Option<TypeId>) -> Result<TypeId> {
        match json {
            Value::String(name) => self.named(name, namespace),
            Value::Array(branches) => {
                let branches: Result<_> = branches.iter().map(|branch| self.parse(branch, namespace, None)).collect();
                Ok(self.add(Type::Union(branches?)))
            }
            Value::Object(fields) => match &json["type"] {
                Value::String(kind) => match kind.as_str() {
                    "record" | "error" => self.record(json, namespace, place),
                    "enum" => {
                        let symbols = list(json, "symbols")?.iter().map(|symbol| Ok(word(symbol)?.into()));
                        let symbols = Type::Enum(symbols.collect::<Result<_>>()?);
                        self.add_named(json, namespace, symbols)
                    }
                    "fixed" => {
                        let size = json["size"].as_u64().and_then(|size| usize::try_from(size).ok());
                        let size = size.ok_or_else(|| invalid("a fixed without a size"))?;
                        let meaning = match meaning(json)? {
                            Meaning::Uuid if size != 16 => Meaning::Plain,
                            meaning @ (Meaning::Uuid | Meaning::Decimal(_)) => meaning,
                            _ => Meaning::Plain,
                        };
                        self.add_named(json, namespace, Type::Fixed(size, meaning))
                    }
                    "array" => {
                        let items = self.parse(&json["items"], namespace, None)?;
                        Ok(self.add(Type::Array(items)))
                    }
                    "map" => {
                        let values = self.parse(&json["values"], namespace, None)?;
                        Ok(self.add(Type::Map(values)))
                    }
                    primitive => {
                        let id = self.named(primitive, namespace)?;
                        let meaning = meaning(json)?;
                        match (&self.types[id], meaning) {
                            (Type::Bytes(_), Meaning::Decimal(_)) => Ok(self.add(Type::Bytes(meaning))),
                            (Type::Integer(_), Meaning::Decimal(_) | Meaning::Uuid) => Ok(id),
                            (Type::Integer(_), meaning) => Ok(self.add(Type::Integer(meaning))),
                            _ => Ok(id),
                        }
                    }
                },
                nested @ (Value::Object(_) | Value::Array(_)) => self.parse(nested, namespace, place),
                _ => Err(invalid(&format!("a type without a \"type\", with {} keys", fields.len()))),
            },
            other => Err(invalid(&format!("{other} is no type"))),
        }
    }

    fn record(&mut self, json: &Value, namespace: &str, place: Option<TypeId>) -> Result<TypeId> {
        let id = place.unwrap_or_else(|| self.add(Type::Null));
        let full_name = full_name(json, namespace)?;
        let namespace = full_name.rsplit_once('.').map_or("", |(namespace, _)| namespace).to_owned();
        self.know(full_name, id)?;
        let mut fields: Vec<(Box<str>, TypeId)> = vec![];
        for field in list(json, "fields")? {
            let name = word(&field["name"])?;
            if fields.iter().any(|(known, _)| **known == *name) {
                return Err(invalid(&format!("two fields named {name:?}")));
            }
            fields.push((name.into(), self.parse(&field["type"], &namespace, None)?));
        }
        self.types[id] = Type::Record(fields);
        Ok(id)
    }

    fn named(&mut self, name: &str, namespace: &str) -> Result<TypeId> {
        let primitive = match name {
            "null" => Type::Null,
            "boolean" => Type::Boolean,
            "int" | "long" => Type::Integer(Meaning::Plain),
            "float" => Type::Float,
            "double" => Type::Double,
            "bytes" => Type::Bytes(Meaning::Plain),
            "string" => Type::String,
            _ => {
                let full_name = qualified(name, namespace);
                let id = self.names.get(&full_name).or_else(|| self.names.get(name));
                return id.copied().ok_or_else(|| invalid(&format!("{name:?} is not defined")));
            }
        };
        Ok(self.add(primitive))
    }

    fn add_named(&mut self, json: &Value, namespace: &str, named: Type) -> Result<TypeId> {
        let id = self.add(named);
        self.know(full_name(json, namespace)?, id)?;
        Ok(id)
    }

    fn know(&mut self, full_name: String, id: TypeId) -> Result<()> {
        match self.names.insert(full_name.clone(), id) {
            None => Ok(()),
            Some(_) => Err(invalid(&format!("{full_name:?} is defined twice"))),
        }
    }

    fn add(&mut self, new: Type) -> TypeId {
        self.types.push(new);
        self.types.len() - 1
    }
}

fn meaning(json: &Value) -> Result<Meaning> {
    Ok(match json["logicalType"].as_str() {
        Some("date") => Meaning::Date,
        Some("time-millis") => Meaning::Time(1_000),
        Some("time-micros") => Meaning::Time(1_000_000),
        Some("timestamp-millis") => Meaning::Timestamp(1_000),
        Some("timestamp-micros") => Meaning::Timestamp(1_000_000),
        Some("timestamp-nanos") => Meaning::Timestamp(1_000_000_000),
        Some("local-timestamp-millis") => Meaning::LocalTimestamp(1_000),
        Some("local-timestamp-micros") => Meaning::LocalTimestamp(1_000_000),
        Some("local-timestamp-nanos") => Meaning::LocalTimestamp(1_000_000_000),
        Some("decimal") => {
            let scale = json.get("scale").map_or(Some(0), Value::as_i64);
            let scale = scale.filter(|scale| (0..=38).contains(scale));
            Meaning::Decimal(scale.ok_or_else(|| invalid("a decimal with a scale beyond 0 to 38"))? as i8)
        }
        Some("uuid") => Meaning::Uuid,
        _ => Meaning::Plain,
    })
}

fn full_name(json: &Value, namespace: &str) -> Result<String> {
    let name = word(&json["name"])?;
    Ok(qualified(name, json["namespace"].as_str().unwrap_or(namespace)))
}

fn qualified(name: &str, namespace: &str) -> String {
    if name.contains('.') || namespace.is_empty() { name.to_owned() } else { format!("{namespace}.{name}") }
}

fn word(json: &Value) -> Result<&str> {
    json.as_str().ok_or_else(|| invalid(&format!("{json} is no name")))
}

fn list<'a>(json: &'a Value, key: &str) -> Result<&'a [Value]> {
    json[key].as_array().map(Vec::as_slice).ok_or_else(|| invalid(&format!("{} has no {key}", json["name"])))
}

fn invalid(reason: &str) -> Error {
    Error::new(ErrorKind::Config, format!("the Avro schema cannot be used: {reason}."))
}
