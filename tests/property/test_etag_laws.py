"""A tag of /v1 never stands for two bodies, whatever the operations in between.

Random lives of a stream and its fork: entries deleted from the front and by key, evicted by a cap, sealed, and lost or
restored by kills and power cuts, in classes with synced and with unsynced acknowledgements. A caller that reads keeps
every tag with its body.
"""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.effort import effort
from tests.unit.conftest import checkpoint, delete, eq, open_engine, put
from tests.unit.streams.conftest import append, create, fork, slice_of
from topics.api.v1.reads import etag_of
from topics.engine.read import is_whole, removed_count
from topics.model.errors import TopicsError
from topics.model.topic_config import Durability
from topics.streams.read import ReadSpec
from topics.streams.stream_state import Position
from topics.streams.streams import Streams, inline_streams
from topics.testing import FakeDisk, ManualClock, Survival

JSON = "application/json"
STEPS = (
    "append", "append", "append", "front", "key", "cap", "uncap", "checkpoint", "kill", "cut", "undo", "look", "look",
    "look",
)  # fmt: skip


class Life:
    def __init__(self, seed: int, durability: Durability) -> None:
        self.rng = Random(seed)
        self.disk = FakeDisk()
        self.clock = ManualClock()
        self.durability = durability
        self.number = self.cuts = 0
        self.seen: dict[tuple[str, str], bytes] = {}
        self.streams = self.opened()
        self.chunk = self.rng.choice((3, 100))
        create(self.streams, "s", JSON, body=b"[0]")
        for key in "abab":
            append(self.streams, "s", b'"first"', JSON, key=key)
        fork(self.streams, "f", "s")

    def opened(self) -> Streams:
        engine = open_engine(self.disk, self.clock, boot_id=f"boot-{self.cuts}", segment_max_events=4)
        return inline_streams(engine, self.durability)

    def step(self, word: str) -> None:
        getattr(self, f"do_{word}")()

    @property
    def name(self) -> str:
        return self.rng.choice(("s", "s", "f"))

    def do_append(self) -> None:
        self.number += 1
        append(self.streams, self.name, b"%d" % self.number, JSON, key=self.rng.choice("ab"))

    def do_front(self) -> None:
        name = self.name
        delete(self.streams.engine, name, before_seq=self.rng.randint(0, self.streams.topic(name).head + 1))

    def do_key(self) -> None:
        delete(self.streams.engine, self.name, match=eq(self.rng.choice("ab")))

    def do_cap(self) -> None:
        put(self.streams.engine, "s", durability=self.durability, cap_records=self.rng.randint(1, 8))

    def do_uncap(self) -> None:
        put(self.streams.engine, "s", durability=self.durability)

    def do_checkpoint(self) -> None:
        checkpoint(self.streams.engine)

    def do_kill(self) -> None:
        self.disk = self.disk.crash(Survival.EVERYTHING)
        self.streams = self.opened()

    def do_cut(self) -> None:
        """The power goes, and unsynced data with it."""
        self.cuts += 1
        self.disk = self.disk.crash(Survival.NOTHING)
        self.streams = self.opened()

    def do_undo(self) -> None:
        """A visible delete that the next start does not know, unless it was synced."""
        self.do_checkpoint()
        self.do_key()
        for _ in range(3):
            self.do_look()
        self.do_cut()

    def do_look(self) -> None:
        name, key = self.name, self.rng.choice((None, None, "a"))
        topic = self.streams.topic(name)
        position = Position(self.rng.choice((0, 0, self.rng.randint(0, topic.head))))
        spec = ReadSpec(position=position, as_json=True, key=key, max_records=self.chunk)
        try:
            found = slice_of(self.streams, name, position, key=key, max_records=self.chunk)
        except TopicsError:
            return
        etag = etag_of(topic, spec, found, closed=False)
        assert self.seen.setdefault((name, etag), found.body) == found.body, etag
        every = slice_of(self.streams, name, position, max_records=1000)
        if every.count == every.position.counter - position.counter:
            assert ":r=" not in etag, "everything from there on is there"
        if is_whole(topic, position.counter + 1, every.position.counter):
            assert every.count == every.position.counter - position.counter
        if not removed_count(topic):
            assert ":r=" not in etag


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.DISK, Durability.FSYNC])
@effort(200)
@given(seed=st.integers(0, 2**32), steps=st.lists(st.sampled_from(STEPS), min_size=5, max_size=60))
def test_a_tag_never_stands_for_two_bodies(durability: Durability, seed: int, steps: list[str]) -> None:
    life = Life(seed, durability)
    for word in steps:
        life.step(word)
    for _ in range(10):
        life.do_look()
