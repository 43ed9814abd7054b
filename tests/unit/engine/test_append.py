import pytest

from tests.unit.conftest import (
    DISK,
    EPHEMERAL,
    FSYNC,
    LOCAL,
    MEMORY,
    after_power_cut,
    append,
    ask_append,
    ask_drop,
    batch_of,
    checkpoint,
    delete,
    flush,
    hold,
    killed,
    logged,
    move,
    one,
    open_engine,
    put,
    read,
    seqs,
    times,
    topic,
    values,
)
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.log.frame import FrameKind
from topics.model.errors import (
    BatchTooLargeError,
    InvalidRequestError,
    ReadOnlyError,
    RecordTooLargeError,
    ShuttingDownError,
    ThrottledError,
    TopicFullError,
    TopicNotFoundError,
    TopicsError,
)
from topics.model.limits import Limits
from topics.model.records import Batch, Record
from topics.model.topic_config import Discard, Durability, TopicConfigPatch, TopicType
from topics.testing import FakeDisk, FaultPlan, FaultyFileSystem, ManualClock

CLASSES = LOCAL


# Seqs and answers


def test_the_first_append_creates_the_topic_and_begins_at_one(engine: Engine) -> None:
    result = append(engine, "t", "a", "b", "c")
    assert (result.topic, result.first_seq, result.last_seq, result.head_seq) == ("t", 1, 3, 3)
    assert (result.count, result.created, result.deduped) == (3, True, False)


def test_seqs_go_on_without_holes(engine: Engine) -> None:
    append(engine, "t", 1, 2)
    result = append(engine, "t", 3)
    assert (result.first_seq, result.created) == (3, False)
    assert values(engine, "t") == [1, 2, 3]


@pytest.mark.parametrize("durability", CLASSES)
def test_every_class_publishes_before_it_answers(engine: Engine, durability: Durability) -> None:
    put(engine, "t", durability=durability)
    seen: list[list[int]] = []

    def done(outcome: AppendResult | TopicsError) -> None:
        seen.append(seqs(engine, "t"))

    engine.append("t", batch_of(1), done)
    engine.append("t", batch_of(2), done)
    assert seen == [[1], [1, 2]]


@pytest.mark.parametrize("durability", CLASSES)
def test_nothing_is_visible_before_its_commit(engine: Engine, durability: Durability) -> None:
    put(engine, "t", durability=durability)
    append(engine, "t", 1)
    hold(engine)
    answers = ask_append(engine, "t", 2)
    if durability is EPHEMERAL:
        assert seqs(engine, "t") == [1, 2]
    else:
        assert seqs(engine, "t") == [1]
        assert answers == []
    flush(engine)
    assert one(answers, AppendResult).first_seq == 2
    assert seqs(engine, "t") == [1, 2]


def test_in_flight_batches_of_a_topic_have_their_seqs_already(engine: Engine) -> None:
    append(engine, "t", 1)
    hold(engine)
    first, second = ask_append(engine, "t", 2, 3), ask_append(engine, "t", 4)
    flush(engine)
    assert one(first, AppendResult).first_seq == 2
    assert one(second, AppendResult).first_seq == 4
    assert one(first, AppendResult).head_seq == 3


# Creation


def test_a_lazily_created_topic_has_the_inline_config(engine: Engine) -> None:
    append(engine, "t", 1, config=TopicConfigPatch(type=TopicType.QUEUE, ttl_ms=5000))
    assert engine.info("t").config.type is TopicType.QUEUE
    assert engine.info("t").config.ttl_ms == 5000


def test_an_inline_config_is_ignored_when_the_topic_is_there(engine: Engine) -> None:
    put(engine, "t", ttl_ms=1)
    append(engine, "t", 1, config=TopicConfigPatch(ttl_ms=5000, type=TopicType.QUEUE))
    assert engine.info("t").config.ttl_ms == 1


def test_create_false_does_not_create(engine: Engine) -> None:
    with pytest.raises(TopicNotFoundError):
        ask_append(engine, "t", 1, create=False)
    assert engine.list_topics() == []


def test_create_false_appends_to_what_exists(engine: Engine) -> None:
    append(engine, "t", 1)
    assert append(engine, "t", 2, create=False).last_seq == 2


def test_an_inline_config_that_forbids_auto_creation_forbids_this_one(engine: Engine) -> None:
    with pytest.raises(TopicNotFoundError):
        ask_append(engine, "t", 1, config=TopicConfigPatch(auto_create=False))


def test_an_explicit_create_wins_over_auto_create(engine: Engine) -> None:
    assert append(engine, "t", 1, create=True, config=TopicConfigPatch(auto_create=False)).created


def test_create_false_is_reported_before_the_name_is_looked_at(engine: Engine) -> None:
    with pytest.raises(TopicNotFoundError):
        ask_append(engine, "not a name!", 1, create=False)


def test_a_name_that_cannot_be_is_refused_on_creation(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError):
        ask_append(engine, "not a name!", 1)


def test_a_topic_in_creation_is_seen_by_nobody(engine: Engine) -> None:
    hold(engine)
    answers = ask_append(engine, "t", 1)
    with pytest.raises(TopicNotFoundError):
        engine.info("t")
    with pytest.raises(TopicNotFoundError):
        read(engine, "t")
    assert engine.list_topics() == []
    flush(engine)
    assert one(answers, AppendResult).created
    assert seqs(engine, "t") == [1]


def test_only_the_first_of_two_that_create_together_states_created(engine: Engine) -> None:
    hold(engine)
    first, second = ask_append(engine, "t", 1), ask_append(engine, "t", 2)
    flush(engine)
    assert one(first, AppendResult).created
    assert not one(second, AppendResult).created
    assert len(engine.list_topics()) == 1


@pytest.mark.parametrize("durability", CLASSES)
def test_a_created_topic_survives_a_power_cut_whatever_its_class(disk: FakeDisk, durability: Durability) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1, config=TopicConfigPatch(durability=durability))
    after = open_engine(after_power_cut(disk), boot_id="b")
    assert after.info("t").config.durability is durability


# Refusals


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        ({"records": []}, InvalidRequestError),
        ({"records": [Record.of(i) for i in range(5)]}, BatchTooLargeError),
        ({"records": [Record.of("x" * 50)]}, RecordTooLargeError),
        ({"records": [Record.of(1, tag="x" * 9)]}, InvalidRequestError),
        ({"records": [Record.of(1)], "node": "x" * 9}, InvalidRequestError),
        ({"records": [Record.of(1)], "idempotency_key": "x" * 9}, InvalidRequestError),
    ],
)
def test_a_batch_over_its_limits_is_refused_and_leaves_nothing(
    refused: dict[str, object], error: type[TopicsError]
) -> None:
    limits = Limits(
        max_batch_records=4, max_record_bytes=40, max_tag_bytes=8, max_node_bytes=8, max_idempotency_key_chars=8
    )
    engine = open_engine(limits=limits)
    with pytest.raises(error):
        engine.append("t", Batch(**refused), lambda outcome: None)  # type: ignore[arg-type]
    assert engine.list_topics() == []
    assert append(engine, "t", 1).first_seq == 1


def test_the_cap_on_topics_counts_those_in_creation() -> None:
    engine = open_engine(limits=Limits(max_topics=2))
    append(engine, "a", 1)
    hold(engine)
    ask_append(engine, "b", 1)
    with pytest.raises(ThrottledError) as refused:
        ask_append(engine, "c", 1)
    assert refused.value.detail == {"limit": "max_topics", "max": 2}
    flush(engine)
    append(engine, "a", 2)
    append(engine, "b", 2)


def test_a_deleted_topic_makes_room_for_another() -> None:
    engine = open_engine(limits=Limits(max_topics=1))
    append(engine, "a", 1)
    assert ask_drop(engine, "a")
    append(engine, "b", 1)


def test_the_quota_of_bytes_is_checked_over_all_topics() -> None:
    engine = open_engine(limits=Limits(max_total_bytes=10))
    append(engine, "a", 12345)
    with pytest.raises(ThrottledError) as refused:
        ask_append(engine, "b", 123456)
    assert refused.value.detail == {"limit": "max_total_bytes", "max": 10}
    append(engine, "b", 12345)


def test_a_quota_refusal_creates_no_topic() -> None:
    engine = open_engine(limits=Limits(max_total_bytes=3))
    with pytest.raises(ThrottledError):
        ask_append(engine, "t", 12345)
    assert engine.list_topics() == []
    assert append(engine, "t", 1).created


def test_the_quota_counts_what_is_in_flight_in_other_topics() -> None:
    engine = open_engine(limits=Limits(max_total_bytes=10))
    append(engine, "a", 1)
    append(engine, "b", 1)
    hold(engine)
    ask_append(engine, "a", 12345)
    with pytest.raises(ThrottledError):
        ask_append(engine, "b", 12345)
    flush(engine)
    assert engine.core.total_bytes == 7


def test_deleted_records_give_their_bytes_back_to_the_quota() -> None:
    engine = open_engine(limits=Limits(max_total_bytes=10))
    append(engine, "t", 12345, 12345)
    delete(engine, "t", before_seq=2)
    append(engine, "t", 12345)


def test_meta_counts_against_the_quota() -> None:
    engine = open_engine(limits=Limits(max_total_bytes=8))
    with pytest.raises(ThrottledError):
        ask_append(engine, "t", Record.of(12345, meta={"a": 1}))


def test_a_full_topic_that_rejects_takes_nothing_of_the_batch(engine: Engine) -> None:
    put(engine, "t", cap_records=3, discard=Discard.REJECT)
    append(engine, "t", 1, 2)
    with pytest.raises(TopicFullError) as refused:
        ask_append(engine, "t", 3, 4)
    assert refused.value.detail == {
        "topic": "t", "cap_records": 3, "cap_bytes": 0, "head_seq": 2, "earliest_seq": 1,
    }  # fmt: skip
    assert append(engine, "t", 3).last_seq == 3


def test_a_topic_that_rejects_counts_bytes_too(engine: Engine) -> None:
    put(engine, "t", cap_bytes=6, discard=Discard.REJECT)
    append(engine, "t", 1234)
    with pytest.raises(TopicFullError):
        ask_append(engine, "t", 123)
    append(engine, "t", 12)


def test_a_batch_that_can_never_fit_is_too_large_and_not_full(engine: Engine) -> None:
    put(engine, "t", cap_records=2, cap_bytes=6, discard=Discard.REJECT)
    with pytest.raises(RecordTooLargeError):
        ask_append(engine, "t", 1, 2, 3)
    with pytest.raises(RecordTooLargeError):
        ask_append(engine, "t", 1234567)


def test_a_topic_that_rejects_counts_what_is_in_flight(engine: Engine) -> None:
    put(engine, "t", cap_records=2, discard=Discard.REJECT)
    hold(engine)
    ask_append(engine, "t", 1)
    ask_append(engine, "t", 2)
    with pytest.raises(TopicFullError):
        ask_append(engine, "t", 3)


def test_deleting_frees_room_in_a_topic_that_rejects(engine: Engine) -> None:
    put(engine, "t", cap_records=2, discard=Discard.REJECT)
    append(engine, "t", 1, 2)
    delete(engine, "t", before_seq=2)
    assert append(engine, "t", 3).last_seq == 3
    assert seqs(engine, "t") == [2, 3]


def test_time_frees_room_in_a_topic_that_rejects(engine: Engine, clock: ManualClock) -> None:
    put(engine, "t", cap_records=1, ttl_ms=100, discard=Discard.REJECT)
    append(engine, "t", 1)
    clock.advance(101)
    assert append(engine, "t", 2).last_seq == 2


def test_a_lower_cap_evicts_nothing_from_a_topic_that_rejects(engine: Engine) -> None:
    append(engine, "t", 1, 2, 3)
    put(engine, "t", cap_records=2, discard=Discard.REJECT)
    assert seqs(engine, "t") == [1, 2, 3]
    with pytest.raises(TopicFullError):
        ask_append(engine, "t", 4)


def test_a_closed_engine_takes_nothing(engine: Engine) -> None:
    engine.close_inline()
    with pytest.raises(ShuttingDownError):
        ask_append(engine, "t", 1)


# Idempotency


def test_a_key_seen_before_gives_the_first_answer_again(engine: Engine) -> None:
    append(engine, "t", 1)
    first = append(engine, "t", 2, 3, key="k")
    append(engine, "t", 4)
    again = append(engine, "t", 2, 3, key="k")
    assert (again.first_seq, again.last_seq) == (first.first_seq, first.last_seq) == (2, 3)
    assert (again.deduped, again.created, again.head_seq) == (True, False, 3)
    assert values(engine, "t") == [1, 2, 3, 4]


def test_keys_belong_to_their_topic(engine: Engine) -> None:
    append(engine, "a", 1, key="k")
    assert not append(engine, "b", 1, key="k").deduped


def test_the_key_of_the_write_that_created_the_topic_counts(engine: Engine) -> None:
    append(engine, "t", 1, key="k")
    assert append(engine, "t", 1, key="k").deduped


def test_the_same_key_in_flight_is_appended_once_and_answered_twice(engine: Engine) -> None:
    append(engine, "t", 0)
    hold(engine)
    first = ask_append(engine, "t", 1, key="k")
    second = ask_append(engine, "t", 1, key="k")
    third = ask_append(engine, "t", 1, key="k")
    assert (first, second, third) == ([], [], [])
    flush(engine)
    assert not one(first, AppendResult).deduped
    assert one(second, AppendResult).deduped
    assert one(third, AppendResult).first_seq == 2
    assert values(engine, "t") == [0, 1]


def test_followers_of_a_failed_write_fail_with_it() -> None:
    faulty = FaultyFileSystem(FakeDisk())
    engine = open_engine(faulty)
    append(engine, "t", 0)
    hold(engine)
    first, second = ask_append(engine, "t", 1, key="k"), ask_append(engine, "t", 1, key="k")
    faulty.plan = FaultPlan(call=faulty.calls + 1)
    flush(engine)
    assert isinstance(first[0], ReadOnlyError)
    assert isinstance(second[0], ReadOnlyError)


def test_a_key_is_forgotten_after_its_window(engine: Engine, clock: ManualClock) -> None:
    put(engine, "t", idempotency_window_ms=1000)
    append(engine, "t", 1, key="k")
    clock.advance(1000)
    assert append(engine, "t", 1, key="k").deduped
    clock.advance(1)
    again = append(engine, "t", 1, key="k")
    assert (again.deduped, again.first_seq) == (False, 2)


def test_a_key_used_again_after_its_window_has_a_new_one(engine: Engine, clock: ManualClock) -> None:
    put(engine, "t", idempotency_window_ms=1000)
    append(engine, "t", 1, key="old")
    append(engine, "t", 1, key="k")
    clock.advance(1001)
    append(engine, "t", 2, key="k")
    clock.advance(900)
    assert append(engine, "t", 2, key="k").first_seq == 3


def test_a_window_of_zero_is_no_idempotency(engine: Engine) -> None:
    put(engine, "t", idempotency_window_ms=0)
    append(engine, "t", 1, key="k")
    assert not append(engine, "t", 1, key="k").deduped


def test_old_keys_do_not_pile_up(engine: Engine, clock: ManualClock) -> None:
    put(engine, "t", idempotency_window_ms=10)
    for number in range(50):
        append(engine, "t", 1, key=f"k{number}")
        clock.advance(1)
    assert len(topic(engine, "t").keys or ()) <= 11


@pytest.mark.parametrize("through_snapshot", [True, False])
def test_keys_survive_a_restart_within_their_window(disk: FakeDisk, clock: ManualClock, through_snapshot: bool) -> None:
    engine = open_engine(disk, clock)
    append(engine, "t", 0)
    append(engine, "t", 1, 2, key="k")
    append(engine, "t", 3)
    if through_snapshot:
        checkpoint(engine)
    after = open_engine(killed(disk), clock)
    again = append(after, "t", 1, 2, key="k")
    assert (again.deduped, again.first_seq, again.last_seq) == (True, 2, 3)
    clock.advance(200_000)
    assert not append(after, "t", 1, 2, key="k").deduped


def test_a_key_of_a_sealed_record_is_still_known(disk: FakeDisk) -> None:
    engine = open_engine(disk, segment_max_events=2)
    append(engine, "t", 1, key="k")
    append(engine, "t", 2)
    append(engine, "t", 3)
    checkpoint(engine)
    after = open_engine(killed(disk), segment_max_events=2)
    assert append(after, "t", 1, key="k").first_seq == 1


def test_a_key_may_be_any_text(engine: Engine) -> None:
    append(engine, "t", 1, key='ключ "%"')
    assert append(engine, "t", 1, key='ключ "%"').deduped


# Time


class SteppingClock(ManualClock):
    """A wall clock that can be set, as people and time servers do it."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.offset


def test_the_time_of_a_batch_is_the_same_for_all_its_records(engine: Engine, clock: ManualClock) -> None:
    append(engine, "t", 1, 2)
    clock.advance(5)
    append(engine, "t", 3)
    start = clock.now_ms() - 5
    assert times(engine, "t") == [start, start, start + 5]


def test_times_never_go_back_when_the_clock_does() -> None:
    clock = SteppingClock()
    engine = open_engine(clock=clock)
    append(engine, "t", 1)
    start = clock.now_ms()
    clock.offset = -60_000
    append(engine, "t", 2)
    clock.offset = 7
    append(engine, "t", 3)
    assert times(engine, "t") == [start, start, start + 7]


@pytest.mark.parametrize("through_snapshot", [True, False])
def test_times_of_a_topic_never_go_back_across_a_restart(disk: FakeDisk, through_snapshot: bool) -> None:
    engine = open_engine(disk, ManualClock(2_000_000))
    append(engine, "t", 1)
    if through_snapshot:
        checkpoint(engine)
    after = open_engine(killed(disk), ManualClock(1_000_000))
    append(after, "t", 2)
    append(after, "new", 1)
    assert times(after, "t") == [2_000_000, 2_000_000]
    # No topic is affected by a clock change in another.
    assert times(after, "new") == [1_000_000]


# The ceiling of class disk


@pytest.mark.parametrize("durability", LOCAL)
def test_a_creation_grants_the_first_reserve_without_a_frame(engine: Engine, durability: Durability) -> None:
    put(engine, "t", durability=durability)
    append(engine, "t", 1)
    assert logged(engine) == ([FrameKind.CREATE, FrameKind.APPEND] if durability.logged else [FrameKind.CREATE])
    assert topic(engine, "t").ceiling == (256 if durability in (DISK, EPHEMERAL) else 0)


def test_an_append_of_class_disk_does_not_sync_below_the_ceiling(engine: Engine, disk: FakeDisk) -> None:
    append(engine, "t", 1)
    disk.trace.clear()
    append(engine, "t", 2)
    assert [operation for operation, _ in disk.trace] == ["write"]


def test_an_append_of_class_fsync_syncs(engine: Engine, disk: FakeDisk) -> None:
    put(engine, "t", durability=FSYNC)
    disk.trace.clear()
    append(engine, "t", 2)
    assert [operation for operation, _ in disk.trace] == ["write", "sync"]


def test_the_ceiling_is_raised_before_it_is_reached(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock, disk_reserve_seqs=8)
    append(engine, "t", *range(3))
    assert topic(engine, "t").ceiling == 8
    append(engine, "t", 4)
    assert topic(engine, "t").ceiling == 12
    clock.advance(10_000)
    append(engine, "t", *range(4))
    assert topic(engine, "t").ceiling == 16
    assert topic(engine, "t").head == 8


def test_a_busy_topic_reserves_more_at_a_time(engine: Engine) -> None:
    append(engine, "t", *range(200))
    first = topic(engine, "t").ceiling
    append(engine, "t", *range(200))
    assert topic(engine, "t").ceiling - topic(engine, "t").head > first - 200


def test_a_quiet_topic_reserves_little(engine: Engine, clock: ManualClock) -> None:
    append(engine, "t", *range(300))
    clock.advance(10_000)
    append(engine, "t", *range(300))
    assert topic(engine, "t").ceiling == 600 + 256


def test_no_seq_is_given_out_twice_after_a_power_cut(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1)
    append(engine, "t", 2)
    append(engine, "t", 3)
    after = open_engine(after_power_cut(disk), boot_id="b")
    # The second and the third were answered and not synced yet, so their numbers are spent.
    assert values(after, "t") == [1]
    assert append(after, "t", "new").first_seq == 257


def test_a_topic_larger_than_its_reserve_reserves_beyond_the_batch(disk: FakeDisk) -> None:
    engine = open_engine(disk, disk_reserve_seqs=2)
    append(engine, "t", *range(10))
    assert topic(engine, "t").ceiling == 12


def test_nothing_waits_for_the_disk_after_a_restart_or_a_checkpoint(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    for durability in (DISK, EPHEMERAL):
        put(engine, durability.value, durability=durability)
    for _ in range(2):
        checkpoint(engine)
        hold(engine)
        disk.trace.clear()
        answers = [ask_append(engine, durability.value, 1) for durability in (DISK, EPHEMERAL)]
        flush(engine)
        assert [one(answer, AppendResult).fsync_ms for answer in answers] == [0.0, 0.0]
        # The call before the write creates the log's new file.
        assert disk.trace[-1][0] == "write"
        engine.close_inline()
        engine = open_engine(disk)


def test_a_clean_stop_leaves_no_hole(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1)
    engine.close_inline()
    engine = open_engine(after_power_cut(disk), boot_id="b")
    assert append(engine, "t", 2).first_seq == 2
    assert topic(engine, "t").lost is None


def test_a_reserve_that_was_changed_covers_what_the_old_one_gave_out(disk: FakeDisk) -> None:
    engine = open_engine(disk, disk_reserve_seqs=100)
    append(engine, "t", 1)
    after = open_engine(after_power_cut(disk), boot_id="b", disk_reserve_seqs=2)
    assert after.info("t").head_seq == 100
    append(after, "t", 2)
    again = open_engine(after_power_cut(after._fs), boot_id="c", disk_reserve_seqs=2)  # type: ignore[arg-type]
    assert again.info("t").head_seq == 103


def test_a_power_cut_with_a_small_reserve_skips_what_the_ceiling_states(disk: FakeDisk) -> None:
    engine = open_engine(disk, disk_reserve_seqs=2)
    append(engine, "t", *range(10))
    after = open_engine(after_power_cut(disk), boot_id="b", disk_reserve_seqs=2)
    assert after.info("t").head_seq == 12


def test_class_memory_may_give_a_seq_out_again_after_a_power_cut(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=MEMORY)
    append(engine, "t", 1)
    after = open_engine(after_power_cut(disk), boot_id="b")
    assert append(after, "t", "new").first_seq == 1


def test_class_fsync_loses_nothing_and_jumps_nowhere(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=FSYNC)
    append(engine, "t", 1)
    append(engine, "t", 2)
    after = open_engine(after_power_cut(disk), boot_id="b")
    assert values(after, "t") == [1, 2]
    assert append(after, "t", 3).first_seq == 3


def test_class_ephemeral_writes_no_records(engine: Engine) -> None:
    put(engine, "t", durability=EPHEMERAL)
    append(engine, "t", 1)
    append(engine, "t", 2)
    assert FrameKind.APPEND not in logged(engine)
    assert values(engine, "t") == [1, 2]


def test_default_is_class_disk(engine: Engine) -> None:
    append(engine, "t", 1)
    assert engine.info("t").config.durability is DISK


# Records


def test_data_and_meta_come_back_to_the_byte(engine: Engine) -> None:
    append(engine, "t", Record(b'{"n": 1.0}', meta=b'{ "m":1e2 }'))
    assert read(engine, "t").body.endswith(b'"data":{"n": 1.0},"meta":{ "m":1e2 }}')


def test_a_batch_across_a_power_of_ten_in_its_topic(engine: Engine) -> None:
    append(engine, "t", *range(8))
    append(engine, "t", *range(8, 98))
    append(engine, "t", *range(98, 1003))
    assert values(engine, "t", limit=2000) == list(range(1003))
    assert seqs(engine, "t", limit=2000) == list(range(1, 1004))


def test_bytes_count_data_and_meta_only(engine: Engine) -> None:
    append(engine, "t", Record.of("abc", tag="a long tag", node="a long node", meta={"m": 1}))
    assert engine.info("t").bytes == len('"abc"') + len('{"m":1}')


def test_a_text_coordinate_that_would_not_fit_starts_again(
    engine: Engine, disk: FakeDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.engine.append.BASE_MAX", 200)
    for number in range(20):
        append(engine, "t", f"value {number}")
    expected = [f"value {number}" for number in range(20)]
    assert values(engine, "t") == expected
    move(engine, "t", "sealed")
    assert len(topic(engine, "t").segments) > 1
    assert values(engine, "t") == expected
    assert values(open_engine(killed(disk)), "t") == expected
