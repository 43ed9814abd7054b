"""Routers under pressure: they are the first to wait, and they lose nothing by it."""

from collections.abc import Callable

import pytest

from tests.unit.conftest import append, drop, open_engine, put, topic, values
from tests.unit.routers.conftest import route
from topics.engine.engine import Engine
from topics.model.errors import ThrottledError
from topics.model.limits import Limits
from topics.model.topic_config import Discard
from topics.routers import pump
from topics.routers.registry import Router
from topics.testing import ManualClock


def defer(engine: Engine, deferring: bool) -> None:
    engine.core.scheduler.set_policy(0.0, deferring)


def test_a_router_waits_while_low_value_is_deferred(engine: Engine) -> None:
    route(engine, "a", "b")
    defer(engine, True)
    for number in range(5):
        append(engine, "a", number)
    assert values(engine, "b") == []
    engine.routing.pump.retry()
    assert values(engine, "b") == []
    defer(engine, False)
    engine.routing.pump.retry()
    assert values(engine, "b") == [0, 1, 2, 3, 4]


def test_a_router_that_waited_long_enough_goes_on_in_spite_of_the_pressure(engine: Engine, clock: ManualClock) -> None:
    put(engine, "a", priority=0)
    route(engine, "a", "b")
    defer(engine, True)
    append(engine, "a", 1)
    for _ in range(9):
        clock.advance(1000)
        engine.routing.pump.retry()
        assert values(engine, "b") == []
    append(engine, "a", 2)
    clock.advance(1000)
    engine.routing.pump.retry()
    assert values(engine, "b") == [1, 2]


def test_the_routers_of_the_most_important_sources_do_not_wait(engine: Engine) -> None:
    put(engine, "a", priority=1000)
    route(engine, "a", "b")
    defer(engine, True)
    append(engine, "a", 1)
    assert values(engine, "b") == [1]


def test_housekeeping_lets_routers_go_on_when_the_pressure_is_gone(engine: Engine) -> None:
    route(engine, "a", "b")
    defer(engine, True)
    append(engine, "a", 1)
    defer(engine, False)
    engine.housekeeper.tick()
    assert values(engine, "b") == [1]


# The fan-out budget.


def fanned_out(clock: ManualClock, routers: int, **limits: int) -> Engine:
    engine = open_engine(clock=clock, limits=Limits(**limits))  # type: ignore[arg-type]
    engine.core.quotas.set_tenants([("a:",), ("b:",)])
    for source in ("a:source", "b:source"):
        put(engine, source)
        for number in range(routers):
            route(engine, source, f"{source}:{number}")
    return engine


def copied(engine: Engine, source: str) -> int:
    return sum([topic(engine, f"{source}:{number}").head for number in range(20)])


def seconds(engine: Engine, clock: ManualClock, count: int) -> None:
    for _ in range(count):
        clock.advance(1_000)
        engine.housekeeper.tick()


def test_copies_of_a_source_with_many_routers_have_a_budget_a_second() -> None:
    clock = ManualClock()
    engine = fanned_out(clock, 20, max_fanout_bytes=0, max_fanout_bytes_per_key=5_000)
    append(engine, "a:source", "x" * 1_000)
    append(engine, "b:source", "x" * 1_000)
    assert [copied(engine, name) for name in ("a:source", "b:source")] == [5, 5], "one key takes nothing of another"
    seconds(engine, clock, 1)
    assert copied(engine, "a:source") == 10
    seconds(engine, clock, 3)
    assert copied(engine, "a:source") == 20


def test_the_server_has_a_fan_out_budget_for_all_keys() -> None:
    clock = ManualClock()
    engine = fanned_out(clock, 20, max_fanout_bytes=5_000, max_fanout_bytes_per_key=0)
    append(engine, "a:source", "x" * 1_000)
    append(engine, "b:source", "x" * 1_000)
    assert copied(engine, "a:source") + copied(engine, "b:source") == 5
    seconds(engine, clock, 10)
    assert copied(engine, "a:source") + copied(engine, "b:source") == 40


def test_a_source_with_few_routers_has_no_budget() -> None:
    engine = fanned_out(ManualClock(), 8, max_fanout_bytes=1_000, max_fanout_bytes_per_key=1_000)
    for _ in range(10):
        append(engine, "a:source", "x" * 1_000)
    assert [topic(engine, f"a:source:{number}").head for number in range(8)] == [10] * 8


def test_the_writer_of_a_source_with_many_copies_to_be_made_waits_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pump, "FANOUT_BACKLOG_BYTES", 30_000)
    clock = ManualClock()
    engine = fanned_out(clock, 20, max_fanout_bytes=0, max_fanout_bytes_per_key=5_000)
    append(engine, "a:source", "x" * 1_000)
    append(engine, "a:source", "x" * 1_000)
    with pytest.raises(ThrottledError) as refused:
        append(engine, "a:source", "x" * 1_000)
    assert refused.value.detail["limit"] == "max_fanout_bytes_per_key"
    append(engine, "b:source", "x")
    append(engine, "a:other", "x")
    seconds(engine, clock, 10)
    append(engine, "a:source", "x")
    seconds(engine, clock, 10)
    assert copied(engine, "a:source") == 60


def test_a_source_that_is_deleted_while_it_is_held_back_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump, "FANOUT_BACKLOG_BYTES", 30_000)
    clock = ManualClock()
    engine = fanned_out(clock, 20, max_fanout_bytes=0, max_fanout_bytes_per_key=5_000)
    append(engine, "a:source", "x" * 1_000)
    append(engine, "a:source", "x" * 1_000)
    assert engine.core.held_sources
    drop(engine, "a:source")
    seconds(engine, clock, 1)
    assert not engine.core.held_sources
    append(engine, "a:source", "x")


# The work of many routers of one source.


def test_creating_a_router_does_not_look_at_the_others(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    advance = pump.Pump._advance

    def counted(self: pump.Pump, router: Router) -> float:
        tried.append(router.name)
        return advance(self, router)

    monkeypatch.setattr(pump.Pump, "_advance", counted)
    append(engine, "a", 1)
    for number in range(50):
        route(engine, "a", f"b{number}", name=f"r{number}")
    assert len(tried) <= 50
    route(engine, "a", "late", name="late", from_seq=0)
    assert values(engine, "late") == [1]
    append(engine, "a", 2)
    assert [values(engine, f"b{number}") for number in range(50)] == [[2]] * 50
    assert values(engine, "late") == [1, 2]


def test_routers_that_an_obstacle_stops_take_turns(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        put(engine, f"b{number}", cap_records=1, discard=Discard.REJECT)
        append(engine, f"b{number}", "full")
        route(engine, "a", f"b{number}", name=f"r{number}")
    tried: list[str] = []
    attempt = pump.Pump._try_alone

    def counted(self: pump.Pump, router: Router) -> float:
        tried.append(router.name)
        return attempt(self, router)

    monkeypatch.setattr(pump.Pump, "_try_alone", counted)
    runs: list[Callable[[], None]] = []
    engine.routing.pump.cost_a_tick = 1
    monkeypatch.setattr(engine.core, "defer", runs.append)
    append(engine, "a", 1)
    while runs:
        before = len(tried)
        runs.pop(0)()
        assert len(tried) - before <= 1 / pump._COST_OF_NOTHING
    assert {f"r{number}" for number in range(200)} == set(tried)
