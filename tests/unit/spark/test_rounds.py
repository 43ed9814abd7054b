"""Rounds: what is told about them, and how a job that fails as a whole is taken apart."""

from collections.abc import Callable, Sequence

from tests.unit.spark.archives import ROOT, archived
from tests.unit.spark.folders import Folder
from topics.spark.archive.planning import ArchiveRules
from topics.spark.pipeline.archiving import ArchiveProduct
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.products import Piece
from topics.spark.pipeline.rounds import JobFailedError, Pipeline
from topics.spark.pipeline.status import PipelineStatus, load_status, quarantine
from topics.storage.replaced import replace_file
from topics.testing import SeededDice


class Fragile:
    """Fails as a whole while a topic is in the job, as a task does that takes its process down."""

    def __init__(self, folder: Folder, topic: bytes) -> None:
        self._inner = InlineExecutor(folder.disk)
        self._topic = topic
        self.jobs = 0

    def run(self, pieces: Sequence[Piece], on_done: Callable[[int], None]) -> list[bytes]:
        self.jobs += 1
        if any(self._topic in piece.work for piece in pieces):
            raise JobFailedError("the worker died")
        return self._inner.run(pieces, on_done)


def test_a_topic_that_kills_the_job_is_found_and_left_out() -> None:
    folder = Folder()
    for name in ("good", "deadly", "fine"):
        folder.append(name, 1)
    folder.seal()
    executor = Fragile(folder, b"deadly")
    product = ArchiveProduct(folder.disk, folder.layout, ROOT, ArchiveRules(), SeededDice(1))
    made = Pipeline(folder.disk, folder.layout, [product], executor, folder.clock)
    assert made.round()
    assert [one.topic for one in made.status.quarantined] == ["deadly"]
    assert archived(folder.disk, "good") == archived(folder.disk, "fine") == {1: "1"}
    jobs = executor.jobs
    assert not made.round()
    assert executor.jobs == jobs


def test_the_status_tells_what_was_done_and_survives_the_process() -> None:
    folder = Folder()
    folder.append("orders", *range(10))
    folder.seal()
    product = ArchiveProduct(folder.disk, folder.layout, ROOT, ArchiveRules(), SeededDice(1))
    made = Pipeline(folder.disk, folder.layout, [product], InlineExecutor(folder.disk), folder.clock)
    seen: list[tuple[int, int]] = []
    made.on_progress = lambda done, total: seen.append((done, total))
    assert made.round()
    assert seen == [(1, 1)]
    assert not made.round()
    status = load_status(folder.disk, folder.layout)
    assert status == made.status
    assert (status.running, status.rounds, status.records, status.segments, status.lag_segments) == (False, 1, 10, 1, 0)
    assert status.last_run is not None
    assert (status.last_run.records, status.last_run.segments) == (10, 1)


def test_a_status_that_nobody_can_read_is_begun_anew() -> None:
    folder = Folder()
    assert load_status(folder.disk, folder.layout) == PipelineStatus()
    folder.disk.make_dirs(folder.layout.pipeline)
    replace_file(folder.disk, f"{folder.layout.pipeline}/status.json", b"{")
    assert load_status(folder.disk, folder.layout) == PipelineStatus()


def test_the_wait_of_a_quarantine_doubles_up_to_an_hour() -> None:
    known = quarantine((), 1, "bad", "archive", "why", 0)
    waits = []
    for _ in range(8):
        waits.append(known[0].retry_at_ms)
        known = quarantine(known, 1, "bad", "archive", "why", 0)
    assert waits == [60_000, 120_000, 240_000, 480_000, 960_000, 1_920_000, 3_600_000, 3_600_000]
    assert len(quarantine(known, 2, "other", "archive", "why", 0)) == 2
