"""Packing of a round into tasks: of similar cost, and exact when a task runs twice."""

from collections.abc import Iterator, Sequence
from random import Random

import pytest

from tests.unit.spark.archives import ROOT, data_files, state_of
from tests.unit.spark.folders import Folder
from tests.unit.spark.tables import of_topic, table_of, table_rows
from tests.unit.spark.typed import Described, typed_entries
from topics.spark.archive.archive_plan import ArchiveRules
from topics.spark.iceberg.table import TableFollower
from topics.spark.iceberg.typed_tables import TypedTable
from topics.spark.index_builds.index_plan import IndexRules
from topics.spark.pipeline.archive_product import ArchiveProduct
from topics.spark.pipeline.executors import PRODUCT_TASKS, InlineExecutor
from topics.spark.pipeline.index_product import IndexProduct
from topics.spark.pipeline.products import ARCHIVED, Chore, Cost, Product, SegmentRequest
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.pipeline.segment_scan import ChoreWork, Piece, SegmentWork, run_piece
from topics.spark.pipeline.task_packing import FrameRules, longest_first, packed, segment_cost
from topics.spark.pipeline.typed_product import TypedProduct
from topics.spark.segment_reader import SegmentRef
from topics.testing import SeededEntropy

MIB = 1024 * 1024
COSTS = {"archive": ARCHIVED, "families": Cost(4.0, 600.0)}
BLANK = Piece("data", None, {"archive": b"", "families": b"", "typed": b""})


def segment(name: str, size: int, records: int, *products: str) -> SegmentWork:
    ref = SegmentRef(name, 1, 1, 1, records, size, cold=False, from_seq=1, to_seq=records, from_ts=0, to_ts=0)
    return SegmentWork([(product, SegmentRequest(ref)) for product in products])


def cost_of(piece: Piece) -> int:
    return sum(segment_cost(work, COSTS) for work in piece.segments)


def test_tasks_cost_about_the_same_whatever_they_read() -> None:
    wide = [segment("wide", MIB, 64, "archive") for _ in range(64)]
    tiny = [segment("tiny", MIB // 4, 20_000, "archive") for _ in range(64)]
    logs = [segment("logs", MIB, 6_000, "archive", "families") for _ in range(32)]
    pieces = packed([*wide, *tiny, *logs], [], BLANK, 32 * MIB, 16, COSTS)
    assert [work for piece in pieces for work in piece.segments] == [*wide, *tiny, *logs]
    costs = [cost_of(piece) for piece in pieces]
    assert len(pieces) <= 18
    assert max(costs) <= 1.3 * sum(costs) / 16
    # By bytes alone the indexed segments would be as few tasks as the others.
    assert sum("families" in piece.task_contexts for piece in pieces) > len(pieces) // 2


def test_memory_bounds_a_task_and_small_work_is_one_task() -> None:
    wide = [segment("wide", 8 * MIB, 10, "archive") for _ in range(16)]
    assert [len(piece.segments) for piece in packed(wide, [], BLANK, 32 * MIB, 1, COSTS)] == [4, 4, 4, 4]
    tiny = [segment(f"t{n}", 100, 5, "archive") for n in range(30)]
    assert [len(piece.segments) for piece in packed(tiny, [], BLANK, 32 * MIB, 16, COSTS)] == [30]


def test_chores_start_by_their_cost_and_not_by_their_bytes() -> None:
    chores = [ChoreWork("typed", Chore("a", 1, b"", MIB, 90 * MIB)), ChoreWork("archive", Chore("b", 0, b"", 8 * MIB))]
    pieces = longest_first(packed([], chores, BLANK, MIB, 8, COSTS), 2)
    assert [piece.chores[0].chore.subject for piece in pieces] == ["a", "b"]


class Speculative(InlineExecutor):
    """Runs each task twice, and delivers the outcome of one of the two: as speculation, and lost executors, do."""

    def __init__(self, folder: Folder, seed: int) -> None:
        super().__init__(folder.disk)
        self._disk = folder.disk
        self._random = Random(seed)

    def parallelism(self) -> int:
        return 4

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        outcomes = list(enumerate(run_piece(self._disk, PRODUCT_TASKS, work) for work in works))
        again = list(enumerate(run_piece(self._disk, PRODUCT_TASKS, work) for work in works))
        chosen = [self._random.choice(pair) for pair in zip(outcomes, again, strict=True)]
        self._random.shuffle(chosen)
        yield from chosen


@pytest.mark.parametrize("seed", range(3))
def test_task_that_runs_twice_counts_once_in_every_product(seed: int) -> None:
    described = Described(Folder())
    folder = described.folder
    described.create("orders")
    for first in range(0, 60, 10):
        described.append("orders", *[{"id": n} for n in range(first, first + 10)], key=f"k{first}")
        folder.append("plain", *range(first, first + 10))
        folder.seal()
    entropy = SeededEntropy(seed)
    archive = ArchiveProduct(
        folder.disk, ROOT, ArchiveRules(), entropy, TableFollower(table_of(folder.disk, 1, 0), ROOT)
    )

    def table(name: str) -> TypedTable:
        return TypedTable(folder.disk, ROOT, name, table_of(folder.disk, 2, 0, f"{ROOT}/{name}"), 0)

    index = IndexProduct(folder.disk, folder.layout, IndexRules(), entropy)
    products: list[Product] = [archive, TypedProduct(folder.disk, ROOT, ("*",), lambda: archive.state, table), index]
    rules = FrameRules(group_bytes=200)
    made = Pipeline(folder.disk, folder.layout, products, Speculative(folder, seed), folder.clock, rules)
    while made.round():
        pass
    assert made.status.records == 120
    assert of_topic(table_rows(folder.disk), "plain") == {n + 1: str(n) for n in range(60)}
    assert typed_entries(folder.disk, "orders") == described.promoted("orders")
    # The files of the other attempts go when the next process begins.
    assert data_files(folder.disk) > state_of(folder.disk).named()
    archive.job_failed()
    made.round()
    assert data_files(folder.disk) == state_of(folder.disk).named()
