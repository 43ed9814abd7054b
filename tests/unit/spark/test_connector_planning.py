"""Offsets, options and pieces of the connector, without Spark and without a server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.spark.connector.loss import DataLossError, Losses
from topics.spark.connector.offsets import Bound, Offsets, Point, offset, parse_bounds
from topics.spark.connector.options import OptionError, read_options, write_options
from topics.spark.connector.origins import Position
from topics.spark.connector.planning import SeqSpan, limited, resolve, spans, split

OFFSETS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]), st.builds(offset, st.integers(1, 2), st.integers(0, 50)), max_size=4
)


class NoOrigin:
    def positions(self, options: object) -> dict[str, Position]:
        raise AssertionError

    def first_at(self, position: Position, ts: int) -> int:
        return 30

    def report(self, topic: str, after: int, to: int, losses: Losses) -> None:
        raise AssertionError


# Offsets


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", Bound("earliest")),
        ("latest", Bound("latest")),
        ('{"a": 7}', Bound("earliest", {"a": Point(7)})),
        ('{"a": {"seq": 7, "epoch": 2}, "b": "latest"}', Bound("earliest", {"a": Point(7, 2), "b": "latest"})),
    ],
)
def test_what_a_start_may_be(text: str, bound: Bound) -> None:
    assert parse_bounds(text, "startingOffsets") == bound


@pytest.mark.parametrize(
    "text", ["first", "{", '{"a": -1}', '{"a": true}', '{"a": "first"}', '{"a": {"epoch": 1}}', "[]"]
)
def test_what_a_start_may_not_be(text: str) -> None:
    with pytest.raises(ValueError, match="accepted is earliest, latest or JSON"):
        parse_bounds(text, "startingOffsets")


def test_bounds_become_offsets_of_the_topics_that_are_there() -> None:
    positions = {"a": Position("a", 3, 11, 40), "b": Position("b", 4, 1, 0)}
    options = read_options({"topics": "a,b"}, streaming=False)
    origin = NoOrigin()
    assert resolve(Bound("earliest"), options, positions, origin, True) == {"a": offset(3, 10), "b": offset(4, 0)}
    assert resolve(Bound("latest"), options, positions, origin, False) == {"a": offset(3, 40), "b": offset(4, 0)}
    given = Bound("earliest", {"a": Point(20, 3)})
    assert resolve(given, options, positions, origin, True)["a"] == offset(3, 20)
    with pytest.raises(OptionError, match="made again"):
        resolve(Bound("earliest", {"a": Point(20, 2)}), options, positions, origin, True)
    timed = read_options({"topics": "a", "startingTimestamp": "2026-01-01T00:00:00Z"}, streaming=False)
    assert resolve(Bound("earliest"), timed, positions, origin, True)["a"] == offset(3, 30)


# Pieces


def test_spans_tell_of_topics_that_went_or_were_made_again() -> None:
    start = {"a": offset(1, 5), "b": offset(1, 5), "gone": offset(1, 2)}
    end = {"a": offset(1, 9), "b": offset(2, 3), "new": offset(3, 4)}
    losses = Losses(fail=False)
    assert spans(start, end, losses) == [SeqSpan("a", 1, 5, 9), SeqSpan("b", 2, 0, 3), SeqSpan("new", 3, 0, 4)]
    with pytest.raises(DataLossError, match="deleted"):
        spans(start, end, Losses(fail=True))


@given(OFFSETS, OFFSETS, st.integers(1, 20), st.integers(1, 5))
def test_pieces_are_the_spans_without_overlap_and_always_the_same(
    start: Offsets, end: Offsets, records: int, pieces: int
) -> None:
    found = spans(start, end, Losses(fail=False))
    cut = split(found, records, pieces)
    seqs = [(piece.topic, seq) for piece in cut for seq in range(piece.after + 1, piece.to + 1)]
    assert seqs == [(span.topic, seq) for span in found for seq in range(span.after + 1, span.to + 1)]
    assert all(0 < piece.to - piece.after <= records for piece in cut)
    assert len(cut) >= min(pieces, len(seqs))
    assert cut == split(found, records, pieces)


@given(OFFSETS, OFFSETS, st.integers(1, 40))
def test_a_limit_bounds_a_batch_and_every_batch_gets_on(start: Offsets, end: Offsets, limit: int) -> None:
    def length(before: Offsets, after: Offsets) -> int:
        return sum(span.to - span.after for span in spans(before, after, Losses(fail=False)))

    goal = {
        name: to
        if name not in start or start[name]["epoch"] != to["epoch"]
        else max(to, start[name], key=lambda o: o["seq"])
        for name, to in end.items()
    }
    begin = {name: before for name, before in start.items() if name in goal}
    current, left = begin, length(begin, goal)
    for _ in range(300):
        if not left:
            return
        step = limited(current, goal, limit)
        assert 0 < length(current, step) <= limit
        current, left = step, length(step, goal)
    raise AssertionError("it never reaches the end")


# Options


def test_options_have_names_in_any_case_and_unknown_ones_are_refused() -> None:
    options = read_options({"TOPIC": "a", "maxrecordspertrigger": "5", "checkpointLocation": "x"}, streaming=True)
    assert options.topics == ("a",)
    assert options.max_records == 5
    assert options.starting == Bound("latest")
    with pytest.raises(OptionError, match="there is no option 'topci'"):
        read_options({"topci": "a"}, streaming=False)


def test_a_stream_begins_at_the_moment_that_it_was_told() -> None:
    moment = {"topic": "a", "startingTimestamp": "5"}
    assert read_options(moment, streaming=True).starting == Bound("earliest")
    assert read_options({**moment, "startingOffsets": "latest"}, streaming=True).starting == Bound("latest")


@pytest.mark.parametrize(
    ("given", "streaming", "message"),
    [
        ({}, False, "exactly one"),
        ({"topic": "a", "topicPattern": "b"}, False, "exactly one"),
        ({"topic": "a", "mode": "segments"}, False, "give its place in the option path"),
        ({"topic": "a", "mode": "x"}, False, "accepted is one of"),
        ({"topic": "a", "endingOffsets": "latest"}, True, "a stream has no end"),
        ({"topic": "a", "failOnDataLoss": "maybe"}, False, "true or false"),
        ({"topic": "a", "startingTimestamp": "soon"}, False, "ISO 8601"),
        ({"topic": "a", "minPartitions": "-1"}, False, "at least 1"),
    ],
)
def test_wrong_options_are_told(given: dict[str, str], streaming: bool, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_options(given, streaming)


def test_moments_may_be_written_in_several_ways() -> None:
    for text in (
        "1767225600000",
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00",
        "2026-01-01",
        "2026-01-01T01:00:00+01:00",
    ):
        assert read_options({"topic": "a", "startingTimestamp": text}, streaming=False).from_ts == 1_767_225_600_000


def test_where_records_come_from() -> None:
    def access(**given: str) -> tuple[str | None, bool]:
        found = read_options({"topic": "a", **given}, streaming=False).access
        return found.http, found.layout is not None

    assert access() == ("http://127.0.0.1:4000", False)
    assert access(path="/data") == (None, True)
    assert access(path="/data", url="http://x") == ("http://x", True)
    assert access(path="/data", url="http://x", mode="http") == ("http://x", False)
    assert access(path="/data", url="http://x", mode="segments") == (None, True)


def test_keys_are_not_shown() -> None:
    options = read_options({"topic": "a", "apiKey": "secret"}, streaming=False)
    assert "secret" not in repr(options)
    assert write_options({"apiKey": "secret"}).api_key == "secret"


def test_losses_are_counted_or_raised() -> None:
    losses = Losses(fail=False)
    losses.met("a", 3, 7, "cap")
    losses.met("a", 9, 8, "recreated")
    assert losses.records == 5
    with pytest.raises(DataLossError, match="records 3 to 7 are gone"):
        Losses(fail=True).met("a", 3, 7, "cap")
