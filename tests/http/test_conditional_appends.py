"""Conditional appends over HTTP, a WebSocket, transactions and the clients, also where requests are batched."""

import asyncio
from pathlib import Path

import pytest

from tests.http.live import LiveServer
from topics_client import AsyncClient, Client, Fence, FenceMismatch, HeadMismatch, TopicNotFound


def test_of_writers_that_expect_the_same_head_one_wins_each_round(tmp_path: Path) -> None:
    async def race(url: str) -> list[object]:
        async with AsyncClient(url) as client:
            for _ in range(5):
                head = (await client.get_topic("account")).head_seq
                attempts = [client.append("account", name, expected_head_seq=head) for name in range(20)]
                # Appends without a condition share their tick, and move the head for the ones behind them.
                others = [client.append("other", name) for name in range(20)]
                outcomes = await asyncio.gather(*attempts, *others, return_exceptions=True)
                lost = [outcome for outcome in outcomes if isinstance(outcome, HeadMismatch)]
                assert len(lost) == 19
                assert {error.detail["head_seq"] for error in lost} == {head + 1}
            return [record.data for record in (await client.diff("account")).records]

    with LiveServer(tmp_path) as live:
        with Client(live.url) as client:
            client.put_topic("account")
        assert len(asyncio.run(race(live.url))) == 5


def test_conditions_count_unconditional_requests_of_the_same_tick(tmp_path: Path) -> None:
    async def run(url: str) -> None:
        async with AsyncClient(url) as client:
            outcomes = await asyncio.gather(
                *[client.append("t", n, expected_head_seq=n if n % 2 else None) for n in range(50)],
                return_exceptions=True,
            )
            seqs = [record.seq for record in (await client.diff("t")).records]
            won = sum(not isinstance(outcome, HeadMismatch) for outcome in outcomes)
            assert seqs == list(range(1, won + 1))
            assert won >= 25

    with LiveServer(tmp_path) as live:
        with Client(live.url) as client:
            client.put_topic("t")
        asyncio.run(run(live.url))


def test_socket_publish_is_conditional_and_stays_open(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url) as client, client.ws() as socket:
        socket.publish("t", "a", expected_head_seq=0, new_fence="w")
        with pytest.raises(HeadMismatch) as mismatch:
            socket.publish("t", "b", expected_head_seq=0)
        assert mismatch.value.detail["head_seq"] == 1
        with pytest.raises(FenceMismatch):
            socket.publish("t", "b", fence="v")
        assert socket.publish("t", "b", expected_head_seq=1, fence="w").last_seq == 2


def test_fence_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url) as client:
        with pytest.raises(TopicNotFound):
            client.put_fence("t", "w")
        client.put_topic("t")
        assert isinstance(client.put_fence("t", "w1", fence=""), Fence)
        with pytest.raises(FenceMismatch):
            client.put_fence("t", "w2", fence="")
        live.kill()
        live.start()
        assert client.get_fence("t").fence == "w1"
        with pytest.raises(FenceMismatch) as mismatch:
            client.append("t", 1, fence="w0")
        assert mismatch.value.detail["fence"] == "w1"
        client.append_many("t", [1, 2], fence="w1", new_fence="w2")
        assert (client.get_fence("t").fence, client.get_fence("t").head_seq) == ("w2", 2)


def test_transaction_commits_only_if_its_topics_are_as_expected(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url) as client:
        client.append("a", "old")
        for head, outcome in ((0, HeadMismatch), (1, None)):
            try:
                with client.transaction("move", 1) as step:
                    step.append("a", "new")
                    step.append("b", "new")
                    step.expect("a", head_seq=head)
                    step.expect("b", head_seq=0)
                raised = None
            except HeadMismatch:
                raised = HeadMismatch
            assert raised is outcome
        assert [record.data for record in client.diff("a").records] == ["old", "new"]
        assert [record.data for record in client.diff("b").records] == ["new"]
