"""The entries of hits: wherever they are, a fetch returns the same as a read."""

from typing import Any

import pytest

from tests.unit.conftest import HOMES, delete, move, open_with_cold
from tests.unit.streams.conftest import append, create, fork, slice_of
from tests.unit.streams.conftest import delete as delete_stream
from tests.unit.streams.describing import JSON, lens, update
from topics.log.segment import CHUNK_BYTES
from topics.log.segment_files import OpenSegment, SegmentDamaged
from topics.model.router_rules import TagMatch
from topics.search.service.search_service import EntryCache, Fetched, description_of, nearby
from topics.streams.stream_state import Position
from topics.streams.streams import Streams, inline_streams

SEARCH = {
    "primaryTimestampField": "time",
    "fields": {"time": {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/time"}], "column": True}},
}


def fetch(streams: Streams, name: str, seqs: list[int]) -> Fetched:
    answers: list[Any] = []
    streams.search.fetch(streams.topic(name), seqs, answers.append)
    (fetched,) = answers
    assert isinstance(fetched, Fetched)
    return fetched


def read(streams: Streams, name: str, seq: int) -> bytes | None:
    """One entry as a reader gets it."""
    found = slice_of(streams, name, Position(seq - 1), max_records=1, up_to=seq)
    return found.body[1:-1] if found.count else None


def fill(streams: Streams, name: str, first: int) -> None:
    append(streams, name, b'[{"n":%d},{"n":%d, "a":[]},{"n":%d}]' % (first, first + 1, first + 2), JSON)
    append(streams, name, b'[{"n":%d}]' % (first + 3), JSON)


@pytest.fixture
def streams() -> Streams:
    made = inline_streams(open_with_cold(segment_max_events=100))
    create(made, "a", JSON)
    update(made, "a", schema={"type": "object"}, search=SEARCH, routingKey={"jsonPointer": "/k", "required": False})
    return made


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("removed", [False, True])
def test_a_fetch_gives_what_a_read_gives(streams: Streams, home: str, removed: bool) -> None:
    fill(streams, "a", 1)
    append(streams, "a", b'[{"n":5,"k":"gone"},{"n":6},{"n":7,"k":"gone"},{"n":8}]', JSON)
    move(streams.engine, "a", home)
    fill(streams, "a", 9)
    if removed:
        delete(streams.engine, "a", match=TagMatch("gone"))
    expected = {seq: raw for seq in range(1, 13) if (raw := read(streams, "a", seq)) is not None}
    assert len(expected) == (10 if removed else 12)
    for order in (list(range(12, 0, -1)), [1, 12, 5, 7, 2, 11, 6, 3, 10, 8, 4, 9]):
        # From the third time on they were seen before.
        for _ in range(4):
            found = fetch(streams, "a", order)
            assert (found.entries, found.reached) == ({seq: expected[seq] for seq in order if seq in expected}, 12)
            assert list(found.entries) == [seq for seq in order if seq in expected]


@pytest.mark.parametrize("home", HOMES)
def test_entries_in_memory_need_no_read(streams: Streams, home: str) -> None:
    fill(streams, "a", 1)
    move(streams.engine, "a", home)
    topic = streams.topic("a")
    found = dict(nearby(streams.engine, topic, [4, 2, 3]))
    assert found == ({} if home == "cold" else {4: b'{"n":4}', 2: b'{"n":2, "a":[]}', 3: b'{"n":3}'})
    assert [list(nearby(streams.engine, topic, [seq])) for seq in (0, 5)] == [[], []], "there is nothing there"


def test_every_chunk_of_a_segment_is_checked_that_entries_are_in(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk that was checked for an entry is not checked for the next, and the check never covers another chunk."""
    size = CHUNK_BYTES // 4
    for number in range(16):
        append(streams, "a", b'[{"n":%d,"text":"%b"}]' % (number, b"x" * size), JSON)
    move(streams.engine, "a", "sealed")
    topic = streams.topic("a")
    assert len(dict(nearby(streams.engine, topic, range(16, 0, -1)))) == 16
    looked: list[tuple[int, int]] = []
    text = OpenSegment.text

    def watched(self: OpenSegment, begin: int, end: int) -> bytes:
        looked.append((begin // CHUNK_BYTES, (end - 1) // CHUNK_BYTES))
        if end > 2 * CHUNK_BYTES:
            raise SegmentDamaged(self.path, "a wrong checksum", 8, 15)
        return text(self, begin, end)

    monkeypatch.setattr(OpenSegment, "text", watched)
    found = list(nearby(streams.engine, topic, range(1, 17)))
    assert [seq for seq, _ in found] == [1, 2, 3, 4, 5, 6, 7]
    assert looked[0] == (0, 0) and looked[-1] == (1, 2)


@pytest.mark.parametrize("home", HOMES)
def test_what_was_seen_before_is_found_out_to_be_gone(streams: Streams, home: str) -> None:
    append(streams, "a", b'[{"n":1,"k":"gone"},{"n":2},{"n":3}]', JSON)
    move(streams.engine, "a", home)
    for _ in range(4):
        assert list(fetch(streams, "a", [3, 2, 1]).entries) == [3, 2, 1]
    assert (fetch(streams, "a", [3, 2, 1]).seen is None) == (home == "cold")
    delete(streams.engine, "a", match=TagMatch("gone"))
    assert list(fetch(streams, "a", [3, 2, 1]).entries) == [3, 2]
    delete(streams.engine, "a", before_seq=3)
    assert list(fetch(streams, "a", [3, 2, 1]).entries) == [3]


def test_what_was_seen_before_is_of_one_description_and_of_one_stream(streams: Streams) -> None:
    fill(streams, "a", 1)
    fork(streams, "f", "a")
    append(streams, "f", b'[{"n":50}]', JSON)
    append(streams, "a", b'[{"n":5}]', JSON)
    for _ in range(4):
        assert fetch(streams, "a", [5, 4]).entries == {5: b'{"n":5}', 4: b'{"n":4}'}
        assert fetch(streams, "f", [5, 4]).entries == {5: b'{"n":50}', 4: b'{"n":4}'}
    default = {"op": "add", "path": "/v", "schema": {"type": "integer"}, "default": 2}
    update(
        streams, "a", schema={"type": "object", "properties": {"v": {"type": "integer"}}}, lens=lens("a", 1, default)
    )
    for _ in range(4):
        assert fetch(streams, "a", [5, 4]).entries == {5: b'{"n":5,"v":2}', 4: b'{"n":4,"v":2}'}
        assert fetch(streams, "f", [5]).entries == {5: b'{"n":50}'}
    delete_stream(streams, "f")
    delete_stream(streams, "a")
    create(streams, "a", JSON)
    update(streams, "a", schema={"type": "object"}, search=SEARCH)
    append(streams, "a", b'[{"n":9},{"n":8},{"n":7},{"n":6}]', JSON)
    assert fetch(streams, "a", [4]).entries == {4: b'{"n":6}'}


def test_what_is_new_beside_what_was_seen_before_is_noted_as_well(streams: Streams) -> None:
    fill(streams, "a", 1)
    for seqs in ([4, 3], [4, 3], [4, 3, 2], [4, 3, 2]):
        fetch(streams, "a", seqs)
    seen = fetch(streams, "a", [4, 3, 2]).seen
    assert seen is not None and set(seen.raws) == {2, 3, 4}


def test_so_much_is_kept_of_what_was_seen(streams: Streams) -> None:
    topic, store = streams.topic("a"), EntryCache(3500)
    description = description_of(topic)
    seen = store.of(topic, description)
    entries = {seq: b"x" * 300 for seq in range(1, 4)} | {4: b"x" * 5000}
    assert not seen.note(entries) and not seen.raws, "they may never be met again"
    assert seen.note(entries)
    assert set(store.of(topic, description).raws) == {1, 2, 3}, "the last one is too long"
    shows, other = object(), object()
    assert not seen.shown_by(shows)
    seen.note_shown([2, 1, 9], [{"n": 2}, {"n": 1}, {}])
    known = {seq: bytes(shown) for seq, shown in seen.shown_by(shows).items()}
    assert known == {2: b'{"n":2}', 1: b'{"n":1}'}, "the other one is not known"
    assert not seen.shown_by(other), "somebody else shows them otherwise"
    for _ in range(2):
        seen.note({5: b"x" * 600})
    assert not store.of(topic, description).raws, "all is forgotten"


def test_deleted_entries_at_the_front_are_missing(streams: Streams) -> None:
    fill(streams, "a", 1)
    move(streams.engine, "a", "sealed")
    fill(streams, "a", 5)
    delete(streams.engine, "a", before_seq=3)
    assert list(fetch(streams, "a", [1, 2, 3, 6]).entries) == [3, 6]


def test_a_fork_reads_what_it_inherited(streams: Streams) -> None:
    fill(streams, "a", 1)
    fork(streams, "f", "a")
    fill(streams, "f", 5)
    assert fetch(streams, "f", [6, 2]).entries == {6: b'{"n":6, "a":[]}', 2: b'{"n":2, "a":[]}'}
