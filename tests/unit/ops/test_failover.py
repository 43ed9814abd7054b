"""The lease of the primary at a real place, and takeovers: after any interruption, acknowledged writes of class remote
are in the state of the next primary."""

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import msgspec
import pytest

from tests.crash.harness import dump
from tests.unit.conftest import FSYNC, REMOTE, append, ask_append, delete, drop, put, read, values
from tests.unit.ops.folders import OPTIONS, PLACE, back_up
from tests.unit.queues.conftest import claim, make_queue, produce
from tests.unit.streams.conftest import append as append_to
from tests.unit.transactions.conftest import begin
from topics.engine.engine import Engine
from topics.log.frame import FrameKind
from topics.log.fs import FileSystem, read_whole
from topics.log.layout import Layout
from topics.model.errors import LeaseEndedError, NotPrimaryError, RemoteUnavailableError, TopicsError
from topics.model.router_rules import RouterWish
from topics.model.seq_ranges import LossReason
from topics.model.settings import SettingsError
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.ops.backup import backup_store
from topics.ops.backup.backup_store import BackupPlace, FencedError, damages
from topics.ops.backup.restore import frames_of
from topics.ops.backup.shipped_log import ShippedHead, ShippedObject, decode_shipped
from topics.ops.failover.lease import (
    OPERATION_MAX,
    RESERVE_MIN,
    UNRESERVED,
    Identity,
    LeaseRecord,
    SeqReserve,
    decode_record,
    encode_record,
    released,
    renewed,
    taken,
)
from topics.ops.failover.lease_keeper import LeaseKeeper, LeasePlace
from topics.ops.failover.standby import Standby
from topics.ops.failover.takeover import Place, read_holder
from topics.streams.streams import inline_streams
from topics.testing import (
    NO_FAULTS,
    FakeDisk,
    FaultPlan,
    FaultyFileSystem,
    ManualClock,
    PowerCut,
    SeededEntropy,
    Survival,
)

LEASE_MS = 4000
NO_SOURCE = cast(Any, object())
FIRST, SECOND = "data", "other"


def who(name: str) -> Identity:
    return Identity(f"folder-{name}", f"process-{name}", f"http://{name}", LEASE_MS)


def steady(clock: ManualClock) -> int:
    return int(clock.monotonic() * 1000)


def keeper(disk: FileSystem, clock: ManualClock, name: str) -> LeaseKeeper:
    return LeaseKeeper(LeasePlace(disk, PLACE), who(name), lambda: steady(clock))


class Machine:
    """A server that wants to be the primary, without its loop and its threads."""

    def __init__(self, disk: FileSystem, clock: ManualClock, folder: str, entropy: int) -> None:
        self._disk = disk
        self._clock = clock
        self._entropy = entropy
        self.options = msgspec.structs.replace(OPTIONS, data_dir=folder, backup_ship_ms=1)
        self.standby = Standby(
            Place(disk, PLACE), disk, self.options, f"http://{folder}", LEASE_MS, clock, SeededEntropy(entropy),
            lambda address: None,
        )  # fmt: skip
        self._store = disk
        self.lease: LeaseKeeper | None = None

    def use_store(self, store: FileSystem) -> None:
        """From here on the place is reached another way than the data folder."""
        self._store = store
        self.standby._place, self.standby._leases = Place(store, PLACE), LeasePlace(store, PLACE)

    def try_to_start(self, waits: bool = True) -> Engine | None:
        found = self.standby._try(waits)
        if found is None:
            return None
        self.lease, newest = found
        self.standby._prepare(self.lease, newest)
        engine = Engine.recover(
            self._disk, self.options, self._clock, SeededEntropy(self._entropy),
            boot_id=f"boot-{self._entropy}", backup_fs=self._store,
        )  # fmt: skip
        engine.hold_lease(self.lease, self.lease.restored_from)
        return engine

    def start(self) -> Engine:
        engine = self.try_to_start()
        assert engine is not None
        return engine


def primary(disk: FileSystem, clock: ManualClock) -> tuple[Machine, Engine]:
    machine = Machine(disk, clock, FIRST, 1)
    engine = machine.start()
    back_up(engine)
    put(engine, "orders", durability=REMOTE)
    return machine, engine


def wait_out(clock: ManualClock, machine: Machine) -> None:
    """Looks at the lease, and waits until it has expired for the observer."""
    assert machine.try_to_start() is None
    clock.advance(LEASE_MS)


# The lease.


def test_a_record_is_read_as_it_was_written_and_damage_is_found() -> None:
    record = taken(None, who("a"))
    assert decode_record(encode_record(record)) == record
    with pytest.raises(ValueError, match="checksum"):
        decode_record(encode_record(record).replace(b'"term":1', b'"term":7'))
    with pytest.raises(ValueError, match="format 9"):
        decode_record(encode_record(msgspec.structs.replace(record, format=9)))


def test_of_two_servers_one_takes_the_lease() -> None:
    disk, clock = FakeDisk(), ManualClock()
    first, second = keeper(disk, clock, "a"), keeper(disk, clock, "b")
    assert first.take(None)
    assert not second.take(None)
    first.check()
    with pytest.raises(LeaseEndedError):
        second.check()


def test_writes_are_refused_before_others_may_take_the_lease() -> None:
    disk, clock = FakeDisk(), ManualClock()
    held = keeper(disk, clock, "a")
    assert held.take(None)
    clock.advance(LEASE_MS - LEASE_MS // 8 - 1)
    held.check()
    assert held.left_ms == 1
    clock.advance(1)
    with pytest.raises(LeaseEndedError):
        held.check()
    held.announce("0" * 16)
    held.check()
    assert held.left_ms == LEASE_MS - LEASE_MS // 8


WITHOUT_LEASE: dict[str, Callable[[Engine], object]] = {
    "append": lambda engine: append(engine, "local", 1),
    "append of two": lambda engine: append(engine, "local", 1, 2),
    "append with a key": lambda engine: append(engine, "local", 1, key="k"),
    "append to an ephemeral topic": lambda engine: append(engine, "unlogged", 1),
    "new topic": lambda engine: append(engine, "new", 1),
    "config": lambda engine: put(engine, "local", durability=FSYNC, cap_records=1),
    "delete": lambda engine: delete(engine, "local", before_seq=1),
    "delete of a topic": lambda engine: drop(engine, "local"),
    "claim": claim,
    "router": lambda engine: engine.put_router("r", RouterWish(source="local", dest="x"), lambda answer: None),
    "stream": lambda engine: append_to(inline_streams(engine), "chat", b"1", "application/json"),
    "transaction": begin,
}


@pytest.mark.parametrize("write", WITHOUT_LEASE)
def test_no_kind_of_write_is_taken_without_the_lease_and_reads_are(write: str) -> None:
    disk, clock = FakeDisk(), ManualClock()
    machine, engine = primary(disk, clock)
    put(engine, "local", durability=FSYNC)
    put(engine, "unlogged", durability=Durability.EPHEMERAL)
    put(engine, "chat", durability=FSYNC)
    make_queue(engine)
    produce(engine, 1)
    append(engine, "local", "readable")
    before = dump(engine)
    clock.advance(LEASE_MS)
    with pytest.raises(LeaseEndedError):
        WITHOUT_LEASE[write](engine)
    assert not engine.append_requests("local", [b"{}"], NO_SOURCE), "the way of undecoded requests is closed as well"
    assert values(engine, "local") == ["readable"]
    assert dump(engine) == before
    assert machine.lease is not None
    machine.lease.announce("0" * 16)
    WITHOUT_LEASE[write](engine)


def test_a_clock_of_the_day_that_jumps_changes_nothing() -> None:
    disk, clock = FakeDisk(), ManualClock()
    held = keeper(disk, clock, "a")
    assert held.take(None)
    for jump in (600_000, -1_200_000):
        clock.jump(jump)
        held.check()


def test_only_the_newest_record_stays_and_one_of_a_sleeper_does_not_count() -> None:
    disk, clock = FakeDisk(), ManualClock()
    place, asleep, awake = LeasePlace(disk, PLACE), keeper(disk, clock, "a"), keeper(disk, clock, "b")
    assert asleep.take(None)
    assert awake.take(place.newest())
    awake.announce("0" * 16)
    awake.announce("0" * 16)
    assert disk.list_dir(f"{PLACE}/lease") == ["0000000000000004.json"]
    with pytest.raises(NotPrimaryError) as lost:
        asleep.announce("1" * 16)
    assert lost.value.detail["primary"] == "http://b"
    newest = place.newest()
    assert newest is not None
    assert (newest.number, newest.writer, newest.term) == (4, "process-b", 2)


def test_a_renewal_whose_answer_was_lost_counts_from_its_first_attempt() -> None:
    disk, clock = FakeDisk(), ManualClock()
    faulty = FaultyFileSystem(disk, NO_FAULTS)
    held = keeper(faulty, clock, "a")
    assert held.take(None)
    clock.advance(1000)
    # The record gets its name, and the calls behind that fail.
    faulty.plan = FaultPlan(call=faulty.calls + 1, lasting=True, only=frozenset({"sync_dir"}))
    with pytest.raises(OSError, match="injected"):
        held.announce("0" * 16)
    faulty.plan = NO_FAULTS
    clock.advance(1500)
    held.announce("0" * 16)
    assert held.record.lineage == "0" * 16
    assert held.left_ms <= LEASE_MS - LEASE_MS // 8 - 1500


def test_a_takeover_whose_first_record_had_no_answer_restores_all_the_same() -> None:
    disk, clock = FakeDisk(), ManualClock()
    _, engine = primary(disk, clock)
    append(engine, "orders", 1)
    other = Machine(disk, clock, SECOND, 2)
    wait_out(clock, other)
    faulty = FaultyFileSystem(disk, NO_FAULTS)
    other.standby._leases = LeasePlace(faulty, PLACE)
    # The record gets its name, and the calls behind that fail.
    faulty.plan = FaultPlan(call=1, lasting=True, only=frozenset({"sync_dir"}))
    assert other.try_to_start() is None
    faulty.plan = NO_FAULTS
    wait_out(clock, other)
    engine = other.start()
    assert other.lease is not None
    assert other.lease.term == 3
    assert values(engine, "orders") == [1]


def test_a_released_lease_is_taken_at_once() -> None:
    disk, clock = FakeDisk(), ManualClock()
    machine, engine = primary(disk, clock)
    other = Machine(disk, clock, SECOND, 2)
    assert other.try_to_start() is None
    engine.close_inline()
    assert machine.lease is not None
    machine.lease.release()
    assert values(other.start(), "orders") == []


def test_a_released_record_of_an_operator_ends_the_term() -> None:
    disk, clock = FakeDisk(), ManualClock()
    machine, engine = primary(disk, clock)
    place = LeasePlace(disk, PLACE)
    newest = place.newest()
    assert newest is not None
    assert place.make(released(newest, "operator")) is not None
    assert machine.lease is not None
    with pytest.raises(NotPrimaryError) as lost:
        machine.lease.announce("0" * 16)
    assert lost.value.detail["primary"] is None, "nobody knows yet who is next"
    assert Machine(disk, clock, SECOND, 2).start() is not None
    with pytest.raises(TopicsError):
        append(engine, "orders", 1)


# Takeovers.


def test_a_second_server_without_standby_is_refused_with_the_address_of_the_primary() -> None:
    disk, clock = FakeDisk(), ManualClock()
    primary(disk, clock)
    with pytest.raises(SettingsError, match="http://data is the primary"):
        Machine(disk, clock, SECOND, 2).try_to_start(waits=False)


def test_a_restart_goes_on_with_its_own_folder_once_its_old_lease_is_over() -> None:
    disk, clock = FakeDisk(), ManualClock()
    _, engine = primary(disk, clock)
    append(engine, "orders", 1)
    put(engine, "local", durability=FSYNC)
    append(engine, "local", 1)
    left = disk.crash(Survival.EVERYTHING)
    again = Machine(left, clock, FIRST, 2)
    wait_out(clock, again)
    engine = again.start()
    assert again.lease is not None
    assert again.lease.term == 2
    assert (values(engine, "orders"), values(engine, "local")) == ([1], [1])
    assert append(engine, "local", 2).first_seq == 2, "nothing was skipped"


def test_a_takeover_has_what_was_acknowledged_and_tells_what_may_be_lost() -> None:
    disk, clock = FakeDisk(), ManualClock()
    _, engine = primary(disk, clock)
    append(engine, "orders", 1, key="k")
    put(engine, "local", durability=FSYNC)
    append(engine, "orders", 2)
    append(engine, "local", "lost")
    other = Machine(disk, clock, SECOND, 2)
    wait_out(clock, other)
    engine = other.start()
    back_up(engine)
    assert values(engine, "orders") == [1, 2]
    assert append(engine, "orders", 1, key="k").deduped
    assert read(engine, "orders", 2).tombstone is None
    assert append(engine, "orders", 3).first_seq == 3, "class remote goes on with the next seq"
    assert append(engine, "local", 3).first_seq == 1 + RESERVE_MIN
    told = read(engine, "local", 0).tombstone
    assert told is not None
    assert (told.gap_from, told.gap_to, told.reason) == (1, RESERVE_MIN, LossReason.FAILOVER)


def test_the_first_backup_of_a_takeover_reuses_the_files_it_was_restored_from() -> None:
    disk, clock = FakeDisk(), ManualClock()
    _, engine = primary(disk, clock)
    for number in range(40):
        append(engine, "orders", f"{number}" * 50)
    delete(engine, "orders", before_seq=2)
    first = back_up(engine)
    assert first.segments
    other = Machine(disk, clock, SECOND, 2)
    wait_out(clock, other)
    engine = other.start()
    second = back_up(engine)
    assert second.lineage != first.lineage
    shared = {kept for one in first.segments for kept in (one.data, one.index)}
    assert shared <= set(second.files())
    assert (
        engine.backups.copied_bytes < sum(kept.size for kept in second.files()) - sum(kept.size for kept in shared) + 1
    )
    for kept in first.files():
        disk.remove(f"{PLACE}/{first.lineage}/{kept.name}")
    place = BackupPlace(disk, PLACE, second.lineage)
    assert damages(place, second.files()) == []


def test_the_last_primary_acknowledges_nothing_behind_a_takeover_however_wrong_its_clock_is() -> None:
    disk, clock, sleeping = FakeDisk(), ManualClock(), ManualClock()
    machine, engine = primary(disk, sleeping)
    append(engine, "orders", 1)
    other = Machine(disk, clock, SECOND, 2)
    wait_out(clock, other)
    successor = other.start()
    assert machine.lease is not None
    machine.lease.check()
    answers = ask_append(engine, "orders", "of the old primary")
    assert not answers, "its clock says that the lease is valid, and the fence says no"
    with pytest.raises(NotPrimaryError):
        back_up(engine)
    assert not answers
    assert values(successor, "orders") == [1]
    with pytest.raises(NotPrimaryError):
        append(engine, "orders", 2)


def shipped_in(disk: FakeDisk, path: str) -> ShippedObject:
    return decode_shipped(memoryview(read_whole(disk, path) or b""))


@pytest.mark.parametrize("appends", [0, 3])
def test_the_unshipped_log_of_an_old_folder_is_kept_in_a_file_and_the_folder_goes(appends: int) -> None:
    disk, clock = FakeDisk(), ManualClock()
    _, engine = primary(disk, clock)
    put(engine, "local", durability=FSYNC)
    append(engine, "local", "shipped")
    engine.ship_rest(lambda outcome: None)
    topic = engine.core.directory.find("local")
    assert topic is not None
    for number in range(appends):
        append(engine, "local", number)
    other = Machine(disk, clock, SECOND, 2)
    wait_out(clock, other)
    back_up(other.start())
    left = disk.crash(Survival.EVERYTHING)
    back = Machine(left, clock, FIRST, 3)
    wait_out(clock, back)
    engine = back.start()
    assert engine.info("local").count == 1
    assert not left.exists(f"{FIRST}.before-term-3")
    kept = f"{FIRST}.unshipped-term-3.log"
    assert left.exists(kept) == bool(appends)
    if appends:
        found = shipped_in(left, kept)
        frames = [frame for span in found.spans for frame in frames_of(span)]
        assert [frame.topic_id for frame in frames if frame.kind is FrameKind.APPEND] == [topic.id] * appends
        assert found.head.fence == 3


def test_a_server_that_starts_again_ships_the_rest_of_its_log_first() -> None:
    disk, clock = FakeDisk(), ManualClock()
    _, engine = primary(disk, clock)
    put(engine, "local", durability=FSYNC)
    engine.ship_rest(lambda outcome: None)
    append(engine, "local", 1, 2)
    again = Machine(disk.crash(Survival.EVERYTHING), clock, FIRST, 2)
    left = again._disk
    assert isinstance(left, FakeDisk)
    wait_out(clock, again)
    engine = again.start()
    assert again.lease is not None
    assert again.lease.shows_all
    ask_append(engine, "orders", "never shipped")
    other = Machine(left, clock, SECOND, 3)
    wait_out(clock, other)
    assert values(other.start(), "local") == [1, 2]


def test_log_of_a_run_without_a_backup_is_not_shipped_by_the_next_run() -> None:
    disk, clock = FakeDisk(), ManualClock()
    _, engine = primary(disk, clock)
    put(engine, "local", durability=FSYNC)
    for number in (2, 3):
        disk = disk.crash(Survival.EVERYTHING)
        again = Machine(disk, clock, FIRST, number)
        wait_out(clock, again)
        engine = again.start()
        assert again.lease is not None
        assert again.lease.shows_all == (number == 2)
        append(engine, "local", number)
    other = Machine(disk, clock, SECOND, 4)
    wait_out(clock, other)
    assert values(other.start(), "local") == [], "recovery of the second run is in no frame"


def test_an_object_that_arrives_behind_a_fence_does_not_count() -> None:
    disk, clock = FakeDisk(), ManualClock()
    _, engine = primary(disk, clock)
    append(engine, "orders", 1)
    stream = engine.backups.shipping._stream
    assert stream is not None
    place, manifest = stream.place, engine.backups.last
    assert manifest is not None
    at = place.next_shipped(manifest)
    place.fence(manifest, 2, "fence-2")
    late = ShippedHead(lineage=place.lineage, run=manifest.run, number=at + 1, confirmed=0, moment=1, spans=[])
    place.ship(late, [], "ship")
    assert place.next_shipped(manifest) == at + 2
    place.fence(manifest, 4, "fence-4")
    place.fence(manifest, 3, "fence-3")
    found = place.shipped(manifest)
    assert found is not None
    assert found.damaged == []
    with pytest.raises(FencedError):
        place.ship(msgspec.structs.replace(late, number=at), [], "ship")


def test_an_old_folder_of_unknown_history_is_set_aside_as_it_was() -> None:
    disk, clock = FakeDisk(), ManualClock()
    _, engine = primary(disk, clock)
    put(engine, "local", durability=FSYNC)
    append(engine, "local", "not shipped")
    engine.backups.shipping.close()
    other = Machine(disk, clock, SECOND, 2)
    wait_out(clock, other)
    back_up(other.start())
    left = disk.crash(Survival.EVERYTHING)
    left.remove(Layout(FIRST).backup_lineage)
    back = Machine(left, clock, FIRST, 3)
    wait_out(clock, back)
    engine = back.start()
    assert back.lease is not None
    assert left.exists(f"{FIRST}.before-term-3/wal")
    assert read_holder(left, Layout(FIRST)) == back.lease.record.holder
    assert engine.info("orders").count == 0


def test_successors_that_never_had_a_backup_give_out_other_seqs() -> None:
    disk, clock = FakeDisk(), ManualClock()
    _, engine = primary(disk, clock)
    put(engine, "local", durability=FSYNC)
    back_up(engine)
    seqs = []
    for number, folder in ((2, SECOND), (3, "third")):
        machine = Machine(disk, clock, folder, number)
        wait_out(clock, machine)
        seqs.append(append(machine.start(), "local", 1).first_seq)
    assert seqs == [RESERVE_MIN + 1, 2 * RESERVE_MIN + 1]


def test_a_primary_without_a_backup_is_not_taken_over() -> None:
    disk, clock = FakeDisk(), ManualClock()
    Machine(disk, clock, FIRST, 1).start()
    other = Machine(disk, clock, SECOND, 2)
    wait_out(clock, other)
    assert other.try_to_start() is None


@pytest.mark.parametrize("ending", [Survival.EVERYTHING, Survival.NOTHING, Survival.TORN, Survival.SCATTERED])
def test_a_takeover_that_stops_at_any_call_is_made_by_the_next_start(ending: Survival) -> None:
    def begun() -> tuple[FakeDisk, ManualClock, Machine]:
        disk, clock = FakeDisk(), ManualClock()
        _, engine = primary(disk, clock)
        append(engine, "orders", 1, 2)
        append(engine, "orders", 3)
        other = Machine(disk, clock, SECOND, 2)
        wait_out(clock, other)
        return disk, clock, other

    disk, _, other = begun()
    first = disk.call_count
    expected = dump(other.start())
    last = disk.call_count
    for call in range(first + 1, last + 1, 5):
        disk, clock, other = begun()
        disk.stop_before = call
        with contextlib.suppress(PowerCut):
            other.start()
        left = disk.crash(ending, call)
        again = Machine(left, clock, SECOND, 3)
        if again.lease is None and (engine := again.try_to_start()) is None:
            clock.advance(LEASE_MS)
            engine = again.try_to_start()
        assert engine is not None, call
        assert values(engine, "orders") == [1, 2, 3], call
    assert expected


def test_a_damaged_lease_is_not_taken() -> None:
    disk, clock = FakeDisk(), ManualClock()
    primary(disk, clock)
    (name,) = disk.list_dir(f"{PLACE}/lease")
    file = disk.open(f"{PLACE}/lease/{name}", write=True)
    file.write_at(20, b"x")
    file.close()
    other = Machine(disk, clock, SECOND, 2)
    with pytest.raises(OSError, match="cannot be read"):
        LeasePlace(disk, PLACE).newest()
    clock.advance(LEASE_MS)
    assert other.try_to_start() is None


def test_records_have_no_field_that_a_reader_of_this_release_does_not_know() -> None:
    assert set(LeaseRecord.__struct_fields__) == {
        "format", "number", "term", "holder", "writer", "address", "lease_ms", "lineage", "lineage_term", "released",
        "reserve", "moment",
    }  # fmt: skip


# Seqs that the last primary may have given out.


def test_a_record_of_an_earlier_release_skips_ten_million_seqs_for_each_term_without_backups() -> None:
    record = taken(None, who("a"))
    assert record.reserve == -1
    assert record.skipped == 2 * UNRESERVED
    assert renewed(record, "0" * 16).skipped == UNRESERVED


def test_a_reserve_grows_with_its_use_and_shrinks_again() -> None:
    own = taken(None, who("a"))
    seqs = SeqReserve(100_000, 0)

    def renew() -> int:
        nonlocal own
        own = seqs.plan(renewed(own))
        seqs.confirm(own)
        return own.reserve

    assert not seqs.has_room(1), "nothing is reserved before the first record"
    assert renew() == 100_000
    seqs.give(50_001)
    assert seqs.is_short
    assert renew() == 200_000
    seqs.shipped(seqs.given)
    assert [renew() for _ in range(3)] == [200_000, 100_000, 100_000]
    seqs.give(100_000 - OPERATION_MAX)
    assert seqs.has_room(OPERATION_MAX)
    seqs.give(1)
    assert not seqs.has_room(1), "an operation that is not known to be short has to fit"


def test_a_lower_reserve_counts_before_its_record_is_made_and_a_higher_one_after() -> None:
    own = taken(None, who("a"))
    seqs = SeqReserve(100_000, 0)
    seqs.confirm(seqs.plan(own))
    seqs.give(60_000)
    assert seqs.plan(renewed(own)).reserve == 200_000
    assert seqs.limit == 100_000, "nobody knows whether it will be made"
    seqs.confirm(seqs.plan(renewed(own)))
    seqs.shipped(seqs.given)
    seqs.plan(renewed(own))
    assert seqs.plan(renewed(own)).reserve == 100_000
    assert seqs.limit == 100_000, "it may be made"


def test_a_reserve_that_was_inherited_counts_until_there_is_an_own_backup() -> None:
    own = taken(None, who("a"))
    seqs = SeqReserve(50_000, 7)
    own = seqs.plan(own)
    seqs.confirm(own)
    assert (own.reserve, seqs.limit) == (50_007, 50_000)
    own = seqs.plan(renewed(own, "0" * 16))
    seqs.confirm(own)
    assert (own.reserve, seqs.limit) == (50_000, 50_000)
    own = seqs.plan(released(own, "writer"), stops=True)
    assert own.reserve == 0


def test_a_clean_stop_leaves_nothing_to_skip_unless_something_is_not_shipped() -> None:
    for ships in (True, False):
        disk, clock = FakeDisk(), ManualClock()
        machine, engine = primary(disk, clock)
        put(engine, "local", durability=FSYNC)
        engine.ship_rest(lambda outcome: None)
        append(engine, "local", 1)
        if ships:
            engine.ship_rest(lambda outcome: None)
        assert machine.lease is not None
        machine.lease.release()
        found = Machine(disk, clock, SECOND, 2).start()
        assert append(found, "local", 2).first_seq == (2 if ships else 1 + RESERVE_MIN)


def test_more_seqs_than_are_reserved_are_refused_until_the_reserve_has_grown() -> None:
    disk, clock = FakeDisk(), ManualClock()
    machine, engine = primary(disk, clock)
    put(engine, "local", durability=FSYNC)
    assert machine.lease is not None
    faulty = FaultyFileSystem(disk, NO_FAULTS)
    stream = engine.backups.shipping._stream
    assert stream is not None
    stream.place._fs = faulty
    faulty.plan = FaultPlan(call=1, lasting=True)
    machine.lease.give(RESERVE_MIN - OPERATION_MAX - machine.lease.seqs.used)
    append(engine, "local", 1)
    with pytest.raises(RemoteUnavailableError, match="seqs are reserved"):
        append(engine, "local", 2)
    assert not engine.append_requests("local", [b"{}"], NO_SOURCE)
    machine.lease.check()
    machine.lease.announce(machine.lease.record.lineage)
    assert append(engine, "local", 2).first_seq == 2


def test_a_topic_that_was_not_shipped_is_another_one_when_it_is_made_again() -> None:
    disk, clock = FakeDisk(), ManualClock()
    _, engine = primary(disk, clock)
    append(engine, "local", 1)
    epochs = [engine.info("local").epoch]
    other = Machine(disk, clock, SECOND, 2)
    wait_out(clock, other)
    engine = other.start()
    append(engine, "local", 2)
    epochs.append(engine.info("local").epoch)
    assert epochs[0] < epochs[1], "a cursor with an epoch gets a tombstone"
    assert engine.info("orders").count == 0


def test_seqs_of_every_kind_of_write_are_counted() -> None:
    disk, clock = FakeDisk(), ManualClock()
    machine, engine = primary(disk, clock)
    for name in ("local", "source", "copies", "unlogged"):
        put(engine, name, durability=Durability.EPHEMERAL if name == "unlogged" else FSYNC)
    engine.put_router("r", RouterWish(source="source", dest="copies"), lambda answer: None)
    lease = machine.lease
    assert lease is not None
    before, expected = lease.given, 0
    for name, count, seqs in (("local", 3, 3), ("unlogged", 2, 2), ("source", 4, 8)):
        append(engine, name, *range(count))
        engine.info("copies")
        expected += seqs
        assert lease.given - before == expected, name


def test_readers_see_a_record_of_class_remote_once_a_takeover_would_have_it() -> None:
    disk, clock = FakeDisk(), ManualClock()
    _, engine = primary(disk, clock)
    append(engine, "orders", 1)
    assert engine.info("orders").head_seq == 1
    faulty = FaultyFileSystem(disk, NO_FAULTS)
    stream = engine.backups.shipping._stream
    assert stream is not None
    stream.place._fs = faulty
    faulty.plan = FaultPlan(call=1, lasting=True)
    answers = ask_append(engine, "orders", 2)
    assert (values(engine, "orders"), engine.info("orders").head_seq) == ([1], 1)
    assert read(engine, "orders", 1).caught_up
    woken: list[int] = []
    engine.watch("orders", lambda: woken.append(1))
    faulty.plan = NO_FAULTS
    clock.advance(2000)
    engine.core.second_passed.emit()
    assert answers
    assert values(engine, "orders") == [1, 2]
    engine.core.scheduler.run()
    assert woken == [1]


def test_a_topic_that_leaves_class_remote_keeps_its_rules_until_that_is_shipped() -> None:
    disk, clock = FakeDisk(), ManualClock()
    machine, engine = primary(disk, clock)
    faulty = FaultyFileSystem(disk, NO_FAULTS)
    stream = engine.backups.shipping._stream
    assert stream is not None
    stream.place._fs = faulty
    faulty.plan = FaultPlan(call=1, lasting=True)
    configured: list[object] = []
    engine.put_topic("orders", TopicConfigPatch(durability=FSYNC), configured.append)
    assert not ask_append(engine, "orders", 1)
    assert values(engine, "orders") == []
    faulty.plan = NO_FAULTS
    clock.advance(2000)
    engine.core.second_passed.emit()
    assert len(configured) == 1
    assert values(engine, "orders") == [1]
    faulty.plan = FaultPlan(call=faulty.calls + 1, lasting=True)
    assert append(engine, "orders", 2).first_seq == 2, "no longer remote"
    assert machine.lease is not None


class LatePool:
    """A pool that begins nothing before it is shut down."""

    def __init__(self, count: int, name: str) -> None:
        self._work: list[tuple[Future[object], Callable[[], object]]] = []

    def submit(self, function: Callable[[str], object], name: str) -> Future[object]:
        future: Future[object] = Future()
        self._work.append((future, lambda: function(name)))
        return future

    def shutdown(self, wait: bool, cancel_futures: bool = False) -> None:
        for future, work in self._work:
            if cancel_futures:
                future.cancel()
            else:
                future.set_result(work())


def test_the_last_object_that_is_read_ahead_is_not_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_store, "ThreadPoolExecutor", LatePool)
    loaded = cast(ShippedObject, object())
    assert backup_store._ReadAhead(lambda name: loaded, ["a"]).get("a") is loaded
