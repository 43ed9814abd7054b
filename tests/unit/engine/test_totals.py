"""Running totals: always equal to the sums over all topics, and never computed by visiting them."""

from collections.abc import Iterator
from typing import NoReturn

import pytest

from tests.property.totals import check_totals
from tests.unit.conftest import (
    DISK,
    EPHEMERAL,
    FSYNC,
    MEMORY,
    after_power_cut,
    append,
    ask_put,
    checkpoint,
    delete,
    drop,
    eq,
    flush,
    hold,
    killed,
    open_engine,
    put,
    topic,
)
from topics.api.metrics import ServerState, Snapshot
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, execute_read
from topics.engine.topic import Topic
from topics.model.topic_config import Durability, TopicType
from topics.testing import FakeDisk, ManualClock

CLASSES = [EPHEMERAL, MEMORY, DISK, FSYNC]


class NotLookedInto(dict[int, Topic]):
    """Topics that can be counted and found, but not gone through."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("somebody looks at every topic")

    def _refuse(self) -> NoReturn:
        raise AssertionError("somebody looks at every topic")

    keys = values = items = _refuse


def test_an_engine_without_topics_counts_nothing(engine: Engine) -> None:
    stats = engine.stats()
    assert (stats.topics, stats.queue_topics, stats.records_live, stats.tail_bytes) == (0, 0, 0, 0)
    assert stats.topics_by_class == {durability.value: 0 for durability in Durability}


def test_topics_count_in_their_class_while_they_exist(engine: Engine) -> None:
    for number, durability in enumerate(CLASSES):
        for copy in range(number + 1):
            put(engine, f"t{number}.{copy}", durability=durability)
    put(engine, "q", type=TopicType.QUEUE, durability=FSYNC)
    assert engine.stats().topics_by_class == {"ephemeral": 1, "memory": 2, "disk": 3, "fsync": 5, "remote": 0}
    assert engine.stats().queue_topics == 1
    drop(engine, "t3.0")
    drop(engine, "q")
    assert engine.stats().topics_by_class == {"ephemeral": 1, "memory": 2, "disk": 3, "fsync": 3, "remote": 0}
    assert engine.stats().queue_topics == 0
    check_totals(engine)


def test_a_new_class_counts_once_it_holds(engine: Engine) -> None:
    put(engine, "t", durability=DISK)
    hold(engine)
    ask_put(engine, "t", durability=FSYNC)
    ask_put(engine, "new", durability=FSYNC)
    assert engine.stats().topics_by_class == {"ephemeral": 0, "memory": 0, "disk": 1, "fsync": 0, "remote": 0}
    flush(engine)
    assert engine.stats().topics_by_class == {"ephemeral": 0, "memory": 0, "disk": 0, "fsync": 2, "remote": 0}


def test_records_count_while_they_are_live(engine: Engine, clock: ManualClock) -> None:
    append(engine, "t", 1, 2, 3, 4, tag="x")
    append(engine, "t", 5)
    assert engine.stats().records_live == 5
    delete(engine, "t", before_seq=2)
    assert engine.stats().records_live == 4
    delete(engine, "t", match=eq("x"))
    assert engine.stats().records_live == 1
    put(engine, "capped", cap_records=2)
    append(engine, "capped", 1, 2, 3)
    append(engine, "capped", 4)
    assert engine.stats().records_live == 3
    put(engine, "short", ttl_ms=100)
    append(engine, "short", 1, 2)
    clock.advance(1000)
    engine.info("short")
    assert engine.stats().records_live == 3
    drop(engine, "capped")
    assert engine.stats().records_live == 1
    check_totals(engine)


def test_a_deleted_topic_that_somebody_still_reads_changes_no_count(engine: Engine, clock: ManualClock) -> None:
    put(engine, "t", ttl_ms=100)
    append(engine, "t", 1, 2, 3)
    append(engine, "other", 1)
    held = topic(engine, "t")
    drop(engine, "t")
    clock.advance(1000)
    engine.read_as(held, ReadRequest(), execute_read, lambda outcome: None)
    assert engine.stats().records_live == 1
    check_totals(engine)


@pytest.mark.parametrize("how", ["stop", "kill", "power"])
def test_a_start_counts_what_it_finds(disk: FakeDisk, how: str) -> None:
    engine = open_engine(disk)
    for number, durability in enumerate(CLASSES):
        put(engine, f"t{number}", durability=durability)
        append(engine, f"t{number}", *range(number + 1))
    put(engine, "q", type=TopicType.QUEUE, durability=FSYNC)
    put(engine, "gone", durability=FSYNC)
    append(engine, "gone", 1, 2)
    assert checkpoint(engine)
    drop(engine, "gone")
    append(engine, "t3", 1, 2, 3)
    delete(engine, "t3", before_seq=3)
    if how == "stop":
        engine.close_inline()
        disk = disk.clone()
    else:
        disk = killed(disk) if how == "kill" else after_power_cut(disk)
    again = open_engine(disk, boot_id="b" if how == "power" else "a")
    stats = again.stats()
    assert stats.topics_by_class == {"ephemeral": 1, "memory": 1, "disk": 1, "fsync": 2, "remote": 0}
    assert stats.queue_topics == 1
    assert topic(again, "t3").live_count == 5
    check_totals(again)


def test_looking_goes_through_no_topics(engine: Engine) -> None:
    """The cost of monitoring must not grow with the number of topics."""
    append(engine, "t", 1)
    put(engine, "q", type=TopicType.QUEUE)
    engine.core.topics = NotLookedInto(engine.core.topics)
    assert engine.stats().topics == 2
    state = ServerState(
        ready=True, recovery_progress=1.0, uptime_ms=0, queue_leases_in_flight=engine.queues.in_flight()
    )
    text = Snapshot(state, engine, None).text().decode()
    assert "\ntopics_topics 2.0\n" in text
    assert "\ntopics_records_live 1.0\n" in text
    with pytest.raises(AssertionError, match="every topic"):
        engine.core.count_all()
