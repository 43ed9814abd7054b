"""Rounds: their reports, and the division of a job that fails as a whole."""

from collections.abc import Iterator, Sequence

import pytest

from tests.unit.spark.archives import ROOT, archived
from tests.unit.spark.folders import Folder
from topics.log.fs import replace_file
from topics.spark.archive.archive_plan import ArchiveRules
from topics.spark.pipeline.archive_product import ArchiveProduct
from topics.spark.pipeline.executors import InlineExecutor, failure_of
from topics.spark.pipeline.jobs import JobFailedError, WorkersUnavailableError
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.pipeline.status import PipelineStatus, WorkerStatus, load_status, quarantine
from topics.testing import SeededEntropy


class Inline:
    """An executor that works on the caller's stack, unless `before` raises."""

    def __init__(self, folder: Folder) -> None:
        self._inner = InlineExecutor(folder.disk)

    def parallelism(self) -> int:
        return 1

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        self.before(works)
        return self._inner.run(works, about)

    def before(self, works: Sequence[bytes]) -> None:
        """Runs before the work."""

    def footprint(self) -> WorkerStatus | None:
        return WorkerStatus(7, 8)

    def probe(self) -> None:
        """All is well."""


class Fragile(Inline):
    """Fails as a whole while a topic is in the job, as a task does that takes its process down."""

    def __init__(self, folder: Folder, topic: bytes) -> None:
        super().__init__(folder)
        self._topic = topic
        self.jobs = 0

    def before(self, works: Sequence[bytes]) -> None:
        self.jobs += 1
        if any(self._topic in work for work in works):
            raise JobFailedError("the worker died")


class Busy(Inline):
    """An executor whose workers come up now and then. Each word is the state that the next job, or probe, finds."""

    def __init__(self, folder: Folder, *words: str) -> None:
        super().__init__(folder)
        self._words = list(words)

    def before(self, works: Sequence[bytes]) -> None:
        self._next()

    def probe(self) -> None:
        self._next()

    def _next(self) -> None:
        match self._words.pop(0) if self._words else "good":
            case "late":
                raise WorkersUnavailableError("Python worker failed to connect back.")
            case "bad":
                raise JobFailedError("the worker died")


def busy_pipeline(*words: str) -> tuple[Folder, Pipeline]:
    folder = Folder()
    for name in ("a", "b", "c"):
        folder.append(name, 1)
    folder.seal()
    product = ArchiveProduct(folder.disk, ROOT, ArchiveRules(), SeededEntropy(1))
    return folder, Pipeline(folder.disk, folder.layout, [product], Busy(folder, *words), folder.clock)


def test_workers_that_do_not_start_quarantine_no_topic() -> None:
    folder, made = busy_pipeline("late")
    with pytest.raises(WorkersUnavailableError):
        made.round()
    assert made.status.quarantined == ()
    assert made.round()
    assert archived(folder.disk, "a") == archived(folder.disk, "b") == archived(folder.disk, "c") == {1: "1"}


@pytest.mark.parametrize(
    "words",
    [
        # A job dies, and the workers of the jobs for parts of it come up late.
        ("bad", "good", "late"),
        # A single topic's job dies as well, and then not even a job without work is run.
        ("bad", "good", "bad", "late"),
        # The second attempt reports it.
        ("bad", "good", "bad", "good", "late"),
    ],
)
def test_workers_that_do_not_start_during_bisection_quarantine_no_topic(words: tuple[str, ...]) -> None:
    folder, made = busy_pipeline(*words)
    with pytest.raises(WorkersUnavailableError):
        made.round()
    assert made.status.quarantined == ()
    # The part that was done by then is published, and the rest is done later.
    assert archived(folder.disk, "a") == {1: "1"}
    assert made.round()
    assert archived(folder.disk, "b") == archived(folder.disk, "c") == {1: "1"}


def test_single_job_failure_quarantines_nothing() -> None:
    folder, made = busy_pipeline("bad", "bad", "good", "good")
    assert made.round()
    assert made.status.quarantined == ()
    assert archived(folder.disk, "a") == {1: "1"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Job aborted: Task 3 in stage 0.0 failed 1 times\nSparkException: Python worker failed to connect back.\n\tat",
         WorkersUnavailableError),
        ("java.io.IOException: Cannot run program \"python3\": error=11, Resource temporarily unavailable",
         WorkersUnavailableError),
        ("Job aborted: Python worker exited unexpectedly (crashed)", JobFailedError),
    ],
)  # fmt: skip
def test_what_a_failed_job_states_about_its_work(text: str, kind: type[Exception]) -> None:
    assert type(failure_of(RuntimeError(text))) is kind


def test_topic_that_kills_the_job_is_quarantined() -> None:
    folder = Folder()
    for name in ("good", "deadly", "fine"):
        folder.append(name, 1)
    folder.seal()
    executor = Fragile(folder, b"deadly")
    product = ArchiveProduct(folder.disk, ROOT, ArchiveRules(), SeededEntropy(1))
    made = Pipeline(folder.disk, folder.layout, [product], executor, folder.clock)
    assert made.round()
    assert [one.topic for one in made.status.quarantined] == ["deadly"]
    assert archived(folder.disk, "good") == archived(folder.disk, "fine") == {1: "1"}
    jobs = executor.jobs
    assert not made.round()
    assert executor.jobs == jobs


def test_the_status_reports_what_was_done_and_survives_the_process() -> None:
    folder = Folder()
    folder.append("orders", *range(10))
    folder.seal()
    product = ArchiveProduct(folder.disk, ROOT, ArchiveRules(), SeededEntropy(1))
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


def test_unreadable_status_is_reset() -> None:
    folder = Folder()
    assert load_status(folder.disk, folder.layout) == PipelineStatus()
    folder.disk.make_dirs(folder.layout.pipeline)
    replace_file(folder.disk, f"{folder.layout.pipeline}/status.json", b"{")
    assert load_status(folder.disk, folder.layout) == PipelineStatus()


def test_quarantine_backoff_doubles_up_to_an_hour() -> None:
    known = quarantine((), 1, "bad", "archive", "why", 0)
    waits = []
    for _ in range(8):
        waits.append(known[0].retry_at_ms)
        known = quarantine(known, 1, "bad", "archive", "why", 0)
    assert waits == [60_000, 120_000, 240_000, 480_000, 960_000, 1_920_000, 3_600_000, 3_600_000]
    assert len(quarantine(known, 2, "other", "archive", "why", 0)) == 2
    # A clock that was set back does not make it longer.
    assert [known[0].is_active(now) for now in (0, 3_599_999, 3_600_000, -1)] == [True, True, False, False]
