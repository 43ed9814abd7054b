"""The one job of a round: what comes of it, in parts that are worth a commit each, and what is done when it fails.

Outcomes come as tasks end. Those of segments are published in the order of their pieces, so that a topic grows in the
order of its seqs, and those of chores at once. A kill costs what has not been published by then: about `commit_bytes`,
and the tasks that were under way.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from topics.spark.pipeline.culprits import JobFailedError, Runs, WorkersUnavailableError, take_apart
from topics.spark.pipeline.products import Failure
from topics.spark.pipeline.scanning import Piece, PieceOutcome, decode_outcome, encode_piece
from topics.spark.pipeline.waiting import weight

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
