"""The connector: `spark.dataSource.register(TopicsDataSource)`, then `.format("topics")` to read, write and stream.

    spark.read.format("topics").option("url", "http://127.0.0.1:4000").option("topic", "orders").load()

`options` says what can be chosen, `offsets` where a read begins and ends, `origins` who is asked, `reading` how records
become Arrow batches, `source` and `sink` are what Spark sees.
"""
