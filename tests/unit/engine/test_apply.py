"""Changes applied by hand, as recovery does it: no log, no loop, one topic."""

import msgspec
import pytest

from tests.unit.engine.test_record_runs import block_of
from topics.engine.apply import Applier, forget_old_keys
from topics.engine.quotas import Totals
from topics.engine.retention import Retention
from topics.engine.topic import Block, RunReader, Segment, Topic
from topics.log.layout import Layout
from topics.log.segment_files import SegmentStore
from topics.model.seq_ranges import LossReason, LostRange
from topics.model.topic_config import DEFAULT_CONFIG, Durability, TopicConfig
from topics.testing import FakeDisk


class Bench:
    def __init__(self, config: TopicConfig = DEFAULT_CONFIG) -> None:
        self.dropped: list[int] = []
        reader = RunReader(SegmentStore(FakeDisk(), Layout("data"), 1000))
        self.totals = Totals()
        retention = Retention(reader, lambda topic, segment: self.dropped.append(segment.first_seq), self.totals)
        self.applier = Applier(reader, retention, 0)
        self.applier.cut_due.subscribe(self.cut)
        self.topic = Topic(1, "t", 1, config, 0)
        self.cuts = 0

    def cut(self, topic: Topic) -> None:
        self.cuts += 1
        if topic.tail:
            topic.segments.append(Segment.of_blocks(topic.tail))
            topic.tail, topic.tail_count, topic.tail_bytes = [], 0, 0

    def append(self, *values: object, ts: int = 100, key: str | None = None) -> None:
        block = block_of(list(values), self.topic.head + 1, ts=ts)
        block.key = key
        self.applier.append(self.topic, block)

    def live(self) -> list[int]:
        topic = self.topic
        found: list[int] = []
        for run in topic.runs_from(topic.earliest):
            flags = run.flags or bytes(run.count)
            seqs = range(run.first_seq, run.first_seq + run.count)
            found += [seq for seq, flag in zip(seqs, flags, strict=True) if flag != 0xD5 and seq >= topic.earliest]
        assert len(found) == topic.live_count == sum(run.live for run in topic.runs_from(topic.earliest))
        return found


# Appending


def test_an_append_is_published() -> None:
    bench = Bench()
    bench.append(1, 22)
    bench.append(333, ts=200)
    topic = bench.topic
    assert bench.live() == [1, 2, 3]
    assert (topic.head, topic.earliest, topic.live_bytes, topic.tail_count) == (3, 1, 6, 3)
    assert (topic.last_ts, topic.last_write_ts) == (200, 200)


def test_the_first_append_after_everything_was_deleted_is_the_earliest() -> None:
    bench = Bench()
    bench.append(1, 2)
    bench.applier.delete(bench.topic, 3, [])
    assert bench.topic.earliest == 3
    bench.append(3)
    assert (bench.topic.earliest, bench.live()) == (3, [3])


def test_an_append_behind_a_gap_begins_behind_it() -> None:
    bench = Bench()
    bench.applier.gap(bench.topic, 1, 10, LossReason.CRASH)
    bench.append(1)
    assert (bench.topic.head, bench.topic.earliest, bench.live()) == (11, 11, [11])


def test_caps_are_enforced_with_the_append() -> None:
    bench = Bench(TopicConfig(cap_records=2))
    bench.append(1, 2, 3)
    assert (bench.live(), bench.topic.evict_floor) == ([2, 3], 2)


def test_a_key_is_remembered_with_its_block() -> None:
    bench = Bench()
    bench.append(1, 2, key="k", ts=50)
    assert bench.topic.keys is not None
    assert bench.topic.keys["k"][:3] == (1, 2, 50)


def test_keys_outside_their_window_go_with_the_next_one() -> None:
    bench = Bench(TopicConfig(idempotency_window_ms=10))
    bench.append(1, key="a", ts=100)
    bench.append(1, key="b", ts=105)
    bench.append(1, key="c", ts=111)
    assert list(bench.topic.keys or ()) == ["b", "c"]


def test_a_key_used_again_is_the_youngest() -> None:
    bench = Bench()
    bench.append(1, key="a")
    bench.append(1, key="b")
    bench.append(1, key="a")
    assert [(key, known[:3]) for key, known in (bench.topic.keys or {}).items()] == [
        ("b", (2, 1, 100)),
        ("a", (3, 1, 100)),
    ]


def test_forgetting_the_last_key_leaves_nothing() -> None:
    bench = Bench(TopicConfig(idempotency_window_ms=10))
    bench.append(1, key="a", ts=100)
    forget_old_keys(bench.topic, 110)
    assert bench.topic.keys is not None
    forget_old_keys(bench.topic, 111)
    assert bench.topic.keys is None
    forget_old_keys(bench.topic, 999)


# Deleting


def test_a_bound_and_ranges_together() -> None:
    bench = Bench()
    bench.append(*range(10))
    assert bench.applier.delete(bench.topic, 3, [(5, 6), (9, 9)]) == 5
    assert bench.live() == [3, 4, 7, 8, 10]


def test_ranges_across_runs() -> None:
    bench = Bench()
    bench.append(1, 2)
    bench.append(3)
    bench.append(4, 5)
    assert bench.applier.delete(bench.topic, 0, [(2, 4)]) == 3
    assert bench.live() == [1, 5]


def test_deleting_the_front_moves_the_earliest() -> None:
    bench = Bench()
    bench.append(1, 2, 3)
    bench.applier.delete(bench.topic, 0, [(1, 2)])
    assert bench.topic.earliest == 3
    assert bench.topic.evict_floor == 1


def test_deleting_twice_is_deleting_once() -> None:
    bench = Bench()
    bench.append(1, 2, 3)
    assert bench.applier.delete(bench.topic, 2, [(3, 3)]) == 2
    assert bench.applier.delete(bench.topic, 2, [(3, 3)]) == 0
    assert bench.live() == [2]


def test_a_range_below_the_earliest_deletes_nothing() -> None:
    bench = Bench()
    bench.append(1, 2, 3)
    bench.applier.delete(bench.topic, 3, [])
    assert bench.applier.delete(bench.topic, 0, [(1, 2)]) == 0


def test_a_range_beyond_the_head_deletes_what_there_is() -> None:
    bench = Bench()
    bench.append(1, 2)
    assert bench.applier.delete(bench.topic, 0, [(2, 50)]) == 1
    assert bench.applier.delete(bench.topic, 99, []) == 1
    assert bench.topic.earliest == 3


def test_a_segment_cleared_by_a_delete_is_dropped_wherever_it_stands() -> None:
    bench = Bench()
    for values in ([1, 2], [3, 4], [5, 6]):
        bench.append(*values)
        bench.cut(bench.topic)
    assert bench.applier.delete(bench.topic, 0, [(3, 4)]) == 2
    assert bench.dropped == [3]
    assert bench.live() == [1, 2, 5, 6]


def test_a_segment_counts_its_marks() -> None:
    bench = Bench()
    bench.append(1, 2, 3)
    bench.cut(bench.topic)
    bench.applier.delete(bench.topic, 0, [(2, 2)])
    (segment,) = bench.topic.segments
    assert (segment.marked, segment.live, segment.flag_changes) == (1, 2, 1)


# Evicting


@pytest.mark.parametrize("expired", [True, False])
def test_an_eviction_moves_its_floor(expired: bool) -> None:
    bench = Bench()
    bench.append(1, 2, 3)
    take = bench.applier.expire if expired else bench.applier.evict
    take(bench.topic, 3)
    topic = bench.topic
    assert bench.live() == [3]
    assert (topic.evict_floor, topic.ttl_floor, topic.cap_floor) == (3, 3 if expired else 1, 1 if expired else 3)


def test_an_eviction_that_finds_nothing_changes_no_floor() -> None:
    bench = Bench()
    bench.append(1, 2, 3)
    bench.applier.delete(bench.topic, 3, [])
    bench.applier.evict(bench.topic, 3)
    assert bench.topic.evict_floor == 1


def test_what_had_expired_before_it_was_deleted_stays_reported() -> None:
    bench = Bench()
    bench.append(1, 2, 3)
    # A delete that was on its way when time took the records stands before it in the log.
    bench.applier.delete(bench.topic, 3, [])
    bench.applier.expire(bench.topic, 3)
    assert (bench.topic.evict_floor, bench.topic.earliest) == (3, 3)


def test_a_floor_is_never_above_what_there_is() -> None:
    bench = Bench()
    bench.append(1, 2)
    # The topic held records that were never logged.
    bench.applier.expire(bench.topic, 9)
    assert (bench.topic.evict_floor, bench.topic.earliest) == (3, 3)


def test_the_caps_of_a_topic_with_unlogged_records_are_decisions_of_their_own() -> None:
    bench = Bench(msgspec.structs.replace(DEFAULT_CONFIG, cap_records=2))
    bench.topic.unlogged = True
    bench.append(1, 2, 3)
    assert (bench.live(), bench.applier.overfull) == ([1, 2, 3], {bench.topic})
    assert bench.applier.excess_below(bench.topic) == 2
    bench.applier.complete(bench.topic)
    assert (bench.live(), bench.topic.evict_floor, bench.topic.unlogged) == ([2, 3], 2, False)


def test_evicting_twice_is_evicting_once() -> None:
    bench = Bench()
    bench.append(1, 2, 3)
    for _ in range(2):
        bench.applier.evict(bench.topic, 2)
        assert (bench.live(), bench.topic.evict_floor) == ([2, 3], 2)


# Configuring


def test_a_config_is_replaced() -> None:
    bench = Bench()
    bench.append(1, 2, 3)
    config = TopicConfig(cap_records=1)
    bench.applier.configure(bench.topic, config, 3)
    assert bench.topic.config is bench.topic.staged_config is config
    assert bench.live() == [3]
    assert bench.cuts == 0


@pytest.mark.parametrize(
    ("before", "after", "cuts"),
    [
        (Durability.DISK, Durability.EPHEMERAL, 1),
        (Durability.EPHEMERAL, Durability.FSYNC, 1),
        (Durability.DISK, Durability.FSYNC, 0),
        (Durability.MEMORY, Durability.DISK, 0),
        (Durability.EPHEMERAL, Durability.EPHEMERAL, 0),
    ],
)
def test_a_tail_is_logged_or_not_and_never_half(before: Durability, after: Durability, cuts: int) -> None:
    bench = Bench(TopicConfig(durability=before))
    bench.append(1)
    bench.applier.configure(bench.topic, TopicConfig(durability=after), 1)
    assert bench.cuts == cuts
    assert bench.live() == [1]


def test_a_change_that_knows_a_higher_head_reports_lost_records() -> None:
    bench = Bench()
    bench.append(1)
    bench.applier.configure(bench.topic, TopicConfig(ttl_ms=5), 4)
    assert bench.topic.head == 4
    assert bench.topic.lost == [LostRange(2, 4, LossReason.CRASH)]


def test_a_class_that_syncs_needs_no_ceiling() -> None:
    bench = Bench()
    bench.topic.ceiling = bench.topic.ceiling_staged = 256
    bench.applier.configure(bench.topic, TopicConfig(durability=Durability.FSYNC), 0)
    assert (bench.topic.ceiling, bench.topic.ceiling_staged) == (0, 0)


# Gaps


def test_a_silent_gap_only_moves_the_head() -> None:
    bench = Bench()
    bench.append(1)
    bench.applier.gap(bench.topic, 2, 10, None)
    assert (bench.topic.head, bench.topic.lost, bench.live()) == (10, None, [1])


def test_an_empty_topic_begins_behind_its_gap() -> None:
    bench = Bench()
    bench.applier.gap(bench.topic, 1, 10, LossReason.CRASH)
    assert (bench.topic.head, bench.topic.earliest) == (10, 11)


def test_gaps_that_touch_are_one() -> None:
    bench = Bench()
    bench.applier.gap(bench.topic, 1, 5, LossReason.CRASH)
    bench.applier.gap(bench.topic, 6, 9, LossReason.CRASH)
    assert bench.topic.lost == [LostRange(1, 9, LossReason.CRASH)]


def test_gaps_of_different_reasons_stay_apart() -> None:
    bench = Bench()
    bench.applier.gap(bench.topic, 1, 5, LossReason.CRASH)
    bench.applier.gap(bench.topic, 6, 9, LossReason.CORRUPT)
    assert len(bench.topic.lost or ()) == 2


def test_gaps_are_kept_in_order() -> None:
    bench = Bench()
    bench.append(*range(20))
    bench.applier.gap(bench.topic, 10, 12, LossReason.CORRUPT)
    bench.applier.gap(bench.topic, 3, 4, LossReason.CORRUPT)
    assert [lost.from_seq for lost in bench.topic.lost or ()] == [3, 10]
    assert bench.topic.head == 20


def test_gaps_below_the_floor_are_forgotten() -> None:
    bench = Bench()
    bench.append(1)
    bench.applier.gap(bench.topic, 2, 5, LossReason.CRASH)
    bench.append(6, 7)
    bench.applier.evict(bench.topic, 7)
    assert bench.topic.lost is None


def test_a_block_is_never_taken_for_a_segment() -> None:
    bench = Bench()
    bench.append(1, 2)
    bench.cut(bench.topic)
    bench.append(3)
    assert [type(run) for run in bench.topic.runs_from(1)] == [Segment, Block]
    assert bench.applier.delete(bench.topic, 3, []) == 2
    assert (bench.dropped, bench.live()) == ([1], [3])
