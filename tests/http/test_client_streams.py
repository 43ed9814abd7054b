"""The streams of both clients against a real server: create, append, read, tail, produce, fork, close, list, delete."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.http.live import LiveServer
from tests.http.scripted import Act, answers, http, resets, running
from tests.http.test_client import PATIENT, Caller
from topics_client import (
    AsyncClient,
    AsyncProducer,
    Client,
    ClientError,
    ClientOptions,
    OffsetGone,
    Producer,
    ProducerFenced,
    ProducerGap,
    ProducerMark,
    RetryPolicy,
    SequenceConflict,
    StreamClosed,
    StreamConflict,
    StreamGone,
    StreamPage,
    TopicNotFound,
)

both = pytest.mark.parametrize("kind", ["sync", "async"])
# Only to fail instead of hanging.
PATIENCE_S = 60.0
START = "-1"
REFUSED = http({"error": {"code": "topic_not_found", "message": "no"}}, status="404 Not Found")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(params=["sync", "async"])
def caller(request: pytest.FixtureRequest, server: LiveServer) -> Caller:
    return Caller(request.param, server.url)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, of the kind that only streams may have."""
    return f"a/ü {request.node.name}"


def test_a_stream_from_its_creation_to_its_end(caller: Caller, name: str) -> None:
    made = caller.put_stream(name, [1, [2]], ttl_s=3600)
    assert (made.created, made.content_type, made.closed) == (True, "application/json", False)
    assert not caller.put_stream(name, ttl_s=3600).created
    with pytest.raises(StreamConflict):
        caller.put_stream(name, b"x")
    appended = caller.append_stream(name, [{"a": None}], key="kü", seq="5")
    assert (appended.closed, appended.deduped) == (False, False)
    with pytest.raises(SequenceConflict):
        caller.append_stream(name, [1], seq="4")
    page = caller.read_stream(name)
    assert (page.values, page.next_offset, page.up_to_date) == ([1, [2], {"a": None}], appended.next_offset, True)
    assert caller.read_stream(name, made.next_offset).decode(list[dict[str, None]]) == [{"a": None}]
    assert caller.read_stream(name, key="kü").values == [{"a": None}]
    assert caller.read_stream(name, "now").values == []
    state = caller.get_stream(name)
    assert (state.next_offset, state.closed, state.created) == (appended.next_offset, False, False)

    assert caller.close_stream(name).closed
    assert caller.close_stream(name).closed
    with pytest.raises(StreamClosed):
        caller.append_stream(name, [1])
    assert caller.read_stream(name, appended.next_offset).closed
    caller.delete_stream(name)
    with pytest.raises(TopicNotFound):
        caller.get_stream(name)
    with pytest.raises(TopicNotFound):
        caller.delete_stream(name)
    with pytest.raises(TopicNotFound):
        caller.append_stream(name, [1])


def test_bytes_and_text(caller: Caller, name: str) -> None:
    assert caller.put_stream(name, b"\x00\xff").content_type == "application/octet-stream"
    caller.append_stream(name, b"\n\x01", close=True)
    assert caller.read_stream(name).content == b"\x00\xff\n\x01"
    assert [page.content for page in caller.collect("tail_stream", name)] == [b"\x00\xff\n\x01"]
    caller.put_stream(name + "t", b" a\n b", content_type="text/plain")
    caller.append_stream(name + "t", b"c\n", content_type="text/plain", close=True)
    pages = caller.collect("tail_stream", name + "t")
    assert b"".join(page.content for page in pages) == b" a\n bc\n"
    assert {page.content_type for page in pages} == {"text/plain"}


def test_times(caller: Caller, name: str) -> None:
    old = datetime.now(UTC) - timedelta(days=2)
    caller.put_stream(name, expires_at=datetime.now(UTC) + timedelta(hours=1))
    caller.append_stream(name, ["old"], ts=old)
    caller.append_stream(name, ["new"])
    assert caller.read_stream(name, since=old + timedelta(days=1)).values == ["new"]
    assert caller.read_stream(name, since=old.isoformat()).values == ["old", "new"]


def test_invalid_arguments_raise_before_the_request(caller: Caller, name: str) -> None:
    for entries in ("text", {"a": 1}):
        with pytest.raises(TypeError, match="list"):
            caller.append_stream(name, entries)
    with pytest.raises(ValueError, match="JSON has no word"):
        caller.append_stream(name, [float("nan")])
    with pytest.raises(ValueError, match="zone"):
        caller.read_stream(name, since=datetime(2026, 1, 1))
    with pytest.raises(ValueError, match="stream-key"):
        caller.append_stream(name, [1], key="a\r\nstream-closed: true")
    with pytest.raises(ValueError, match="not a stream name"):
        caller.get_stream("/")


def test_forks(caller: Caller, name: str) -> None:
    first = caller.put_stream(name, [1, 2])
    caller.append_stream(name, [3])
    fork = caller.fork_stream(name + "-fork", name, offset=first.next_offset)
    assert (fork.created, fork.content_type) == (True, "application/json")
    caller.append_stream(name + "-fork", ["x"])
    assert caller.read_stream(name + "-fork").values == [1, 2, "x"]
    caller.delete_stream(name)
    with pytest.raises(StreamGone):
        caller.read_stream(name)
    assert caller.read_stream(name + "-fork").values == [1, 2, "x"]


def test_lists(caller: Caller, name: str) -> None:
    names = [f"{name}/{number}" for number in range(5)]
    for one in names:
        caller.put_stream(one)
    assert [stream.name for stream in caller.collect("all_streams", f"{name}/", page_size=2)] == names
    assert [stream.name for stream in caller.list_streams(f"{name}/", after=names[2], limit=1)] == [names[3]]


def test_an_offset_of_an_earlier_stream_is_gone(caller: Caller, name: str) -> None:
    old = caller.put_stream(name, [1]).next_offset
    caller.delete_stream(name)
    caller.put_stream(name, [1])
    with pytest.raises(OffsetGone):
        caller.read_stream(name, old)
    with pytest.raises(OffsetGone):
        caller.collect("tail_stream", name, old)


def test_a_repetition_of_a_producer_is_known(caller: Caller, name: str) -> None:
    caller.put_stream(name)
    assert not caller.append_stream(name, [1], producer=ProducerMark("p", 0, 0)).deduped
    assert caller.append_stream(name, [1], producer=ProducerMark("p", 0, 0)).deduped
    with pytest.raises(ProducerGap):
        caller.append_stream(name, [1], producer=ProducerMark("p", 0, 5))
    assert not caller.append_stream(name, [2], producer=ProducerMark("p", 1, 0)).deduped
    with pytest.raises(ProducerFenced):
        caller.append_stream(name, [1], producer=ProducerMark("p", 0, 1))
    assert caller.read_stream(name).values == [1, 2]


def test_a_refusal_keeps_the_number_of_a_producer(server: LiveServer, name: str) -> None:
    with Client(server.url) as client:
        producer = client.producer(name)
        with pytest.raises(TopicNotFound):
            producer.append([0])
        client.put_stream(name)
        producer.append([1])
        assert (producer.epoch, producer.seq) == (0, 1)
        assert client.read_stream(name).values == [1]


@both
@pytest.mark.parametrize(
    ("acts", "epoch"), [([resets], 1), ([], 0), ([answers(REFUSED)], 0), ([resets, answers(REFUSED)], 1)]
)
def test_a_request_of_unknown_fate_begins_a_new_epoch_of_its_producer(kind: str, acts: list[Act], epoch: int) -> None:
    """Its number may have been taken, and the next request under it would count as a repetition."""
    options = ClientOptions(retry=RetryPolicy(deadline_s=0.5 if len(acts) > 1 else 0, backoff_min_s=0.001))

    def check(producer: Producer | AsyncProducer) -> None:
        assert (producer.epoch, producer.seq) == (epoch, 0)

    with running(acts) as server:
        if kind == "sync":
            with Client(server.url, options=options) as client:
                producer = client.producer("s")
                with pytest.raises(ClientError):
                    producer.append([1])
                check(producer)
        else:

            async def scene() -> None:
                async with AsyncClient(server.url, options=options) as client:
                    producer = client.producer("s")
                    with pytest.raises(ClientError):
                        await producer.append([1])
                    check(producer)

            asyncio.run(scene())


@both
@pytest.mark.parametrize("live", ["sse", "long-poll"])
@pytest.mark.parametrize("start", ["-1", "now"])
def test_a_tail_gives_the_past_then_the_present_until_the_end(
    server: LiveServer, name: str, kind: str, live: str, start: str
) -> None:
    with Client(server.url) as client:
        client.put_stream(name, ["old"])

        def write() -> None:
            client.append_stream(name, ["new"])
            client.append_stream(name, [], close=True)

        seen: list[Any] = []
        arrived = threading.Event()
        tailing = threading.Thread(target=_tail, args=(kind, server.url, name, start, live, seen, arrived))
        tailing.start()
        # A tail from now must have begun before there is something new; one from the start has seen the old.
        assert arrived.wait(PATIENCE_S) if start == START else not arrived.wait(0.5)
        write()
        tailing.join(PATIENCE_S)
        assert not tailing.is_alive()
        assert seen == (["old", "new"] if start == START else ["new"])


@both
@pytest.mark.parametrize("content_type", ["text/plain; charset=utf-8", "Text/CSV", "application/octet-stream"])
def test_a_tail_gives_every_byte_as_it_was_written(server: LiveServer, name: str, kind: str, content_type: str) -> None:
    parts = [b"a\r\nb\rc\n", b"\xc3", b"\xbc\n\n", b"\xff\0", b"data: x\n\n", b"\xef\xbb\xbf ", b"\r", b"\n"]
    with Client(server.url) as client:
        client.put_stream(name, b"", content_type=content_type)
        for part in parts:
            client.append_stream(name, part, content_type=content_type)
        client.close_stream(name)
        assert client.read_stream(name).content == b"".join(parts)
        if kind == "sync":
            with client.tail_stream(name) as tail:
                assert b"".join(page.content for page in tail) == b"".join(parts)
            return

    async def scene() -> bytes:
        async with AsyncClient(server.url) as client, client.tail_stream(name) as tail:
            return b"".join([page.content async for page in tail])

    assert asyncio.run(scene()) == b"".join(parts)


def _tail(kind: str, url: str, name: str, start: str, live: Any, seen: list[Any], arrived: threading.Event) -> None:
    def take(page: StreamPage) -> None:
        seen.extend(page.values)
        arrived.set()

    if kind == "sync":
        with Client(url) as client, client.tail_stream(name, start, live=live) as tail:
            for page in tail:
                take(page)
        return

    async def scene() -> None:
        async with AsyncClient(url) as client, client.tail_stream(name, start, live=live) as tail:
            async for page in tail:
                take(page)

    asyncio.run(scene())


@both
@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_tails_and_producers_outlive_restarts_without_loss_or_repetition(tmp_path: Path, kind: str, live: Any) -> None:
    with LiveServer(tmp_path, drain_ms="500") as server, Client(server.url, options=PATIENT) as client:
        client.put_stream("s")
        seen: list[Any] = []
        tailing = threading.Thread(target=_tail, args=(kind, server.url, "s", START, live, seen, threading.Event()))
        tailing.start()
        endings: list[Callable[[], None]] = [server.kill, server.stop]
        over = threading.Event()

        def disturb() -> None:
            for end in endings:
                over.wait(0.3)
                end()
                server.start()
            over.set()

        disturbing = threading.Thread(target=disturb)
        disturbing.start()
        count = _produce(kind, server.url, over)
        disturbing.join(PATIENCE_S)
        tailing.join(PATIENCE_S)
        assert not tailing.is_alive()
        assert seen == list(range(count))


def _produce(kind: str, url: str, over: threading.Event) -> int:
    """Numbers, until the disturbance is over; then the end of the stream."""
    count = 0
    if kind == "sync":
        with Client(url, options=PATIENT) as client:
            producer = client.producer("s")
            while not over.is_set():
                producer.append([count])
                count += 1
            producer.close_stream()
            return count

    async def scene() -> int:
        count = 0
        async with AsyncClient(url, options=PATIENT) as client:
            producer = client.producer("s")
            while not over.is_set():
                await producer.append([count])
                count += 1
            await producer.close_stream()
        return count

    return asyncio.run(scene())
