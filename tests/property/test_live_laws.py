"""Laws of live delivery: for any order of events, a follower gets every record once, in order, or a gap.

The loop's ticks are run by hand, so that every interleaving of appends, deletes, evictions, full connections, new and
leaving followers and deleted topics can happen, and a failing one can be repeated.
"""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.property.effort import effort
from tests.unit.api.live.rig import Follower, Rig

SEEDS = st.integers(0, 2**32)


class Books:
    """The frames that one follower received, compared with the content of its topic."""

    def __init__(self, follower: Follower, topic: str, start: int, own: str | None) -> None:
        self.follower = follower
        self.topic = topic
        self.cursor = start
        self.own = own
        self.over = False

    def check(self, world: "World") -> None:
        """Checks new messages of the follower."""
        for message in self.follower.take():
            assert not self.over, message
            match message["kind"]:
                case "records":
                    self._records(world, message)
                case "tombstone":
                    gap_from, gap_to = int(str(message["gap_from"])), int(str(message["gap_to"]))
                    assert self.cursor < gap_from <= gap_to <= world.evicted, "told of a loss that never was"
                    assert world.silent(self.cursor, gap_from - 1, self.own)
                    self.cursor = int(str(message["cursor"]))
                case "caught_up":
                    assert world.silent(self.cursor, int(str(message["head_seq"])), self.own)
                    self.cursor = max(self.cursor, int(str(message["head_seq"])))
                case "deleted":
                    self.over = True
                case kind:
                    raise AssertionError(kind)

    def _records(self, world: "World", message: dict[str, object]) -> None:
        records = message["records"]
        assert isinstance(records, list)
        assert records
        for record in records:
            seq = record["$seq"]
            assert seq > self.cursor, "delivered twice or out of order"
            assert world.silent(self.cursor, seq - 1, self.own), f"a record between {self.cursor} and {seq} is missing"
            assert record["data"] == seq
            assert self.own is None or record.get("$node") != self.own
            self.cursor = seq
        to_seq = int(str(message["to_seq"]))
        assert world.silent(self.cursor, to_seq, self.own)
        self.cursor = max(self.cursor, to_seq)


class World:
    """One topic and its followers; remembers deliberate deletes and the writer of each record."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = Rig()
        self.cap = self.rng.choice([0, 0, 7, 40])
        self.head = 0
        self.nodes: dict[int, str | None] = {}
        self.deleted: set[int] = set()
        self.followers: list[Books] = []
        self.rig.put("t", cap_records=self.cap)

    @property
    def evicted(self) -> int:
        return self.rig.engine.core.directory.load("t").earliest - 1

    def silent(self, after: int, to: int, own: str | None) -> bool:
        """Whether nothing in this range had to be delivered."""
        return all(
            seq in self.deleted or (own is not None and self.nodes[seq] == own) for seq in range(after + 1, to + 1)
        )

    def step(self) -> None:
        action = self.rng.choices(
            [self.append, self.follow, self.leave, self.delete, self.tick, self.fill, self.drain],
            [8, 2, 1, 1, 10, 3, 4],
        )[0]
        action()
        for books in self.followers:
            books.check(self)

    def append(self) -> None:
        count, node = self.rng.choice([1, 1, 1, 2, 5, 30]), self.rng.choice([None, "a", "b"])
        first = self.head + 1
        for seq in range(first, first + count):
            self.nodes[seq] = node
        self.head += count
        self.rig.append_values("t", list(range(first, first + count)), node)

    def follow(self) -> None:
        start = self.rng.choice([0, self.head, self.rng.randint(0, self.head)])
        own = self.rng.choice([None, None, "a"])
        options: dict[str, Any] = {"limit": self.rng.choice([1, 3, 256]), "strong": self.rng.random() < 0.3}
        follower = self.rig.follow("t", start, nodes=(own,) if own else (), **options)
        if self.rng.random() < 0.3:
            follower.sink.room = self.rng.randint(1, 4)
        self.followers.append(Books(follower, "t", start, own))

    def leave(self) -> None:
        if self.followers:
            books = self.followers.pop(self.rng.randrange(len(self.followers)))
            books.follower.sink.close()
            books.follower.subscription.cancel()

    def delete(self) -> None:
        before = self.rng.randint(0, self.head + 1)
        self.deleted.update(range(1, before))
        self.rig.delete("t", before)

    def tick(self) -> None:
        self.rig.tick()

    def fill(self) -> None:
        if self.followers:
            self.rng.choice(self.followers).follower.sink.room = self.rng.randint(1, 2)

    def drain(self) -> None:
        if self.followers:
            self.rng.choice(self.followers).follower.sink.drain(self.rng.choice([1, 3, 1000]))

    def end(self) -> None:
        """Everyone drains, and then everyone must have everything."""
        for _ in range(2):
            self.rig.run_until_idle()
            for books in self.followers:
                books.follower.sink.drain()
        self.rig.run_until_idle()
        for books in self.followers:
            books.check(self)
            assert books.follower.subscription.live
            assert self.silent(books.cursor, self.head, books.own), f"ends at {books.cursor} of {self.head}"


@effort(200)
@given(SEEDS)
def test_everyone_gets_everything_once_and_in_order(seed: int) -> None:
    print(f"seed {seed}")
    world = World(seed)
    for _ in range(120):
        world.step()
    world.end()
    for books in world.followers:
        books.follower.subscription.cancel()
    assert len(world.rig.feeds) == 0
    assert not world.rig.engine.core.directory.load("t").waiters


@effort(50)
@given(SEEDS)
def test_the_end_of_a_topic_is_the_last_thing_anyone_is_notified(seed: int) -> None:
    print(f"seed {seed}")
    world = World(seed)
    for _ in range(40):
        world.step()
    last = {id(books): books for books in world.followers}
    world.rig.drop("t")
    world.rig.append("t", 3)
    for _ in range(2):
        world.rig.run_until_idle()
        for books in last.values():
            books.follower.sink.drain()
    world.rig.run_until_idle()
    for books in last.values():
        story = books.follower.story()
        assert story[-1] == "deleted"
        assert story.count("deleted") == 1
        assert books.follower.sink.ended == [books.follower.subscription]
    assert len(world.rig.feeds) == 0
