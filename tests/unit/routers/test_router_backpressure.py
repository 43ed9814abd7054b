"""Routers under pressure: they are the first to wait, and they lose nothing by it."""

from tests.unit.conftest import append, put, values
from tests.unit.routers.conftest import route
from topics.engine.engine import Engine
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
