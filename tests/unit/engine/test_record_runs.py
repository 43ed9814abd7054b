import pytest

from tests.unit.conftest import HOMES, append, checkpoint, delete, eq, move, open_with_cold, topic
from topics.engine.engine import Engine
from topics.engine.topic import Block, Run, Segment, first_live, has_nodes, live_ranges
from topics.log.frame import BlockParts
from topics.log.segment import DELETED
from topics.model.records import Record
from topics.testing import ManualClock
from topics.wire.record_encoding import encode_fragments

homes = pytest.mark.parametrize("home", HOMES)
X = bytes((DELETED,))


def block_of(values: list[object], first_seq: int = 1, base: int = 0, ts: int = 100, **record: str) -> Block:
    records = [Record.of(value, **record) for value in values]  # type: ignore[arg-type]
    text, rows, payload, traits = encode_fragments(records, first_seq, ts, None, base)
    return Block(first_seq, ts, payload, base, traits, None, rows, text)


# Live ranges


@pytest.mark.parametrize(
    ("flags", "lo", "hi", "ranges"),
    [
        (None, 0, 5, [(0, 5)]),
        (None, 2, 2, []),
        (b"\0\0\0", 0, 3, [(0, 3)]),
        (X + b"\0\0", 0, 3, [(1, 3)]),
        (b"\0" + X + b"\0", 0, 3, [(0, 1), (2, 3)]),
        (b"\0\0" + X, 0, 3, [(0, 2)]),
        (X * 3, 0, 3, []),
        (b"\0" + X + X + b"\0", 0, 4, [(0, 1), (3, 4)]),
        (b"\0" + X + b"\0\0", 1, 4, [(2, 4)]),
        (b"\0" + X + b"\0\0", 2, 3, [(2, 3)]),
        (b"\0" + X + b"\0\0", 0, 1, [(0, 1)]),
        (b"\x01\xff\xd4", 0, 3, [(0, 3)]),
    ],
)
def test_live_ranges_are_what_no_flag_marks(
    flags: bytes | None, lo: int, hi: int, ranges: list[tuple[int, int]]
) -> None:
    # The last row: only the exact sentinel means deleted, for any other value of a damaged byte.
    assert live_ranges(flags, lo, hi) == ranges


# Blocks


def test_a_block_knows_its_extent() -> None:
    block = block_of([1, 22, 333], first_seq=5, base=10)
    assert (block.count, block.last_seq, block.live, block.live_bytes, block.payload_bytes) == (3, 7, 3, 6, 6)
    assert block.next_base == 10 + len(block.text) + 1
    assert block.memory_bytes == len(block.text) + len(block.rows)
    assert block.view.count == 3
    assert block.flags is None


def test_a_block_is_made_of_what_was_logged() -> None:
    made = block_of([1, 2], first_seq=5, base=10)
    parts = BlockParts(5, 100, made.payload_bytes, 2, 10, made.traits, "k", made.rows, made.text)
    block = Block.of(parts)
    assert (block.first_seq, block.ts, block.count, block.key, block.text) == (5, 100, 2, "k", made.text)
    assert block.live == 2


# Segments


def blocks() -> list[Block]:
    first = block_of([1, 2], first_seq=5, base=10, ts=100, tag="x")
    return [first, block_of([33], first_seq=7, base=first.next_base, ts=200, node="n")]


def test_a_segment_is_what_its_blocks_are_together() -> None:
    parts = blocks()
    segment = Segment.of_blocks(parts)
    assert (segment.first_seq, segment.last_seq, segment.count) == (5, 7, 3)
    assert (segment.payload_bytes, segment.live, segment.live_bytes) == (4, 3, 4)
    assert (segment.first_ts, segment.last_ts) == (100, 200)
    assert segment.text_bytes == len(parts[0].text) + 1 + len(parts[1].text)
    assert segment.traits == parts[0].traits | parts[1].traits
    assert segment.has_tags
    assert has_nodes(segment)
    assert (segment.flags, segment.marked, segment.synced, segment.cold) == (None, 0, False, False)


def test_a_segment_takes_the_flags_of_its_blocks_over() -> None:
    parts = blocks()
    parts[0].flags = bytearray(b"\0" + X)
    segment = Segment.of_blocks(parts)
    assert bytes(segment.flags or b"") == b"\0" + X + b"\0"
    assert segment.marked == 1


def test_a_segment_read_back_from_a_snapshot_is_the_same() -> None:
    segment = Segment.of_blocks(blocks())
    again = Segment(segment.state())
    assert again.state() == segment.state()
    assert again.synced
    assert again.blocks is None


def test_flags_the_file_does_not_have_yet_travel_with_the_snapshot() -> None:
    segment = Segment.of_blocks(blocks())
    segment.flags, segment.flag_changes, segment.marked = bytearray(b"\0" + X + b"\0"), 1, 1
    again = Segment(segment.state())
    assert bytes(again.flags or b"") == b"\0" + X + b"\0"
    assert again.flag_changes


# Reaching into runs


def engine_in(home: str) -> tuple[Engine, Run]:
    """Six records of different sizes in two batches, at two times."""
    engine = open_with_cold()
    append(engine, "t", Record.of(1, tag="a"), Record.of(22), Record.of(333, tag="b"))
    append(engine, "t", Record.of(4444), Record.of(55555, meta={"m": 1}), Record.of(6, tag="a"))
    move(engine, "t", home)
    run = topic(engine, "t").first_run()
    assert run is not None
    return engine, run


@homes
def test_views_cover_what_was_asked_for(home: str) -> None:
    engine, run = engine_in(home)
    for lo in range(run.count):
        for hi in range(lo + 1, run.count + 1):
            found: list[int] = []
            for view, view_lo, view_hi, offset in engine.core.reader.views(1, run, lo, hi):
                found += range(offset + view_lo, offset + view_hi)
                assert bytes(view.whole(view_lo, view_hi)).startswith(
                    b'{"$seq":%d' % (run.first_seq + offset + view_lo)
                )
            assert found == list(range(lo, hi))


@homes
def test_payload_bytes_of_ranges(home: str) -> None:
    engine, run = engine_in(home)
    sizes = [1, 2, 3] if home == "tail" else [1, 2, 3, 4, 5 + 7, 1]
    reader = engine.core.reader
    assert reader.payload_bytes(1, run, [(0, run.count)]) == sum(sizes) == run.payload_bytes
    for lo in range(run.count):
        assert reader.payload_bytes(1, run, [(lo, lo + 1)]) == sizes[lo]
    assert reader.payload_bytes(1, run, [(0, 1), (2, 3)]) == sizes[0] + sizes[2]
    assert reader.payload_bytes(1, run, []) == 0


@homes
def test_flags_are_none_until_something_is_deleted(home: str) -> None:
    engine, run = engine_in(home)
    assert engine.core.reader.flags(1, run) is None
    delete(engine, "t", match=eq("b"))
    flags = engine.core.reader.flags(1, run)
    assert flags is not None
    assert [index for index, flag in enumerate(flags) if flag == DELETED] == [2]


@pytest.mark.parametrize("home", ["sealed", "cold"])
def test_a_segment_with_marks_in_its_file_looks_there(home: str) -> None:
    engine, run = engine_in(home)
    delete(engine, "t", match=eq("b"))
    checkpoint(engine)
    assert run.flags is None
    flags = engine.core.reader.flags(1, run)
    assert flags is not None
    assert flags.count(DELETED) == 1


@pytest.mark.parametrize("home", HOMES)
def test_how_many_records_from_the_front_are_older_than_a_deadline(home: str) -> None:
    clock = ManualClock(1000)
    engine = open_with_cold(clock=clock)
    append(engine, "t", 1, 2)
    clock.advance(100)
    append(engine, "t", 3)
    move(engine, "t", home)
    reader, runs = engine.core.reader, list(topic(engine, "t").runs_from(1))
    expired = [sum(reader.written_before(1, run, deadline) for run in runs) for deadline in (1000, 1001, 1100, 1101)]
    assert expired == [sum(reader.before(1, run, ts) for run in runs) for ts in (1000, 1001, 1100, 1101)]
    assert expired == [0, 2, 2, 3]


@pytest.mark.parametrize("flags", [None, b"....", b"D...", b"DD.D", b"DDDD", b"D.DD", b".D.D"])
@pytest.mark.parametrize("lo", range(5))
def test_the_first_live_one_is_where_the_first_live_range_begins(flags: bytes | None, lo: int) -> None:
    marks = None if flags is None else bytearray(DELETED if flag == ord("D") else 0 for flag in flags)
    ranges = live_ranges(marks, lo, 4)
    assert first_live(marks, lo, 4) == (ranges[0][0] if ranges else 4)
