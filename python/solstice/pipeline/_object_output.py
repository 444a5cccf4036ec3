"""The committing protocol of the file sinks on an object store, which has no rename.

1. write ``<split>-<attempt>-<mark>``: no two attempts share a name, and an object is there whole or not at all;
2. one queue transaction commits the input and records ``prepared(split, object, manifest entry)``;
3. write ``_manifest/<split>-<mark>.json``, which names the object;
4. forget the record, some time later.

What the manifest names is committed, and nothing else is. The mark tells one sink stage of one job.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from solstice.errors import SinkError
from solstice.pipeline import _faults
from solstice.pipeline._committing import owner_mark
from solstice.pipeline._queue import Prepared

_MANIFEST = "_manifest"
_SCHEMES = ("s3://", "gs://", "gcs://")


def is_object_url(path: str | Path) -> bool:
    """Whether a sink's place is an object store."""
    return isinstance(path, str) and path.startswith(_SCHEMES)


class CommittingBucket:
    """A prefix of an object store, as one owner uses it."""

    def __init__(self, url: str, owner: str) -> None:
        self._files, self._root = _open(url)
        self._mark = owner_mark(owner)

    def write(self, split_id: str, attempt: int, suffix: str, write_file: Callable[[IO[bytes]], None]) -> Prepared:
        """Step 1. ``write_file`` fills the file that it is given."""
        name = f"{self._root}/{split_id}-{attempt}-{self._mark}{suffix}"
        _faults.reach("sink.start")
        stream = self._files.open_output_stream(name)
        try:
            write_file(stream)
        except BaseException:
            stream.close()
            self._files.delete_file(name)
            raise
        stream.close()
        _faults.reach("sink.written")
        return Prepared(split_id, name, f"{self._root}/{_MANIFEST}/{split_id}-{self._mark}.json")

    def finish(self, prepared: Prepared) -> None:
        """Step 3, and the recovery of it."""
        (info,) = self._files.get_file_info([prepared.temporary])
        if not info.is_file:
            raise SinkError(
                f"split {prepared.split_id!r} is committed, but its object {prepared.temporary} is not there:"
                " somebody deleted it.",
                remedy="Restore it; its rows are nowhere else.",
            )
        entry = {"split_id": prepared.split_id, "file": prepared.temporary.rpartition("/")[2], "bytes": info.size}
        with self._files.open_output_stream(prepared.final) as stream:
            stream.write(json.dumps(entry).encode())

    def discard(self, prepared: Prepared) -> None:
        """Remove what step 1 wrote, when step 2 failed."""
        self._delete(prepared.temporary)

    def sweep(self) -> None:
        """Remove the owner's objects that are not in the manifest, when all its records are finished."""
        committed = {entry["file"] for entry in _entries(self._files, self._root)}
        for path in _list(self._files, self._root):
            name = path.rpartition("/")[2]
            if f"-{self._mark}." in name and name not in committed:
                self._delete(path)

    def remove(self, suffix: str) -> None:
        """Remove the owner's objects, committed ones too, and then their entries in the manifest."""
        for directory, ending in ((self._root, suffix), (f"{self._root}/{_MANIFEST}", ".json")):
            for path in _list(self._files, directory):
                if path.endswith(f"-{self._mark}{ending}"):
                    self._delete(path)

    def _delete(self, path: str) -> None:
        (info,) = self._files.get_file_info([path])
        if info.is_file:
            self._files.delete_file(path)


def committed_files(url: str) -> list[str]:
    """The files that sinks have committed under an ``s3://`` or ``gs://`` URL, as paths for ``pyarrow.fs``, sorted."""
    files, root = _open(url)
    return sorted(f"{root}/{entry['file']}" for entry in _entries(files, root))


def _open(url: str) -> tuple[Any, str]:
    import pyarrow as pa
    from pyarrow import fs

    try:
        files, root = fs.FileSystem.from_uri(url.replace("gcs://", "gs://", 1))
    except (pa.ArrowException, ValueError) as error:
        raise SinkError(
            f"{url!r} cannot be opened: {error}.", remedy="Write it as s3://bucket/prefix or gs://bucket/prefix."
        ) from error
    return files, root.rstrip("/")


def _list(files: Any, directory: str) -> list[str]:
    from pyarrow import fs

    found = files.get_file_info(fs.FileSelector(directory, allow_not_found=True))
    return [info.path for info in found if info.is_file]


def _entries(files: Any, root: str) -> list[dict[str, Any]]:
    entries = []
    for path in _list(files, f"{root}/{_MANIFEST}"):
        with files.open_input_stream(path) as stream:
            entries.append(json.loads(stream.read()))
    return entries
