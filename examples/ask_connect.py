"""A question to Spark, over Spark Connect, answered as Polars. Run: python examples/ask_connect.py"""

import solstice.connect as sc

with sc.local() as spark:  # or sc.connect("sc://host:15002"), or sc.connect() with SPARK_REMOTE set
    numbers = spark.sql("select id, id % 3 as kind from range(1000)")  # lazy: nothing runs yet
    print("Spark", spark.version, "columns", numbers.columns)
    print(spark.sql("select id % 3 as kind, sum(id) as total from range(1000) group by 1 order by 1").to_polars())
    print("rows", sum(batch.num_rows for batch in numbers.iter_batches()))  # Arrow batches, constant memory
