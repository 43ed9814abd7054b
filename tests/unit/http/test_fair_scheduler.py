"""A caller that asks for much waits in line, a slice at a time; a caller that asks for little does not."""

from collections import deque
from collections.abc import Callable

from tests.http.protocol.memory import Memory, Wire
from tests.http.protocol.support import App, get
from topics.http.exchange import Exchange
from topics.http.h1.connection import Connection
from topics.system.fair_scheduler import SLICE_S, FairScheduler, Task, in_slices


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class World:
    """A scheduler whose turns of the loop are taken by hand."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.deferred: deque[Callable[[], None]] = deque()
        self.scheduler = FairScheduler(self.clock, self.deferred.append)
        self.served: list[str] = []

    def greedy(self, name: str, wants: int) -> Task:
        """Wants so many slices."""
        for left in range(wants - 1, -1, -1):
            self.served.append(name)
            self.clock.now += SLICE_S
            if left:
                yield None

    def turn(self) -> bool:
        """One turn of the loop; whether another one is asked for."""
        self.deferred.popleft()()
        return bool(self.deferred)


def test_the_line_is_served_round_by_round_and_a_bounded_time_each_turn() -> None:
    world = World()
    served = world.served
    asked = []
    for name, wants in (("a", 3), ("b", 1), ("c", 2)):
        before = len(world.deferred)
        world.scheduler.run(world.greedy(name, wants), name)
        asked.append(len(world.deferred) > before)
    assert asked == [True, False, False], "one turn of the loop serves all of them"
    assert world.turn()
    assert served == ["a", "b", "c"], "each once in a turn"
    assert world.turn()
    assert served[3:] == ["a", "c"]
    assert not world.turn()
    assert served[5:] == ["a"]


def test_tasks_of_one_owner_run_one_after_the_other_and_share_a_place() -> None:
    world = World()
    for name in ("a1", "a2", "b1"):
        world.scheduler.run(world.greedy(name, 2), name[0])
    while world.turn():
        pass
    assert world.served == ["a1", "b1", "a1", "b1", "a2", "a2"]


def test_a_pause_keeps_the_place_of_a_task_before_later_ones_of_its_owner() -> None:
    world, resumes = World(), list[Callable[[], None]]()

    def pausing() -> Task:
        world.served.append("before")
        yield resumes.append
        world.served.append("after")

    world.scheduler.run(pausing(), "a")
    world.scheduler.run(world.greedy("later", 1), "a")
    assert not world.turn() and len(world.scheduler) == 0
    resumes.pop()()
    while world.turn():
        pass
    assert world.served == ["before", "after", "later"]


def test_a_task_that_fails_ends_and_the_others_go_on() -> None:
    world = World()

    def failing() -> Task:
        yield None
        raise ZeroDivisionError

    world.scheduler.run(failing(), "a")
    world.scheduler.run(world.greedy("b", 3), "b")
    world.scheduler.run(world.greedy("a", 1), "a")
    while world.turn():
        pass
    assert sorted(world.served) == ["a", "b", "b", "b"] and len(world.scheduler) == 0


def test_without_a_loop_a_task_is_done_when_it_was_begun() -> None:
    world = World()
    scheduler = FairScheduler(world.clock, lambda function: function())

    def nesting() -> Task:
        scheduler.run(world.greedy("inner", 2_000), "b")
        yield None
        world.served.append("outer")

    scheduler.run(nesting(), "a")
    assert world.served.count("inner") == 2_000 and world.served.count("outer") == 1


def test_short_units_are_joined_to_slices() -> None:
    clock, units = Clock(), list[int]()

    def short() -> Task:
        for unit in range(100):
            clock.now += SLICE_S / 4
            units.append(unit)
            yield None

    slices = in_slices(short(), clock)
    next(slices)
    assert len(units) == 4
    assert len(list(slices)) == 24 and len(units) == 100


def test_a_long_line_is_served_over_many_turns() -> None:
    world = World()
    served = world.served
    for number in range(1000):
        world.scheduler.run(world.greedy(str(number), 1), number)
    world.turn()
    assert len(served) < 10, "then the loop looks for what came in meanwhile"
    while world.turn():
        pass
    assert served == [str(number) for number in range(1000)]


def slow_memory() -> Memory:
    """A server whose every request takes longer than a slice."""

    def handle(exchange: Exchange) -> None:
        memory.clock.advance(1)
        exchange.respond(200, b"{}")

    memory = Memory(App(handle))
    return memory


def test_short_request_is_scheduled_before_the_rest_of_a_long_one() -> None:
    """Thousands of requests at once on one connection, then one on another: it is not behind them."""
    memory = slow_memory()
    app = memory.app
    modest = Connection(memory.server_state)
    wire = Wire(modest)
    modest.connection_made(wire)
    memory.connection.data_received(get("/much") * 1_000)
    assert [exchange.head.path for exchange in app.exchanges] == ["/much"], "a slice is over with the first"
    assert not memory.wire.reading
    modest.data_received(get("/little"))
    assert [exchange.head.path for exchange in app.exchanges] == ["/much", "/little"]
    memory.server_state.put_off.popleft()()
    assert [exchange.head.path for exchange in app.exchanges[2:]] == ["/much"], "one more each turn"
    memory.deliver()
    assert len(app.exchanges) == 1_001 and memory.wire.reading
    wire.lose()
    memory.leave()


def test_a_greedy_connection_stays_in_line_for_a_while_with_whatever_it_sends() -> None:
    memory = slow_memory()
    app = memory.app
    memory.send(get("/") * 3)
    assert len(app.exchanges) == 3
    memory.connection.data_received(get("/") * 2)
    assert len(app.exchanges) == 3, "nothing at once: it is in line"
    memory.deliver()
    assert len(app.exchanges) == 5
    memory.clock.advance(1000)
    memory.connection.data_received(get("/a"))
    assert len(app.exchanges) == 6, "it has been modest for long enough"
    memory.leave()


def test_a_connection_that_is_lost_in_line_is_passed_over() -> None:
    memory = slow_memory()
    app = memory.app
    memory.connection.data_received(get("/") * 100)
    memory.wire.lose()
    while memory.server_state.put_off:
        memory.server_state.put_off.popleft()()
    assert len(app.exchanges) == 2 and len(memory.server_state.scheduler) == 0
