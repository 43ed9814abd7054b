"""Operations in groups: the order of answers, the waits between operations, and the state after a failure."""

from collections.abc import Callable

import pytest

from tests.unit.conftest import (
    DISK,
    EPHEMERAL,
    FSYNC,
    LOCAL,
    MEMORY,
    Answers,
    after_power_cut,
    append,
    ask_append,
    ask_delete,
    ask_drop,
    ask_put,
    batch_of,
    drop,
    flush,
    hold,
    keys_on_their_way,
    killed,
    logged,
    one,
    open_engine,
    put,
    read,
    seqs,
    topic,
    values,
)
from topics.engine.engine import Engine
from topics.engine.results import AppendResult, DeleteResult, DropResult, PutResult
from topics.log.frame import FrameKind
from topics.model.errors import ReadOnlyError, TopicNotFoundError, TopicsError
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.testing import FakeDisk, FaultPlan, FaultyFileSystem, ManualClock

# Groups


def test_a_group_over_topics_and_classes_is_one_write_and_one_sync(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    for durability in LOCAL:
        put(engine, durability.value, durability=durability)
        append(engine, durability.value, 0)
    order: list[str] = []
    synced: dict[str, bool] = {}

    def answer(name: str) -> Callable[[AppendResult | TopicsError], None]:
        def reported(outcome: AppendResult | TopicsError) -> None:
            order.append(name)
            synced[name] = ("sync", "data/wal/shard-00/0000000000000001.wal") in disk.trace

        return reported

    hold(engine)
    disk.trace.clear()
    for name in ("fsync", "disk", "ephemeral", "memory"):
        engine.append(name, batch_of(1), answer(name))
        engine.append(name, batch_of(2), answer(name + "-2"))
    flush(engine)
    assert [operation for operation, _ in disk.trace] == ["write", "sync"]
    # Ephemeral ones were answered on the spot, class disk and memory before the sync, class fsync behind it.
    assert order == ["ephemeral", "ephemeral-2", "disk", "disk-2", "memory", "memory-2", "fsync", "fsync-2"]
    assert [synced[name] for name in order] == [False] * 6 + [True] * 2
    assert all(seqs(engine, durability.value) == [1, 2, 3] for durability in LOCAL)


def test_shards_commit_on_their_own(disk: FakeDisk) -> None:
    engine = open_engine(disk, wal_shards=3)
    names = [f"t{number}" for number in range(12)]
    for name in names:
        put(engine, name, durability=FSYNC)
    assert {topic(engine, name).shard for name in names} == {0, 1, 2}
    hold(engine)
    answers = {name: ask_append(engine, name, 1) for name in names}
    disk.trace.clear()
    engine.core.shards[1].committer.flush()  # type: ignore[attr-defined]
    assert [operation for operation, _ in disk.trace] == ["write", "sync"]
    assert [name for name in names if answers[name]] == [name for name in names if topic(engine, name).shard == 1]
    flush(engine)
    assert all(answers.values())


def test_nothing_of_a_topic_overtakes_what_waits_for_a_sync(engine: Engine) -> None:
    append(engine, "t", 1)
    append(engine, "other", 1)
    order: list[str] = []
    hold(engine)
    engine.put_topic("t", TopicConfigPatch(ttl_ms=100_000), lambda outcome: order.append("put"))
    engine.append("t", batch_of(2), lambda outcome: order.append("append"))
    engine.append("other", batch_of(2), lambda outcome: order.append("other"))
    flush(engine)
    assert order == ["other", "put", "append"]


def test_a_sync_that_waits_does_not_hold_up_what_came_before_it(engine: Engine) -> None:
    append(engine, "t", 1)
    order: list[str] = []
    hold(engine)
    engine.append("t", batch_of(2), lambda outcome: order.append("append"))
    engine.put_topic("t", TopicConfigPatch(ttl_ms=100_000), lambda outcome: order.append("put"))
    flush(engine)
    assert order == ["append", "put"]


def test_no_append_of_class_disk_waits_for_a_sync(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=DISK)
    disk.trace.clear()
    for number in range(2):
        append(engine, "t", number)
        assert [operation for operation, _ in disk.trace] == ["write"]
        disk.trace.clear()


def test_an_answer_may_ask_for_more(engine: Engine) -> None:
    append(engine, "t", 0)
    chained: Answers = []

    def again(outcome: AppendResult | TopicsError) -> None:
        if len(chained) < 5:
            chained.append(outcome)
            engine.append("t", batch_of(len(chained)), again)

    engine.append("t", batch_of(0), again)
    assert values(engine, "t") == [0, 0, 1, 2, 3, 4, 5]


def test_the_answer_reports_how_long_the_log_took(engine: Engine) -> None:
    result = append(engine, "t", 1)
    assert (result.wal_append_ms, result.fsync_ms) == (0.0, 0.0)


# While a topic is being deleted


def test_an_append_during_a_drop_goes_to_the_next_topic_of_that_name(engine: Engine) -> None:
    append(engine, "t", 1, 2)
    hold(engine)
    dropped = ask_drop(engine, "t")
    appended = ask_append(engine, "t", "new")
    assert (dropped, appended) == ([], [])
    flush(engine)
    assert one(dropped, DropResult).deleted
    result = one(appended, AppendResult)
    assert (result.first_seq, result.created) == (1, True)
    assert values(engine, "t") == ["new"]


def test_an_append_without_creation_during_a_drop_finds_nothing(engine: Engine) -> None:
    append(engine, "t", 1)
    hold(engine)
    ask_drop(engine, "t")
    appended = ask_append(engine, "t", "new", create=False)
    flush(engine)
    assert isinstance(appended[0], TopicNotFoundError)


def test_a_put_during_a_drop_creates(engine: Engine) -> None:
    put(engine, "t", ttl_ms=1)
    hold(engine)
    ask_drop(engine, "t")
    answers = ask_put(engine, "t", ttl_ms=2)
    flush(engine)
    assert one(answers, PutResult).created
    assert engine.info("t").config.ttl_ms == 2


def test_a_second_drop_during_a_drop_finds_nothing(engine: Engine) -> None:
    append(engine, "t", 1)
    hold(engine)
    first, second = ask_drop(engine, "t"), ask_drop(engine, "t", if_empty=True)
    flush(engine)
    assert one(first, DropResult).deleted
    assert not one(second, DropResult).deleted


def test_a_delete_during_a_drop_finds_nothing(engine: Engine) -> None:
    append(engine, "t", 1)
    hold(engine)
    ask_drop(engine, "t")
    answers = ask_delete(engine, "t", before_seq=2)
    flush(engine)
    assert isinstance(answers[0], TopicNotFoundError)


def test_a_read_during_a_drop_still_sees_the_topic(engine: Engine) -> None:
    append(engine, "t", 1)
    hold(engine)
    ask_drop(engine, "t")
    assert seqs(engine, "t") == [1]
    assert engine.info("t").count == 1
    flush(engine)
    with pytest.raises(TopicNotFoundError):
        read(engine, "t")


def test_a_dropped_topic_is_never_taken_for_one_that_is_there(engine: Engine) -> None:
    append(engine, "t", 1)
    topic = engine.core.directory.load("t")
    assert topic.rules.usual
    drop(engine, "t")
    append(engine, "t", 2)
    assert not topic.rules.usual and engine.core.directory.load("t").rules.usual


def test_what_waits_for_a_drop_keeps_its_order(engine: Engine) -> None:
    append(engine, "t", 1)
    hold(engine)
    ask_drop(engine, "t")
    answers = [ask_append(engine, "t", "a"), ask_drop(engine, "t"), ask_append(engine, "t", "b")]
    assert answers == [[], [], []]
    flush(engine)
    assert one(answers[0], AppendResult).created
    assert one(answers[1], DropResult).deleted
    assert one(answers[2], AppendResult).created
    assert values(engine, "t") == ["b"]
    assert logged(engine).count(FrameKind.CREATE) == 3


def test_appends_in_flight_are_answered_before_the_drop(engine: Engine) -> None:
    put(engine, "t", durability=FSYNC)
    hold(engine)
    order: list[str] = []
    engine.append("t", batch_of(1), lambda outcome: order.append(type(outcome).__name__))
    engine.drop_topic("t", False, lambda outcome: order.append(type(outcome).__name__))
    flush(engine)
    assert order == ["AppendResult", "DropResult"]
    assert engine.core.total_bytes == 0


def test_a_drop_and_what_followed_it_survive_a_restart(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1, 2)
    hold(engine)
    ask_drop(engine, "t")
    ask_append(engine, "t", "new")
    flush(engine)
    assert values(open_engine(killed(disk)), "t") == ["new"]


# Failures


def poisoned(engine: Engine, faulty: FaultyFileSystem, sync: bool = False) -> None:
    """The next commit of the engine fails, in its write or in its sync."""
    faulty.plan = FaultPlan(call=faulty.calls + (2 if sync else 1), lasting=True)


@pytest.fixture
def faulty(disk: FakeDisk) -> FaultyFileSystem:
    return FaultyFileSystem(disk)


def test_a_failed_append_is_as_if_it_had_never_been(faulty: FaultyFileSystem) -> None:
    engine = open_engine(faulty)
    append(engine, "t", 1)
    poisoned(engine, faulty)
    answers = ask_append(engine, "t", 2, 3, key="k")
    assert isinstance(answers[0], ReadOnlyError)
    assert seqs(engine, "t") == [1]
    state = topic(engine, "t")
    assert (state.staged_head, state.staged_count, state.staged_bytes) == (1, 0, 0)
    assert (state.sync_inflight, engine.core.staged_bytes) == (0, 0)
    assert not keys_on_their_way(state)


def test_a_failed_creation_leaves_no_topic(faulty: FaultyFileSystem) -> None:
    engine = open_engine(faulty)
    append(engine, "other", 1)
    hold(engine)
    first, second = ask_append(engine, "t", 1), ask_append(engine, "t", 2)
    created = ask_put(engine, "u")
    poisoned(engine, faulty)
    flush(engine)
    assert [type(answers[0]) for answers in (first, second, created)] == [ReadOnlyError] * 3
    assert [info.topic for info in engine.list_topics()] == ["other"]
    assert set(engine.core.directory.resident) == {"other"}


def test_a_failed_put_leaves_the_old_config(faulty: FaultyFileSystem) -> None:
    engine = open_engine(faulty)
    put(engine, "t", ttl_ms=1)
    poisoned(engine, faulty, sync=True)
    answers = ask_put(engine, "t", ttl_ms=2)
    assert isinstance(answers[0], ReadOnlyError)
    assert engine.info("t").config.ttl_ms == 1
    assert topic(engine, "t").staged_config.ttl_ms == 1


def test_a_failed_drop_leaves_the_topic_and_answers_who_waited(faulty: FaultyFileSystem) -> None:
    engine = open_engine(faulty)
    append(engine, "t", 1)
    hold(engine)
    dropped, appended, changed = ask_drop(engine, "t"), ask_append(engine, "t", 2), ask_put(engine, "t", ttl_ms=9)
    poisoned(engine, faulty)
    flush(engine)
    assert [type(answers[0]) for answers in (dropped, appended, changed)] == [ReadOnlyError] * 3
    assert seqs(engine, "t") == [1]
    assert not topic(engine, "t").closing


def test_a_failed_delete_deletes_nothing(faulty: FaultyFileSystem) -> None:
    engine = open_engine(faulty)
    append(engine, "t", 1, 2)
    poisoned(engine, faulty)
    answers = ask_delete(engine, "t", before_seq=2)
    assert isinstance(answers[0], ReadOnlyError)
    assert seqs(engine, "t") == [1, 2]


def test_a_poisoned_shard_refuses_writes_at_once_and_serves_reads(faulty: FaultyFileSystem) -> None:
    engine = open_engine(faulty)
    append(engine, "t", 1)
    poisoned(engine, faulty)
    ask_append(engine, "t", 2)
    asks: list[Callable[[], Answers]] = [
        lambda: ask_append(engine, "t", 3),
        lambda: ask_append(engine, "new", 3),
        lambda: ask_put(engine, "t", ttl_ms=9),
        lambda: ask_drop(engine, "t"),
        lambda: ask_delete(engine, "t", before_seq=2),
    ]
    for ask in asks:
        with pytest.raises(ReadOnlyError):
            ask()
    assert seqs(engine, "t") == [1]
    assert [info.topic for info in engine.list_topics()] == ["t"]


def test_a_poisoned_shard_still_takes_ephemeral_records(faulty: FaultyFileSystem) -> None:
    engine = open_engine(faulty)
    put(engine, "e", durability=EPHEMERAL)
    append(engine, "e", 1)
    append(engine, "t", 1)
    poisoned(engine, faulty)
    ask_append(engine, "t", 2)
    assert append(engine, "e", 2).last_seq == 2


def test_a_poisoned_shard_creates_no_topic_whatever_its_class(faulty: FaultyFileSystem) -> None:
    engine = open_engine(faulty)
    append(engine, "t", 1)
    poisoned(engine, faulty)
    ask_append(engine, "t", 2)
    with pytest.raises(ReadOnlyError):
        ask_append(engine, "e", 1, config=TopicConfigPatch(durability=EPHEMERAL))
    assert set(engine.core.directory.resident) == {"t"}


def test_expiry_on_a_poisoned_shard_goes_on_in_memory(faulty: FaultyFileSystem) -> None:
    clock = ManualClock()
    engine = open_engine(faulty, clock)
    put(engine, "t", ttl_ms=100)
    append(engine, "t", 1)
    poisoned(engine, faulty)
    ask_append(engine, "t", 2)
    clock.advance(101)
    assert engine.info("t").count == 0


@pytest.mark.parametrize("durability", [MEMORY, DISK, FSYNC])
def test_a_restart_after_a_failed_write_has_what_was_acknowledged(
    disk: FakeDisk, faulty: FaultyFileSystem, durability: Durability
) -> None:
    engine = open_engine(faulty)
    put(engine, "t", durability=durability)
    append(engine, "t", 1)
    append(engine, "t", 2)
    faulty.plan = FaultPlan(call=faulty.calls + 1)
    assert isinstance(ask_append(engine, "t", 3)[0], ReadOnlyError)
    after = open_engine(killed(disk))
    assert values(after, "t") == [1, 2]
    append(after, "t", "again")


def test_class_fsync_survives_a_power_cut_after_a_failed_sync(disk: FakeDisk, faulty: FaultyFileSystem) -> None:
    engine = open_engine(faulty)
    put(engine, "t", durability=FSYNC)
    append(engine, "t", 1)
    faulty.plan = FaultPlan(call=faulty.calls + 2)
    assert isinstance(ask_append(engine, "t", 2)[0], ReadOnlyError)
    assert values(open_engine(after_power_cut(disk), boot_id="b"), "t") == [1]


def test_every_operation_is_answered_exactly_once(faulty: FaultyFileSystem) -> None:
    engine = open_engine(faulty)
    append(engine, "t", 1)
    hold(engine)
    answers = [
        ask_append(engine, "t", 2, key="k"),
        ask_append(engine, "t", 2, key="k"),
        ask_put(engine, "t", ttl_ms=9),
        ask_delete(engine, "t", before_seq=2),
        ask_append(engine, "new", 1),
        ask_drop(engine, "t"),
        ask_append(engine, "t", 3),
    ]
    poisoned(engine, faulty, sync=True)
    flush(engine)
    assert [len(reported) for reported in answers] == [1] * 7
    # The first needed no sync: it was answered before the sync failed, and its follower with it.
    assert [isinstance(reported[0], AppendResult) for reported in answers[:2]] == [True, True]
    assert all(isinstance(reported[0], ReadOnlyError) for reported in answers[2:])


def test_results_of_a_delete_are_those_after_it(engine: Engine) -> None:
    append(engine, "t", 10, 20, 30)
    answers = ask_delete(engine, "t", before_seq=3)
    assert one(answers, DeleteResult) == DeleteResult("t", 2, 3, 3, 1, 2)


def test_a_dropped_topic_counts_no_more(engine: Engine) -> None:
    append(engine, "t", 12345)
    append(engine, "u", 1)
    drop(engine, "t")
    assert engine.core.total_bytes == 1
