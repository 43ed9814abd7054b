"""Watchers and sockets of both clients against a real server, also while it is killed, stopped and started again."""

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.live import LiveServer
from topics_client import (
    AsyncClient,
    CaughtUp,
    Client,
    ClientOptions,
    ConnectionFailed,
    Forbidden,
    GapError,
    InvalidRequest,
    Record,
    RetryPolicy,
    Throttled,
    TopicGap,
    TopicGone,
    TopicNotFound,
    TopicRecord,
    Unauthorized,
)

PATIENT = ClientOptions(retry=RetryPolicy(deadline_s=60, backoff_max_s=0.1))
IMPATIENT = ClientOptions(retry=RetryPolicy(deadline_s=0))
FSYNC = {"durability": "fsync"}
both = pytest.mark.parametrize("kind", ["sync", "async"])
# Only to fail instead of hanging.
_PATIENCE_S = 60.0


class Live:
    """A watcher or a socket of either client, driven the same way."""

    def __init__(self, kind: str, url: str, name: str, *args: Any, api_key: str | None = None,
                 options: ClientOptions = PATIENT, **kwargs: Any) -> None:  # fmt: skip
        self._loop = asyncio.new_event_loop() if kind == "async" else None
        self._client: Any = (AsyncClient if kind == "async" else Client)(url, api_key=api_key, options=options)
        self._open: Any = getattr(self._client, name)(*args, **kwargs)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._wait(getattr(self._open, name)(*args, **kwargs))

    @property
    def cursors(self) -> dict[str, int]:
        found: dict[str, int] = self._open.cursors
        return found

    def next(self) -> Any:
        """The next item."""
        if self._loop is None:
            return next(self._open)
        return self._wait(asyncio.wait_for(anext(self._open), _PATIENCE_S))

    def items(self, count: int) -> list[Any]:
        return [self.next() for _ in range(count)]

    def until(self, done: Callable[[Any], bool]) -> list[Any]:
        found = [self.next()]
        while not done(found[-1]):
            found.append(self.next())
        return found

    def rest(self) -> list[Any]:
        """Everything until it ends."""
        if self._loop is None:
            return list(self._open)

        async def collect() -> list[Any]:
            return [item async for item in self._open]

        found: list[Any] = self._wait(collect())
        return found

    def result(self, future: Any) -> Any:
        return future.result(_PATIENCE_S) if self._loop is None else self._wait(asyncio.wait_for(future, _PATIENCE_S))

    def _wait(self, outcome: Any) -> Any:
        if self._loop is None or not asyncio.iscoroutine(outcome):
            return outcome
        return self._loop.run_until_complete(outcome)

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._open.close() if self._loop is None else self._open.aclose())
        self._wait(self._client.close() if self._loop is None else self._client.aclose())
        if self._loop is not None:
            self._loop.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("server"), test_min_heartbeat_ms="50") as running:
        yield running


@pytest.fixture
def client(server: LiveServer) -> Iterator[Client]:
    with Client(server.url, options=PATIENT) as opened:
        yield opened


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "t-" + "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]


def seqs(items: list[Any]) -> list[int]:
    return [item.record.seq for item in items if isinstance(item, TopicRecord)]


def is_caught_up(item: Any) -> bool:
    return isinstance(item, CaughtUp)


@contextlib.contextmanager
def later(seconds: float, do: Callable[[], object]) -> Iterator[None]:
    """Does something beside the block, which ends when that is done."""
    timer = threading.Timer(seconds, do)
    timer.start()
    try:
        yield
    finally:
        timer.join()


# Watching


@both
def test_a_watcher_gives_the_past_then_the_present(server: LiveServer, client: Client, topic: str, kind: str) -> None:
    client.append_many(topic, ["a", "b"])
    with Live(kind, server.url, "watch", topic) as watcher:
        first, second, caught_up = watcher.items(3)
        assert [first.record.data, second.record.data, caught_up] == ["a", "b", CaughtUp(topic, 2)]
        client.append(topic, "c", tag="x", meta={"m": "1"}, node="n")
        third = watcher.next()
        assert (third.topic, third.record.data, third.record.meta, third.record.node) == (topic, "c", {"m": "1"}, "n")
        assert watcher.cursors == {topic: 3}
        client.delete_topic(topic)
        assert [type(item) for item in watcher.rest()] == [TopicGone]


@both
def test_a_watcher_of_several_topics(server: LiveServer, client: Client, topic: str, kind: str) -> None:
    names = [f"{topic}-{number}" for number in range(80)]
    for name in names:
        client.append(name, name)
    with Live(kind, server.url, "watch", dict.fromkeys(names, None), include_data=False, heartbeat_ms=100) as watcher:
        assert {item.topic for item in watcher.items(80)} == set(names)
        for name in names:
            client.append(name, "new")
        items = watcher.items(80)
        assert {item.topic for item in items} == set(names)
        assert all(item.record.data is None and item.record.seq == 2 for item in items)
        assert set(watcher.cursors.values()) == {2}


@both
def test_a_watcher_reports_losses(server: LiveServer, client: Client, topic: str, kind: str) -> None:
    client.put_topic(topic, {"cap_records": 2})
    client.append_many(topic, range(5))
    with Live(kind, server.url, "watch", topic) as watcher:
        gap = watcher.next()
        assert isinstance(gap, TopicGap)
        assert (gap.gap.gap_from, gap.gap.gap_to, gap.gap.reason) == (1, 3, "from_seq_too_old")
    with Live(kind, server.url, "watch", topic, raise_on_gap=True) as watcher:
        with pytest.raises(GapError):
            watcher.next()
        assert seqs(watcher.items(2)) == [4, 5]


@both
def test_forbidden_watch_raises(server: LiveServer, topic: str, kind: str) -> None:
    with Live(kind, server.url, "watch", topic) as watcher, pytest.raises(TopicNotFound):
        watcher.next()
    with Live(kind, server.url, "watch", topic, lenient=True) as watcher:
        assert watcher.rest() == []
    with Live(kind, server.url, "watch", []) as watcher, pytest.raises(InvalidRequest):
        watcher.next()
    with Live(kind, "http://127.0.0.1:9", "watch", topic, deadline_s=0) as watcher, pytest.raises(ConnectionFailed):
        watcher.next()


@both
def test_a_quiet_line_is_no_dead_line(server: LiveServer, client: Client, topic: str, kind: str) -> None:
    client.append(topic, 1)
    with Live(kind, server.url, "watch", topic, heartbeat_ms=50) as watcher:
        watcher.items(2)
        with later(0.5, lambda: client.append(topic, 2)):
            assert seqs([watcher.next()]) == [2]


def test_closing_an_async_watcher_ends_its_waiting_calls(server: LiveServer, client: Client, topic: str) -> None:
    client.put_topic(topic)

    async def scene() -> list[Any]:
        async with AsyncClient(server.url, options=PATIENT) as other:
            watcher = other.watch(topic)
            assert isinstance(await anext(watcher), CaughtUp)
            reading = asyncio.create_task(_collect(watcher))
            await asyncio.sleep(0.05)
            await watcher.aclose()
            return await asyncio.wait_for(reading, _PATIENCE_S)

    assert asyncio.run(scene()) == []


async def _collect(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


# Sockets


@both
def test_a_socket_publishes_and_follows(server: LiveServer, topic: str, kind: str) -> None:
    with Live(kind, server.url, "ws") as socket:
        appended = socket.publish(topic, {"a": 1}, tag="x", config=FSYNC)
        assert (appended.topic, appended.seqs, appended.created) == (topic, [1], True)
        assert socket.publish_many(topic, [1, 2], idempotency_key="k", return_seqs=False).seqs is None
        assert socket.publish_many(topic, [1, 2], idempotency_key="k").deduped
        socket.subscribe(topic, include_tags=True)
        items = socket.until(is_caught_up)
        assert [(item.record.seq, item.record.tag) for item in items[:-1]] == [(1, "x"), (2, None), (3, None)]
        futures = [socket.publish_soon(topic, [number]) for number in range(200)]
        assert [socket.result(future).last_seq for future in futures] == list(range(4, 204))
        assert seqs(socket.items(200)) == list(range(4, 204))
        assert socket.cursors == {topic: 203}
        socket.ping()
        socket.unsubscribe(topic)
        assert socket.cursors == {}
        socket.subscribe({topic: 200})
        assert seqs(socket.items(3)) == [201, 202, 203]


@both
def test_a_socket_reports_losses_and_ends_of_topics(server: LiveServer, client: Client, topic: str, kind: str) -> None:
    client.put_topic(topic, {"cap_records": 1})
    client.append_many(topic, range(3))
    with Live(kind, server.url, "ws") as socket:
        socket.subscribe(topic)
        gap, record, _ = socket.items(3)
        assert isinstance(gap, TopicGap) and seqs([record]) == [3]
        client.delete_topic(topic)
        assert isinstance(socket.next(), TopicGone)


@both
def test_refusals_are_raised_by_the_calls_they_belong_to(server: LiveServer, topic: str, kind: str) -> None:
    with Live(kind, server.url, "ws") as socket:
        with pytest.raises(TopicNotFound):
            socket.subscribe(topic)
        with pytest.raises(TopicNotFound):
            socket.publish(topic, 1, create=False)
        with pytest.raises(InvalidRequest):
            socket.publish("not a name", 1)
        assert socket.publish(topic, 1).last_seq == 1


@both
def test_keys_and_limits_of_a_socket(tmp_path: Path, kind: str) -> None:
    with LiveServer(tmp_path, api_keys="full,reader:read", max_sse_connections_per_key="1") as live:
        with Client(live.url, api_key="full", options=PATIENT) as client:
            client.append("t", 1)
        with Live(kind, live.url, "ws", api_key="wrong") as socket, pytest.raises(Unauthorized):
            socket.ping()
        with Live(kind, live.url, "ws", api_key="reader") as socket:
            socket.subscribe("t")
            with pytest.raises(Forbidden):
                socket.publish("t", 1)
            with Live(kind, live.url, "ws", api_key="reader", options=IMPATIENT) as other, pytest.raises(Throttled):
                other.ping()


@both
def test_a_throttled_publish_is_tried_again(tmp_path: Path, kind: str) -> None:
    with LiveServer(tmp_path, max_topics="1") as live, Client(live.url, options=PATIENT) as client:
        client.put_topic("taken")
        with Live(kind, live.url, "ws", options=IMPATIENT) as socket, pytest.raises(Throttled) as caught:
            socket.publish("t", 1)
        assert caught.value.detail == {"limit": "max_topics", "max": 1}
        with Live(kind, live.url, "ws") as socket:
            socket.ping()
            with later(0.2, lambda: client.delete_topic("taken")):
                assert socket.publish("t", 1).created


@both
def test_a_socket_that_cannot_connect_reports_it(kind: str) -> None:
    with Live(kind, "http://127.0.0.1:9", "ws", options=IMPATIENT) as socket, pytest.raises(ConnectionFailed) as caught:
        socket.publish("t", 1)
    assert not caught.value.maybe_done


def test_threads_share_a_socket(server: LiveServer, client: Client, topic: str) -> None:
    client.put_topic(topic)
    with client.ws() as socket:
        socket.subscribe(topic)

        def write(worker: int) -> None:
            for number in range(50):
                socket.publish(topic, [worker, number])

        writers = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
        for writer in writers:
            writer.start()
        found: list[Record] = []
        while len(found) < 200:
            item = next(socket)
            if isinstance(item, TopicRecord):
                found.append(item.record)
        for writer in writers:
            writer.join()
    assert [record.seq for record in found] == list(range(1, 201))
    for worker in range(4):
        assert [record.data[1] for record in found if record.data[0] == worker] == list(range(50))


def test_closing_a_socket_ends_its_waiting_calls(server: LiveServer, client: Client, topic: str) -> None:
    client.put_topic(topic)
    socket = client.ws()
    socket.subscribe(topic)
    items: list[Any] = []
    reader = threading.Thread(target=lambda: items.extend(socket))
    reader.start()
    socket.close()
    reader.join(_PATIENCE_S)
    assert not reader.is_alive()
    with pytest.raises(ConnectionFailed, match="closed"):
        socket.publish(topic, 1)


# Breaks


@both
@pytest.mark.parametrize("name", ["watch", "ws"])
def test_a_topic_made_again_behind_a_break_is_reported(tmp_path: Path, kind: str, name: str) -> None:
    with LiveServer(tmp_path, drain_ms="500") as live, Client(live.url, options=PATIENT) as client:
        client.put_topic("t", FSYNC)
        client.append_many("t", ["old"] * 3)
        with Live(kind, live.url, name, *(["t"] if name == "watch" else [])) as following:
            if name == "ws":
                following.subscribe("t")
            assert seqs(following.until(is_caught_up)) == [1, 2, 3]
            live.stop()
            live.start()
            client.delete_topic("t")
            client.put_topic("t", FSYNC)
            client.append_many("t", ["new"] * 5)
            items = following.until(lambda item: isinstance(item, TopicGone) or 5 in seqs([item]))
            if name == "ws" and isinstance(items[-1], TopicGone):
                # A socket reads by itself, and was back in time to see the deletion.
                return
            losses = [item.gap.reason for item in items if isinstance(item, TopicGap)]
            records = [item.record.data for item in items if isinstance(item, TopicRecord)]
            assert (losses, records) == (["recreated"], ["new"] * 5)


@contextlib.contextmanager
def disturbed(live: LiveServer, endings: list[str]) -> Iterator[threading.Event]:
    """Ends the server and starts it again, over and over, beside the block; the event is set when that is over."""
    over = threading.Event()

    def disturb() -> None:
        for ending in endings:
            over.wait(0.3)
            getattr(live, ending)()
            live.start()
        over.set()

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        yield over
    finally:
        thread.join()


@both
def test_a_watcher_survives_restarts_without_loss_or_repetition(tmp_path: Path, kind: str, seed: int) -> None:
    endings = random.Random(seed).choices(["kill", "stop"], k=3)
    with LiveServer(tmp_path, drain_ms="500") as live, Client(live.url, options=PATIENT) as client:
        for name in ("a", "b"):
            client.put_topic(name, FSYNC)
        written: dict[str, list[object]] = {"a": [], "b": []}
        with disturbed(live, endings) as over, Live(kind, live.url, "watch", ["a", "b"]) as watcher:
            writing = threading.Thread(target=_write_until, args=(live.url, over, written))
            writing.start()
            seen: dict[str, list[tuple[int, object]]] = {"a": [], "b": []}
            while not all(found and found[-1][1] == "end" for found in seen.values()):
                item = watcher.next()
                if isinstance(item, TopicRecord):
                    seen[item.topic].append((item.record.seq, item.record.data))
            writing.join()
        for name, values in written.items():
            assert seen[name] == list(enumerate(values, 1)), name


def _write_until(url: str, over: threading.Event, written: dict[str, list[object]]) -> None:
    with Client(url, options=PATIENT) as client:
        while not over.is_set():
            for name, values in written.items():
                values.append(len(values))
                client.append(name, values[-1])
        for name, values in written.items():
            values.append("end")
            client.append(name, "end")


@both
def test_a_socket_survives_restarts_without_loss_or_repetition(tmp_path: Path, kind: str, seed: int) -> None:
    endings = random.Random(seed).choices(["kill", "stop"], k=3)
    with LiveServer(tmp_path, drain_ms="500") as live, Client(live.url, options=PATIENT) as client:
        client.put_topic("t", FSYNC)
        with disturbed(live, endings) as over, Live(kind, live.url, "ws", options=PATIENT) as socket:
            socket.subscribe("t")
            published = 0
            found: list[tuple[int, object]] = []
            while not over.is_set():
                futures = []
                for _ in range(10):
                    futures.append(socket.publish_soon("t", [published]))
                    published += 1
                for future in futures:
                    socket.result(future)
            while len(found) < published:
                item = socket.next()
                if isinstance(item, TopicRecord):
                    found.append((item.record.seq, item.record.data))
        assert found == [(number + 1, number) for number in range(published)]
        assert client.get_topic("t").head_seq == published
