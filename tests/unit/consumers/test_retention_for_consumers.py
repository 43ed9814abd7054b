"""`retain_for_consumers`: caps and age keep the records that the slowest consumer has not committed, up to a bound."""

import logging
from random import Random

import pytest

from tests.unit.conftest import (
    DISK,
    EPHEMERAL,
    FSYNC,
    after_power_cut,
    append,
    checkpoint,
    delete,
    killed,
    open_engine,
    put,
    read,
    seqs,
    topic,
)
from topics.engine.engine import Engine
from topics.model.errors import TopicsError
from topics.model.seq_ranges import LossReason
from topics.model.topic_config import Durability
from topics.testing import FakeDisk, ManualClock

RECORD = "x" * 98
"""With its quotes it has 100 bytes."""


def consume(engine: Engine, name: str = "c", seq: int = 0) -> None:
    answers: list[object] = []
    engine.consumers.put(engine.existing("t"), name, seq, "key", answers.append)
    assert not any(isinstance(answer, TopicsError) for answer in answers)


def commit(engine: Engine, seq: int, name: str = "c") -> None:
    answers: list[object] = []
    engine.consumers.commit(engine.existing("t"), name, seq, "key", answers.append, force=True)
    assert not any(isinstance(answer, TopicsError) for answer in answers)


def fill(engine: Engine, count: int) -> None:
    for _ in range(count):
        append(engine, "t", RECORD)


@pytest.mark.parametrize("cap", [{"cap_records": 3}, {"cap_bytes": 300}], ids=lambda cap: next(iter(cap)))
def test_caps_leave_uncommitted_records_and_take_them_at_the_commit(engine: Engine, cap: dict[str, int]) -> None:
    put(engine, "t", retain_for_consumers=1_000, **cap)
    consume(engine, "slow")
    consume(engine, "fast")
    fill(engine, 8)
    commit(engine, 8, "fast")
    assert seqs(engine, "t") == [1, 2, 3, 4, 5, 6, 7, 8]
    commit(engine, 4, "slow")
    assert seqs(engine, "t") == [5, 6, 7, 8]
    commit(engine, 7, "slow")
    assert seqs(engine, "t") == [6, 7, 8], "as many as the cap allows"
    assert read(engine, "t", from_seq=7).tombstone is None
    assert engine.consumers.info(topic(engine, "t"), "slow").lost is None


def test_age_leaves_uncommitted_records_until_the_commit(engine: Engine, clock: ManualClock) -> None:
    put(engine, "t", ttl_ms=1_000, retain_for_consumers=1_000)
    consume(engine)
    fill(engine, 4)
    clock.advance(2_000)
    assert seqs(engine, "t") == [1, 2, 3, 4]
    commit(engine, 3)
    assert seqs(engine, "t") == [4]
    commit(engine, 4)
    clock.advance(10_000)
    assert seqs(engine, "t") == []


def test_topic_without_consumers_or_without_the_setting_evicts_as_ever(engine: Engine) -> None:
    put(engine, "t", cap_records=2, retain_for_consumers=1_000)
    fill(engine, 4)
    assert seqs(engine, "t") == [3, 4]
    put(engine, "t", cap_records=2)
    consume(engine)
    fill(engine, 2)
    assert seqs(engine, "t") == [5, 6]


def test_beyond_the_bound_the_oldest_go_and_it_is_reported_once(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    put(engine, "t", cap_records=2, retain_for_consumers=500)
    consume(engine, "slow", 0)
    with caplog.at_level(logging.WARNING):
        fill(engine, 5)
        assert not caplog.records
        fill(engine, 3)
    (record,) = caplog.records
    assert record.message == "records of a consumer evicted"
    assert (record.topic, record.consumer, record.seq) == ("t", "slow", 0)  # type: ignore[attr-defined]
    assert engine.stats().consumers_given_up == 1
    assert seqs(engine, "t", from_seq=3) == [4, 5, 6, 7, 8]
    lost = engine.consumers.info(topic(engine, "t"), "slow").lost
    assert lost is not None
    assert (lost.gap_from, lost.gap_to, lost.reason) == (1, 3, LossReason.CAP)
    commit(engine, 8, "slow")
    assert seqs(engine, "t", from_seq=6) == [7, 8]
    fill(engine, 8)
    assert engine.stats().consumers_given_up == 2, "it is news again once the consumer had caught up"


def test_bound_below_the_cap_does_not_lower_the_cap(engine: Engine) -> None:
    put(engine, "t", cap_records=5, retain_for_consumers=200)
    consume(engine)
    fill(engine, 5)
    assert seqs(engine, "t") == [1, 2, 3, 4, 5]
    fill(engine, 1)
    assert seqs(engine, "t", from_seq=1) == [2, 3, 4, 5, 6]


def test_deletion_of_the_slowest_consumer_releases_its_records(engine: Engine) -> None:
    put(engine, "t", cap_records=1, retain_for_consumers=10_000)
    consume(engine)
    fill(engine, 4)
    engine.consumers.delete(topic(engine, "t"), "c", lambda answer: None)
    assert seqs(engine, "t", from_seq=3) == [4]


def test_reset_to_the_beginning_holds_back_from_then_on_and_brings_nothing_back(engine: Engine) -> None:
    put(engine, "t", cap_records=2, retain_for_consumers=10_000)
    consume(engine)
    fill(engine, 2)
    commit(engine, 2)
    fill(engine, 2)
    commit(engine, 4)
    commit(engine, 0)
    fill(engine, 3)
    assert seqs(engine, "t", from_seq=2) == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("durability", [FSYNC, DISK, Durability.MEMORY, EPHEMERAL])
@pytest.mark.parametrize("seed", range(12))
def test_replay_keeps_what_was_kept(disk: FakeDisk, durability: Durability, seed: int) -> None:
    random, clock = Random(seed), ManualClock()
    engine = open_engine(disk, clock, segment_max_events=6)
    config = random.choice([{"cap_records": 4}, {"cap_bytes": 350}, {"ttl_ms": 3_000}])
    put(engine, "t", durability=durability, retain_for_consumers=random.choice([600, 1_500]), **config)
    consume(engine, "a")
    consume(engine, "b")
    for _ in range(60):
        head = topic(engine, "t").head
        match random.randrange(9):
            case 0 | 1 | 2 | 3:
                append(engine, "t", *[RECORD[: random.randrange(1, 98)] for _ in range(random.randrange(1, 4))])
            case 4 | 5:
                commit(engine, random.randrange(head + 1), random.choice("ab"))
            case 6:
                clock.advance(random.randrange(2_000))
            case 7:
                delete(engine, "t", before_seq=random.randrange(head + 2) // 2)
            case _ if random.random() < 0.5:
                checkpoint(engine)
            case _ if durability is not EPHEMERAL:
                before = seqs(engine, "t", from_seq=0), read(engine, "t", from_seq=0).tombstone
                disk = killed(disk)
                engine = open_engine(disk, clock, segment_max_events=6)
                assert (seqs(engine, "t", from_seq=0), read(engine, "t", from_seq=0).tombstone) == before
    if durability is FSYNC:
        kept = seqs(engine, "t")
        engine = open_engine(after_power_cut(disk), clock, boot_id="b", segment_max_events=6)
        assert seqs(engine, "t") == kept
