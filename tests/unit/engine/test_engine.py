import pytest

from tests.unit.conftest import (
    after_power_cut,
    append,
    ask_append,
    ask_delete,
    ask_drop,
    ask_put,
    checkpoint,
    delete,
    drop,
    flush,
    hold,
    killed,
    move,
    open_engine,
    open_with_cold,
    put,
    read,
    seqs,
    topic,
    values,
)
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, ReadResult
from topics.engine.recovery import LastRun, note_distrust, note_running, note_stopped, read_last_run
from topics.log.fs import write_small
from topics.log.layout import Layout
from topics.model.errors import FolderBusyError, ReadOnlyError, ShuttingDownError, TopicNotFoundError, TopicsError
from topics.model.topic_epochs import epoch_at
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, ManualClock

# Life


def test_a_new_folder_is_an_empty_engine(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    assert engine.list_topics() == []
    assert disk.list_dir("data") == [".topics.lock", "meta", "topics", "wal"]


def test_a_clean_stop_and_a_start_change_nothing(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1, 2)
    put(engine, "u", ttl_ms=5000)
    before = engine.list_topics()
    engine.close_inline()
    assert open_engine(disk).list_topics() == before


def test_after_a_clean_stop_seqs_go_on_without_a_jump(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1)
    engine.close_inline()
    assert append(open_engine(disk, boot_id="b"), "t", 2).first_seq == 2


def test_a_clean_stop_leaves_no_log_to_go_through(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1)
    engine.close_inline()
    assert disk.list_dir("data/wal/shard-00") == []


def test_a_folder_belongs_to_one_engine(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    with pytest.raises(FolderBusyError) as refused:
        open_engine(disk)
    assert refused.value.detail == {"folder": "data", "owner": "a running topics server"}
    engine.close_inline()
    open_engine(disk)


def test_a_start_that_fails_lets_go_of_the_folder(disk: FakeDisk) -> None:
    faulty = FaultyFileSystem(disk, FaultPlan(call=5))
    with pytest.raises(OSError, match="injected"):
        open_engine(faulty)
    open_engine(disk)


def test_a_closed_engine_still_reads(engine: Engine) -> None:
    append(engine, "t", 1)
    engine.close_inline()
    assert seqs(engine, "t") == [1]


def test_a_closed_engine_never_writes_again(disk: FakeDisk, clock: ManualClock) -> None:
    # Expired records are noticed by the caller that reads; but the folder may belong to another process by now.
    engine = open_engine(disk, clock)
    put(engine, "t", ttl_ms=1000)
    append(engine, "t", 1)
    engine.close_inline()
    clock.advance(1001)
    disk.trace.clear()
    assert engine.info("t").count == 0
    assert seqs(engine, "t") == []
    assert disk.trace == []


def test_a_closed_engine_answers_what_waited_for_a_drop(engine: Engine) -> None:
    append(engine, "t", 1)
    hold(engine)
    ask_drop(engine, "t")
    waiting = ask_append(engine, "t", 2)
    engine.close_inline()
    assert isinstance(waiting[0], ShuttingDownError)


def test_the_machine_is_remembered(disk: FakeDisk) -> None:
    for boot_id in ("first", "second"):
        engine = open_engine(disk, boot_id=boot_id)
        snapshot = engine.checkpointer.number
        append(engine, "t", 1)
        assert disk.open("data/machine").read_at(0, 100).startswith(f"{boot_id} 256 {snapshot} ".encode())
        engine.close_inline()


def test_no_flipped_bit_of_the_note_about_the_last_run_changes_what_is_read(disk: FakeDisk) -> None:
    """It would make a start treat the restart as one of the machine, and report losses that never happened."""
    layout = Layout("data")
    disk.make_dirs("data")
    for stopped in (False, True):
        run = LastRun("0f8ae6b1-boot", 65_536, 7, stopped)
        note_running(disk, layout, run)
        if stopped:
            note_stopped(disk, layout)
        assert read_last_run(disk, layout) == run
        whole = disk.open("data/machine").read_at(0, 4096)
        for offset in range(len(whole)):
            for bit in range(8):
                flipped = bytearray(whole)
                flipped[offset] ^= 1 << bit
                disk.open("data/machine", write=True).write_at(0, bytes(flipped))
                assert read_last_run(disk, layout) == run, (offset, bit)
    note_distrust(disk, layout)
    assert read_last_run(disk, layout).boot_id == ""


def test_note_about_the_last_run_of_an_earlier_release_is_read(disk: FakeDisk) -> None:
    layout = Layout("data")
    disk.make_dirs("data")
    write_small(disk, layout.machine, "boot 256 3 stopped", "data")
    assert read_last_run(disk, layout) == LastRun("boot", 256, 3, True)


def test_a_log_that_failed_makes_the_boot_unknown(disk: FakeDisk) -> None:
    faulty = FaultyFileSystem(disk)
    engine = open_engine(faulty)
    append(engine, "t", 1)
    faulty.plan = FaultPlan(call=faulty.calls + 1, fault=Fault.EIO)
    assert isinstance(ask_append(engine, "t", 2)[0], ReadOnlyError)
    engine.close_inline()
    assert disk.open("data/machine").read_at(0, 100).startswith(b"- 256 0 ")


def test_without_a_boot_id_every_start_may_be_of_another_machine(disk: FakeDisk) -> None:
    engine = open_engine(disk, boot_id="")
    append(engine, "t", 1)
    after = open_engine(killed(disk), boot_id="")
    assert read(after, "t", 1).tombstone is not None


# Reading


def test_a_read_answers_at_once_without_a_loop() -> None:
    engine = open_with_cold()
    append(engine, "t", 1, 2)
    move(engine, "t", "cold")
    answers: list[ReadResult | TopicsError] = []
    engine.read("t", ReadRequest(), answers.append)
    (result,) = answers
    assert isinstance(result, ReadResult)
    assert result.count == 2


def test_a_read_of_a_missing_topic_is_refused_at_once(engine: Engine) -> None:
    with pytest.raises(TopicNotFoundError):
        engine.read("t", ReadRequest(), lambda outcome: None)


# Watching


def watch(engine: Engine, name: str = "t") -> list[str]:
    woken: list[str] = []
    engine.watch(name, lambda: woken.append(name))
    return woken


def test_a_watcher_is_woken_by_an_append(engine: Engine) -> None:
    put(engine, "t")
    woken = watch(engine)
    append(engine, "t", 1)
    assert woken == ["t"]


def test_a_watcher_is_woken_once_and_has_to_ask_again(engine: Engine) -> None:
    put(engine, "t")
    woken = watch(engine)
    append(engine, "t", 1)
    append(engine, "t", 2)
    assert woken == ["t"]
    again = watch(engine)
    append(engine, "t", 3)
    assert (woken, again) == (["t"], ["t"])


def test_a_watcher_sees_what_woke_it(engine: Engine) -> None:
    append(engine, "t", 1)
    seen: list[list[int]] = []
    engine.watch("t", lambda: seen.append(seqs(engine, "t", 1)))
    append(engine, "t", 2, 3)
    assert seen == [[2, 3]]


def test_all_watchers_are_woken(engine: Engine) -> None:
    put(engine, "t")
    woken = [watch(engine) for _ in range(3)]
    append(engine, "t", 1)
    assert woken == [["t"]] * 3


def test_a_commit_of_many_appends_wakes_once(engine: Engine) -> None:
    put(engine, "t")
    later: list[object] = []
    engine.core.defer.use(later.append)
    woken = watch(engine)
    hold(engine)
    for number in range(5):
        ask_append(engine, "t", number)
    assert woken == []
    flush(engine)
    assert len(later) == 1
    engine.core.scheduler.run()
    assert woken == ["t"]


def test_only_watchers_of_that_topic_are_woken(engine: Engine) -> None:
    put(engine, "t")
    put(engine, "u")
    woken = watch(engine, "u")
    append(engine, "t", 1)
    assert woken == []


def test_a_watcher_that_took_its_wish_back_is_not_woken(engine: Engine) -> None:
    put(engine, "t")
    woken: list[int] = []
    cancel = engine.watch("t", lambda: woken.append(1))
    other = watch(engine)
    cancel()
    append(engine, "t", 1)
    assert (woken, other) == ([], ["t"])
    cancel()


def test_taking_a_wish_back_after_it_came_true_is_harmless(engine: Engine) -> None:
    put(engine, "t")
    cancel = engine.watch("t", lambda: None)
    append(engine, "t", 1)
    cancel()


def test_a_watcher_is_woken_when_its_topic_is_dropped(engine: Engine) -> None:
    put(engine, "t")
    woken = watch(engine)
    drop(engine, "t")
    assert woken == ["t"]


@pytest.mark.parametrize("change", ["put", "delete"])
def test_a_watcher_is_woken_by_every_change(engine: Engine, change: str) -> None:
    append(engine, "t", 1)
    woken = watch(engine)
    if change == "put":
        ask_put(engine, "t", ttl_ms=5000)
    else:
        ask_delete(engine, "t", before_seq=2)
    assert woken == ["t"]


def test_a_failed_write_wakes_nobody(disk: FakeDisk) -> None:
    faulty = FaultyFileSystem(disk)
    engine = open_engine(faulty)
    append(engine, "t", 1)
    woken = watch(engine)
    faulty.plan = FaultPlan(call=faulty.calls + 1)
    ask_append(engine, "t", 2)
    assert woken == []


def test_a_watcher_may_watch_again_from_within(engine: Engine) -> None:
    put(engine, "t")
    seen: list[int] = []

    def woken() -> None:
        seen.append(engine.info("t").head_seq)
        engine.watch("t", woken)

    engine.watch("t", woken)
    append(engine, "t", 1)
    append(engine, "t", 2)
    assert seen == [1, 2]


def test_a_missing_topic_cannot_be_watched(engine: Engine) -> None:
    with pytest.raises(TopicNotFoundError):
        engine.watch("t", lambda: None)


# Information


def test_the_state_of_a_topic(engine: Engine, clock: ManualClock) -> None:
    append(engine, "t", "abc", "d")
    clock.advance(1000)
    append(engine, "t", "e")
    delete(engine, "t", before_seq=2)
    info = engine.info("t")
    assert (info.topic, info.head_seq, info.next_seq, info.earliest_seq) == ("t", 3, 4, 2)
    assert (info.count, info.bytes) == (2, 6)
    assert info.last_write_ts == clock.now_ms()
    assert info.epoch == epoch_at(clock.now_ms() - 1000)


def test_looking_counts_as_consuming_unless_reported_otherwise(engine: Engine, clock: ManualClock) -> None:
    append(engine, "t", 1)
    assert engine.info("t", touch=False).last_read_ts is None
    assert engine.info("t", touch=False).effective_priority == 0
    assert engine.info("t").last_read_ts == clock.now_ms()
    assert engine.info("t", touch=False).effective_priority == 500


def test_reading_counts_as_consuming(engine: Engine, clock: ManualClock) -> None:
    append(engine, "t", 1)
    clock.advance(10)
    read(engine, "t")
    assert engine.info("t", touch=False).last_read_ts == clock.now_ms()


def test_the_priority_of_a_topic_fades_with_time(engine: Engine, clock: ManualClock) -> None:
    append(engine, "t", 1)
    engine.info("t")
    clock.advance(30_000)
    assert engine.info("t", touch=False).effective_priority == 250
    clock.advance(300_000)
    assert engine.info("t", touch=False).effective_priority == 0


@pytest.mark.parametrize(
    ("config", "priority"),
    [
        ({"priority": 7}, 7),
        ({"priority": 5000}, 1000),
        ({"priority": -5000}, -1000),
        ({"auto_priority": False}, 0),
        ({"priority": 0}, 0),
    ],
)
def test_a_priority_set_by_hand(engine: Engine, config: dict[str, object], priority: int) -> None:
    put(engine, "t", **config)
    assert engine.info("t").effective_priority == priority


def test_looking_lets_go_of_what_expired(engine: Engine, clock: ManualClock) -> None:
    put(engine, "t", ttl_ms=100)
    append(engine, "t", 1, 2)
    clock.advance(101)
    assert (engine.info("t").count, engine.info("t").earliest_seq) == (0, 3)
    append(engine, "t", 3)
    clock.advance(101)
    assert engine.list_topics()[0].count == 0


# Lists


@pytest.fixture
def listed(engine: Engine) -> Engine:
    for name in ("b", "a:2", "a:1", "c", "a:10", "A"):
        put(engine, name)
    return engine


def names(engine: Engine, **bounds: object) -> list[str]:
    return [info.topic for info in engine.list_topics(**bounds)]  # type: ignore[arg-type]


def test_topics_come_in_the_order_of_their_names(listed: Engine) -> None:
    assert names(listed) == ["A", "a:1", "a:10", "a:2", "b", "c"]


def test_a_prefix_chooses(listed: Engine) -> None:
    assert names(listed, prefix="a:") == ["a:1", "a:10", "a:2"]
    assert names(listed, prefix="a:1") == ["a:1", "a:10"]
    assert names(listed, prefix="zzz") == []


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("", ["a:1", "a:10", "a:2"]),
        ("a:1", ["a:10", "a:2"]),
        ("a:15", ["a:2"]),
        ("a:2", []),
        ("A", ["a:1", "a:10", "a:2"]),
        ("zzz", []),
    ],
)
def test_a_page_goes_on_behind_a_name_that_need_not_exist(listed: Engine, after: str, expected: list[str]) -> None:
    assert names(listed, prefix="a:", after=after) == expected


def test_pages_are_bounded(listed: Engine) -> None:
    assert names(listed, limit=2) == ["A", "a:1"]
    assert names(listed, limit=2, after="a:1") == ["a:10", "a:2"]
    assert names(listed, limit=2, after="b") == ["c"]


def test_a_list_follows_creations_and_drops(listed: Engine) -> None:
    drop(listed, "a:10")
    append(listed, "a:0", 1)
    assert names(listed, prefix="a:") == ["a:0", "a:1", "a:2"]


def test_a_list_survives_a_restart(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    for name in ("b", "a", "c"):
        put(engine, name)
    drop(engine, "a")
    assert names(open_engine(after_power_cut(disk), boot_id="b")) == ["b", "c"]


def test_listing_is_not_consuming(listed: Engine) -> None:
    listed.list_topics()
    assert listed.info("b", touch=False).last_read_ts is None
    listed.list_topics(touch=True)
    assert listed.info("b", touch=False).last_read_ts is not None


# Sums


def test_all_live_bytes_are_summed_up(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    put(engine, "ttl", ttl_ms=100)
    put(engine, "cap", cap_records=1)
    append(engine, "ttl", 11)
    append(engine, "cap", 22, 33)
    append(engine, "t", 44, 55, 66)
    delete(engine, "t", before_seq=2)
    assert engine.core.total_bytes == 2 + 2 + 4
    clock.advance(101)
    engine.info("ttl")
    assert engine.core.total_bytes == 6
    checkpoint(engine)
    append(engine, "t", 77)
    assert open_engine(killed(disk), clock).core.total_bytes == 8


def test_a_topic_lives_in_one_shard_for_good(disk: FakeDisk) -> None:
    engine = open_engine(disk, wal_shards=4)
    for number in range(20):
        put(engine, f"t{number}")
    shards = {f"t{number}": topic(engine, f"t{number}").shard for number in range(20)}
    assert len(set(shards.values())) > 1
    after = open_engine(killed(disk), wal_shards=4)
    assert {name: topic(after, name).shard for name in shards} == shards
    assert values(after, "t1") == []
