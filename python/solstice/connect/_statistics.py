"""Missing values, replacements and statistics of columns."""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Self, TypeVar, overload

from solstice.connect import _plan as plan
from solstice.connect._actions import action
from solstice.connect._camel import camel_cased
from solstice.connect._column import ColumnOrName
from solstice.connect._expressions import Literal
from solstice.connect._literals import literal
from solstice.connect._shape import Shaping
from solstice.errors import ArgumentTypeError, InvalidPlanError

FrameT = TypeVar("FrameT", bound="Statistics")

_Names = str | Sequence[str] | None
_Value = bool | int | float | str
_NO_VALUE: Any = object()


class Statistics(Shaping):
    """Missing values, replacements and statistics."""

    __slots__ = ()

    # Missing values.

    def fillna(self, value: _Value | Mapping[str, _Value], subset: _Names = None) -> Self:
        """NULL and NaN replaced: by one value where its type fits, or by a value for each column."""
        if isinstance(value, Mapping):
            names, values = tuple(value), tuple(value.values())
        else:
            names, values = _names(subset), (value,)
        remedy = "Pass a bool, number or text, or a dict of these."
        if not values:
            raise InvalidPlanError("fillna({}) is not possible.", remedy=remedy)
        if not all(isinstance(each, bool | int | float | str) for each in values):
            raise ArgumentTypeError(f"fillna({value!r}) is not possible.", remedy=remedy)
        return self._derive(plan.NaFill(self._relation, names, tuple(map(_wide, values))))

    def dropna(self, how: str = "any", thresh: int | None = None, subset: _Names = None) -> Self:
        """Rows without NULL or NaN; with ``how="all"``, without only such; or with at least ``thresh`` values."""
        if how not in ("any", "all"):
            raise InvalidPlanError(f"dropna(how={how!r}) is not possible.", remedy="Pass 'any' or 'all'.")
        least = thresh if thresh is not None else 1 if how == "all" else None
        return self._derive(plan.NaDrop(self._relation, _names(subset), least))

    @overload
    def replace(self, to_replace: Mapping[Any, Any], *, subset: _Names = None) -> Self: ...

    @overload
    def replace(self, to_replace: Any, value: Any = ..., subset: _Names = None) -> Self: ...

    def replace(self, to_replace: Any, value: Any = _NO_VALUE, subset: _Names = None) -> Self:
        """Values replaced by others: one by one, a list by a list or by one, or by a dict."""
        pairs = _replacements(to_replace, value)
        kinds = [kind for kind in (bool, str, (int, float)) if _all_are(kind, pairs)]
        if not kinds:
            raise InvalidPlanError(
                "replace() takes values of one kind: booleans, numbers or text.", remedy="Replace one kind at a time."
            )
        replacements = tuple(plan.Replacement(_number(old), _number(new)) for old, new in pairs.items())
        return self._derive(plan.NaReplace(self._relation, _names(subset), replacements))

    @property
    def na(self) -> "DataFrameNaFunctions[Self]":
        """Missing values, as PySpark groups these methods."""
        return DataFrameNaFunctions(self)

    # Statistics.

    def summary(self, *statistics: str) -> Self:
        """Chosen statistics of all columns: ``count mean stddev min max 25%`` and others."""
        return self._derive(plan.Summary(self._relation, statistics))

    def describe(self, *cols: str | Sequence[str]) -> Self:
        """Count, mean, standard deviation, minimum and maximum of columns."""
        names = tuple(name for col in cols for name in ([col] if isinstance(col, str) else col))
        return self._derive(plan.Describe(self._relation, names))

    @action
    async def cov(self, col1: str, col2: str) -> float:
        """The covariance of two columns, as a sample."""
        return await self._cov(col1, col2)

    @action
    async def corr(self, col1: str, col2: str, method: str | None = None) -> float:
        """The correlation of two columns, by Pearson."""
        return await self._corr(col1, col2, method)

    @action
    async def approx_quantile(
        self, col: str | Sequence[str], probabilities: Sequence[float], relative_error: float
    ) -> list[float] | list[list[float]]:
        """About the values below which shares, from 0 to 1, of a column are; of several columns, a list of lists."""
        return await self._approx_quantile(col, probabilities, relative_error)

    async def _cov(self, col1: str, col2: str) -> float:
        number: float = await self._cell(plan.Cov(self._relation, col1, col2))
        return number

    async def _corr(self, col1: str, col2: str, method: str | None) -> float:
        if method not in (None, "", "pearson"):
            raise InvalidPlanError(f"corr(method={method!r}) is not possible.", remedy="Spark has 'pearson' only.")
        number: float = await self._cell(plan.Corr(self._relation, col1, col2, "pearson"))
        return number

    async def _approx_quantile(
        self, col: str | Sequence[str], probabilities: Sequence[float], relative_error: float
    ) -> list[float] | list[list[float]]:
        names = (col,) if isinstance(col, str) else tuple(col)
        if relative_error < 0 or not all(0 <= share <= 1 for share in probabilities):
            raise InvalidPlanError(
                f"approx_quantile(probabilities={probabilities!r}, relative_error={relative_error!r}) is not possible.",
                remedy="Pass probabilities from 0 to 1 and an error from 0 up.",
            )
        shares = tuple(float(share) for share in probabilities)
        quantiles: list[list[float]] = await self._cell(
            plan.ApproxQuantile(self._relation, names, shares, float(relative_error))
        )
        return quantiles[0] if isinstance(col, str) else quantiles

    def crosstab(self, col1: str, col2: str) -> Self:
        """How often each pair of values occurs."""
        return self._derive(plan.Crosstab(self._relation, col1, col2))

    def freq_items(self, cols: str | Sequence[str], support: float | None = None) -> Self:
        """Values that may occur in more than a share of the rows, by default 1 %."""
        return self._derive(plan.FreqItems(self._relation, _names(cols), support or 0.01))


@camel_cased()
class DataFrameNaFunctions(Generic[FrameT]):
    """Missing values of a DataFrame."""

    __slots__ = ("_frame",)

    def __init__(self, frame: FrameT) -> None:
        self._frame = frame

    def fill(self, value: _Value | Mapping[str, _Value], subset: _Names = None) -> FrameT:
        """NULL and NaN replaced: ``DataFrame.fillna``."""
        return self._frame.fillna(value, subset)

    def drop(self, how: str = "any", thresh: int | None = None, subset: _Names = None) -> FrameT:
        """Rows with NULL or NaN left out: ``DataFrame.dropna``."""
        return self._frame.dropna(how, thresh, subset)

    def replace(self, to_replace: Any, value: Any = _NO_VALUE, subset: _Names = None) -> FrameT:
        """Values replaced by others: ``DataFrame.replace``."""
        return self._frame.replace(to_replace, value, subset)


class StatFunctions(Generic[FrameT]):
    """Statistics of a DataFrame."""

    __slots__ = ("_frame",)

    def __init__(self, frame: FrameT) -> None:
        self._frame = frame

    @action
    async def cov(self, col1: str, col2: str) -> float:
        """``DataFrame.cov``."""
        return await self._frame._cov(col1, col2)

    @action
    async def corr(self, col1: str, col2: str, method: str | None = None) -> float:
        """``DataFrame.corr``."""
        return await self._frame._corr(col1, col2, method)

    @action
    async def approx_quantile(
        self, col: str | Sequence[str], probabilities: Sequence[float], relative_error: float
    ) -> list[float] | list[list[float]]:
        """``DataFrame.approx_quantile``."""
        return await self._frame._approx_quantile(col, probabilities, relative_error)

    def crosstab(self, col1: str, col2: str) -> FrameT:
        """``DataFrame.crosstab``."""
        return self._frame.crosstab(col1, col2)

    def freq_items(self, cols: str | Sequence[str], support: float | None = None) -> FrameT:
        """``DataFrame.freq_items``."""
        return self._frame.freq_items(cols, support)

    def sample_by(self, col: ColumnOrName, fractions: Mapping[Any, float], seed: int | None = None) -> FrameT:
        """``DataFrame.sample_by``."""
        return self._frame.sample_by(col, fractions, seed)


def _names(subset: _Names) -> tuple[str, ...]:
    return (subset,) if isinstance(subset, str) else tuple(subset or ())


def _wide(value: Any) -> Literal:
    """The value with the widest type of its kind, as the server wants it here."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return Literal("long", value) if is_number else literal(value)


def _number(value: Any) -> Literal:
    """The value, whole numbers as floating point, as the server wants it here."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return literal(float(value) if is_number else value)


def _replacements(to_replace: Any, value: Any) -> dict[Any, Any]:
    if isinstance(to_replace, Mapping):
        return dict(to_replace)
    if value is _NO_VALUE:
        raise InvalidPlanError("replace() needs a value.", remedy="Pass it, None included, or pass a dict.")
    old = list(to_replace) if isinstance(to_replace, list | tuple) else [to_replace]
    new = list(value) if isinstance(value, list | tuple) else [value] * len(old)
    if len(old) != len(new):
        raise InvalidPlanError(f"replace() got {len(old)} values and {len(new)} for them.", remedy="Pass as many.")
    return dict(zip(old, new, strict=True))


def _all_are(kind: Any, pairs: dict[Any, Any]) -> bool:
    return all(isinstance(old, kind) for old in pairs) and all(
        isinstance(new, kind) for new in pairs.values() if new is not None
    )
