"""The protocol's descriptors, read as data out of the installed pyspark (or pyspark-client), which is never imported.

The generated ``*_pb2.py`` files each hold one serialized file descriptor as a bytes literal: ``ast`` finds it. The set
is cached in the user's cache folder, one file per pyspark; a cache that is missing, stale or broken is made anew.
"""

import importlib.util
import os
import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solstice._core.cache import cache_dir
from solstice.errors import ConfigError, MissingExtraError

_MAGIC = b"solstice-connect-descriptors-2\n"
_NUMBER = struct.Struct("<I")


_ANY, _DURATION = "google/protobuf/any.proto", "google/protobuf/duration.proto"


def _field(number: int, name: str, kind: str, *, repeated: bool = False) -> dict[str, Any]:
    """A field of a message; ``kind`` is a scalar's name or, with a leading dot, a message's."""
    label = "LABEL_REPEATED" if repeated else "LABEL_OPTIONAL"
    typed = {"type": "TYPE_MESSAGE", "type_name": kind} if kind.startswith(".") else {"type": f"TYPE_{kind}"}
    return {"name": name, "number": number, "label": label, **typed}


# What gRPC statuses carry: facts of the wire, here because their Python packages are not in the light install.
_RPC_FILE: dict[str, Any] = {
    "name": "google/rpc/solstice.proto",
    "package": "google.rpc",
    "syntax": "proto3",
    "dependency": [_ANY, _DURATION],
    "message_type": [
        {
            "name": "Status",
            "field": [
                _field(1, "code", "INT32"),
                _field(2, "message", "STRING"),
                _field(3, "details", ".google.protobuf.Any", repeated=True),
            ],
        },
        {
            "name": "ErrorInfo",
            "field": [
                _field(1, "reason", "STRING"),
                _field(2, "domain", "STRING"),
                _field(3, "metadata", ".google.rpc.ErrorInfo.MetadataEntry", repeated=True),
            ],
            "nested_type": [
                {
                    "name": "MetadataEntry",
                    "options": {"map_entry": True},
                    "field": [_field(1, "key", "STRING"), _field(2, "value", "STRING")],
                }
            ],
        },
        {"name": "RetryInfo", "field": [_field(1, "retry_delay", ".google.protobuf.Duration")]},
    ],
}


@dataclass(frozen=True)
class Pyspark:
    """The installed pyspark or pyspark-client, as found on disk."""

    home: Path
    version: str

    @property
    def proto_files(self) -> list[Path]:
        """The generated modules of the protocol."""
        return sorted((self.home / "sql" / "connect" / "proto").glob("*_pb2.py"))

    @property
    def has_server(self) -> bool:
        """Whether a server can be started from it: pyspark-client has none."""
        return (self.home / "jars").is_dir() and (self.home / "bin" / "spark-submit").is_file()


def find_pyspark() -> Pyspark:
    """Find pyspark without importing it, or raise MissingExtraError."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("pyspark", "spark")
    home = Path(next(iter(spec.submodule_search_locations)))
    try:
        version = re.search(
            r"""^__version__[^=]*= *["']([^"']+)["']""", (home / "version.py").read_text(), re.MULTILINE
        )
    except FileNotFoundError:
        version = None
    return Pyspark(home, version[1] if version else "unknown")


def load_descriptors(pyspark: Pyspark) -> list[bytes]:
    """The serialized file descriptors, dependencies first, from the cache or from the sources."""
    path = _cache_path(pyspark)
    cached = None if path is None else _read_cache(path)
    if cached is not None:
        return cached
    descriptors = read_descriptors(pyspark)
    if path is not None:
        _write_cache(path, descriptors)
    return descriptors


def read_descriptors(pyspark: Pyspark) -> list[bytes]:
    """The serialized file descriptors, dependencies first, from the sources."""
    from google.protobuf import any_pb2, descriptor_pb2, duration_pb2, timestamp_pb2

    rpc = descriptor_pb2.FileDescriptorProto(**_RPC_FILE)
    files = {rpc.name: rpc}
    for known in (any_pb2, duration_pb2, timestamp_pb2):
        file = descriptor_pb2.FileDescriptorProto.FromString(known.DESCRIPTOR.serialized_pb)
        files[file.name] = file
    for path in pyspark.proto_files:
        for literal in _serialized_files(path.read_text()):
            file = descriptor_pb2.FileDescriptorProto.FromString(literal)
            files[file.name] = file
    if "spark/connect/base.proto" not in files:
        raise ConfigError(
            f"pyspark {pyspark.version} in {pyspark.home} does not have the Spark Connect protocol.",
            option="pyspark",
            value=pyspark.version,
            remedy="Run: pip install 'pyspark>=4.2'",
        )
    ordered: list[bytes] = []
    placed: set[str] = set()

    def place(name: str) -> None:
        if name not in placed:
            placed.add(name)
            for dependency in files[name].dependency:
                place(dependency)
            ordered.append(files[name].SerializeToString())

    for name in sorted(files):
        place(name)
    return ordered


def _serialized_files(source: str) -> list[bytes]:
    """The arguments of ``AddSerializedFile(b"...")`` in a generated module."""
    import ast  # here, because with the cache it is not needed

    return [
        node.args[0].value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "AddSerializedFile"
        and len(node.args) == 1
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, bytes)
    ]


def _cache_path(pyspark: Pyspark) -> Path | None:
    """The cache's file, or None for a user who has no home."""
    # Sizes and times are in the name: a pyspark that was rebuilt or replaced under the same version gets its own file.
    # (Checksums, not hashes: OpenSSL alone would take 3 ms and 3 MB of every start.)
    stats = [(file.name, stat.st_size, stat.st_mtime_ns) for file in pyspark.proto_files for stat in [file.stat()]]
    mark = f"{zlib.crc32(str(pyspark.home).encode()):08x}{zlib.crc32(repr(stats).encode()):08x}"
    try:
        folder = cache_dir()
    except RuntimeError:
        return None
    return folder / f"connect-descriptors-{pyspark.version}-{mark}.bin"


def _read_cache(path: Path) -> list[bytes] | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    body_start = len(_MAGIC) + _NUMBER.size
    body = content[body_start:]
    if content[:body_start] != _MAGIC + _NUMBER.pack(zlib.crc32(body)):
        return None
    # Not a FileDescriptorSet: reading one needs a module of protobuf whose import takes longer than all the rest.
    files, position = [], 0
    while position < len(body):
        end = position + _NUMBER.size + _NUMBER.unpack_from(body, position)[0]
        files.append(body[position + _NUMBER.size : end])
        position = end
    return files


def _write_cache(path: Path, files: list[bytes]) -> None:
    import tempfile

    body = b"".join(_NUMBER.pack(len(file)) + file for file in files)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
            try:
                file.write(_MAGIC + _NUMBER.pack(zlib.crc32(body)) + body)
                file.flush()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError:
        return  # a read-only home costs 25 ms a start, nothing else
