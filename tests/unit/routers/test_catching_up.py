"""A caller that looks at a destination sees the records of its source, before the pump has reached it by itself."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.conftest import DISK, EPHEMERAL, FSYNC, LOCAL, MEMORY, append, flush, hold, killed, open_engine, put
from tests.unit.routers import test_router_async_use as running
from tests.unit.routers.conftest import go_on, route, router
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, ReadResult
from topics.engine.scheduler import Scheduler
from topics.model.topic_config import Discard, Durability, TopicConfigPatch
from topics.streams.read import ReadSpec, StreamSlice
from topics.streams.streams import inline_streams
from topics.testing import FakeDisk


class Ticks(list[Callable[[], None]]):
    """Keeps the calls that an engine defers to later in the tick, so that a test runs them."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        engine.core.defer.use(self.append)

    def run(self) -> None:
        while self:
            self.pop(0)()


def seen(engine: Engine, name: str, **request: object) -> list[object]:
    return [record["data"] for record in engine.read_now(name, ReadRequest(**request)).records()]  # type: ignore[arg-type]


def _read(engine: Engine) -> int:
    answers: list[object] = []
    engine.read("b", ReadRequest(), answers.append)
    assert isinstance(answers[0], ReadResult)
    return answers[0].count


def _stream_read(engine: Engine) -> int:
    answers: list[object] = []
    inline_streams(engine).read(engine.core.directory.load("b"), ReadSpec(), answers.append)
    assert isinstance(answers[0], StreamSlice)
    return answers[0].count


LOOKS: dict[str, Callable[[Engine], int]] = {
    "diff": _read,
    "read now": lambda engine: len(seen(engine, "b")),
    "topic": lambda engine: engine.info("b").head_seq,
    "topic untouched": lambda engine: engine.info("b", touch=False).head_seq,
    "topics": lambda engine: engine.list_topics("b")[0].head_seq,
    "router": lambda engine: engine.router("a->b").forwarded_total,
    "routers": lambda engine: engine.list_routers()[0].forwarded_total,
    "stream": _stream_read,
    "stream's state": lambda engine: inline_streams(engine).info("b").head,
    "stream's end": lambda engine: inline_streams(engine).locate(engine.core.directory.load("b"), "now").counter,
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("durability", LOCAL)
def test_every_look_at_a_destination_sees_what_its_source_has(look: str, durability: Durability) -> None:
    engine = open_engine()
    put(engine, "b", durability=durability)
    route(engine, "a", "b")
    ticks = Ticks(engine)
    append(engine, "a", 1)
    append(engine, "a", 2)
    assert engine.core.directory.load("b").head == 0
    assert LOOKS[look](engine) == 2
    ticks.run()
    assert LOOKS[look](engine) == 2
    assert seen(engine, "b") == [1, 2]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_chain_is_followed_from_its_beginning(shards: int) -> None:
    engine = open_engine(wal_shards=shards)
    for source, dest in ("ab", "bc", "cd"):
        route(engine, source, dest)
    ticks = Ticks(engine)
    append(engine, "a", 1)
    append(engine, "c", "between")
    assert seen(engine, "d") == ["between", 1]
    ticks.run()
    assert seen(engine, "d") == ["between", 1]


def test_a_listing_forwards_along_every_chain_on_its_page() -> None:
    engine = open_engine()
    for source, dest in ("ab", "bc", "ad", "xy"):
        route(engine, source, dest)
    Ticks(engine)
    append(engine, "a", 1)
    append(engine, "x", 1)
    assert [info.forwarded_total for info in engine.list_routers()] == [1, 1, 1, 1]


def test_a_cycle_ends_by_its_own_rules() -> None:
    engine = open_engine()
    route(engine, "a", "b", allow_cycle=True)
    route(engine, "b", "a", allow_cycle=True)
    ticks = Ticks(engine)
    append(engine, "a", 1)
    assert seen(engine, "b") == [1]
    for _ in range(20):
        engine.info("a")
        engine.info("b")
    ticks.run()
    # Forwarded eight times in all, four of them into each.
    assert (len(seen(engine, "a")), len(seen(engine, "b"))) == (5, 4)


def test_a_look_forwards_one_pass_at_most() -> None:
    engine = open_engine()
    route(engine, "a", "b")
    ticks = Ticks(engine)
    for _ in range(3):
        append(engine, "a", *range(1000))
    assert engine.info("b").head_seq == 1024
    ticks.run()
    assert engine.info("b").head_seq == 3000


def test_a_router_that_is_held_up_is_not_tried_again_by_every_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine()
    put(engine, "b", cap_records=1, discard=Discard.REJECT)
    route(engine, "a", "b")
    append(engine, "a", 1)
    append(engine, "a", 2)
    assert router(engine, "a->b").blocked
    packer = engine.routing.pump._packer
    monkeypatch.setattr(packer, "load", lambda *_: pytest.fail("a reader made a pass for a router without room"))
    assert seen(engine, "b") == [1]
    assert engine.info("b").head_seq == 1


def test_a_router_that_pressure_puts_off_stays_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine()
    route(engine, "a", "b")
    Ticks(engine)
    append(engine, "a", 1)
    monkeypatch.setattr(Scheduler, "puts_off", lambda *_: True)
    assert seen(engine, "b") == []
    monkeypatch.undo()
    assert seen(engine, "b") == [], "it goes on with the others, once a second"
    engine.routing.pump.retry()
    assert seen(engine, "b") == [1]


def test_a_reader_waits_for_no_sync() -> None:
    engine = open_engine()
    put(engine, "b", durability=FSYNC)
    route(engine, "a", "b")
    ticks = Ticks(engine)
    append(engine, "a", 1)
    hold(engine)
    assert seen(engine, "b") == []
    flush(engine)
    assert seen(engine, "b") == [1]
    ticks.run()
    assert seen(engine, "b") == [1]


def test_a_reader_that_goes_up_to_a_seq_forwards_nothing() -> None:
    engine = open_engine()
    route(engine, "a", "b")
    append(engine, "a", 1)
    Ticks(engine)
    append(engine, "a", 2)
    assert seen(engine, "b", up_to=1) == [1]
    answers: list[object] = []
    engine.read("b", ReadRequest(up_to=1), answers.append)
    assert isinstance(answers[0], ReadResult)
    assert answers[0].head_seq == 1


def test_a_look_into_a_recovered_folder_forwards_nothing_before_the_engine_is_asked_to() -> None:
    disk = FakeDisk()
    engine = open_engine(disk)
    route(engine, "a", "b")
    Ticks(engine)
    append(engine, "a", 1)
    engine = open_engine(killed(disk))
    calls = disk.call_count
    assert seen(engine, "b") == []
    assert engine.router("a->b").forwarded_total == 0
    assert disk.call_count == calls
    go_on(engine)
    assert seen(engine, "b") == [1]


@pytest.mark.parametrize("durability", [EPHEMERAL, MEMORY, DISK])
def test_a_reader_of_a_running_server_sees_what_was_just_acknowledged(tmp_path: Path, durability: Durability) -> None:
    async def test() -> None:
        engine = running.opened(tmp_path)
        engine.start(asyncio.get_running_loop())
        for shard in engine.core.shards:
            # On a busy machine any write may seem to have waited.
            shard.writer.stall_s = float("inf")
        for name in "bc":
            patch = TopicConfigPatch(durability=durability)
            await running.asked(lambda done, name=name, patch=patch: engine.put_topic(name, patch, done))  # type: ignore[misc]
        await running.route(engine, "a", "b")
        await running.route(engine, "b", "c")
        # The first records wait for the sync that reserves their seqs and those of many more.
        await running.append(engine, "a", 0)
        await running.arrived(engine, "c", 1)
        while engine.committing:
            await asyncio.sleep(0)
        for number in range(1, 50):
            await running.append(engine, "a", number)
            assert engine.info("c").head_seq == number + 1
        assert seen(engine, "c") == list(range(50))
        await engine.close()

    running.run(test)
