"""Archive: sealed records as Parquet files that topics share by day and bucket, and a ledger of the files that count.

    <archive>/ledger/state-<number>.bin                                 the whole state after a commit
    <archive>/ledger/commit-<number>.bin                                one commit
    <archive>/data/day=<YYYY-MM-DD>/topic_bucket=<number>/*.parquet     the rows of one or more topics

`ledger` reads and writes commits, `archive_state` applies them, `archive_plan` computes the work to be done,
`archive_writer` runs it in Spark tasks, and `archive_reader` gives the records to other programs. Only
`archive_reader` imports pyspark, and only when it is called; everything else runs on any `FileSystem`.
"""
