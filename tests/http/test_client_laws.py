"""The promises of both clients for any behaviour of the server: it dies, drips, sends wrong lengths and resets."""

import asyncio
import base64
import gc
import gzip
import hashlib
import json
import os
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from tests.http.scripted import PATIENCE_S, Act, Peer, answers, dies, hangs, http, resets, running, stays, then
from tests.http.streams.authority import Authority
from topics_client import (
    AsyncClient,
    Client,
    ClientOptions,
    ConnectionFailed,
    PayloadTooLarge,
    Record,
    RetryPolicy,
    TopicNotFound,
)

T = TypeVar("T")

APPENDED = {
    "topic": "jobs", "first_seq": 1, "last_seq": 1, "head_seq": 1, "count": 1, "created": False, "deduped": False,
}  # fmt: skip
OK = http(APPENDED)
QUICK = RetryPolicy(deadline_s=PATIENCE_S, backoff_min_s=0.001, backoff_max_s=0.01)
RETRYING = ClientOptions(retry=QUICK)
ONCE = ClientOptions(retry=RetryPolicy(deadline_s=0))
KEYLESS = ClientOptions(retry=QUICK, idempotent_appends=False)
SHORT = ClientOptions(retry=RetryPolicy(deadline_s=0), timeout_s=0.2)

both = pytest.mark.parametrize("kind", ["sync", "async", "uvloop"])


def run(kind: str, scene: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if kind == "uvloop" else None) as runner:
        return runner.run(scene)


def use(kind: str, url: str, options: ClientOptions, *calls: tuple[Any, ...], env: dict[str, str] | None = None) -> Any:
    """Makes calls with one client, and returns the last result."""
    if kind == "sync":
        with Client(url, options=options, env=env or {}) as client:
            return [getattr(client, name)(*args) for name, *args in calls][-1]

    async def scene() -> Any:
        async with AsyncClient(url, options=options, env=env or {}) as client:
            return [await getattr(client, name)(*args) for name, *args in calls][-1]

    return run(kind, asyncio.wait_for(scene(), PATIENCE_S))


def until(reached: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < give_up
        time.sleep(0.001)


APPEND = ("append", "jobs", {"a": 1})


# Trying again


@both
@pytest.mark.parametrize(
    "loss", [dies, resets, answers(OK[:20]), answers(OK[:-1])], ids=["dies", "resets", "head", "body"]
)
def test_an_append_whose_answer_was_lost_is_sent_again_as_it_was(kind: str, loss: Act) -> None:
    with running([loss, loss, answers(OK)]) as server:
        assert use(kind, server.url, RETRYING, APPEND).last_seq == 1
        assert len(server.asked) == 3
        (body,) = {asked.body for asked in server.asked}
        said = json.loads(body)
        assert len(said.pop("idempotency_key")) == 20
        assert said == {"idempotency_check": True, "records": [{"data": {"a": 1}}]}


@both
@pytest.mark.parametrize("loss", [dies, resets])
def test_an_append_without_a_key_is_not_sent_again(kind: str, loss: Act) -> None:
    with running([loss, answers(OK)]) as server:
        with pytest.raises(ConnectionFailed, match=server.url) as caught:
            use(kind, server.url, KEYLESS, APPEND)
        assert caught.value.maybe_done
        assert len(server.asked) == 1


@both
def test_no_server_is_reported_with_its_url(kind: str) -> None:
    with running([]) as server:
        url = server.url
    with pytest.raises(ConnectionFailed, match=url) as caught:
        use(kind, url, ONCE, APPEND)
    assert not caught.value.maybe_done


@both
def test_silence_is_a_failure(kind: str) -> None:
    with running([hangs]) as server, pytest.raises(ConnectionFailed, match=r"in time|timed out") as caught:
        use(kind, server.url, SHORT, APPEND)
    assert caught.value.maybe_done


# Reading answers


@both
@pytest.mark.parametrize("each", [1, 7])
def test_an_answer_may_drip(kind: str, each: int) -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    body = OK.partition(b"\r\n\r\n")[2]
    chunks = b"".join(
        b"%x;ext=1\r\n%b\r\n" % (len(body[at : at + 10]), body[at : at + 10]) for at in range(0, len(body), 10)
    )
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    with running([answers(OK, chunked + chunks + b"0\r\n\r\n", interim + OK, each=each)]) as server:
        assert use(kind, server.url, ONCE, APPEND, APPEND, APPEND).last_seq == 1
        assert server.connections == 1


LIES = {
    "too short": OK.replace(b"content-length: ", b"content-length: 1"),
    "two lengths": OK.replace(b"\r\n\r\n", b"\r\ncontent-length: 5\r\n\r\n"),
    "length and chunks": OK.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n"),
    "negative": OK.replace(b"content-length: ", b"content-length: -"),
    "a bad chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "cut chunks": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
    "no HTTP": b"220 mail.example.com ESMTP\r\n\r\n",
    "an endless head": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "no gzip": http(APPENDED, content_encoding="gzip"),
    "cut gzip": http(raw=gzip.compress(b"{}" * 50)[:-9], content_encoding="gzip"),
}


@both
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_a_broken_connection_and_never_an_answer(kind: str, lie: str) -> None:
    with running([answers(LIES[lie])]) as server, pytest.raises(ConnectionFailed) as caught:
        use(kind, server.url, ONCE, APPEND)
    assert caught.value.maybe_done


@both
def test_bytes_after_an_answer_close_the_connection(kind: str) -> None:
    """The next request must not take it for its own answer."""
    stray = http({**APPENDED, "last_seq": 666})
    with running([answers(OK + stray, OK), answers(OK)]) as server:
        assert use(kind, server.url, ONCE, APPEND, APPEND).last_seq == 1
        assert server.connections == 2


@both
def test_a_body_may_end_with_its_connection(kind: str) -> None:
    body = OK.partition(b"\r\n\r\n")[2]
    with running([answers(b"HTTP/1.0 200 OK\r\n\r\n" + body), answers(OK)]) as server:
        assert use(kind, server.url, ONCE, APPEND, APPEND).last_seq == 1


@both
def test_a_compressed_answer_is_read(kind: str) -> None:
    packed = http(raw=gzip.compress(json.dumps(APPENDED).encode()), content_encoding="gzip")
    with running([answers(packed, packed, each=3)]) as server:
        assert use(kind, server.url, ClientOptions(gzip=True), APPEND, APPEND).last_seq == 1
        assert server.asked[0].headers["accept-encoding"] == "gzip"


@both
def test_a_refusal_that_comes_before_the_body_was_taken_is_reported(kind: str) -> None:
    refused = http(
        {"error": {"code": "payload_too_large", "message": "no"}}, status="413 Too Large", connection="close"
    )

    def act(peer: Peer) -> None:
        peer.ask_head()
        peer.sock.sendall(refused)
        # Requests sent meanwhile are read, or the system would discard the answer.
        while peer.sock.recv(65536):
            pass

    with running([act]) as server, pytest.raises(PayloadTooLarge):
        use(kind, server.url, ONCE, ("append", "jobs", "x" * 20_000_000))


# Connections


@both
def test_connection_is_reused_until_it_is_closed(kind: str) -> None:
    last = http(APPENDED, connection="close")
    with running([answers(OK, OK, last), answers(OK)]) as server:
        use(kind, server.url, ONCE, *[APPEND] * 4)
        assert server.connections == 2


@both
def test_a_connection_that_the_server_gave_up_meanwhile_is_not_used(kind: str) -> None:
    """Nothing is sent into it, so that nothing has to be sent again."""
    gone = threading.Event()

    def act(peer: Peer) -> None:
        answers(OK)(peer)
        peer.sock.shutdown(2)
        gone.set()

    with running([act, answers(OK)]) as server:
        if kind == "sync":
            with Client(server.url, options=KEYLESS) as client:
                client.append("jobs", 1)
                assert gone.wait(PATIENCE_S)
                assert client.append("jobs", 2).last_seq == 1
        else:

            async def scene() -> None:
                async with AsyncClient(server.url, options=KEYLESS) as client:
                    await client.append("jobs", 1)
                    assert await asyncio.to_thread(gone.wait, PATIENCE_S)
                    # The loop has to see the end of the connection first.
                    await asyncio.sleep(0.01)
                    assert (await client.append("jobs", 2)).last_seq == 1

            run(kind, scene())
        assert [json.loads(asked.body)["records"][0]["data"] for asked in server.asked] == [1, 2]


def test_calls_beyond_the_pool_wait_for_a_connection() -> None:
    options = ClientOptions(max_connections=1, timeout_s=0.2, retry=RetryPolicy(deadline_s=0))
    with running([hangs]) as server, Client(server.url, options=options) as client:
        first = threading.Thread(target=lambda: list(client.follow("jobs", wait_ms=30_000, deadline_s=0)))
        first.start()
        until(lambda: bool(server.asked))
        with pytest.raises(ConnectionFailed, match="pool") as caught:
            client.append("jobs", 1)
        assert not caught.value.maybe_done
        client.close()
        first.join(PATIENCE_S)
        assert not first.is_alive()


def test_a_fork_does_not_read_the_answers_of_its_parent() -> None:
    with running([then(answers(OK, OK), stays), answers(OK)]) as server, Client(server.url, options=ONCE) as client:
        client.append("jobs", "parent")
        child = os.fork()
        if not child:
            try:
                client.append("jobs", "child")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        client.append("jobs", "parent again")
        assert server.connections == 2
        assert [json.loads(asked.body)["records"][0]["data"] for asked in server.asked] == [
            "parent", "child", "parent again",
        ]  # fmt: skip
        assert len({json.loads(asked.body)["idempotency_key"] for asked in server.asked}) == 3


def test_a_cancelled_call_takes_its_connection_along() -> None:
    async def scene(url: str) -> None:
        async with AsyncClient(url, options=ONCE) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.append("jobs", 1)
            # The answer to that may still come; it must not be taken for this one's.
            assert (await client.append("jobs", 2)).last_seq == 1

    with running([hangs, answers(OK)]) as server:
        asyncio.run(scene(server.url))
        assert server.connections == 2


def test_a_client_may_be_used_by_one_loop_after_the_other() -> None:
    with warnings.catch_warnings(), running([then(answers(OK), stays), answers(OK)]) as server:
        # A connection whose loop has ended cannot be closed any more, and Python warns about it.
        warnings.simplefilter("ignore", ResourceWarning)
        client = AsyncClient(server.url, options=ONCE)
        for _ in range(2):
            assert asyncio.run(client.append("jobs", 1)).last_seq == 1
        asyncio.run(client.aclose())
        del client
        gc.collect()


# Following, and how it ends


def page(*seqs: int, caught_up: bool = False) -> bytes:
    records = [{"$seq": seq, "$ts": 1, "data": seq} for seq in seqs]
    return http(
        {
            "topic": "jobs", "records": records, "next_from_seq": seqs[-1], "head_seq": 9, "earliest_seq": 1,
            "caught_up": caught_up, "lag": 0,
        }
    )  # fmt: skip


def follow(kind: str, url: str, name: str, *args: Any, **kwargs: Any) -> list[Any]:
    if kind == "sync":
        with Client(url, options=RETRYING) as client:
            return list(getattr(client, name)(*args, **kwargs))

    async def scene() -> list[Any]:
        async with AsyncClient(url, options=RETRYING) as client:
            return [item async for item in getattr(client, name)(*args, **kwargs)]

    return run(kind, asyncio.wait_for(scene(), PATIENCE_S))


@both
def test_a_follower_goes_on_where_it_was(kind: str) -> None:
    cut = page(3, 4)[:-5]
    with running([answers(page(1, 2), cut), resets, answers(page(3, 4)), answers(page(5, caught_up=True))]) as server:
        items = follow(kind, server.url, "follow", "jobs", wait_ms=0)
        assert [item.seq for item in items if isinstance(item, Record)] == [1, 2, 3, 4, 5]
        assert [json.loads(asked.body)["from_seq"] for asked in server.asked] == [0, 2, 2, 2, 4]


def session() -> bytes:
    topics = {"a": {"from_seq": 0, "head_seq": 9, "earliest_seq": 1, "epoch": 7}}
    return http({"wid": "w", "stream_url": "/v0/watch/w", "session_ttl_ms": 1, "topics": topics})


def event(name: str, id: str, **data: Any) -> bytes:
    return f"id: {id}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode()


def record(seq: int) -> bytes:
    return event("record", f"x{seq}", topic="a", records=[{"$seq": seq, "$ts": 1, "data": seq}], to_seq=seq)


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@both
def test_a_watcher_goes_on_behind_the_last_whole_event(kind: str) -> None:
    gone = event("topic-deleted", "x9", topic="a", head_seq=3, reason="deleted")

    def resumed(end: bytes) -> Act:
        """Yields the event after the last one that arrived, and then breaks, or ends."""

        def act(peer: Peer) -> None:
            asked = peer.ask()
            assert asked is not None
            last = int(asked.headers["last-event-id"].removeprefix("x"))
            peer.sock.sendall(CHUNKED + chunk(record(last + 1)))
            peer.sock.sendall(end)

        return act

    acts = [
        # Cut in the middle of an event, then reset, then a lie about a chunk, which may come together with an event.
        answers(session(), STREAM + record(1) + record(2)[:-1], each=5),
        resets,
        resumed(b"zz\r\n"),
        resumed(chunk(record(5)[:-3])),
        resumed(chunk(gone)),
    ]
    with running(acts) as server:
        items = follow(kind, server.url, "watch", "a")
        seqs = [item.record.seq for item in items[:-1]]
        assert seqs in ([1, 2, 3, 4], [1, 2, 3])
        assert [asked.headers.get("last-event-id") for asked in server.asked[1:4]] == [None, "x1", "x1"]


@both
@pytest.mark.parametrize("what", [("watch", "a"), ("work", "jobs", "w")], ids=lambda what: what[0])
def test_closing_a_loop_ends_its_waiting_calls(kind: str, what: tuple[str, ...]) -> None:
    head = [session(), STREAM] if what[0] == "watch" else [STREAM]
    with running([then(answers(*head), stays)]) as server:
        _ends_when(kind, server.url, what, lambda: len(server.asked) == len(head), "loop")


@both
def test_closing_the_client_ends_its_waiting_calls(kind: str) -> None:
    with running([hangs]) as server:
        _ends_when(kind, server.url, ("follow", "jobs"), lambda: len(server.asked) == 1, "client")


def _ends_when(kind: str, url: str, what: tuple[str, ...], reached: Callable[[], bool], closed: str) -> None:
    """A loop in one thread or task, which another closes."""
    if kind == "sync":
        client = Client(url, options=RETRYING)
        loop = getattr(client, what[0])(*what[1:])
        reader = threading.Thread(target=lambda: list(loop))
        reader.start()
        until(reached)
        (loop if closed == "loop" else client).close()
        reader.join(PATIENCE_S)
        assert not reader.is_alive()
        client.close()
        return

    async def scene() -> None:
        async with AsyncClient(url, options=RETRYING) as client:
            loop = getattr(client, what[0])(*what[1:])

            async def collect() -> list[Any]:
                return [item async for item in loop]

            reader = asyncio.create_task(collect())
            await asyncio.to_thread(until, reached)
            await (loop if closed == "loop" else client).aclose()
            assert await asyncio.wait_for(reader, PATIENCE_S) == []

    run(kind, scene())


@both
def test_a_socket_that_is_closed_while_it_connects_stays_closed(kind: str) -> None:
    go = threading.Event()

    def act(peer: Peer) -> None:
        asked = peer.ask()
        assert asked is not None and go.wait(PATIENCE_S)
        key = asked.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        head = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        peer.sock.sendall(f"{head}sec-websocket-accept: {accept}\r\n\r\n".encode())
        # Until the other end leaves: a closed client keeps no connection.
        while peer.sock.recv(65536):
            pass
        left.set()

    left = threading.Event()
    with running([act]) as server:
        if kind == "sync":
            errors: list[BaseException] = []
            with Client(server.url, options=RETRYING) as client:
                socket = client.ws()

                def publish() -> None:
                    try:
                        socket.publish("jobs", 1)
                    except ConnectionFailed as error:
                        errors.append(error)

                publishing = threading.Thread(target=publish, daemon=True)
                publishing.start()
                until(lambda: bool(server.asked))
                socket.close()
                go.set()
                publishing.join(PATIENCE_S / 2)
                assert [str(error) for error in errors] == ["the socket was closed"]
                assert left.wait(PATIENCE_S)
            return

        async def scene() -> None:
            async with AsyncClient(server.url, options=RETRYING) as client:
                socket = client.ws()
                publishing = asyncio.create_task(socket.publish("jobs", 1))
                await asyncio.to_thread(until, lambda: bool(server.asked))
                await socket.aclose()
                go.set()
                with pytest.raises(ConnectionFailed, match="the socket was closed"):
                    await asyncio.wait_for(publishing, PATIENCE_S / 2)
                assert await asyncio.to_thread(left.wait, PATIENCE_S)

        run(kind, scene())


# Proxies and TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture(scope="module")
def certified(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.certificate("127.0.0.1", "topics.test"))
    return context


def trusting(file: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(file))


@both
def test_unknown_certificate_is_refused_by_the_client(
    kind: str, authority: Authority, certified: ssl.SSLContext
) -> None:
    trust = ClientOptions(retry=RetryPolicy(deadline_s=0), ssl_context=trusting(authority.file))
    with running([answers(OK, OK), answers(OK)], certified) as server:
        assert use(kind, server.url, trust, APPEND, APPEND).last_seq == 1
        assert server.connections == 1
        with pytest.raises(ConnectionFailed, match="certificate") as caught:
            use(kind, server.url, ONCE, APPEND)
        assert not caught.value.maybe_done
        assert len(server.asked) == 2


@both
def test_http_goes_through_the_proxy_of_the_environment(kind: str) -> None:
    with running([answers(OK, OK)]) as proxy:
        env = {"HTTP_PROXY": f"http://me:p%40ss@127.0.0.1:{proxy.port}"}
        use(kind, "http://topics.test:4000/base", ONCE, APPEND, APPEND, env=env)
        first = proxy.asked[0]
        assert first.first == "POST http://topics.test:4000/base/v0/topics/jobs HTTP/1.1"
        assert first.headers["host"] == "topics.test:4000"
        assert first.headers["proxy-authorization"] == "Basic bWU6cEBzcw=="


def tunnel(target_port: int, said: list[str]) -> Act:
    """A proxy that lets one connection through."""

    def act(peer: Peer) -> None:
        import socket

        asked = peer.ask()
        assert asked is not None
        said.append(asked.first)
        peer.sock.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with socket.create_connection(("127.0.0.1", target_port)) as onward:

            def pump(source: socket.socket, sink: socket.socket) -> None:
                try:
                    while data := source.recv(65536):
                        sink.sendall(data)
                    sink.shutdown(socket.SHUT_WR)
                except OSError:
                    pass

            back = threading.Thread(target=pump, args=(onward, peer.sock), daemon=True)
            back.start()
            pump(peer.sock, onward)
            back.join(PATIENCE_S)

    return act


@both
def test_https_goes_through_a_tunnel_that_the_proxy_cannot_look_into(
    kind: str, authority: Authority, certified: ssl.SSLContext
) -> None:
    said: list[str] = []
    with running([answers(OK, OK)], certified) as server, running([tunnel(server.port, said)]) as proxy:
        options = ClientOptions(
            retry=RetryPolicy(deadline_s=0), ssl_context=trusting(authority.file), proxy=f"127.0.0.1:{proxy.port}"
        )
        assert use(kind, "https://topics.test", options, APPEND, APPEND).last_seq == 1
        assert said == ["CONNECT topics.test:443 HTTP/1.1"]
        assert "authorization" not in proxy.asked[0].headers
        assert server.asked[0].first == "POST /v0/topics/jobs HTTP/1.1"


@both
def test_a_proxy_that_refuses_is_named(kind: str) -> None:
    with running([answers(http(status="407 Proxy Authentication Required"))]) as proxy:
        options = ClientOptions(retry=RetryPolicy(deadline_s=0), proxy=f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(ConnectionFailed, match="proxy refused: 407") as caught:
            use(kind, "https://topics.test", options, APPEND)
        assert not caught.value.maybe_done


@both
def test_a_redirect_is_not_followed(kind: str) -> None:
    """The key would go along."""
    with (
        running([answers(http(status="302 Found", location="http://127.0.0.1:9/"))]) as server,
        pytest.raises(Exception) as caught,
    ):
        use(kind, server.url, ONCE, APPEND)
    assert "302" in str(caught.value)


@both
def test_a_refused_stream_is_read_to_its_end(kind: str) -> None:
    refused = http(
        {"error": {"code": "topic_not_found", "message": "no", "detail": {"topic": "a"}}}, status="404 Not Found"
    )
    with running([answers(refused, each=9)]) as server, pytest.raises(TopicNotFound):
        follow(kind, server.url, "work", "jobs", "w")
