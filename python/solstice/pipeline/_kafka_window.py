"""One partition as its owner sees it: what was taken and is not settled, and what waits to be taken.

Kafka keeps one number per partition and group, the offset up to which everything is settled, with a short text beside
it. Splits are settled in any order, so the text holds the rest: those behind that offset that were taken and are not
settled, how often they were tried, and by whom. Whoever gets the partition next reads it and goes on exactly there.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from solstice.pipeline._message import QueueMessage

# Of the text beside an offset a broker takes 4,096 bytes: one entry needs less than 20.
MAX_OPEN = 150

_ID_BITS = 40


class Entry(msgspec.Struct, frozen=True):
    """A split that was taken and is not settled. ``held``: a worker has it, else it waits to be taken again."""

    attempt: int
    failures: int
    held: bool


class Item(msgspec.Struct, frozen=True):
    """A message of a partition, with what its headers say if it is here for another try."""

    offset: int
    id: int
    body: bytes
    key: bytes | None
    attempt: int
    failures: int
    due_s: float

    @property
    def message(self) -> QueueMessage:
        """The message itself."""
        return QueueMessage.from_json(self.body)


def read_item(message: Any) -> Item:
    """An item from what Kafka delivers."""
    headers = dict(message.headers() or ())
    if b"again" not in headers and "again" not in headers:
        id = message.partition() << _ID_BITS | message.offset()
        return Item(message.offset(), id, message.value(), message.key(), 0, 0, 0.0)
    id, attempt, failures, due_s = json.loads(headers["again"])
    return Item(message.offset(), id, message.value(), message.key(), attempt, failures, due_s)


def again_header(id: int, attempt: int, failures: int, due_s: float) -> tuple[str, bytes]:
    """What a message carries that was tried before."""
    return "again", json.dumps([id, attempt, failures, due_s]).encode()


class Window:
    """The open part of a partition. Everything before ``next`` that has no entry is settled."""

    def __init__(self, next: int = 0, entries: dict[int, Entry] | None = None) -> None:
        self.next = next
        self.entries = entries or {}
        self.buffer: deque[Item] = deque()
        self.at_end = False
        self.leaving = False
        self.popped = 0  # in the hands of a transaction that is not committed yet
        self._last = -1
        self.alone = False  # as it was written last: whether the one split that is held is all that its worker has

    @classmethod
    def from_committed(cls, offset: int, text: str | None, at_fault: Callable[[str], bool]) -> "Window":
        """Take a partition over. What the one before held counts as failed if it is to blame, and held nothing else."""
        if offset < 0:
            return cls()
        if not text:
            return cls(offset)
        owner, alone, width, open_ = json.loads(text)
        blamed = int(alone and at_fault(owner))
        entries = {
            offset + delta: Entry(attempt, failures + blamed * held, False)
            for delta, attempt, failures, held in (_entry(part) for part in open_)
        }
        return cls(offset + width, entries)

    @property
    def held(self) -> int:
        """How many splits of it are in our hands."""
        return sum(entry.held for entry in self.entries.values())

    @property
    def start(self) -> int:
        """Where to read from."""
        return min(self.entries, default=self.next)

    def add(self, item: Item) -> None:
        """Buffer a message, unless it is settled already."""
        self.at_end = False
        if item.offset <= self._last:
            return  # after an unclean end of a broker, Kafka may send a client back to the beginning
        self._last = item.offset
        if item.offset >= self.next or item.offset in self.entries:
            self.buffer.append(item)

    def pop(self, now_s: float) -> Item | None:
        """The first message that may be taken now. Those that wait for their time are passed over, up to a bound."""
        if self.leaving:
            return None
        open_ = len(self.entries) + self.popped
        for index, item in enumerate(self.buffer):
            if item.offset not in self.entries:  # else it is counted already
                if open_ >= MAX_OPEN:
                    return None
                open_ += 1
            if item.due_s <= now_s:
                del self.buffer[index]
                self.popped += 1
                return item
        return None

    def put_back(self, item: Item) -> None:
        """Undo ``pop``."""
        index = next((index for index, other in enumerate(self.buffer) if other.offset > item.offset), len(self.buffer))
        self.buffer.insert(index, item)
        self.popped -= 1

    def changed(self, settled: Iterable[int], taken: Iterable[tuple[Item, Entry]]) -> "Window":
        """The window after a transaction; buffers are not carried over."""
        entries = dict(self.entries)
        next_offset = self.next
        for item, entry in taken:
            entries[item.offset] = entry
            next_offset = max(next_offset, item.offset + 1)
        for offset in settled:
            entries.pop(offset, None)
            next_offset = max(next_offset, offset + 1)
        for item in self.buffer:  # passed over by one that came later: no longer beyond `next`, and not settled
            if item.offset >= next_offset:
                break
            if item.offset >= self.next and item.offset not in entries:
                entries[item.offset] = Entry(item.attempt, item.failures, False)
        return Window(next_offset, entries)

    def committed(self, owner: str, alone: bool) -> tuple[int, str]:
        """What to commit: the offset, and the text beside it."""
        start = self.start
        parts = [_part(offset - start, entry) for offset, entry in sorted(self.entries.items())]
        text = json.dumps([owner, int(alone), self.next - start, parts], separators=(",", ":")) if parts else ""
        return start, text

    def given_up(self) -> "Window":
        """As it is left to the next owner by one who is not to blame."""
        entries = {offset: Entry(entry.attempt, entry.failures, False) for offset, entry in self.entries.items()}
        return Window(self.next, entries)


_FIRST = Entry(1, 0, True)


def _part(delta: int, entry: Entry) -> Any:
    """A split that is held for the first time is just a number."""
    if entry == _FIRST:
        return delta
    return [delta, entry.attempt, entry.failures, int(entry.held)]


def _entry(part: Any) -> tuple[int, int, int, int]:
    return (part, 1, 0, 1) if isinstance(part, int) else tuple(part)
