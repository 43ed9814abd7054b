"""Job of a round: yields its outcomes in parts of about one commit each, and bisects a job that failed.

Outcomes arrive as tasks end. Outcomes of segments are published in the order of their pieces, so that a topic grows in
seq order; outcomes of chores are published immediately. A kill loses what is not published yet: about `commit_bytes`,
and running tasks.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from topics.model.errors import TopicsError
from topics.spark.pipeline.products import Failure
from topics.spark.pipeline.segment_scan import Piece, PieceOutcome, SegmentWork, decode_outcome, encode_piece
from topics.spark.pipeline.task_packing import weight

# Failure bisection: finds the work that makes a job fail as a whole.
#
# Work that kills its worker process fails the job for every piece that was not done yet. The unfinished pieces are
# halved and run again, down to one segment of one topic for one product, or one chore: a bad topic among ten thousand
# costs some thirty jobs. The last piece is reported as a failure when it fails twice alone, and an empty job between
# the two attempts succeeds. A task that only ran out of memory is done in parts, without a failure.


class JobFailedError(TopicsError):
    """A job failed as a whole; which piece caused it is unknown."""


class WorkersUnavailableError(JobFailedError):
    """No worker process started. This proves nothing about the work: the round is tried again later."""


class JobRunner(Protocol):
    """The part of an executor that runs jobs."""

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]: ...

    def probe(self) -> None: ...


class FailureBisection(msgspec.Struct):
    """The result of a bisection: outcomes of the pieces that succeeded, and the failures by product."""

    about: str = ""
    outcomes: list[PieceOutcome] = []
    failures: list[tuple[str, Failure]] = []
    failed_topics: set[tuple[str, int]] = set()
    """Products and topics with a failed segment: their other segments are not searched."""
    unavailable: WorkersUnavailableError | None = None
    """Set when no worker starts any more: earlier outcomes are valid, and the rest has not failed."""


def bisect_failure(executor: JobRunner, pieces: Sequence[Piece], alone: bool, about: str = "") -> FailureBisection:
    """Runs the unfinished pieces of a failed job, in jobs named `about`; `alone` if the job had one piece."""
    bisection = FailureBisection(about)
    try:
        _bisect(executor, list(pieces), alone, bisection)
    except WorkersUnavailableError as error:
        bisection.unavailable = error
    return bisection


def _bisect(executor: JobRunner, pieces: list[Piece], alone: bool, bisection: FailureBisection) -> None:
    if len(pieces) > 1:
        middle = len(pieces) // 2
        parts = [pieces[:middle], pieces[middle:]]
    elif not alone:
        # The other pieces were done when the job failed. That does not prove the failure yet.
        parts = [pieces]
    else:
        parts = [[half] for half in split_piece(pieces[0])]
        if len(parts) == 1:
            _run_single(executor, pieces[0], bisection)
            return
    for part in parts:
        if len(part) == 1 and _single_topic(part[0]) in bisection.failed_topics:
            continue
        left = dict(enumerate(part))
        try:
            _run(executor, left, bisection)
        except WorkersUnavailableError:
            raise
        except JobFailedError:
            if left:
                _bisect(executor, list(left.values()), len(part) == 1, bisection)


def _run_single(executor: JobRunner, piece: Piece, bisection: FailureBisection) -> None:
    executor.probe()
    left = {0: piece}
    try:
        _run(executor, left, bisection)
    except WorkersUnavailableError:
        raise
    except JobFailedError as error:
        if not left:
            return
        bisection.failures.append(_failure_of(piece, str(error)))
        sole = _single_topic(piece)
        if sole is not None:
            bisection.failed_topics.add(sole)


def _run(executor: JobRunner, left: dict[int, Piece], bisection: FailureBisection) -> None:
    """Runs pieces by their places and removes those that are done from `left`, also when the job fails."""
    for place, outcome in executor.run([encode_piece(piece) for piece in left.values()], bisection.about):
        del left[place]
        bisection.outcomes.append(decode_outcome(outcome))


def split_piece(piece: Piece) -> list[Piece]:
    """Splits a piece; returns the piece itself when it is one segment for one product, or one chore."""
    if piece.segments and piece.chores:
        return [msgspec.structs.replace(piece, chores=[]), msgspec.structs.replace(piece, segments=[])]
    if len(piece.chores) > 1:
        middle = len(piece.chores) // 2
        return [msgspec.structs.replace(piece, chores=part) for part in (piece.chores[:middle], piece.chores[middle:])]
    topics: dict[int, list[SegmentWork]] = {}
    for work in piece.segments:
        topics.setdefault(work.topic_id, []).append(work)
    if len(topics) > 1:
        runs = list(topics.values())
        middle = len(runs) // 2
        return [
            msgspec.structs.replace(piece, segments=[work for run in part for work in run])
            for part in (runs[:middle], runs[middle:])
        ]
    products = sorted({name for work in piece.segments for name, _ in work.requests})
    if len(products) > 1:
        return [msgspec.structs.replace(piece, segments=_only(piece.segments, product)) for product in products]
    if len(piece.segments) > 1:
        middle = len(piece.segments) // 2
        return [
            msgspec.structs.replace(piece, segments=part) for part in (piece.segments[:middle], piece.segments[middle:])
        ]
    return [piece]


def _single_topic(piece: Piece) -> tuple[str, int] | None:
    """Returns the product and the topic of a piece with one of each; None for others, and for chores."""
    found = {(name, work.topic_id) for work in piece.segments for name, _ in work.requests}
    return found.pop() if len(found) == 1 and not piece.chores else None


def _only(segments: Sequence[SegmentWork], product: str) -> list[SegmentWork]:
    requests = [[(name, request) for name, request in work.requests if name == product] for work in segments]
    return [SegmentWork(kept) for kept in requests if kept]


def _failure_of(piece: Piece, reason: str) -> tuple[str, Failure]:
    if piece.chores:
        [work] = piece.chores
        return work.product, Failure(work.chore.topic_id, work.chore.subject, reason)
    [product] = {name for work in piece.segments for name, _ in work.requests}
    return product, Failure(piece.segments[0].topic_id, piece.segments[0].topic, reason)


_MB = 1_000_000


class Part(msgspec.Struct):
    """A part of a round that can be published."""

    outcomes: list[PieceOutcome] = []
    failures: list[tuple[str, Failure]] = []
    unavailable: WorkersUnavailableError | None = None
    """Set in the last part when no worker starts any more. Unfinished pieces have not failed then."""


class RoundJob:
    def __init__(self, executor: JobRunner, pieces: Sequence[Piece], number: int) -> None:
        self._executor = executor
        self._pieces = pieces
        self.about = job_description(number, pieces)
        self.tasks = len(pieces)
        self.bytes = sum([weight(piece) for piece in pieces])
        self.bytes_done = 0
        self._number = number
        self._left = dict(enumerate(pieces))
        """Pieces without an outcome, by their places."""
        self._places = deque(place for place, piece in enumerate(pieces) if piece.segments)
        """The places of pieces with segments that are not published, in order."""
        self._unpublished: dict[int, PieceOutcome] = {}
        """Outcomes that wait for earlier pieces, by place."""

    def parts(
        self, commit_bytes: int, on_done: Callable[[int], None], on_failed: Callable[[JobFailedError], None]
    ) -> Iterator[Part]:
        """Runs the job. `on_done` receives the number of finished pieces, `on_failed` the error before a bisection."""
        part, size = Part(), 0
        works = [encode_piece(piece) for piece in self._pieces]
        failure: JobFailedError | None = None
        try:
            for place, outcome in self._executor.run(works, self.about):
                del self._left[place]
                self.bytes_done += weight(self._pieces[place])
                self._unpublished[place] = decode_outcome(outcome)
                on_done(len(self._pieces) - len(self._left))
                for ready in self._ready(place):
                    part.outcomes.append(self._unpublished.pop(ready))
                    size += weight(self._pieces[ready])
                if size >= commit_bytes:
                    yield part
                    part, size = Part(), 0
        except JobFailedError as error:
            failure = error
        # Published before the bisection, which takes a while.
        part.outcomes += [self._unpublished[place] for place in sorted(self._unpublished)]
        yield part
        if isinstance(failure, WorkersUnavailableError):
            yield Part(unavailable=failure)
        elif failure is not None and self._left:
            on_failed(failure)
            yield self._bisected()

    def _ready(self, place: int) -> Iterator[int]:
        """The places that can be published now that this outcome has arrived."""
        if not self._pieces[place].segments:
            yield place
        while self._places and self._places[0] in self._unpublished:
            yield self._places.popleft()

    def _bisected(self) -> Part:
        left = list(self._left.values())
        about = f"{job_description(self._number, left)}, to find what failed"
        bisection = bisect_failure(self._executor, left, alone=len(self._pieces) == 1, about=about)
        return Part(bisection.outcomes, bisection.failures, bisection.unavailable)


def job_description(number: int, pieces: Sequence[Piece]) -> str:
    """The name of a job in the Spark UI."""
    topics = {work.topic_id for piece in pieces for work in piece.segments}
    products = {name for piece in pieces for name in piece.task_contexts}
    chores = sum(len(piece.chores) for piece in pieces)
    size = sum(weight(piece) for piece in pieces) / _MB
    return (
        f"topics pipeline round {number}: {' and '.join(sorted(products))} of {len(topics)} topics, {chores} chores, "
        f"{size:.0f} MB in {len(pieces)} tasks"
    )
