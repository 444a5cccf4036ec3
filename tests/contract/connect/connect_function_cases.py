"""Calls of all functions of ``pyspark.sql.functions``, made of their signatures: every parameter, in every kind."""

import inspect
import re

import pyspark.sql.connect.functions.builtin as official
import pyspark.sql.functions as public

# Values for what a parameter's annotation mentions, in this order.
_VALUES = {
    "ColumnOrName": ["'a'", "F.col('b')"],
    "Sequence[ColumnOrName": ["['a', F.col('b')]"],
    "Any": ["1", "'x'", "F.col('b')", "2.5"],
    "Column": ["F.col('b')"],
    "bool": ["True", "False"],
    "int": ["3"],
    "float": ["0.5"],
    "str": ["'x'"],
    "bytes": ["b'x'"],
    "Sequence[float]": ["[0.25, 0.75]"],
    "Tuple[float": ["(0.25, 0.75)"],
    "Mapping": ["{'k': 'v', 'n': 1}"],
    "StructType": ["T.StructType().add('x', 'integer')"],
    "ArrayType": ["T.ArrayType(T.StringType())"],
    "MapType": ["T.MapType(T.StringType(), T.LongType())"],
    "DataFrame": ["df"],
}
_LAMBDAS = {
    1: ["lambda x: x > 1"],
    2: ["lambda x, y: x + y"],
    3: ["lambda x, y, z: F.concat(x, y, z, F.transform(z, lambda x: x))"],
}

# What signatures alone do not tell.
_WRITTEN = {
    "col": ["F.col('a')", "F.col('*')", "F.col('t.*')", "F.col('s.x')"],
    "column": ["F.column('a')"],
    "lit": [
        *[
            f"F.lit({value})"
            for value in ("None", "True", "1", "2**31", "-2**63", "1.5", "float('inf')", "'x'", "b'x'")
        ],
        "F.lit(bytearray(b'x'))",
        "F.lit(Decimal('12.340'))",
        "F.lit(datetime.date(1, 1, 1))",
        "F.lit(datetime.datetime(2024, 2, 29, 1, 2, 3, 4))",
        "F.lit(datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, datetime.timezone.utc))",
        "F.lit(datetime.time(1, 2, 3, 4))",
        "F.lit(datetime.timedelta(days=-1, microseconds=5))",
        "F.lit([1, None, 'x'])",
        "F.lit([[1], [2.5]])",
        "F.lit([])",
        "F.lit(F.col('a'))",
        *[f"F.lit(np.{kind}(1))" for kind in ("int8", "int16", "int32", "int64", "float32", "float64", "bool_")],
        "F.lit(np.str_('x'))",
        *[
            f"F.lit(np.array([1, 0], '{kind}'))"
            for kind in ("int8", "int16", "int32", "int64", "float32", "float64", "bool")
        ],
        "F.lit(np.array(['x', 'y']))",
        "F.lit(enum.IntEnum('E', 'ONE').ONE)",
    ],
    "greatest": ["F.greatest('a', F.col('b'), 'c')"],
    "least": ["F.least('a', F.col('b'))"],
    "count": ["F.count('a')", "F.count('*')", "F.count(F.col('*'))", "F.count(F.lit(1))"],
    "sha2": [f"F.sha2('a', {bits})" for bits in (0, 224, 256, 384, 512)],
    "instr": [
        "F.instr('a', 'x')",
        "F.instr('a', F.col('b'), 3)",
        "F.instr('a', 'x', occurrence=2)",
        "F.instr('a', 'x', start=F.col('c'), occurrence=F.lit(2))",
    ],
    "window": [
        "F.window('a', '1 hour')",
        "F.window('a', '1 hour', '5 minutes')",
        "F.window(F.col('a'), '1 hour', startTime='1 minute')",
        "F.window('a', windowDuration='1 hour', slideDuration='5 minutes', startTime='1 minute')",
    ],
    "session_window": ["F.session_window('a', '1 hour')", "F.session_window('a', gapDuration=F.col('b'))"],
    "json_tuple": ["F.json_tuple('a', 'x', 'y')"],
    "variant_delete": ["F.variant_delete('a', '$.x', F.col('b'))"],
    "when": ["F.when(F.col('a') > 1, 'x')", "F.when(F.col('a') > 1, [1, 2])", "F.when(condition=df.a, value=df.b)"],
    "nth_value": ["F.nth_value('a', 2)", "F.nth_value('a', 2, True)", "F.nth_value('a', 2, ignoreNulls=None)"],
    "unix_timestamp": ["F.unix_timestamp()", "F.unix_timestamp('a')", "F.unix_timestamp('a', format='y')"],
    "convert_timezone": [
        "F.convert_timezone(None, F.lit('UTC'), 'a')",
        "F.convert_timezone(F.lit('X'), F.lit('Y'), 'a')",
    ],
    "call_function": ["F.call_function('c.d.f', 'a', F.col('b'))", "F.call_function('f')"],
    "call_udf": ["F.call_udf('f', 'a', F.col('b'))"],
    "bucket": ["F.bucket(3, 'a')", "F.bucket(F.lit(3), F.col('a'))", "F.partitioning.bucket(3, 'a')"],
    "years": ["F.years('a')", "F.partitioning.years('a')"],
    "months": ["F.months('a')", "F.partitioning.months(F.col('a'))"],
    "days": ["F.days('a')", "F.partitioning.days('a')"],
    "hours": ["F.hours('a')", "F.partitioning.hours('a')"],
    **{
        name: [
            f"F.{name}('a', 'b', F.col('c'), 'd', 'e', 'f'{zone})"
            for zone in ("", *([", 'z'", ", timezone=F.col('z')"] if "ntz" not in name else []))
        ]
        + [f"F.{name}(date='a', time=F.col('b'))"]
        + ([] if "ntz" in name else [f"F.{name}(date='a', time='b', timezone='z')"])
        for name in ("make_timestamp", "make_timestamp_ntz", "try_make_timestamp", "try_make_timestamp_ntz")
    },
}


def names():
    """All public names: those that are exported, and older functions that are only there."""
    return [name for name in dir(public) if name in public.__all__ or _is_function(name)]


def _is_function(name):
    member = getattr(public, name)
    return (
        not name.startswith("_")
        and inspect.isfunction(member)
        and member.__module__.startswith("pyspark.sql.functions")
    )


def calls(name):
    """Expressions that call a function."""
    if name in _WRITTEN:
        return _WRITTEN[name]
    signature = inspect.signature(getattr(official, name))
    required, optional, rest = [], {}, None
    for parameter in signature.parameters.values():
        values = _values(parameter)
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = values
        elif parameter.default is parameter.empty or parameter.name == "seed":  # without a seed, it is random
            required.append((parameter.name, values))
        else:
            optional[parameter.name] = values
    base = [values[0] for _, values in required]
    found = [base, [f"{parameter}={values[-1]}" for parameter, values in required]]
    for position, (_, values) in enumerate(required):
        found += [[*base[:position], value, *base[position + 1 :]] for value in values[1:]]
    for parameter, values in optional.items():
        found += [[*base, f"{parameter}={value}"] for value in values]
    found.append([*base, *(values[0] for values in optional.values())])
    found.append([*base, *(f"{parameter}={values[-1]}" for parameter, values in optional.items())])
    if rest is not None:
        found = [[*arguments, *more] for arguments in found[:1] for more in ([], *([v] for v in rest), rest[:2])]
    return list(dict.fromkeys(f"F.{name}({', '.join(arguments)})" for arguments in found))


def _values(parameter):
    annotation = parameter.annotation if isinstance(parameter.annotation, str) else str(parameter.annotation)
    annotation = annotation.replace("typing.", "").replace("ForwardRef('ColumnOrName')", "ColumnOrName")
    annotation = re.sub(r"pyspark\.sql\.(connect\.)?(\w+\.)*", "", annotation)
    if "Callable" in annotation:
        arities = [part.count("Column") for part in re.findall(r"Callable\[\[([^]]*)\]", annotation)]
        return [text for arity in arities for text in _LAMBDAS[arity]]
    if "Mapping" in annotation:
        return _VALUES["Mapping"]
    found = []
    for mention, values in _VALUES.items():
        if re.search(rf"(?<!\w){re.escape(mention)}(?!\w)", annotation):
            found += values
    if not found:
        raise AssertionError(f"no value is known for {parameter}")
    return found
