"""Sealing: tails become segments, in the background.

A tail that is large or old enough is cut: its blocks move into a `Segment` in memory, and a job writes the files. Until
they are written, reads use the blocks; afterwards they use the files, and the memory is freed. If the files cannot be
written the blocks stay, nothing is lost, and the attempt is repeated later.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from topics.engine.background_jobs import Job, JobRunner, OffLoop
from topics.engine.core import EngineCore
from topics.engine.read import collect_tags
from topics.engine.topic import Block, Segment, Topic
from topics.log.segment import SegmentHead
from topics.log.segment_files import SegmentDraft, SegmentKey
from topics.model.errors import ThrottledError
from topics.model.records import ROW_BYTES
from topics.system.events import Event
from topics.wire.record_slicing import View

_BACKLOG_BYTES = 32 * 1024 * 1024
"""The payload waiting to be sealed above which the log's writers are paused until sealing has caught up.

Segments being written do not count: a single segment may be larger than this.
"""

_log = logging.getLogger(__name__)


class Unlisted(NamedTuple):
    """Sealed segments that the catalog does not name yet."""

    segments: int
    bytes: int
    oldest_ts: int | None
    """The commit time of their oldest record; None if there are none."""
    records: int = 0


ContentSize = Callable[[View, int, int], int]
"""Returns the bytes of a range of a view's records in the form that readers get."""


def _as_stored(topic: Topic) -> ContentSize | None:
    """Readers get the stored records."""
    return None


class Sealer:
    def __init__(self, core: EngineCore, runner: JobRunner) -> None:
        self._core = core
        self._runner = runner
        self._waiting: deque[tuple[Topic, Segment, bytes]] = deque()
        """Segments to be written, each with its flags at the time of the cut.

        Later deletes are written into the file at a checkpoint, after the sync of their frames: a file's flags must
        never have a delete that a crash can still remove from the log.
        """
        self._running = False
        self._idle: list[Callable[[object], None]] = []
        self._watching: list[Callable[[], None]] = []
        self._unlisted: list[tuple[Topic, Segment]] = []
        """Segments cut since the catalog was last published, which the pipeline does not have yet."""
        self.content_size: Callable[[Topic], ContentSize | None] = _as_stored
        """The function that measures the records of a topic, if readers do not get the stored form."""
        self.backlog_bytes = 0
        self.failures = 0
        self.backlog_changed: Event[bool] = Event()
        """Pauses (True) or resumes (False) the log's writers."""
        core.applier.cut_due.subscribe(self.cut)
        core.applier.appended.subscribe(self.after_append)

    def _hold_back(self, held: bool) -> None:
        self.backlog_changed.emit(held)

    def use(self, runner: JobRunner) -> None:
        self._runner = runner

    def after_append(self, topic: Topic) -> None:
        options = self._core.options
        large = topic.tail_count >= options.segment_max_events or topic.tail_bytes >= options.segment_max_bytes
        if large and topic.config.durability.logged:
            self.cut(topic)

    def cut(self, topic: Topic) -> None:
        """Turns the tail into segments: one, unless its seqs or its text coordinate have a gap."""
        made = [Segment.of_blocks(blocks) for blocks in _unbroken_groups(topic)]
        segments = [segment for segment in made if segment.live]
        topic.segments += segments
        if self._core.exists(topic):
            self._core.retention.tail_bytes -= topic.tail_bytes
        topic.tail = []
        topic.tail_count = topic.tail_bytes = 0
        topic.tags = None
        # Last, because listeners may read the topic immediately.
        for segment in segments:
            self._unlisted.append((topic, segment))
            self.backlog_bytes += _memory(segment)
            self._waiting.append((topic, segment, bytes(segment.flags or segment.count)))
        if self._behind_bytes > _BACKLOG_BYTES:
            self._hold_back(True)
        self.resume()

    @property
    def _behind_bytes(self) -> int:
        return self.backlog_bytes - (_memory(self._waiting[0][1]) if self._waiting else 0)

    def resume(self) -> None:
        """Starts writing, or restarts after a failure."""
        if self._waiting and not self._running:
            self._running = True
            self._runner.start(self._seal_all())

    def listed(self) -> None:
        """Handles a published catalog: it names every segment that its checkpoint synced."""
        self._unlisted = [pair for pair in self._unlisted if not pair[1].synced and self._is_needed(*pair)]

    def unlisted(self) -> Unlisted:
        """Counts segments that are sealed, or about to be, and not in the catalog."""
        segments = [segment for _, segment in self._unlisted]
        size = sum([segment.text_bytes for segment in segments])
        oldest = min([segment.first_ts for segment in segments], default=None)
        return Unlisted(len(segments), size, oldest, sum([segment.count for segment in segments]))

    def when_idle(self, then: Callable[[object], None]) -> None:
        """Calls back when all segments cut so far are written, or with the error that prevented it."""
        if not self._waiting and not self._running:
            then(None)
        else:
            self._idle.append(then)
            self.resume()

    def is_behind(self, topic: Topic | None, nbytes: int) -> bool:
        """Returns whether an append of this size should be delayed: it would cut the topic's tail while an earlier
        segment is still being written, and finally the writers of all topics would be paused."""
        if not self._running or topic is None or not topic.config.durability.logged:
            return False
        return topic.tail_bytes + nbytes >= self._core.options.segment_max_bytes

    def when_written(self, then: Callable[[], None]) -> None:
        """Calls back when the current segment is written, or could not be."""
        self._watching.append(then)

    def _notify_written(self) -> None:
        watching, self._watching = self._watching, []
        for then in watching:
            then()

    def check_room(self) -> None:
        """Refuses writes if sealing fails for so long that memory would fill up."""
        if self.failures and self.backlog_bytes > 4 * _BACKLOG_BYTES:
            raise ThrottledError.under_pressure(retry_after_ms=1000)

    def _seal_all(self) -> Job:
        failure: object = None
        while self._waiting:
            topic, segment, flags = self._waiting[0]
            if segment.named or self._is_needed(topic, segment):
                measure = self.content_size(topic)
                try:
                    yield OffLoop(partial(self._write, topic, segment, flags, measure))
                except OSError as error:
                    failure = error
                    break
                self._written(topic, segment)
                segment.blocks = None
                # It adds no records, but watchers of a stream's storage state are notified of it.
                self._core.wake(topic)
            # A segment without live records keeps its blocks, because a planned read may still use them.
            self._waiting.popleft()
            self.backlog_bytes -= _memory(segment)
            if self._behind_bytes <= _BACKLOG_BYTES // 2:
                self._hold_back(False)
            self._notify_written()
        self._running = False
        if failure is not None:
            self.failures += 1
            self._hold_back(False)
            self._notify_written()
            _log.error("segment write failed", extra={"error": str(failure)})
        elif self._waiting:
            self.resume()
            return
        else:
            self.failures = 0
        idle, self._idle = self._idle, []
        for then in idle:
            then(failure)

    def _is_needed(self, topic: Topic, segment: Segment) -> bool:
        return self._core.exists(topic) and topic.has_segment(segment)

    def _write(self, topic: Topic, segment: Segment, flags: bytes, measure: ContentSize | None) -> None:
        self._core.store.write(_draft(topic, segment, flags))
        if measure is not None and segment.blocks is not None:
            segment.content_bytes = sum([measure(block.view, 0, block.count) for block in segment.blocks])

    def _written(self, topic: Topic, segment: Segment) -> None:
        if not self._is_needed(topic, segment):
            # Its last live record or its topic was deleted while it was being written.
            self._core.trash.append(SegmentKey(topic.id, segment.first_seq))
        elif not segment.flag_changes:
            segment.flags = None


def _unbroken_groups(topic: Topic) -> list[list[Block]]:
    """Groups the tail's blocks into segments."""
    if _is_unbroken(topic):
        return [topic.tail]
    groups: list[list[Block]] = []
    for block in topic.tail:
        last = groups[-1][-1] if groups else None
        if last is not None and block.base == last.next_base and block.first_seq == last.last_seq + 1:
            groups[-1].append(block)
        else:
            groups.append([block])
    return groups


def _is_unbroken(topic: Topic) -> bool:
    """Returns whether the tail's blocks are contiguous, judged by its ends and its sums.

    Seqs only increase, so there is a gap exactly if the ends are further apart than the sum of the counts. The text
    coordinate only increases or restarts at zero.
    """
    tail = topic.tail
    if not tail:
        return False
    first, last = tail[0], tail[-1]
    text_bytes = topic.tail_bytes - ROW_BYTES * topic.tail_count
    return last.last_seq - first.first_seq + 1 == topic.tail_count and (
        last.next_base - first.base == text_bytes + len(tail)
    )


def _memory(segment: Segment) -> int:
    return segment.text_bytes


def _draft(topic: Topic, segment: Segment, flags: bytes) -> SegmentDraft:
    """Assembles a segment from immutable blocks; runs off the loop."""
    blocks = segment.blocks
    assert blocks is not None
    tags: dict[bytes, list[int]] = {}
    first = segment.first_seq
    if segment.has_tags:
        for block in blocks:
            collect_tags(block, block.first_seq - first, tags)
    starts = [(block.first_seq - first, block.ts) for block in blocks]
    written = [block.written for block in blocks]
    head = SegmentHead(
        topic.id, topic.epoch, segment.first_seq, segment.payload_bytes, segment.first_ts, segment.last_ts,
        segment.count, blocks[0].base, segment.text_bytes, segment.traits, topic.name,
    )  # fmt: skip
    return SegmentDraft(
        head, [block.text for block in blocks], [block.rows for block in blocks], starts, tags, flags, written
    )
