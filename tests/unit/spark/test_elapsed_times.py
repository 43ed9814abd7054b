"""Times that are over, by a clock that may have been wrong."""

import pytest

from topics.search.file_index.manifest import IndexManifest, Retired
from topics.spark.index_builds.index_plan import IndexRules, over
from topics.spark.segment_reader import has_elapsed


@pytest.mark.parametrize(
    ("since", "now", "done"),
    [(100, 100, False), (100, 109, False), (100, 110, True), (100, 91, False), (100, 90, True), (100, 0, True)],
)
def test_time_too_far_in_the_future_has_elapsed(since: int, now: int, done: bool) -> None:
    assert has_elapsed(since, 10, now) is done


def test_retired_index_files_go_by_it() -> None:
    manifest = IndexManifest(
        topic_id=1, epoch=1, topic="a", generation="g", plans={},
        retired=(Retired("ahead", 10**9), Retired("now", 1000), Retired("past", 0)),
    )  # fmt: skip
    assert [one.name for one in over(manifest, 1000, IndexRules(retire_ms=500))] == ["ahead", "past"]
