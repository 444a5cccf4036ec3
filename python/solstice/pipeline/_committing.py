"""Files that appear once and whole: the committing protocol of the file sinks.

1. write ``_tmp/<owner>/<split>-<attempt>`` and fsync it;
2. one queue transaction commits the input and records ``prepared(split, temporary, final)``;
3. rename, replacing nothing;
4. forget the record, some time later.

A crash before 2 leaves a temporary file that nobody names; after 2, the record says what is to be renamed. Only the
attempt that the record names is ever renamed, so a worker that lost its lease cannot add a second file.

The owner is one sink stage of one job, and its mark is a part of the names of its files. Others may use the same
directory: their temporary files look like garbage from here, and may be all that is left of rows that are committed.
"""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

from solstice._core.durable import fsync_directory, make_directories
from solstice.errors import SinkError
from solstice.pipeline import _faults
from solstice.pipeline._queue import Prepared

_TEMPORARY = "_tmp"  # readers of a directory of files skip names that start with an underscore
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


def owner_mark(owner: str) -> str:
    """A short name of an owner, for the names of its files."""
    return hashlib.sha256(owner.encode()).hexdigest()[:8]


class CommittingDirectory:
    """An output directory on this machine, as one owner uses it."""

    def __init__(self, path: str | Path, owner: str) -> None:
        self._final = Path(path)
        self._temporary = self._final / _TEMPORARY / owner
        self._mark = owner_mark(owner)

    def write(self, split_id: str, attempt: int, suffix: str, write_file: Callable[[IO[bytes]], None]) -> Prepared:
        """Step 1. ``write_file`` fills the file that it is given."""
        make_directories(self._temporary)
        temporary = self._temporary / f"{split_id}-{attempt}{suffix}"
        final = self._final / f"{split_id}-{self._mark}{suffix}"
        if final.exists():
            raise SinkError(
                f"{final} is there already, and this job has not written it.",
                remedy="Its state was removed without its output: run it with fresh=True, or choose another directory.",
            )
        _faults.reach("sink.start")
        try:
            with open(temporary, "wb") as file:
                write_file(file)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            temporary.unlink(missing_ok=True)  # on a full disk somebody may need the room
            raise
        fsync_directory(self._temporary)
        _faults.reach("sink.written")
        return Prepared(split_id, str(temporary), str(final))

    def finish(self, prepared: Prepared) -> None:
        """Step 3, and the recovery of it: correct however often and by whomever it is done."""
        try:
            _rename(prepared.temporary, prepared.final)
        except FileExistsError:
            raise SinkError(
                f"split {prepared.split_id!r} is committed, but its file {prepared.temporary} cannot become"
                f" {prepared.final}: somebody else has written a file of that name in the meantime.",
                remedy="Move that file away and run this job again.",
            ) from None
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
        """Remove the owner's temporary files, when all its records are finished and none of its workers is alive."""
        if self._temporary.is_dir():
            for path in self._temporary.iterdir():
                path.unlink(missing_ok=True)
            self._temporary.rmdir()

    def remove(self, suffix: str) -> None:
        """Remove the owner's files, those with final names too."""
        self.sweep()
        if self._final.is_dir():
            for path in self._final.glob(f"*-{self._mark}{suffix}"):
                path.unlink(missing_ok=True)
            fsync_directory(self._final)


def _rename(temporary: str, final: str) -> None:
    """Rename durably, but raise FileExistsError where ``os.rename`` would replace the file of somebody else."""
    try:
        os.link(temporary, final)
    except FileExistsError:
        # Either ours, of a crash between the two steps here, or another's.
        if not os.path.samefile(temporary, final):
            raise
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # A name that is taken was told before this error, so only one that another job takes right now is missed.
        os.rename(temporary, final)
    fsync_directory(Path(final).parent)
    Path(temporary).unlink(missing_ok=True)
