"""A long body is put into its place as it comes, and worked on in turns with everyone else."""

import gzip
import itertools
import random
from collections.abc import Callable

from tests.http.protocol.memory import Memory, Wire
from tests.http.protocol.support import App, get
from topics.http.exchange import Exchange
from topics.http.h1.connection import Connection
from topics.http.h1.request_reader import PIECE_BYTES
from topics.http.messages import RequestHead
from topics.http.request_body import LARGE_BYTES
from topics.system.fair_scheduler import Pause, Task

LONG = random.Random(1).randbytes(2 * LARGE_BYTES) + b"the end"


class Reader(App):
    """Takes long bodies, and needs ten steps for each, of more than a slice of time."""

    def __init__(self) -> None:
        super().__init__(self.work, self.let_in)
        self.seen: list[str] = []
        self.memory = Memory(self, bodies_bytes=4 * LARGE_BYTES)

    def let_in(self, head: RequestHead) -> int:
        head.takes_large = True
        return 10 * LARGE_BYTES

    def work(self, exchange: Exchange) -> None:
        path, large = exchange.head.path, exchange.large_body
        if large is None:
            self.seen.append(path)
            exchange.respond(200, b"{}")
            return
        assert bytes(large.view) == LONG and not exchange.body

        def task() -> Task:
            for left in range(9, -1, -1):
                self.memory.clock.advance(1)
                self.seen.append(f"{path} {left}")
                if left:
                    yield None
            exchange.respond(200, b"{}")

        exchange.run(task())

    def turn(self) -> None:
        """One turn of the loop."""
        for _ in range(len(self.memory.server_state.put_off)):
            self.memory.server_state.put_off.popleft()()


def post(path: str, body: bytes = LONG, extra: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: a\r\n%bcontent-length: %d\r\n\r\n%b" % (path.encode(), extra, len(body), body)


def test_others_are_served_between_any_two_steps() -> None:
    app = Reader()
    memory = app.memory
    modest = Connection(memory.server_state)
    wire = Wire(modest)
    modest.connection_made(wire)
    memory.connection.data_received(post("/long"))
    for _ in range(100):
        if len(app.seen) >= 19:
            break
        app.turn()
        modest.data_received(get("/little"))
    steps = [place for place, what in enumerate(app.seen) if what.startswith("/long")]
    assert len(steps) == 10
    assert all(later - sooner > 1 for sooner, later in itertools.pairwise(steps)), app.seen
    wire.lose()
    memory.leave()


def test_pipelined_requests_after_a_large_body_keep_their_order() -> None:
    app = Reader()
    app.memory.send(post("/long") + get("/next"))
    assert app.seen == [*(f"/long {left}" for left in range(9, -1, -1)), "/next"]
    app.memory.leave()


def test_it_counts_in_the_budget_until_it_is_read() -> None:
    app = Reader()
    memory = app.memory
    memory.connection.data_received(post("/long"))
    for _ in range(5):
        app.turn()
    assert memory.server_state.budget.held_bytes == len(LONG)
    memory.deliver()
    assert memory.server_state.budget.held_bytes == 0
    memory.leave()


def test_a_client_that_goes_away_ends_the_work() -> None:
    app = Reader()
    memory = app.memory
    memory.connection.data_received(post("/long"))
    for _ in range(3):
        app.turn()
    memory.wire.lose()
    steps = len(app.seen)
    app.exchanges.clear()
    for _ in range(5):
        app.turn()
    assert len(app.seen) == steps < 10 and len(memory.server_state.scheduler) == 0
    assert memory.server_state.budget.held_bytes == 0


def test_a_pause_takes_no_turns_and_keeps_the_order() -> None:
    app = Reader()
    resumed: list[Callable[[], None]] = []
    pauses: list[Pause | None] = [None, resumed.append, None]

    def work(exchange: Exchange) -> None:
        def task() -> Task:
            for left, pause in zip((3, 2, 1), pauses, strict=True):
                app.seen.append(f"{exchange.head.path} {left}")
                yield pause
            app.seen.append(f"{exchange.head.path} 0")
            exchange.respond(200, b"{}")

        if exchange.head.path == "/long":
            exchange.run(task())
        else:
            app.seen.append(exchange.head.path)
            exchange.respond(200, b"{}")

    app._handler = work
    app.memory.send(post("/long") + get("/next"))
    assert app.seen == ["/long 3", "/long 2"] and len(app.memory.server_state.scheduler) == 0
    (resume,) = resumed
    resume()
    app.memory.deliver()
    assert app.seen == ["/long 3", "/long 2", "/long 1", "/long 0", "/next"]
    app.exchanges.clear()
    app.memory.leave()


def test_a_client_that_goes_away_in_a_pause_ends_the_work() -> None:
    app = Reader()
    resumed: list[Callable[[], None]] = []

    def task() -> Task:
        while True:
            yield resumed.append

    app._handler = lambda exchange: exchange.run(task())
    memory = app.memory
    memory.send(post("/long"))
    memory.wire.lose()
    app.exchanges.clear()
    resumed[0]()
    app.turn()
    assert len(resumed) == 1 and len(memory.server_state.scheduler) == 0
    assert memory.server_state.budget.held_bytes == 0


def test_a_step_that_fails_is_answered() -> None:
    app = Reader()

    def task() -> Task:
        yield None
        raise ZeroDivisionError

    app._handler = lambda exchange: exchange.run(task())
    app.memory.send(post("/long"))
    assert app.memory.answered.startswith(b"HTTP/1.1 500 ")
    app.exchanges.clear()
    app.memory.leave()


def test_compressed_and_chunked_bodies_come_the_same_way() -> None:
    app = Reader()
    app.memory.send(post("/packed", gzip.compress(LONG), b"content-encoding: gzip\r\n"))
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(LONG[at : at + 9999]), LONG[at : at + 9999]) for at in range(0, len(LONG), 9999)
    )
    app.memory.send(b"POST /chunks HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert [what for what in app.seen if what.endswith(" 0")] == ["/packed 0", "/chunks 0"]
    app.memory.leave()


def test_a_compressed_body_is_read_bit_by_bit() -> None:
    """A few bytes of it may become megabytes, and others are heard in between."""
    pieces = {}
    for extra in (b"", b"content-encoding: gzip\r\n"):
        connection = Reader().memory.connection
        connection.data_received(post("/long", gzip.compress(LONG), extra)[:200])
        pieces[extra] = connection._reader.piece_bytes
    assert pieces[b""] > LARGE_BYTES
    assert pieces[b"content-encoding: gzip\r\n"] == PIECE_BYTES
