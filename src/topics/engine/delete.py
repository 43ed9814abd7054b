"""Deleting records. A delete waits for as much as an append to the same topic does.

To mark a hundred thousand records that lie apart takes a tenth of a second. So a delete of many ranges is logged and
applied in several parts, one after the other, and answered behind the last. A crash in between leaves the rest as it
was, for whoever was not answered to delete again.
"""

import msgspec

from topics.engine.background_jobs import Background
from topics.engine.core import EngineCore
from topics.engine.read import SeqRange, as_ranges, find_in_memory, find_on_disk
from topics.engine.results import DeleteDone, DeleteResult
from topics.engine.topic import Segment, Topic
from topics.engine.write_path import FrameDraft, LogOperation
from topics.log.commit_requests import CommitTiming
from topics.log.frame import FrameKind, encode_delete
from topics.log.segment_files import SegmentDamaged, SegmentKey
from topics.model.errors import CorruptSegmentError, TopicNotFoundError, TopicsError
from topics.model.router_rules import DeleteSelector, TagMatch

_RANGES_A_PART = 800
"""Ranges deleted in one turn of the loop: some milliseconds of work."""


class Delete(LogOperation):
    """A permanent delete of the seqs it decided on."""

    __slots__ = ("_before_seq", "_done", "_ranges")

    def __init__(
        self, core: EngineCore, topic: Topic, before_seq: int, ranges: list[SeqRange], done: DeleteDone
    ) -> None:
        super().__init__(core.path, topic, delete_frames(core, topic, before_seq, ranges))
        self._before_seq = before_seq
        self._ranges = ranges
        self._done = done

    def apply(self, timing: CommitTiming) -> None:
        topic = self.topic
        deleted_count = self.path.engine.applier.delete(topic, self._before_seq, self._ranges)
        self._done(
            DeleteResult(topic.name, deleted_count, topic.earliest, topic.head, topic.live_count, topic.live_bytes)
        )

    def undo(self, error: TopicsError) -> None:
        self._done(error)


def delete_frames(core: EngineCore, topic: Topic, before_seq: int, ranges: list[SeqRange]) -> list[FrameDraft]:
    """What is logged of a delete: nothing where a replay has nothing of the topic."""
    if not core.path.logs_removals(topic):
        return []
    return [(FrameKind.DELETE, encode_delete(before_seq, ranges), b"")]


class Deleter:
    def __init__(self, core: EngineCore, background: Background) -> None:
        self._core = core
        self._background = background

    def delete(self, name: str, selector: DeleteSelector, done: DeleteDone) -> None:
        core = self._core
        core.check_accepting()
        topic = core.existing(name)
        core.expire(topic)
        # A delete concerns what is there now: later records are safe from it, whatever their tag.
        below = topic.head + 1
        if selector.before_seq is not None:
            below = min(below, selector.before_seq)
        if selector.match is None:
            self._log_delete(topic, below, [], done)
        else:
            self._delete_matching(topic, selector.match, below, done)

    def _delete_matching(self, topic: Topic, match: TagMatch, below: int, done: DeleteDone) -> None:
        core = self._core
        near = find_in_memory(topic, match)
        sealed = [s for s in topic.segments if s.blocks is None and s.has_tags and s.first_seq < below]
        if not sealed:
            self._log_delete(topic, 0, as_ranges(near, below), done)
            return

        def found(outcome: object) -> None:
            try:
                if isinstance(outcome, SegmentDamaged):
                    raise self._corrupt(topic, sealed, outcome)
                if isinstance(outcome, TopicsError):
                    raise outcome
                if not isinstance(outcome, list):
                    raise TopicsError(f"a look-up by tag failed: {outcome}")
                core.check_accepting()
                if not core.exists(topic) or topic.closing:
                    raise TopicNotFoundError(topic.name)
                self._log_delete(topic, 0, outcome, done)
            except TopicsError as error:
                done(error)

        self._background(lambda: as_ranges(near + find_on_disk(core.store, topic.id, sealed, match), below), found)

    def _corrupt(self, topic: Topic, segments: list[Segment], damage: SegmentDamaged) -> CorruptSegmentError:
        for segment in segments:
            if damage.path.startswith(self._core.store.path(SegmentKey(topic.id, segment.first_seq, segment.cold))):
                return CorruptSegmentError(topic.name, segment.first_seq, segment.last_seq)
        return CorruptSegmentError(topic.name, topic.earliest, topic.head)

    def _log_delete(self, topic: Topic, before_seq: int, ranges: list[SeqRange], done: DeleteDone) -> None:
        if len(ranges) > _RANGES_A_PART:
            _LongDelete(self, self._core, topic, ranges, done).go_on()
            return
        self.log_part(topic, before_seq, ranges, done)

    def log_part(self, topic: Topic, before_seq: int, ranges: list[SeqRange], done: DeleteDone) -> None:
        path = self._core.path
        if path.logs_removals(topic):
            path.check(topic, frees=True)
        path.log(Delete(self._core, topic, before_seq, ranges, done))


class _LongDelete:
    """A delete of many ranges on its way."""

    def __init__(
        self, deleter: Deleter, core: EngineCore, topic: Topic, ranges: list[SeqRange], done: DeleteDone
    ) -> None:
        self._deleter = deleter
        self._core = core
        self._topic = topic
        self._ranges = ranges
        self._place = 0
        self._deleted = 0
        self._done = done
        self._running = self._again = False

    def go_on(self) -> None:
        """The next part. Without a loop, `defer` calls at once: then one call does them all, one by one."""
        self._again = True
        if self._running:
            return
        self._running = True
        try:
            while self._again:
                self._again = False
                self._log_next()
        finally:
            self._running = False

    def _log_next(self) -> None:
        core, topic = self._core, self._topic
        part = self._ranges[self._place : self._place + _RANGES_A_PART]
        self._place += len(part)
        try:
            core.check_accepting()
            if not core.exists(topic) or topic.closing:
                raise TopicNotFoundError(topic.name)
            self._deleter.log_part(topic, 0, part, self._part_done)
        except TopicsError as error:
            if self._place == len(part):
                raise
            self._done(error)

    def _part_done(self, outcome: DeleteResult | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            self._done(outcome)
            return
        self._deleted += outcome.deleted
        if self._place < len(self._ranges):
            self._core.defer(self.go_on)
        else:
            self._done(msgspec.structs.replace(outcome, deleted=self._deleted))
