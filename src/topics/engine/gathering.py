"""Single records for one topic that come in the same tick of the loop become one block.

Hundreds of clients that each append a record at a time would otherwise cost a block, a frame, a checksum and an
operation each. Gathered, they cost one for all of them, and every request is still atomic: it is one record, and a
block is logged whole or not at all.

The order of arrival stays the order of the log. What asks for anything special goes its own way, behind those that
were gathered before it: whoever is about to stage something in a shard asks it first (`Shard.check_open`), and the
shard then has everything that was gathered staged at once.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from topics.core.batch import Batch
from topics.core.config import Discard
from topics.core.errors import TopicsError
from topics.core.limits import Limits
from topics.core.records import Record, check_records
from topics.engine.core import EngineCore
from topics.engine.operations import AppendDone, AppendResult
from topics.engine.topic import Topic
from topics.storage.commit import Shard

_GATHERED_MAX = 256
"""Records of one block: a longer one would only keep the first waiting."""

_log = logging.getLogger(__name__)

AnswerAll = Callable[[list[Any], AppendResult | TopicsError], None]
"""Told what became of a block: who asked for its records, in their order, and the result for all of them together."""


class Stage(Protocol):
    """Stages a batch for so many callers (`Appender`)."""

    def __call__(self, topic: Topic, batch: Batch, shard: Shard, done: AppendDone, *, askers: int) -> None: ...


def may_gather(topic: Topic) -> bool:
    """Whether a topic is without rules that look at each request by itself."""
    config = topic.staged_config
    if topic.created and config.durability.logged and not config.ttl_ms and config.discard is not Discard.REJECT:
        # The next one is known by this (`Gatherer.take`).
        topic.plain_config = config
        return True
    return False


def _is_right(record: Record, limits: Limits) -> bool:
    try:
        check_records((record,), limits)
    except TopicsError:
        return False
    return True


class Group:
    """What one tick brought for one topic."""

    __slots__ = ("answer", "callers", "records")

    def __init__(self, answer: AnswerAll) -> None:
        self.answer = answer
        self.records: list[Record] = []
        self.callers: list[Any] = []


class Gatherer:
    """Gathers for every topic there is."""

    def __init__(self, core: EngineCore, stage: Stage) -> None:
        self._core = core
        self._stage = stage
        self._groups: dict[Topic, Group] = {}

    def take(self, topic: Topic, record: Record, caller: object, answer: AnswerAll) -> bool:
        """Takes a record that nobody has looked at yet, if it is right and the topic known as plain; whether it did."""
        core, config = self._core, topic.staged_config
        limits = core.limits
        if (
            config is not topic.plain_config
            or config is not topic.config
            or topic.guard is not None
            or topic.closing
            or limits.max_total_bytes
            or len(record.data) > limits.max_record_bytes
        ):
            return False
        bare = record.tag is None and record.meta is None and record.node is None
        if not bare and not _is_right(record, limits):
            return False
        group = self._groups.get(topic)
        if group is None:
            if not core.shards[topic.shard].gathers:
                return False
        elif group.answer is answer and len(group.callers) < _GATHERED_MAX:
            group.records.append(record)
            group.callers.append(caller)
            return True
        self.add(topic, record, caller, answer)
        return True

    def add(self, topic: Topic, record: Record, caller: object, answer: AnswerAll) -> None:
        """Keeps a checked record until the end of the tick, or until something else wants to be staged."""
        group = self._groups.get(topic)
        if group is not None and (group.answer is not answer or len(group.callers) == _GATHERED_MAX):
            self._stage_group(topic, group)
            group = None
        if group is None:
            group = self._groups[topic] = Group(answer)
        group.records.append(record)
        group.callers.append(caller)
        shard = self._core.shards[topic.shard]
        if shard.gathered is None:
            shard.gathered = partial(self._stage_all, shard)
            shard.committer.expect()

    def _stage_all(self, shard: Shard) -> None:
        groups = self._groups
        if len(self._core.shards) == 1:
            self._groups = {}
        else:
            groups = {topic: group for topic, group in groups.items() if topic.shard == shard.number}
            for topic in groups:
                del self._groups[topic]
        for topic, group in groups.items():
            self._stage_group(topic, group)

    def _stage_group(self, topic: Topic, group: Group) -> None:
        shard, done = self._core.shards[topic.shard], partial(group.answer, group.callers)
        self._stage(topic, Batch(records=group.records), shard, done, askers=len(group.callers))


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
