"""Schedules of both clients against a real server, also over its kill and restart."""

import asyncio
from pathlib import Path

import pytest

from tests.http.live import LiveServer
from topics_client import AsyncClient, Client, ClientOptions, InvalidRequest, RetryPolicy, ScheduleNotFound

PATIENT = ClientOptions(retry=RetryPolicy(deadline_s=60, backoff_max_s=0.1))


def test_a_schedule_runs_by_itself_and_after_a_kill(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url, options=PATIENT) as client:
        client.put_topic("jobs", {"type": "queue"})
        put = client.put_schedule("tick", "jobs", every_ms=1_000, data={"n": 1}, tag="t", catch_up="all")
        assert put.created and put.next_due_ms == put.created_ms + 1_000
        first = client.diff("jobs", wait_ms=5_000).records[0]
        live.kill()
        live.start()
        found = [first]
        while len(found) < 3:
            found += client.diff("jobs", from_seq=found[-1].seq, wait_ms=5_000, include_tags=True).records
        due = [record.meta["$schedule_due_ms"] for record in found if record.meta is not None]
        assert due == [put.created_ms + 1_000 * number for number in range(1, len(due) + 1)]
        assert found[-1].data == {"n": 1} and found[-1].tag == "t"
        assert client.put_schedule("tick", paused=True).next_due_ms is None
        assert client.get_schedule("tick").runs == client.get_topic("jobs").head_seq


def test_calls_answer_with_the_schedule(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url) as client:
        client.append_many("log", [1])
        client.put_schedule("b", "log", cron="0 3 * * *", timezone="Europe/Berlin", data=1.50)
        client.put_schedule("a", "log", every_ms=5_000)
        assert [one.schedule for one in client.all_schedules(page_size=1)] == ["a", "b"]
        assert [one.schedule for one in client.all_schedules("b", topic="log")] == ["b"]
        changed = client.put_schedule("b", data={"x": 1}, catch_up="none")
        assert not changed.created and changed.data == {"x": 1} and changed.cron == "0 3 * * *"
        with pytest.raises(InvalidRequest):
            client.put_schedule("c", "log", cron="every day")
        with pytest.raises(ScheduleNotFound):
            client.get_schedule("c")
        assert client.delete_schedule("a").deleted and not client.delete_schedule("a").deleted
        client.delete_topic("log")
        with pytest.raises(ScheduleNotFound):
            client.get_schedule("b")


def test_the_asynchronous_client_has_the_same_calls(tmp_path: Path) -> None:
    async def use(url: str) -> None:
        async with AsyncClient(url) as client:
            await client.append("log", 1)
            await client.put_schedule("s", "log", every_ms=5_000)
            assert [one.schedule async for one in client.all_schedules()] == ["s"]
            assert (await client.get_schedule("s")).data is None
            assert (await client.delete_schedule("s")).deleted

    with LiveServer(tmp_path) as live:
        asyncio.run(use(live.url))
