"""Single records for one topic that come in the same tick of the loop become one block.

Hundreds of clients that each append a record at a time would otherwise cost a block, a frame, a checksum and an
operation each. Gathered, they cost one for all of them, and every request is still atomic: it is one record, and a
block is logged whole or not at all.

The order of arrival stays the order of the log. What asks for anything special goes its own way, behind those that
were gathered before it: whoever is about to stage something in a shard asks it first (`Shard.check_open`), and the
shard then has everything that was gathered staged at once.
"""

import logging
from typing import Protocol

from topics.core.batch import Batch
from topics.core.config import Discard
from topics.core.errors import TopicsError
from topics.core.records import Record
from topics.engine.operations import AppendDone, AppendResult
from topics.engine.topic import Topic
from topics.storage.commit import Shard

_GATHERED_MAX = 256
"""Records of one block: a longer one would only keep the first waiting."""

_log = logging.getLogger(__name__)


class Stage(Protocol):
    """Stages a batch for so many callers (`Appender`)."""

    def __call__(self, topic: Topic, batch: Batch, shard: Shard, done: AppendDone, *, askers: int) -> None: ...


def may_gather(topic: Topic, batch: Batch) -> bool:
    """Whether an append is a plain record to a topic without rules that look at each request by itself."""
    config = topic.staged_config
    if topic.created and config.durability.logged and not config.ttl_ms and config.discard is not Discard.REJECT:
        # The next one is known by this and does not come here (`Appender.append`).
        topic.plain_config = config
        return len(batch.records) == 1 and batch.idempotency_key is None and batch.node is None and not batch.delay_ms
    return False


class Gatherer:
    """Gathers for one shard."""

    def __init__(self, shard: Shard, stage: Stage) -> None:
        self._shard = shard
        self._stage = stage
        self._waiting: dict[Topic, list[tuple[Record, AppendDone]]] = {}

    def add(self, topic: Topic, record: Record, done: AppendDone) -> None:
        """Keeps a checked record until the end of the tick, or until something else wants to be staged."""
        members = self._waiting.get(topic)
        if members is None:
            self._waiting[topic] = [(record, done)]
            if self._shard.gathered is None:
                self._shard.gathered = self._stage_all
                self._shard.committer.expect()
            return
        members.append((record, done))
        if len(members) == _GATHERED_MAX:
            self._stage_group(topic, self._waiting.pop(topic))

    def _stage_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for topic, members in waiting.items():
            self._stage_group(topic, members)

    def _stage_group(self, topic: Topic, members: list[tuple[Record, AppendDone]]) -> None:
        if len(members) == 1:
            record, done = members[0]
            self._stage(topic, Batch(records=[record]), self._shard, done, askers=1)
            return

        def done_for_all(outcome: AppendResult | TopicsError) -> None:
            if isinstance(outcome, TopicsError):
                for _, done in members:
                    _refuse(done, outcome)
                return
            name, write_ms, sync_ms = topic.name, outcome.wal_append_ms, outcome.fsync_ms
            for seq, (_, done) in enumerate(members, outcome.first_seq):
                try:
                    done(AppendResult(name, seq, seq, seq, False, False, write_ms, sync_ms))
                except Exception:
                    # One caller's broken callback must not keep the answers of the others.
                    _log.exception("a commit callback failed")

        batch = Batch(records=[record for record, _ in members])
        self._stage(topic, batch, self._shard, done_for_all, askers=len(members))


def _refuse(done: AppendDone, error: TopicsError) -> None:
    try:
        done(error)
    except Exception:
        _log.exception("a commit callback failed")
