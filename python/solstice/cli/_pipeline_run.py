"""``solstice run``: the jobs of a Python file, with other settings if wanted."""

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from solstice.errors import ConfigError

if TYPE_CHECKING:
    from solstice.pipeline._overrides import Overrides

RUN_EXAMPLES = """Examples:

solstice run score_job.py                                   run, or resume

solstice run score_job.py --fresh                           start over

solstice run score_job.py --set runner=ray --set score.workers=1,8
"""


def run(
    file: Annotated[str, typer.Argument(help="A Python file that makes a Job.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value: an option of the job, or stage.option. Beats what the file says."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Remove what earlier runs left, the job's own output files too.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show neither progress nor the table.")] = False,
) -> None:
    """Run the jobs of a file, or resume them.

    The file runs as a program. A job that it makes and does not run itself is run at its end. Ctrl-C drains: what is
    visible is still processed; a second one ends after the splits that workers have. Either way, run it again to go on.
    """
    from solstice.pipeline._overrides import overriding, parse_settings

    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"there is no file {file}.", option="file", value=file)
    with overriding(parse_settings(settings or [])) as overrides:
        overrides.fresh = fresh
        overrides.show_progress = not quiet
        _run_file(path, overrides)
    if not overrides.jobs:
        raise ConfigError(f"{file} makes no Job.", option="file", value=file, remedy="Make one: Job('name').")


def _run_file(path: Path, overrides: "Overrides") -> None:
    # As `python file.py` does it: the file's own directory comes first, and sys.argv is the file's.
    before_path, before_argv = sys.path[:], sys.argv[:]
    sys.path.insert(0, str(path.parent.absolute()))
    sys.argv[:] = [str(path)]
    try:
        runpy.run_path(str(path), run_name="__main__")
        for job in overrides.jobs:
            if not job.runs:
                job.run()
    finally:
        sys.path[:], sys.argv[:] = before_path, before_argv
