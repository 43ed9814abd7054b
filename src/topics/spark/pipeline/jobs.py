"""The one job of a round: what comes of it, in parts that are worth a commit each, and what is done when it fails.

Outcomes come as tasks end. Those of segments are published in the order of their pieces, so that a topic grows in the
order of its seqs, and those of chores at once. A kill costs what has not been published by then: about `commit_bytes`,
and the tasks that were under way.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from topics.spark.pipeline.products import Failure
from topics.spark.pipeline.segment_scan import Piece, PieceOutcome, SegmentWork, decode_outcome, encode_piece
from topics.spark.pipeline.task_packing import weight

# A job that failed as a whole, taken apart until it is known who is to blame.
#
# What takes its whole process down spoils the job for everybody who was not done by then. The rest is halved, and what
# fails of it again, down to one segment of one topic for one product, or to one chore: so a culprit among ten thousand
# topics costs some thirty jobs and not ten thousand. Whoever is left is to blame when it fails twice alone, and a job
# without any work between the two does not. A task that only had too much to hold in memory is done in parts, and
# nobody is to blame for it.


class JobFailedError(Exception):
    """A job failed as a whole, so that nobody can tell which piece was to blame."""


class WorkersUnavailableError(JobFailedError):
    """No process came up that could do any work. That says nothing about the work: the round is tried again later."""


class Runs(Protocol):
    """The part of an executor that is needed here."""

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]: ...

    def probe(self) -> None: ...


class FailureBisection(msgspec.Struct):
    """What came of it: outcomes of those who are well, and those who are to blame."""

    about: str = ""
    outcomes: list[PieceOutcome] = []
    culprits: list[tuple[str, Failure]] = []
    blamed: set[tuple[str, int]] = set()
    """Topics of products that have a culprit among their segments: there is no need to find the others."""
    ailing: WorkersUnavailableError | None = None
    """Set when no worker came up any more: what is done by then counts, and nobody is to blame for the rest."""


def take_apart(executor: Runs, pieces: Sequence[Piece], alone: bool, about: str = "") -> FailureBisection:
    """Does what is left of a job that failed, in jobs that are known as `about`; `alone` if the job had one piece."""
    search = FailureBisection(about)
    try:
        _halve(executor, list(pieces), alone, search)
    except WorkersUnavailableError as error:
        search.ailing = error
    return search


def _halve(executor: Runs, pieces: list[Piece], alone: bool, search: FailureBisection) -> None:
    if len(pieces) > 1:
        middle = len(pieces) // 2
        parts = [pieces[:middle], pieces[middle:]]
    elif not alone:
        # The others were done when the job failed. That is no proof yet.
        parts = [pieces]
    else:
        parts = [[half] for half in halves(pieces[0])]
        if len(parts) == 1:
            _alone(executor, pieces[0], search)
            return
    for part in parts:
        if len(part) == 1 and _sole(part[0]) in search.blamed:
            continue
        left = dict(enumerate(part))
        try:
            _run(executor, left, search)
        except WorkersUnavailableError:
            raise
        except JobFailedError:
            if left:
                _halve(executor, list(left.values()), len(part) == 1, search)


def _alone(executor: Runs, piece: Piece, search: FailureBisection) -> None:
    executor.probe()
    left = {0: piece}
    try:
        _run(executor, left, search)
    except WorkersUnavailableError:
        raise
    except JobFailedError as error:
        if not left:
            return
        search.culprits.append(_blamed(piece, str(error)))
        sole = _sole(piece)
        if sole is not None:
            search.blamed.add(sole)


def _run(executor: Runs, left: dict[int, Piece], search: FailureBisection) -> None:
    """Runs pieces by their places. What is done is no longer left, also when the job fails in the end."""
    for place, outcome in executor.run([encode_piece(piece) for piece in left.values()], search.about):
        del left[place]
        search.outcomes.append(decode_outcome(outcome))


def halves(piece: Piece) -> list[Piece]:
    """Parts of a piece's work; the piece itself when it is one segment for one product, or one chore."""
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
    products = sorted({name for work in piece.segments for name, _ in work.wants})
    if len(products) > 1:
        return [msgspec.structs.replace(piece, segments=_only(piece.segments, product)) for product in products]
    if len(piece.segments) > 1:
        middle = len(piece.segments) // 2
        return [
            msgspec.structs.replace(piece, segments=part) for part in (piece.segments[:middle], piece.segments[middle:])
        ]
    return [piece]


def _sole(piece: Piece) -> tuple[str, int] | None:
    """The product and the topic of a piece that is for one of each; None for others, and for chores."""
    found = {(name, work.topic_id) for work in piece.segments for name, _ in work.wants}
    return found.pop() if len(found) == 1 and not piece.chores else None


def _only(segments: Sequence[SegmentWork], product: str) -> list[SegmentWork]:
    wants = [[(name, want) for name, want in work.wants if name == product] for work in segments]
    return [SegmentWork(kept) for kept in wants if kept]


def _blamed(piece: Piece, reason: str) -> tuple[str, Failure]:
    if piece.chores:
        [work] = piece.chores
        return work.product, Failure(work.chore.topic_id, work.chore.subject, reason)
    [product] = {name for work in piece.segments for name, _ in work.wants}
    return product, Failure(piece.segments[0].topic_id, piece.segments[0].topic, reason)


_MB = 1_000_000


class Part(msgspec.Struct):
    """Something of a round that can be published."""

    outcomes: list[PieceOutcome] = []
    culprits: list[tuple[str, Failure]] = []
    ailing: WorkersUnavailableError | None = None
    """Set when no worker came up any more. It is the last part then, and nobody is to blame for what is not done."""


class RoundJob:
    def __init__(self, executor: Runs, pieces: Sequence[Piece], number: int) -> None:
        self._executor = executor
        self._pieces = pieces
        self._number = number
        self._left = dict(enumerate(pieces))
        """Pieces without an outcome, by their places."""
        self._places = deque(place for place, piece in enumerate(pieces) if piece.segments)
        """Of the pieces with segments that are not published."""
        self._early: dict[int, PieceOutcome] = {}
        """Outcomes that others have to be published before."""

    def parts(
        self, commit_bytes: int, on_done: Callable[[int], None], on_failed: Callable[[JobFailedError], None]
    ) -> Iterator[Part]:
        """Runs it. `on_done` hears how many pieces are done, `on_failed` that the rest has to be taken apart."""
        part, size = Part(), 0
        works = [encode_piece(piece) for piece in self._pieces]
        failure: JobFailedError | None = None
        try:
            for place, outcome in self._executor.run(works, described(self._number, self._pieces)):
                del self._left[place]
                self._early[place] = decode_outcome(outcome)
                on_done(len(self._pieces) - len(self._left))
                for ready in self._ready(place):
                    part.outcomes.append(self._early.pop(ready))
                    size += weight(self._pieces[ready])
                if size >= commit_bytes:
                    yield part
                    part, size = Part(), 0
        except JobFailedError as error:
            failure = error
        # Before the rest is taken apart, which takes a while.
        part.outcomes += [self._early[place] for place in sorted(self._early)]
        yield part
        if isinstance(failure, WorkersUnavailableError):
            yield Part(ailing=failure)
        elif failure is not None and self._left:
            on_failed(failure)
            yield self._taken_apart()

    def _ready(self, place: int) -> Iterator[int]:
        """What can be published now that the outcome of this piece is there."""
        if not self._pieces[place].segments:
            yield place
        while self._places and self._places[0] in self._early:
            yield self._places.popleft()

    def _taken_apart(self) -> Part:
        left = list(self._left.values())
        about = f"{described(self._number, left)}, to find what failed"
        search = take_apart(self._executor, left, alone=len(self._pieces) == 1, about=about)
        return Part(search.outcomes, search.culprits, search.ailing)


def described(number: int, pieces: Sequence[Piece]) -> str:
    """What Spark's pages call a job."""
    topics = {work.topic_id for piece in pieces for work in piece.segments}
    products = {name for piece in pieces for name in piece.charges}
    chores = sum(len(piece.chores) for piece in pieces)
    size = sum(weight(piece) for piece in pieces) / _MB
    return (
        f"topics pipeline round {number}: {' and '.join(sorted(products))} of {len(topics)} topics, {chores} chores, "
        f"{size:.0f} MB in {len(pieces)} tasks"
    )
