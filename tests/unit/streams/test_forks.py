"""Forks and what becomes of their sources."""

import random
from collections.abc import Iterator

import msgspec
import pytest

from tests.unit.conftest import checkpoint
from tests.unit.streams.conftest import append, create, delete, fork, reopened, slice_of, text
from topics.engine import topic as topic_module
from topics.engine.read import ReadRequest, first_readable, is_whole, removed_count
from topics.engine.topic import Topic
from topics.model.errors import InvalidRequestError, StreamConflictError, StreamGoneError
from topics.model.router_rules import parse_selector
from topics.model.topic_config import TopicConfigPatch
from topics.streams.stream_state import Position, StreamState, offset_of, read_offset, stream_of
from topics.streams.streams import Streams
from topics.testing import FakeDisk, ManualClock


def offset_at(streams: Streams, name: str, counter: int) -> str:
    return offset_of(streams.topic(name), Position(counter))


def test_a_source_whose_time_is_over_stays_for_its_fork(streams: Streams, disk: FakeDisk, clock: ManualClock) -> None:
    create(streams, "a", body=b"x", ttl_s=10)
    fork(streams, "f", "a", ttl_s=10_000)
    clock.advance(11_000)
    streams.engine.housekeeper.tick()
    with pytest.raises(StreamGoneError):
        streams.topic("a")
    assert text(streams, "f") == "x"
    again = reopened(disk, clock)
    assert text(again, "f") == "x"
    with pytest.raises(StreamConflictError):
        create(again, "a")
    delete(again, "f")
    assert create(again, "a").created


def test_a_reader_of_an_earlier_topic_gets_what_a_fork_inherited_too(streams: Streams) -> None:
    create(streams, "a")
    for number in range(3):
        append(streams, "a", b"<%d>" % number)
    fork(streams, "f", "a")
    append(streams, "f", b"own")
    epoch = streams.topic("f").epoch + 1
    for request in (ReadRequest(from_seq=2, epoch=epoch), ReadRequest(from_seq=99)):
        read = streams.engine.read_now("f", request)
        assert read.tombstone is not None
        assert (read.tombstone.gap_from, read.tombstone.gap_to, read.tombstone.earliest_seq) == (1, 4, 1)
        assert [record["$seq"] for record in read.records()] == [1, 2, 3]


def test_a_fork_through_snapshots_and_segments(streams: Streams, disk: FakeDisk, clock: ManualClock) -> None:
    create(streams, "a")
    for number in range(10):
        append(streams, "a", b"<%d>" % number)
    checkpoint(streams.engine)
    fork(streams, "f", "a")
    append(streams, "f", b"own")
    checkpoint(streams.engine)
    again = reopened(disk, clock)
    whole = "".join(f"<{number}>" for number in range(10))
    assert text(again, "f") == whole + "own"
    assert text(again, "a") == whole
    found = slice_of(again, "f", Position(8), as_json=False)
    assert (found.body, found.position, found.at_tail) == (b"<8><9>own", (11, 0), True)


def test_time_works_in_the_source_of_a_fork(streams: Streams, clock: ManualClock) -> None:
    create(streams, "a", body=b"1")
    streams.engine.put_topic("a", TopicConfigPatch(ttl_ms=1000), lambda answer: None)
    fork(streams, "f", "a")
    append(streams, "f", b"own")
    clock.advance(5_000)
    found = slice_of(streams, "f", as_json=False)
    assert found.body == b"own"
    assert found.tombstone is not None and (found.tombstone.gap_from, found.tombstone.gap_to) == (1, 1)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_cut_entry_keeps_its_key(streams: Streams, sealed: bool) -> None:
    create(streams, "a")
    for key in ("first", "second"):
        append(streams, "a", key.encode(), key=key)
    for _ in range(4 if sealed else 0):
        append(streams, "a", b"more")
    first = offset_at(streams, "a", 1)
    fork(streams, "f", "a", first, sub=3)
    assert slice_of(streams, "f", key="second").body == b"sec"
    assert text(streams, "f") == "firstsec"


def test_a_sub_offset_counts_from_the_entry_behind_the_offset_or_from_none(streams: Streams) -> None:
    """A deleted entry has no bytes, and the bytes of the next one do not belong to it."""
    create(streams, "a")
    for body, key in ((b"one", None), (b"gone", "gone"), (b"three", None)):
        append(streams, "a", body, key=key)
    streams.engine.delete_records("a", parse_selector(None, "gone"), lambda outcome: None)
    with pytest.raises(InvalidRequestError, match="has 0 bytes"):
        fork(streams, "f", "a", offset_at(streams, "a", 1), sub=2)


def test_a_sub_offset_may_lie_inside_a_character(streams: Streams) -> None:
    create(streams, "a", body="é€".encode())
    fork(streams, "f", "a", "-1", sub=3)
    assert slice_of(streams, "f").body == "é€".encode()[:3]


DEPTH = 1_200
"""Deeper than Python calls functions within functions."""


def chain(streams: Streams, depth: int, own: bool) -> str:
    """A fork of a fork of ..., with its own entry each or with none; the name of the last."""
    create(streams, "f0", body=b"0;")
    for number in range(1, depth + 1):
        fork(streams, f"f{number}", f"f{number - 1}")
        if own:
            append(streams, f"f{number}", b"%d;" % number)
    return f"f{depth}"


@pytest.mark.parametrize("own", [False, True])
def test_a_deep_chain_of_forks_is_read_described_and_removed(
    streams: Streams, disk: FakeDisk, clock: ManualClock, own: bool
) -> None:
    last = chain(streams, DEPTH, own)
    whole = "".join(f"{number};" for number in range(DEPTH + 1 if own else 1))
    assert text(streams, last) == whole
    checkpoint(streams.engine)
    again = reopened(disk, clock)
    assert text(again, last) == whole
    topic = again.topic(last)
    assert (removed_count(topic), is_whole(topic, 1, topic.head), first_readable(topic)) == (0, True, 1)
    middle = Position(topic.head // 2)
    assert read_offset(topic, offset_of(topic, middle)) == middle
    assert again.engine.read_now(last, ReadRequest()).count == 1
    for number in range(DEPTH + 1):
        delete(again, f"f{number}")
    for _ in range(DEPTH):
        again.engine.streams.tick()
    assert not again.engine.core.topics


def test_the_holder_of_an_inherited_entry_is_found_in_few_steps(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = streams.topic(chain(streams, 500, own=True))
    assert last.origin is not None
    last.origin.holder(1)
    steps = 0
    parent = topic_module.Inheritance.parent.fget  # type: ignore[attr-defined]

    def counted(origin: topic_module.Inheritance) -> Topic:
        nonlocal steps
        steps += 1
        assert parent is not None
        found = parent(origin)
        assert isinstance(found, Topic)
        return found

    monkeypatch.setattr(topic_module.Inheritance, "parent", property(counted))
    for seq in range(1, last.head):
        steps = 0
        assert last.origin.holder(seq)[0].name == f"f{seq - 1}"
        assert steps <= 40


def test_forks_that_hold_nothing_of_a_chain_are_left_out(streams: Streams) -> None:
    last = streams.topic(chain(streams, 50, own=False))
    assert last.origin is not None
    assert last.origin.parent is streams.topic("f0")


def test_the_frame_of_a_fork_does_not_grow_with_its_depth(streams: Streams) -> None:
    chain(streams, 40, own=True)
    state = stream_of(streams.topic("f40"))
    assert state is not None
    assert state.part(streams.topic("f40")).epochs == []


def test_epochs_that_an_earlier_version_stored_are_derived(
    streams: Streams, disk: FakeDisk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain(streams, 3, own=True)
    offsets = [offset_at(streams, "f3", counter) for counter in range(5)]
    topic = streams.topic("f3")
    state = stream_of(topic)
    assert state is not None
    epochs = [(counter, streams.topic(f"f{counter - 1}").epoch) for counter in (1, 2, 3)]
    written, earlier = StreamState.part, msgspec.structs.replace(state.part(topic), epochs=epochs)
    monkeypatch.setattr(StreamState, "part", lambda self, of: earlier if of is topic else written(self, of))
    checkpoint(streams.engine)
    monkeypatch.undo()
    again = reopened(disk, clock)
    assert [offset_at(again, "f3", counter) for counter in range(5)] == offsets
    found = stream_of(again.topic("f3"))
    assert found is not None
    assert found.epochs == ()


class Tree:
    """Streams and their forks as plain lists: the inherited entries, and the deleted ones of each."""

    def __init__(self, streams: Streams, dice: random.Random) -> None:
        self.streams, self.dice = streams, dice
        self.entries: dict[str, list[tuple[str, int]]] = {}
        """The holder and seq of every entry of a stream."""
        self.parents: dict[str, str] = {}
        self.hidden: dict[str, int] = {}
        self.heads: dict[str, int] = {}

    def step(self) -> None:
        names = list(self.entries)
        act = self.dice.choice(("create", "fork", "fork", "append", "append", "append", "delete"))
        if act == "create" or not names:
            name = f"s{len(names)}"
            create(self.streams, name, "application/json")
            self.entries[name] = []
        elif act == "fork":
            source, name = self.dice.choice(names), f"s{len(names)}"
            at = self.dice.randint(0, len(self.entries[source]))
            fork(self.streams, name, source, offset_at(self.streams, source, at))
            self.entries[name], self.parents[name] = self.entries[source][:at], source
        elif act == "append":
            name = self.dice.choice(names)
            self.entries[name].append((name, len(self.entries[name]) + 1))
            append(self.streams, name, b'"%d %b"' % (len(self.entries[name]), name.encode()), "application/json")
        else:
            name = self.dice.choice(names)
            before = self.dice.randint(1, len(self.entries[name]) + 1)
            self.streams.engine.delete_records(name, parse_selector(before, None), lambda outcome: None)
            self.hidden[name] = max(self.hidden.get(name, 0), before)

    def left(self, name: str) -> Iterator[str]:
        """The entries that are readable in a stream: not deleted in it, nor in those from which it inherits them."""
        for holder, seq in self.entries[name]:
            at, gone = name, seq < self.hidden.get(name, 0)
            while at != holder:
                at = self.parents[at]
                gone = gone or seq < self.hidden.get(at, 0)
            if not gone:
                yield f"{seq} {holder}"


def test_trees_of_forks_read_as_a_plain_model_does(
    streams: Streams, disk: FakeDisk, clock: ManualClock, seed: int
) -> None:
    dice = random.Random(seed)
    tree = Tree(streams, dice)
    for round_ in range(6):
        for _ in range(25):
            tree.step()
        if round_ == 3:
            checkpoint(tree.streams.engine)
            tree.streams = reopened(disk, clock)
        for name in tree.entries:
            topic, expected = tree.streams.topic(name), list(tree.left(name))
            position, found = Position(0), list[str]()
            while position.counter < topic.head:
                part = slice_of(tree.streams, name, position)
                found += msgspec.json.decode(part.body)
                assert part.position > position
                position = part.position
            assert found == expected
            first = int(expected[0].split()[0]) if expected else topic.head + 1
            assert first_readable(topic) == first
            assert is_whole(topic, first, topic.head)
            if len(expected) < len(tree.entries[name]):
                assert removed_count(topic)
