"""Arrays, maps and structs: making, searching, transforming them, and turning them into rows."""

TABLE = {
    "aggregate(col, initialValue, merge: Callable[[Column, Column], Column],"
    " finish: Callable[[Column], Column] = None)": "An array reduced to one value.",
    "array(*cols: ColumnOrName | Sequence[ColumnOrName])": "An array of columns.",
    "array_append(col, value: Any)": "The array with an element at its end.",
    "array_compact(col)": "The array without NULLs.",
    "array_contains(col, value: Any)": "Whether the array has an element.",
    "array_distinct(col)": "The array with each value once.",
    "array_except(col1, col2)": "The elements of the first array that are not in the second, each once.",
    "array_insert(arr, pos: ColumnOrName | int, value: Any)": "The array with an element put in at a position, from 1.",
    "array_intersect(col1, col2)": "The elements that both arrays have, each once.",
    "array_join(col, delimiter: str, null_replacement: str = None)": "The elements as one text, with a delimiter.",
    "array_max(col)": "The largest element.",
    "array_min(col)": "The smallest element.",
    "array_position(col, value: Any)": "The position of an element, from 1; 0 if it is not there.",
    "array_prepend(col, value: Any)": "The array with an element at its start.",
    "array_remove(col, element: Any)": "The array without a value.",
    "array_repeat(col, count: ColumnOrName | int)": "An array of the same value, so many times.",
    "array_size(col)": "The number of elements; of NULL, NULL.",
    "array_sort(col, comparator: Callable[[Column, Column], Column] = None)": (
        "The array sorted upwards, NULLs last, or by a function that compares."
    ),
    "array_union(col1, col2)": "The elements of both arrays, each once.",
    "arrays_overlap(a1, a2)": "Whether the arrays have an element in common.",
    "arrays_zip(*cols)": "An array of structs, with the n-th elements of each array.",
    "cardinality(col)": "The number of elements.",
    "concat(*cols)": "Texts, bytes or arrays joined.",
    "create_map(*cols: ColumnOrName | Sequence[ColumnOrName]) -> map": "A map of columns: key, value, key, value.",
    "element_at(col, extraction: Any)": "An array's element at a position, from 1, or a map's value.",
    "exists(col, f: Callable[[Column], Column])": "Whether a condition holds for an element.",
    "explode(col)": "A row for each element of an array or entry of a map; none for an empty one.",
    "explode_outer(col)": "Like ``explode``, with a row of NULL for an empty one.",
    "filter(col, f: Callable[..., Column])": "The elements for which a condition holds; it may take the position too.",
    "flatten(col)": "An array of arrays as one array.",
    "forall(col, f: Callable[[Column], Column])": "Whether a condition holds for all elements.",
    "get(col, index: ColumnOrName | int)": "An array's element at a position, from 0; NULL outside.",
    "inline(col)": "A row, with its fields as columns, for each struct of an array.",
    "inline_outer(col)": "Like ``inline``, with a row of NULL for an empty array.",
    "map_concat(*cols: ColumnOrName | Sequence[ColumnOrName])": "Maps joined.",
    "map_contains_key(col, value: Any)": "Whether the map has a key.",
    "map_entries(col)": "An array of the map's entries.",
    "map_filter(col, f: Callable[[Column, Column], Column])": "The entries for which a condition holds.",
    "map_from_arrays(col1, col2)": "A map of an array of keys and one of values.",
    "map_from_entries(col)": "A map of an array of pairs.",
    "map_keys(col)": "The map's keys.",
    "map_values(col)": "The map's values.",
    "map_zip_with(col1, col2, f: Callable[[Column, Column, Column], Column])": (
        "Two maps as one, each value by a function of the key and both values."
    ),
    "named_struct(*cols)": "A struct: name, value, name, value.",
    "posexplode(col)": "Like ``explode``, with the position as a column.",
    "posexplode_outer(col)": "Like ``explode_outer``, with the position as a column.",
    "reduce(col, initialValue, merge: Callable[[Column, Column], Column],"
    " finish: Callable[[Column], Column] = None)": "An array reduced to one value.",
    "sequence(start, stop, step=None)": "An array of numbers, dates or instants, from one to another.",
    "shuffle(col, seed: Column | int = random_seed())": "The elements in random order.",
    "size(col)": "The number of elements.",
    "slice(x, start: ColumnOrName | int, length: ColumnOrName | int)": "A part of an array, from a position, from 1.",
    "sort_array(col, asc: bool = True)": "The array sorted, NULLs first upwards and last downwards.",
    "stack(*cols)": "The columns after the first as so many rows as the first says.",
    "str_to_map(text, pairDelim=lit(','), keyValueDelim=lit(':'))": "The map that text stands for.",
    "struct(*cols: ColumnOrName | Sequence[ColumnOrName])": "A struct of columns.",
    "transform(col, f: Callable[..., Column])": "A function of each element; it may take the position too.",
    "transform_keys(col, f: Callable[[Column, Column], Column])": "The map with keys by a function of key and value.",
    "transform_values(col, f: Callable[[Column, Column], Column])": (
        "The map with values by a function of key and value."
    ),
    "try_element_at(col, extraction)": "Like ``element_at``, with NULL where there is none.",
    "zip_with(left, right, f: Callable[[Column, Column], Column])": (
        "A function of the elements of two arrays, pair by pair."
    ),
}
