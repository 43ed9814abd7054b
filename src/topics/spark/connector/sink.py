"""Connector sink: Spark's writer interfaces, with exactly-once writes as transactions. Imports pyspark.

A write is a transaction of the server. Tasks stage their records under names that no other task and no other attempt
uses, and report them to the driver; the driver commits exactly the parts of its successful tasks. Before the commit no
reader sees anything, and after it all records are visible, in all topics.

| | id | sequence | attempt |
|---|---|---|---|
| `writeStream` | the query, or `writeId` | the micro-batch | the run of the query, which replaces an earlier one |
| `write` | `writeId`, or a new one for each `save()` | 0 | one for each `save()` |

A repeated batch may have other partitions or rows. If it was not committed, its staged records replace the earlier
ones. If it was, the server reports it and nothing changes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StringType, StructType

from topics.spark.connector.options import OptionError, WriteOptions
from topics.spark.connector.spark_versions import StreamWriter, as_batches
from topics.system.entropy import SystemEntropy
from topics_client import Client, ClientError, NewRecord, TransactionTooLarge

_CHUNK_BYTES = 8 * 1024 * 1024
_COLUMNS = ("topic", "tag", "node", "meta", "data")
_decode_value = msgspec.json.Decoder(msgspec.Raw).decode


@dataclass(frozen=True)
class Step:
    """The transaction that a task writes for."""

    id: str
    sequence: int
    attempt: str


@dataclass
class Written(WriterCommitMessage):
    """The parts that a task staged; None if the transaction was committed already."""

    step: Step
    partition: int
    parts: list[str] = field(default_factory=list)
    records: int = 0


class _Sink:
    advice = ""
    """The advice in the error for a transaction that is too large."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options

    def _client(self) -> Client:
        return Client(self._options.url, api_key=self._options.api_key)

    def stage_all(self, batches: Iterator[pa.RecordBatch], step: Step, partition: int, task: int) -> Written:
        """Stages the rows of a task. `task` is unique for each attempt at a partition."""
        written = Written(step, partition)
        with self._client() as client:
            begun = client.begin_transaction(step.id, step.sequence, attempt=step.attempt)
            chunks = Chunks(self._options)
            if begun.state == "committed":
                # Rows are still consumed, so that their producer runs to its end.
                for _ in batches:
                    pass
                return written
            for topic, records in chunks.all(batches):
                self._stage(client, written, f"{partition}.{task}.{len(written.parts)}", topic, records)
        return written

    def _stage(self, client: Client, written: Written, part: str, topic: str, records: list[NewRecord]) -> None:
        step = written.step
        try:
            client.stage(
                step.id, step.sequence, topic, records, part=part, attempt=step.attempt, create=self._options.create
            )
        except TransactionTooLarge as error:
            raise OptionError(f"{error}: {self.advice}") from error
        written.parts.append(part)
        written.records += len(records)

    def commit_all(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commits the parts in the order of the partitions."""
        reported = sorted(_written_messages(messages), key=lambda written: written.partition)
        if not reported:
            return  # Without a partition there is no transaction.
        step = reported[0].step
        with self._client() as client:
            parts = [part for written in reported for part in written.parts]
            client.commit_transaction(step.id, step.sequence, attempt=step.attempt, parts=parts)

    def abort_all(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Aborts the transaction where possible; otherwise the server drops it after its timeout."""
        reported = _written_messages(messages)
        if reported:
            step = reported[0].step
            try:
                with self._client() as client:
                    client.abort_transaction(step.id, step.sequence, attempt=step.attempt)
            except ClientError:
                pass


def _written_messages(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]


class BatchSink(_Sink, DataSourceArrowWriter):
    """`df.write`: a second `save()` is a separate write, unless both have the same `writeId`."""

    advice = (
        "a DataFrame is written as one transaction. Raise TOPICS_MAX_TRANSACTION_BYTES or its companions, or write it "
        "with the option atomic=false, a chunk at a time"
    )

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        attempt = SystemEntropy().token(12).hex()
        self._step = Step(f"spark:{options.write_id or attempt}", 0, attempt)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        if self._options.atomic:
            return self.stage_all(iterator, self._step, context.partitionId(), context.taskAttemptId())
        return self.append_all(iterator, context.partitionId())

    def append_all(self, batches: Iterator[pa.RecordBatch], partition: int) -> Written:
        """Appends the rows of a task at once.

        A retried task uses the same idempotency keys, and fails if its rows have changed.
        """
        written = Written(self._step, partition)
        with self._client() as client:
            for number, (topic, records) in enumerate(Chunks(self._options).all(batches)):
                client.append_many(
                    topic, records, idempotency_key=f"{self._step.id}/{partition}/{number}",
                    create=self._options.create, return_seqs=False,
                )  # fmt: skip
                written.records += len(records)
        return written

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.atomic:
            self.commit_all(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.atomic:
            self.abort_all(messages)


class StreamSink(_Sink, StreamWriter):
    """`df.writeStream`."""

    advice = (
        "a micro-batch is written as one transaction. Make it smaller, by maxRecordsPerTrigger for example, or raise "
        "TOPICS_MAX_TRANSACTION_BYTES or its companions"
    )

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if not options.atomic:
            raise OptionError("option atomic is for batches: a stream writes every micro-batch as a whole")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query = self._options.write_id or context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        # Spark's job group is the run id of the query. A run tries a batch once: if it fails, the query ends.
        run = context.getLocalProperty("spark.jobGroup.id") or "run"
        step = Step(f"spark:{query}", int(batch or 0), run)
        return self.stage_all(as_batches(iterator), step, context.partitionId(), context.taskAttemptId())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.commit_all(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.abort_all(messages)


class Chunks:
    """Groups records by topic into requests of bounded size."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._waiting: dict[str, list[NewRecord]] = {}
        self._bytes: dict[str, int] = {}

    def all(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, list[NewRecord]]]:
        for batch in batches:
            yield from self.add(batch)
        yield from self.rest()

    def add(self, batch: pa.RecordBatch) -> Iterator[tuple[str, list[NewRecord]]]:
        columns = {name: batch[name].to_pylist() for name in batch.schema.names if name in _COLUMNS}
        nothing = [None] * batch.num_rows
        fields = [columns.get(name, nothing) for name in _COLUMNS]
        for topic, tag, node, meta, data in zip(*fields, strict=True):
            target = topic if topic is not None else self._options.topic
            if target is None or data is None:
                raise OptionError("a record to write needs data, and a topic from its column or from the option topic")
            waiting = self._waiting.setdefault(target, [])
            raw, raw_meta = _checked("data", data), None if meta is None else _checked("meta", meta)
            waiting.append(NewRecord(raw, tag, node, raw_meta))  # type: ignore[arg-type]
            self._bytes[target] = self._bytes.get(target, 0) + len(raw) + (0 if raw_meta is None else len(raw_meta))
            if len(waiting) >= self._options.batch_records or self._bytes[target] >= _CHUNK_BYTES:
                yield self._take(target)

    def rest(self) -> Iterator[tuple[str, list[NewRecord]]]:
        for topic in sorted(self._waiting):
            if self._waiting[topic]:
                yield self._take(topic)

    def _take(self, topic: str) -> tuple[str, list[NewRecord]]:
        self._bytes[topic] = 0
        records, self._waiting[topic] = self._waiting[topic], []
        return topic, records


def _checked(column: str, text: str) -> msgspec.Raw:
    """Returns a JSON value as raw text, verified to be exactly one value, so that it cannot break the request."""
    try:
        _decode_value(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise OptionError(f"column {column} has {text[:100]!r}, which is not JSON text: {error}") from error
    return msgspec.Raw(text)


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Raises OptionError for a DataFrame that cannot be written, before any task runs."""
    names = set(schema.names)
    if "data" not in names:
        raise OptionError('a DataFrame to write needs a column data with JSON text: to_json(struct("*")) makes one')
    if "topic" not in names and options.topic is None:
        raise OptionError("which topic to write to is said by the option topic or by a column topic")
    for field_ in schema.fields:
        if field_.name in _COLUMNS and not isinstance(field_.dataType, StringType):
            raise OptionError(f"column {field_.name} must be a string, not {field_.dataType.simpleString()}")
