"""Unread answers have a budget, and later answers get smaller ones."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.http.protocol.memory import Memory, Wire
from tests.http.protocol.support import App, get
from tests.http.protocol.websockets import Recorder
from topics.http.exchange import Exchange
from topics.http.h1.connection import Connection
from topics.http.output_backpressure import FLOOR_BYTES, Account, OutputBackpressure
from topics.http.websocket.message_reader import read_handshake
from topics.http.websocket.socket import WebSocket

MIB = 1024 * 1024


def test_room_shrinks_with_what_is_unread_and_never_below_the_floor() -> None:
    unread, mine, yours = OutputBackpressure(256 * MIB), Account(), Account()
    assert unread.room(mine) == 32 * MIB, "a quarter of the account's half"
    unread.change(mine, 100 * MIB)
    assert unread.room(mine) == 7 * MIB
    assert unread.room(yours) == 32 * MIB, "what one leaves unread is not the other's"
    unread.change(mine, 28 * MIB)
    assert unread.room(mine) == FLOOR_BYTES
    unread.change(yours, 127 * MIB)
    assert unread.room(Account()) == MIB // 4, "of all there is 1 MiB left"
    assert not unread.exhausted
    unread.change(yours, MIB)
    assert unread.exhausted and unread.room(Account()) == FLOOR_BYTES


class FullWire(Wire):
    """A client that reads nothing."""

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.writes))


class Reader(App):
    """Gives each request as much as there is room for, up to a megabyte."""

    def __init__(self) -> None:
        super().__init__(self.give)
        self.account = Account()
        self.given: list[int] = []

    def give(self, exchange: Exchange) -> None:
        size = min(exchange.room(self.account), MIB)
        self.given.append(size)
        exchange.respond(200, bytes(size))


def served(app: App, **limits: Any) -> Memory:
    return Memory(app, **limits)


def connect(memory: Memory) -> FullWire:
    connection = Connection(memory.server_state)
    wire = FullWire(connection)
    connection.connection_made(wire)
    return wire


def test_many_clients_that_read_nothing_cost_no_more_than_the_budget() -> None:
    app = Reader()
    memory = served(app, unread_bytes=8 * MIB, gzip_min_bytes=1 << 40)
    wires = [connect(memory) for _ in range(200)]
    for wire in wires:
        wire.protocol.data_received(get("/"))
    held = sum(wire.get_write_buffer_size() for wire in wires)
    assert held == memory.server_state.output_backpressure.held_bytes == app.account.unread_bytes
    assert held < 8 * MIB // 2 + 200 * (FLOOR_BYTES + 1024), (
        "half of the budget for the account, and the floor for each"
    )
    assert app.given[0] == MIB and app.given[-1] == FLOOR_BYTES
    for wire in wires:
        wire.lose()
    assert (memory.server_state.output_backpressure.held_bytes, app.account.unread_bytes) == (0, 0)


def test_output_backpressure_delays_only_connections_with_unread_bytes() -> None:
    app = Reader()
    memory = served(app, unread_bytes=256 * 1024, gzip_min_bytes=1 << 40)
    greedy = [connect(memory) for _ in range(20)]
    for wire in greedy:
        wire.protocol.data_received(get("/"))
    assert memory.server_state.output_backpressure.exhausted
    given = len(app.given)
    greedy[0].protocol.data_received(get("/more"))
    assert len(app.given) == given, "it reads first what it has"
    memory.send(get("/"))
    assert len(app.given) == given + 1
    greedy[0].writes.clear()
    for wire in greedy[1:]:
        wire.lose()
    for connection in tuple(memory.server_state.connections):
        connection.sweep(memory.clock.monotonic())
    memory.deliver()
    assert len(app.given) == given + 2, "what was kept waiting goes on"


def test_answers_that_wait_for_one_before_them_are_bounded_too() -> None:
    """The first request is never answered; later answers would be held in full."""
    held: list[Exchange] = []

    def handle(exchange: Exchange) -> None:
        if exchange.head.path == "/wait":
            held.append(exchange)
        else:
            exchange.respond(200, bytes(200 * 1024))

    memory = Memory(App(handle), gzip_min_bytes=1 << 40)
    memory.send(get("/wait") + get("/") * 15)
    assert len(memory.app.exchanges) == 3, "two of them are more than a client may leave unread"
    assert 400 * 1024 < memory.server_state.output_backpressure.held_bytes < 402 * 1024
    held[0].respond(200, b"{}")
    memory.deliver()
    assert len(memory.app.exchanges) == 16
    assert memory.server_state.output_backpressure.held_bytes == 0
    memory.leave()


def test_what_was_held_for_a_client_that_went_away_is_given_back() -> None:
    def handle(exchange: Exchange) -> None:
        if exchange.head.path != "/wait":
            exchange.respond(200, bytes(100_000))

    memory = Memory(App(handle))
    memory.send(get("/wait") + get("/"))
    assert memory.server_state.output_backpressure.held_bytes
    memory.wire.lose()
    while memory.server_state.put_off:
        memory.server_state.put_off.popleft()()
    assert memory.server_state.output_backpressure.held_bytes == 0


class BufferedWire(FullWire):
    """A client that reads nothing, on a transport that reports when its buffer is full and when it is empty."""

    high = 256 * 1024
    paused = False

    def write(self, data: Any) -> None:
        super().write(data)
        self._look()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        self.high = high
        self._look()

    def _look(self) -> None:
        if not self.paused and self.get_write_buffer_size() > self.high:
            self.paused = True
            self.protocol.pause_writing()

    def read_all(self) -> None:
        self.writes.clear()
        if self.paused:
            self.paused = False
            self.protocol.resume_writing()


UPGRADE = (
    b"GET /ws HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


class Followers(App):
    """Writes to every follower, as long as there is room, and never more at once than there is room for."""

    def __init__(self, kind: str) -> None:
        super().__init__(self.begin)
        self.kind = kind
        self.account = Account()
        self.memory = Memory(self, unread_bytes=8 * MIB)
        self.writers: list[tuple[Callable[[bytes], bool], Callable[[], int]]] = []

    def begin(self, exchange: Exchange) -> None:
        if self.kind == "socket":
            socket = WebSocket(exchange, read_handshake(exchange.head), self.account)
            recorder = Recorder(socket)
            socket.begin(recorder)
            self.writers.append((socket.write, socket.room))
        else:
            stream = exchange.start_stream(200, [("content-type", "text/event-stream")])
            self.writers.append((stream.write, partial(stream.room, self.account)))

    def connect(self) -> BufferedWire:
        connection = Connection(self.memory.server_state)
        wire = BufferedWire(connection)
        connection.connection_made(wire)
        connection.data_received(UPGRADE if self.kind == "socket" else get("/"))
        self.turn()
        return wire

    def write(self, wires: list[BufferedWire], rounds: int) -> None:
        for _ in range(rounds):
            for wire, (write, room) in zip(wires, self.writers, strict=True):
                if not wire.paused:
                    write(bytes(min(room(), MIB)))
            self.turn()

    def turn(self) -> None:
        for _ in range(10):
            while self.memory.server_state.put_off:
                self.memory.server_state.put_off.popleft()()


@pytest.mark.parametrize("kind", ["stream", "socket"])
def test_followers_that_read_nothing_cost_no_more_than_the_budget(kind: str) -> None:
    """Each of them could have a full buffer and a frame of a megabyte: 125 MiB for these hundred."""
    app = Followers(kind)
    wires = [app.connect() for _ in range(100)]
    app.write(wires, 20)
    server_state = app.memory.server_state
    held = sum(wire.get_write_buffer_size() for wire in wires)
    assert held == server_state.output_backpressure.held_bytes == app.account.unread_bytes
    assert held < 8 * MIB + 100 * (FLOOR_BYTES + 1024)
    for wire in wires:
        wire.read_all()
    app.turn()
    assert server_state.output_backpressure.held_bytes == 0
    app.write(wires, 1)
    assert server_state.output_backpressure.held_bytes, "whoever has read gets more"
    for wire in wires:
        wire.lose()
    assert (server_state.output_backpressure.held_bytes, app.account.unread_bytes) == (0, 0)


@pytest.mark.parametrize("kind", ["stream", "socket"])
def test_small_frames_are_counted_by_the_sweep_and_wait_for_an_empty_buffer_when_it_is_tight(kind: str) -> None:
    app = Followers(kind)
    wires = [app.connect() for _ in range(50)]
    for _ in range(18):
        for write, _ in app.writers:
            write(bytes(10_000))
    for connection in tuple(app.memory.server_state.connections):
        connection.sweep(app.memory.clock.monotonic())
    assert app.memory.server_state.output_backpressure.tight
    assert any(wire.paused for wire in wires), "the buffers are not full, and yet they take no more"
    for wire in wires:
        wire.lose()
