"""Numbers: arithmetic, rounding, trigonometry, bits, vectors."""

from solstice.connect._column import Column, ColumnOrName
from solstice.connect.functions._maker import call, column, value
from solstice.errors import ArgumentTypeError

TABLE = {
    "abs(col)": "The absolute value.",
    "acos(col)": "The angle, in radians, whose cosine it is.",
    "acosh(col)": "The inverse hyperbolic cosine.",
    "asin(col)": "The angle, in radians, whose sine it is.",
    "asinh(col)": "The inverse hyperbolic sine.",
    "atan(col)": "The angle, in radians, whose tangent it is.",
    "atan2(col1: ColumnOrName | float, col2: ColumnOrName | float)": "The angle of the point (col2, col1), in radians.",
    "atanh(col)": "The inverse hyperbolic tangent.",
    "bin(col)": "A whole number in binary, as text.",
    "bit_count(col)": "How many bits are set.",
    "bit_get(col, pos)": "One bit; position 0 is the lowest.",
    "bitwise_not(col) -> '~'": "All bits inverted.",
    "bround(col, scale: Column | int = None)": "Rounded to so many digits, halves to the even neighbour.",
    "cbrt(col)": "The cube root.",
    "ceil(col, scale: Column | int = None)": "Rounded up, to a whole number or to so many digits.",
    "ceiling(col, scale: Column | int = None)": "Rounded up, to a whole number or to so many digits.",
    "conv(col, fromBase: int, toBase: int)": "A number's text brought from one base to another.",
    "cos(col)": "The cosine of an angle in radians.",
    "cosh(col)": "The hyperbolic cosine.",
    "cot(col)": "The cotangent of an angle in radians.",
    "csc(col)": "The cosecant of an angle in radians.",
    "degrees(col)": "An angle in radians as degrees.",
    "e()": "Euler's number.",
    "exp(col)": "Euler's number to a power.",
    "expm1(col)": "Euler's number to a power, minus one; exact for small values.",
    "factorial(col)": "The product of the whole numbers up to it.",
    "floor(col, scale: Column | int = None)": "Rounded down, to a whole number or to so many digits.",
    "getbit(col, pos)": "One bit; position 0 is the lowest.",
    "hex(col)": "A number, text or bytes in hexadecimal.",
    "hypot(col1: ColumnOrName | float, col2: ColumnOrName | float)": "The long side of a right triangle.",
    "ln(col)": "The natural logarithm.",
    "log10(col)": "The logarithm to base 10.",
    "log1p(col)": "The natural logarithm of the value plus one; exact for small values.",
    "log2(col)": "The logarithm to base 2.",
    "negate(col) -> negative": "The value with the other sign.",
    "negative(col)": "The value with the other sign.",
    "pi()": "The number pi.",
    "pmod(dividend: ColumnOrName | float, divisor: ColumnOrName | float)": "The remainder, never negative.",
    "positive(col)": "The value as it is.",
    "pow(col1: ColumnOrName | float, col2: ColumnOrName | float) -> power": "One value to the power of another.",
    "power(col1: ColumnOrName | float, col2: ColumnOrName | float)": "One value to the power of another.",
    "radians(col)": "An angle in degrees as radians.",
    "rand(seed: int = random_seed())": "A random number from 0 to 1, evenly distributed.",
    "randn(seed: int = random_seed())": "A random number from the standard normal distribution.",
    "random(seed: int = random_seed()) -> rand": "A random number from 0 to 1, evenly distributed.",
    "rint(col)": "The nearest whole number, as a double.",
    "round(col, scale: Column | int = None)": "Rounded to so many digits, halves away from zero.",
    "sec(col)": "The secant of an angle in radians.",
    "shiftleft(col, numBits: int)": "Bits moved to the left.",
    "shiftright(col, numBits: int)": "Bits moved to the right, the sign kept.",
    "shiftrightunsigned(col, numBits: int)": "Bits moved to the right, zeros moving in.",
    "sign(col)": "-1, 0 or 1, by the sign.",
    "signum(col)": "-1, 0 or 1, by the sign.",
    "sin(col)": "The sine of an angle in radians.",
    "sinh(col)": "The hyperbolic sine.",
    "sqrt(col)": "The square root.",
    "tan(col)": "The tangent of an angle in radians.",
    "tanh(col)": "The hyperbolic tangent.",
    "try_add(left, right)": "The sum, or NULL where it does not fit.",
    "try_divide(left, right)": "The quotient, or NULL for a division by zero.",
    "try_mod(left, right)": "The remainder, or NULL for a division by zero.",
    "try_multiply(left, right)": "The product, or NULL where it does not fit.",
    "try_subtract(left, right)": "The difference, or NULL where it does not fit.",
    "unhex(col)": "The bytes that hexadecimal text stands for.",
    "uniform(min: Column | float, max: Column | float, seed: Column | int = random_seed())": (
        "A random number between two constants."
    ),
    "vector_cosine_similarity(left, right)": "How close the directions of two vectors are, from -1 to 1.",
    "vector_inner_product(left, right)": "The sum of the products of two vectors' elements.",
    "vector_l2_distance(left, right)": "The straight distance between two vectors.",
    "vector_norm(vector, degree=None)": "The length of a vector, by default the Euclidean one.",
    "vector_normalize(vector, degree=None)": "The vector brought to length 1.",
    "width_bucket(v, min, max, numBucket: ColumnOrName | int)": "The number of the part of a range it is in.",
}


def log(arg1: ColumnOrName | float, arg2: ColumnOrName | None = None) -> Column:
    """The natural logarithm of a column or, of the second argument, the logarithm to the base of the first."""
    if arg2 is None:
        if not isinstance(arg1, str | Column):
            raise ArgumentTypeError(f"log({arg1!r}) is not of a column; a constant is lit({arg1!r})")
        return call("ln", column(arg1))
    return call("log", value(arg1), column(arg2))
