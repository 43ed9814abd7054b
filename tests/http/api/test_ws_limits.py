"""The WebSocket's keys, limits, slow clients, and the end of the server."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.http.api.conftest import refused
from tests.http.api.events import EventStream, watch
from tests.http.api.sockets import Socket, open_socket
from tests.http.live import LiveServer, wait_until_ready

KEYS = "full,reader:read,writer:w,admin:a,maker:w+a,tenant:rw:acme:"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("guarded"), api_keys=KEYS, max_inflight_per_key="2") as live:
        with httpx.Client(base_url=live.url, headers={"authorization": "Bearer full"}) as client:
            for topic in ("t", "acme:t"):
                client.post(f"/v0/topics/{topic}", json={"records": [{"data": 1}]})
        yield live


def publish(topic: str, **fields: object) -> dict[str, Any]:
    return {"op": "publish", "topic": topic, "records": [{"data": 1}], **fields}


def subscribe(topic: str) -> dict[str, Any]:
    return {"op": "subscribe", "topic": topic, "tail": True}


def status(url: str, key: str | None = None, **options: Any) -> tuple[int, dict[str, Any]]:
    """How a handshake is refused: the status, and the error."""
    with pytest.raises(InvalidStatus) as refusal, open_socket(url, key, **options):
        pass
    response = refusal.value.response
    error: dict[str, Any] = httpx.Response(response.status_code, content=bytes(response.body or b"")).json()["error"]
    return response.status_code, {**error, "retry-after": response.headers.get("retry-after")}


def until(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never came to pass")


# Keys


def test_a_socket_needs_a_key_and_no_scope(guarded: LiveServer) -> None:
    assert status(guarded.url)[0] == 401
    assert status(guarded.url, "wrong")[0] == 401
    # A query is for event streams only: it would stand in logs and histories.
    assert status(guarded.url, query="?token=full")[0] == 401
    for key in ("reader", "writer", "admin"):
        with open_socket(guarded.url, key) as socket:
            socket.quiet()
    # Nothing gives a page a key that it does not have: with keys every origin may try.
    with open_socket(guarded.url, "full", headers={"origin": "https://elsewhere.example"}) as socket:
        socket.quiet()


@pytest.mark.parametrize(
    ("key", "command", "allowed"),
    [
        ("reader", subscribe("t"), True),
        ("reader", publish("t"), False),
        ("writer", publish("t"), True),
        ("writer", subscribe("t"), False),
        ("writer", publish("t", config={}), False),
        ("writer", publish("new-one", config={"durability": "fsync"}), False),
        ("maker", publish("t", config={}), True),
        ("admin", publish("t"), False),
        ("tenant", subscribe("acme:t"), True),
        ("tenant", subscribe("t"), False),
        ("tenant", publish("acme:new"), True),
        ("tenant", publish("new"), False),
        ("tenant", {"op": "subscribe", "topics": {"acme:t": {}, "t": {}}}, False),
    ],
)
def test_every_command_is_checked_by_itself(guarded: LiveServer, key: str, command: Any, allowed: bool) -> None:
    with open_socket(guarded.url, key) as socket:
        if allowed:
            assert socket.ask(command)["op"] in ("ack", "subscribed")
        else:
            assert set(socket.refused(command, "forbidden")) <= {"scope", "name"}
            # Also not a part of it.
            socket.quiet()


def test_open_sockets_are_no_requests_under_way(guarded: LiveServer) -> None:
    reader = "reader"
    with open_socket(guarded.url, reader), open_socket(guarded.url, reader), open_socket(guarded.url, reader):
        answer = httpx.get(f"{guarded.url}/v0/topics/t", headers={"authorization": f"Bearer {reader}"})
        assert answer.status_code == 200


# Limits


def test_connections_are_counted_in_all_and_by_key(tmp_path: Path) -> None:
    with LiveServer(tmp_path, api_keys="a,b", max_sse_connections="3", max_sse_connections_per_key="2") as live:

        def gauge(name: str) -> float:
            headers = {"authorization": "Bearer a", "accept": "application/json"}
            return float(httpx.get(f"{live.url}/v0/metrics", headers=headers).json()[name])

        with open_socket(live.url, "a"), open_socket(live.url, "a"):
            code, error = status(live.url, "a")
            assert (code, error["code"], error["retry-after"]) == (429, "throttled", "1")
            assert error["detail"] == {"limit": "max_sse_connections_per_key", "max": 2}
            with open_socket(live.url, "b"):
                assert status(live.url, "b")[1]["detail"] == {"limit": "max_sse_connections", "max": 3}
                assert gauge("topics_sse_connections") == 3
        until(lambda: gauge("topics_sse_connections") == 0)
        with open_socket(live.url, "a") as socket:
            socket.connection.socket.close()
        until(lambda: gauge("topics_sse_connections") == 0)


def test_sockets_watches_and_work_streams_share_one_limit(tmp_path: Path) -> None:
    with LiveServer(tmp_path, max_sse_connections="3") as live:
        httpx.put(f"{live.url}/v0/topics/jobs", json={"type": "queue"})
        work = "/v0/topics/jobs/work?node=w"
        session = watch(live.url, "jobs")
        with open_socket(live.url), session.open(), EventStream(live.url, work):
            full = {"limit": "max_sse_connections", "max": 3}
            assert status(live.url, None)[1]["detail"] == full
            for path in (watch(live.url, "jobs").made["stream_url"], work):
                with EventStream(live.url, path) as stream:
                    assert refused(stream.refusal, 429, "throttled") == full


def test_a_socket_follows_only_so_many_topics(tmp_path: Path) -> None:
    with LiveServer(tmp_path, max_watch_topics="2") as live, open_socket(live.url) as socket:
        for name in "abc":
            socket.ask(publish(name))
        socket.ask({"op": "subscribe", "topics": {"a": {"tail": True}, "b": {"tail": True}}})
        socket.frames(2)
        assert socket.refused(subscribe("c"), "invalid_request")["max"] == 2
        socket.ask({"op": "unsubscribe", "topic": "a"})
        assert socket.ask(subscribe("c"))["op"] == "subscribed"


def test_a_message_over_the_limit_is_refused_and_subscriptions_live(tmp_path: Path) -> None:
    with LiveServer(tmp_path, max_body_bytes="10000") as live, open_socket(live.url) as socket:
        assert socket.ask(publish("t", request_id="x" * 200))["op"] == "ack"
        assert socket.ask(subscribe("t"))["op"] == "subscribed"
        assert socket.frame()["op"] == "caught_up"
        command = {"op": "publish", "request_id": "long", "topic": "t", "records": [{"data": "x" * 10_000}]}
        error = socket.ask(command)
        assert (error["op"], error["code"], error["request_id"]) == ("error", "payload_too_large", "long")
        socket.connection.send("x" * 1000 for _ in range(100))
        assert socket.frame()["code"] == "payload_too_large"
        socket.send(publish("t"))
        assert {socket.frame()["op"] for _ in range(2)} == {"ack", "record"}


# Slow clients


def follow_without_reading(socket: Socket, client: httpx.Client, batches: int) -> None:
    """Subscribes and then leaves megabytes unread."""
    socket.send(subscribe("t"))
    for _ in range(batches):
        body = {"records": [{"data": "x" * 100_000}] * 5}
        assert client.post("/v0/topics/t", json=body).is_success


def test_a_slow_client_costs_no_memory_and_loses_nothing(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, httpx.Client(base_url=live.url, timeout=30.0) as client:
        client.put("/v0/topics/t", json={})
        # The end of the slow one is not waited for: its client does not read while it has unread frames.
        with open_socket(live.url, max_queue=1, close_timeout=0.1) as slow, open_socket(live.url) as quick:
            quick.ask(subscribe("t"))
            received: list[int] = []
            reader = threading.Thread(target=lambda: received.extend(r["$seq"] for r in quick.records(200)))
            reader.start()
            follow_without_reading(slow, client, 40)
            reader.join(60.0)
            # The slow connection delays no other, and has everything when it reads on.
            assert received == list(range(1, 201))
            assert slow.frame()["op"] == "subscribed"
            assert [record["$seq"] for record in slow.records(200)] == received


def test_a_client_that_never_reads_is_notified_and_closed(tmp_path: Path) -> None:
    with (
        LiveServer(tmp_path, slow_consumer_timeout_ms="300", buffer_grace_ms="100") as live,
        httpx.Client(base_url=live.url, timeout=30.0) as client,
        open_socket(live.url, max_queue=1) as slow,
    ):
        client.put("/v0/topics/t", json={})
        follow_without_reading(slow, client, 40)
        headers = {"accept": "application/json"}
        until(lambda: client.get("/v0/metrics", headers=headers).json()["topics_sse_connections"] == 0)
        # The end is behind megabytes, so it may have been cut off before it was sent.
        assert slow.closed() in (1013, 1006)


# The end


def test_a_stopping_server_reports_it_and_answers_what_it_took(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live:
        with httpx.Client(base_url=live.url) as client, open_socket(live.url) as socket:
            client.put("/v0/topics/t", json={"durability": "fsync"})
            socket.ask(subscribe("t"))
            socket.frame()
            stopping = threading.Thread(target=live.stop)
            sent = 0
            stopping.start()
            frames: list[dict[str, Any]] = []
            while not frames or frames[-1]["op"] != "error":
                # The end may come while this client still sends; earlier frames can still be read.
                with contextlib.suppress(ConnectionClosed):
                    socket.send(publish("t", request_id=sent))
                sent += 1
                frames.append(socket.frame())
            assert frames[-1]["code"] == "shutting_down"
            assert socket.closed() == 1001
            stopping.join()
        live.start()
        wait_until_ready(live.url)
        acked = [frame for frame in frames if frame["op"] == "ack"]
        assert httpx.get(f"{live.url}/v0/topics/t").json()["head_seq"] >= len(acked)


def test_a_killed_server_is_noticed(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, open_socket(live.url) as socket:
        socket.quiet()
        live.kill()
        assert socket.closed() == 1006
