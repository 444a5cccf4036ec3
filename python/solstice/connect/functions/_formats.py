"""Text in CSV, JSON and XML, variants, and URLs."""

from solstice.connect._column import Column, ColumnOrName
from solstice.connect.functions._maker import call, column, value
from solstice.errors import InvalidPlanError

TABLE = {
    "from_csv(col, schema: Column | str, options: Mapping[str, str] = None)": "A struct out of a line of CSV.",
    "from_json(col, schema: DataType | Column | str, options: Mapping[str, str] = None)": (
        "A struct, array or map out of JSON; NULL where it does not fit the schema."
    ),
    "from_xml(col, schema: DataType | Column | str, options: Mapping[str, str] = None)": "A struct out of XML.",
    "get_json_object(col, path: str)": "A part of JSON, as text, by its path: ``$.a[0]``.",
    "is_valid_variant(v)": "Whether the bytes of a variant are in order.",
    "is_variant_null(v)": "Whether a variant is JSON's null, which is not NULL.",
    "json_array_length(col)": "The number of elements of a JSON array.",
    "json_object_keys(col)": "The keys of a JSON object.",
    "parse_json(col)": "A variant out of JSON.",
    "parse_url(url, partToExtract, key=None)": "A part of a URL (HOST, PATH, QUERY and so on), or a query's value.",
    "schema_of_csv(csv: Column | str, options: Mapping[str, str] = None)": "The schema of an example of CSV, as text.",
    "schema_of_json(json: Column | str, options: Mapping[str, str] = None)": (
        "The schema of an example of JSON, as text."
    ),
    "schema_of_variant(v)": "The schema of a variant, as text.",
    "schema_of_variant_agg(v)": "The schema that all variants fit, as text.",
    "schema_of_xml(xml: Column | str, options: Mapping[str, str] = None)": "The schema of an example of XML, as text.",
    "to_csv(col, options: Mapping[str, str] = None)": "A struct as a line of CSV.",
    "to_json(col, options: Mapping[str, str] = None)": "A struct, array, map or variant as JSON.",
    "to_variant_object(col)": "A struct, array or map as a variant.",
    "to_xml(col, options: Mapping[str, str] = None)": "A struct as XML.",
    "try_parse_json(col)": "Like ``parse_json``, with NULL where it does not work.",
    "try_parse_url(url, partToExtract, key=None)": "Like ``parse_url``, with NULL where it does not work.",
    "try_url_decode(str)": "Like ``url_decode``, with NULL where it does not work.",
    "try_variant_array_append(v, path: Column | str, value: ColumnOrName)": (
        "Like ``variant_array_append``, with NULL where it does not work."
    ),
    "try_variant_get(v, path: Column | str, targetType: str)": "Like ``variant_get``, with NULL where it does not fit.",
    "try_variant_insert(v, path: Column | str, value: ColumnOrName)": (
        "Like ``variant_insert``, with NULL where it does not work."
    ),
    "try_variant_set(v, path: Column | str, value: ColumnOrName, create_if_missing: bool = True)": (
        "Like ``variant_set``, with NULL where it does not work."
    ),
    "url_decode(str)": "Text out of the encoding of URLs.",
    "url_encode(str)": "Text in the encoding of URLs.",
    "variant_array_append(v, path: Column | str, value: ColumnOrName)": (
        "The variant with an element at the end of an array in it."
    ),
    "variant_get(v, path: Column | str, targetType: str)": "A part of a variant, by its path, as a type.",
    "variant_insert(v, path: Column | str, value: ColumnOrName)": "The variant with something put in at a path.",
    "variant_set(v, path: Column | str, value: ColumnOrName, create_if_missing: bool = True)": (
        "The variant with what is at a path replaced."
    ),
    "variant_strip_nulls(v, include_arrays: bool = True)": "The variant without JSON's nulls.",
    "xpath(xml, path)": "The texts that a path finds in XML.",
    "xpath_boolean(xml, path)": "Whether a path finds something in XML, or is true of it.",
    "xpath_double(xml, path)": "The number that a path finds in XML.",
    "xpath_float(xml, path)": "The number that a path finds in XML, in 32 bits.",
    "xpath_int(xml, path)": "The whole number that a path finds in XML.",
    "xpath_long(xml, path)": "The whole number that a path finds in XML, in 64 bits.",
    "xpath_number(xml, path)": "The number that a path finds in XML.",
    "xpath_short(xml, path)": "The whole number that a path finds in XML, in 16 bits.",
    "xpath_string(xml, path)": "The first text that a path finds in XML.",
}


def json_tuple(col: ColumnOrName, *fields: str) -> Column:
    """Fields of a JSON object, each as a column of text."""
    if not fields:
        raise InvalidPlanError("json_tuple() got no field.", remedy="Pass the fields' names.")
    return call("json_tuple", column(col), *map(value, fields))


def variant_delete(v: ColumnOrName, *paths: Column | str) -> Column:
    """The variant without what is at some paths."""
    if not paths:
        raise InvalidPlanError("variant_delete() got no path.", remedy="Pass paths, for example '$.a'.")
    return call("variant_delete", column(v), *map(value, paths))
