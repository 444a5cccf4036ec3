"""The shape of a query's rows: which columns Spark sees, and how a worker makes them of raw batches."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from solstice._core.arrow import to_arrow_schema
from solstice._core.options import OptionValues
from solstice.errors import ConfigError
from solstice.pubsub._dead_letter import DeadLetters
from solstice.pubsub._project import Projection

if TYPE_CHECKING:
    import pyarrow as pa

RAW_SCHEMA = StructType(
    [
        StructField("message_id", StringType()),
        StructField("publish_time", TimestampType()),
        StructField("data", BinaryType()),
        StructField("attributes", MapType(StringType(), StringType())),
        StructField("ordering_key", StringType()),
        StructField("delivery_attempt", IntegerType()),
    ]
)
_RESERVED = frozenset((*RAW_SCHEMA.names, "ack_id"))


@dataclass(frozen=True)
class Selection:
    """What is to be decoded of messages: columns of the raw schema, then attributes by name."""

    columns: tuple[str, ...]
    attribute_columns: tuple[str, ...]


@dataclass(frozen=True)
class Payload:
    """How payloads become columns."""

    format: str
    schema: StructType
    mode: str
    avro_schema: str | None

    @classmethod
    def of(cls, values: OptionValues, schema: StructType) -> "Payload":
        """What the options say; ``schema`` has the columns that come from the payload, and can be read into them."""
        _check_names(schema)
        payload = cls(values["format"], schema, values["mode"], values["avroSchema"])
        for wanted, made in zip(to_arrow_schema(schema), payload.projection().payload_schema, strict=True):
            if not wanted.equals(made):
                raise ConfigError(
                    f"the schema says NOT NULL in {wanted.name!r} ({schema[wanted.name].dataType.simpleString()}), "
                    "but a payload may lack any field.",
                    option="schema",
                    value=wanted.name,
                    remedy="Leave NOT NULL out, also of nested fields, elements of arrays and values of maps.",
                )
        return payload

    def projection(self, *, metadata: Iterable[str] = (), reasons: bool = False) -> Projection:
        """Made anew in every process: it is native and cannot be pickled."""
        return Projection(
            self.format,
            self.schema,
            mode=self.mode,
            avro_schema=self.avro_schema,
            metadata=tuple(metadata),
            reasons=reasons,
        )


@dataclass(frozen=True)
class Shape:
    """What the rows of one query look like. Spark pickles it with the reader, into planner and workers."""

    schema: StructType = RAW_SCHEMA
    columns: tuple[str, ...] = tuple(RAW_SCHEMA.names)
    attribute_columns: tuple[str, ...] = ()
    payload: Payload | None = None
    dead_letters: DeadLetters | None = None

    @classmethod
    def of(cls, values: OptionValues, schema: StructType | None) -> "Shape":
        """The shape that the options ask for; ``schema`` is the one the user gave, if any."""
        columns, attributes = values["columns"], values["attributeColumns"] or ()
        for name in columns or ():
            if name not in RAW_SCHEMA.names:
                raise ConfigError(
                    f"columns names {name!r}, which a message does not have.",
                    option="columns",
                    value=name,
                    remedy=f"It has {', '.join(RAW_SCHEMA.names)}; attributes by name go into attributeColumns.",
                )
        if values["format"] is None:
            return cls._raw(columns or tuple(RAW_SCHEMA.names), attributes, schema)
        return cls._parsed(values, columns or (), attributes, schema)

    @classmethod
    def _raw(cls, columns: tuple[str, ...], attributes: tuple[str, ...], schema: StructType | None) -> "Shape":
        shape = cls(_metadata_schema(columns, attributes), columns, attributes)
        if schema is not None and to_arrow_schema(schema) != to_arrow_schema(shape.schema):
            raise ConfigError(
                f"the rows of the source are {shape.schema.simpleString()}, not {schema.simpleString()}.",
                option="schema",
                value=schema.simpleString(),
                remedy="Set the option format to json or avro to have payloads parsed into the columns of "
                ".schema(...); or leave .schema(...) out, and choose with the options columns and attributeColumns.",
            )
        return shape

    @classmethod
    def _parsed(
        cls, values: OptionValues, columns: tuple[str, ...], attributes: tuple[str, ...], schema: StructType | None
    ) -> "Shape":
        if schema is None:
            raise ConfigError(
                f"format={values['format']} needs to know the columns of the payload.",
                option="format",
                value=values["format"],
                remedy='Give them with .schema("id BIGINT, name STRING").',
            )
        metadata = _metadata_schema(columns, attributes)
        fields = {field.name: field for field in schema.fields}
        if len(fields) < len(schema.fields):
            twice = Counter(schema.names).most_common(1)[0][0]
            raise ConfigError(
                f"the schema has more than one column {twice!r}.", option="schema", value=twice, remedy="Rename them."
            )
        for expected in metadata.fields:
            option = "columns" if expected.name in columns else "attributeColumns"
            _check_metadata(expected, fields.get(expected.name), option)
        payload = StructType([field for field in schema.fields if field.name not in metadata.names])
        return cls(schema, columns, attributes, Payload.of(values, payload), DeadLetters.of(values))

    def selection(self, always: Iterable[str] = ()) -> Selection:
        """What the rows are made of, with the columns named ``always``."""
        needed = [*self.columns, *always]
        if self.payload is not None:
            needed.append("data")
            if self.payload.mode == "FAILFAST":
                needed.append("message_id")  # the error names it
        if self.dead_letters is not None:
            needed += self.dead_letters.columns
        return Selection(tuple(dict.fromkeys(needed)), self.attribute_columns)

    def rows(self, raw: "Iterable[pa.RecordBatch]", origin: Mapping[str, str]) -> "Iterator[pa.RecordBatch]":
        """The rows of one part, of raw batches that have at least the selected columns, as Spark shall see them.

        ``origin`` names the part: dead letters carry it. They are published when the last row has been given.
        """
        names, raw = self.schema.names, self._checked(raw)
        if self.payload is None:
            for batch in raw:
                yield batch if batch.schema.names == names else batch.select(names)
        elif self.dead_letters is None:
            projection = self.payload.projection(metadata=(*self.columns, *self.attribute_columns))
            for batch in raw:
                yield from _some(projection.project(batch).batch.select(names))
        else:
            projection = self.payload.projection(metadata=(*self.columns, *self.attribute_columns), reasons=True)
            with self.dead_letters.open(origin) as letters:
                for batch in raw:
                    projected = projection.project(batch)
                    letters.add(batch, projected)
                    yield from _some(projected.batch.select(names))

    def _checked(self, raw: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """A log may still hold batches of the time before the query was changed."""
        selection = self.selection()
        for batch in raw:
            for name in (*selection.columns, *selection.attribute_columns):
                if name not in batch.schema.names:
                    raise ConfigError(
                        f"a batch of this query was kept without the column {name!r}, which the query asks for now.",
                        option="columns",
                        value=name,
                        remedy="Run the query as it was until it has read what is kept, then change it.",
                    )
            yield batch


def _some(batch: "pa.RecordBatch") -> "Iterator[pa.RecordBatch]":
    """Where all rows were left out, there is nothing to send."""
    if batch.num_rows > 0:
        yield batch


def _metadata_schema(columns: tuple[str, ...], attributes: tuple[str, ...]) -> StructType:
    for name in attributes:
        if name.lower() in _RESERVED:
            raise ConfigError(
                f"attributeColumns names {name!r}, which is reserved for message metadata.",
                option="attributeColumns",
                value=name,
                remedy="Take this attribute from the column attributes.",
            )
    return StructType([RAW_SCHEMA[name] for name in columns] + [StructField(name, StringType()) for name in attributes])


def _check_metadata(expected: StructField, given: StructField | None, option: str) -> None:
    """A column of message metadata stands in the user's schema as what it is."""
    if given is None or given.dataType != expected.dataType or not given.nullable:
        kind = expected.dataType.simpleString()
        found = "is not in the schema" if given is None else f"is {given.dataType.simpleString()} in the schema"
        if given is not None and given.dataType == expected.dataType:
            found = "is NOT NULL in the schema"
        raise ConfigError(
            f"{option} has {expected.name}, which {found}.",
            option=option,
            value=expected.name,
            remedy=f"Put `{expected.name}` {kind} into .schema(...), or leave it out of {option}.",
        )


def _check_names(payload: StructType) -> None:
    for field in payload.fields:
        if field.name.lower() not in _RESERVED:
            continue
        remedy = "Rename the field where the payload is written."
        if field.name in RAW_SCHEMA.names:
            remedy = (
                f"Name {field.name} in the option columns to have the message's own. To have the payload's: {remedy}"
            )
        raise ConfigError(
            f"the schema has a payload field {field.name!r}, a name that is reserved for message metadata.",
            option="schema",
            value=field.name,
            remedy=remedy,
        )
