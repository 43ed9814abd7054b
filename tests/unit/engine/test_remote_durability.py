"""Class `remote`: an acknowledgement states that the backup storage has it, so it outlives the machine."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.crash.harness import dump
from tests.unit.conftest import (
    DISK,
    FSYNC,
    REMOTE,
    append,
    ask_append,
    ask_delete,
    ask_drop,
    ask_put,
    checkpoint,
    delete,
    drop,
    put,
    values,
)
from tests.unit.ops.folders import OPTIONS, PLACE, back_up, restore, start
from tests.unit.queues.conftest import JOBS, ack, claim, make_queue, nack, produce, redrive
from tests.unit.streams.conftest import append as append_to
from tests.unit.transactions.conftest import begin, commit, stage
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.log.fs import FileSystem
from topics.model.errors import NoBackupPlaceError, RemoteUnavailableError
from topics.model.records import Record
from topics.model.router_rules import RouterWish, TagMatch
from topics.streams.append import Appended, AppendRequest
from topics.streams.stream_frames import Producer
from topics.streams.streams import inline_streams
from topics.testing import NO_FAULTS, FakeDisk, FaultPlan, FaultyFileSystem, ManualClock, Survival

# Only data that an acknowledgement waits for is shipped.
REMOTE_OPTIONS = msgspec.structs.replace(OPTIONS, backup_ship_ms=0)


def begun(disk: FileSystem, clock: ManualClock, **options: Any) -> Engine:
    engine = start(disk, clock, msgspec.structs.replace(REMOTE_OPTIONS, **options))
    back_up(engine)
    put(engine, "orders", durability=REMOTE)
    return engine


def without_machine(disk: FakeDisk, clock: ManualClock) -> Engine:
    """The state that the storage alone gives: the data folder is not read."""
    restored, _ = restore(disk.clone().crash(Survival.NOTHING), clock=clock)
    return restored


def assert_stored(disk: FakeDisk, clock: ManualClock, engine: Engine) -> None:
    assert dump(without_machine(disk, clock)) == dump(engine)


def tick(clock: ManualClock, engine: Engine, seconds: int = 1) -> None:
    for _ in range(seconds):
        clock.advance(1000)
        engine.housekeeper.tick()


def test_an_acknowledged_append_is_in_the_backup_storage() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = begun(disk, clock)
    for number in range(3):
        assert append(engine, "orders", number).last_seq == number + 1
        assert_stored(disk, clock, engine)
    assert engine.info("orders").config.durable


def test_the_first_write_waits_for_the_first_backup() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock, REMOTE_OPTIONS)
    answers = ask_put(engine, "orders", durability=REMOTE)
    assert not answers
    tick(clock, engine)
    assert len(answers) == 1
    assert_stored(disk, clock, engine)


def _close(engine: Engine) -> None:
    append_to(inline_streams(engine), "chat", b"", "", close=True)


def _ack(engine: Engine) -> None:
    (job,) = claim(engine)
    ack(engine, job.seq)


def _commit(engine: Engine) -> None:
    begin(engine)
    stage(engine, "orders", 7, 8)
    stage(engine, JOBS, 9)
    commit(engine)


def _again(engine: Engine) -> None:
    assert append(engine, "orders", Record.of(1, tag="a"), key="k").deduped


WRITES: dict[str, Callable[[Engine], object]] = {
    "append": lambda engine: append(engine, "orders", 3),
    "append with a key": lambda engine: append(engine, "orders", 3, key="other"),
    "append with a known key": _again,
    "delete": lambda engine: delete(engine, "orders", match=TagMatch("a")),
    "new config": lambda engine: put(engine, "orders", durability=REMOTE, cap_records=1),
    "lower class": lambda engine: put(engine, "orders", durability=DISK),
    "delete of the topic": lambda engine: drop(engine, "orders"),
    "acknowledged job": _ack,
    "stream append": lambda engine: append_to(inline_streams(engine), "chat", b"3", "application/json"),
    "stream closed": _close,
    "transaction": _commit,
}


@pytest.mark.parametrize("write", WRITES)
def test_every_kind_of_write_is_in_the_storage_when_it_is_answered(write: str) -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = begun(disk, clock)
    make_queue(engine, durability=REMOTE)
    produce(engine, 1, 2)
    append(engine, "orders", Record.of(1, tag="a"), key="k")
    put(engine, "chat", durability=REMOTE)
    append_to(inline_streams(engine), "chat", b"1", "application/json")
    WRITES[write](engine)
    assert_stored(disk, clock, engine)


def test_a_router_copy_into_a_remote_topic_follows_its_source() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = begun(disk, clock)
    put(engine, "copies", durability=REMOTE)
    engine.put_router("r", RouterWish(source="orders", dest="copies"), lambda answer: None)
    append(engine, "orders", 1, 2)
    engine.info("copies")
    append(engine, "copies", "behind the copies")
    assert_stored(disk, clock, engine)


def test_a_transaction_over_several_shards_is_in_the_storage_as_a_whole() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = begun(disk, clock)
    names = ["orders", *(f"part-{number}" for number in range(4))]
    for name in names[1:]:
        put(engine, name, durability=REMOTE)
    assert {engine.core.directory.load(name).shard for name in names} == {0, 1}
    begin(engine)
    for name in names:
        stage(engine, name, name)
    commit(engine)
    stored = dump(without_machine(disk, clock))
    assert all(stored[name] == dump(engine)[name] for name in names)


def _broken(faulty: FaultyFileSystem) -> None:
    faulty.plan = FaultPlan(call=faulty.calls + 1, lasting=True, within=PLACE)


def test_copies_of_a_router_wait_for_a_storage_that_fails_and_are_made_once() -> None:
    disk, clock = FakeDisk(), ManualClock()
    faulty = FaultyFileSystem(disk, NO_FAULTS)
    engine = begun(faulty, clock)
    put(engine, "source", durability=FSYNC)
    engine.put_router("r", RouterWish(source="source", dest="orders"), lambda answer: None)
    append(engine, "source", 1)
    _broken(faulty)
    assert not ask_append(engine, "orders", "the storage is found to fail")
    append(engine, "source", 2, 3)
    assert engine.info("orders").count == 2
    faulty.plan = NO_FAULTS
    tick(clock, engine, 5)
    assert values(engine, "orders") == [1, "the storage is found to fail", 2, 3]
    append(engine, "orders", "behind the copies")
    assert_stored(disk, clock, engine)


def test_a_dead_letter_waits_for_a_storage_that_fails_and_is_moved_once() -> None:
    disk, clock = FakeDisk(), ManualClock()
    faulty = FaultyFileSystem(disk, NO_FAULTS)
    engine = begun(faulty, clock)
    put(engine, "dead", durability=REMOTE)
    make_queue(engine, durability=FSYNC, dead_letter="dead", max_deliveries=1)
    produce(engine, 7)
    (job,) = claim(engine)
    _broken(faulty)
    assert not ask_append(engine, "orders", "the storage is found to fail")
    nack(engine, job.seq)
    assert engine.info("dead").count == 0
    faulty.plan = NO_FAULTS
    tick(clock, engine, 5)
    assert not claim(engine), "it is moved by the next look at the queue"
    assert values(engine, "dead") == [7]
    redrive(engine)
    assert_stored(disk, clock, engine)


def test_a_repeated_batch_of_a_producer_waits_until_the_first_one_is_stored() -> None:
    disk, clock = FakeDisk(), ManualClock()
    faulty = FaultyFileSystem(disk, NO_FAULTS)
    engine = begun(faulty, clock)
    put(engine, "chat", durability=REMOTE)
    streams = inline_streams(engine)
    append_to(streams, "chat", b"1", "application/json", producer=Producer("p", 0, 0))
    _broken(faulty)
    request = AppendRequest(body=b"2", content_type="application/json", producer=Producer("p", 0, 1))
    answers: list[object] = []
    for _ in range(2):
        streams.append("chat", request, answers.append)
    assert not answers, "neither the batch nor its repetition"
    faulty.plan = NO_FAULTS
    tick(clock, engine, 2)
    assert [answer.duplicate for answer in answers if isinstance(answer, Appended)] == [False, True]
    assert_stored(disk, clock, engine)


def test_class_fsync_beside_it_does_not_wait_for_the_storage() -> None:
    disk, clock = FakeDisk(), ManualClock()
    faulty = FaultyFileSystem(disk, NO_FAULTS)
    engine = begun(faulty, clock)
    put(engine, "local", durability=FSYNC)
    faulty.plan = FaultPlan(call=faulty.calls + 1, lasting=True, within=PLACE)
    assert not ask_append(engine, "orders", 1)
    append(engine, "local", 1)
    checkpoint(engine)
    append(engine, "local", 2)


def test_while_the_storage_fails_writes_are_refused_and_waiting_ones_are_answered_in_time() -> None:
    disk, clock = FakeDisk(), ManualClock()
    faulty = FaultyFileSystem(disk, NO_FAULTS)
    engine = begun(faulty, clock, remote_timeout_ms=5_000)
    faulty.plan = FaultPlan(call=faulty.calls + 1, lasting=True, within=PLACE)
    first = ask_append(engine, "orders", 1, key="k")
    assert not first
    with pytest.raises(RemoteUnavailableError) as refused:
        append(engine, "orders", 2)
    assert refused.value.detail["in_doubt"] is False
    tick(clock, engine, 6)
    (error,) = first
    assert isinstance(error, RemoteUnavailableError)
    assert error.detail["in_doubt"] is True
    faulty.plan = NO_FAULTS
    tick(clock, engine, 2)
    assert append(engine, "orders", 1, key="k").deduped, "it was written, and now it is stored too"
    assert_stored(disk, clock, engine)
    append(engine, "orders", 3)
    assert_stored(disk, clock, engine)


def test_what_waited_through_a_short_failure_is_acknowledged() -> None:
    disk, clock = FakeDisk(), ManualClock()
    faulty = FaultyFileSystem(disk, NO_FAULTS)
    engine = begun(faulty, clock)
    faulty.plan = FaultPlan(call=faulty.calls + 1, lasting=True, within=PLACE)
    answers = ask_append(engine, "orders", 1)
    assert not answers
    faulty.plan = NO_FAULTS
    tick(clock, engine)
    (result,) = answers
    assert isinstance(result, AppendResult)
    assert_stored(disk, clock, engine)


def test_a_server_without_a_storage_refuses_the_class_and_changes_nothing() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock, msgspec.structs.replace(REMOTE_OPTIONS, backup_dir=None))
    before = dump(engine)
    with pytest.raises(NoBackupPlaceError, match="TOPICS_BACKUP_DIR"):
        put(engine, "orders", durability=REMOTE)
    put(engine, "plain", durability=DISK)
    with pytest.raises(NoBackupPlaceError):
        put(engine, "plain", durability=REMOTE)
    drop(engine, "plain")
    assert dump(engine) == before


def test_a_restart_without_the_storage_still_reads_what_it_has() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = begun(disk, clock)
    append(engine, "orders", 1)
    found = dump(engine)
    engine.close_inline()
    engine = start(disk, clock, msgspec.structs.replace(REMOTE_OPTIONS, backup_dir=None), boot="b")
    assert dump(engine) == found
    with pytest.raises(NoBackupPlaceError):
        append(engine, "orders", 2)


def test_a_restart_begins_another_run_behind_another_backup() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = begun(disk, clock)
    append(engine, "orders", 1)
    engine.close_inline()
    engine = start(disk, clock, REMOTE_OPTIONS, boot="b")
    answers = ask_append(engine, "orders", 2)
    assert not answers
    assert dump(without_machine(disk, clock))["orders"] != dump(engine)["orders"]
    tick(clock, engine)
    assert len(answers) == 1
    assert_stored(disk, clock, engine)


def test_a_stop_answers_whoever_still_waits() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock, REMOTE_OPTIONS)
    answers = ask_put(engine, "orders", durability=REMOTE)
    engine.close_inline()
    assert [getattr(answer, "code", None) for answer in answers] == ["shutting_down"]


@pytest.mark.parametrize("part", range(4))
def test_random_writes_and_backups_are_in_the_storage_when_they_are_answered(seed: int, part: int) -> None:
    rng = random.Random(f"{seed} {part}")
    disk, clock = FakeDisk(), ManualClock()
    engine = begun(disk, clock)
    for _ in range(60):
        clock.advance(rng.randrange(50))
        what, name = rng.random(), rng.choice(("orders", "b", "c"))
        if what < 0.1:
            (checkpoint if rng.random() < 0.5 else back_up)(engine)
            continue
        if name not in engine.core.directory:
            answers = ask_put(engine, name, durability=REMOTE, cap_records=rng.choice((0, 9)))
        elif what < 0.75:
            records = [Record.of(rng.randrange(99), tag=f"t{rng.randrange(3)}") for _ in range(rng.randrange(1, 6))]
            answers = ask_append(engine, name, *records, key=f"k{rng.randrange(40)}" if what < 0.3 else None)
        elif what < 0.95:
            answers = ask_delete(engine, name, match=TagMatch(f"t{rng.randrange(3)}"))
        else:
            answers = ask_drop(engine, name)
        assert len(answers) == 1
        if rng.random() < 0.3:
            assert_stored(disk, clock, engine)
    assert_stored(disk, clock, engine)
