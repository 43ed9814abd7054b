"""What Spark sees of the connector when it writes. Imports pyspark.

Every append carries an idempotency key made of what Spark repeats exactly when it runs a task or a micro-batch again:
the query, the batch, the partition and the number of the chunk in it. So a task that is tried again, a batch that is
replayed after the driver was killed, or an answer that got lost all end in the same records, once. The server remembers
keys for the topic's `idempotency_window_ms`; a query that must survive being down for longer needs a longer window,
and the sink refuses to start with a shorter one than it was told to count on.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StringType, StructType

from topics.client import Client, NewRecord, TopicNotFound
from topics.spark.connector.options import OptionError, WriteOptions
from topics.system.dice import SystemDice

_CHUNK_BYTES = 8 * 1024 * 1024
_NEW_TOPIC_WINDOW_MS = 7 * 24 * 3_600_000
_COLUMNS = ("topic", "tag", "node", "meta", "data")


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote."""

    records: int
    deduplicated: int


class _Sink:
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options

    def _append_all(self, batches: Iterator[pa.RecordBatch], key: str) -> Written:
        written = Written(0, 0)
        with Client(self._options.url, api_key=self._options.api_key) as client:
            chunks = Chunks(self._options)
            for batch in batches:
                for topic, number, records in chunks.add(batch):
                    self._append(client, topic, records, f"{key}/{number}", written)
            for topic, number, records in chunks.rest():
                self._append(client, topic, records, f"{key}/{number}", written)
        return written

    def _append(self, client: Client, topic: str, records: list[NewRecord], key: str, written: Written) -> None:
        answer = client.append_many(
            topic, records, idempotency_key=key, create=self._options.create or None, return_seqs=False
        )
        written.records += answer.count
        written.deduplicated += answer.count if answer.deduped else 0


class BatchSink(_Sink, DataSourceArrowWriter):
    """`df.write`: a task may be tried again; a second `save()` is another write, unless `writeId` says otherwise."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._write_id = options.write_id or SystemDice().token(12).hex()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        return self._append_all(iterator, f"spark/{self._write_id}/{context.partitionId()}")


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._ready = False

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        if self._options.topic is not None:
            with Client(self._options.url, api_key=self._options.api_key) as client:
                check_window(client, self._options.topic, self._options)
        query = self._options.write_id or context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        return self._append_all(iterator, f"spark/{query}/{batch}/{context.partitionId()}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """There is nothing left to do: each append was final, and its key makes repeating it harmless."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was written stays and is not written again: the batch will be run with the same keys."""


class Chunks:
    """Lines records up, topic by topic, and hands them out in appends of a bounded size, numbered from 0."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._waiting: dict[str, list[NewRecord]] = {}
        self._bytes: dict[str, int] = {}
        self._numbers: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> Iterator[tuple[str, int, list[NewRecord]]]:
        columns = {name: batch[name].to_pylist() for name in batch.schema.names if name in _COLUMNS}
        nothing = [None] * batch.num_rows
        fields = [columns.get(name, nothing) for name in _COLUMNS]
        for topic, tag, node, meta, data in zip(*fields, strict=True):
            target = topic if topic is not None else self._options.topic
            if target is None or data is None:
                raise OptionError("a record to write needs data, and a topic from its column or from the option topic")
            waiting = self._waiting.setdefault(target, [])
            raw_meta = None if meta is None else msgspec.Raw(meta)
            waiting.append(NewRecord(msgspec.Raw(data), tag, node, raw_meta))  # type: ignore[arg-type]
            self._bytes[target] = self._bytes.get(target, 0) + len(data)
            if len(waiting) >= self._options.batch_records or self._bytes[target] >= _CHUNK_BYTES:
                yield self._take(target)

    def rest(self) -> Iterator[tuple[str, int, list[NewRecord]]]:
        for topic in sorted(self._waiting):
            if self._waiting[topic]:
                yield self._take(topic)

    def _take(self, topic: str) -> tuple[str, int, list[NewRecord]]:
        number = self._numbers.get(topic, 0)
        self._numbers[topic] = number + 1
        self._bytes[topic] = 0
        records, self._waiting[topic] = self._waiting[topic], []
        return topic, number, records


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Refuses a DataFrame that cannot be written, before any task runs."""
    names = set(schema.names)
    if "data" not in names:
        raise OptionError('a DataFrame to write needs a column data with JSON text: to_json(struct("*")) makes one')
    if "topic" not in names and options.topic is None:
        raise OptionError("which topic to write to is said by the option topic or by a column topic")
    for field in schema.fields:
        if field.name in _COLUMNS and not isinstance(field.dataType, StringType):
            raise OptionError(f"column {field.name} must be a string, not {field.dataType.simpleString()}")


def check_window(client: Client, topic: str, options: WriteOptions) -> None:
    """Makes sure that keys are remembered for as long as the query counts on; makes the topic where it may."""
    try:
        window = client.get_topic(topic, touch=False).config.idempotency_window_ms
    except TopicNotFound:
        if not options.create:
            raise
        client.put_topic(topic, {"idempotency_window_ms": max(_NEW_TOPIC_WINDOW_MS, options.idempotency_window_ms)})
        return
    if window < options.idempotency_window_ms:
        raise OptionError(
            f"topic {topic} remembers idempotency keys for {window} ms, and this query counts on "
            f"{options.idempotency_window_ms} ms to write once: raise the topic's idempotency_window_ms, or lower the "
            "option idempotencyWindowMs to the longest time that the query may be down"
        )
