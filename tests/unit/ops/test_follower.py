"""A standby that serves reads: after each shipped object its state is the one that the primary had, whatever was done
there, and where the log does not go on it restores again."""

import contextlib
from collections.abc import Callable
from random import Random

import msgspec
import pytest

from tests.crash.harness import dump
from tests.unit.conftest import FSYNC, append, checkpoint, delete, drop, eq, put, read, values
from tests.unit.ops.folders import OPTIONS, PLACE, back_up, places, start
from tests.unit.queues.conftest import ack, claim, counted, make_queue, nack, produce, redrive
from tests.unit.routers.conftest import route, unroute
from tests.unit.streams.conftest import append as append_to
from tests.unit.streams.conftest import create, fork, text
from tests.unit.streams.conftest import delete as remove_stream
from tests.unit.transactions.conftest import begin, commit, ref, stage
from topics.consumers.consumer_state import consumers_of
from topics.engine.engine import Engine
from topics.engine.following import FollowError
from topics.model.errors import NotPrimaryError, TopicsError
from topics.model.seq_ranges import LossReason
from topics.model.topic_config import Durability
from topics.ops.backup.backup_store import BackupDamaged
from topics.ops.failover.follower import Follower, build
from topics.schedules.schedules import ScheduleWish
from topics.streams.streams import inline_streams
from topics.testing import FakeDisk, ManualClock, SeededEntropy

PRIMARY = "http://primary"
TXN = "txn"


class Lease:
    """A lease that is held."""

    is_valid = True
    given = moment = 0

    def check(self, seqs: int = 0) -> None: ...

    def give(self, seqs: int) -> None: ...

    def shipped(self, given: int, moment: int) -> None:
        self.moment = moment

    def announce(self, lineage: str) -> None: ...

    def suspect(self) -> None: ...


class Standby:
    """A primary and a standby that reads what it ships."""

    def __init__(self, **options: object) -> None:
        self.disk, self.clock = FakeDisk(), ManualClock()
        self.options = msgspec.structs.replace(OPTIONS, backup_ship_ms=1, **options)
        self.primary = self.start("a")
        back_up(self.primary)
        self._folders = 0
        self.follower = self.build()

    def start(self, boot: str) -> Engine:
        engine = start(self.disk, self.clock, self.options, boot, len(boot))
        engine.hold_lease(Lease())
        return engine

    def build(self) -> Follower:
        self._folders += 1
        lineage = places(self.disk)[-1] if self._folders == 1 else self.follower.tail.place
        return build(
            lineage, self.disk, f"standby-{self._folders}", self.options, self.clock, SeededEntropy(9),
            lambda: PRIMARY,
        )  # fmt: skip

    @property
    def engine(self) -> Engine:
        return self.follower.engine

    def ship(self) -> None:
        self.clock.advance(1)
        self.primary.backups.shipping.ship()

    def follow(self) -> int:
        """Applies what was shipped; returns the number of objects."""
        count = 0
        while parts := self.follower.tail.read():
            for _ in self.follower.apply(parts, lambda: True):
                self.engine.stats()
            count += len(parts)
        return count

    def catch_up(self) -> None:
        self.ship()
        self.follow()

    def check(self) -> None:
        """Both have the same state."""
        self.catch_up()
        assert dump(self.engine) == dump(self.primary)
        assert states(self.engine) == states(self.primary)


def states(engine: Engine) -> dict[str, object]:
    """The state that is not in a dump: routers, jobs, streams and transactions."""
    found: dict[str, object] = {}
    for router in engine.routing.registry.by_name.values():
        found[f"router {router.name}"] = (router.state(), router.dest and router.dest.name)
    for topic in engine.core.topics.values():
        part = engine.streams.save(topic)
        consumers = consumers_of(topic)
        found[f"topic {topic.name}"] = (
            part, topic.origin and (topic.origin.topic and topic.origin.topic.name, topic.origin.upto),
            consumers and sorted(consumers.marks),
        )  # fmt: skip
    found["schedules"] = {name: one.state for name, one in engine.schedules._feature.by_name.items()}
    found["transactions"] = sorted(engine.transactions.table.known), sorted(engine.transactions.table.open)
    return found


@pytest.fixture
def both() -> Standby:
    return Standby()


# Everything that a primary logs.


def _records(both: Standby) -> None:
    put(both.primary, "orders", durability=FSYNC)
    append(both.primary, "orders", 1, 2, key="k")
    append(both.primary, "orders", 3, tag="a")


def _config(both: Standby) -> None:
    put(both.primary, "orders", durability=FSYNC)
    append(both.primary, "orders", *range(9))
    put(both.primary, "orders", durability=FSYNC, cap_records=4)
    append(both.primary, "orders", 9)


def _removals(both: Standby) -> None:
    put(both.primary, "orders", durability=FSYNC)
    append(both.primary, "orders", *range(20))
    append(both.primary, "orders", "x", "y", tag="a")
    delete(both.primary, "orders", before_seq=3)
    delete(both.primary, "orders", match=eq("a"))


def _drop(both: Standby) -> None:
    put(both.primary, "orders", durability=FSYNC)
    append(both.primary, "orders", *range(20))
    drop(both.primary, "orders")
    put(both.primary, "orders", durability=FSYNC)
    append(both.primary, "orders", "of another topic of the name")


def _age(both: Standby) -> None:
    put(both.primary, "orders", durability=FSYNC, ttl_ms=1000)
    append(both.primary, "orders", 1)
    both.clock.advance(900)
    append(both.primary, "orders", 2)
    both.clock.advance(200)
    assert values(both.primary, "orders") == [2]


def _jobs(both: Standby) -> None:
    put(both.primary, "dead", durability=FSYNC)
    make_queue(
        both.primary, durability=FSYNC, leases_durable=True, max_deliveries=1, dead_letter="dead", claim_jitter_ms=0
    )
    produce(both.primary, *range(6))
    produce(both.primary, "later", delay_ms=5000)
    (first, second, third) = claim(both.primary, 3)
    ack(both.primary, first.seq)
    nack(both.primary, second.seq)
    claim(both.primary, 1)
    assert third.seq == 3
    redrive(both.primary)


def _routers(both: Standby) -> None:
    put(both.primary, "source", durability=FSYNC, cap_records=2)
    for number in range(3):
        route(both.primary, "source", f"copy-{number}")
    append(both.primary, "source", *range(9))
    append(both.primary, "source", *range(9))
    unroute(both.primary, "source->copy-1")
    append(both.primary, "source", "later")


def _transactions(both: Standby) -> None:
    for number in range(3):
        put(both.primary, f"part-{number}", durability=FSYNC)
    begin(both.primary, TXN)
    for number in range(3):
        stage(both.primary, f"part-{number}", 1, 2, ref=ref(TXN))
    commit(both.primary, ref(TXN))
    begin(both.primary, "open")
    stage(both.primary, "part-0", "not committed", ref=ref("open"))


def _streams(both: Standby) -> None:
    streams = inline_streams(both.primary)
    create(streams, "chat")
    append_to(streams, "chat", b"one")
    fork(streams, "branch", "chat")
    append_to(streams, "branch", b"two")
    create(streams, "short", ttl_s=60)
    append_to(streams, "chat", b"three", close=True)
    create(streams, "gone")
    fork(streams, "of-gone", "gone")
    remove_stream(streams, "gone")


def _consumers(both: Standby) -> None:
    put(both.primary, "orders", durability=FSYNC)
    append(both.primary, "orders", *range(9))
    topic = both.primary.core.existing("orders")
    both.primary.consumers.put(topic, "c", 2, "key", lambda answer: None)
    both.primary.consumers.commit(topic, "c", 5, "key", lambda answer: None)
    both.primary.consumers.put(topic, "d", 0, "key", lambda answer: None)
    both.primary.consumers.delete(topic, "d", lambda answer: None)
    both.primary.fences.set(topic, "token", None, lambda answer: None)


def _schedules(both: Standby) -> None:
    make_queue(both.primary, durability=FSYNC)
    for name in ("kept", "gone"):
        wish = ScheduleWish(topic="jobs", every_ms=60_000)
        both.primary.schedules.put(name, wish, "key", lambda answer: None)
    both.primary.schedules.delete("gone", lambda answer: None)
    both.catch_up()
    both.clock.advance(60_000)
    both.primary.schedules.run_due()
    both.engine.schedules.run_due()


KINDS: dict[str, Callable[[Standby], None]] = {
    "records": _records, "config": _config, "removals": _removals, "drop": _drop, "age": _age, "jobs": _jobs,
    "routers": _routers, "transactions": _transactions, "streams": _streams, "consumers": _consumers,
    "schedules": _schedules,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_standby_has_the_state_of_the_primary_after_each_object(both: Standby, kind: str) -> None:
    KINDS[kind](both)
    both.check()
    append(both.primary, "behind", 1)
    both.check()
    checkpoint(both.engine, full=True)
    assert dump(both.engine) == dump(both.primary)


@pytest.mark.parametrize("kind", KINDS)
def test_a_standby_that_begins_later_has_the_same_state(both: Standby, kind: str) -> None:
    KINDS[kind](both)
    both.ship()
    both.follower = both.build()
    both.check()
    back_up(both.primary)
    both.follower = both.build()
    append(both.primary, "behind", 1)
    both.check()


def test_counters_of_jobs_are_those_of_logged_leases(both: Standby) -> None:
    _jobs(both)
    both.catch_up()
    assert counted(both.engine) == counted(both.primary)


def follow_or_restore(both: Standby) -> None:
    """As a server does where the log does not go on."""
    both.ship()
    try:
        if not both.follow() and both.follower.tail.next_number < both.primary.backups.shipping._stream.next_number:  # type: ignore[union-attr]
            both.clock.advance(10_000)
            both.follower.tail.check(both.follower.tail.place.lineage)
    except FollowError:
        both.engine.close_inline()
        both.follower = both.build()


def test_random_work_is_followed(seed: int) -> None:
    random, both = Random(seed), Standby(awake_topics=3)
    names = [f"t{number}" for number in range(6)]
    kinds = [*["append"] * 8, "delete", "drop", "put", "route", "unroute", "txn", "checkpoint", "tick"]
    for serial in range(1, 150):
        name, kind = random.choice(names), random.choice(kinds)
        with contextlib.suppress(TopicsError):
            if kind == "append":
                append(both.primary, name, *range(random.randint(1, 9)), tag=random.choice([None, "a"]))
            elif kind == "delete":
                delete(both.primary, name, match=eq("a"))
            elif kind == "drop":
                drop(both.primary, name)
            elif kind == "put":
                durability = random.choice([FSYNC, Durability.MEMORY, Durability.DISK])
                put(both.primary, name, durability=durability, cap_records=random.choice([0, 3, 20]))
            elif kind == "route":
                route(both.primary, name, random.choice(names), f"router-{random.randint(0, 3)}")
            elif kind == "unroute":
                unroute(both.primary, f"router-{random.randint(0, 3)}")
            elif kind == "txn":
                begin(both.primary, TXN, serial)
                for part in random.sample(names, 2):
                    stage(both.primary, part, serial, ref=ref(TXN, serial))
                commit(both.primary, ref(TXN, serial))
            elif kind == "checkpoint":
                checkpoint(random.choice([both.primary, both.engine]))
            else:
                both.clock.advance(random.randint(1, 50))
        if random.random() < 0.3:
            both.ship()
        if random.random() < 0.2:
            follow_or_restore(both)
            both.check()
        if random.random() < 0.02:
            back_up(both.primary)
    follow_or_restore(both)
    both.check()


# Readers.


def test_readers_are_woken_and_writes_are_refused_with_the_address_of_the_primary(both: Standby) -> None:
    put(both.primary, "orders", durability=FSYNC)
    make_queue(both.primary, durability=FSYNC)
    both.catch_up()
    woken: list[str] = []
    both.engine.watch("orders", lambda: woken.append("woken"))
    append(both.primary, "orders", 1)
    assert not woken
    both.catch_up()
    assert woken == ["woken"]
    before = dump(both.engine)
    refused: list[Callable[[], object]] = [
        lambda: append(both.engine, "orders", 2), lambda: append(both.engine, "new", 2),
        lambda: claim(both.engine), lambda: drop(both.engine, "orders"), lambda: delete(both.engine, "orders", 1),
        lambda: route(both.engine, "orders", "copy"), lambda: begin(both.engine, TXN),
    ]  # fmt: skip
    for write in refused:
        with pytest.raises(NotPrimaryError) as told:
            write()
        assert told.value.detail["primary"] == PRIMARY
    assert dump(both.engine) == before


def test_records_expire_when_the_primary_says_so(both: Standby) -> None:
    put(both.primary, "orders", durability=FSYNC, ttl_ms=1000)
    append(both.primary, "orders", 1)
    both.catch_up()
    both.clock.advance(2000)
    assert values(both.engine, "orders") == [1]
    assert values(both.primary, "orders") == []
    both.check()


def test_records_of_ephemeral_topics_are_reported_as_lost(both: Standby) -> None:
    put(both.primary, "unlogged", durability=Durability.EPHEMERAL)
    append(both.primary, "unlogged", 1, 2)
    both.catch_up()
    assert values(both.engine, "unlogged") == []
    put(both.primary, "unlogged", durability=FSYNC)
    append(both.primary, "unlogged", 3)
    both.catch_up()
    told = read(both.engine, "unlogged").tombstone
    assert told is not None
    assert (told.gap_to, told.reason) == (2, LossReason.CRASH)
    assert values(both.engine, "unlogged", 2) == [3]


def test_a_transaction_is_visible_whole_or_not_at_all(both: Standby) -> None:
    _transactions(both)
    both.ship()
    seen = set()
    for _ in both.follower.apply(both.follower.tail.read(), lambda: True):
        heads = []
        for number in range(3):
            with contextlib.suppress(TopicsError):
                heads.append(both.engine.info(f"part-{number}").count)
        seen.add(tuple(heads))
    assert seen <= {(), (0,), (0, 0), (0, 0, 0), (2, 2, 2)}


def test_forks_are_read_through_their_source(both: Standby) -> None:
    streams = inline_streams(both.primary)
    create(streams, "chat")
    append_to(streams, "chat", b"one ")
    both.catch_up()
    fork(streams, "branch", "chat")
    append_to(streams, "branch", b"two")
    both.catch_up()
    assert text(inline_streams(both.engine), "branch") == "one two"


# Where the log does not go on.


def test_the_end_of_the_log_of_an_idle_primary_is_visible(both: Standby) -> None:
    append(both.primary, "orders", 1)
    both.catch_up()
    # A frame that is in an object, and was logged behind its moment.
    both.primary.core.time._moment += 1
    append(both.primary, "orders", 2)
    both.primary.core.time._moment -= 1
    both.primary.backups.shipping.ship()
    both.follow()
    assert values(both.engine, "orders") == [1]
    both.ship()
    assert both.follow() == 0, "nothing new is shipped"
    lease = both.primary.core.path.lease
    assert isinstance(lease, Lease)
    for _ in both.follower.advance(lease.moment):
        pass
    assert values(both.engine, "orders") == [1, 2]
    both.check()


def test_a_newer_backup_of_the_same_run_changes_nothing(both: Standby) -> None:
    for number in range(4):
        append(both.primary, "orders", number)
        both.ship()
        if number % 2:
            append(both.primary, "orders", "not shipped before the backup")
            back_up(both.primary)
            both.follow()
            both.follower.tail.check(both.follower.tail.place.lineage)
    both.check()


def test_a_restart_of_the_primary_needs_another_restore(both: Standby) -> None:
    append(both.primary, "orders", 1)
    both.catch_up()
    both.primary.close_inline()
    both.primary = both.start("bb")
    both.follower.tail.check(both.follower.tail.place.lineage)
    back_up(both.primary)
    append(both.primary, "orders", 2)
    with pytest.raises(FollowError, match="restarted"):
        both.follower.tail.check(both.follower.tail.place.lineage)
    both.follower = both.build()
    both.check()


def test_another_primary_needs_another_restore(both: Standby) -> None:
    with pytest.raises(FollowError, match="another primary"):
        both.follower.tail.check("0" * 16)


def test_nothing_behind_a_fence_is_read(both: Standby) -> None:
    append(both.primary, "orders", 1)
    both.catch_up()
    place = both.follower.tail.place
    place.fence(place.load(place.numbers()[-1]), 2, "fence")
    append(both.primary, "orders", 2)
    both.ship()
    assert both.follow() == 0
    assert both.follower.tail.is_fenced
    assert values(both.engine, "orders") == [1]


def test_an_object_is_read_once_those_before_it_are_there(both: Standby) -> None:
    append(both.primary, "orders", 1)
    both.ship()
    append(both.primary, "orders", 2)
    both.ship()
    place, number = both.follower.tail.place, both.follower.tail.next_number
    path = place.path(f"ship/{both.follower.tail.base.run:016d}/{number:016d}.log")
    both.disk.rename(path, path + ".late")
    assert both.follow() == 0
    both.disk.rename(path + ".late", path)
    assert both.follow() == 2
    both.check()


def test_a_removed_object_needs_a_restore_of_the_backup_that_has_it(both: Standby) -> None:
    append(both.primary, "orders", 1)
    both.ship()
    back_up(both.primary)
    back_up(both.primary)
    tail = both.follower.tail
    assert tail.read() == []
    tail.check(tail.place.lineage)
    both.clock.advance(10_000)
    with pytest.raises(FollowError, match="missing"):
        tail.check(tail.place.lineage)
    both.follower = both.build()
    both.check()


def test_a_torn_object_is_read_again(both: Standby) -> None:
    append(both.primary, "orders", 1)
    both.ship()
    tail = both.follower.tail
    path = tail.place.path(f"ship/{tail.base.run:016d}/{tail.next_number:016d}.log")
    file = both.disk.open(path, write=True)
    size = file.size()
    last = file.read_at(size - 1, 1)
    file.truncate(size - 1)
    for _ in range(2):
        with pytest.raises(BackupDamaged):
            tail.read()
    file.write_at(size - 1, last)
    assert both.follow() == 1
    both.check()


def test_log_that_only_a_backup_has_needs_a_restore(both: Standby) -> None:
    both.primary.core.path.lease = None
    append(both.primary, "orders", 1)
    back_up(both.primary)
    append(both.primary, "orders", 2)
    both.ship()
    with pytest.raises(FollowError, match="missing"):
        both.follow()
    both.follower = both.build()
    both.check()


def test_log_that_does_not_continue_the_state_is_an_error(both: Standby) -> None:
    append(both.primary, "orders", 1)
    both.ship()
    append(both.primary, "orders", 2)
    both.ship()
    both.follower.tail.read()
    with pytest.raises(FollowError):
        both.follow()


def test_the_folder_of_an_earlier_standby_is_replaced(both: Standby) -> None:
    append(both.primary, "orders", *range(30))
    both.catch_up()
    both.engine.close_inline()
    both._folders = 0
    both.follower = both.build()
    both.check()


def test_memory_is_bounded_by_sealing(both: Standby) -> None:
    put(both.primary, "orders", durability=FSYNC)
    for number in range(50):
        append(both.primary, "orders", number)
        both.catch_up()
    topic = both.engine.core.existing("orders")
    assert topic.tail_count < OPTIONS.segment_max_events
    assert len(topic.segments) > 5
    assert both.follower.waiting_bytes == 0
    assert PLACE not in both.engine.layout.root
