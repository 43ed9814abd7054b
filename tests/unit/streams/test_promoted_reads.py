"""Reads of streams with lenses: entries of earlier versions come out as ones of the current version, all others as they
were written."""

import json
from collections.abc import Callable

import pytest

from tests.unit.conftest import values
from tests.unit.streams.conftest import append, create, fork, slice_of
from tests.unit.streams.describing import JSON, NUMBERED, evolve, lens, rename, update
from topics.model.errors import InvalidRequestError
from topics.schema.documents import PORTION_STEPS
from topics.streams.stream_state import Position
from topics.streams.streams import Streams

COUNTED = {
    "type": "object",
    "required": ["number", "size"],
    "properties": {"number": {"type": "integer"}, "size": {"type": "string"}},
}


def fill(streams: Streams, name: str = "a") -> None:
    """Entries 0 to 2 of version 1, 3 to 5 of version 2, 6 to 8 of version 3, in blocks and in segments."""
    create(streams, name, JSON)
    update(streams, name, schema=NUMBERED, routingKey={"jsonPointer": "/key", "required": False})
    append(streams, name, b'[{"id":0},{"id":1, "key":"odd"},{"id":2}]', JSON)
    evolve(streams, name)
    append(streams, name, b'[{"number":3,"key":"odd"},{"number":4},{"number":5,"key":"odd"}]', JSON)
    grow = {"op": "add", "path": "/size", "schema": {"type": "string"}, "default": "x" * 30}
    update(streams, name, schema=COUNTED, lens=lens(name, 2, grow))
    append(streams, name, b'[{"number":6,"size":""},{"number":7,"size":"","key":"odd"},{"number":8, "size":""}]', JSON)


def numbers(body: bytes) -> list[int]:
    return [entry["number"] for entry in json.loads(body)]


def test_entries_come_out_as_ones_of_the_current_version(streams: Streams) -> None:
    fill(streams)
    found = slice_of(streams, "a")
    assert numbers(found.body) == list(range(9))
    assert found.count == 9
    assert [entry["size"] for entry in json.loads(found.body)] == ["x" * 30] * 6 + [""] * 3
    assert found.promoted_to == 3
    assert found.body.endswith(b'{"number":8, "size":""}]'), "what is current is given as it was written"


def test_a_read_of_current_entries_only_promotes_nothing(streams: Streams) -> None:
    fill(streams)
    found = slice_of(streams, "a", Position(6))
    assert (numbers(found.body), found.promoted_to) == ([6, 7, 8], 0)


@pytest.mark.parametrize("begin", range(9))
@pytest.mark.parametrize("most", [1, 2, 4, 100])
def test_from_every_place_in_every_step(streams: Streams, begin: int, most: int) -> None:
    fill(streams)
    found, position = [], Position(begin)
    while position.counter < 9:
        part = slice_of(streams, "a", position, max_records=most)
        found += numbers(part.body)
        position = part.position
    assert found == list(range(begin, 9))


@pytest.mark.parametrize("room", [1, 50, 51, 99, 100, 101, 150, 400])
def test_the_bound_is_that_of_what_is_sent(streams: Streams, room: int) -> None:
    fill(streams)
    found, position = [], Position(0)
    while position.counter < 9:
        part = slice_of(streams, "a", position, max_bytes=room)
        entries = numbers(part.body)
        assert len(part.body) - len(entries) - 1 <= room or len(entries) == 1
        found += entries
        position = part.position
    assert found == list(range(9))


def test_reads_of_a_key_are_promoted(streams: Streams) -> None:
    fill(streams)
    assert numbers(slice_of(streams, "a", key="odd").body) == [1, 3, 5, 7]
    assert numbers(slice_of(streams, "a", key="odd", max_records=1).body) == [1]


def test_bytes_and_the_other_protocol_are_as_they_were_written(streams: Streams) -> None:
    fill(streams)
    raw = slice_of(streams, "a", as_json=False)
    assert raw.body.startswith(b'{"id":0}{"id":1, "key":"odd"}') and raw.promoted_to == 0
    assert values(streams.engine, "a")[0] == {"id": 0}


def test_a_fork_promotes_what_it_inherits_by_its_own_lenses(streams: Streams) -> None:
    fill(streams)
    offset = append(streams, "a", b'{"number":9,"size":"s"}', JSON).next_offset
    fork(streams, "f", "a", offset)
    append(streams, "f", b'{"number":10,"size":"f"}', JSON)
    assert numbers(slice_of(streams, "f").body) == list(range(11))
    update(
        streams, "f", schema=NUMBERED | {"required": ["id", "size"]},
        lens=lens("f", 3, {"op": "rename", "from": "/number", "to": "/id"}),
    )  # fmt: skip
    assert [entry["id"] for entry in json.loads(slice_of(streams, "f").body)] == list(range(11))
    assert numbers(slice_of(streams, "a").body) == list(range(10))


def long_chain(streams: Streams, versions: int, renames: int) -> None:
    """A stream whose entries of version 1 are shown after many ops."""
    create(streams, "a", JSON)
    update(streams, "a", schema=NUMBERED)
    append(streams, "a", b"[" + b",".join([b'{"id":%d}' % number for number in range(200)]) + b"]", JSON)
    back_and_forth = [rename("/id", "/x"), rename("/x", "/id")] * (renames // 2)
    for version in range(1, versions):
        update(streams, "a", schema=NUMBERED, lens=lens("a", version, *back_and_forth))


def test_an_answer_has_a_budget_of_ops_and_the_next_one_continues(streams: Streams) -> None:
    long_chain(streams, versions=4, renames=256)
    position, sizes, found = Position(0), list[int](), list[int]()
    while position.counter < 200:
        part = slice_of(streams, "a", position)
        sizes.append(part.count)
        found += [entry["id"] for entry in json.loads(part.body)]
        position = part.position
    assert found == list(range(200))
    assert max(sizes) == PORTION_STEPS // 768


def test_an_entry_that_needs_many_ops_is_promoted_by_a_thread(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_chain(streams, versions=90, renames=256)
    topic, read_as = streams.topic("a"), streams.engine.read_as
    elsewhere: list[bool] = []

    def watched(*given: object, **named: object) -> None:
        elsewhere.append(bool(named.get("elsewhere")))
        read_as(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(streams.engine, "read_as", watched)
    found = slice_of(streams, "a")
    assert elsewhere == [False, True]
    assert json.loads(found.body)[0] == {"id": 0}
    assert topic.head == 200


def test_a_long_proof_is_made_by_a_thread(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    def union(least: int) -> dict[str, object]:
        added = {name: {"type": "integer"} for name in "nm"}
        below: dict[str, object] = {"type": "string", "minLength": least}
        for _ in range(3):
            below = {"anyOf": [{"type": "array", "items": below, "minItems": n} for n in range(6)]}
        return {"type": "object", "required": ["id"], "properties": {"id": below, **added}}

    create(streams, "a", JSON)
    update(streams, "a", schema=union(1))
    done: list[str] = []
    in_background = streams.engine.in_background

    def watched(work: Callable[[], object], then: Callable[[object], None], name: str = "") -> None:
        done.append("thread")
        in_background(work, then, name)

    monkeypatch.setattr(streams.engine, "in_background", watched)
    touch = {"op": "add", "path": "/n", "schema": {"type": "integer"}, "default": 1}
    new = union(0)
    update(streams, "a", schema=new, lens=lens("a", 1, touch))
    assert done == ["thread"]
    with pytest.raises(InvalidRequestError, match="incompatible"):
        update(streams, "a", schema=union(5), lens=lens("a", 2, {**touch, "path": "/m"}))
    assert done == ["thread"] * 2
