"""What ``solstice run`` sets for the jobs of the file that it runs: ``--set`` beats what the file says."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from solstice.errors import ConfigError, UnknownOptionError
from solstice.pipeline._settings import parse_option

if TYPE_CHECKING:
    from solstice.pipeline._job import Job

JOB_OPTIONS = ("state", "queue", "payloads", "payload_budget", "runner", "on_error", "lease_s")


@dataclass
class Overrides:
    """Options of jobs and of stages, and what became of them: ``jobs`` has the jobs that were made meanwhile."""

    job: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    fresh: bool = False
    show_progress: bool | None = None
    jobs: "list[Job]" = field(default_factory=list)


_current = Overrides()


def current() -> Overrides:
    """What holds now; nothing, outside of ``solstice run``."""
    return _current


@contextmanager
def overriding(overrides: Overrides) -> Iterator[Overrides]:
    """Let it hold for the jobs that are made within."""
    global _current
    before, _current = _current, overrides
    try:
        yield overrides
    finally:
        _current = before


def parse_settings(settings: Sequence[str]) -> Overrides:
    """Read ``key=value`` of ``--set``: an option of the job, or ``stage.option``."""
    overrides = Overrides()
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(
                f"--set {setting!r} has no value.", option="--set", value=setting, remedy="Write it as key=value."
            )
        stage, dot, option = key.rpartition(".")
        if dot:
            overrides.stages.setdefault(stage, {})[option] = parse_option(option, text)
        elif key not in JOB_OPTIONS:
            raise UnknownOptionError(
                f"a job has no option {key!r} that can be set.",
                option="--set",
                value=setting,
                remedy=f"Use one of {', '.join(JOB_OPTIONS)}, or stage.option such as score.workers=4.",
            )
        else:
            overrides.job[key] = _number(key, text) if key == "lease_s" else text
    return overrides


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{key}={text} is no number.", option=key, value=text) from None
