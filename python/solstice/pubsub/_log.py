"""The log of ``delivery="log"``: batches of a subscription on storage, from their cut until they cannot come again.

    owner.json                  whose log it is: one planner at a time
    SEQ-EPOCH.N.arrow           the rows of part N of a batch
    SEQ-EPOCH.json              its manifest, written last: what has none is no batch
    SEQ-EPOCH.ids               the ids of a batch that is consumed; its rows are deleted then

The rules are those of ``tests/unit/pubsub/test_delivery_model_log.py``; numbers in comments are theirs. A planner
claims the log, looks through it, and from then on knows what is in it without looking again.
"""

import errno
import json
import os
import re
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from solstice import _native
from solstice.errors import ConfigError, LogError, MachineError, PartUnavailableError
from solstice.pubsub._log_store import TEMPORARY, open_store
from solstice.pubsub._parts import AgentPart

if TYPE_CHECKING:
    import pyarrow as pa

_FORMAT = 1
_OWNER = "owner.json"
_FILE = re.compile(r"(?P<name>\d{20}-[0-9a-f-]{36})\.(?:(?P<part>\d+)\.arrow|(?P<kind>json|ids))")
# At most so many requests to an object store at a time.
_IN_FLIGHT = 16
# One call forgets no more batches than this, so that none takes long.
_EXPIRE_AT_ONCE = 64
# Names of batches that will never be complete; one a crash.
_REMEMBERED_TORN = 100
# The longest that Pub/Sub keeps a message.
_LONGEST_MESSAGE_LIFE_S = 31 * 86_400.0
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True)
class PartFile:
    """The rows of one part."""

    file: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class LoggedBatch:
    """A batch that is to be read; ``ids`` are those of its messages, as the native core lists them."""

    parts: tuple[PartFile, ...]
    ids: "pa.Table" = field(repr=False)


def name_of(offset: dict[str, Any]) -> str:
    """What the files of the batch that ends at ``offset`` are called. Rule 4: it has the epoch in it."""
    return f"{offset['seq']:020d}-{offset['epoch']}"


def offset_of(name: str) -> dict[str, Any]:
    """The offset at the end of a batch of the log. The mark keeps it from a delivery that has no log."""
    return {"epoch": name[21:], "seq": int(name[:20]), "log": True}


class Log:
    """One life's view of its log, which it owns."""

    def __init__(self, location: str, subscription: str, epoch: str, clock: Callable[[], float] = time.time) -> None:
        self._location = location
        self._subscription = subscription
        self._epoch = epoch
        self._clock = clock
        self._store = open_store(location)
        self._torn: list[str] = []
        # All in the order of their names, or of their time.
        self._waiting: dict[str, LoggedBatch] = {}
        self._confirmed: dict[str, float] = {}
        self._unconfirmed: dict[str, float] = {}
        self.seen = _native.SeenIds()
        self.last_seq = 0

    def open(self) -> None:
        """Rule 20: first the claim, then the look."""
        with self._errors():
            self._claim()
            self._look()

    def oldest(self) -> str | None:
        """The name of the batch that is to be planned next. Rule 7: Spark may never have heard of it."""
        return next(iter(self._waiting), None)

    def waiting(self, name: str) -> LoggedBatch | None:
        """A batch whose rows are to be read."""
        return self._waiting.get(name)

    def is_consumed(self, name: str) -> bool:
        """Whether Spark has made the batch durable."""
        return name in self._confirmed or name in self._unconfirmed

    def count(self) -> dict[str, int]:
        """For the query's progress and Prometheus."""
        return {"log_waiting": len(self._waiting), "log_known_ids": len(self.seen)}

    # Whose it is

    def _claim(self) -> None:
        self._store.create()
        owner = self._owner()
        if owner is None:
            if foreign := sorted(set(self._store.files()) - {_OWNER + TEMPORARY}):
                raise ConfigError(
                    f"logPath is {self._location}, which is no log but has files in it ({foreign[0]}).",
                    option="logPath",
                    value=self._location,
                    remedy="Give an empty folder, or one that does not exist yet.",
                )
        elif owner["subscription"] != self._subscription:
            raise ConfigError(
                f"logPath is {self._location}, which is the log of {owner['subscription']}.",
                option="logPath",
                value=self._location,
                remedy=f"Give {self._subscription} a log of its own.",
            )
        else:
            self._torn = owner["torn"]
        self._write_owner()

    def _write_owner(self) -> None:
        owner = {
            "format": _FORMAT,
            "subscription": self._subscription,
            "epoch": self._epoch,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
            "torn": self._torn[-_REMEMBERED_TORN:],
        }
        self._store.put(_OWNER, json.dumps(owner).encode())

    def _owner(self) -> dict[str, Any] | None:
        try:
            owner = self._read_json(_OWNER)
        except FileNotFoundError:
            return None
        if owner.get("format") != _FORMAT:
            raise LogError(
                f"the log at {self._location} has the format {owner.get('format')}; this Solstice writes {_FORMAT}.",
                remedy="Go on with the version that wrote it until all is read, or give a new logPath.",
            )
        return owner

    def check_owner(self) -> None:
        """Rule 19: fail unless the log is still ours."""
        with self._errors():
            owner = self._owner()
        if owner is None:
            raise LogError(
                f"the log at {self._location} has lost its {_OWNER}.",
                remedy="Somebody deletes files there: give a folder that belongs to the query alone.",
            )
        if owner["epoch"] != self._epoch:
            raise LogError(
                f"the log at {self._location} was taken over by process {owner['pid']} on {owner['host']}, "
                f"{owner['since']}.",
                remedy="Nothing is lost. A log belongs to one query at a time: give each a logPath of its own.",
            )

    # What is in it

    def _look(self) -> None:
        files = self._store.files()
        found: dict[str, list[str]] = defaultdict(list)
        for file in sorted(files):
            if match := _FILE.fullmatch(file.removesuffix(TEMPORARY)):
                found[match["name"]].append(file)
        torn = [
            name
            for name, own in found.items()
            if f"{name}.ids" not in own and (f"{name}.json" not in own or name in self._torn)
        ]
        if torn:
            # Rule 3. Its writer may not be dead, only slow: should the manifest still come, it counts for nothing.
            self._torn += [name for name in torn if name not in self._torn]
            self.check_owner()
            self._write_owner()
        consumed = [name for name, own in found.items() if f"{name}.ids" in own]
        for name in (*torn, *consumed):
            self._remove(file for file in found.pop(name) if file != f"{name}.ids")
        self._waiting = {name: self._read_batch(name, files) for name in sorted(found)}
        for at, name, confirmed in sorted(_in_parallel(self._learn_consumed, consumed)):
            (self._confirmed if confirmed else self._unconfirmed)[name] = at
        self.last_seq = max((offset_of(name)["seq"] for name in (*self._waiting, *consumed)), default=0)

    def _read_batch(self, name: str, files: dict[str, int]) -> LoggedBatch:
        manifest = self._read_json(f"{name}.json")
        parts = tuple(PartFile(**part) for part in manifest["parts"])
        for part in parts:
            if files.get(part.file) != part.bytes:
                raise LogError(
                    f"{part.file} in the log at {self._location} has {files.get(part.file, 'no')} bytes, and "
                    f"{part.bytes} were written.",
                    remedy="Its messages are acknowledged and are nowhere else: restore the file.",
                )
        return _batch(_in_parallel(self._learn_part, parts))

    def _learn_part(self, part: PartFile) -> "tuple[PartFile, pa.Table]":
        """Rule 13."""
        import pyarrow as pa

        with self._store.source(part.file) as source:
            column = pa.ipc.open_file(source).schema.get_field_index("message_id")
            options = pa.ipc.IpcReadOptions(included_fields=[column])
            fresh = self.seen.fresh(pa.ipc.open_file(source, options=options).read_all())
            for _ in pa.RecordBatchReader.from_stream(fresh):
                pass
        return part, pa.table(fresh.ids())

    def _learn_consumed(self, name: str) -> tuple[float, str, bool]:
        """Rule 13."""
        at, confirmed, ids = self._read_ids(name)
        self.seen.learn(ids)
        return at, name, confirmed

    # A batch's life

    def write(
        self, end: dict[str, Any], parts: Sequence[AgentPart], write_files: Callable[[Sequence[str]], None]
    ) -> bool:
        """Write a batch without the rows that are known, so that it survives. Without rows there is no batch.

        ``write_files`` lets the agent write the parts to files of this machine, which spares them the way through this
        process. After an error the life must end: what was not written counts as seen.
        """
        name = name_of(end)
        # Twice as many as parts: a part with copies is written once more, without them.
        files = [f"{name}.{index}.arrow" for index in range(2 * len(parts))]
        paths = [path for file in files[: len(parts)] if (path := self._store.path(file))]
        try:
            with self._errors():
                if paths:
                    write_files(paths)
                store = self._keep_part if paths else self._store_part
                kept = [
                    part for part in _in_parallel(store, zip(files, files[len(parts) :], parts, strict=False)) if part
                ]
                if kept:
                    # Rules 1, 2: the last file, and it waits for the others.
                    manifest = {"subscription": self._subscription, "parts": [vars(part) for part, _ in kept]}
                    self._store.put(f"{name}.json", json.dumps(manifest).encode())
        except BaseException:
            with suppress(OSError):
                self._remove((f"{name}.json", f"{name}.json{TEMPORARY}", *files))
            raise
        self.last_seq = end["seq"]
        if kept:
            self._waiting[name] = _batch(kept)
        return bool(kept)

    def _keep_part(self, part: tuple[str, str, AgentPart]) -> "tuple[PartFile, pa.Table] | None":
        """A part that the agent has written: as it is, or without its copies in another file."""
        import pyarrow as pa

        file, without_copies, held = part
        with self._store.source(file) as source, pa.ipc.open_file(source) as reader:
            batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
            fresh = self.seen.fresh(pa.RecordBatchReader.from_batches(reader.schema, batches))
            kept = list(pa.RecordBatchReader.from_stream(fresh))
            if sum(batch.num_rows for batch in batches) != held.rows:
                raise PartUnavailableError(f"{file} does not have the {held.rows} rows that the agent was to write.")
            if sum(batch.num_rows for batch in kept) < held.rows:
                stored = self._write_rows(without_copies, iter(kept))
                self._store.remove(file)
                return None if stored is None else (stored, pa.table(fresh.ids()))
            size = source.size()
        self._store.keep(file)
        return PartFile(file, held.rows, size), pa.table(fresh.ids())

    def _store_part(self, part: tuple[str, str, AgentPart]) -> "tuple[PartFile, pa.Table] | None":
        """A part that goes through this process."""
        import pyarrow as pa

        file, _, held = part
        fresh = self.seen.fresh(held.open())
        stored = self._write_rows(file, _rows(pa.RecordBatchReader.from_stream(fresh)))
        return None if stored is None else (stored, pa.table(fresh.ids()))

    def _write_rows(self, file: str, batches: "Iterator[pa.RecordBatch]") -> PartFile | None:
        import pyarrow as pa

        batch, rows = next(batches, None), 0
        if batch is None:
            return None
        with self._store.sink(file) as sink:
            with pa.ipc.new_file(sink, batch.schema) as writer:
                while batch is not None:
                    writer.write_batch(batch)
                    rows += batch.num_rows
                    batch = next(batches, None)
            return PartFile(file, rows, sink.tell())

    def consume(self, name: str, *, confirmed: bool) -> None:
        """Spark has made the batch durable. Rules 8, 9, 14: its ids are kept, then its rows are deleted."""
        batch = self._waiting[name]
        with self._errors():
            self._put_ids(name, batch.ids, confirmed=confirmed)
            del self._waiting[name]
            self._remove((f"{name}.json", *(part.file for part in batch.parts)))

    def confirm(self, name: str) -> None:
        """Pub/Sub has confirmed the acknowledgements of a batch that was consumed before."""
        with self._errors():
            _, _, ids = self._read_ids(name)
            self._put_ids(name, ids, confirmed=True)
            del self._unconfirmed[name]

    def expire(self, retention_s: float, oldest_held_s: Callable[[], float], keep: str) -> None:
        """Forget ids that cannot come again: ``retention_s`` after their acknowledgement was confirmed, or when
        Pub/Sub has forgotten them too (rule 15). What is held in a buffer may be a copy from the time before; rule 16:
        never those of the batch ``keep``.
        """
        now = self._clock()

        def due(consumed: dict[str, float], age_s: float) -> list[str]:
            past = takewhile(lambda item: item[1] <= now - age_s, consumed.items())
            return [name for name, _ in islice(past, _EXPIRE_AT_ONCE) if name != keep]

        if not due(self._confirmed, retention_s) and not due(self._unconfirmed, _LONGEST_MESSAGE_LIFE_S):
            return
        held = oldest_held_s()
        confirmed = due(self._confirmed, retention_s + held)
        unconfirmed = due(self._unconfirmed, _LONGEST_MESSAGE_LIFE_S + held)
        with self._errors():
            for _, _, ids in _in_parallel(self._read_ids, (*confirmed, *unconfirmed)):
                self.seen.forget(ids)
            self._remove(f"{name}.ids" for name in (*confirmed, *unconfirmed))
        for name in confirmed:
            del self._confirmed[name]
        for name in unconfirmed:
            del self._unconfirmed[name]

    def _put_ids(self, name: str, ids: "pa.Table", *, confirmed: bool) -> None:
        import pyarrow as pa

        at, sink = self._clock(), pa.BufferOutputStream()
        ids = ids.replace_schema_metadata({"at": repr(at), "confirmed": json.dumps(confirmed)})
        with pa.ipc.new_stream(sink, ids.schema) as writer:
            writer.write_table(ids)
        self._store.put(f"{name}.ids", sink.getvalue())
        (self._confirmed if confirmed else self._unconfirmed)[name] = at

    def _read_ids(self, name: str) -> "tuple[float, bool, pa.Table]":
        import pyarrow as pa

        ids = pa.ipc.open_stream(self._store.read(f"{name}.ids")).read_all()
        about = ids.schema.metadata
        return float(about[b"at"]), json.loads(about[b"confirmed"]), ids

    def _read_json(self, file: str) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(self._store.read(file))
        except ValueError as error:
            raise LogError(f"{file} in the log at {self._location} is damaged: {error}.") from error
        return content

    def _remove(self, files: Iterable[str]) -> None:
        """Manifests first: a batch without one is no batch."""
        files = list(files)
        manifests = [file for file in files if file.endswith(".json")]
        for file in manifests:
            self._store.remove(file)
        _in_parallel(self._store.remove, [file for file in files if file not in manifests])

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno in _FULL:
                raise MachineError(
                    f"there is no space left at logPath, {self._location} ({error}).",
                    remedy="Free some, then start the query again: nothing is lost, as nothing is acknowledged before "
                    "it is written.",
                ) from error
            raise LogError(
                f"the log at {self._location} failed: {error}.",
                remedy="When it can be read and written again, start the query again: nothing is lost.",
            ) from error


def _rows(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """What fails here is the agent, and not the log."""
    import pyarrow as pa

    try:
        yield from batches
    except (OSError, pa.ArrowException) as error:
        raise PartUnavailableError(str(error), remedy="Start the query again: nothing is lost.") from error


def _in_parallel(work: Callable[[_In], _Out], items: Iterable[_In]) -> list[_Out]:
    items = list(items)
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(_IN_FLIGHT, len(items)), thread_name_prefix="solstice-log") as pool:
        return list(pool.map(work, items))


def _batch(parts: "Sequence[tuple[PartFile, pa.Table]]") -> LoggedBatch:
    import pyarrow as pa

    return LoggedBatch(tuple(part for part, _ in parts), pa.concat_tables([ids for _, ids in parts]))
