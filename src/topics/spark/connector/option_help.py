"""The reference of connector options, for the documentation site."""

READ_OPTIONS = (
    (
        "`topic`, `topics`, `topicPattern`",
        "",
        (
            "exactly one of them: one name, names separated by commas, or a glob such as `orders.*`. Streams "
            "are topics: `chat/42`, `chat/*`"
        ),
    ),
    (
        "`url`, `apiKey`",
        "`http://127.0.0.1:4000`, none",
        "the server. Without a `path` all records are read from it",
    ),
    (
        "`path`, `coldDir`",
        "",
        (
            "the data folder, and the cold folder or the URL of the object store. Without `coldDir`, cold "
            "records are read from the server; without a server the read fails"
        ),
    ),
    (
        "`archive`",
        "",
        "a folder or URL: a batch from the earliest record begins with archived records that the log no longer has",
    ),
    (
        "`mode`",
        "`auto`",
        (
            "`auto` reads sealed records from the files and the rest from the server; `http` and `segments` use"
            " one of the two"
        ),
    ),
    (
        "`startingOffsets`",
        "`earliest`, for streams `latest`",
        '`earliest`, `latest` or JSON: `{"orders": 1200, "events": "latest"}`',
    ),
    (
        "`endingOffsets`",
        "`latest`",
        "the same, for batches",
    ),
    (
        "`startingTimestamp`, `endingTimestamp`",
        "",
        (
            "from this time on, and before that one: milliseconds since 1970 or ISO 8601, or by topic as JSON: "
            '`{"orders": "2026-03-01"}`; a stream begins at `startingTimestamp`'
        ),
    ),
    (
        "`columns`",
        "all",
        "the columns to read, in this order: `seq,data`",
    ),
    (
        "`metaAs`",
        "`json`",
        "`map` makes `meta` a `map<string,string>`; values that are no texts are JSON text",
    ),
    (
        "`tagPrefix`",
        "",
        "only records whose tag begins with this",
    ),
    (
        "`includeDeleted`",
        "`false`",
        "also deleted records that are still in the files",
    ),
    (
        "`promoted`",
        "`false`",
        (
            "entries in the current version of the stream's schema, as /v1 shows them. The server is asked for "
            "the lenses once per batch or micro-batch; with `mode` `segments` they come from the catalog"
        ),
    ),
    (
        "`typed`",
        "`false`",
        (
            "for one `topic`: members of a stream's entries as columns, as in its typed table, by the schema at"
            " the `load`. A streaming query that meets a later version fails; restarted from its checkpoint it "
            'has the new columns. `.schema("id bigint, total double")` chooses columns'
        ),
    ),
    (
        "`minPartitions`",
        "`1`",
        "the least number of tasks of a read",
    ),
    (
        "`recordsPerPartition`, `bytesPerPartition`",
        "`100000`, `33554432`",
        "the most that one task reads. Long topics are split, short ones share a task",
    ),
    (
        "`maxRecordsPerTrigger`",
        "no limit",
        "records of a micro-batch",
    ),
    (
        "`minRecordsPerTrigger`, `maxTriggerDelay`",
        "none, `900000`",
        "a micro-batch waits for so many records, at most so many milliseconds",
    ),
    (
        "`consumer`",
        "",
        (
            "for streams: the [consumer](../api/consumers.md) under which the server shows the lag. The query commits "
            "what it has processed; it begins at its checkpoint, never at this cursor"
        ),
    ),
    (
        "`failOnDataLoss`",
        "`true`",
        "see loss",
    ),
    (
        "`failOnMissingTopic`",
        "`true`",
        (
            "whether a missing named topic is an error. With `false` it is skipped until it exists. A pattern "
            "without a match only causes a warning"
        ),
    ),
)
"""Names, default and meaning of the options of reads."""

WRITE_OPTIONS = (
    (
        "`url`, `apiKey`",
        "`http://127.0.0.1:4000`, none",
        "the server",
    ),
    (
        "`topic`",
        "",
        "the topic for rows without a column `topic`",
    ),
    (
        "`batchRecords`",
        "`5000`",
        "records of one request",
    ),
    (
        "`create`",
        "`true`",
        "whether missing topics are created",
    ),
    (
        "`writeId`",
        "random, or the query's id",
        (
            "identifies the write: a batch that was committed under this id is not written again, and a stream "
            "continues where the last query with it ended"
        ),
    ),
    (
        "`atomic`",
        "`true`",
        "for batches: `false` appends in chunks, for DataFrames that are too large for one transaction",
    ),
    (
        "`idempotencyWindowMs`",
        "",
        "accepted and ignored",
    ),
)
"""Names, default and meaning of the options of writes."""
