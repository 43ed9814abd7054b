"""The machine stops at every call: a transaction is there as a whole or not at all, in every topic it writes to.

Each scenario is stopped before every call there is, or has every call fail, and the machine then ends in every way;
`tests.crash.transaction_world` states what is checked. The topics of a scenario lie in different shards of the log.
"""

from collections.abc import Iterator
from itertools import islice

import pytest

from tests.crash.router_world import examine, small, sweep_faults, sweep_stops
from tests.crash.sweeps import KILL, POWER_CUT, crashes
from tests.crash.transaction_world import TransactionWorld
from topics.engine.recovery import Recovery
from topics.engine.write_path import Gate, HeldTopics
from topics.log.wal import Writer
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem
from topics.transactions import commit
from topics.transactions.transaction_state import TOPIC_NAME

SHOWN = 8

LONG = pytest.mark.slow
"""One shard is the easier case, and every mistake with it also shows with three."""

each_number_of_shards = pytest.mark.parametrize("shards", [pytest.param(1, marks=LONG), 3])


def assert_kept(broken: Iterator[str]) -> None:
    found = list(islice(broken, SHOWN))
    assert not found, "\n".join(found)


def stops(scenario: object, shards: int) -> Iterator[str]:
    return sweep_stops(scenario, small(shards), make=TransactionWorld)  # type: ignore[arg-type]


def committing_twice(world: TransactionWorld) -> None:
    """Two sequences of one id, with direct writes between and behind them, a checkpoint, and a topic that is made."""
    world.start()
    world.put("a", durability="disk")
    world.put("b", durability="fsync")
    world.append("a", 2)
    world.begin("t", 1)
    world.stage("t", 1, "a", 2)
    world.stage("t", 1, "b", 3)
    world.stage("t", 1, "new", 1)
    world.append("b")
    world.commit("t", 1)
    world.append("a")
    world.commit("t", 1)
    world.checkpoint()
    world.begin("t", 2)
    world.stage("t", 2, "b", 2)
    world.stage("t", 2, "a", 2)
    world.commit("t", 2)
    world.append("b")


@pytest.mark.parametrize("shards", [1, 3])
def test_a_commit_is_there_in_every_topic_or_in_none(shards: int) -> None:
    assert_kept(stops(committing_twice, shards))


def writing_behind(world: TransactionWorld) -> None:
    """Others write to its topics, delete and configure them while a commit is on its way."""
    world.start()
    for name, durability in (("a", "disk"), ("b", "fsync"), ("c", "memory"), ("e", "ephemeral")):
        world.put(name, durability=durability)
        world.append(name, 2)
    world.begin("t", 1)
    for name in ("a", "b", "c", "e"):
        world.stage("t", 1, name, 2)
    world.hold()
    world.append("a")
    world.commit("t", 1)
    world.append("a", 2)
    world.append("c")
    world.append("e")
    world.delete("b", before=2)
    world.put("a", durability="fsync")
    world.flush()
    world.flush()
    world.append("e")
    world.append("a")


@each_number_of_shards
def test_appends_after_a_transaction_commit_stay_after_it(shards: int) -> None:
    assert_kept(stops(writing_behind, shards))


def starting_over(world: TransactionWorld) -> None:
    """Attempts that are replaced, aborted and abandoned, with checkpoints and sealed stages among them."""
    world.start()
    world.put("a", durability="fsync")
    world.put("b", durability="disk")
    world.begin("t", 1)
    world.stage("t", 1, "a", 3)
    world.stage("t", 1, "b", 5)
    world.begin("u", 1)
    world.stage("u", 1, "b", 2)
    world.checkpoint()
    world.begin("t", 1)
    world.stage("t", 1, "b", 4)
    world.stage("t", 1, "a", 5)
    world.abort("u", 1)
    world.checkpoint()
    world.commit("t", 1)
    world.begin("u", 2)
    world.stage("u", 2, "a", 2)
    world.clock.advance(3_600_000)
    world.go_on()
    world.begin("u", 3)
    world.stage("u", 3, "a", 1)
    world.stage("u", 3, "b", 1)
    world.commit("u", 3)


@each_number_of_shards
def test_an_attempt_that_is_replaced_leaves_nothing(shards: int) -> None:
    assert_kept(stops(starting_over, shards))


def in_rounds(world: TransactionWorld) -> None:
    """A transaction that is prepared in several rounds, with others writing between them."""
    world.start()
    world.put("a", durability="disk")
    world.put("b", durability="fsync")
    world.begin("t", 1)
    for _ in range(3):
        world.stage("t", 1, "a", 2)
        world.stage("t", 1, "b", 1)
    world.hold()
    world.commit("t", 1)
    for _ in range(8):
        world.append("a")
        world.append("b")
        world.flush()
        world.hold()
    world.flush()
    world.append("a")


@each_number_of_shards
def test_a_large_one_is_whole_or_absent_too(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_ROUND_BYTES", 30)
    assert_kept(stops(in_rounds, shards))


def losing_topics(world: TransactionWorld) -> None:
    """A topic of the transaction is deleted while it is staged, while it is committed, and after that."""
    world.start()
    for name in ("a", "b", "c"):
        world.put(name, durability="fsync")
    world.begin("t", 1)
    world.stage("t", 1, "a", 2)
    world.stage("t", 1, "b", 2)
    world.drop("a")
    world.commit("t", 1)
    world.begin("t", 2)
    world.stage("t", 2, "b", 2)
    world.stage("t", 2, "c", 2)
    world.hold()
    world.commit("t", 2)
    world.drop("c")
    world.flush()
    world.flush()
    world.drop("b")
    world.commit("t", 2)
    world.append("b")


@each_number_of_shards
def test_topics_may_go_at_any_moment(shards: int) -> None:
    assert_kept(stops(losing_topics, shards))


@pytest.mark.parametrize(
    ("scenario", "shards"),
    [
        (committing_twice, 3),
        pytest.param(committing_twice, 1, marks=LONG),
        pytest.param(writing_behind, 3, marks=LONG),
        pytest.param(losing_topics, 3, marks=LONG),
        pytest.param(losing_topics, 1, marks=LONG),
    ],
)
def test_a_failed_call_leaves_no_half(scenario: object, shards: int) -> None:
    assert_kept(sweep_faults(scenario, small(shards), make=TransactionWorld))  # type: ignore[arg-type]


@LONG
def test_a_failed_call_leaves_no_half_of_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_ROUND_BYTES", 30)
    assert_kept(sweep_faults(in_rounds, small(3), make=TransactionWorld))


# The sweeps find planted mistakes


def test_a_recovery_that_believes_every_prepare_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recovery, "_skip_block", Recovery._append_block)
    assert list(islice(stops(committing_twice, 3), 1))


def test_a_commit_that_waits_for_no_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "Gate", _Hasty)
    assert list(islice(stops(committing_twice, 3), 1))


class _Hasty:
    SYNC = Gate.CLASS
    TURN = Gate.TURN


def test_a_write_that_overtakes_a_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeldTopics, "keeps", lambda *arguments: False)
    assert list(islice(stops(writing_behind, 3), 1))


def doubting(world: TransactionWorld) -> None:
    """Others write to the topics of a transaction whose commit, in its own shard, may have failed."""
    world.start()
    world.put("a", durability="fsync")
    world.put("b", durability="fsync")
    world.put("elsewhere")
    world.append("a")
    world.begin("t", 1)
    world.stage("t", 1, "a", 2)
    world.stage("t", 1, "b", 2)
    world.hold()
    world.commit("t", 1)
    world.append("a")
    world.append("b")
    world.flush()
    world.flush()
    world.append("a")
    world.append("b")


def sweep_doubts() -> Iterator[str]:
    """Fails every call on the log that the commit is in, and leaves the other logs alone."""
    options = small(3)
    counted = FaultyFileSystem(FakeDisk())
    world = TransactionWorld(counted, options)
    doubting(world)
    core = world.engine.core
    books = core.directory.load(TOPIC_NAME).shard
    assert books not in {core.directory.load(name).shard for name in ("a", "b")}, "the scenario has to be another"
    folder = core.layout.shard(books)
    for call, (operation, path) in enumerate(list(counted.trace), start=1):
        if not path.startswith(folder):
            continue
        for fault, lasting in ((Fault.EIO, True), (Fault.ENOSPC, True), (Fault.ENOSPC, False)):
            inner = FakeDisk()
            plan = FaultPlan(call, fault, lasting, within=folder)
            world = TransactionWorld(FaultyFileSystem(inner, plan), options)
            try:
                doubting(world)
            except OSError:
                assert world.starting, "only a start may fail with an error of the system"
            world.note_floors()
            for ending, crashed in crashes(inner, (KILL, POWER_CUT)):
                for text in examine(world, crashed, ending, failed=True):
                    yield f"call {call} ({operation} {path}) failed with {fault}, {ending}: {text}"


def test_a_commit_in_doubt_is_decided_by_the_next_start() -> None:
    assert_kept(sweep_doubts())


def test_writes_behind_a_commit_in_doubt_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a commit that failed were known not to be on the disk."""
    monkeypatch.setattr(HeldTopics, "give_up", lambda held, error: held.release())
    monkeypatch.setattr(Writer, "give_up", lambda writer, error: error)
    assert list(islice(sweep_doubts(), 1))
