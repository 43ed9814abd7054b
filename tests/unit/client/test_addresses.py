"""A client of several servers finds the primary, and follows it when that is another one."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.unit.client.fakes import lost
from topics.testing import ManualClock, SeededEntropy
from topics_client import AsyncClient, Client, ClientError, ClientOptions, ConnectionFailed, NotPrimary, RetryPolicy
from topics_client.answers import Health
from topics_client.requests import Request
from topics_client.retry import Backoff
from topics_client.session import Session

HEALTH: Request[Health] = Request(method="GET", target="/v0/health", answer=Health)
FIRST, SECOND = "http://first.test:4000", "http://second.test:4000"


def session(url: str) -> Session:
    return Session(url, "secret", None, ManualClock(), SeededEntropy(1), {})


def not_primary(primary: str | None) -> NotPrimary:
    return NotPrimary(421, "not_primary", "this server is not the primary", {"primary": primary})


def test_every_server_gets_the_key_and_a_url_that_is_none_is_refused() -> None:
    found = session(f"{FIRST}, {SECOND}")
    assert [(one.url, one.api_key) for one in found.addresses] == [(FIRST, "secret"), (SECOND, "secret")]
    with pytest.raises(ValueError, match="is not the URL"):
        session(f"{FIRST},second")


@pytest.mark.parametrize("error", [lost(), not_primary(None), not_primary("http://unknown.test")])
def test_the_next_server_is_asked_once_one_cannot_answer(error: ClientError) -> None:
    found = session(f"{FIRST},{SECOND}")
    backoffs = [Backoff(RetryPolicy(), found, "a call") for _ in range(2)]
    for backoff in backoffs:
        assert backoff.delay_after(error) is not None
    assert found.address.url == SECOND, "two calls that failed at one server move on once"
    assert backoffs[0].delay_after(error) is not None
    assert found.address.url == FIRST


def test_the_primary_that_a_standby_names_is_asked_next() -> None:
    found = session(f"{FIRST},http://other.test,{SECOND}")
    assert Backoff(RetryPolicy(), found, "a call").delay_after(not_primary(SECOND)) is not None
    assert found.address.url == SECOND


def test_a_client_of_several_servers_asks_for_answers_of_the_primary() -> None:
    assert session(f"{FIRST},{SECOND}").standing["topics-primary"] == "require"
    assert "topics-primary" not in session(FIRST).standing, "a standby may be asked by its own address"
    options = ClientOptions(headers={"Topics-Primary": "redirect"})
    given = Session(f"{FIRST},{SECOND}", None, options, ManualClock(), SeededEntropy(1), {})
    assert given.standing["topics-primary"] == "redirect"


def test_a_client_of_one_standby_does_not_wait() -> None:
    assert Backoff(RetryPolicy(), session(FIRST), "a call").delay_after(not_primary(SECOND)) is None


class Fake(ThreadingHTTPServer):
    """A server that refuses as a standby does while `primary` is set."""

    daemon_threads = True
    primary: str | None = None
    asked = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Fake)
        server.asked += 1
        if server.primary is not None:
            error = {"code": "not_primary", "message": "elsewhere", "detail": {"primary": server.primary}}
            self._answer(421, {"error": error})
        else:
            self._answer(200, {"status": "ok", "version": server.url, "uptime_ms": 1})

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def pair() -> Iterator[tuple[Fake, Fake]]:
    servers = Fake(("127.0.0.1", 0), _Handler), Fake(("127.0.0.1", 0), _Handler)
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    yield servers
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        server.server_close()
        thread.join(10)


OPTIONS = ClientOptions(retry=RetryPolicy(backoff_min_s=0.001, backoff_max_s=0.01, deadline_s=20))


def test_connections_go_to_the_primary_and_follow_it(pair: tuple[Fake, Fake]) -> None:
    first, second = pair
    first.primary = second.url
    with Client(f"{first.url},{second.url}", options=OPTIONS, env={}) as client:
        assert [client.send(HEALTH).version for _ in range(5)] == [second.url] * 5
        assert first.asked == 1
        first.primary, second.primary = None, first.url
        assert [client.send(HEALTH).version for _ in range(5)] == [first.url] * 5
        assert second.asked == 6


def test_the_same_on_asyncio(pair: tuple[Fake, Fake]) -> None:
    first, second = pair
    first.primary = second.url

    async def scene() -> None:
        async with AsyncClient(f"{first.url},{second.url}", options=OPTIONS, env={}) as client:
            assert (await client.send(HEALTH)).version == second.url
            first.primary, second.primary = None, first.url
            assert (await client.send(HEALTH)).version == first.url

    asyncio.run(scene())


def test_without_a_primary_the_call_ends_at_its_deadline(pair: tuple[Fake, Fake]) -> None:
    first, second = pair
    first.primary, second.primary = second.url, first.url
    options = ClientOptions(retry=RetryPolicy(backoff_min_s=0.001, backoff_max_s=0.01, deadline_s=0.2))
    with Client(f"{first.url},{second.url}", options=options, env={}) as client, pytest.raises(NotPrimary):
        client.send(HEALTH)
    assert first.asked > 1
    assert second.asked > 1


def test_a_server_that_is_gone_is_left(pair: tuple[Fake, Fake]) -> None:
    _, second = pair
    with Client(f"http://127.0.0.1:9,{second.url}", options=OPTIONS, env={}) as client:
        assert client.send(HEALTH).version == second.url
    with (
        Client("http://127.0.0.1:9", options=ClientOptions(retry=RetryPolicy(deadline_s=0.05)), env={}) as client,
        pytest.raises(ConnectionFailed),
    ):
        client.send(HEALTH)
