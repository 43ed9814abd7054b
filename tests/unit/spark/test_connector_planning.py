"""Offsets, options and pieces of the connector, without Spark and without a server."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model.seq_ranges import Ranges, SeqRange
from topics.spark.connector.options import (
    PLAIN_MAX,
    Bound,
    DataLossError,
    Losses,
    Offsets,
    OptionError,
    Point,
    from_checkpoint,
    offset,
    parse_bounds,
    read_options,
    to_checkpoint,
    write_options,
)
from topics.spark.connector.origins import PieceSize, Position, SeqSpan, limited, packed, resolve, spans
from topics.spark.connector.progress import source_lags

OFFSETS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]), st.builds(offset, st.integers(1, 2), st.integers(0, 50)), max_size=4
)


class NoOrigin:
    def positions(self, options: object) -> dict[str, Position]:
        raise AssertionError

    def first_at(self, position: Position, ts: int) -> int:
        return 30

    def last_before(self, position: Position, ts: int) -> int:
        return 35

    def lost_before(self, position: Position) -> Ranges:
        raise AssertionError

    def report(self, spans: object) -> list[tuple[str, SeqRange, str]]:
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
def test_valid_starting_offsets(text: str, bound: Bound) -> None:
    assert parse_bounds(text, "startingOffsets") == bound


@pytest.mark.parametrize(
    "text", ["first", "{", '{"a": -1}', '{"a": true}', '{"a": "first"}', '{"a": {"epoch": 1}}', "[]"]
)
def test_invalid_starting_offsets(text: str) -> None:
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
    # A batch is a snapshot: it does not reach beyond the current records.
    assert resolve(Bound("latest", {"a": Point(50)}), options, positions, origin, False)["a"] == offset(3, 40)
    with pytest.raises(OptionError, match="made again"):
        resolve(Bound("earliest", {"a": Point(20, 2)}), options, positions, origin, True)
    timed = read_options({"topics": "a", "startingTimestamp": "2026-01-01T00:00:00Z"}, streaming=False)
    assert resolve(Bound("earliest"), timed, positions, origin, True)["a"] == offset(3, 30)
    bounded = read_options({"topics": "a", "endingTimestamp": "2026-01-01T00:00:00Z"}, streaming=False)
    assert resolve(Bound("latest"), bounded, positions, origin, False)["a"] == offset(3, 35)


# Pieces


def test_spans_report_of_topics_that_went_or_were_made_again() -> None:
    start = {"a": offset(1, 5), "b": offset(1, 5), "gone": offset(1, 2)}
    end = {"a": offset(1, 9), "b": offset(2, 3), "new": offset(3, 4)}
    losses = Losses(fail=False)
    assert spans(start, end, losses) == [SeqSpan("a", 1, 5, 9), SeqSpan("b", 2, 0, 3), SeqSpan("new", 3, 0, 4)]
    with pytest.raises(DataLossError, match="deleted"):
        spans(start, end, Losses(fail=True))


SIZES = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.integers(0, 30), max_size=4)


@given(OFFSETS, OFFSETS, st.integers(1, 20), st.integers(1, 100), st.integers(1, 5), SIZES)
def test_pieces_are_the_spans_without_overlap_and_always_the_same(
    start: Offsets, end: Offsets, records: int, most_bytes: int, pieces: int, sizes: dict[str, int]
) -> None:
    found = spans(start, end, Losses(fail=False))
    size = PieceSize(records, most_bytes, pieces)
    cut = packed(found, size, sizes)
    seqs = [(one.topic, seq) for piece in cut for one in piece for seq in range(one.after + 1, one.to + 1)]
    assert seqs == [(span.topic, seq) for span in found for seq in range(span.after + 1, span.to + 1)]
    for piece in cut:
        assert all(one.after < one.to for one in piece)
        lengths = [(one.to - one.after, sizes.get(one.topic, 0)) for one in piece]
        assert sum(length for length, _ in lengths) <= records
        # One record is always given, however long.
        known = [(length, each) for length, each in lengths if each]
        assert sum(length * each for length, each in known) <= most_bytes or sum(length for length, _ in known) == 1
    assert len(cut) >= min(pieces, len(seqs))
    assert cut == packed(found, size, sizes)


def test_many_small_topics_share_a_task_and_a_large_one_is_cut_by_its_bytes() -> None:
    small = [SeqSpan(f"t{number}", 1, 0, 50) for number in range(2000)]
    sizes = {span.topic: 100 for span in small}
    assert len(packed(small, PieceSize(100_000, 32_000_000), sizes)) == 1
    assert len(packed(small, PieceSize(100_000, 1_000_000), sizes)) == 10
    large = [SeqSpan("large", 1, 0, 50_000)]
    assert len(packed(large, PieceSize(100_000, 32_000_000), {"large": 10_000})) == 16


def test_offsets_of_many_topics_are_written_in_few_bytes() -> None:
    offsets = {f"tenant-{number % 97}/events-{number}": offset(number + 3, number * 37) for number in range(10_000)}
    written = json.dumps(to_checkpoint(offsets))
    assert from_checkpoint(json.loads(written)) == offsets
    assert len(written) * 5 < len(json.dumps(offsets))
    few = {"packed": offset(1, 2), "b": offset(3, 4)}
    assert to_checkpoint(few) == few == from_checkpoint(few)


@given(st.dictionaries(st.text(), st.builds(offset, st.integers(0, 2**62), st.integers(0, 2**62)), max_size=120))
def test_offsets_come_out_of_a_checkpoint_as_they_went_in(offsets: Offsets) -> None:
    assert from_checkpoint(to_checkpoint(offsets)) == offsets
    many = {**{f"{number}": offset(number, 1) for number in range(PLAIN_MAX)}, **offsets}
    assert from_checkpoint(json.loads(json.dumps(to_checkpoint(many)))) == many


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


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_limit_below_the_number_of_topics_comes_to_all_of_them(limit: int) -> None:
    """Also while earlier topics go on to get records."""
    current: Offsets = {name: offset(1, 0) for name in "abcd"}
    for turn in range(1, 13):
        step = limited(current, {**{name: offset(1, 10 * turn) for name in "abc"}, "d": offset(1, 1_000)}, limit)
        assert sum(step[name]["seq"] - current[name]["seq"] for name in step) == limit
        current = step
    assert {to["seq"] for to in current.values()} == {12 * limit // 4}


# Options


def test_options_have_names_in_any_case_and_unknown_ones_are_refused() -> None:
    options = read_options({"TOPIC": "a", "maxrecordspertrigger": "5", "checkpointLocation": "x"}, streaming=True)
    assert options.topics == ("a",)
    assert options.max_records == 5
    assert options.starting == Bound("latest")
    with pytest.raises(OptionError, match="there is no option 'topci'"):
        read_options({"topci": "a"}, streaming=False)


def test_a_stream_begins_at_the_moment_that_it_was_reported() -> None:
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
        ({"topic": "a", "columns": "seq,size"}, False, "there is no column size"),
        ({"topic": "a", "columns": "seq", "typed": "true"}, False, "leave out columns or typed"),
        ({"topic": "a", "metaAs": "list"}, False, "json or map"),
        ({"topic": "a", "minRecordsPerTrigger": "9", "maxRecordsPerTrigger": "5"}, True, "more than maxRecords"),
        ({"topic": "a", "startingTimestamp": '{"a": "soon"}'}, False, "ISO 8601"),
        ({"topic": "a", "endingTimestamp": '{"a": []}'}, False, "or JSON such as"),
    ],
)
def test_wrong_options_are_reported(given: dict[str, str], streaming: bool, message: str) -> None:
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


def test_times_may_be_given_by_topic() -> None:
    given = {"topics": "a,b", "startingTimestamp": '{"a": "2026-01-01", "b": 7}', "endingTimestamp": "9"}
    options = read_options(given, streaming=False)
    assert [options.from_of(name) for name in ("a", "b", "c")] == [1_767_225_600_000, 7, 0]
    assert [options.to_of(name) for name in ("a", "b")] == [9, 9]


def test_lag_is_counted_from_the_offsets_of_a_progress() -> None:
    end = {"orders": {"epoch": 1, "seq": 5}, "gone": {"epoch": 1, "seq": 9}, "again": {"epoch": 1, "seq": 9}}
    latest = {"orders": {"epoch": 1, "seq": 25}, "again": {"epoch": 2, "seq": 3}, "new": {"epoch": 4, "seq": 2}}
    source = {"endOffset": end, "latestOffset": latest, "processedRowsPerSecond": 5.0}
    other = {"endOffset": 7, "latestOffset": 9}
    [found] = source_lags({"sources": [source, other]})
    assert (found.records, found.seconds, found.topics) == (25, 5.0, {"orders": 20, "again": 3, "new": 2})
    [done] = source_lags({"sources": [{**source, "latestOffset": end, "processedRowsPerSecond": 0.0}]})
    assert (done.records, done.seconds, done.topics) == (0, 0.0, {})
    [idle] = source_lags({"sources": [{**source, "processedRowsPerSecond": 0.0}]})
    assert idle.seconds is None


def test_lag_lists_only_the_topics_that_are_furthest_behind() -> None:
    end = to_checkpoint({f"t{n:03}": {"epoch": 1, "seq": 0} for n in range(150)})
    latest = to_checkpoint({f"t{n:03}": {"epoch": 1, "seq": n} for n in range(150)})
    [found] = source_lags({"sources": [{"endOffset": end, "latestOffset": latest}]})
    assert found.records == sum(range(150))
    assert next(iter(found.topics.items())) == ("t149", 149)
    assert len(found.topics) == 100


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
    losses.record_loss("a", 3, 7, "cap")
    losses.record_loss("a", 9, 8, "recreated")
    assert losses.records == 5
    with pytest.raises(DataLossError, match="records 3 to 7 are gone"):
        Losses(fail=True).record_loss("a", 3, 7, "cap")
