"""Sketches, small summaries of many values that can be joined: HyperLogLog, KLL, theta and tuple sketches, bitmaps."""

TABLE = {
    "bitmap_and_agg(col)": "Bitmaps, bit by bit, and.",
    "bitmap_bit_position(col)": "The position of a number in the bitmap of its bucket.",
    "bitmap_bucket_number(col)": "The number of the bucket that a number is in.",
    "bitmap_construct_agg(col)": "The bitmap of positions.",
    "bitmap_count(col)": "How many bits of a bitmap are set.",
    "bitmap_or_agg(col)": "Bitmaps, bit by bit, or.",
    "hll_sketch_agg(col, lgConfigK: Column | int = None)": "The HyperLogLog sketch of the values.",
    "hll_sketch_estimate(col)": "About how many different values a HyperLogLog sketch has seen.",
    "hll_union(col1, col2, allowDifferentLgConfigK: bool = None)": "Two HyperLogLog sketches as one.",
    "hll_union_agg(col, allowDifferentLgConfigK: Column | bool = None)": "HyperLogLog sketches as one.",
} | {
    signature.format(kind=kind): doc
    for kind in ("bigint", "double", "float")
    for signature, doc in {
        "kll_merge_agg_{kind}(col, k: Column | int = None)": "KLL sketches as one.",
        "kll_sketch_agg_{kind}(col, k: Column | int = None)": "The KLL sketch of the values.",
        "kll_sketch_get_n_{kind}(col)": "How many values a KLL sketch has seen.",
        "kll_sketch_get_quantile_{kind}(sketch, rank)": "About the value of a rank, from 0 to 1, in a KLL sketch.",
        "kll_sketch_get_rank_{kind}(sketch, quantile)": "About the rank, from 0 to 1, of a value in a KLL sketch.",
        "kll_sketch_merge_{kind}(left, right)": "Two KLL sketches as one.",
        "kll_sketch_to_string_{kind}(col)": "A KLL sketch as text, for people.",
    }.items()
}
TABLE |= {
    "theta_difference(col1, col2)": "What the first theta sketch has seen and the second has not.",
    "theta_intersection(col1, col2)": "What both theta sketches have seen.",
    "theta_intersection_agg(col)": "What all theta sketches have seen.",
    "theta_sketch_agg(col, lgNomEntries: Column | int = None)": "The theta sketch of the values.",
    "theta_sketch_estimate(col)": "About how many different values a theta sketch has seen.",
    "theta_union(col1, col2, lgNomEntries: Column | int = None)": "Two theta sketches as one.",
    "theta_union_agg(col, lgNomEntries: Column | int = None)": "Theta sketches as one.",
}
TABLE |= {
    signature.format(kind=kind): doc
    for kind in ("double", "integer")
    for signature, doc in {
        "tuple_difference_{kind}(col1, col2)": "What the first tuple sketch has seen and the second has not.",
        "tuple_difference_theta_{kind}(col1, col2)": "What a tuple sketch has seen and a theta sketch has not.",
        "tuple_intersection_agg_{kind}(col, mode: Column | str = None)": "What all tuple sketches have seen.",
        "tuple_intersection_{kind}(col1, col2, mode: Column | str = None)": "What both tuple sketches have seen.",
        "tuple_intersection_theta_{kind}(col1, col2, mode: Column | str = None)": (
            "What a tuple sketch and a theta sketch have both seen."
        ),
        "tuple_sketch_agg_{kind}(key, summary, lgNomEntries: Column | int = lit(12),"
        " mode: Column | str = lit('sum'))": "The tuple sketch of keys, with a summary of each.",
        "tuple_sketch_estimate_{kind}(col)": "About how many different keys a tuple sketch has seen.",
        "tuple_sketch_summary_{kind}(col, mode: Column | str = None)": "The summaries of a tuple sketch as one number.",
        "tuple_sketch_theta_{kind}(col)": "The share of keys that a tuple sketch keeps.",
        "tuple_union_agg_{kind}(col, lgNomEntries: Column | int = lit(12), mode: Column | str = lit('sum'))": (
            "Tuple sketches as one."
        ),
        "tuple_union_{kind}(col1, col2, lgNomEntries: Column | int = lit(12), mode: Column | str = lit('sum'))": (
            "Two tuple sketches as one."
        ),
        "tuple_union_theta_{kind}(col1, col2, lgNomEntries: Column | int = lit(12),"
        " mode: Column | str = lit('sum'))": "A tuple sketch and a theta sketch as one.",
    }.items()
}
