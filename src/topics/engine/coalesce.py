"""Single records for one topic that come in the same tick of the loop become one block.

Hundreds of clients that each append a record at a time would otherwise cost a block, a frame, a checksum and an
operation each. Coalesced, they cost one for all of them, and every request is still atomic: it is one record, and a
block is logged whole or not at all.

The order of arrival stays the order of the log. What asks for anything special goes its own way, behind those that
were coalesced before it: whoever is about to stage something in a shard asks it first (`WritePath.check`), and the
shard then has everything that was coalesced staged at once.
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
"""Records of one block: a longer one would only keep the first waiting."""

_log = logging.getLogger(__name__)

AnswerAll = Callable[[list[Any], AppendResult | TopicsError], None]
"""Told what became of a block: who asked for its records, in their order, and the result for all of them together."""


class Singles(NamedTuple):
    """Single records of one tick."""

    records: Sequence[Record]
    keys: list[str | None] | None
    """The idempotency key of each; None where none has one."""


class Unread(Protocol):
    """Whoever brings single records that nobody has read yet: at the end of the tick they are read together."""

    def read(self, callers: list[Any]) -> Singles | None:
        """What these callers ask for, if that is a record of each and no more."""
        ...

    def take_each(self, callers: list[Any]) -> None:
        """Takes them one by one, as if they had never been gathered: one of them asks for something else, or may not
        be let in."""
        ...

    def answer(self, callers: list[Any], outcome: AppendResult | TopicsError) -> None:
        """Told what became of the block, as `AnswerAll` is."""
        ...


class StageUnread(Protocol):
    """Stages records that were read together; False where one of them may not be let in, and nothing is done."""

    def __call__(self, topic: Topic, singles: Singles, done: AppendDone) -> bool: ...


class Stage(Protocol):
    """Stages a batch for so many callers (`Appender`)."""

    def __call__(
        self, topic: Topic, batch: Batch, done: AppendDone, *, callers: int, keyed: KeyedBlock | None
    ) -> None: ...


class Group:
    """What one tick brought for one topic."""

    __slots__ = ("_stage", "answer", "by_key", "callers", "keyed", "places", "records", "staged", "topic", "unread")

    def __init__(
        self, topic: Topic, stage: "Callable[[Group], None]", answer: AnswerAll, unread: Unread | None = None
    ) -> None:
        self.topic = topic
        self._stage = stage
        self.answer = answer
        self.unread = unread
        """Who reads what the callers ask for; None where their records are here."""
        self.staged = False
        self.records: list[Record] = []
        self.callers: list[Any] = []
        self.places: dict[str, int] = {}
        """The idempotency keys among them, each with the place of its record."""
        self.by_key: dict[str, KeyedBlock] | None = None
        """All keys of the topic; None as long as nobody came with one."""
        self.keyed: KeyedBlock | None = None
        """As what the topic has those of the group."""

    @property
    def waiting(self) -> int:
        return 0 if self.staged else len(self.callers)

    def may_bring(self, key: str) -> bool:
        """Whether the key is among those of the group, as far as anybody has read them."""
        return self.unread is not None or key in self.places

    def stage(self) -> None:
        # Once, and whether or not another one has taken its place meanwhile: it may be the one that was opened by those
        # who are taken one by one.
        if not self.staged:
            self.staged = True
            if self.topic.coalesced is self:
                self.topic.coalesced = None
            self._stage(self)

    def begin_keys(self, most: int) -> "dict[str, KeyedBlock] | None":
        """All keys of the topic, for the first of this group; None where there is no room for as many as a group may
        have. They are then counted one by one, by whoever takes them one by one."""
        topic = self.topic
        taken = 0 if topic.keys is None else len(topic.keys)
        if 0 < most < taken + GROUP_MAX:
            return None
        if topic.keys is None:
            topic.keys = KeyMemory()
        self.by_key, self.keyed = topic.keys.by_key, KeyedBlock(self.places)
        return self.by_key


class Coalescer:
    """Coalesces for every topic there is; each has its group (`Topic.coalesced`)."""

    def __init__(self, core: EngineCore, stage: Stage, stage_unread: StageUnread) -> None:
        self._core = core
        self._stage = stage
        self._stage_unread = stage_unread

    def begin_unread(self, topic: Topic, callers: Sequence[object], unread: Unread) -> bool:
        """Keeps callers for a plain topic until the end of the tick, as the first of a group that others may join.
        False where the shard does not coalesce now."""
        shard = self._core.shards[topic.shard]
        if not shard.coalesces:
            return False
        while topic.coalesced is not None:
            topic.coalesced.stage()
        group = Group(topic, self._stage_group, unread.answer, unread)
        group.callers += callers
        self._open(group)
        return True

    def take(self, topic: Topic, record: Record, caller: object, answer: AnswerAll, key: str | None = None) -> bool:
        """Keeps a checked record for a plain topic until the end of the tick, or until something else is staged.

        False where the shard does not coalesce now, or where the key is one that the topic has, whether known, on its
        way or of this tick, or where few more have room; then nothing of it happened.
        """
        group: Group | None = topic.coalesced
        while group is not None and (group.answer is not answer or group.unread or len(group.callers) == GROUP_MAX):
            group.stage()
            # Those who were then taken one by one are a group again. A topic has one that waits, and no more.
            group = topic.coalesced
        shard = None
        if group is None:
            shard, group = self._core.shards[topic.shard], Group(topic, self._stage_group, answer)
            if not shard.coalesces:
                return False
        if key is not None:
            # One look tells of keys that are known, on their way, or of this tick.
            by_key = group.by_key or group.begin_keys(self._core.limits.max_idempotency_keys)
            if by_key is None or key in by_key:
                return False
            by_key[key] = group.keyed  # type: ignore[assignment]
            group.places[key] = len(group.callers)
        group.records.append(record)
        group.callers.append(caller)
        if shard is not None:
            self._open(group)
        return True

    def _open(self, group: Group) -> None:
        group.topic.coalesced, shard = group, self._core.shards[group.topic.shard]
        shard.coalesced.append(group)
        shard.committer.expect()

    def _stage_group(self, group: Group) -> None:
        topic, answered = group.topic, partial(group.answer, group.callers)
        if group.unread is not None:
            singles = group.unread.read(group.callers)
            if singles is None or not self._stage_unread(topic, singles, answered):
                group.unread.take_each(group.callers)
            return
        callers, keyed = len(group.callers), group.keyed if group.places else None
        if keyed is not None and callers == 1:
            # A block of one record has no places to tell apart: it is a batch like any other with a key.
            (keyed.keys,) = group.places
        self._stage(topic, Batch(records=group.records), answered, callers=callers, keyed=keyed)


def answer_each(dones: list[AppendDone], outcome: AppendResult | TopicsError) -> None:
    """Tells each of those who asked for a record of one block what became of it."""
    told = outcome
    for number, done in enumerate(dones):
        if isinstance(outcome, AppendResult):
            seq = outcome.first_seq + number
            told = AppendResult(
                outcome.topic, seq, seq, seq, wal_append_ms=outcome.wal_append_ms, fsync_ms=outcome.fsync_ms
            )
        try:
            done(told)
        except Exception:
            # One caller's broken callback must not keep the answers of the others.
            _log.exception("a commit callback failed")
