"""Deleting records for good. A delete waits for as much as an append to the same topic does."""

from topics.core.errors import CorruptSegmentError, TopicNotFoundError, TopicsError
from topics.core.selectors import DeleteSelector, TagMatch
from topics.engine.background import Background
from topics.engine.core import EngineCore
from topics.engine.results import DeleteDone, DeleteResult
from topics.engine.state.runs import Segment
from topics.engine.state.tags import SeqRange, as_ranges, find_in_memory, find_on_disk
from topics.engine.topic import Topic
from topics.engine.transaction import FrameDraft, Transaction
from topics.formats.control import encode_delete
from topics.formats.frame import FrameKind
from topics.storage.segments import SegmentDamaged, SegmentKey
from topics.storage.timing import CommitTiming


class Delete(Transaction):
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
        deleted_count = self.path.books.applier.delete(topic, self._before_seq, self._ranges)
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
                if core.topics.get(topic.id) is not topic or topic.closing:
                    raise TopicNotFoundError(topic.name)
                self._log_delete(topic, 0, as_ranges(near + outcome, below), done)
            except TopicsError as error:
                done(error)

        self._background(lambda: find_on_disk(core.store, topic.id, sealed, match), found)

    def _corrupt(self, topic: Topic, segments: list[Segment], damage: SegmentDamaged) -> CorruptSegmentError:
        for segment in segments:
            if damage.path.startswith(self._core.store.path(SegmentKey(topic.id, segment.first_seq, segment.cold))):
                return CorruptSegmentError(topic.name, segment.first_seq, segment.last_seq)
        return CorruptSegmentError(topic.name, topic.earliest, topic.head)

    def _log_delete(self, topic: Topic, before_seq: int, ranges: list[SeqRange], done: DeleteDone) -> None:
        path = self._core.path
        if path.logs_removals(topic):
            path.check(topic, frees=True)
        path.log(Delete(self._core, topic, before_seq, ranges, done))
