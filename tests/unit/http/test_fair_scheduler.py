"""Whoever asks for much waits in line, a slice at a time; whoever asks for little does not."""

from tests.http.protocol.memory import Memory, Wire
from tests.http.protocol.support import App, get
from topics.http.exchange import Exchange
from topics.http.fair_scheduler import SLICE_S, FairScheduler
from topics.http.h1.connection import Connection


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Greedy:
    """Wants so many slices."""

    def __init__(self, turns: FairScheduler, clock: Clock, name: str, wants: int, served: list[str]) -> None:
        self.turns, self.clock, self.name, self.wants, self.served = turns, clock, name, wants, served

    def take_turn(self) -> None:
        self.served.append(self.name)
        self.clock.now += SLICE_S
        self.wants -= 1
        if self.wants:
            self.turns.add(self)


def test_the_line_is_served_round_by_round_and_a_bounded_time_each_turn() -> None:
    clock, served = Clock(), list[str]()
    turns = FairScheduler(clock)
    asked = [turns.add(Greedy(turns, clock, name, wants, served)) for name, wants in (("a", 3), ("b", 1), ("c", 2))]
    assert asked == [True, False, False], "one turn of the loop serves all of them"
    assert turns.serve()
    assert served == ["a", "b", "c"], "each once in a turn"
    assert turns.serve()
    assert served[3:] == ["a", "c"]
    assert not turns.serve()
    assert served[5:] == ["a"]


def test_a_long_line_is_served_over_many_turns() -> None:
    clock, served = Clock(), list[str]()
    turns = FairScheduler(clock)
    for number in range(1000):
        turns.add(Greedy(turns, clock, str(number), 1, served))
    turns.serve()
    assert len(served) < 10, "then the loop looks for what came in meanwhile"
    while turns.serve():
        pass
    assert served == [str(number) for number in range(1000)]


def slow_memory() -> Memory:
    """A server whose every request takes longer than a slice."""

    def handle(exchange: Exchange) -> None:
        memory.clock.advance(1)
        exchange.respond(200, b"{}")

    memory = Memory(App(handle))
    return memory


def test_who_asks_for_little_is_served_before_the_rest_of_what_another_asked_for() -> None:
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
