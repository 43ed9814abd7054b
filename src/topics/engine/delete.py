"""Deletes of records. A delete has the durability of an append to the same topic, and is atomic for readers.

A delete by tag may affect a million scattered records. Slow work is done before the delete becomes visible: run by run,
off the loop, its records are looked up and counted (`engine.apply.Marks`). Then it is one frame in the log and, after
its commit, one short turn of the loop that replaces the flags. It is atomic in a crash. It affects the records that
existed at the request: later ones are above its bound, and records removed meanwhile are not counted.
"""

from array import array
from collections import deque
from collections.abc import Callable, Generator, Sequence
from itertools import chain

from topics.engine.apply import MANY_RANGES, Marks, marks_of
from topics.engine.background_jobs import Background
from topics.engine.core import EngineCore
from topics.engine.read import SeqRange, as_ranges, find_in_run, find_in_tail
from topics.engine.results import DeleteDone, DeleteResult
from topics.engine.topic import Run, Segment, Topic
from topics.engine.write_path import FrameDraft, LogOperation
from topics.log.commit_requests import CommitTiming
from topics.log.frame import FrameKind, encode_delete, encode_pairs
from topics.log.segment import DELETED
from topics.log.segment_files import SegmentDamaged, SegmentKey
from topics.model.errors import CorruptSegmentError, TopicNotFoundError, TopicsError
from topics.model.router_rules import DeleteSelector, TagMatch

_TAIL_RECORDS = 20_000
"""The loop does not scan longer tails, which only ephemeral topics have."""
_RUNS_A_STEP = 64
_RECORDS_A_STEP = 20_000
"""Runs and records examined in one step off the loop."""


class Delete(LogOperation):
    """A permanent delete of decided seqs: all below a seq, ranges, or the records in `marks`."""

    __slots__ = ("_before_seq", "_done", "_marks", "_ranges")

    def __init__(
        self, core: EngineCore, topic: Topic, before_seq: int, ranges: list[SeqRange], marks: Sequence[Marks],
        encoded: bytes | None, done: DeleteDone,
    ) -> None:  # fmt: skip
        """`encoded` has the ranges, including those of the marks, in the form of the frame; None if they are not
        encoded yet."""
        frames = delete_frames(core, topic, before_seq, ranges if encoded is None else [])
        if encoded is not None and frames:
            kind, head, _ = frames[0]
            frames = [(kind, head, encoded)]
        super().__init__(core.path, topic, frames)
        self._before_seq = before_seq
        self._ranges = ranges
        self._marks = marks
        self._done = done

    def apply(self, timing: CommitTiming) -> None:
        topic, applier = self.topic, self.path.engine.applier
        deleted_count = applier.delete_marked(topic, self._marks) if self._marks else 0
        if self._before_seq or self._ranges:
            deleted_count += applier.delete(topic, self._before_seq, self._ranges)
        self.acknowledge(
            self._done,
            DeleteResult(topic.name, deleted_count, topic.earliest, topic.head, topic.live_count, topic.live_bytes),
        )

    def undo(self, error: TopicsError) -> None:
        self._done(error)


def delete_frames(core: EngineCore, topic: Topic, before_seq: int, ranges: list[SeqRange]) -> list[FrameDraft]:
    """The log frames of a delete; none if a replay has no records of the topic."""
    if not core.path.logs_removals(topic):
        return []
    return [(FrameKind.DELETE, encode_delete(before_seq, ranges), b"")]


class Deleter:
    def __init__(self, core: EngineCore, background: Background) -> None:
        self._core = core
        self._background = background
        self._long: dict[int, deque[Callable[[], None]]] = {}
        """Topics with a long delete in progress, and the deletes that wait for it."""

    def delete(self, name: str, selector: DeleteSelector, done: DeleteDone) -> None:
        core = self._core
        core.check_accepting()
        topic = core.existing(name)
        core.expire(topic)
        # A delete applies to the current records only: later records stay, regardless of their tag.
        below = topic.head + 1
        if selector.before_seq is not None:
            below = min(below, selector.before_seq)
        if selector.match is None:
            self.log(topic, below, [], (), None, done)
        else:
            self._delete_matching(topic, selector.match, below, done)

    def _delete_matching(self, topic: Topic, match: TagMatch, below: int, done: DeleteDone) -> None:
        waiting = self._long.get(topic.id)
        if waiting is not None:
            # One after the other: records deleted by the first are not counted again by the second.
            waiting.append(lambda: self._begin_long(topic, match, below, done))
            return
        ranges: list[SeqRange] = []
        is_long = topic.tail_count > _TAIL_RECORDS
        if not is_long:
            ranges = as_ranges(find_in_tail(topic, match), below)
            is_long = len(ranges) > MANY_RANGES
        if is_long or any(one.has_tags and one.first_seq < below for one in topic.segments):
            self._long[topic.id] = deque()
            self._begin_long(topic, match, below, done)
        else:
            self.log(topic, 0, ranges, (), None, done)

    def _begin_long(self, topic: Topic, match: TagMatch, below: int, done: DeleteDone) -> None:
        def over(outcome: DeleteResult | TopicsError) -> None:
            try:
                done(outcome)
            finally:
                waiting = self._long[topic.id]
                if waiting:
                    waiting.popleft()()
                else:
                    del self._long[topic.id]

        LongDelete(self, self._core, self._background, topic, match, below, over).begin()

    def corrupt(self, topic: Topic, runs: Sequence[Run], damage: SegmentDamaged) -> CorruptSegmentError:
        for run in runs:
            if not isinstance(run, Segment):
                continue
            if damage.path.startswith(self._core.store.path(SegmentKey(topic.id, run.first_seq, run.cold))):
                return CorruptSegmentError(topic.name, run.first_seq, run.last_seq)
        return CorruptSegmentError(topic.name, topic.earliest, topic.head)

    def log(
        self, topic: Topic, before_seq: int, ranges: list[SeqRange], marks: Sequence[Marks], encoded: bytes | None,
        done: DeleteDone,
    ) -> None:  # fmt: skip
        path = self._core.path
        if path.logs_removals(topic):
            path.check(topic, frees=True)
        path.log(Delete(self._core, topic, before_seq, ranges, marks, encoded, done))


_Step = Callable[[], object]


class LongDelete:
    """A delete by tag in progress, which reads segments or marks many records."""

    def __init__(
        self, deleter: Deleter, core: EngineCore, background: Background, topic: Topic, match: TagMatch, below: int,
        done: DeleteDone,
    ) -> None:  # fmt: skip
        self._deleter = deleter
        self._core = core
        self._background = background
        self._topic = topic
        self._match = match
        self._below = below
        self._done = done
        self._runs: list[Run] = []
        self._ranges: list[SeqRange] = []
        """The deleted seqs of the tail."""
        self._marks: list[Marks] = []
        self._steps = self._work()
        self._running = False
        self._outcome: list[object] = []

    def begin(self) -> None:
        self._go_on(None)

    def _go_on(self, outcome: object) -> None:
        """Returns the results of a step. Without a loop one call runs all steps."""
        self._outcome.append(outcome)
        if self._running:
            return
        self._running = True
        try:
            while self._outcome:
                self._background(self._steps.send(self._outcome.pop()), self._go_on, self._topic.name)
        except StopIteration:
            pass
        except TopicsError as error:
            self._done(error)
        finally:
            self._running = False

    def _work(self) -> Generator[_Step, object, None]:
        self._check()
        self._plan()
        place = 0
        while place < len(self._runs):
            runs = self._next_runs(place)
            place += len(runs)
            outcome = yield self._look_into(runs)
            if isinstance(outcome, Exception):
                # Retention may have removed a file, or it went to the cold tier.
                runs = [run for run in runs if not isinstance(run, Segment) or self._topic.has_segment(run)]
                outcome = yield self._look_into(runs)
            self._take(runs, outcome)
        if len(self._ranges) > MANY_RANGES:
            yield from self._mark_tail()
        marks = self._marks
        pairs = [mark.pairs for mark in marks] + [array("Q", chain.from_iterable(self._ranges))]
        encoded = yield lambda: encode_pairs(pairs)
        self._check()
        assert isinstance(encoded, bytes)
        self._deleter.log(self._topic, 0, self._ranges, marks, encoded, self._done)

    def _plan(self) -> None:
        """The runs to search."""
        topic, below = self._topic, self._below
        if topic.tail_count > _TAIL_RECORDS:
            self._runs += topic.tail
        else:
            self._ranges = as_ranges(find_in_tail(topic, self._match), below)
            if len(self._ranges) > MANY_RANGES and topic.config.durability.logged:
                # One run instead of thousands: they are marked together.
                self._core.applier.cut_due.emit(topic)
                self._ranges = []
        segments = [one for one in topic.segments if one.has_tags and one.first_seq < below]
        self._runs = [*segments, *self._runs]

    def _next_runs(self, place: int) -> list[Run]:
        runs: list[Run] = []
        records = 0
        while place < len(self._runs) and len(runs) < _RUNS_A_STEP and records < _RECORDS_A_STEP:
            runs.append(self._runs[place])
            records += runs[-1].count
            place += 1
        return runs

    def _look_into(self, runs: list[Run]) -> _Step:
        """Returns a step that finds and counts the records of some runs. Flags are copied here, on the loop."""
        core, topic, match, below = self._core, self._topic, self._match, self._below
        fresh = [(run, Marks(run, b"", topic.earliest)) for run in runs]

        def look() -> list[Marks]:
            found = []
            for run, marks in fresh:
                indices = find_in_run(core.store, topic.id, run, match)
                mask = bytearray(run.count)
                for index in indices:
                    mask[index] = DELETED
                if run.last_seq >= below:
                    mask[below - run.first_seq :] = bytes(run.last_seq + 1 - below)
                if indices:
                    marks.mask = bytes(mask)
                    marks.weigh(core.reader, topic.id, run)
                    found.append(marks)
            return found

        return look

    def _mark_tail(self) -> Generator[_Step, object, None]:
        """The records found in the tail of an ephemeral topic, block by block."""
        topic, reader, place = self._topic, self._core.reader, 0
        fresh = list(marks_of(topic.runs_from(self._ranges[0][0]), self._ranges, topic.earliest))
        self._ranges = []
        while place < len(fresh):
            some = fresh[place : place + _RUNS_A_STEP]
            place += len(some)

            def weigh(some: list[tuple[Run, Marks]] = some) -> list[Marks]:
                for run, marks in some:
                    marks.weigh(reader, topic.id, run)
                return [marks for _, marks in some]

            self._take([], (yield weigh))

    def _take(self, runs: list[Run], outcome: object) -> None:
        if isinstance(outcome, SegmentDamaged):
            raise self._deleter.corrupt(self._topic, runs, outcome)
        if isinstance(outcome, TopicsError):
            raise outcome
        if not isinstance(outcome, list):
            raise TopicsError(f"a look-up by tag failed: {outcome}")
        self._check()
        self._marks += [marks for marks in outcome if marks.live]

    def _check(self) -> None:
        self._core.check_accepting()
        if not self._core.exists(self._topic) or self._topic.closing:
            raise TopicNotFoundError(self._topic.name)
