"""Jobs in the log: finding those that are live, and cutting out their records.

Finding happens on the loop and looks at flags only. Cutting touches nothing that changes, so any thread can do it; it
is left to one where the cold folder has to be asked.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from topics.engine.lookup import SeqRange, as_ranges
from topics.engine.record_runs import Block, Run, RunReader, Segment, first_live
from topics.engine.topic import Topic
from topics.log.segment import DELETED
from topics.log.segment_files import UNREADABLE, SegmentDamaged
from topics.model.errors import CorruptSegmentError
from topics.model.limits import MAX_U64
from topics.model.records import words
from topics.queues.leases import Lease
from topics.queues.queue_messages import ClaimedJob
from topics.wire.record_slicing import Range

_DELETED = bytes((DELETED,))


class TopicJobs:
    """A topic's records as its queue looks at them (`queues.leases.JobLog`)."""

    __slots__ = ("_reader", "damaged", "topic")

    def __init__(self, topic: Topic, reader: RunReader) -> None:
        self.topic = topic
        self._reader = reader
        self.damaged: CorruptSegmentError | None = None
        """A segment that could not be looked into, and was passed over; whoever asked should hear of it."""

    def is_live(self, seq: int) -> bool:
        topic = self.topic
        if not topic.earliest <= seq <= topic.head:
            return False
        run = topic.run_from(seq)
        if run is None or run.first_seq > seq:
            return False
        try:
            flags = self._reader.flags(topic.id, run)
        except UNREADABLE:
            return True
        return flags is None or flags[seq - run.first_seq] != DELETED

    def live_from(self, seq: int, wanted: int) -> tuple[list[int], int]:
        topic = self.topic
        found: list[int] = []
        seq = max(seq, topic.earliest)
        while wanted:
            run = topic.run_from(seq)
            if run is None:
                return found, max(seq, topic.head + 1)
            first = run.first_seq
            try:
                flags = self._reader.flags(topic.id, run)
            except SegmentDamaged:
                self.damaged = CorruptSegmentError(topic.name, first, run.last_seq)
                seq = first + run.count
                continue
            lo = first_live(flags, max(seq - first, 0), run.count)
            hi = min(run.count, lo + wanted)
            if flags is not None and lo < hi:
                end = flags.find(_DELETED, lo, hi)
                hi = end if end >= 0 else hi
            found += range(first + lo, first + hi)
            wanted -= hi - lo
            seq = first + hi
        return found, seq


class Cut(NamedTuple):
    """Where jobs are: slices of runs, in the order of the seqs."""

    topic_name: str
    topic_id: int
    slices: list[tuple[Run, int, int]]

    @property
    def cold(self) -> bool:
        """Whether it would touch the cold folder, whose speed nobody knows."""
        return any([isinstance(run, Segment) and run.cold and run.blocks is None for run, _, _ in self.slices])


def plan_cut(topic: Topic, seqs: Sequence[int]) -> Cut:
    """Where the jobs are that were just found; `seqs` ascend."""
    slices: list[tuple[Run, int, int]] = []
    for first, last in ranges_of(seqs):
        seq = first
        while seq <= last:
            run = topic.run_from(seq)
            assert run is not None
            lo, hi = seq - run.first_seq, min(last + 1 - run.first_seq, run.count)
            slices.append((run, lo, hi))
            seq = run.first_seq + hi
    return Cut(topic.name, topic.id, slices)


def ranges_of(seqs: Sequence[int]) -> list[SeqRange]:
    """Seqs of jobs, each once, as ranges: mostly all of them stand beside each other."""
    first, last = min(seqs), max(seqs)
    return [(first, last)] if last - first == len(seqs) - 1 else as_ranges(seqs, MAX_U64)


def execute_cut(cut: Cut, reader: RunReader) -> list[bytes]:
    """The jobs' fragments, one for each seq. Raises CorruptSegmentError for the first that cannot be read."""
    fragments: list[bytes] = []
    for run, lo, hi in cut.slices:
        if isinstance(run, Block):
            fragments += _of_block(run, lo, hi)
            continue
        try:
            for view, view_lo, view_hi, _ in reader.views(cut.topic_id, run, lo, hi):
                text, bias = view.text, view.bias
                starts = [start - bias for start in view.rows[3 * view_lo : 3 * view_hi : 3].tolist()]
                ends = [*starts[1:], view.start(view_hi)]
                fragments += [bytes(text[start : end - 1]) for start, end in zip(starts, ends, strict=True)]
        except SegmentDamaged as damage:
            first, last = _within((damage.first, damage.last), lo, hi)
            raise CorruptSegmentError(cut.topic_name, run.first_seq + first, run.first_seq + last) from damage
    return fragments


def _of_block(block: Block, lo: int, hi: int) -> list[bytes]:
    """The same of a block in memory, which needs no view: nearly every job is claimed while it is in one."""
    text, base = block.text, block.base
    if block.count == 1:
        return [bytes(text)]
    starts = words(block.rows)[3 * lo : 3 * hi + 1 : 3].tolist()
    if hi == block.count:
        starts.append(base + len(text) + 1)
    # An end points past the comma.
    return [bytes(text[start - base : end - base - 1]) for start, end in pairwise(starts)]


def _within(damaged: Range, lo: int, hi: int) -> Range:
    """The part of a slice that cannot be read; all of it where the damage does not say."""
    first, last = max(damaged[0], lo), min(damaged[1], hi - 1)
    return (first, last) if first <= last else (lo, hi - 1)


def claimed_jobs(leases: Sequence[Lease], fragments: Sequence[bytes], told: Callable[[int], int]) -> list[ClaimedJob]:
    """The jobs as their worker gets them: the stored fragment with the lease put before its closing brace.

    All leases end at the same moment, which `told` makes one of the clock on the wall.
    """
    deadline = told(leases[0].deadline)
    return [
        ClaimedJob(
            lease.seq, lease.token, deadline, lease.deliveries,
            b'%b,"lease_id":"lease_%016x","deadline":%d,"deliveries":%d}'
            % (fragment[:-1], lease.token, deadline, lease.deliveries),
        )
        for lease, fragment in zip(leases, fragments, strict=True)
    ]  # fmt: skip
