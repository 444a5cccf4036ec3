"""``solstice pubsub publish``: messages from JSON lines, or from lines as they are."""

import base64
import binascii
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from solstice.cli._output import console
from solstice.cli._pubsub_resources import CredentialsFile, EmulatorHost, Endpoint, Project, Topic
from solstice.errors import ConfigError, PublishError

_READ_BYTES = 1 << 20
# More than a message of 10 MB can become in JSON: every byte escaped.
_MAX_LINE_BYTES = 64 << 20
_FIELDS = ("data", "data_base64", "attributes", "ordering_key")
# What the server gives a message; a message that was pulled has them, and gets others.
_SERVER_FIELDS = ("message_id", "publish_time", "delivery_attempt")

EXAMPLES = """Examples:

solstice pubsub publish projects/p/topics/t messages.jsonl

echo '{"data": "hello", "attributes": {"k": "v"}}' | solstice pubsub publish t --project p

tail -f app.log | solstice pubsub publish t --project p --raw-lines
"""


def publish(
    topic: Topic,
    file: Annotated[str, typer.Argument(help="A file of messages; - is the standard input.")] = "-",
    raw_lines: Annotated[bool, typer.Option("--raw-lines", help="Each line is the data of a message.")] = False,
    gzip: Annotated[bool, typer.Option("--gzip", help="Compress the requests.")] = False,
    project: Project = None,
    emulator_host: EmulatorHost = None,
    endpoint: Endpoint = None,
    credentials_file: CredentialsFile = None,
) -> None:
    """Publish messages, one a line: {"data": "...", "attributes": {...}, "ordering_key": "..."}.

    Bytes that are no text go into "data_base64" instead of "data". What "solstice pubsub pull" writes is understood.
    Lines are published as they come, messages of one ordering key in their order. The first bad line ends it; nothing
    after it is sent.
    """
    from solstice.pubsub import Publisher

    parse = _raw_message if raw_lines else _json_message
    with ExitStack() as stack:
        source = cast("BufferedReader", sys.stdin.buffer) if file == "-" else stack.enter_context(_opened(file))
        publisher = Publisher(
            topic,
            project_id=project,
            emulator_host=emulator_host,
            endpoint=endpoint,
            credentials_file=credentials_file,
            compression="gzip" if gzip else None,
        )
        try:
            with publisher:
                for messages in _messages(source, parse):
                    if messages.rows:
                        publisher.publish(_table(messages.rows))
                    if messages.problem:
                        publisher.flush()
                        raise ConfigError(f"{messages.problem} {publisher.published()} messages were published before.")
        except PublishError as error:
            raise _by_line(error) from error
        except KeyboardInterrupt:
            console(stderr=True).print(f"interrupted: {publisher.published()} messages were published.")
            raise typer.Exit(130) from None
        console().print(f"published {publisher.published()} messages to {publisher.topic}")


class _Messages:
    """Messages that were read, and what is wrong with the line after them, if anything is."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.problem: str | None = None


def _messages(source: BufferedReader, parse: Callable[[bytes], dict[str, Any]]) -> Iterator[_Messages]:
    """The messages of the lines that have come, again and again until the end or the first bad line."""
    number = 0
    for lines in _lines(source):
        found = _Messages()
        for line in lines:
            number += 1
            try:
                found.rows.append(parse(line))
            except ValueError as error:
                found.problem = f"line {number}: {error}."
                break
        yield found
        if found.problem:
            return


def _lines(source: BufferedReader) -> Iterator[list[bytes]]:
    """Whole lines as they come: what is there is taken at once, so that a slow source is not waited for."""
    rest: list[bytes] = []
    waiting = 0
    while chunk := source.read1(_READ_BYTES):
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            yield b"".join([*rest, head]).split(b"\n")
            rest, waiting = [tail], len(tail)
        else:
            rest.append(chunk)
            waiting += len(chunk)
        if waiting > _MAX_LINE_BYTES:
            break  # what there is of the line is more than any message
    if last := b"".join(rest):
        yield [last]


def _raw_message(line: bytes) -> dict[str, Any]:
    _check_size(line)
    return {"data": line.removesuffix(b"\r")}


def _json_message(line: bytes) -> dict[str, Any]:
    _check_size(line)
    try:
        message = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError(f"expected a JSON object, got {type(message).__name__}")
    if unknown := sorted(set(message).difference(_FIELDS, _SERVER_FIELDS)):
        raise ValueError(f"there is no field {unknown[0]!r}; a message has {', '.join(_FIELDS)}")
    if "data" in message and "data_base64" in message:
        raise ValueError("'data' and 'data_base64' are two contents for one message")
    attributes = _optional(message, "attributes", dict)
    for name, value in (attributes or {}).items():
        if not isinstance(value, str):
            raise ValueError(f"the value of attribute {name!r} is no string")
    ordering_key = _optional(message, "ordering_key", str)
    # JSON can hold half of a surrogate pair, which no message can: a UnicodeEncodeError is a ValueError.
    for text in (ordering_key or "", *(attributes or {}), *(attributes or {}).values()):
        text.encode()
    return {
        "data": _data(message),
        "attributes": attributes and list(attributes.items()),
        "ordering_key": ordering_key,
    }


def _check_size(line: bytes) -> None:
    if len(line) > _MAX_LINE_BYTES:
        raise ValueError(f"it has more than {_MAX_LINE_BYTES} bytes, which no message has")


def _data(message: dict[str, Any]) -> bytes | None:
    text = _optional(message, "data", str)
    if text is not None:
        return bytes(text, "utf-8")
    encoded = _optional(message, "data_base64", str)
    if encoded is None:
        return None
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise ValueError(f"'data_base64' is no base64: {error}") from None


def _optional(message: dict[str, Any], field: str, kind: type) -> Any:
    value = message.get(field)
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{field!r} is no {'object' if kind is dict else 'string'}")
    return value


def _table(rows: list[dict[str, Any]]) -> Any:
    from solstice._core.extras import require

    pa = require("pyarrow", "pubsub")
    types = {"data": pa.binary(), "attributes": pa.map_(pa.string(), pa.string()), "ordering_key": pa.string()}
    return pa.table({name: pa.array([row.get(name) for row in rows], kind) for name, kind in types.items()})


def _opened(file: str) -> BufferedReader:
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.", option="file", value=file) from error


def _by_line(error: PublishError) -> PublishError:
    """The error with line numbers: a row is a line."""
    shown = []
    for failure in error.failures[:3]:
        first, last = failure.rows.start + 1, failure.rows.stop
        where = f"line {first}" if first == last else f"lines {first} to {last}"
        shown.append(f"{where}: {failure.reason}")
    more = "; and more" if len(error.failures) > len(shown) else ""
    return PublishError(
        f"published {error.published} messages; failed: {'; '.join(shown)}{more}.",
        taken=error.taken,
        published=error.published,
        failures=error.failures,
        code=error.code,
        remedy="A message that got no answer may have arrived all the same.",
    )
