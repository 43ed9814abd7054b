"""Embedded engine: a data folder used from this process, without a server.

`topics.open(folder)` returns an `EmbeddedEngine`. Its calls block, may be made from any thread, and raise the errors of
`topics.model.errors`. The engine runs on a separate event loop in a background thread, as it does in a server: group
commit, background sync, retention and checkpoints work as documented, and each durability class keeps its promise.

A data folder belongs to one process at a time. A process that ends without `close` has the effect of a crash.
"""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from topics.engine.core import EngineOptions
from topics.engine.engine import Engine, TopicInfo
from topics.engine.read import ReadRequest
from topics.engine.results import AppendResult, DeleteResult, DropResult, PutResult
from topics.log.posix import PosixFileSystem
from topics.model.errors import ShuttingDownError, TopicsError
from topics.model.records import Batch
from topics.model.records import Record as StoredRecord
from topics.model.router_rules import TagMatch, parse_selector
from topics.model.topic_config import TopicConfigPatch, parse_config
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy
from topics.system.process import boot_id
from topics_protocol.records import Gap, NewRecord, Record

T = TypeVar("T")
Config = TopicConfigPatch | Mapping[str, object]

_TOPICS_A_PAGE = 1000
_decode_records = msgspec.json.Decoder(list[Record]).decode


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Records in order, as one read returns them; iterating a page iterates its records."""

    topic: str
    records: list[Record]
    next_from_seq: int
    """Where the next read continues."""
    head_seq: int
    """The last seq of the topic."""
    gap: Gap | None
    """The range of records before these that was lost, and why; None where nothing was."""

    @property
    def caught_up(self) -> bool:
        """Whether there was nothing more to read."""
        return self.next_from_seq == self.head_seq

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


class EmbeddedEngine:
    """Blocking access to a data folder. Use it as a context manager, or call `close`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        """The engine itself; only code on its event loop may call it."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="topics-engine", daemon=True)
        self._closing = threading.Lock()
        self._closed = False
        self._thread.start()
        self._now(partial(engine.start, self._loop))

    def append(
        self,
        topic: str,
        value: object,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
        create: bool | None = None,
        config: Config | None = None,
        delay_ms: int = 0,
        run_at: int | None = None,
        priority: int = 0,
    ) -> AppendResult:
        """Appends one record and returns its seq, once it is as durable as the topic's class promises.

        A missing topic is created, with `config` if that is given, unless `create` is False. A job of a queue is ready
        after `delay_ms`, or from `run_at` on, in ms since 1970; jobs of a higher `priority` are claimed first.
        """
        return self.append_many(
            topic, [NewRecord(value, tag, node, meta)], idempotency_key=idempotency_key, create=create, config=config,
            delay_ms=delay_ms, run_at=run_at, priority=priority,
        )  # fmt: skip

    def append_many(
        self,
        topic: str,
        records: Iterable[object],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        create: bool | None = None,
        config: Config | None = None,
        delay_ms: int = 0,
        run_at: int | None = None,
        priority: int = 0,
    ) -> AppendResult:
        """Appends records in this order, all or none; each is a `topics_client.NewRecord` or simply a value."""
        batch = Batch(
            records=[_stored(record) for record in records], node=node, idempotency_key=idempotency_key, create=create,
            config=None if config is None else _patch(config), delay_ms=delay_ms, run_at=run_at, priority=priority,
        )  # fmt: skip
        outcome: AppendResult = self._call(partial(self.engine.append, topic, batch))
        return outcome

    def read(self, topic: str, from_seq: int = 0, *, limit: int | None = None) -> Page:
        """Reads the records behind a seq, up to `limit` and about a megabyte; does not wait for new ones."""
        limits = self.engine.limits
        request = ReadRequest(
            from_seq=from_seq, limit=limits.clamp_limit(limit or 0), include_tags=True,
            max_bytes=limits.clamp_batch_bytes(0),
        )  # fmt: skip
        result = self._call(partial(self.engine.read, topic, request))
        lost = result.tombstone
        return Page(
            topic=topic, records=_decode_records(b"[%b]" % result.body), next_from_seq=result.next_from_seq,
            head_seq=result.head_seq, gap=None if lost is None else msgspec.convert(msgspec.to_builtins(lost), Gap),
        )  # fmt: skip

    def delete(self, topic: str, *, before_seq: int | None = None, match: str | TagMatch | None = None) -> DeleteResult:
        """Deletes records permanently: below a seq, with a matching tag, or both."""
        selector = parse_selector(before_seq, match.to_wire() if isinstance(match, TagMatch) else match)
        outcome: DeleteResult = self._call(partial(self.engine.delete_records, topic, selector))
        return outcome

    def topics(self, prefix: str = "") -> list[TopicInfo]:
        """Every topic whose name begins with `prefix`, in the order of the names."""
        found: list[TopicInfo] = []
        while True:
            after = found[-1].topic if found else ""
            page = self._now(partial(self.engine.list_topics, prefix, after, _TOPICS_A_PAGE))
            found += page
            if len(page) < _TOPICS_A_PAGE:
                return found

    def topic(self, name: str) -> TopicInfo:
        """The state and the config of a topic."""
        return self._now(partial(self.engine.info, name))

    def put_topic(self, name: str, config: Config | None = None) -> PutResult:
        """Creates a topic, or replaces its config."""
        outcome: PutResult = self._call(partial(self.engine.put_topic, name, _patch(config or {})))
        return outcome

    def delete_topic(self, name: str, *, if_empty: bool = False) -> DropResult:
        """Deletes a topic with everything in it; with `if_empty`, only one that has no records."""
        outcome: DropResult = self._call(partial(self.engine.drop_topic, name, if_empty))
        return outcome

    def close(self) -> None:
        """Finishes accepted operations, takes a checkpoint and releases the folder. A second call does nothing."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            try:
                asyncio.run_coroutine_threadsafe(self.engine.close(), self._loop).result()
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _call(self, operation: Callable[[Callable[[T | TopicsError], None]], None]) -> T:
        """Starts an operation on the loop and waits until it calls back."""
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

        def done(result: T | TopicsError) -> None:
            if isinstance(result, TopicsError):
                outcome.set_exception(result)
            else:
                outcome.set_result(result)

        return self._wait(lambda: operation(done), outcome)

    def _now(self, operation: Callable[[], T]) -> T:
        """Runs a function on the loop and returns its result."""
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        return self._wait(lambda: outcome.set_result(operation()), outcome)

    def _wait(self, begin: Callable[[], None], outcome: "concurrent.futures.Future[T]") -> T:
        def run() -> None:
            try:
                begin()
            except Exception as error:
                outcome.set_exception(error)

        with self._closing:
            if self._closed:
                raise ShuttingDownError
            self._loop.call_soon_threadsafe(run)
        return outcome.result()


def open_folder(folder: str | os.PathLike[str], **options: Any) -> EmbeddedEngine:
    """Opens a data folder in this process, creating it if needed, and returns once recovery is done.

    `options` are fields of `topics.engine.core.EngineOptions`, such as `wal_shards`. Raises `FolderBusyError` where
    another process, such as a server, has the folder open, and `DamageError` for damage that no crash explains.
    """
    settings = EngineOptions(data_dir=os.fspath(folder), **options)
    return EmbeddedEngine(
        Engine.recover(PosixFileSystem(), settings, SystemClock(), SystemEntropy(), boot_id=boot_id())
    )


def _stored(record: object) -> StoredRecord:
    if isinstance(record, NewRecord):
        return StoredRecord.of(record.data, tag=record.tag, node=record.node, meta=record.meta)
    return StoredRecord.of(record)


def _patch(config: Config) -> TopicConfigPatch:
    return config if isinstance(config, TopicConfigPatch) else parse_config(msgspec.json.encode(config), strict=True)
