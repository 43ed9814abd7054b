"""Ids of events: they contain all positions, and nothing else is accepted as an id."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.api.v0.watch import MAPPED_TOPICS_MAX, IdWriter, encode_map, mark_of, read_id, read_marks
from topics.model.limits import MAX_U64

SEQS = st.integers(0, MAX_U64)


def test_the_id_of_few_topics_is_the_map_of_the_protocol() -> None:
    cursors = {"jobs": 5210, "events": 88130}
    assert encode_map(cursors) == b"eyJqb2JzIjo1MjEwLCJldmVudHMiOjg4MTMwfQ"
    assert IdWriter(cursors).write() == encode_map(cursors)


@given(st.lists(SEQS, min_size=1, max_size=300))
def test_an_id_states_where_everything_stood(seqs: list[int]) -> None:
    cursors = {f"topic-{number}": seq for number, seq in enumerate(seqs)}
    text = IdWriter(cursors).write().decode()
    assert read_id(text, cursors) == (cursors, 0)
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    assert raw.startswith(b"{") == (len(seqs) <= MAPPED_TOPICS_MAX)


def test_an_id_follows_the_positions_as_they_move() -> None:
    cursors = {f"t{number}": 0 for number in range(65)}
    writer = IdWriter(cursors)
    before = writer.write()
    cursors["t7"] = 2**40
    assert read_id(writer.write().decode(), cursors) == (cursors, 0)
    assert writer.write() != before


@given(
    st.integers(1, 80),
    st.lists(st.tuples(st.integers(0, 79), st.one_of(st.integers(0, 300), SEQS)), min_size=1, max_size=40),
)
def test_an_id_that_is_moved_on_is_the_one_that_is_written_anew(count: int, moves: list[tuple[int, int]]) -> None:
    cursors = {f"t{number}": number for number in range(count)}
    writer = IdWriter(cursors)
    writer.generation = 3
    for number, seq in moves:
        moved = bytes(writer.move(f"t{number % count}", seq))
        assert cursors[f"t{number % count}"] == seq
        anew = IdWriter(cursors)
        anew.generation = 3
        assert moved == anew.write()


def test_an_id_of_many_topics_means_nothing_for_others() -> None:
    cursors = {f"t{number}": number for number in range(65)}
    text = IdWriter(cursors).write().decode()
    assert read_id(text, [*cursors, "another"]) is None
    assert read_id(text, list(cursors)[1:]) is None
    assert read_id(text, reversed(list(cursors))) == (cursors, 0)


@pytest.mark.parametrize("count", [1, 64, 65, 256])
def test_an_id_reports_its_generation(count: int) -> None:
    writer = IdWriter({f"t{number}": number for number in range(count)})
    writer.generation = 7
    seen = read_id(writer.write().decode(), [f"t{number}" for number in range(count)])
    assert seen == ({f"t{number}": number for number in range(count)}, 7)


@pytest.mark.parametrize(
    "text",
    ["", "!", "é", "e30x", "bnVsbA", "W10", "eyJhIjotMX0", "eyJhIjoxLjV9", "eyJhIjoiMSJ9", "AQ", "AgAA", "A" * 9],
)
def test_invalid_event_id_is_none(text: str) -> None:
    assert read_id(text, ["a"]) is None


@given(st.text(max_size=60))
def test_no_text_is_too_strange(text: str) -> None:
    read_id(text, ["a", "b"])


@given(st.lists(st.tuples(SEQS, SEQS), min_size=1, max_size=130), st.integers(0, 5))
def test_marks_of_the_epochs_are_read_back_and_hidden_from_parsers(pairs: list[tuple[int, int]], gen: int) -> None:
    cursors = {f"topic-{number}": seq for number, (seq, _) in enumerate(pairs)}
    epochs = {f"topic-{number}": epoch for number, (_, epoch) in enumerate(pairs)}
    writer = IdWriter(cursors, epochs)
    writer.generation = gen
    text = writer.write().decode()
    assert read_id(text, cursors) == (cursors, gen)
    assert read_marks(text, cursors) == {name: mark_of(epoch) for name, epoch in epochs.items()}
    assert bytes(writer.move("topic-0", 7)).decode() == writer.write().decode()
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(pairs) <= MAPPED_TOPICS_MAX and not gen:
        assert json.loads(raw) == {f"topic-{number}": seq for number, (seq, _) in enumerate(pairs)}


@pytest.mark.parametrize("count", [1, 64, 65])
def test_an_id_of_an_earlier_release_has_no_marks(count: int) -> None:
    cursors = {f"t{number}": number for number in range(count)}
    assert read_marks(IdWriter(cursors).write().decode(), cursors) == {}
    assert read_marks("eyJ0IjozfQo", ["t"]) == {}, "a line end behind the map"
