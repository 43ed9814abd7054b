"""Deletes reported to an archive: all of them, and nothing that it may still hold for others.

Random lives of a topic with few seqs between one kind of end and the next: records deleted in the tail and out of
segments, one by one and from the front, evicted by a cap, reported, confirmed, and found again after a kill. The
archive of the test looks at a catalog now and then, and takes over what was first told since, as the real one does.
"""

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.effort import effort
from tests.unit.conftest import append, checkpoint, delete, eq, killed, move, open_engine, put, topic
from topics.engine.topic import Run
from topics.log.catalog_files import read_catalog
from topics.log.fs import replace_file
from topics.log.layout import Layout
from topics.model.seq_ranges import union
from topics.model.topic_config import Durability
from topics.testing import FakeDisk

LAYOUT = Layout("data")
STEPS = [
    "append",
    "tag",
    "tag",
    "front",
    "seal",
    "cap",
    "checkpoint",
    "kill",
    "look",
    "confirm",
    "wear",
    "wear",
    "wear",
]


class Life:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.disk = FakeDisk()
        self.engine = open_engine(self.disk, track_removals=True)
        put(self.engine, "t", durability=Durability.FSYNC)
        self.tags: dict[int, str] = {}
        self.live: set[int] = set()
        self.evicted: set[int] = set()
        self.owed: set[int] = set()
        """Deleted after a catalog named its segment: an archive may have it, and has to hear of the delete."""
        self.named: set[int] = set()
        """Every seq that was in a segment of some catalog."""
        self.heard: set[int] = set()
        self.seen = 0
        """The number of the last catalog that the archive has taken over."""
        self.reported: set[int] = set()
        """The other seqs that the last catalog reported."""
        self.looked_at = 0, self.reported

    def step(self, kind: str) -> None:
        getattr(self, kind)()
        assert self.live == self._really_live()

    def wear(self) -> None:
        """Some records of which some are deleted when they are known to the archive: one more list."""
        for step in (self.append, self.append, self.seal, self.checkpoint, self.tag, self.checkpoint):
            step()

    def append(self) -> None:
        for _ in range(self.rng.randrange(1, 12)):
            tag = self.rng.choice("abcd")
            seq = append(self.engine, "t", 1, tag=tag).first_seq
            self.tags[seq] = tag
            self.live.add(seq)
        self._notice_evictions()

    def tag(self) -> None:
        tag = self.rng.choice("abcd")
        self._deleted({seq for seq in self.live if self.tags[seq] == tag})
        delete(self.engine, "t", match=eq(tag))

    def front(self) -> None:
        before = self.rng.randrange(topic(self.engine, "t").head + 2) or 1
        self._deleted({seq for seq in self.live if seq < before})
        delete(self.engine, "t", before_seq=before)

    def _deleted(self, seqs: set[int]) -> None:
        self.owed |= seqs & self.named
        self.live -= seqs

    def seal(self) -> None:
        move(self.engine, "t", "sealed")

    def cap(self) -> None:
        put(self.engine, "t", cap_records=self.rng.choice([0, 5, 20]))
        self._notice_evictions()

    def _notice_evictions(self) -> None:
        gone = self.live - self._really_live()
        assert all(seq < topic(self.engine, "t").evict_floor for seq in gone)
        self.evicted |= gone
        self.live -= gone

    def _really_live(self) -> set[int]:
        # Not by reading it: the reported ranges depend on the flags, and so must the expected ones.
        found: set[int] = set()
        now = topic(self.engine, "t")
        runs: list[Run] = [*now.segments, *now.tail]
        for run in runs:
            flags = self.engine.core.reader.flags(now.id, run) or bytes(run.count)
            found |= {run.first_seq + place for place in range(run.count) if flags[place] != 0xD5}
        return {seq for seq in found if seq >= now.earliest}

    def checkpoint(self) -> None:
        assert checkpoint(self.engine)
        self._hear()

    def _hear(self) -> None:
        catalog = read_catalog(self.disk, LAYOUT)
        assert catalog is not None
        entry = catalog.by_name().get("t")
        if entry is None:
            return
        self.named |= {seq for one in entry.segments for seq in range(one.first_seq, one.last_seq + 1)}
        reported: set[int] = set()
        for removal in entry.removals:
            assert removal.number <= catalog.head.number
            assert removal.ranges == union(removal.ranges), "in order, and apart"
            if removal.number > self.seen:
                reported |= {seq for first, last in removal.ranges for seq in range(first, last + 1)}
        assert self.owed <= self.heard | reported, "a delete is not told, or no longer, and was never heard of"
        assert not reported & self.live, "a live record was told as deleted"
        assert not reported & self.evicted, "a record that only the archive has was told as deleted"
        self.reported = reported

    def look(self) -> None:
        """A round of the archive begins with the last catalog; there may be others when it ends."""
        self.looked_at = self.engine.checkpointer.number, self.reported

    def confirm(self) -> None:
        """The archive confirms the content that it has taken over since its last look."""
        self.seen = self.looked_at[0]
        self.heard |= self.looked_at[1]
        self.disk.make_dirs(LAYOUT.pipeline)
        replace_file(self.disk, LAYOUT.pipeline_seen, b"%d" % self.seen)

    def kill(self) -> None:
        self.disk = killed(self.disk)
        self.engine = open_engine(self.disk, track_removals=True)
        self._hear()


@pytest.fixture(autouse=True, scope="module")
def few_is_many() -> Iterator[None]:
    """Lowers the limits, so that two ranges already count as many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("topics.engine.delete_export.EXACT_MAX", 1)
        patch.setattr("topics.engine.delete_export.EXPORTED_MAX", 2)
        yield


@effort(500)
@given(st.lists(st.sampled_from(STEPS), min_size=5, max_size=60), st.integers(0, 2**32))
def test_an_archive_hears_of_every_delete_and_of_nothing_else_it_may_hold(steps: list[str], seed: int) -> None:
    life = Life(seed)
    for step in steps:
        life.step(step)
    life.step("checkpoint")
