"""The frame of the pipeline: several products over one scan, and the cost of one for the others."""

import errno
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
import pytest

from tests.unit.spark.archives import ROOT, advance, archived
from tests.unit.spark.folders import Folder
from tests.unit.spark.notebooks import Notebook
from tests.unit.spark.test_rounds import Fragile, Inline
from topics.log.fs import FileSystem, read_checked
from topics.log.layout import Layout
from topics.spark.archive.archive_plan import ArchiveRules
from topics.spark.pipeline import segment_scan
from topics.spark.pipeline.archive_product import ArchiveProduct
from topics.spark.pipeline.executors import PRODUCT_TASKS
from topics.spark.pipeline.jobs import JobFailedError
from topics.spark.pipeline.products import Chore, CommitResult, Product, Transform
from topics.spark.pipeline.rounds import Executor, Pipeline, ShortError
from topics.spark.pipeline.status import WorkerStatus, load_status
from topics.spark.pipeline.task_packing import FrameRules
from topics.spark.segment_reader import SegmentRef, read_segment
from topics.testing import SeededEntropy


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = Folder()
        self.one, self.two = Notebook(self.folder.disk, "one"), Notebook(self.folder.disk, "two")
        monkeypatch.setitem(PRODUCT_TASKS, "one", self.one)
        monkeypatch.setitem(PRODUCT_TASKS, "two", self.two)
        self.reads: Counter[tuple[str, int]] = Counter()

        def counting(fs: FileSystem, layout: Layout, ref: SegmentRef) -> Iterator[pa.RecordBatch]:
            self.reads[ref.topic, ref.first_seq] += 1
            return read_segment(fs, layout, ref)

        monkeypatch.setattr(segment_scan, "read_segment", counting)

    def fill(self, *names: str, segments: int = 1) -> None:
        for _ in range(segments):
            for name in names:
                self.folder.append(name, 1, 2)
            self.folder.seal()

    def pipeline(self, *products: Product, executor: Executor | None = None, **rules: int) -> Pipeline:
        folder = self.folder
        chosen = executor if executor is not None else Inline(folder)
        given = products or (self.one, self.two)
        return Pipeline(folder.disk, folder.layout, given, chosen, folder.clock, FrameRules(**rules))

    def archive(self) -> ArchiveProduct:
        return ArchiveProduct(self.folder.disk, ROOT, ArchiveRules(), SeededEntropy(1))

    def confirmed(self) -> int:
        return int(read_checked(self.folder.disk, self.folder.layout.pipeline_seen) or "0")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def run_all(made: Pipeline) -> None:
    for _ in range(50):
        if not made.round():
            return
    raise AssertionError("the pipeline never comes to an end")


def test_a_segment_is_read_once_for_all_products(world: World) -> None:
    world.fill("a", "b", segments=3)
    run_all(world.pipeline(world.one, world.two, world.archive()))
    assert set(world.reads.values()) == {1}
    assert len(world.reads) == 6
    assert world.one.notes() == world.two.notes() == {"a": [(1, 6)], "b": [(1, 6)]}
    assert len(archived(world.folder.disk, "a")) == 6


def test_new_product_gets_only_its_missing_segments(world: World) -> None:
    world.fill("a", segments=2)
    run_all(world.pipeline(world.one))
    world.fill("a")
    run_all(world.pipeline())
    assert world.one.notes() == world.two.notes() == {"a": [(1, 6)]}
    assert world.reads == {("a", 1): 2, ("a", 3): 2, ("a", 5): 1}


def test_catalog_diff_reports_only_changed_topics(world: World) -> None:
    names = [f"t{number}" for number in range(20)]
    world.fill(*names)
    made = world.pipeline(world.one)
    run_all(made)
    world.one.asked.clear()
    world.folder.append("t7", 3)
    world.folder.seal("t7")
    run_all(made)
    assert set(world.one.asked) == {"t7"}
    assert made.status.lag_segments == 0


def test_topic_failing_in_one_product_is_quarantined_there_only(world: World) -> None:
    world.fill("good", "bad")
    world.one.allergic.add("bad")
    made = world.pipeline()
    run_all(made)
    assert world.one.notes() == {"good": [(1, 2)]}
    assert world.two.notes() == {"good": [(1, 2)], "bad": [(1, 2)]}
    [out] = made.status.quarantined
    assert (out.product, out.topic, out.attempts) == ("one", "bad", 1)
    # The topic is left out for the one and goes on for the other.
    world.fill("bad")
    run_all(made)
    assert world.two.notes()["bad"] == [(1, 4)]
    world.one.allergic.clear()
    advance(world.folder.clock, 60_001)
    run_all(made)
    assert made.status.quarantined == ()
    assert world.one.notes()["bad"] == [(1, 4)]


def test_failing_product_is_skipped_and_acks_no_deletes(world: World) -> None:
    world.fill("a")
    world.one.broken = ValueError("its folder is damaged")
    made = world.pipeline()
    with pytest.raises(ValueError, match="its folder is damaged"):
        made.round()
    assert world.two.notes() == {"a": [(1, 2)]}
    assert world.confirmed() == 0
    assert made.status.catalog == 0
    world.one.broken = None
    run_all(made)
    assert world.one.notes() == {"a": [(1, 2)]}
    assert world.confirmed() > 0


def test_deletes_are_acked_once_every_product_applied_them(world: World) -> None:
    world.fill("a", segments=3)
    made = world.pipeline()
    world.two.confirms = 1
    run_all(made)
    assert world.confirmed() == 1
    world.two.confirms = None
    run_all(made)
    assert world.confirmed() == made.status.catalog > 1


class Shuffled(Inline):
    """Of each two tasks the second one ends first."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        self.jobs = 0

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        self.jobs += 1
        outcomes = super().run(works, about)
        for first, second in zip(outcomes, outcomes, strict=True):
            yield second
            yield first


def test_a_long_round_is_one_job_and_publishes_as_it_goes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.fill(*[f"t{number}" for number in range(12)])
    executor = Shuffled(world.folder)
    made = world.pipeline(world.one, executor=executor, group_bytes=1, commit_bytes=1, round_bytes=1_000_000)
    before_the_last = []
    inner = world.one.commit

    def commit(outcomes: Sequence[bytes], now_ms: int) -> CommitResult:
        before_the_last.append(len(world.one.notes()))
        return inner(outcomes, now_ms)

    monkeypatch.setattr(world.one, "commit", commit)
    assert made.round()
    assert made.status.rounds == 1
    assert executor.jobs == 1
    assert len(world.one.notes()) == 12
    # Only early results wait, for the ones before them.
    assert before_the_last == [0, *range(2, 12, 2)]


@pytest.mark.parametrize("size", [7, 200])
def test_failure_bisection_finds_the_failing_topic(world: World, size: int) -> None:
    names = [f"t{number}" for number in range(size)]
    world.fill(*names, "deadly")
    executor = Fragile(world.folder, b"deadly")
    made = world.pipeline(executor=executor)
    assert made.round()
    # The topic takes the task down for either product, so it is left out of both.
    assert {(one.topic, one.product) for one in made.status.quarantined} == {("deadly", "one"), ("deadly", "two")}
    assert world.one.notes().keys() == world.two.notes().keys() == set(names)
    assert executor.jobs <= 10 + 3 * size.bit_length()


class Narrow(Inline):
    """Has memory for so many segments in a task, and dies of more."""

    def __init__(self, folder: Folder, most: int) -> None:
        super().__init__(folder)
        self._most = most

    def before(self, works: Sequence[bytes]) -> None:
        pieces = [msgspec.msgpack.decode(work, type=segment_scan.Piece) for work in works]
        if any(len(piece.segments) > self._most for piece in pieces):
            raise JobFailedError("the worker died")


def test_a_topic_with_too_much_for_one_task_is_done_in_parts(world: World) -> None:
    world.fill("large", segments=9)
    made = world.pipeline(world.one, world.archive(), executor=Narrow(world.folder, 2))
    run_all(made)
    assert made.status.quarantined == ()
    assert world.one.notes() == {"large": [(1, 18)]}
    assert len(archived(world.folder.disk, "large")) == 18


def test_bisection_stops_at_one_failed_segment_of_a_topic(world: World) -> None:
    world.fill("good", segments=2)
    world.fill("deadly", segments=64)
    executor = Fragile(world.folder, b"deadly")
    made = world.pipeline(world.one, executor=executor)
    run_all(made)
    assert [one.topic for one in made.status.quarantined] == ["deadly"]
    assert world.one.notes() == {"good": [(1, 4)]}
    assert executor.jobs <= 25


def test_failed_chore_is_quarantined_by_name(world: World) -> None:
    world.fill("a")
    world.one.chores_left = [Chore(name, 0, name.encode(), 10) for name in ("good", "bad", "fine")]
    made = world.pipeline()
    run_all(made)
    assert [chore.subject for chore in world.one.chores_left] == ["bad"]
    [out] = made.status.quarantined
    assert (out.topic_id, out.topic, out.product) == (0, "bad", "one")
    assert "a bad chore" in out.reason


def test_full_disk_quarantines_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.fill("a", "b")
    failing = [True]
    inner = world.one.begin

    def begin(fs: FileSystem, layout: Layout, context: bytes) -> Transform:
        if failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        return inner(fs, layout, context)

    monkeypatch.setattr(world.one, "begin", begin)
    made = world.pipeline()
    with pytest.raises(ShortError, match="No space left"):
        made.round()
    assert made.status.quarantined == ()
    failing.clear()
    run_all(made)
    assert world.one.notes().keys() == {"a", "b"}


def test_status_has_each_product(world: World) -> None:
    world.fill("good", "bad")
    world.one.allergic.add("bad")
    made = world.pipeline()
    run_all(made)
    one, two = made.status.products
    assert (one.product, one.lag_segments, one.quarantined, one.error) == ("one", 1, 1, None)
    assert (two.product, two.lag_segments, two.quarantined, two.lag_ms) == ("two", 0, 0, 0)
    assert (made.status.lag_segments, made.status.worker) == (1, WorkerStatus(7, 8))
    assert [(status.records, status.segments, status.failures) for status in (one, two)] == [(2, 1, 1), (4, 2, 0)]
    assert one.records_per_s >= 0
    again = world.pipeline()
    world.two.broken = ValueError("its folder is damaged")
    with pytest.raises(ValueError):
        again.round()
    assert [status.records for status in again.status.products] == [2, 4]
    world.two.broken = None
    world.two.broken = ValueError("its folder is damaged")
    with pytest.raises(ValueError):
        made.round()
    assert [one.error for one in made.status.products] == [None, "ValueError: its folder is damaged"]
    # The state that a process leaves is known to the next one.
    assert load_status(world.folder.disk, world.folder.layout) == made.status
