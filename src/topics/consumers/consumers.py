"""Named consumers: create, commit, delete, and list them with their lag, also known as consumer groups.

A commit moves a consumer's cursor forward. One with a lower seq changes nothing, so that a late retry of an older
commit is harmless, unless it is forced. Commits are as durable as an append of the topic's class; creating and deleting
a consumer is always synced. A topic of class `ephemeral` keeps its commits in memory and in snapshots.
"""

import logging
import re
from collections.abc import Callable
from itertools import chain, islice

import msgspec

from topics.consumers.consumer_state import (
    CONSUMER_BYTES,
    ConsumerFeature,
    ConsumerMark,
    consumers_of,
    encode_mark,
)
from topics.engine.core import EngineCore
from topics.engine.read import ReadRequest, estimated_ts, find_tombstone, lost_from, plan_read
from topics.engine.topic import Topic
from topics.engine.write_path import Gate, LogOperation
from topics.log.commit_requests import AT_ONCE, CommitTiming
from topics.log.frame import FrameKind
from topics.model.errors import (
    ConsumerNotFoundError,
    InvalidRequestError,
    ThrottledError,
    TopicNotFoundError,
    TopicRecreatedError,
    TopicsError,
    quoted,
)
from topics.model.seq_ranges import Tombstone

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
CONSUMER_NAME_PATTERN = f"^{_NAME.pattern}$"
_KEY_NAME_CHARS_MAX = 128
LOSSES_MAX = 64


def check_consumer_name(name: str) -> str:
    """Returns `name` if it is a valid consumer name, otherwise raises InvalidRequestError."""
    if _NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            f"{quoted(name)} is not a consumer name: 1 to 128 of A-Z a-z 0-9 . _ : - beginning with a letter or digit",
            field="consumer",
        )
    return name


class ConsumerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The public state of a consumer."""

    topic: str
    consumer: str
    epoch: int
    """The epoch of the topic."""
    seq: int
    """The committed cursor."""
    head_seq: int
    lag: int
    """The number of seqs after the cursor, like the `lag` of a read."""
    lag_ms: int
    """The age of the first record after the cursor; 0 without one. Estimated within a sealed segment."""
    created_ms: int
    committed_ms: int | None
    committed_by: str | None
    lost: Tombstone | None
    """The next lost range after the cursor; the next read reports the same."""
    losses: list[Tombstone]
    """Every lost range after the cursor, at most `LOSSES_MAX`; the first one is `lost`."""


class ConsumerPut(msgspec.Struct, frozen=True):
    info: ConsumerInfo
    created: bool
    timing: CommitTiming = AT_ONCE


class ConsumerCommitted(msgspec.Struct, frozen=True):
    info: ConsumerInfo
    moved: bool
    """Whether the cursor has changed."""
    timing: CommitTiming = AT_ONCE


class ConsumerDeleted(msgspec.Struct, frozen=True):
    topic: str
    consumer: str
    deleted: bool
    timing: CommitTiming = AT_ONCE


PutDone = Callable[[ConsumerPut | TopicsError], None]
CommitDone = Callable[[ConsumerCommitted | TopicsError], None]
DeleteDone = Callable[[ConsumerDeleted | TopicsError], None]


class _Change(LogOperation):
    """Applies a mark to a consumer. Readers of the topic are not affected."""

    __slots__ = ("_done", "_failed", "_feature", "_mark")

    wakes = False

    def __init__(
        self,
        core: EngineCore,
        feature: ConsumerFeature,
        topic: Topic,
        mark: ConsumerMark,
        done: Callable[[CommitTiming], None],
        failed: Callable[[TopicsError], None],
        logged: bool,
    ) -> None:
        super().__init__(core.path, topic, ((FrameKind.CONSUMER, encode_mark(mark), b""),) if logged else ())
        self._feature, self._mark = feature, mark
        self._done, self._failed = done, failed
        feature.of(topic).staged[mark.name] = mark

    def _unstage(self) -> None:
        staged = self._feature.of(self.topic).staged
        if staged.get(self._mark.name) is self._mark:
            del staged[self._mark.name]

    def apply(self, timing: CommitTiming) -> None:
        self._unstage()
        self._feature.apply(self.topic, self._mark)
        self.path.engine.applier.kept.emit(self.topic)
        self._done(timing)

    def undo(self, error: TopicsError) -> None:
        self._unstage()
        self._failed(error)


class Consumers:
    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._feature = ConsumerFeature(core.topics, core.applier)
        core.features.add(self._feature)
        core.retention.hold_back = self
        core.topic_removed.subscribe(self._feature.forget)

    @property
    def count(self) -> int:
        """Consumers of all topics."""
        return self._feature.count

    # Changes

    def put(self, topic: Topic, name: str, seq: int, by: str, done: PutDone) -> None:
        """Creates a consumer whose cursor is `seq`. An existing consumer does not change."""
        check_consumer_name(name)
        self._check(topic)
        consumers = self._feature.of(topic)
        known = consumers.newest(name)
        if known is None:
            self._check_seq(topic, seq)
            self._check_quota(topic, consumers.count())
            known = ConsumerMark(name, seq, self._core.wall(), 0, by[:_KEY_NAME_CHARS_MAX])
        elif name not in consumers.staged:
            done(ConsumerPut(self._describe(topic, known), False))
            return
        created = name not in consumers.marks and name not in consumers.staged
        # A creation in progress is logged again, so that it is equally durable for this caller.
        self._log(topic, known, lambda info, timing: done(ConsumerPut(info, created, timing)), done, Gate.SYNC)

    def commit(
        self, topic: Topic, name: str, seq: int, by: str, done: CommitDone, *, force: bool = False,
        epoch: int | None = None,
    ) -> None:  # fmt: skip
        """Moves a consumer's cursor forward to `seq`, or with `force` to any seq."""
        if epoch is not None and epoch != topic.epoch:
            raise TopicRecreatedError(topic.name, epoch, topic.epoch)
        known = self._existing(topic, name)
        self._check(topic)
        self._check_seq(topic, seq)
        moved = seq > known.seq or (force and seq != known.seq)
        consumers = self._feature.of(topic)
        if not moved and seq != known.seq and name not in consumers.staged:
            done(ConsumerCommitted(self._describe(topic, known), False))
            return
        # A repeated commit is logged again, because it updates the time of the last commit.
        mark = msgspec.structs.replace(
            known,
            seq=seq if moved else known.seq,
            committed_ms=self._core.wall(),
            committed_by=by[:_KEY_NAME_CHARS_MAX],
        )
        self._log(topic, mark, lambda info, timing: done(ConsumerCommitted(info, moved, timing)), done, Gate.CLASS)

    def delete(self, topic: Topic, name: str, done: DeleteDone) -> None:
        """Deletes a consumer and its cursor; the records stay."""
        check_consumer_name(name)
        self._check(topic)
        consumers = consumers_of(topic)
        known = consumers.newest(name) if consumers is not None else None
        if known is None:
            done(ConsumerDeleted(topic.name, name, False))
            return
        mark = msgspec.structs.replace(known, deleted=True)

        def deleted(timing: CommitTiming) -> None:
            done(ConsumerDeleted(topic.name, name, True, timing))

        self._core.path.log(_Change(self._core, self._feature, topic, mark, deleted, done, True), Gate.SYNC)

    def _log(
        self,
        topic: Topic,
        mark: ConsumerMark,
        then: Callable[[ConsumerInfo, CommitTiming], None],
        failed: Callable[[TopicsError], None],
        gate: Gate,
    ) -> None:
        def applied(timing: CommitTiming) -> None:
            then(self._describe(topic, mark), timing)

        # Without a sync, so that frames of an ephemeral topic do not delay its appends.
        logged = topic.rules.logged or gate is Gate.SYNC
        self._core.path.log(_Change(self._core, self._feature, topic, mark, applied, failed, logged), gate)

    # State

    def info(self, topic: Topic, name: str) -> ConsumerInfo:
        """Returns a consumer's applied cursor, lag and last commit."""
        self._core.expire(topic)
        return self._describe(topic, self._applied(topic, name))

    def cursor(self, topic: Topic, name: str) -> int:
        """The committed cursor after the newest commit, including one in flight: a read begins after it."""
        return self._existing(topic, name).seq

    def list_topic(self, topic: Topic, after: str = "", limit: int = 100) -> list[ConsumerInfo]:
        """The consumers of a topic by name, after `after`."""
        consumers = consumers_of(topic)
        if consumers is None:
            return []
        self._core.expire(topic)
        names = sorted([name for name in consumers.marks if name > after])[:limit]
        return [self._describe(topic, consumers.marks[name]) for name in names]

    def list_all(self, prefix: str = "", after: tuple[str, str] = ("", ""), limit: int = 100) -> list[ConsumerInfo]:
        """The consumers of all topics whose names begin with `prefix`, by topic and name, after `after`."""
        first, name = after
        topics = (one for one in self._feature.topics_from(prefix, first) if _is_visible(one))
        found = chain.from_iterable(
            self.list_topic(topic, name if topic.name == first else "", limit) for topic in topics
        )
        return list(islice(found, limit))

    # Retention (`engine.retention.HoldBack`)

    def lowest(self, topic: Topic) -> int | None:
        """The cursor of the slowest consumer of a topic."""
        consumers = consumers_of(topic)
        return None if consumers is None else consumers.lowest()

    def gave_up(self, topic: Topic, cursor: int, floor: int) -> None:
        """Reports once that a topic cannot keep all records that its slowest consumer has not committed."""
        consumers = consumers_of(topic)
        if consumers is None or consumers.gave_up or not self._feature.recovered:
            return
        consumers.gave_up = True
        self._core.totals.consumers_given_up += 1
        slowest = next(mark.name for mark in consumers.marks.values() if mark.seq == cursor)
        extra = {
            "topic": topic.name, "consumer": slowest, "seq": cursor, "evicted_below": floor,
            "retain_for_consumers": topic.config.retain_for_consumers,
        }  # fmt: skip
        _log.warning("records of a consumer evicted", extra=extra)

    # Helpers

    def _describe(self, topic: Topic, mark: ConsumerMark) -> ConsumerInfo:
        lag = max(topic.visible_head - mark.seq, 0)
        lost = plan_read(topic, ReadRequest(from_seq=mark.seq, limit=1), self._core.reader).tombstone if lag else None
        return ConsumerInfo(
            topic=topic.name, consumer=mark.name, epoch=topic.epoch, seq=mark.seq, head_seq=topic.visible_head, lag=lag,
            lag_ms=self._lag_ms(topic, mark.seq), created_ms=mark.created_ms, committed_ms=mark.committed_ms or None,
            committed_by=mark.committed_by or None if mark.committed_ms else None, lost=lost,
            losses=self._losses(topic, mark.seq, lost) if lag else [],
        )  # fmt: skip

    def _losses(self, topic: Topic, seq: int, lost: Tombstone | None) -> list[Tombstone]:
        """The number of records that later reads report as lost, including the next read."""
        losses, cursor = ([], seq) if lost is None else ([lost], lost.gap_to)
        while len(losses) < LOSSES_MAX and (known := next(lost_from(topic, cursor + 1), None)) is not None:
            found = find_tombstone(topic, max(known.from_seq - 1, cursor), self._core.reader)
            if found is None or found.gap_to <= cursor:
                break
            losses.append(found)
            cursor = found.gap_to
        return losses

    def _lag_ms(self, topic: Topic, seq: int) -> int:
        ts = estimated_ts(topic, seq + 1)
        return 0 if ts is None else max(self._core.wall() - ts, 0)

    def _check(self, topic: Topic) -> None:
        """Raises unless a change of a consumer can be logged."""
        core = self._core
        core.check_accepting()
        if topic.closing:
            raise TopicNotFoundError(topic.name)
        core.path.check(topic, patient=True, frees=True)

    def _check_seq(self, topic: Topic, seq: int) -> None:
        if seq > topic.visible_head:
            raise InvalidRequestError(
                f"seq: {seq} is above the head of topic {quoted(topic.name)}, which is {topic.visible_head}",
                field="seq", head_seq=topic.visible_head,
            )  # fmt: skip

    def _check_quota(self, topic: Topic, there: int) -> None:
        core, limits = self._core, self._core.limits
        if 0 < limits.max_consumers_per_topic <= there:
            raise ThrottledError.over_cap("max_consumers_per_topic", limits.max_consumers_per_topic)
        most = limits.max_consumers_per_key
        for tenant in core.quotas.tenants_of(topic.name) if most else ():
            topics = chain.from_iterable(map(self._feature.topics_from, tenant.prefixes))
            if sum([len(found.marks) for one in topics if (found := consumers_of(one)) is not None]) >= most:
                raise ThrottledError.over_cap("max_consumers_per_key", most)
        core.memory.check(topic, CONSUMER_BYTES)

    def _existing(self, topic: Topic, name: str) -> ConsumerMark:
        check_consumer_name(name)
        consumers = consumers_of(topic)
        mark = consumers.newest(name) if consumers is not None else None
        if mark is None:
            raise ConsumerNotFoundError(topic.name, name)
        return mark

    def _applied(self, topic: Topic, name: str) -> ConsumerMark:
        check_consumer_name(name)
        consumers = consumers_of(topic)
        mark = consumers.marks.get(name) if consumers is not None else None
        if mark is None:
            raise ConsumerNotFoundError(topic.name, name)
        return mark


def _is_visible(topic: Topic) -> bool:
    return topic.guard is None or not topic.guard.over(topic)
