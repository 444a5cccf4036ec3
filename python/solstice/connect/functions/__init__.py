"""Functions of columns: all of ``pyspark.sql.functions``, under the same names and with the same parameters.

Most are one call by name: each family's ``TABLE`` has their signatures, ``_maker`` makes a function when it is first
used. The others are written out. What a newer server knows beyond these works through ``call_function``.
"""

from typing import Any

from solstice.connect.functions import (
    _aggregate,
    _collection,
    _datetime,
    _formats,
    _math,
    _misc,
    _normal,
    _sketch,
    _string,
    partitioning,
)
from solstice.connect.functions._maker import lit, make

_FAMILIES = {
    "the basics": _normal,
    "numbers": _math,
    "text": _string,
    "dates and times": _datetime,
    "arrays, maps and structs": _collection,
    "aggregates and windows": _aggregate,
    "sketches": _sketch,
    "CSV, JSON, XML, variants and URLs": _formats,
    "hashes, the session, geography": _misc,
    "partitioning of tables": partitioning,
}
# PySpark's older spellings.
_OLD_NAMES = {
    "approxCountDistinct": "approx_count_distinct",
    "bitwiseNOT": "bitwise_not",
    "countDistinct": "count_distinct",
    "shiftLeft": "shiftleft",
    "shiftRight": "shiftright",
    "shiftRightUnsigned": "shiftrightunsigned",
    "sumDistinct": "sum_distinct",
    "toDegrees": "degrees",
    "toRadians": "radians",
}

_SIGNATURES = {
    signature.partition("(")[0]: (signature, doc)
    for family in _FAMILIES.values()
    for signature, doc in getattr(family, "TABLE", {}).items()
}
_WRITTEN = {
    name: member
    for family in _FAMILIES.values()
    for name, member in vars(family).items()
    if not name.startswith("_") and getattr(member, "__module__", None) == family.__name__
} | {"lit": lit}
globals().update(_WRITTEN)

__all__ = [*_SIGNATURES, *_WRITTEN, *_OLD_NAMES, "partitioning"]  # noqa: PLE0604  (names, if computed ones)


def __getattr__(name: str) -> Any:
    if name in _OLD_NAMES:
        made = __getattr__(_OLD_NAMES[name])
    elif name in _SIGNATURES:
        made = make(*_SIGNATURES[name])
    else:
        raise AttributeError(
            f"there is no function {name!r} here; one that the server knows is call_function({name!r})"
        )
    globals()[name] = made
    return made


def __dir__() -> list[str]:
    return __all__
