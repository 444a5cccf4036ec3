"""How a stage runs: the options that ``map``, ``flat_map``, ``filter`` and ``sink`` share."""

from dataclasses import dataclass
from typing import Any, Literal, TypedDict, cast, get_args

from solstice.errors import ConfigError, UnknownOptionError
from solstice.pipeline._rate_limit import Rate, parse_rate

OnError = Literal["continue", "fail"]


class StageOptions(TypedDict, total=False):
    """How a stage runs.

    - ``name``: of the stage; else that of its function.
    - ``workers``: how many, or (least, most): then as many as there is work for. 1 by default.
    - ``retries``: how often a split that failed is tried again before it goes to the dead letters. 3 by default.
    - ``timeout_s``: a split that takes longer has failed; its worker is ended, whatever it is doing, and replaced.
    - ``rate_limit``: such as ``"10 splits/s"`` or ``"5000 records/s"``, for all workers of the stage together.
    - ``rebatch_rows``: the stage gets tables of so many rows: small splits are put together, large ones cut.
    - ``max_worker_bytes``: a worker that has more memory of its own after a split is replaced by a fresh one; one that
      has twice as much in the middle of a split fails it.
    - ``max_worker_splits``: a worker is replaced after so many splits.
    - ``on_error``: what a split does that was given up: ``"continue"`` without it, or ``"fail"`` the job. The job's.
    """

    name: str | None
    workers: int | tuple[int, int]
    retries: int
    timeout_s: float | None
    rate_limit: str | None
    rebatch_rows: int | None
    max_worker_bytes: int | None
    max_worker_splits: int | None
    on_error: OnError | None


@dataclass(frozen=True)
class StageSettings:
    """The options of one stage, checked."""

    min_workers: int = 1
    max_workers: int = 1
    retries: int = 3
    timeout_s: float | None = None
    rate: Rate | None = None
    rebatch_rows: int | None = None
    max_worker_bytes: int | None = None
    max_worker_splits: int | None = None
    on_error: OnError = "continue"


def read_options(options: StageOptions, on_error: OnError) -> StageSettings:
    """Check the options of a stage; ``on_error`` is the job's."""
    known = set(StageOptions.__annotations__)
    for name in set(options) - known:
        raise UnknownOptionError(
            f"a stage has no option {name!r}.", option=name, remedy=f"The options are {', '.join(sorted(known))}."
        )
    low, high = _workers(options.get("workers", 1))
    retries: Any = options.get("retries", 3)
    if not isinstance(retries, int) or retries < 0:
        raise ConfigError(f"retries is {retries!r}.", option="retries", value=retries, remedy="Use 0 or more.")
    rebatch_rows = _positive("rebatch_rows", options.get("rebatch_rows"), int)
    if rebatch_rows and not retries:
        raise ConfigError(
            "rebatch_rows with retries=0 could give up splits for the failure of others.",
            option="retries",
            value=retries,
            remedy="Use retries=1 or more: what failed together is tried again one by one.",
        )
    return StageSettings(
        min_workers=low,
        max_workers=high,
        retries=retries,
        timeout_s=_positive("timeout_s", options.get("timeout_s"), float),
        rate=parse_rate(options.get("rate_limit")),
        rebatch_rows=rebatch_rows,
        max_worker_bytes=_positive("max_worker_bytes", options.get("max_worker_bytes"), int),
        max_worker_splits=_positive("max_worker_splits", options.get("max_worker_splits"), int),
        on_error=check_on_error(options.get("on_error") or on_error),
    )


def check_on_error(value: str) -> OnError:
    """Refuse what is neither of the two."""
    if value in get_args(OnError):
        return cast("OnError", value)
    raise ConfigError(f"on_error is {value!r}.", option="on_error", value=value, remedy="Use 'continue' or 'fail'.")


def parse_option(name: str, text: str) -> Any:
    """The value of a stage option as it is written on the command line: ``workers=1,8``, ``timeout_s=2.5``."""
    if name not in StageOptions.__annotations__ or name == "name":
        raise UnknownOptionError(
            f"a stage has no option {name!r} that can be set.",
            option=name,
            remedy=f"The options are {', '.join(sorted(set(StageOptions.__annotations__) - {'name'}))}.",
        )
    try:
        if name in ("on_error", "rate_limit"):
            return text
        if name == "workers" and "," in text:
            low, high = (int(part) for part in text.split(","))
            return low, high
        return float(text) if name == "timeout_s" else int(text)
    except ValueError:
        raise ConfigError(f"{name}={text} is no number.", option=name, value=text) from None


def _workers(workers: Any) -> tuple[int, int]:
    low, high = workers if isinstance(workers, (tuple, list)) and len(workers) == 2 else (workers, workers)
    if not (isinstance(low, int) and isinstance(high, int) and 1 <= low <= high):
        raise ConfigError(
            f"workers is {workers!r}.",
            option="workers",
            value=workers,
            remedy="Use a number from 1, or (minimum, maximum).",
        )
    return low, high


def _positive(name: str, value: Any, kind: type) -> Any:
    if value is None:
        return None
    if isinstance(value, bool) or type(value) not in (int, kind) or not value > 0:
        raise ConfigError(f"{name} is {value!r}.", option=name, value=value, remedy="Use a number above 0.")
    return kind(value)
