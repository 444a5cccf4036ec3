"""Files that appear once and whole: the committing protocol of the file sinks.

1. write ``_tmp/<split>-<attempt>`` and fsync it;
2. one queue transaction commits the input and records ``prepared(split, temporary, final)``;
3. rename;
4. forget the record, some time later.

A crash before 2 leaves a temporary file that nobody names; after 2, the record says what is to be renamed. Only the
attempt that the record names is ever renamed, so a worker that lost its lease cannot add a second file.
"""

import os
from collections.abc import Callable
from pathlib import Path

from solstice.errors import SinkError
from solstice.pipeline import _faults
from solstice.pipeline._paths import fsync_directory, make_directories
from solstice.pipeline._queue import Prepared

_TEMPORARY = "_tmp"  # readers of a directory of files skip names that start with an underscore


class CommittingDirectory:
    """An output directory on this machine."""

    def __init__(self, path: str | Path) -> None:
        self._final = Path(path)
        self._temporary = self._final / _TEMPORARY

    def write(self, split_id: str, attempt: int, suffix: str, write_file: Callable[[Path], None]) -> Prepared:
        """Step 1. ``write_file`` fills the path that it is given."""
        make_directories(self._temporary)
        temporary = self._temporary / f"{split_id}-{attempt}{suffix}"
        final = self._final / f"{split_id}{suffix}"
        if final.exists():
            raise SinkError(
                f"{final} is there already, and this job has not written it.",
                remedy="Another job, or this one with another state, wrote there: choose an empty directory.",
            )
        _faults.reach("sink.start")
        write_file(temporary)
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fsync_directory(self._temporary)
        _faults.reach("sink.written")
        return Prepared(split_id, str(temporary), str(final))

    def finish(self, prepared: Prepared) -> None:
        """Step 3, and the recovery of it: correct however often and by whomever it is done."""
        try:
            os.rename(prepared.temporary, prepared.final)
        except FileNotFoundError:
            if not os.path.exists(prepared.final):
                raise SinkError(
                    f"split {prepared.split_id!r} is committed, but neither {prepared.temporary} nor {prepared.final}"
                    " is there: somebody deleted it.",
                    remedy="Restore one of the two files; its rows are nowhere else.",
                ) from None
        fsync_directory(Path(prepared.final).parent)

    def discard(self, prepared: Prepared) -> None:
        """Remove what step 1 wrote, when step 2 failed."""
        Path(prepared.temporary).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove temporary files. Only when all records are finished, and nobody who could make one is alive."""
        if self._temporary.is_dir():
            for path in self._temporary.iterdir():
                path.unlink(missing_ok=True)
