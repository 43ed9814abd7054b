"""Both clients against a real server, over real sockets."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.http.live import LiveServer
from topics_client import (
    AsyncClient,
    BatchTooLarge,
    Client,
    ClientOptions,
    ConnectionFailed,
    Durability,
    Forbidden,
    Gap,
    GapError,
    Guarantee,
    IdempotencyConflict,
    InvalidRequest,
    NewRecord,
    PayloadTooLarge,
    Record,
    RecordTooLarge,
    RetryPolicy,
    RouterCycle,
    RouterNotFound,
    TagMatch,
    Throttled,
    TopicExistsIncompatible,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
    TopicType,
    Unauthorized,
)

IMPATIENT = ClientOptions(retry=RetryPolicy(deadline_s=0))
# A server that is started again after a crash needs a moment; the tests wait for events, not for this.
PATIENT = ClientOptions(retry=RetryPolicy(deadline_s=60, backoff_max_s=0.1))
FSYNC = {"durability": "fsync"}


class Caller:
    """One way to use either client: every call opens and closes one."""

    def __init__(self, kind: str, url: str, api_key: str | None = None, options: ClientOptions = IMPATIENT) -> None:
        self._kind = kind
        self._arguments: dict[str, Any] = {"url": url, "api_key": api_key, "options": options}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._call(name, args, kwargs)

    def collect(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        if self._kind == "sync":
            with Client(**self._arguments) as client:
                return list(getattr(client, name)(*args, **kwargs))

        async def collect() -> list[Any]:
            async with AsyncClient(**self._arguments) as client:
                return [item async for item in getattr(client, name)(*args, **kwargs)]

        return asyncio.run(collect())

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._kind == "sync":
            with Client(**self._arguments) as client:
                return getattr(client, name)(*args, **kwargs)

        async def call() -> Any:
            async with AsyncClient(**self._arguments) as client:
                return await getattr(client, name)(*args, **kwargs)

        return asyncio.run(call())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("server"), max_body_bytes="4000000") as running:
        yield running


@pytest.fixture(params=["sync", "async"])
def caller(request: pytest.FixtureRequest, server: LiveServer) -> Caller:
    return Caller(request.param, server.url)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return "".join(char if char.isalnum() else "-" for char in request.node.name)


def test_a_topic_from_its_creation_to_its_end(caller: Caller, topic: str) -> None:
    put = caller.put_topic(topic, {"ttl_ms": 60_000, "durability": "fsync", "lease_ms": 1})
    assert put.created
    assert (put.topic, put.config.ttl_ms, put.config.durability) == (topic, 60_000, Durability.FSYNC)
    assert put.config.lease_ms == 100
    assert put.performance["server_total_ms"] >= 0
    assert not caller.put_topic(topic).created

    state = caller.get_topic(topic, touch=False)
    assert (state.head_seq, state.earliest_seq, state.next_seq, state.count, state.bytes) == (0, 1, 1, 0, 0)
    assert (state.type, state.queue, state.last_write_ts, state.last_read_ts) == ("log", None, None, None)
    assert state.config.durability is Durability.DISK

    caller.append(topic, 1)
    with pytest.raises(TopicNotEmpty) as caught:
        caller.delete_topic(topic, if_empty=True)
    assert caught.value.detail["count"] == 1
    dropped = caller.delete_topic(topic)
    assert (dropped.deleted, dropped.routers_removed) == (True, [])
    assert not caller.delete_topic(topic).deleted
    with pytest.raises(TopicNotFound):
        caller.get_topic(topic)


def test_a_queue_has_counters_and_stays_a_queue(caller: Caller, topic: str) -> None:
    caller.put_topic(topic, {"type": TopicType.QUEUE.value})
    state = caller.get_topic(topic)
    assert state.type == "queue"
    assert state.queue is not None
    assert state.queue.in_flight == 0
    with pytest.raises(TopicExistsIncompatible):
        caller.put_topic(topic, {"type": "log"})


def test_appending_and_reading_back(caller: Caller, topic: str) -> None:
    first = caller.append(topic, {"a": [1, None]}, tag="t", node="n", meta={"k": "v"})
    assert (first.first_seq, first.seqs, first.created, first.deduped) == (1, [1], True, False)
    batch = caller.append_many(topic, [NewRecord("ä", tag="u"), None, NewRecord(2.5, node="own")], node="all")
    assert (batch.first_seq, batch.last_seq, batch.count, batch.head_seq, batch.created) == (2, 4, 3, 4, False)
    assert caller.append(topic, 0, return_seqs=False).seqs is None

    answer = caller.diff(topic, include_tags=True)
    assert [(r.seq, r.data, r.tag, r.node, r.meta) for r in answer.records] == [
        (1, {"a": [1, None]}, "t", "n", {"k": "v"}),
        (2, "ä", "u", "all", None),
        (3, None, None, "all", None),
        (4, 2.5, None, "own", None),
        (5, 0, None, None, None),
    ]
    assert answer.records[0].raw == b'{"a":[1,null]}'
    assert (answer.next_from_seq, answer.head_seq, answer.earliest_seq, answer.lag) == (5, 5, 1, 0)
    assert answer.caught_up
    assert answer.tombstone is None

    rest = caller.diff(topic, 1, limit=2, node=["own", "n"], include_meta=False)
    assert [(r.seq, r.tag, r.meta) for r in rest.records] == [(2, None, None), (3, None, None)]
    assert not rest.caught_up
    assert len(caller.diff(topic, max_batch_bytes=1).records) == 1
    assert caller.diff(topic, 5, wait_ms=1).records == []


def test_a_config_is_for_the_topic_that_is_created(caller: Caller, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        caller.append(topic, 1, create=False)
    caller.append(topic, 1, config={"cap_records": 7})
    caller.append(topic, 1, config={"cap_records": 9})
    assert caller.get_topic(topic).config.cap_records == 7


def test_the_same_key_appends_once(caller: Caller, topic: str) -> None:
    first = caller.append(topic, 1, idempotency_key="k")
    again = caller.append(topic, 1, idempotency_key="k")
    assert (again.deduped, again.first_seq) == (True, first.first_seq)
    caller.append(topic, 1)
    caller.append(topic, 1)
    assert caller.get_topic(topic).count == 3


def test_where_to_begin(caller: Caller, topic: str) -> None:
    caller.append_many(topic, [NewRecord(n, tag=f"t-{n % 5}") for n in range(1, 301)])
    caller.delete(topic, match=TagMatch("t-1"))
    caller.delete(topic, before_seq=11)
    kept = [n for n in range(11, 301) if n % 5 != 1]

    def behind(cursor: int) -> list[int]:
        return [record.seq for record in caller.diff(topic, cursor, limit=1000).records]

    assert behind(caller.seek(topic, last=7)) == kept[-7:]
    assert behind(caller.seek(topic, last=0)) == []
    assert behind(caller.seek(topic, last=10_000)) == kept
    assert behind(caller.seek(topic, last=2, matches=lambda record: record.tag == "t-2"))[0] == 292
    assert behind(caller.seek(topic, last=1, matches=lambda record: record.data == 12))[0] == 12
    assert behind(caller.seek(topic, last=1, matches=lambda record: record.tag == "t-1")) == kept
    assert behind(caller.seek(topic, since=datetime(2020, 1, 1, tzinfo=UTC))) == kept
    assert behind(caller.seek(topic, since=datetime.now(UTC) + timedelta(hours=1))) == []
    newest = caller.diff(topic, 299).records[0]
    exactly = datetime.fromtimestamp(newest.ts / 1000, UTC)
    assert newest.seq in behind(caller.seek(topic, since=exactly))
    for bad in ({}, {"since": exactly, "last": 1}):
        with pytest.raises(TypeError, match="one of them"):
            caller.seek(topic, **bad)
    with pytest.raises(ValueError, match="zone"):
        caller.seek(topic, since=datetime(2020, 1, 1))
    with pytest.raises(TopicNotFound):
        caller.seek(f"{topic}-missing", last=1)


def test_what_the_server_looks_for(caller: Caller, topic: str) -> None:
    caller.append_many(topic, [NewRecord({"n": n, "even": n % 2 == 0}, tag=f"t-{n % 5}") for n in range(1, 31)])

    def found(**arguments: Any) -> list[int]:
        return [record.seq for record in caller.diff(topic, **arguments).records]

    assert found(filter="/n:>=28 OR tag:t-1 /even:true") == [6, 16, 26, 28, 29, 30]
    assert found(last=3) == [28, 29, 30]
    assert found(last=10, filter="/even:false", limit=2) == [21, 23]
    assert found(since=datetime(2020, 1, 1, tzinfo=UTC)) == list(range(1, 31))
    assert found(since=datetime.now(UTC) + timedelta(hours=1)) == []
    moment = caller.diff(topic, last=1).records[0].ts
    assert found(since=moment)[-1] == 30 and found(since=moment + 60_000) == []
    followed = caller.collect("follow", topic, wait_ms=0, filter="tag:t-2", limit=2, from_seq=5)
    assert [record.seq for record in followed] == [7, 12, 17, 22, 27]
    assert caller.seek(topic, last=2, filter="tag:t-2") == 21
    assert caller.seek(topic, last=1, filter="tag:t-2", matches=lambda record: record.data["even"]) == 21
    with pytest.raises(ValueError, match="zone"):
        caller.diff(topic, since=datetime(2020, 1, 1))
    with pytest.raises(InvalidRequest):
        caller.diff(topic, filter="word")
    with pytest.raises(InvalidRequest):
        caller.diff(topic, since=5, last=5)


def test_idempotency_key_with_other_records_raises_conflict(caller: Caller, topic: str) -> None:
    caller.append(topic, 0)
    caller.append_many(topic, [1, NewRecord(2, tag="t")], idempotency_key="k")
    for other in ([1], [1, 2], [2, 1], [1, NewRecord(2, tag="t", meta={"a": 1})]):
        with pytest.raises(IdempotencyConflict) as caught:
            caller.append_many(topic, other, idempotency_key="k")
        assert caught.value.detail == {"topic": topic, "first_seq": 2, "last_seq": 3}
    assert caller.append_many(topic, [1, NewRecord(2, tag="t")], idempotency_key="k").deduped
    assert caller.get_topic(topic).count == 3


def test_the_clients_own_key_is_taken_by_the_server(server: LiveServer, topic: str) -> None:
    class SameEntropy:
        """Gives every append the same key, as if all were tries of one."""

        def token(self, nbytes: int) -> bytes:
            return bytes(nbytes)

    with Client(server.url, entropy=SameEntropy()) as client:
        assert [client.append(topic, 1).deduped for _ in range(3)] == [False, True, True]


def test_deleting(caller: Caller, topic: str) -> None:
    caller.append_many(topic, [NewRecord(n, tag=f"a-{n % 2}") for n in range(6)])
    caller.append(topic, "untagged")
    deleted = caller.delete(topic, match="a-1", before_seq=4)
    assert (deleted.deleted, deleted.earliest_seq, deleted.head_seq, deleted.count) == (1, 1, 7, 6)
    assert caller.delete(topic, match=["tag", "Eq", "a-0"]).deleted == 3
    assert caller.delete(topic, match=TagMatch("a-", prefix=True)).deleted == 2
    assert [r.data for r in caller.diff(topic).records] == ["untagged"]
    assert caller.delete(topic, before_seq=100).count == 0
    with pytest.raises(InvalidRequest):
        caller.delete(topic)
    with pytest.raises(InvalidRequest):
        caller.delete(topic, match=["tag", "Glob", "a"])


def test_pages_of_topics(caller: Caller, topic: str) -> None:
    names = [f"{topic}:{number}" for number in range(7)]
    for name in names:
        caller.put_topic(name)
    pages = caller.collect("topic_pages", f"{topic}:", page_size=3)
    assert [[summary.topic for summary in page.topics] for page in pages] == [names[:3], names[3:6], names[6:]]
    assert [page.next_cursor is None for page in pages] == [False, False, True]
    assert [summary.topic for summary in caller.collect("all_topics", f"{topic}:", page_size=2)] == names
    with pytest.raises(InvalidRequest):
        caller.list_topics(cursor="no cursor")


def test_routers(caller: Caller, topic: str) -> None:
    names = [f"{topic}:{number}" for number in range(4)]
    for name in names:
        put = caller.put_router(topic, name, guarantee="exactly_once")
        assert (put.router, put.created, put.guarantee) == (f"{topic}->{name}", True, Guarantee.EXACTLY_ONCE)
    caller.append(topic, "x")
    (copy,) = caller.diff(names[0], wait_ms=20_000).records
    assert copy.data == "x" and copy.meta is not None and copy.meta["_topics_router"]["source_topic"] == topic
    state = caller.get_router(f"{topic}->{names[0]}")
    assert (state.forwarded_total, state.lag, state.blocked) == (1, 0, False)
    listed = caller.collect("all_routers", source=topic, page_size=3)
    assert [router.dest for router in listed] == names
    with pytest.raises(RouterCycle) as cycle:
        caller.put_router(names[0], topic)
    assert cycle.value.detail == {"cycle": [names[0], topic, names[0]]}
    assert caller.delete_router(f"{topic}->{names[0]}").deleted
    with pytest.raises(RouterNotFound):
        caller.get_router(f"{topic}->{names[0]}")
    assert caller.delete_topic(topic).routers_removed == [f"{topic}->{name}" for name in names[1:]]


def test_client_errors_name_the_cause(caller: Caller, topic: str) -> None:
    with pytest.raises(InvalidRequest):
        caller.put_topic("no name!")
    with pytest.raises(TopicNotFound):
        caller.diff("no name!")
    with pytest.raises(InvalidRequest) as caught:
        caller.put_topic(topic, {"ttl_ms": "soon"})
    assert caught.value.detail["field"] == "ttl_ms"
    with pytest.raises(InvalidRequest):
        caller.append_many(topic, [])
    with pytest.raises(BatchTooLarge):
        caller.append_many(topic, [0] * 10_001)
    with pytest.raises(RecordTooLarge):
        caller.append(topic, "x" * 1_048_577)
    with pytest.raises(PayloadTooLarge):
        caller.append_many(topic, ["x" * 1_000_000] * 5)
    with pytest.raises(InvalidRequest):
        caller.diff(topic, -1)
    caller.put_topic(topic, {"cap_records": 1, "discard": "reject"})
    caller.append(topic, 1)
    with pytest.raises(TopicFull) as full:
        caller.append(topic, 2)
    assert full.value.detail["cap_records"] == 1


def test_names_with_colons(caller: Caller, topic: str) -> None:
    caller.append(f"tenant:{topic}", 1)
    assert caller.get_topic(f"tenant:{topic}").topic == f"tenant:{topic}"


def test_probes(caller: Caller) -> None:
    assert caller.health().status == "ok"
    ready = caller.ready()
    assert (ready.status, ready.wal_replay_complete) == ("ready", True)
    metrics = caller.metrics()
    assert metrics["topics_ready"] == 1
    assert metrics["topics_topics"] == ready.topics


def test_compressed_both_ways(server: LiveServer, topic: str) -> None:
    values = [f"value {number} " * 20 for number in range(200)]
    for kind in ("sync", "async"):
        caller = Caller(kind, server.url, options=ClientOptions(gzip=True))
        caller.append_many(topic, values)
        assert [record.data for record in caller.diff(topic, limit=1000).records[-200:]] == values


def test_following_to_the_end_with_a_gap(caller: Caller, topic: str) -> None:
    caller.put_topic(topic, {"cap_records": 5})
    for number in range(1, 21):
        caller.append(topic, number)
    gap, *records = caller.collect("follow", topic, wait_ms=0, limit=2)
    assert isinstance(gap, Gap)
    assert (gap.gap_from, gap.reason, gap.head_seq) == (1, "cap", 20)
    assert [record.seq for record in records] == list(range(gap.gap_to + 1, 21))
    with pytest.raises(GapError):
        caller.collect("follow", topic, wait_ms=0, raise_on_gap=True)


def test_following_a_topic_that_was_made_again(server: LiveServer, topic: str) -> None:
    with Client(server.url, options=IMPATIENT) as client:
        client.append_many(topic, [1, 2, 3])
        client.delete_topic(topic)
        client.append(topic, "new")
        follower = client.follow(topic, 3)
        gap, record = next(follower), next(follower)
    assert isinstance(gap, Gap)
    assert gap.reason == "recreated"
    assert isinstance(record, Record)
    assert (record.data, follower.cursor) == ("new", 1)


def test_a_follower_is_woken_by_an_append(server: LiveServer, topic: str) -> None:
    async def scene() -> None:
        async with AsyncClient(server.url) as client:
            await client.put_topic(topic)
            follower = client.follow(topic, wait_ms=30_000, node="me")
            waiting = asyncio.ensure_future(anext(follower))
            await client.append(topic, "mine", node="me")
            await client.append(topic, "theirs")
            record = await waiting
            assert isinstance(record, Record)
            assert (record.data, follower.cursor) == ("theirs", 2)

            waiting = asyncio.ensure_future(anext(follower))
            await asyncio.sleep(0)
            await follower.aclose()
            with pytest.raises(StopAsyncIteration):
                await waiting

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_a_follower_learns_that_its_topic_is_deleted(server: LiveServer, topic: str) -> None:
    async def scene() -> None:
        async with AsyncClient(server.url) as client:
            await client.put_topic(topic)
            waiting = asyncio.ensure_future(anext(client.follow(topic, wait_ms=30_000)))
            await asyncio.sleep(0.05)
            await client.delete_topic(topic)
            with pytest.raises(TopicNotFound):
                await waiting

    asyncio.run(asyncio.wait_for(scene(), 60))


def endings(server: LiveServer) -> tuple[Callable[[], None], ...]:
    """The ways a server goes away."""
    return server.stop, server.kill


def test_a_follower_outlives_restarts_without_loss_or_repeat(tmp_path: Path) -> None:
    seen: list[object] = []
    arrived = threading.Condition()

    def follow(client: Client, followers: list[Any]) -> None:
        follower = client.follow("jobs", wait_ms=5_000)
        followers.append(follower)
        for item in follower:
            with arrived:
                seen.append(item.data if isinstance(item, Record) else item)
                arrived.notify_all()

    def expect(count: int) -> None:
        with arrived:
            assert arrived.wait_for(lambda: len(seen) >= count, 60), seen

    with LiveServer(tmp_path) as server, Client(server.url, options=PATIENT) as client:
        client.put_topic("jobs", FSYNC)
        followers: list[Any] = []
        loop = threading.Thread(target=follow, args=(client, followers))
        loop.start()
        try:
            sent = 0
            for end in (None, *endings(server)):
                if end is not None:
                    end()
                    server.start()
                for _ in range(3):
                    client.append("jobs", sent)
                    sent += 1
                expect(sent)
            assert followers[0].cursor == client.get_topic("jobs").head_seq
        finally:
            for follower in followers:
                follower.close()
            # A last record, so that the loop does not sit out the rest of its wait.
            client.append("jobs", "end")
            loop.join(60)
        assert not loop.is_alive()
    assert seen[:sent] == list(range(sent))


def test_an_async_follower_goes_on_from_a_stored_cursor_after_a_restart(tmp_path: Path) -> None:
    async def scene(server: LiveServer) -> None:
        async with AsyncClient(server.url, options=PATIENT) as client:
            await client.put_topic("jobs", FSYNC)
            await client.append_many("jobs", [1, 2, 3])
            cursor, seen = 0, []
            for end in endings(server):
                async with client.follow("jobs", cursor) as follower:
                    async for item in follower:
                        assert isinstance(item, Record)
                        seen.append(item.data)
                        if len(seen) % 2 == 0:
                            break
                    cursor = follower.cursor
                await asyncio.to_thread(end)
                waiting = asyncio.create_task(client.append("jobs", 4 + len(seen) // 4))
                await asyncio.to_thread(server.start)
                await waiting
            rest = [item async for item in client.follow("jobs", cursor, wait_ms=0)]
            assert [*seen, *(item.data for item in rest if isinstance(item, Record))] == [1, 2, 3, 4, 5]

    with LiveServer(tmp_path) as server:
        asyncio.run(asyncio.wait_for(scene(server), 120))


def test_appends_across_kills_are_there_exactly_once(tmp_path: Path) -> None:
    """The writer never learns of the kills: acknowledged appends are there, once, in order."""
    stop = threading.Event()
    acknowledged: list[int] = []

    def write(client: Client) -> None:
        while not stop.is_set():
            client.append("jobs", len(acknowledged))
            acknowledged.append(len(acknowledged))

    with LiveServer(tmp_path) as server, Client(server.url, options=PATIENT) as client:
        client.put_topic("jobs", FSYNC)
        writer = threading.Thread(target=write, args=(client,))
        writer.start()
        try:
            for end in (server.kill, server.stop, server.kill):
                before = len(acknowledged)
                while len(acknowledged) < before + 20 and writer.is_alive():
                    stop.wait(0.01)
                end()
                server.start()
        finally:
            stop.set()
            writer.join(60)
        assert not writer.is_alive()
        found = [item.data for item in client.follow("jobs", wait_ms=0) if isinstance(item, Record)]
    assert found == acknowledged
    assert len(found) >= 60


def test_a_server_that_is_away(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as server:
        server.stop()
        for kind in ("sync", "async"):
            with pytest.raises(ConnectionFailed) as caught:
                Caller(kind, server.url).append("jobs", 1)
            assert not caught.value.maybe_done


def test_keys_with_scopes_and_prefixes(tmp_path: Path) -> None:
    keys = "full-access,reader:read,writer:write,tenant:r+w+d:a:|shared."
    with LiveServer(tmp_path, api_keys=keys) as server:
        full = Caller("sync", server.url, "full-access", PATIENT)
        for name in ("a:1", "shared.x", "b:1"):
            full.put_topic(name)
        for kind in ("sync", "async"):
            with pytest.raises(Unauthorized):
                Caller(kind, server.url).get_topic("a:1")
            with pytest.raises(Unauthorized):
                Caller(kind, server.url, "guess").get_topic("a:1")

            reader = Caller(kind, server.url, "reader")
            assert [summary.topic for summary in reader.collect("all_topics")] == ["a:1", "b:1", "shared.x"]
            assert reader.metrics()["topics_topics"] == 3
            for call, *arguments in (("append", "a:1", 1), ("put_topic", "a:1"), ("delete_topic", "a:1")):
                with pytest.raises(Forbidden):
                    getattr(reader, str(call))(*arguments)

            writer = Caller(kind, server.url, "writer")
            writer.append("a:1", 1)
            with pytest.raises(Forbidden):
                writer.diff("a:1")
            with pytest.raises(Forbidden):
                writer.append("another", 1, config={"ttl_ms": 1})
            with pytest.raises(Forbidden):
                writer.metrics()

            tenant = Caller(kind, server.url, "tenant")
            assert [summary.topic for summary in tenant.collect("all_topics", page_size=1)] == ["a:1", "shared.x"]
            tenant.append("a:1", 1)
            assert tenant.collect("follow", "a:1", wait_ms=0)
            assert tenant.delete("a:1", before_seq=1000).count == 0
            for call in ("get_topic", "diff", "delete_topic"):
                with pytest.raises(Forbidden):
                    getattr(tenant, call)("b:1")
            with pytest.raises(Forbidden):
                tenant.append("b:1", 1)

            anyone = Caller(kind, server.url)
            assert anyone.health().status == "ok"
            assert anyone.ready().topics == 3
        assert "full-access" not in server.log()


def test_a_cap_is_reported_with_its_name(tmp_path: Path) -> None:
    with LiveServer(tmp_path, max_topics="1") as server:
        Caller("sync", server.url, options=PATIENT).put_topic("one")
        for kind in ("sync", "async"):
            with pytest.raises(Throttled) as caught:
                Caller(kind, server.url).append("two", 1)
            assert (caught.value.status, caught.value.retry_after_s) == (429, 1.0)
            assert caught.value.detail == {"limit": "max_topics", "max": 1}


def test_a_topic_full_of_keys_takes_what_needs_none(tmp_path: Path) -> None:
    with LiveServer(tmp_path, max_idempotency_keys="2") as server:
        caller = Caller("sync", server.url, options=PATIENT)
        caller.append_many("t", [1, 2, 3], idempotency_key="one")
        caller.append("t", 4, idempotency_key="two")
        for kind in ("sync", "async"):
            with pytest.raises(Throttled) as caught:
                Caller(kind, server.url).append("t", 5)
            assert caught.value.detail == {"limit": "max_idempotency_keys", "max": 2}
        assert caller.append("t", 4, idempotency_key="two").deduped
        keyless = Caller("sync", server.url, options=ClientOptions(idempotent_appends=False))
        assert keyless.append("t", 5).last_seq == 5
