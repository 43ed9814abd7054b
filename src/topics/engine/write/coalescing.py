"""Single records for one topic that come in the same tick of the loop become one block.

Hundreds of clients that each append a record at a time would otherwise cost a block, a frame, a checksum and an
operation each. Coalesced, they cost one for all of them, and every request is still atomic: it is one record, and a
block is logged whole or not at all.

The order of arrival stays the order of the log. What asks for anything special goes its own way, behind those that
were coalesced before it: whoever is about to stage something in a shard asks it first (`WritePath.check`), and the
shard then has everything that was coalesced staged at once.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from topics.core.batch import Batch
from topics.core.errors import TopicsError
from topics.core.records import Record
from topics.engine.core import EngineCore
from topics.engine.results import AppendDone, AppendResult
from topics.engine.state.keys import KeyedBlock, KeyMemory
from topics.engine.topic import Topic

GROUP_MAX = 256
"""Records of one block: a longer one would only keep the first waiting."""

_log = logging.getLogger(__name__)

AnswerAll = Callable[[list[Any], AppendResult | TopicsError], None]
"""Told what became of a block: who asked for its records, in their order, and the result for all of them together."""


class Stage(Protocol):
    """Stages a batch for so many callers (`Appender`)."""

    def __call__(
        self, topic: Topic, batch: Batch, done: AppendDone, *, callers: int, keyed: KeyedBlock | None
    ) -> None: ...


class Group:
    """What one tick brought for one topic."""

    __slots__ = ("answer", "by_key", "callers", "keyed", "places", "records")

    def __init__(self, answer: AnswerAll) -> None:
        self.answer = answer
        self.records: list[Record] = []
        self.callers: list[Any] = []
        self.places: dict[str, int] = {}
        """The idempotency keys among them, each with the place of its record."""
        self.by_key: dict[str, KeyedBlock] | None = None
        """All keys of the topic; None as long as nobody came with one."""
        self.keyed: KeyedBlock | None = None
        """As what the topic has those of the group."""

    def begin_keys(self, topic: Topic, most: int) -> "dict[str, KeyedBlock] | None":
        """All keys of the topic, for the first of this group; None where there is no room for as many as a group may
        have. They are then counted one by one, by whoever takes them one by one."""
        taken = 0 if topic.keys is None else len(topic.keys)
        if 0 < most < taken + GROUP_MAX:
            return None
        if topic.keys is None:
            topic.keys = KeyMemory()
        self.by_key, self.keyed = topic.keys.by_key, KeyedBlock(self.places)
        return self.by_key


class Coalescer:
    """Coalesces for every topic there is; each has its group (`Topic.coalesced`)."""

    def __init__(self, core: EngineCore, stage: Stage) -> None:
        self._core = core
        self._stage = stage

    def take(self, topic: Topic, record: Record, caller: object, answer: AnswerAll, key: str | None = None) -> bool:
        """Keeps a checked record for a plain topic until the end of the tick, or until something else is staged.

        False where the shard does not coalesce now, or where the key is one that the topic has, whether known, on its
        way or of this tick, or where few more have room; then nothing of it happened.
        """
        group: Group | None = topic.coalesced
        if group is not None and (group.answer is not answer or len(group.callers) == GROUP_MAX):
            self._stage_group(topic)
            group = None
        shard = None
        if group is None:
            shard, group = self._core.shards[topic.shard], Group(answer)
            if not shard.coalesces:
                return False
        if key is not None:
            # One look tells of keys that are known, on their way, or of this tick.
            by_key = group.by_key or group.begin_keys(topic, self._core.limits.max_idempotency_keys)
            if by_key is None or key in by_key:
                return False
            by_key[key] = group.keyed  # type: ignore[assignment]
            group.places[key] = len(group.callers)
        group.records.append(record)
        group.callers.append(caller)
        if shard is not None:
            topic.coalesced = group
            shard.coalesced.append(partial(self._stage_group, topic))
            shard.committer.expect()
        return True

    def _stage_group(self, topic: Topic) -> None:
        """Stages what a topic has; nothing, where that was done already."""
        group: Group | None = topic.coalesced
        if group is None:
            return
        topic.coalesced = None
        callers, keyed = len(group.callers), group.keyed if group.places else None
        if keyed is not None and callers == 1:
            # A block of one record has no places to tell apart: it is a batch like any other with a key.
            (keyed.keys,) = group.places
        batch = Batch(records=group.records)
        self._stage(topic, batch, partial(group.answer, group.callers), callers=callers, keyed=keyed)


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
