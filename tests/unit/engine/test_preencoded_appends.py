"""Batches whose fragments were made before they were decided: stored, sealed, recovered and refused like any other."""

import pytest

from tests.unit.conftest import (
    DISK,
    FSYNC,
    after_power_cut,
    append,
    ask_append,
    checkpoint,
    flush,
    hold,
    killed,
    open_engine,
    put,
    seqs,
    topic,
    values,
)
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem
from topics.wire.preencoding import Preencoded, PreencodedBatch


def drafted(engine: Engine, name: str, *given: object) -> Preencoded:
    records = [Record.of(value, tag="t", meta={"m": 1}) for value in given]
    draft = PreencodedBatch(records, *engine.core.next_numbers(name), None)
    while not draft.step():
        pass
    return Preencoded(records, draft)


def write(engine: Engine, name: str, records: Preencoded, key: str | None = None) -> list[object]:
    answers: list[object] = []
    try:
        engine.append(name, Batch(records=records, idempotency_key=key), answers.append)
    except TopicsError as error:
        answers.append(error)
    return answers


def test_a_drafted_batch_is_kept_through_a_seal_a_checkpoint_and_a_power_cut() -> None:
    disk = FakeDisk()
    engine = open_engine(disk, segment_max_events=4)
    put(engine, "t", durability=FSYNC)
    append(engine, "t", "before")
    (answer,) = write(engine, "t", drafted(engine, "t", "x" * 700_000, 1, 2))
    assert isinstance(answer, AppendResult) and (answer.first_seq, answer.last_seq) == (2, 4)
    append(engine, "t", "behind")
    expected = ["before", "x" * 700_000, 1, 2, "behind"]
    assert values(engine, "t") == expected
    assert values(open_engine(after_power_cut(disk.clone()), boot_id="b"), "t") == expected
    checkpoint(engine)
    assert values(engine, "t") == expected
    engine = open_engine(after_power_cut(disk), boot_id="b")
    assert values(engine, "t") == expected and topic(engine, "t").staged_bytes == 0


def test_a_draft_whose_numbers_were_taken_gets_others() -> None:
    engine = open_engine()
    put(engine, "t", durability=DISK)
    append(engine, "t", *range(20))
    records = drafted(engine, "t", "a", "b")
    append(engine, "t", "came between")
    write(engine, "t", records)
    assert seqs(engine, "t") == list(range(1, 24))
    assert values(engine, "t")[-3:] == ["came between", "a", "b"]


def test_a_draft_that_does_not_fit_any_more_is_left_alone() -> None:
    disk = FakeDisk()
    engine = open_engine(disk)
    append(engine, "t", *range(7))
    records = drafted(engine, "t", "a", "b")
    append(engine, "t", "came between")
    write(engine, "t", records)
    assert seqs(open_engine(killed(disk)), "t") == list(range(1, 11))


def test_a_draft_may_be_repeated_and_is_known_by_its_key() -> None:
    engine = open_engine()
    put(engine, "t", durability=DISK)
    first = write(engine, "t", drafted(engine, "t", 1, 2), "k")
    again = write(engine, "t", drafted(engine, "t", 1, 2), "k")
    other = write(engine, "t", drafted(engine, "t", 1, 3), "k")
    assert [answer.deduped for (answer,) in (first, again, other)] == [False, True, True]  # type: ignore[attr-defined]
    assert other[0].differs  # type: ignore[attr-defined]
    assert values(engine, "t") == [1, 2]


@pytest.mark.parametrize("fault", [Fault.EIO, Fault.SHORT, Fault.ENOSPC])
def test_a_write_that_fails_within_a_drafted_batch_leaves_nothing_of_it(fault: Fault) -> None:
    """Its frame is written in several parts, and each of them may fail."""
    outcomes = set()
    for number in range(1, 12):
        faulty = FaultyFileSystem(disk := FakeDisk())
        engine = open_engine(faulty, wal_file_bytes=4_000_000)
        put(engine, "t", durability=FSYNC)
        append(engine, "t", "before")
        records = drafted(engine, "t", "x" * 700_000, 2)
        hold(engine)
        answers = write(engine, "t", records)
        between = ask_append(engine, "t", "with it")
        faulty.plan = FaultPlan(faulty.calls + number, fault)
        flush(engine)
        kept: list[object] = ["before"]
        for reported, given in ((answers, ["x" * 700_000, 2]), (between, ["with it"])):
            kept += given if isinstance(reported[0], AppendResult) else []
        outcomes.add(len(kept))
        assert values(open_engine(after_power_cut(disk), boot_id="b"), "t") == kept, number
    assert outcomes == {1, 4}, "some failed, and some did not"
