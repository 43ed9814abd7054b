"""Jobs that fail as a whole, while the process of the pipeline goes on."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.unit.spark.archives import ROOT, archived, data_files, state_of
from tests.unit.spark.folders import Folder
from tests.unit.spark.notebooks import Notebook
from topics.log.fs import FileSystem
from topics.spark.archive.archive_plan import ArchiveRules
from topics.spark.pipeline.archive_product import ArchiveProduct
from topics.spark.pipeline.executors import PRODUCT_TASKS, InlineExecutor
from topics.spark.pipeline.jobs import JobFailedError
from topics.spark.pipeline.products import Product, SegmentRequest, Transform
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.pipeline.task_packing import FrameRules
from topics.spark.segment_reader import bucket_of
from topics.testing import SeededEntropy


class LikeSpark(InlineExecutor):
    """A task that raises fails its job. Of tasks that have ended by then nothing is heard unless it `tells` at once."""

    def __init__(self, fs: FileSystem, tells: bool = False) -> None:
        super().__init__(fs)
        self._tells = tells
        self.pieces = 0

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        self.pieces += len(works)
        outcomes = super().run(works, about)
        try:
            yield from outcomes if self._tells else list(outcomes)
        except Exception as error:
            raise JobFailedError(str(error)) from error


class FailsInTheEnd:
    """The task half of a product that cannot finish its result for one topic."""

    def __init__(self, inner: Any, topic: str) -> None:
        self._inner = inner
        self._topic = topic

    def begin(self, *arguments: Any) -> Transform:
        transform, topic, met = self._inner.begin(*arguments), self._topic, []

        class Failing:
            def take(self, request: SegmentRequest, batches: Any) -> None:
                if request.ref.topic == topic:
                    met.append(request)
                transform.take(request, batches)

            def finish(self) -> bytes:
                if met:
                    raise ValueError("cannot be finished")
                made: bytes = transform.finish()
                return made

        return Failing()

    def chore(self, *arguments: Any) -> Any:
        return self._inner.chore(*arguments)


def test_what_tasks_of_a_job_that_failed_have_archived_is_removed_by_the_next_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Folder()
    other = Notebook(folder.disk, "one")
    monkeypatch.setitem(PRODUCT_TASKS, "one", FailsInTheEnd(other, "bad"))
    names = [*(f"t{number}" for number in range(7)), "bad"]
    for name in names:
        folder.append(name, *range(20))
    folder.seal()
    archive = ArchiveProduct(folder.disk, ROOT, ArchiveRules(), SeededEntropy(1))
    products: list[Product] = [archive, other]
    pipeline = Pipeline(folder.disk, folder.layout, products, LikeSpark(folder.disk), folder.clock, FrameRules())
    pipeline.round()
    assert data_files(folder.disk) - state_of(folder.disk).named()
    while pipeline.round():
        pass
    assert data_files(folder.disk) == state_of(folder.disk).named()
    assert [len(archived(folder.disk, name)) for name in names] == [20] * len(names)
    assert [(one.product, one.topic) for one in pipeline.status.quarantined] == [("one", "bad")]


def test_what_tasks_had_done_before_their_job_failed_is_not_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder()
    other = Notebook(folder.disk, "one")
    names = [f"t{number}" for number in range(16)]
    last = max(names, key=lambda name: (bucket_of(name), name))
    monkeypatch.setitem(PRODUCT_TASKS, "one", FailsInTheEnd(other, last))
    for name in names:
        folder.append(name, *range(20))
    folder.seal()
    executor = LikeSpark(folder.disk, tells=True)
    archive = ArchiveProduct(folder.disk, ROOT, ArchiveRules(), SeededEntropy(1))
    rules = FrameRules(group_bytes=1)
    pipeline = Pipeline(folder.disk, folder.layout, [archive, other], executor, folder.clock, rules)
    assert pipeline.round()
    assert [one.topic for one in pipeline.status.quarantined] == [last]
    assert other.notes().keys() == set(names) - {last}
    # Only the piece that failed was tried again: alone, for each of the products, and once more for the one to blame.
    assert executor.pieces == len(names) + 4
    assert len(data_files(folder.disk) - state_of(folder.disk).named()) == 2
