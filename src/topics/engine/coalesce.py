"""Write coalescing: appends of a single record that arrive for one topic in the same tick of the event loop become one
block of the log. Also known as implicit batching.

Hundreds of clients that each append a record at a time would otherwise cost a block, a frame, a checksum and a log
operation each. Coalesced, they cost one for all of them. Every request stays atomic: it is one record, and a block is
logged whole or not at all.

Requests of the network protocols join a group with deferred decoding (`Coalescer.defer`): at the end of the tick their
source decodes all of them in one pass, and they are checked in one pass. If one cannot be decoded as a single record,
or may have to be refused, the source handles all of them one by one, in order. A single request is a group of one.
Records that `Appender.append` has decoded and checked join a group with a callback each (`Coalescer.add`); otherwise
requests handled one by one, and keys in a header, would cost a block each.

The order of arrival is the order of the log. Every other write checks its shard first (`WritePath.check`), which stages
all coalesced records.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from topics.engine.core import EngineCore
from topics.engine.idempotency import KeyedBlock, KeyMemory
from topics.engine.results import AppendDone, AppendResult
from topics.engine.topic import Topic
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record

GROUP_MAX = 256
"""The maximum number of records of a block; a longer one would only delay the first."""

_log = logging.getLogger(__name__)


class DecodedAppends(NamedTuple):
    """The records of a group of requests with one record each."""

    records: Sequence[Record]
    keys: list[str | None] | None
    """The idempotency key of each; None if none has one."""

    @classmethod
    def of(cls, records: Sequence[Record], keys: list[str | None]) -> "DecodedAppends":
        return cls(records, None if keys.count(None) == len(keys) else keys)


class AppendSource(Protocol):
    """A protocol whose requests are coalesced before they are decoded.

    Each protocol has one object; requests share a group if they have the same source.
    """

    def decode(self, requests: list[Any]) -> DecodedAppends | None:
        """Returns the decoded records if each request appends one record without further options, otherwise None."""
        ...

    def handle_each(self, requests: list[Any]) -> None:
        """Handles the requests one by one, without coalescing, because one has other options or may have to be
        refused."""
        ...

    def answer(self, requests: list[Any], outcome: AppendResult | TopicsError) -> None:
        """Answers the requests of one block, in order; `result` is the result of the whole block."""
        ...


class StageBatch(Protocol):
    """Stages a batch of several requests (`Appender`)."""

    def __call__(
        self, topic: Topic, batch: Batch, done: AppendDone, *, callers: int, keyed: KeyedBlock | None
    ) -> None: ...


StageDecoded = Callable[[Topic, DecodedAppends, AppendDone], bool]
"""Checks and stages records that were decoded together. Returns False without effect if one may have to be refused."""


class CoalescingGroup:
    """The pending appends of one tick for one topic."""

    __slots__ = ("_stage", "by_key", "keyed", "places", "records", "requests", "source", "staged", "topic")

    def __init__(self, topic: Topic, stage: "Callable[[CoalescingGroup], None]", source: AppendSource | None) -> None:
        self.topic = topic
        self._stage = stage
        self.source = source
        """Decodes and answers the requests; None if `records` are decoded and `requests` are their callbacks."""
        self.staged = False
        self.requests: list[Any] = []
        self.records: list[Record] = []
        self.places: dict[str, int] = {}
        """The idempotency keys of the records, with the positions of their records."""
        self.by_key: dict[str, KeyedBlock] | None = None
        """All keys of the topic; None while no record has one."""
        self.keyed: KeyedBlock | None = None
        """The entry of this group's keys in `by_key`."""

    @property
    def waiting(self) -> int:
        return 0 if self.staged else len(self.requests)

    def may_bring(self, key: str) -> bool:
        """Returns whether the group may contain the key; keys are unknown before decoding."""
        return self.source is not None or key in self.places

    def stage(self) -> None:
        # Exactly once, even if another group was opened meanwhile: handling requests one by one opens one.
        if not self.staged:
            self.staged = True
            if self.topic.coalesced is self:
                self.topic.coalesced = None
            self._stage(self)

    def begin_keys(self, most: int) -> "dict[str, KeyedBlock] | None":
        """Returns all keys of the topic, for the first key of this group; None if there is no room for the maximum of a
        group. Keys are then counted one by one, like keys of batches."""
        topic = self.topic
        taken = 0 if topic.keys is None else len(topic.keys)
        if 0 < most < taken + GROUP_MAX:
            return None
        if topic.keys is None:
            topic.keys = KeyMemory()
        self.by_key, self.keyed = topic.keys.by_key, KeyedBlock(self.places)
        return self.by_key


class Coalescer:
    """Coalesces the appends of every topic; each topic has at most one open group (`Topic.coalesced`)."""

    def __init__(self, core: EngineCore, stage: StageBatch, stage_decoded: StageDecoded) -> None:
        self._core = core
        self._stage = stage
        self._stage_decoded = stage_decoded

    def defer(self, topic: Topic, requests: Sequence[object], source: AppendSource) -> bool:
        """Opens a group with requests whose decoding is deferred to the end of the tick.

        Returns False if the shard does not coalesce currently.
        """
        shard = self._core.shards[topic.shard]
        if not shard.coalesces:
            return False
        while topic.coalesced is not None:
            topic.coalesced.stage()
        group = CoalescingGroup(topic, self._stage_group, source)
        group.requests += requests
        self._open(group)
        return True

    def add(self, topic: Topic, record: Record, done: AppendDone, key: str | None) -> bool:
        """Adds a checked record to a group until the end of the tick, or until another operation is staged.

        Returns False without effect if the shard does not coalesce currently, if the topic has the key already (known,
        in flight or in this tick), or if room is short.
        """
        group: CoalescingGroup | None = topic.coalesced
        while group is not None and (group.source is not None or len(group.requests) == GROUP_MAX):
            group.stage()
            # Requests handled one by one form a group again. A topic has at most one waiting group.
            group = topic.coalesced
        shard = None
        if group is None:
            shard, group = self._core.shards[topic.shard], CoalescingGroup(topic, self._stage_group, None)
            if not shard.coalesces:
                return False
        if key is not None:
            # One lookup finds keys that are known, in flight, or of this tick.
            by_key = group.by_key or group.begin_keys(self._core.limits.max_idempotency_keys)
            if by_key is None or key in by_key:
                return False
            by_key[key] = group.keyed  # type: ignore[assignment]
            group.places[key] = len(group.requests)
        group.records.append(record)
        group.requests.append(done)
        if shard is not None:
            self._open(group)
        return True

    def _open(self, group: CoalescingGroup) -> None:
        group.topic.coalesced, shard = group, self._core.shards[group.topic.shard]
        shard.coalesced.append(group)
        shard.committer.expect()

    def _stage_group(self, group: CoalescingGroup) -> None:
        topic, source, requests = group.topic, group.source, group.requests
        if source is not None:
            decoded = source.decode(requests)
            if decoded is None or not self._stage_decoded(topic, decoded, partial(source.answer, requests)):
                source.handle_each(requests)
            return
        keyed = group.keyed if group.places else None
        if keyed is not None and len(requests) == 1:
            # A block of one record needs no positions: it is an ordinary batch with a key.
            (keyed.keys,) = group.places
        batch, answered = Batch(records=group.records), partial(_answer_each, requests)
        self._stage(topic, batch, answered, callers=len(requests), keyed=keyed)


def _answer_each(dones: list[AppendDone], outcome: AppendResult | TopicsError) -> None:
    """Calls each callback with the outcome of its record."""
    reported = outcome
    for number, done in enumerate(dones):
        if isinstance(outcome, AppendResult):
            seq = outcome.first_seq + number
            reported = AppendResult(
                outcome.topic, seq, seq, seq, wal_append_ms=outcome.wal_append_ms, fsync_ms=outcome.fsync_ms
            )
        try:
            done(reported)
        except Exception:
            # A failing callback of one caller must not block the answers of others.
            _log.exception("commit callback failed")
