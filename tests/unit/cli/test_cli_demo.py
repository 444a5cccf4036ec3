"""Where the demo writes; the demo itself runs in the integration tests of its parts and by ``make demo``."""

from pathlib import Path

import pytest

from solstice.cli._demo import _fresh
from solstice.cli._demo_job import build
from solstice.errors import ConfigError


def test_what_an_earlier_demo_left_goes_and_nothing_else(tmp_path: Path) -> None:
    folder = _fresh(tmp_path / "out")
    (folder / "events").mkdir()
    (folder / "events" / "old.parquet").touch()
    (folder / "notes.txt").write_text("mine")
    assert _fresh(tmp_path / "out") == folder
    assert not (folder / "events").exists()
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(ConfigError, match="--output FOLDER"):
        _fresh(tmp_path)
    assert (tmp_path / "mine").exists()


def test_a_file_or_a_path_below_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nope")):
        with pytest.raises(ConfigError, match="--output FOLDER"):
            _fresh(path)


def test_the_job_of_the_demo_fails_with_a_split_that_is_given_up_instead_of_waiting_for_it(tmp_path: Path) -> None:
    assert build("127.0.0.1:1", tmp_path / "state", tmp_path / "events").on_error == "fail"
