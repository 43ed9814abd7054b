"""Spark connector: `spark.dataSource.register(TopicsDataSource)`, then `.format("topics")` to read, write and stream.

    spark.read.format("topics").option("url", "http://127.0.0.1:4000").option("topic", "orders").load()

`options` parses options and offsets, `origins` finds the positions of topics, `partitions` plans tasks,
`record_reader` turns records into Arrow batches, `source` and `sink` implement Spark's interfaces.
"""
