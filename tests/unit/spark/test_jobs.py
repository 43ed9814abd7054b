"""The one job of a round: the order of its tasks, and the parts in which it is published."""

from collections.abc import Iterator, Sequence

import msgspec
import pytest

from topics.spark.pipeline.jobs import JobFailedError, Part, RoundJob, WorkersUnavailableError, job_description
from topics.spark.pipeline.products import Chore, SegmentRequest
from topics.spark.pipeline.segment_scan import ChoreWork, Piece, PieceOutcome, SegmentWork
from topics.spark.pipeline.task_packing import longest_first, weight
from topics.spark.segment_reader import SegmentRef


def reading(topic_id: int, size: int) -> Piece:
    ref = SegmentRef(f"t{topic_id}", topic_id, 1, 1, 1, size, cold=False, from_seq=1, to_seq=1, from_ts=0, to_ts=0)
    return Piece(
        "data", None, {"archive": b"", "families": b""}, segments=[SegmentWork([("families", SegmentRequest(ref))])]
    )


def merging(size: int) -> Piece:
    return Piece("data", None, {"families": b""}, chores=[ChoreWork("families", Chore("t1", 1, b"", size))])


class Told:
    """An executor whose tasks end in this order; then its job fails, if the test requires it. An outcome has the
    place."""

    def __init__(self, *places: int, fails: JobFailedError | None = None) -> None:
        self._places = places
        self._fails = fails
        self.abouts: list[str] = []

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        self.abouts.append(about)
        fails, self._fails = self._fails, None
        for place in self._places if len(self.abouts) == 1 else range(len(works)):
            yield place, msgspec.msgpack.encode(PieceOutcome(records=place))
        if fails is not None:
            raise fails

    def probe(self) -> None:
        """All is well."""


def published(parts: Iterator[Part]) -> list[list[int]]:
    return [[outcome.records for outcome in part.outcomes] for part in parts]


def run(executor: Told, pieces: Sequence[Piece], commit_bytes: int = 1) -> Iterator[Part]:
    return RoundJob(executor, pieces, 7).parts(commit_bytes, lambda done: None, lambda error: None)


def test_largest_chores_start_first_on_half_of_the_cores() -> None:
    pieces = [reading(1, 7), reading(2, 8), merging(5), merging(90), merging(20)]
    assert [weight(piece) for piece in longest_first(pieces, cores=2)] == [90, 7, 8, 20, 5]
    assert [weight(piece) for piece in longest_first(pieces, cores=5)] == [90, 20, 7, 8, 5]
    assert [weight(piece) for piece in longest_first(pieces, cores=1)] == [7, 8, 90, 20, 5]


def test_segments_are_published_in_order_and_chores_as_they_finish() -> None:
    pieces = [merging(90), reading(1, 10), reading(2, 10), reading(3, 10), merging(20)]
    assert published(run(Told(3, 2, 4, 1, 0), pieces)) == [[4], [1, 2, 3], [0], []]
    # A part is as large as a commit should be at least, and the rest comes in the end.
    assert published(run(Told(1, 2, 3, 4, 0), pieces, 20)) == [[1, 2], [3, 4], [0], []]
    assert published(run(Told(1, 2, 3, 4, 0), pieces, 1000)) == [[1, 2, 3, 4, 0]]


def test_failed_job_publishes_finished_pieces_before_bisection() -> None:
    pieces = [reading(1, 10), reading(2, 10), reading(3, 10)]
    executor = Told(2, 0, fails=JobFailedError("the worker died"))
    parts = run(executor, pieces, 1000)
    assert [outcome.records for outcome in next(parts).outcomes] == [0, 2]
    assert len(executor.abouts) == 1
    [rest] = parts
    assert (len(rest.outcomes), rest.failures, rest.unavailable) == (1, [], None)
    assert executor.abouts[1:] == [f"{job_description(7, pieces[1:2])}, to find what failed"]


def test_last_piece_of_a_bisection_must_fail_twice_alone() -> None:
    pieces = [reading(1, 10), reading(2, 10)]
    failures = [JobFailedError("one"), JobFailedError("two"), JobFailedError("three")]

    class Failing(Told):
        def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
            self._places = (0,) if len(works) > 1 else ()
            self._fails = failures.pop(0)
            self.abouts.clear()
            return super().run(works, about)

    *_, last = run(Failing(), pieces, 1000)
    assert [failure.topic for _, failure in last.failures] == ["t2"]
    assert not failures


def test_unavailable_workers_end_a_round_with_the_finished_pieces() -> None:
    failure = WorkersUnavailableError("failed to connect back")
    executor = Told(1, fails=failure)
    done, last = run(executor, [reading(1, 10), reading(2, 10)], 1000)
    assert [outcome.records for outcome in done.outcomes] == [1]
    assert (last.outcomes, last.unavailable) == ([], failure)
    assert len(executor.abouts) == 1


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([reading(1, 3_000_000), reading(1, 1_000_000), reading(2, 1), merging(2_000_000)],
         "topics pipeline round 12: archive and families of 2 topics, 1 chores, 6 MB in 4 tasks"),
        ([merging(1)], "topics pipeline round 12: families of 0 topics, 1 chores, 0 MB in 1 tasks"),
    ],
)  # fmt: skip
def test_job_description(pieces: list[Piece], words: str) -> None:
    assert job_description(12, pieces) == words
