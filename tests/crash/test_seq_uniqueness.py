"""A seq never identifies two different records for a reader: not after any crash, nor behind a router.

`tests.crash.promises` checks acknowledged operations. This test takes the view of a reader, who remembers every
published record: batches up to many times the size that a topic reserves, into topics that were created by a request
and by an append, alone and in groups, and copies of them.
"""

from collections.abc import Iterator
from itertools import islice

import msgspec
import pytest

from tests.crash.harness import SMALL, World
from tests.crash.sweeps import crashes, usual_endings
from topics.engine.engine import Engine, TopicInfo
from topics.engine.read import ReadRequest
from topics.model.router_rules import RouterWish
from topics.model.topic_config import Durability
from topics.testing import FakeDisk, PowerCut, Survival

QUICK, SURE, COPY, MADE = "quick", "sure", "copy", "made"
SHOWN = 12


ONCE = (Durability.DISK, Durability.FSYNC)
"""The classes of topics that give a seq out once."""

Seen = dict[tuple[str, int, int], object]
"""The records by name, epoch and seq."""


class Reader:
    """Remembers every record it ever saw in topics of some classes."""

    def __init__(self, classes: tuple[Durability, ...] = ONCE, seen: Seen | None = None) -> None:
        self._classes = classes
        self._seen = dict(seen or {})

    def twin(self) -> "Reader":
        return Reader(self._classes, self._seen)

    def look(self, world: World) -> Iterator[str]:
        """Yields every difference from the recorded state."""
        for info in world.engine.list_topics(limit=100):
            if info.config.durability in self._classes:
                yield from self._read(world.engine, info)

    def _read(self, engine: Engine, info: TopicInfo) -> Iterator[str]:
        cursor = 0
        while cursor < info.head_seq:
            part = engine.read_now(info.topic, ReadRequest(from_seq=cursor, limit=1000))
            for record in part.records():
                seq, value = record["$seq"], record["data"]
                assert isinstance(seq, int)
                known = self._seen.setdefault((info.topic, info.epoch, seq), value)
                if known != value:
                    yield f"{info.topic}: seq {seq} was {known} and is {value}"
            cursor = part.next_from_seq


def life(world: World, reader: Reader) -> Iterator[str]:
    """Batches below, at and far above a reserve of four, with everything that moves a ceiling in between."""
    world.start()
    world.put(QUICK, durability="disk")
    world.append(SURE, 1, durability="fsync")
    wish = RouterWish(source=QUICK, dest=COPY)
    world.engine.put_router("router", wish, lambda outcome: None)
    for count in (1, 5, 20):
        world.append(QUICK, count)
        yield from reader.look(world)
    world.append(MADE, 7)
    yield from reader.look(world)
    world.background_sync()
    world.hold()
    world.append(QUICK, 3)
    world.append(MADE, 12)
    world.append(SURE, 2)
    world.append(QUICK, 9)
    world.flush()
    yield from reader.look(world)
    world.checkpoint()
    world.append(QUICK, 1)
    world.append(MADE, 17)
    yield from reader.look(world)
    world.clock.advance(5000)
    world.append(QUICK, 6)
    world.append(SURE, 1)
    yield from reader.look(world)


def goes_on(world: World, reader: Reader) -> Iterator[str]:
    """Returns the records after a start, and after more writes."""
    yield from reader.look(world)
    world.engine.routing.kick()
    yield from reader.look(world)
    for name in (QUICK, MADE, SURE, QUICK):
        world.append(name, 3)
        yield from reader.look(world)


def contradictions(shards: int) -> Iterator[str]:
    # Segments and log files are others' matter; here they would only make the sweep long.
    options = msgspec.structs.replace(SMALL, wal_shards=shards, segment_max_events=1000, wal_file_bytes=65_536)
    whole = FakeDisk()
    yield from life(World(whole, options), Reader())
    for call in range(1, whole.call_count + 2):
        disk, reader = FakeDisk(stop_before=call), Reader()
        world = World(disk, options)
        try:
            yield from life(world, reader)
        except PowerCut:
            pass
        for ending, crashed in crashes(disk, usual_endings(call)):
            found, twin = reader.twin(), world.fork()
            where = f"stopped after call {call - 1} of {whole.call_count}, {ending}"
            twin.start(crashed, restarted=ending.restarted)
            yield from (f"{where}: {text}" for text in goes_on(twin, found))
            twin.start(crashed.crash(Survival.NOTHING), restarted=True)
            yield from (f"{where}, then a power cut: {text}" for text in goes_on(twin, found))


@pytest.mark.parametrize("shards", [1, 2])
def test_no_seq_that_was_seen_comes_to_mean_another_record(shards: int) -> None:
    found = list(islice(contradictions(shards), SHOWN))
    assert not found, "\n".join(found)


def test_a_reader_notices() -> None:
    """Class memory may assign a seq twice, and a reader with other expectations detects it."""
    world, reader = World(disk := FakeDisk()), Reader((Durability.MEMORY,))
    world.start()
    world.append(QUICK, 1, durability="memory")
    world.append(QUICK, 2)
    assert not list(reader.look(world))
    world.start(disk.crash(Survival.NOTHING), restarted=True)
    assert not list(reader.look(world))
    world.append(QUICK, 2)
    assert len(list(reader.look(world))) == 2
