"""The client's connections at their end: no call is made on a transport that has ended, on either kind of loop.

The server is a socket of the same loop, so that a test decides what the client has seen before the next step.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.http.live import LiveServer
from tests.http.streams.authority import Authority
from topics_client import AsyncClient, Client, ClientOptions, ConnectionFailed
from topics_client._async.net import Connection, connect
from topics_client._async.pool import AsyncPool
from topics_client.session import Session
from topics_client.transport.http1 import HttpRequest
from topics_client.transport.route import Route

GUARD_S = 30.0
"""Only turns a hang into a failure."""
BODY = b"x" * 20_000_000
ANSWER = b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 7\r\nconnection: close\r\n\r\nrefused"

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def on_loop(main: Coroutine[Any, Any, None]) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(main, GUARD_S))

    return on_loop


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[int, Callable[[], Awaitable[socket.socket]]]]:
    """A port of this machine, and the socket that accepts its next connection."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)

        async def accept() -> socket.socket:
            sock, _ = await asyncio.get_running_loop().sock_accept(server)
            sock.setblocking(False)
            taken.append(sock)
            return sock

        try:
            yield server.getsockname()[1], accept
        finally:
            for sock in taken:
                sock.close()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0)


def drain(sock: socket.socket) -> int:
    """Reads the available bytes. At the end of the connection, or after a reset, that is nothing."""
    try:
        return len(sock.recv(1 << 20))
    except (BlockingIOError, ConnectionResetError):
        return 0


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def pool_of(port: int) -> AsyncPool:
    session = Session(f"http://127.0.0.1:{port}", None, ClientOptions(timeout_s=GUARD_S), None, None, {})
    return AsyncPool(lambda: session.route, session.options)


def test_answer_before_the_end_of_a_large_body_is_given_when_the_rest_is_flushed_first(run: Run) -> None:
    """The server answers and ends its side while the body is sent, and then takes all of it: the transport has closed
    itself and flushed its last bytes before the client closes it."""

    async def main() -> None:
        async with listening() as (port, accept):
            pool = pool_of(port)
            sending = asyncio.ensure_future(pool.send(HttpRequest("POST", "/", b"", BODY, GUARD_S)))
            sock = await accept()
            await asyncio.get_running_loop().sock_sendall(sock, ANSWER)
            sock.shutdown(socket.SHUT_WR)
            await until(lambda: any(connection._ended for connection in pool._busy))
            while not sending.done():
                drain(sock)
                await asyncio.sleep(0)
            response = await sending
            assert (response.status, response.content) == (413, b"refused")
            await pool.aclose()
            await pool.aclose()

    run(main())


async def lost(way: str, sock: socket.socket, connection: Connection) -> None:
    """Ends a connection in one of the ways it may end, until the transport has reported it."""
    if way == "flushed":
        transport = connection._transport
        assert transport is not None
        transport.write(BODY)
        transport.close()
    elif way == "reset":
        reset(sock)
    elif way == "ended":
        sock.shutdown(socket.SHUT_WR)
    else:
        connection.close()
    while not connection._lost:
        if way == "flushed":
            drain(sock)
        await asyncio.sleep(0)


@pytest.mark.parametrize("way", ["flushed", "reset", "ended", "closed"])
def test_ended_connection_is_closed_any_number_of_times_and_refuses_writes(run: Run, way: str) -> None:
    async def main() -> None:
        async with listening() as (port, accept):
            connection = await connect("127.0.0.1", port, GUARD_S)
            await lost(way, await accept(), connection)
            assert not connection.is_usable
            for _ in range(2):
                connection.close()
                connection.shutdown()
                with pytest.raises(ConnectionError):
                    await connection.write(b"more", GUARD_S)
            if way == "reset":
                with pytest.raises(ConnectionError):
                    await connection.read(GUARD_S)
            else:
                assert await connection.read(GUARD_S) == b""
            connection.close()

    run(main())


def test_connection_that_ended_before_its_first_request_is_a_failed_connection(run: Run) -> None:
    async def main() -> None:
        async with listening() as (port, accept):
            pool = pool_of(port)
            made = await connect("127.0.0.1", port, GUARD_S)
            await lost("reset", await accept(), made)

            async def given(route: Route) -> Connection:
                return made

            pool._connect = given  # type: ignore[method-assign]
            with pytest.raises(ConnectionFailed):
                await pool.send(HttpRequest("GET", "/", b"", None, GUARD_S))
            await pool.aclose()

    run(main())


def test_large_answer_is_read_after_the_connection_was_lost(run: Run) -> None:
    """Reading resumes on a transport that was paused because of its received data, and has ended since."""

    async def main() -> None:
        async with listening() as (port, accept):
            connection = await connect("127.0.0.1", port, GUARD_S)
            sock = await accept()
            sending = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(sock, BODY))
            await until(lambda: connection._received_bytes > 1024 * 1024)
            connection.close()
            await until(lambda: connection._lost)
            assert len(await connection.read(GUARD_S)) > 1024 * 1024
            sock.close()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    run(main())


@pytest.mark.parametrize("way", ["reset", "ended", "closed"])
def test_tls_connection_is_closed_any_number_of_times(run: Run, way: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(authority.certificate("127.0.0.1"))
    trust = ssl.create_default_context(cafile=str(authority.file))

    async def main() -> None:
        async with listening() as (port, accept):
            connection = await connect("127.0.0.1", port, GUARD_S)
            sock = await accept()
            shaking = asyncio.ensure_future(connection.start_tls(trust, "127.0.0.1", GUARD_S))
            peer, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, sock, ssl=server_side)
            await shaking
            if way == "closed":
                connection.close()
                connection.shutdown()
            elif way == "ended":
                peer.close()
            else:
                peer.abort()
            await until(lambda: connection._lost)
            for _ in range(2):
                connection.close()
                connection.shutdown()
                with pytest.raises(ConnectionError):
                    await connection.write(b"more", GUARD_S)
            peer.abort()

    run(main())


@pytest.mark.parametrize("times", [1, 3])
def test_connection_that_is_closed_during_its_tls_handshake_is_lost(run: Run, times: int) -> None:
    async def main() -> None:
        async with listening() as (port, accept):
            connection = await connect("127.0.0.1", port, GUARD_S)
            sock = await accept()
            shaking = asyncio.ensure_future(connection.start_tls(ssl.create_default_context(), "127.0.0.1", GUARD_S))
            await asyncio.get_running_loop().sock_recv(sock, 1 << 16)
            for _ in range(times):
                connection.close()
            reset(sock)
            with pytest.raises((OSError, ssl.SSLError)):
                await shaking
            connection.close()
            connection.shutdown()

    run(main())


OPENED: dict[str, Callable[[Any], Any]] = {
    "watch": lambda client: client.watch("jobs"),
    "follow": lambda client: client.follow("jobs"),
    "consumer": lambda client: client.consumer("jobs", "reader"),
    "work": lambda client: client.work("tasks", "ann"),
    "ws": lambda client: client.ws(),
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("endings")) as server, Client(server.url) as client:
        client.append("jobs", 1)
        client.put_topic("tasks", {"type": "queue"})
        client.append("tasks", 1)
        yield server


@pytest.mark.parametrize("order", ["itself twice", "after its client"])
@pytest.mark.parametrize("what", OPENED)
def test_what_a_client_opened_is_closed_any_number_of_times(run: Run, live: LiveServer, what: str, order: str) -> None:
    async def main() -> None:
        client = AsyncClient(live.url)
        opened: Any = OPENED[what](client)
        if what == "ws":
            await opened.publish("jobs", 2)
        else:
            await anext(opened)
        if order == "after its client":
            await client.aclose()
        await opened.aclose()
        await opened.aclose()
        await client.aclose()
        await client.aclose()

    run(main())


@pytest.mark.parametrize("order", ["itself twice", "after its client"])
@pytest.mark.parametrize("what", OPENED)
def test_what_a_synchronous_client_opened_is_closed_any_number_of_times(
    live: LiveServer, what: str, order: str
) -> None:
    client = Client(live.url)
    opened: Any = OPENED[what](client)
    if what == "ws":
        opened.publish("jobs", 2)
    else:
        next(opened)
    if order == "after its client":
        client.close()
    opened.close()
    opened.close()
    client.close()
    client.close()
