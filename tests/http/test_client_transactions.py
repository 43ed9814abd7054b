"""The client's transactions against a real server: as a block of code, and divided among processes."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.http.live import LiveServer
from topics_client import (
    AsyncClient,
    Client,
    NewRecord,
    TopicFull,
    TopicNotFound,
    TransactionFenced,
    TransactionNotFound,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("server"), wal_shards="3") as live:
        yield live


@pytest.fixture
def client(server: LiveServer) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def values(client: Client, topic: str) -> list[object]:
    return [record.data for record in client.diff(topic, 0, limit=1000).records]


def test_a_block_is_there_at_its_end_and_once(client: Client) -> None:
    for again in (False, True):
        with client.transaction("block", 1) as step:
            for number in range(1500):
                step.append("block.a", number, tag="t")
            step.append_many("block.b", [NewRecord("x", meta={"m": 1}), "y"], node="n")
            step.append("block.b", "z")
            if not again:
                with pytest.raises(TopicNotFound):
                    client.get_topic("block.a")
        assert step.result is not None
        assert (step.deduped, step.result.deduped) == (again, again)
        assert {placed.topic: placed.count for placed in step.result.topics} == {"block.a": 1500, "block.b": 3}
    assert values(client, "block.a") == list(range(1000))
    assert client.get_topic("block.a").count == 1500
    assert values(client, "block.b") == ["x", "y", "z"]


@pytest.mark.parametrize("records", ["abc", b"abc", {"a": 1}, NewRecord(1)])
def test_one_value_is_not_a_batch(client: Client, records: Any) -> None:
    with pytest.raises(TypeError, match="several records"), client.transaction("one", 1) as step:
        step.append_many("letters", records)
    with pytest.raises(TypeError, match="several records"):
        client.append_many("letters", records)
    with pytest.raises(TopicNotFound):
        client.get_topic("letters")


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_append_after_the_end_raises(client: Client, end: str) -> None:
    with client.transaction(f"over.{end}", 1) as step:
        step.append(f"over.{end}", 1)
        getattr(step, end)()
        with pytest.raises(RuntimeError, match=f"is {end}"):
            step.append(f"over.{end}", 2)
        with pytest.raises(RuntimeError, match=f"is {end}"):
            step.append_many(f"over.{end}", [3])
    if end == "commit":
        assert values(client, "over.commit") == [1]


def test_jobs_of_a_transaction_have_priorities_and_start_times(client: Client) -> None:
    client.put_topic("to-do", {"type": "queue"})
    with client.transaction("work", 1) as step:
        step.append("to-do", "usual")
        step.append_many("to-do", ["urgent"], priority=2)
        step.append_many("to-do", ["later"], run_at=datetime.now(UTC) + timedelta(days=2))
        step.append_many("to-do", ["later"], delay_ms=60_000)
    assert [job.data for job in client.claim("to-do", "w", max=9).claimed] == ["urgent", "usual"]
    assert [job.data for job in client.list_jobs("to-do", "delayed").jobs] == ["later", "later"]


def test_an_exception_aborts(client: Client) -> None:
    with pytest.raises(RuntimeError, match="enough"), client.transaction("broken", 1) as step:
        step.append_many("broken", [1])
        raise RuntimeError("enough")
    with pytest.raises(TransactionNotFound):
        client.get_transaction("broken")
    with client.transaction("broken", 1) as step:
        step.append("broken", 2)
        step.abort()
    assert step.result is None
    with pytest.raises(TopicNotFound):
        client.get_topic("broken")


def test_a_refused_commit_is_raised_at_the_end_of_the_block(client: Client) -> None:
    client.put_topic("full", {"cap_records": 2, "discard": "reject"})
    client.append("full", "there")
    with pytest.raises(TopicFull), client.transaction("full", 1) as step:
        step.append_many("full", [1, 2])
        step.append("beside", 1)
    assert client.get_transaction("full").state == "open"
    client.delete("full", before_seq=2)
    assert client.commit_transaction("full", 1).records == 3


def test_a_second_writer_takes_over(client: Client) -> None:
    with client.transaction("fenced", 1) as first, client.transaction("fenced", 1) as second:
        second.append("fenced", "second")
        with pytest.raises(TransactionFenced):
            first.append_many("fenced", ["first"])
        # A commit of the second writer counts as a commit of the first, too.
    assert first.deduped
    assert values(client, "fenced") == ["second"]


def test_workers_share_an_attempt(client: Client) -> None:
    parts = []
    for worker in range(3):
        begun = client.begin_transaction("shared", 4, attempt="run-1")
        assert begun.attempt == "run-1"
        # The second worker is tried again, and stages under another name.
        for attempt in range(2 if worker == 1 else 1):
            part = f"{worker}.{attempt}"
            client.stage("shared", 4, "shared", [worker], part=part, attempt="run-1")
        parts.append(part)
    done = client.commit_transaction("shared", 4, attempt="run-1", parts=parts)
    assert done.records == 3
    assert values(client, "shared") == [0, 1, 2]


def test_the_same_for_asyncio(server: LiveServer) -> None:
    async def write() -> None:
        async with AsyncClient(server.url) as client:
            for again in (False, True):
                async with client.transaction("async", 1, timeout_ms=5000) as step:
                    await step.append("async", 1)
                    await step.append_many("async", [2, 3])
                    await step.append("async", 4)
                assert step.deduped is again
            found = await client.diff("async", 0)
            assert [record.data for record in found.records] == [1, 2, 3, 4]

    asyncio.run(write())


def test_a_server_that_is_killed_between_staging_and_commit_keeps_it(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as server, Client(server.url) as client, client.transaction("kept", 1) as step:
        step.append_many("kept", [1, 2])
        server.kill()
        server.start()
        step.append("kept", 3)
        step.commit()
        assert values(client, "kept") == [1, 2, 3]
