"""Consumers of both clients against a real server, also while it is killed and started again."""

import asyncio
from pathlib import Path

import pytest

from tests.http.live import LiveServer
from topics_client import (
    AsyncClient,
    Client,
    ClientOptions,
    ConsumerNotFound,
    Gap,
    InvalidRequest,
    Record,
    RetryPolicy,
    Throttled,
    TopicRecreated,
)

PATIENT = ClientOptions(retry=RetryPolicy(deadline_s=60, backoff_max_s=0.1))


def _seqs(items: list[Record | Gap]) -> list[int]:
    return [item.seq for item in items if isinstance(item, Record)]


def test_a_loop_goes_on_behind_what_the_last_one_processed(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url) as client:
        client.append_many("orders", range(10))
        with client.consumer("orders", "billing", wait_ms=0) as consumer:
            first = [next(consumer) for _ in range(4)]
        with client.consumer("orders", "billing", wait_ms=0) as consumer:
            rest = list(consumer)
        assert _seqs(first) == [1, 2, 3, 4]
        assert _seqs(rest) == [5, 6, 7, 8, 9, 10]
        assert (client.get_consumer("orders", "billing").seq, client.get_consumer("orders", "billing").lag) == (10, 0)


def test_the_item_at_hand_of_a_failed_loop_comes_again(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url) as client:
        client.append_many("orders", range(5))
        with pytest.raises(ZeroDivisionError), client.consumer("orders", "billing", commit_every=1) as consumer:
            for item in consumer:
                assert isinstance(item, Record)
                assert item.seq / (item.seq - 3)
        with client.consumer("orders", "billing", wait_ms=0) as consumer:
            assert _seqs(list(consumer)) == [3, 4, 5]


def test_a_loop_without_commits_hands_everything_out_again(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url) as client:
        client.append_many("orders", range(5))
        for _ in range(2):
            with client.consumer("orders", "billing", commit_every=0, wait_ms=0) as consumer:
                assert _seqs(list(consumer)) == [1, 2, 3, 4, 5]
                assert client.get_consumer("orders", "billing").seq == 0
        with client.consumer("orders", "billing", commit_every=0, wait_ms=0) as consumer:
            next(consumer), next(consumer)
            consumer.commit()
            next(consumer)
            consumer.commit(1)
        assert client.get_consumer("orders", "billing").seq == 2


def test_a_loop_survives_a_killed_server(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url, options=PATIENT) as client:
        client.append_many("orders", range(6), config={"durability": "fsync"})
        consumer = client.consumer("orders", "billing", commit_every=2, limit=2, wait_ms=0)
        found = [next(consumer) for _ in range(3)]
        live.kill()
        live.start()
        found += list(consumer)
        assert _seqs(found) == [1, 2, 3, 4, 5, 6]
        assert client.get_consumer("orders", "billing").seq == 6


def test_a_recreated_topic_is_told_and_read_from_its_start(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url) as client:
        client.append_many("orders", range(5))
        with client.consumer("orders", "billing", limit=2, wait_ms=0) as consumer:
            next(consumer), next(consumer)
            epoch = client.get_topic("orders").epoch
            client.delete_topic("orders")
            client.append_many("orders", ["new", "newer"])
            items = list(consumer)
        gap, *records = items
        assert isinstance(gap, Gap) and gap.reason == "recreated"
        assert _seqs(records) == [1, 2]
        assert client.get_consumer("orders", "billing").seq == 2
        with pytest.raises(TopicRecreated):
            client.commit_consumer("orders", "billing", 2, epoch=epoch)


def test_a_consumer_of_a_stream_with_a_slash(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url) as client:
        client.put_stream("a/b", content_type="application/json")
        client.append_stream("a/b", [1, 2, 3])
        client.put_consumer("a/b", "mirror", last=1, streams=True)
        answer = client.read_consumer("a/b", "mirror", streams=True)
        assert [record.seq for record in answer.records] == [3]
        assert client.commit_consumer("a/b", "mirror", 3, epoch=answer.epoch, streams=True).moved
        assert [one.consumer for one in client.all_consumers("a/b", streams=True)] == ["mirror"]
        assert [one.topic for one in client.all_consumers()] == ["a/b"]


def test_commits_only_move_forward_unless_forced(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url) as client:
        client.append_many("orders", range(5))
        with pytest.raises(ConsumerNotFound):
            client.commit_consumer("orders", "billing", 1)
        assert client.put_consumer("orders", "billing", from_seq=1).created
        assert not client.put_consumer("orders", "billing", from_seq=4).created
        assert client.commit_consumer("orders", "billing", 3).moved
        late = client.commit_consumer("orders", "billing", 2)
        assert (late.moved, late.seq, late.lag) == (False, 3, 2)
        assert client.commit_consumer("orders", "billing", 0, force=True).seq == 0
        assert client.commit_consumer("orders", "billing", last=0).seq == 5
        assert client.commit_consumer("orders", "billing", since=0, force=True).seq == 0
        with pytest.raises(InvalidRequest, match="above the head"):
            client.commit_consumer("orders", "billing", 6)
        assert client.delete_consumer("orders", "billing").deleted
        assert not client.delete_consumer("orders", "billing").deleted


def test_lists_have_pages_and_consumers_are_bounded(tmp_path: Path) -> None:
    with LiveServer(tmp_path, max_consumers_per_topic="3") as live, Client(live.url) as client:
        for topic in ("a", "b"):
            client.put_topic(topic)
            for name in ("x", "y", "z"):
                client.put_consumer(topic, name)
        with pytest.raises(Throttled, match="max_consumers_per_topic"):
            client.put_consumer("a", "w")
        client.delete_consumer("a", "y")
        client.put_consumer("a", "w")
        found = [(one.topic, one.consumer) for one in client.all_consumers(page_size=2)]
        assert found == [("a", "w"), ("a", "x"), ("a", "z"), ("b", "x"), ("b", "y"), ("b", "z")]
        assert [one.consumer for one in client.all_consumers("b", page_size=1)] == ["x", "y", "z"]
        assert [one.topic for one in client.all_consumers(prefix="b")] == ["b"] * 3


def test_the_consumers_of_a_key_are_bounded_and_a_commit_names_its_key(tmp_path: Path) -> None:
    with (
        LiveServer(tmp_path, api_keys="boss,ka:read+write+admin:a:", max_consumers_per_key="1") as live,
        Client(live.url, api_key="boss") as boss,
        Client(live.url, api_key="ka") as tenant,
    ):
        for topic in ("a:1", "a:2", "b:1"):
            boss.put_topic(topic)
        boss.append("a:1", 1)
        tenant.put_consumer("a:1", "c")
        assert tenant.commit_consumer("a:1", "c", 1).committed_by == "#2"
        with pytest.raises(Throttled, match="max_consumers_per_key"):
            tenant.put_consumer("a:2", "c")
        boss.put_consumer("b:1", "c")
        boss.put_consumer("b:1", "d")
        assert [one.topic for one in tenant.all_consumers()] == ["a:1"]


def test_a_waiting_read_gets_what_comes(tmp_path: Path) -> None:
    async def run(url: str) -> list[int]:
        async with AsyncClient(url) as client:
            await client.append("orders", 1)
            await client.put_consumer("orders", "billing", last=0)
            waiting = asyncio.create_task(client.read_consumer("orders", "billing", wait_ms=30_000))
            await asyncio.sleep(0)
            await client.append("orders", 2)
            return [record.seq for record in (await waiting).records]

    with LiveServer(tmp_path) as live:
        assert asyncio.run(run(live.url)) == [2]


def test_an_asynchronous_loop_commits_by_itself(tmp_path: Path) -> None:
    async def run(url: str) -> tuple[list[int], int]:
        async with AsyncClient(url) as client:
            await client.append_many("orders", range(5))
            async with client.consumer("orders", "billing", wait_ms=0, commit_every=2) as consumer:
                seqs = [item.seq async for item in consumer if isinstance(item, Record)]
            return seqs, (await client.get_consumer("orders", "billing")).seq

    with LiveServer(tmp_path) as live:
        assert asyncio.run(run(live.url)) == ([1, 2, 3, 4, 5], 5)
