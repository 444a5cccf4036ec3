"""Aggregates of groups, and functions over windows."""

from solstice.connect._column import Column, ColumnOrName, column_of
from solstice.connect._expressions import Star
from solstice.connect.functions._maker import call, column, lit, value

TABLE = {
    "any_value(col, ignoreNulls: Column | bool = None)": "Some value of the group.",
    "approx_count_distinct(col, rsd: float = None)": "About how many different values there are.",
    "approx_percentile(col, percentage: Column | float | Sequence[float], accuracy: Column | int = 10000)": (
        "About the value below which a share of the values is; the shares are from 0 to 1."
    ),
    "array_agg(col)": "The values as an array, duplicates included.",
    "avg(col)": "The mean.",
    "bit_and(col)": "All values, bit by bit, and.",
    "bit_or(col)": "All values, bit by bit, or.",
    "bit_xor(col)": "All values, bit by bit, exclusive or.",
    "bool_and(col)": "Whether all values are true.",
    "bool_or(col)": "Whether some value is true.",
    "collect_list(col)": "The values as an array, duplicates included.",
    "collect_set(col)": "The values as an array, each once.",
    "collect_union(col)": "The elements of all arrays, each once.",
    "corr(col1, col2)": "The correlation of two columns, by Pearson.",
    "count_distinct(col, *cols) -> distinct(count)": "How many different values there are.",
    "count_if(col)": "How many rows meet a condition.",
    "count_min_sketch(col, eps: Column | float, confidence: Column | float, seed: Column | int = random_seed())": (
        "A sketch that estimates how often values occur."
    ),
    "counter_diff(value, startTime=None)": "How much a counter grew since the row before, its resets seen to.",
    "covar_pop(col1, col2)": "The covariance of a population.",
    "covar_samp(col1, col2)": "The covariance of a sample.",
    "cume_dist()": "The share of the rows of the window that are at or before this one.",
    "dense_rank()": "The rank in the window, without gaps after equal rows.",
    "every(col)": "Whether all values are true.",
    "first(col, ignorenulls: bool = False)": "The first value of the group.",
    "first_value(col, ignoreNulls: Column | bool = None)": "The first value of the group.",
    "grouping(col)": "Whether a column is summed up in this row of a cube or rollup, 1 or 0.",
    "grouping_id(*cols)": "Which columns are summed up in this row of a cube or rollup, as bits.",
    "histogram_numeric(col, nBins: Column)": "A histogram with so many bins.",
    "kurtosis(col)": "How heavy the tails of the distribution are.",
    "lag(col, offset: int = 1, default: Any = None)": "The value so many rows before this one in the window.",
    "last(col, ignorenulls: bool = False)": "The last value of the group.",
    "last_value(col, ignoreNulls: Column | bool = None)": "The last value of the group.",
    "lead(col, offset: int = 1, default: Any = None)": "The value so many rows after this one in the window.",
    "listagg(col, delimiter: Column | str | bytes = None)": "The values as one text, with a delimiter.",
    "listagg_distinct(col, delimiter: Column | str | bytes = None) -> distinct(listagg)": (
        "The different values as one text, with a delimiter."
    ),
    "max(col)": "The largest value.",
    "max_by(col, ord, k: int = None)": "The value where another column is largest; with ``k``, the values of so many.",
    "mean(col) -> avg": "The mean.",
    "median(col)": "The middle value.",
    "min(col)": "The smallest value.",
    "min_by(col, ord, k: int = None)": "The value where another column is smallest; with ``k``, the values of so many.",
    "mode(col, deterministic: bool = False)": "The most frequent value.",
    "ntile(n: int)": "Which of n equal parts of the window the row is in, from 1.",
    "percent_rank()": "The rank in the window as a number from 0 to 1.",
    "percentile(col, percentage: Column | float | Sequence[float], frequency: Column | int = 1)": (
        "The value below which a share of the values is, exactly; the shares are from 0 to 1."
    ),
    "percentile_approx(col, percentage: Column | float | Sequence[float], accuracy: Column | int = 10000)": (
        "About the value below which a share of the values is; the shares are from 0 to 1."
    ),
    "product(col)": "All values multiplied.",
    "rank()": "The rank in the window, with gaps after equal rows.",
    "regr_avgx(y, x)": "The mean of x where neither is NULL.",
    "regr_avgy(y, x)": "The mean of y where neither is NULL.",
    "regr_count(y, x)": "The number of pairs where neither is NULL.",
    "regr_intercept(y, x)": "Where the regression line meets the y axis.",
    "regr_r2(y, x)": "How well the regression line fits, from 0 to 1.",
    "regr_slope(y, x)": "The slope of the regression line.",
    "regr_sxx(y, x)": "The sum of squares of x around its mean.",
    "regr_sxy(y, x)": "The sum of products of x and y around their means.",
    "regr_syy(y, x)": "The sum of squares of y around its mean.",
    "row_number()": "The number of the row in the window, from 1.",
    "skewness(col)": "How lopsided the distribution is.",
    "some(col)": "Whether some value is true.",
    "std(col)": "The standard deviation of a sample.",
    "stddev(col)": "The standard deviation of a sample.",
    "stddev_pop(col)": "The standard deviation of a population.",
    "stddev_samp(col)": "The standard deviation of a sample.",
    "string_agg(col, delimiter: Column | str | bytes = None)": "The values as one text, with a delimiter.",
    "string_agg_distinct(col, delimiter: Column | str | bytes = None) -> distinct(string_agg)": (
        "The different values as one text, with a delimiter."
    ),
    "sum(col)": "The sum.",
    "sum_distinct(col) -> distinct(sum)": "The sum of the different values.",
    "try_avg(col)": "The mean, or NULL where it does not fit.",
    "try_sum(col)": "The sum, or NULL where it does not fit.",
    "var_pop(col)": "The variance of a population.",
    "var_samp(col)": "The variance of a sample.",
    "variance(col)": "The variance of a sample.",
    "vector_avg(col)": "The mean of vectors, element by element.",
    "vector_sum(col)": "The sum of vectors, element by element.",
}


def count(col: ColumnOrName) -> Column:
    """The number of rows in which a column is not NULL; of ``*``, of all rows."""
    given = column_of(col)
    # A name is taken as it is: count("*") is what Spark counts rows by itself.
    counts_rows = isinstance(col, Column) and isinstance(given._expression, Star)
    return call("count", lit(1)._expression if counts_rows else column(given))


def nth_value(col: ColumnOrName, offset: int, ignoreNulls: bool | None = False) -> Column:
    """The value of the n-th row of the window, from 1."""
    return call("nth_value", column(col), value(offset), None if ignoreNulls is None else value(ignoreNulls))
