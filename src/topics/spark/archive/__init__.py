"""The archive: sealed records as Parquet, one folder a topic, with a manifest that says what counts.

    <archive>/topic_id=<16 hex digits>/manifest.json
    <archive>/topic_id=<16 hex digits>/date=<YYYY-MM-DD>/<first seq>-<last seq>-<run>.parquet

`manifest` is what is true, `planning` what has to be done about it, `tasks` what Spark's tasks do, `store` the files,
`reading` how others get at the records. Everything but `reading` runs without Spark, on any `FileSystem`.
"""
