"""Text: cutting, searching, replacing, formatting, encoding."""

from solstice.connect._column import Column, ColumnOrName
from solstice.connect.functions._maker import call, column, value

TABLE = {
    "ascii(col)": "The code of the first character.",
    "base64(col)": "Bytes as text in base 64.",
    "bit_length(col)": "The length in bits.",
    "btrim(str, trim=None)": "Without blanks, or without given characters, at both ends.",
    "char(col)": "The character of a code.",
    "char_length(str)": "The number of characters, or of bytes.",
    "character_length(str)": "The number of characters, or of bytes.",
    "chr(n)": "The character of a code.",
    "collate(col, collation: str)": "The text with another collation.",
    "collation(col)": "The name of the collation.",
    "concat_ws(sep: str, *cols)": "Texts joined by a separator; NULLs are left out.",
    "contains(left, right)": "Whether the one contains the other.",
    "decode(col, charset: str)": "Bytes in a character set as text.",
    "elt(*inputs)": "The n-th of the other arguments, n being the first.",
    "encode(col, charset: str)": "Text as bytes in a character set.",
    "endswith(str, suffix)": "Whether the one ends with the other.",
    "find_in_set(str, str_array)": "The position of a text in a list with commas, from 1; 0 if it is not there.",
    "format_number(col, d: int)": "A number with so many decimals and with separators of thousands.",
    "format_string(format: str, *cols)": "Values in a format like that of C's printf.",
    "from_base32(col)": "The bytes that text in base 32 stands for.",
    "ilike(str, pattern, escapeChar: Column = None)": "Whether it matches a pattern of SQL, in either case.",
    "initcap(col)": "Each word with a capital letter first.",
    "is_valid_utf8(str)": "Whether it is proper UTF-8.",
    "jaro_winkler_similarity(left, right)": "How alike two texts are, from 0 to 1, by Jaro and Winkler.",
    "lcase(str)": "In lower case.",
    "left(str, len)": "The first characters.",
    "length(col)": "The number of characters, or of bytes.",
    "levenshtein(left, right, threshold: int = None)": "How many edits make the one the other; -1 past the threshold.",
    "like(str, pattern, escapeChar: Column = None)": "Whether it matches a pattern of SQL.",
    "locate(substr: str, str, pos: int = 1)": "The position of a text within a column, from 1, from ``pos`` on; or 0.",
    "lower(col)": "In lower case.",
    "lpad(col, len: Column | int, pad: Column | str)": "Filled up at the left to a length, or cut to it.",
    "make_valid_utf8(str)": "With U+FFFD for what is not proper UTF-8.",
    "mask(col, upperChar=lit('X'), lowerChar=lit('x'), digitChar=lit('n'), otherChar=lit(None))": (
        "With letters and digits replaced."
    ),
    "octet_length(col)": "The length in bytes.",
    "overlay(src, replace, pos: ColumnOrName | int, len: ColumnOrName | int = -1)": (
        "With a part, from a position, replaced."
    ),
    "position(substr, str, start=None)": "The position of one text in another, from 1, from a start on; or 0.",
    "printf(format, *cols)": "Values in a format like that of C's printf.",
    "quote(col)": "In single quotes, quotes within escaped.",
    "randstr(length: Column | int, seed: Column | int = random_seed())": "Random letters and digits.",
    "regexp(str, regexp)": "Whether a regular expression of Java matches within it.",
    "regexp_count(str, regexp)": "How often a regular expression matches.",
    "regexp_extract(str, pattern: str, idx: int)": "A group of the first match of a regular expression; 0 is all.",
    "regexp_extract_all(str, regexp, idx: Column | int = None)": "A group of all matches of a regular expression.",
    "regexp_instr(str, regexp, idx: Column | int = None)": "The position of the first match, from 1; or 0.",
    "regexp_like(str, regexp)": "Whether a regular expression of Java matches within it.",
    "regexp_replace(string, pattern: Column | str, replacement: Column | str, position: Column | int = None)": (
        "With all matches of a regular expression replaced, from a position on."
    ),
    "regexp_substr(str, regexp)": "The first match of a regular expression, or NULL.",
    "repeat(col, n: ColumnOrName | int)": "The same text so many times.",
    "replace(src, search, replace=None)": "With a text replaced by another, or taken out.",
    "reverse(col)": "Characters, or an array's elements, from the last to the first.",
    "right(str, len)": "The last characters.",
    "rlike(str, regexp)": "Whether a regular expression of Java matches within it.",
    "rpad(col, len: Column | int, pad: Column | str)": "Filled up at the right to a length, or cut to it.",
    "sentences(string, language=lit(''), country=lit(''))": "Sentences, each an array of its words.",
    "soundex(col)": "How it sounds in English, as a code.",
    "split(str, pattern: Column | str, limit: ColumnOrName | int = -1)": (
        "An array of the parts between matches of a regular expression."
    ),
    "split_part(src, delimiter, partNum)": "One of the parts between delimiters, from 1; from the end if negative.",
    "startswith(str, prefix)": "Whether the one starts with the other.",
    "substr(str, pos, len=None)": "A part, from a position, the first being 1.",
    "substring(str, pos: ColumnOrName | int, len: ColumnOrName | int)": "A part, from a position, the first being 1.",
    "substring_index(str, delim: str, count: int)": "What is before so many delimiters; from the end if negative.",
    "to_base32(col)": "Bytes as text in base 32.",
    "to_binary(col, format=None)": "Text as bytes; the format is hex, utf-8 or base64.",
    "to_char(col, format)": "A number or a time in a format.",
    "to_number(col, format)": "The number that text in a format stands for.",
    "to_varchar(col, format)": "A number or a time in a format.",
    "translate(srcCol, matching: str, replace: str)": "With characters replaced one by one.",
    "try_to_binary(col, format=None)": "Like ``to_binary``, with NULL where it does not work.",
    "try_to_number(col, format)": "Like ``to_number``, with NULL where it does not work.",
    "try_validate_utf8(str)": "The text, or NULL if it is not proper UTF-8.",
    "ucase(str)": "In upper case.",
    "unbase64(col)": "The bytes that text in base 64 stands for.",
    "upper(col)": "In upper case.",
    "validate_utf8(str)": "The text; fails if it is not proper UTF-8.",
}


def trim(col: ColumnOrName, trim: ColumnOrName | None = None) -> Column:
    """Without blanks, or without given characters, at both ends."""
    return _trimmed("trim", col, trim)


def ltrim(col: ColumnOrName, trim: ColumnOrName | None = None) -> Column:
    """Without blanks, or without given characters, at the start."""
    return _trimmed("ltrim", col, trim)


def rtrim(col: ColumnOrName, trim: ColumnOrName | None = None) -> Column:
    """Without blanks, or without given characters, at the end."""
    return _trimmed("rtrim", col, trim)


def _trimmed(name: str, col: ColumnOrName, characters: ColumnOrName | None) -> Column:
    # SQL has the characters first.
    return call(name, None if characters is None else column(characters), column(col))


def instr(
    str: ColumnOrName,
    substr: Column | str,
    start: Column | int | None = None,
    occurrence: Column | int | None = None,
) -> Column:
    """The position of a text, from 1; the n-th one from a start on, if given; 0 if there is none."""
    if start is None and occurrence is not None:
        start = 1
    return call(
        "instr",
        column(str),
        value(substr),
        None if start is None else value(start),
        None if occurrence is None else value(occurrence),
    )
