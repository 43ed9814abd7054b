"""Deletes out of sealed segments are reported to the archive until it has confirmed them."""

import random
from collections.abc import Iterable, Iterator

import pytest

from tests.unit.conftest import append, checkpoint, delete, eq, killed, move, open_engine, put, topic
from topics.engine import delete_export
from topics.engine.delete_export import EXPORTED_MAX, harmless_between
from topics.engine.engine import Engine
from topics.engine.read import EXACT_MAX, remember
from topics.engine.topic import Topic
from topics.log.catalog_files import read_catalog
from topics.log.fs import replace_file
from topics.log.layout import Layout
from topics.log.snapshot_files import Pieces, pack, packed_ranges
from topics.model.records import Record
from topics.model.seq_ranges import LossReason, Ranges, SeqRange, union
from topics.testing import FakeDisk

LAYOUT = Layout("data")


def reported(disk: FakeDisk, name: str = "orders") -> list[tuple[int, list[tuple[int, int]]]]:
    found = read_catalog(disk, LAYOUT)
    assert found is not None
    return [(removal.number, removal.ranges) for removal in found.by_name()[name].removals]


@pytest.fixture
def engine(disk: FakeDisk) -> Engine:
    engine = open_engine(disk, track_removals=True)
    for tag in ("a", "b", "c"):
        append(engine, "orders", 1, 2, tag=tag)
    move(engine, "orders", "sealed")
    append(engine, "orders", 7, 8, tag="a")
    assert checkpoint(engine)
    return engine


def test_only_sealed_records_count(disk: FakeDisk, engine: Engine) -> None:
    delete(engine, "orders", match=eq("a"))
    assert checkpoint(engine)
    assert reported(disk) == [(engine.checkpointer.number, [(1, 2)])]


def test_a_delete_by_seq_counts_from_the_first_live_record(disk: FakeDisk, engine: Engine) -> None:
    delete(engine, "orders", before_seq=4)
    delete(engine, "orders", before_seq=6)
    assert checkpoint(engine)
    assert reported(disk) == [(engine.checkpointer.number, [(1, 5)])]


def test_deletes_in_any_order_are_one_set(disk: FakeDisk, engine: Engine) -> None:
    delete(engine, "orders", match=eq("c"))
    delete(engine, "orders", match=eq("a"))
    delete(engine, "orders", match=eq("b"))
    assert checkpoint(engine)
    assert reported(disk) == [(engine.checkpointer.number, [(1, 6)])]


def test_what_a_cap_takes_is_not_reported(disk: FakeDisk, engine: Engine) -> None:
    put(engine, "orders", cap_records=2)
    assert topic(engine, "orders").earliest == 7
    assert checkpoint(engine)
    assert reported(disk) == []


def test_what_a_cap_took_before_a_delete_is_not_reported_with_it(disk: FakeDisk) -> None:
    """The tag is found in the whole segment, and its front is gone already."""
    engine = open_engine(disk, track_removals=True)
    for number in range(6):
        append(engine, "orders", number, tag="x")
    move(engine, "orders", "sealed")
    append(engine, "orders", 6)
    assert checkpoint(engine)
    put(engine, "orders", cap_records=5)
    assert topic(engine, "orders").earliest == 3
    assert delete(engine, "orders", match=eq("x")).deleted == 4
    assert checkpoint(engine)
    assert reported(disk) == [(engine.checkpointer.number, [(3, 6)])]


def test_they_are_forgotten_once_confirmed_and_not_before(disk: FakeDisk, engine: Engine) -> None:
    delete(engine, "orders", match=eq("a"))
    assert checkpoint(engine)
    first = engine.checkpointer.number
    delete(engine, "orders", match=eq("b"))
    assert checkpoint(engine)
    assert reported(disk) == [(first, [(1, 2)]), (first + 1, [(3, 4)])]
    disk.make_dirs(LAYOUT.pipeline)
    replace_file(disk, LAYOUT.pipeline_seen, b"%d" % first)
    for _ in range(2):
        append(engine, "orders", 9)
        assert checkpoint(engine)
    assert reported(disk) == [(first + 1, [(3, 4)])]


def test_a_crash_forgets_none(disk: FakeDisk, engine: Engine) -> None:
    delete(engine, "orders", match=eq("a"))
    assert checkpoint(engine)
    delete(engine, "orders", match=eq("b"))
    after = killed(disk)
    open_engine(after, track_removals=True).close_inline()
    ranges = [part for _, parts in reported(after) for part in parts]
    assert sorted(ranges) == [(1, 2), (3, 4)]


def test_without_an_archive_nothing_is_kept(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "orders", 1, 2)
    move(engine, "orders", "sealed")
    delete(engine, "orders", before_seq=2)
    assert topic(engine, "orders").parts is None


def test_a_folder_that_ever_had_an_archive_keeps_them(disk: FakeDisk) -> None:
    disk.make_dirs(LAYOUT.pipeline)
    # A pipeline that makes indexes alone has no copies that a delete must reach.
    assert not open_engine(disk.clone()).removals.on
    replace_file(disk, LAYOUT.pipeline_seen, b"0")
    assert open_engine(disk).removals.on


def test_lists_of_ranges_are_joined_while_nobody_confirms_them(disk: FakeDisk) -> None:
    engine = open_engine(disk, track_removals=True)
    count = 3 * EXPORTED_MAX
    for number in range(count):
        append(engine, "orders", 1, tag=f"t{number}")
    append(engine, "orders", 1, tag="kept")
    move(engine, "orders", "sealed")
    for number in range(count):
        delete(engine, "orders", match=eq(f"t{number}"))
        assert checkpoint(engine)
    found = reported(disk)
    assert len(found) == EXPORTED_MAX
    assert [removal for removal, _ in found] == sorted({removal for removal, _ in found})
    assert found[-1][0] == engine.checkpointer.number
    assert found[0][1] == [(1, count - EXPORTED_MAX + 1)]
    assert union(*(ranges for _, ranges in found)) == [(1, count)]


def test_without_an_archive_they_are_forgotten_and_with_a_former_one_somebody_is_notified(
    disk: FakeDisk, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    delete(engine, "orders", match=eq("a"))
    assert checkpoint(engine)
    engine.close_inline()
    former = disk.clone()
    former.make_dirs(LAYOUT.pipeline)
    replace_file(former, LAYOUT.pipeline_seen, b"0")
    for folder, ranges in ((disk, []), (former, [(1, 2)])):
        again = open_engine(folder)
        append(again, "orders", 9)
        assert checkpoint(again)
        assert union(*(one for _, one in reported(folder))) == ranges
        warned = "deletes kept for a disabled archive" in caplog.text
        assert warned == bool(ranges)
        again.close_inline()


def scattered(disk: FakeDisk, count: int = 4 * EXACT_MAX, kept: int = 0) -> Engine:
    """Every other record is deleted, the odd ones while they are in the tail and the even ones out of a segment.

    The seq `kept` stays live.
    """
    engine = open_engine(disk, track_removals=True)
    for seq in range(1, count + 1):
        append(engine, "orders", seq, tag="kept" if seq == kept else ("late" if seq % 2 == 0 else "early"))
    delete(engine, "orders", match=eq("early"))
    move(engine, "orders", "sealed")
    append(engine, "orders", 0, tag="tail")
    assert checkpoint(engine)
    delete(engine, "orders", match=eq("late"))
    return engine


def test_many_deletes_with_nothing_left_between_them_are_one(disk: FakeDisk) -> None:
    assert checkpoint(scattered(disk))
    assert union(*(ranges for _, ranges in reported(disk))) == [(2, 4 * EXACT_MAX)]


def test_few_deletes_are_reported_exactly(disk: FakeDisk) -> None:
    assert checkpoint(scattered(disk, 20))
    assert union(*(ranges for _, ranges in reported(disk))) == [(seq, seq) for seq in range(2, 21, 2)]


def test_a_live_record_between_many_deletes_is_not_reported(disk: FakeDisk) -> None:
    assert checkpoint(scattered(disk, kept=51))
    assert union(*(ranges for _, ranges in reported(disk))) == [(2, 50), (52, 4 * EXACT_MAX)]


def test_what_a_cap_took_between_many_deletes_is_not_reported(disk: FakeDisk) -> None:
    """The archive outlives the log: evicted records stay in it."""
    count = 4 * EXACT_MAX
    engine = open_engine(disk, track_removals=True)
    for seq in range(1, count + 1):
        append(engine, "orders", seq, tag="late" if seq % 2 == 0 else "kept")
    move(engine, "orders", "sealed")
    append(engine, "orders", 0)
    assert checkpoint(engine)
    delete(engine, "orders", match=eq("late"))
    put(engine, "orders", cap_records=1)
    assert topic(engine, "orders").evict_floor == count
    assert checkpoint(engine)
    assert union(*(ranges for _, ranges in reported(disk))) == [(seq, seq) for seq in range(2, count + 1, 2)]


def test_what_the_log_lost_is_not_reported(disk: FakeDisk) -> None:
    """An archive may have the only copy of it."""
    engine = scattered(disk)
    orders, reader = topic(engine, "orders"), engine.core.reader
    assert harmless_between(orders, reader, 10, 20)
    remember(orders, 15, 15, LossReason.CORRUPT)
    assert not harmless_between(orders, reader, 10, 20)
    assert not harmless_between(orders, reader, 15, 15)
    assert harmless_between(orders, reader, 10, 14)
    assert harmless_between(orders, reader, 16, 20)
    assert checkpoint(engine)
    assert union(*(ranges for _, ranges in reported(disk))) == [(2, 14), (16, 4 * EXACT_MAX)]


def test_somebody_hears_of_many_deletes_that_wait(
    disk: FakeDisk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.engine.delete_export.MUCH_BYTES", 20)
    engine = scattered(disk, 20)
    assert "many deletes wait" not in caplog.text
    for _ in range(3):
        assert checkpoint(engine, full=True)
    assert caplog.text.count("many deletes wait for the archive") == 1


def test_the_longest_list_is_left_alone_when_lists_are_joined(disk: FakeDisk) -> None:
    engine = open_engine(disk, track_removals=True)
    many, few = 200, 3 * EXPORTED_MAX
    for seq in range(1, many + 1):
        append(engine, "orders", seq, tag="many" if seq % 2 == 0 else "kept")
    for number in range(few):
        append(engine, "orders", number, tag=f"t{number}")
        append(engine, "orders", number, tag="kept")
    move(engine, "orders", "sealed")
    delete(engine, "orders", match=eq("many"))
    assert checkpoint(engine)
    first = engine.checkpointer.number
    for number in range(few):
        delete(engine, "orders", match=eq(f"t{number}"))
        assert checkpoint(engine)
    found = reported(disk)
    assert len(found) == EXPORTED_MAX
    assert found[0] == (first, [(seq, seq) for seq in range(2, many + 1, 2)])
    assert found[-1][0] == engine.checkpointer.number
    singles = [(many + 1 + 2 * number,) * 2 for number in range(few)]
    assert union(*(ranges for _, ranges in found[1:])) == singles


def many_deletes(disk: FakeDisk, seed: int) -> tuple[Engine, list[int]]:
    """A sealed topic of 600 records, and an order in which to delete 400 of them, by tags."""
    engine = open_engine(disk, track_removals=True)
    for first in range(0, 600, 100):
        append(engine, "orders", *[Record.of(n, tag=f"t{n}") for n in range(first, first + 100)])
        move(engine, "orders", "sealed")
    return engine, random.Random(seed).sample(range(600), 400)


def assert_reported(disk: FakeDisk, deleted: list[int]) -> None:
    """Every deleted record is in the catalog, and no live one."""
    ranges = union(*(ranges for _, ranges in reported(disk)))
    assert {seq for first, last in ranges for seq in range(first, last + 1)} == {n + 1 for n in deleted}


def test_many_deletes_are_encoded_in_turns_ahead_of_a_checkpoint(
    disk: FakeDisk, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(delete_export, "_RANGES_A_TURN", 7)
    monkeypatch.setattr(delete_export, "_MUCH_A_TURN_BYTES", 10)
    engine, deleted = many_deletes(disk, seed)
    turns: list[int] = []
    joined_in_turns = delete_export.DeleteExport._joined_in_turns

    def counted(self: delete_export.DeleteExport, topic: Topic, ranges: Iterable[SeqRange]) -> Iterator[Ranges]:
        for some in joined_in_turns(self, topic, ranges):
            turns.append(len(some))
            yield some

    monkeypatch.setattr(delete_export.DeleteExport, "_joined_in_turns", counted)
    for first in range(0, 400, 20):
        for number in deleted[first : first + 20]:
            delete(engine, "orders", match=eq(f"t{number}"))
        before = len(turns)
        assert checkpoint(engine)
        assert len(turns) > before
        assert len(reported(disk)) <= EXPORTED_MAX
        assert_reported(disk, deleted[: first + 20])
    assert max(turns) <= 7
    assert_reported(disk, deleted)
    reopened = open_engine(killed(disk), track_removals=True)
    delete(reopened, "orders", before_seq=601)
    assert checkpoint(reopened)


def test_deletes_survive_a_preparation_that_is_cut_short(
    disk: FakeDisk, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(delete_export, "_RANGES_A_TURN", 7)
    engine, deleted = many_deletes(disk, seed)
    for number in deleted[:100]:
        delete(engine, "orders", match=eq(f"t{number}"))
    for steps in range(1, 15):
        job = engine.removals.prepare(lambda resume: None)
        for _ in range(steps):
            next(job)
        number = deleted[99 + steps]
        delete(engine, "orders", match=eq(f"t{number}"))
        job.close()
    assert checkpoint(engine)
    assert_reported(disk, deleted[:114])


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 65_535, 65_536, 70_000])
def test_ranges_encoded_in_pieces_are_those_encoded_at_once(count: int, seed: int) -> None:
    chance = random.Random(seed)
    ends = sorted(chance.sample(range(1 << chance.choice((20, 40, 63))), 2 * count))
    ranges = list(zip(ends[::2], ends[1::2], strict=True))
    pieces = Pieces()
    for first in range(0, count, 999):
        pieces.add(ranges[first : first + 999])
    assert bytes(pieces.packed()) == bytes(pack(ranges))
    assert list(packed_ranges(pieces.packed())) == ranges
