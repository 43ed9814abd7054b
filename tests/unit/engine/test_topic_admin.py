import pytest

from tests.unit.conftest import (
    DISK,
    EPHEMERAL,
    FSYNC,
    HOMES,
    LOCAL,
    MEMORY,
    after_power_cut,
    append,
    ask_append,
    ask_delete,
    ask_drop,
    ask_put,
    batch_of,
    catch_up,
    checkpoint,
    delete,
    drop,
    eq,
    flush,
    glob,
    hold,
    killed,
    logged,
    move,
    one,
    open_engine,
    open_with_cold,
    put,
    read,
    seqs,
    topic,
    values,
)
from topics.engine.engine import Engine
from topics.engine.results import AppendResult, DeleteResult, PutResult
from topics.log.frame import FrameKind
from topics.model.errors import (
    CorruptSegmentError,
    InvalidRequestError,
    ShuttingDownError,
    ThrottledError,
    TopicExistsIncompatibleError,
    TopicNotEmptyError,
    TopicNotFoundError,
)
from topics.model.limits import Limits
from topics.model.records import Record
from topics.model.seq_ranges import LossReason
from topics.model.topic_config import Discard, Durability, TopicConfigPatch, TopicType
from topics.testing import FakeDisk, ManualClock

homes = pytest.mark.parametrize("home", HOMES)
CLASSES = LOCAL

# Putting


def test_a_put_creates_a_topic_with_its_config(engine: Engine) -> None:
    result = put(engine, "t", ttl_ms=5000, type=TopicType.QUEUE)
    assert (result.topic, result.created) == ("t", True)
    assert (result.config.ttl_ms, result.config.type) == (5000, TopicType.QUEUE)
    info = engine.info("t")
    assert (info.head_seq, info.earliest_seq, info.next_seq, info.count, info.bytes) == (0, 1, 1, 0, 0)
    assert info.last_write_ts is None


def test_a_put_is_on_disk_when_it_is_answered(disk: FakeDisk) -> None:
    put(open_engine(disk), "t", ttl_ms=5000)
    assert open_engine(after_power_cut(disk), boot_id="b").info("t").config.ttl_ms == 5000


def test_a_changed_config_is_on_disk_when_it_is_answered(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t", ttl_ms=5000)
    put(engine, "t", ttl_ms=6000)
    assert open_engine(after_power_cut(disk), boot_id="b").info("t").config.ttl_ms == 6000


def test_a_put_replaces_the_whole_config(engine: Engine) -> None:
    put(engine, "t", ttl_ms=5000, cap_records=7)
    result = put(engine, "t", cap_records=8)
    assert (result.created, result.config.cap_records, result.config.ttl_ms) == (False, 8, 0)


def test_an_omitted_type_stays(engine: Engine) -> None:
    put(engine, "t", type=TopicType.QUEUE)
    assert put(engine, "t").config.type is TopicType.QUEUE


def test_the_type_cannot_change(engine: Engine) -> None:
    put(engine, "t", type=TopicType.QUEUE)
    with pytest.raises(TopicExistsIncompatibleError) as refused:
        put(engine, "t", type=TopicType.LOG)
    assert refused.value.detail == {"topic": "t", "existing_type": "queue", "requested_type": "log"}
    assert engine.info("t").config.type is TopicType.QUEUE


def test_an_identical_put_logs_nothing(engine: Engine) -> None:
    put(engine, "t", ttl_ms=5000)
    frames = logged(engine)
    result = put(engine, "t", ttl_ms=5000)
    assert (result.created, result.config.ttl_ms) == (False, 5000)
    assert logged(engine) == frames


def test_an_identical_put_waits_for_the_one_in_flight(engine: Engine) -> None:
    hold(engine)
    first = ask_put(engine, "t", ttl_ms=5000)
    second = ask_put(engine, "t", ttl_ms=5000)
    assert (first, second) == ([], [])
    flush(engine)
    assert one(first, PutResult).created
    assert not one(second, PutResult).created


def test_puts_in_flight_are_decided_by_each_other(engine: Engine) -> None:
    put(engine, "t", type=TopicType.QUEUE)
    hold(engine)
    first = ask_put(engine, "t", ttl_ms=1)
    second = ask_put(engine, "t", ttl_ms=2)
    flush(engine)
    assert one(first, PutResult).config.ttl_ms == 1
    assert one(second, PutResult).config.ttl_ms == 2
    assert engine.info("t").config.ttl_ms == 2


def test_a_new_config_counts_only_when_it_is_on_disk(engine: Engine) -> None:
    put(engine, "t")
    hold(engine)
    ask_put(engine, "t", ttl_ms=5000)
    assert engine.info("t").config.ttl_ms == 0
    flush(engine)
    assert engine.info("t").config.ttl_ms == 5000


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "ä", "x" * 256])
def test_a_bad_name_is_refused(engine: Engine, name: str) -> None:
    with pytest.raises(InvalidRequestError):
        put(engine, name)


def test_the_cap_on_topics_refuses_a_new_one_and_not_a_change() -> None:
    engine = open_engine(limits=Limits(max_topics=1))
    put(engine, "t")
    with pytest.raises(ThrottledError) as refused:
        put(engine, "u")
    assert refused.value.detail == {"limit": "max_topics", "max": 1}
    put(engine, "t", ttl_ms=1)


def test_no_cap_on_topics() -> None:
    engine = open_engine(limits=Limits(max_topics=0))
    for number in range(20):
        put(engine, f"t{number}")


def test_a_lower_cap_evicts_at_once(engine: Engine) -> None:
    append(engine, "t", 1, 2, 3)
    put(engine, "t", cap_records=1)
    assert seqs(engine, "t") == [3]
    assert engine.info("t").earliest_seq == 3


def test_a_new_time_to_live_lets_go_of_what_is_older(engine: Engine, clock: ManualClock) -> None:
    append(engine, "t", 1)
    clock.advance(1000)
    append(engine, "t", 2)
    put(engine, "t", ttl_ms=500)
    assert seqs(engine, "t") == [2]


def test_a_closed_engine_takes_no_changes(engine: Engine) -> None:
    append(engine, "t", 1)
    engine.close_inline()
    for ask in (ask_put, ask_drop, lambda engine, name: ask_delete(engine, name, before_seq=1)):
        with pytest.raises(ShuttingDownError):
            ask(engine, "t")


def test_who_waited_for_the_end_of_a_topic_comes_before_who_hears_of_it(engine: Engine) -> None:
    append(engine, "t", 0)
    hold(engine)
    late: list[object] = []
    engine.drop_topic("t", False, lambda outcome: engine.append("t", batch_of("late"), late.append))
    waited = ask_append(engine, "t", "waited")
    flush(engine)
    assert (one(waited, AppendResult).first_seq, values(engine, "t")) == (1, ["waited", "late"])


def test_who_waits_for_the_end_of_a_topic_joins_those_who_do(engine: Engine) -> None:
    """A list that is copied for each of them holds the loop for seconds when tens of thousands wait."""
    append(engine, "t", 0)
    hold(engine)
    dropping = topic(engine, "t")
    ask_drop(engine, "t")
    ask_append(engine, "t", 1)
    waiting = dropping.deletion_waiters
    ask_append(engine, "t", 2)
    ask_put(engine, "t")
    assert waiting is not None and dropping.deletion_waiters is waiting and len(waiting) == 3
    flush(engine)
    assert values(engine, "t") == [1, 2]


# Changing the class in place


@pytest.mark.parametrize("before", CLASSES)
@pytest.mark.parametrize("after", CLASSES)
def test_the_class_changes_in_place(disk: FakeDisk, before: Durability, after: Durability) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=before)
    append(engine, "t", 1, 2)
    put(engine, "t", durability=after)
    append(engine, "t", 3, 4)
    assert values(engine, "t") == [1, 2, 3, 4]
    reopened = open_engine(killed(disk))
    survivors = ([] if before is EPHEMERAL else [1, 2]) + ([] if after is EPHEMERAL else [3, 4])
    found = [*values(reopened, "t"), *values(reopened, "t", read(reopened, "t").next_from_seq)]
    assert sorted(set(found)) == survivors  # type: ignore[type-var]
    assert reopened.info("t").config.durability is after


@pytest.mark.parametrize("before", CLASSES)
@pytest.mark.parametrize("after", CLASSES)
def test_the_class_changes_with_appends_in_flight(disk: FakeDisk, before: Durability, after: Durability) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=before)
    append(engine, "t", 1)
    hold(engine)
    first = ask_append(engine, "t", 2)
    changed = ask_put(engine, "t", durability=after)
    second = ask_append(engine, "t", 3)
    flush(engine)
    assert one(changed, PutResult).config.durability is after
    assert one(first, AppendResult).first_seq == 2
    assert one(second, AppendResult).first_seq == 3
    assert values(engine, "t") == [1, 2, 3]
    reopened = open_engine(killed(disk))
    survivors = ([] if before is EPHEMERAL else [1, 2]) + ([] if after is EPHEMERAL else [3])
    assert reopened.info("t").count == len(survivors)
    head = reopened.info("t").head_seq
    assert head >= (3 if after is not EPHEMERAL else 2)
    assert append(reopened, "t", "new").first_seq == head + 1


def test_what_is_decided_between_two_changes_is_decided_by_the_later_one(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=FSYNC)
    hold(engine)
    answers: list[object] = []

    def first_is_done(outcome: object) -> None:
        # The second change is in the log already, so this record comes behind it and must be logged.
        answers.extend(ask_append(engine, "t", 1))

    engine.put_topic("t", TopicConfigPatch(durability=EPHEMERAL), first_is_done)
    ask_put(engine, "t", durability=FSYNC)
    flush(engine)
    assert seqs(engine, "t") == [1]
    assert seqs(open_engine(killed(disk)), "t") == [1]


def test_a_change_knows_of_the_unlogged_records_in_flight_before_it(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=EPHEMERAL)
    append(engine, "t", 1)
    hold(engine)
    ask_put(engine, "t", durability=EPHEMERAL, ttl_ms=100_000)
    ask_append(engine, "t", 2)
    ask_put(engine, "t", durability=FSYNC)
    ask_append(engine, "t", 3)
    flush(engine)
    assert seqs(engine, "t") == [1, 2, 3]
    # The log has neither 1 nor 2; the change reports that they were given out, or 3 would look like damage.
    after = open_engine(killed(disk))
    assert seqs(after, "t") == [3]
    assert append(after, "t", 4).first_seq == 4


def test_what_is_appended_behind_a_change_waits_for_it(engine: Engine) -> None:
    put(engine, "t", durability=FSYNC)
    hold(engine)
    ask_put(engine, "t", durability=EPHEMERAL)
    answers = ask_append(engine, "t", 1)
    # An ephemeral append is answered at once, but not before the change that makes the topic ephemeral.
    assert answers == []
    flush(engine)
    assert one(answers, AppendResult).first_seq == 1


def test_records_written_as_ephemeral_are_kept_once_the_topic_is_not(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=EPHEMERAL)
    append(engine, "t", 1, 2)
    put(engine, "t", durability=DISK)
    append(engine, "t", 3)
    checkpoint(engine)
    assert values(open_engine(killed(disk)), "t") == [1, 2, 3]


def test_before_the_next_checkpoint_they_are_lost_and_reported(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=EPHEMERAL)
    append(engine, "t", 1, 2)
    put(engine, "t", durability=DISK)
    append(engine, "t", 3)
    result = read(open_engine(killed(disk)), "t")
    assert [record["$seq"] for record in result.records()] == [3]
    assert result.tombstone is not None
    assert (result.tombstone.gap_from, result.tombstone.gap_to, result.tombstone.reason) == (1, 2, LossReason.CRASH)


def test_leaving_class_disk_leaves_no_jump_behind(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1)
    put(engine, "t", durability=FSYNC)
    after = open_engine(after_power_cut(disk), boot_id="b")
    assert append(after, "t", 2).first_seq == 2


def test_entering_class_disk_grants_a_reserve(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=MEMORY)
    append(engine, "t", 1)
    put(engine, "t", durability=DISK)
    append(engine, "t", 2)
    append(engine, "t", 3)
    after = open_engine(after_power_cut(disk), boot_id="b")
    assert seqs(after, "t") == [1]
    assert append(after, "t", 4).first_seq == 258


def test_a_deletion_in_an_ephemeral_topic_keeps_what_was_logged_before_deleted(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1, 2, 3)
    put(engine, "t", durability=EPHEMERAL)
    delete(engine, "t", before_seq=3)
    assert seqs(open_engine(killed(disk)), "t") == [3]


def test_a_deletion_behind_a_change_to_ephemeral_in_flight_survives_too(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1, 2, 3)
    hold(engine)
    ask_put(engine, "t", durability=EPHEMERAL)
    ask_delete(engine, "t", before_seq=3)
    flush(engine)
    assert seqs(engine, "t") == [3]
    assert seqs(open_engine(killed(disk)), "t") == [3]


# Dropping


def test_a_dropped_topic_is_gone(engine: Engine) -> None:
    append(engine, "t", 1)
    result = drop(engine, "t")
    assert (result.topic, result.deleted) == ("t", True)
    with pytest.raises(TopicNotFoundError):
        engine.info("t")
    assert engine.list_topics() == []
    assert engine.core.total_bytes == 0


def test_dropping_what_is_not_there_is_not_an_error(engine: Engine) -> None:
    assert not drop(engine, "t").deleted


def test_a_drop_is_on_disk_when_it_is_answered(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1)
    drop(engine, "t")
    assert open_engine(after_power_cut(disk), boot_id="b").list_topics() == []


def test_a_topic_with_records_is_not_dropped_if_empty(engine: Engine) -> None:
    append(engine, "t", 1, 2)
    with pytest.raises(TopicNotEmptyError) as refused:
        drop(engine, "t", if_empty=True)
    assert refused.value.detail == {"topic": "t", "count": 2}


def test_records_in_flight_count_too(engine: Engine) -> None:
    put(engine, "t")
    hold(engine)
    ask_append(engine, "t", 1)
    with pytest.raises(TopicNotEmptyError):
        ask_drop(engine, "t", if_empty=True)


def test_an_emptied_topic_is_dropped_if_empty(engine: Engine, clock: ManualClock) -> None:
    put(engine, "t", ttl_ms=100)
    append(engine, "t", 1)
    clock.advance(101)
    assert drop(engine, "t", if_empty=True).deleted


def test_epoch_does_not_count_other_topics(engine: Engine) -> None:
    append(engine, "mine", 1)
    for number in range(20):
        append(engine, f"other-{number}", 1)
        drop(engine, f"other-{number}")
    append(engine, "mine-too", 1)
    assert engine.info("mine-too").epoch == engine.info("mine").epoch


def test_a_recreated_topic_begins_again_with_a_new_epoch(engine: Engine) -> None:
    append(engine, "t", 1, 2, key="k")
    epoch = engine.info("t").epoch
    drop(engine, "t")
    again = append(engine, "t", "new", key="k")
    assert (again.first_seq, again.created, again.deduped) == (1, True, False)
    assert engine.info("t").epoch > epoch
    assert values(engine, "t") == ["new"]


@homes
def test_the_files_of_a_dropped_topic_go_with_the_next_checkpoint(home: str) -> None:
    disk = FakeDisk()
    engine = open_with_cold(disk)
    append(engine, "t", 1, 2)
    append(engine, "other", 1)
    move(engine, "t", home)
    move(engine, "other", "sealed")
    drop(engine, "t")
    catch_up(engine)
    assert checkpoint(engine)
    assert disk.list_dir("data/topics") == [f"{topic(engine, 'other').id:016x}"]
    assert not disk.exists("cold/topics") or disk.list_dir("cold/topics") == []


def test_until_then_a_start_finds_what_the_log_before_the_drop_needs(disk: FakeDisk) -> None:
    # The log is gone through from the last snapshot on, and its deletes look into segments that the drop ended.
    engine = open_engine(disk, segment_max_events=4)
    for number in range(6):
        append(engine, "t", number, tag="ab"[number % 2])
    checkpoint(engine)
    delete(engine, "t", match=eq("a"))
    drop(engine, "t")
    after = open_engine(killed(disk), segment_max_events=4)
    assert after.list_topics() == []
    assert append(after, "t", "new").first_seq == 1


def test_nothing_is_logged_of_a_topic_behind_its_drop(disk: FakeDisk, clock: ManualClock) -> None:
    # Expired records are noticed by the caller that looks, also while the drop is on its way.
    engine = open_engine(disk, clock)
    put(engine, "t", ttl_ms=100)
    append(engine, "t", 1, 2)
    hold(engine)
    answers = ask_drop(engine, "t")
    clock.advance(1000)
    assert engine.info("t").count == 0
    flush(engine)
    assert answers
    assert logged(engine)[-1] is FrameKind.DROP
    assert open_engine(killed(disk), clock).list_topics() == []


def test_a_topic_in_creation_can_be_dropped(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    hold(engine)
    created, dropped = ask_put(engine, "t"), ask_drop(engine, "t")
    flush(engine)
    assert one(created, PutResult).created
    assert dropped
    assert engine.list_topics() == []
    assert open_engine(killed(disk)).list_topics() == []


# Deleting records


def tagged(home: str, disk: FakeDisk | None = None) -> Engine:
    """Eight records with the tags a0 b0 a1 b1 a0 b0 a1 b1 in one home."""
    engine = open_with_cold(disk)
    for number in range(8):
        append(engine, "t", Record.of(number, tag=f"{'ab'[number % 2]}{number // 2 % 2}"))
    move(engine, "t", home)
    return engine


@homes
def test_a_bound_deletes_what_is_below_it(home: str) -> None:
    engine = tagged(home)
    result = delete(engine, "t", before_seq=4)
    assert result == DeleteResult("t", 3, 4, 8, 5, 5)
    assert seqs(engine, "t") == [4, 5, 6, 7, 8]


@homes
def test_a_tag_deletes_exactly_its_records(home: str) -> None:
    engine = tagged(home)
    result = delete(engine, "t", match=eq("a0"))
    assert (result.deleted, result.earliest_seq, result.count) == (2, 2, 6)
    assert seqs(engine, "t") == [2, 3, 4, 6, 7, 8]


@homes
def test_a_prefix_deletes_all_tags_that_begin_with_it(home: str) -> None:
    engine = tagged(home)
    assert delete(engine, "t", match=glob("a")).deleted == 4
    assert seqs(engine, "t") == [2, 4, 6, 8]


@homes
def test_the_empty_prefix_deletes_everything_that_has_a_tag(home: str) -> None:
    engine = tagged(home)
    append(engine, "t", "untagged")
    assert delete(engine, "t", match=glob("")).deleted == 8
    assert seqs(engine, "t") == [9]


@homes
def test_both_conditions_together(home: str) -> None:
    engine = tagged(home)
    assert delete(engine, "t", before_seq=5, match=glob("b")).deleted == 2
    assert seqs(engine, "t") == [1, 3, 5, 6, 7, 8]


@homes
def test_a_tag_nobody_has_deletes_nothing(home: str) -> None:
    engine = tagged(home)
    for match in (eq("a"), eq("a00"), glob("c"), eq("A0"), glob("a0*")):
        assert delete(engine, "t", match=match).deleted == 0
    assert engine.info("t").count == 8


@homes
def test_deleting_again_deletes_nothing_more(home: str) -> None:
    engine = tagged(home)
    delete(engine, "t", match=eq("a0"))
    assert delete(engine, "t", match=eq("a0")).deleted == 0
    assert delete(engine, "t", match=glob("a")).deleted == 2
    assert delete(engine, "t", before_seq=3).deleted == 1


@homes
@pytest.mark.parametrize("through_snapshot", [True, False])
def test_deletes_survive_a_restart(home: str, through_snapshot: bool) -> None:
    disk = FakeDisk()
    engine = tagged(home, disk)
    delete(engine, "t", before_seq=2)
    delete(engine, "t", match=eq("a0"))
    before = engine.info("t")
    catch_up(engine)
    if through_snapshot:
        assert checkpoint(engine)
    after = open_with_cold(killed(disk))
    assert seqs(after, "t") == [2, 3, 4, 6, 7, 8]
    assert (after.info("t").count, after.info("t").bytes) == (before.count, before.bytes)
    assert after.info("t").earliest_seq == before.earliest_seq


@homes
def test_a_segment_without_live_records_goes_with_its_files(home: str) -> None:
    disk = FakeDisk()
    engine = tagged(home, disk)
    append(engine, "t", "kept")
    delete(engine, "t", match=glob(""))
    assert topic(engine, "t").segments == []
    assert seqs(engine, "t") == [9]
    catch_up(engine)
    assert checkpoint(engine)
    folder = f"data/topics/{1:016x}"
    assert not disk.exists(folder) or disk.list_dir(folder) == []
    assert seqs(open_with_cold(killed(disk)), "t") == [9]


@homes
def test_a_run_cleared_in_the_middle(home: str) -> None:
    engine = open_with_cold(segment_max_events=2)
    append(engine, "t", 1, 2)
    append(engine, "t", 3, 4, tag="middle")
    move(engine, "t", home)
    append(engine, "t", 5)
    assert delete(engine, "t", match=eq("middle")).deleted == 2
    assert seqs(engine, "t") == [1, 2, 5]
    assert engine.info("t").earliest_seq == 1
    assert delete(engine, "t", before_seq=3).earliest_seq == 5


def test_a_delete_is_a_point_in_time(engine: Engine) -> None:
    append(engine, "t", 1, tag="x")
    delete(engine, "t", match=eq("x"))
    append(engine, "t", 2, tag="x")
    assert seqs(engine, "t") == [2]


@pytest.mark.parametrize("bound", [{"before_seq": 100}, {"match": eq("x")}])
def test_what_is_in_flight_is_safe_from_a_delete(engine: Engine, bound: dict[str, object]) -> None:
    append(engine, "t", 1, tag="x")
    hold(engine)
    appended = ask_append(engine, "t", 2, tag="x")
    deleted = ask_delete(engine, "t", **bound)  # type: ignore[arg-type]
    flush(engine)
    assert one(appended, AppendResult).first_seq == 2
    assert one(deleted, DeleteResult).deleted == 1
    assert seqs(engine, "t") == [2]


def test_what_is_in_flight_is_safe_also_after_a_restart(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1, tag="x")
    hold(engine)
    ask_append(engine, "t", 2, tag="x")
    ask_delete(engine, "t", before_seq=100)
    flush(engine)
    assert seqs(open_engine(killed(disk)), "t") == [2]


def test_a_bound_of_zero_deletes_nothing(engine: Engine) -> None:
    append(engine, "t", 1)
    assert delete(engine, "t", before_seq=0).deleted == 0
    assert delete(engine, "t", before_seq=1).deleted == 0


def test_a_delete_in_an_empty_topic(engine: Engine) -> None:
    put(engine, "t")
    assert delete(engine, "t", before_seq=10) == DeleteResult("t", 0, 1, 0, 0, 0)
    assert delete(engine, "t", match=eq("x")).deleted == 0
    assert append(engine, "t", 1).first_seq == 1
    assert seqs(engine, "t") == [1]


def test_a_delete_in_a_topic_that_is_not_there(engine: Engine) -> None:
    with pytest.raises(TopicNotFoundError):
        delete(engine, "t", before_seq=1)


def test_a_delete_raises_no_tombstone_and_moves_no_floor(engine: Engine) -> None:
    append(engine, "t", 1, 2, 3)
    delete(engine, "t", before_seq=3)
    assert topic(engine, "t").evict_floor == 1
    assert read(engine, "t").tombstone is None


@pytest.mark.parametrize("durability", CLASSES)
def test_a_delete_is_as_durable_as_its_class(disk: FakeDisk, durability: Durability) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=durability)
    append(engine, "t", 1, 2)
    disk.trace.clear()
    delete(engine, "t", before_seq=2)
    expected = {EPHEMERAL: [], MEMORY: ["write"], DISK: ["write"], FSYNC: ["write", "sync"]}
    assert [operation for operation, _ in disk.trace] == expected[durability]


@pytest.mark.parametrize("tag", ['quo"te', "back\\slash", "line\nbreak", "é", "", "*"])
@homes
def test_tags_with_strange_characters(home: str, tag: str) -> None:
    engine = open_with_cold()
    append(engine, "t", Record.of(1, tag=tag), Record.of(2, tag=tag + "x"), Record.of(3, tag="other"))
    move(engine, "t", home)
    assert delete(engine, "t", match=eq(tag)).deleted == 1
    assert seqs(engine, "t") == [2, 3]


@homes
def test_a_prefix_that_ends_inside_an_escape(home: str) -> None:
    engine = open_with_cold()
    append(
        engine, "t", Record.of(1, tag='a"b'), Record.of(2, tag="a\\b"), Record.of(3, tag="a\nb"), Record.of(4, tag="ab")
    )
    move(engine, "t", home)
    assert delete(engine, "t", match=glob('a"')).deleted == 1
    assert delete(engine, "t", match=glob("a\n")).deleted == 1
    assert seqs(engine, "t") == [2, 4]
    assert delete(engine, "t", match=glob("a")).deleted == 2


def test_deleted_records_free_room_under_a_cap(engine: Engine) -> None:
    put(engine, "t", cap_records=3)
    append(engine, "t", Record.of(1), Record.of(2, tag="x"), Record.of(3))
    delete(engine, "t", match=eq("x"))
    append(engine, "t", 4)
    assert seqs(engine, "t") == [1, 3, 4]
    append(engine, "t", 5)
    assert seqs(engine, "t") == [3, 4, 5]


def test_a_look_up_in_a_damaged_segment_is_reported_and_deletes_nothing(disk: FakeDisk) -> None:
    engine = tagged("sealed", disk)
    disk.open(f"data/topics/{1:016x}/seg-{1:020d}.idx", write=True).write_at(0, b"x")
    (answer,) = ask_delete(engine, "t", match=eq("a0"))
    assert isinstance(answer, CorruptSegmentError)
    assert (answer.detail["from_seq"], answer.detail["to_seq"]) == (1, 8)
    assert engine.info("t").count == 8


def test_reject_and_caps_are_only_words_of_the_config(engine: Engine) -> None:
    result = put(engine, "t", cap_records=5, discard=Discard.REJECT, priority=7, lease_ms=1)
    assert (result.config.discard, result.config.priority, result.config.lease_ms) == (Discard.REJECT, 7, 100)
