"""Following: the records handed out, the cursor, and the conditions that end it."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.client.fakes import (
    AsyncFakeTransport,
    Driver,
    Outcome,
    Script,
    Seen,
    answered,
    lost,
    plain,
    refused,
    unsent,
)
from topics_client import (
    AsyncClient,
    AsyncFollower,
    ClientError,
    ClientOptions,
    ConnectionFailed,
    Gap,
    GapError,
    Record,
    RetryPolicy,
    TopicNotFound,
)
from topics_client.transport.http1 import HttpRequest, Response

both = pytest.mark.parametrize("kind", ["sync", "async"])
UNSENT = unsent()


def gap(first: int, last: int, reason: str = "cap", earliest: int | None = None) -> dict[str, object]:
    return {
        "gap_from": first, "gap_to": last, "reason": reason, "missed_estimate": last - first + 1,
        "earliest_seq": last + 1 if earliest is None else earliest, "head_seq": 100,
    }  # fmt: skip


def read(
    *seqs: int, to: int | None = None, caught_up: bool = False, tombstone: dict[str, object] | None = None,
    epoch: int = 0,
) -> Response:  # fmt: skip
    end = seqs[-1] if to is None else to
    return answered(
        {
            "topic": "jobs", "records": [{"$seq": seq, "$ts": 1, "data": seq} for seq in seqs], "next_from_seq": end,
            "head_seq": 100, "earliest_seq": 1, "caught_up": caught_up, "tombstone": tombstone, "lag": 100 - end,
            "epoch": epoch,
        }
    )  # fmt: skip


def shown(items: list[Record | Gap]) -> list[object]:
    return [item.seq if isinstance(item, Record) else (item.gap_from, item.gap_to, item.reason) for item in items]


def asked(script: Script) -> list[int]:
    return [json.loads(request.content)["from_seq"] for request in script.requests]


@both
def test_it_reads_on_from_where_the_answer_ended_and_ends_with_the_topic(kind: str) -> None:
    script = Script([read(1, 2), read(5, to=7), read(to=9), read(10, caught_up=True)])
    assert shown(Driver(kind, script).collect("follow", "jobs", wait_ms=0)) == [1, 2, 5, 10]
    assert asked(script) == [0, 2, 7, 9]


@both
def test_gaps_come_in_their_place(kind: str) -> None:
    answers = [read(1, 2), read(6, 7, tombstone=gap(3, 5)), read(to=9, tombstone=gap(8, 9, "ttl"), caught_up=True)]
    items = Driver(kind, Script(answers)).collect("follow", "jobs", 0, wait_ms=0)
    assert shown(items) == [1, 2, (3, 5, "cap"), 6, 7, (8, 9, "ttl")]


def test_what_is_asked_of_the_server() -> None:
    script = Script([read(1, caught_up=True)])
    reading: dict[str, Any] = {
        "limit": 7, "node": ["a"], "include_tags": True, "include_meta": False, "max_batch_bytes": 9
    }  # fmt: skip
    Driver("sync", script).collect("follow", "jobs", 5, wait_ms=0, **reading)
    assert json.loads(script.requests[0].content) == {"from_seq": 5, **reading}


def test_waiting_is_the_servers_business() -> None:
    script = Script([read(1, caught_up=True), read(to=1, caught_up=True), read(2, caught_up=True)])
    driver = Driver("sync", script, ClientOptions(timeout_s=3.0))
    with driver.client() as client:
        follower = client.follow("jobs", wait_ms=1500)
        assert shown([next(follower), next(follower)]) == [1, 2]
    assert driver.sleeps == []
    for request in script.requests:
        assert json.loads(request.content)["wait_ms"] == 1500
        assert request.read_timeout_s == 4.5


def test_the_cursor_moves_with_what_is_handed_out() -> None:
    script = Script([read(1, 4, to=6), read(to=8), read(12, 13, tombstone=gap(9, 11))])
    with Driver("sync", script).client() as client:
        follower = client.follow("jobs")
        cursors = [follower.cursor]
        for _ in range(5):
            next(follower)
            cursors.append(follower.cursor)
    # Behind the last item of an answer stands the end of the range that the answer passed over.
    assert cursors == [0, 1, 6, 11, 12, 13]


def test_a_topic_that_was_made_again_takes_the_cursor_back() -> None:
    tombstone = gap(1, 3, "recreated", earliest=1)
    script = Script([read(1, 2, tombstone=tombstone), read(3)])
    with Driver("sync", script).client() as client:
        follower = client.follow("jobs", 50)
        seen = [(*shown([next(follower)]), follower.cursor) for _ in range(4)]
    assert seen == [((1, 3, "recreated"), 0), (1, 1), (2, 2), (3, 3)]
    assert asked(script) == [50, 2]


def test_the_epoch_goes_with_the_cursor() -> None:
    made_again = gap(1, 3, "recreated", earliest=1)
    script = Script([read(1, 2, epoch=7), read(1, 2, tombstone=made_again, epoch=8), read(3, epoch=8)])
    with Driver("sync", script).client() as client:
        follower = client.follow("jobs", epoch=7)
        seen = [(*shown([next(follower)]), follower.cursor, follower.epoch) for _ in range(6)]
    assert seen == [(1, 1, 7), (2, 2, 7), ((1, 3, "recreated"), 0, 8), (1, 1, 8), (2, 2, 8), (3, 3, 8)]
    assert [json.loads(request.content).get("epoch") for request in script.requests] == [7, 7, 8]


def test_a_server_that_reports_no_epoch_is_sent_none() -> None:
    script = Script([read(1), read(2)])
    with Driver("sync", script).client() as client:
        follower = client.follow("jobs")
        assert (shown([next(follower), next(follower)]), follower.epoch) == ([1, 2], None)
    assert all("epoch" not in json.loads(request.content) for request in script.requests)


def test_a_topic_that_was_made_again_may_be_empty() -> None:
    script = Script([read(to=0, tombstone=gap(1, 0, "recreated")), read(1)])
    with Driver("sync", script).client() as client:
        follower = client.follow("jobs", 50)
        assert isinstance(next(follower), Gap)
        assert follower.cursor == 0
        assert shown([next(follower)]) == [1]


@both
def test_a_gap_can_be_raised(kind: str) -> None:
    script = Script([read(1, 4, 5, tombstone=None), read(8, tombstone=gap(6, 7), caught_up=True)])
    with pytest.raises(GapError) as caught:
        Driver(kind, script).collect("follow", "jobs", wait_ms=0, raise_on_gap=True)
    assert (caught.value.topic, caught.value.gap.gap_from) == ("jobs", 6)


def test_after_a_raised_gap_it_goes_on_behind_it() -> None:
    script = Script([read(8, tombstone=gap(6, 7))])
    with Driver("sync", script).client() as client:
        follower = client.follow("jobs", 5, raise_on_gap=True)
        with pytest.raises(GapError):
            next(follower)
        assert follower.cursor == 7
        assert shown([next(follower)]) == [8]


@both
def test_it_outlives_a_server_that_is_away(kind: str) -> None:
    outage: list[Outcome] = [lost(), *[UNSENT] * 200, refused(503, "not_ready"), plain(502)]
    script = Script([read(1), *outage, read(2, caught_up=True)])
    driver = Driver(kind, script)
    assert shown(driver.collect("follow", "jobs", wait_ms=0)) == [1, 2]
    assert set(asked(script)[1:]) == {1}
    assert sum(driver.sleeps) > RetryPolicy().patience_s(True)


@both
def test_its_patience_can_be_bounded(kind: str) -> None:
    with pytest.raises(ConnectionFailed):
        Driver(kind, Script([UNSENT] * 200)).collect("follow", "jobs", deadline_s=1.0)


@both
def test_a_topic_that_is_gone_ends_it_with_an_error(kind: str) -> None:
    with pytest.raises(TopicNotFound):
        Driver(kind, Script([read(1), refused(404, "topic_not_found")])).collect("follow", "jobs")


def test_an_error_leaves_it_usable() -> None:
    script = Script([read(1), refused(500, "internal"), read(2)])
    with Driver("sync", script).client() as client:
        follower = client.follow("jobs")
        next(follower)
        with pytest.raises(ClientError):
            next(follower)
        assert shown([next(follower)]) == [2]


def test_closing_ends_the_loop() -> None:
    with Driver("sync", Script([read(1, 2, 3)])).client() as client, client.follow("jobs") as follower:
        seen = []
        for item in follower:
            seen.append(item)
            if len(seen) == 2:
                follower.close()
    assert shown(seen) == [1, 2]
    assert list(follower) == []
    assert follower.cursor == 2


def test_another_thread_can_end_a_loop_that_only_fails() -> None:
    failing = threading.Event()

    def refuse(_: Seen) -> Exception:
        failing.set()
        return UNSENT

    with Driver("sync", refuse).client() as client:
        follower = client.follow("jobs")
        loop = threading.Thread(target=lambda: list(follower))
        loop.start()
        assert failing.wait(10)
        follower.close()
        loop.join(10)
        assert not loop.is_alive()


@both
def test_a_closed_client_has_nothing_to_follow(kind: str) -> None:
    driver = Driver(kind, Script([]))
    if kind == "sync":
        client = driver.client()
        client.close()
        assert list(client.follow("jobs")) == []
        return

    async def scene() -> None:
        client = driver.async_client()
        await client.aclose()
        assert [item async for item in client.follow("jobs")] == []

    asyncio.run(scene())


def holding_server(scene: Callable[[AsyncFollower, asyncio.Event], Any]) -> None:
    """Runs a scene with a follower whose server answers once and then holds its answer for ever."""

    async def play() -> None:
        held = asyncio.Event()
        answers = [read(1)]

        class Holding(AsyncFakeTransport):
            async def send(self, request: HttpRequest) -> Response:
                if answers:
                    return answers.pop()
                held.set()
                await asyncio.Event().wait()
                raise AssertionError("nobody sets that event")

        async with AsyncClient("http://server.test", transport=Holding(Script([]))) as client:
            await scene(client.follow("jobs"), held)

    asyncio.run(asyncio.wait_for(play(), 10))


def test_another_task_can_end_a_loop_that_waits() -> None:
    async def scene(follower: AsyncFollower, held: asyncio.Event) -> None:
        async def collect() -> list[Record | Gap]:
            return [item async for item in follower]

        loop = asyncio.create_task(collect())
        await held.wait()
        await follower.aclose()
        assert shown(await loop) == [1]
        assert follower.cursor == 1
        await follower.aclose()

    holding_server(scene)


def test_a_cancelled_task_is_cancelled() -> None:
    async def scene(follower: AsyncFollower, held: asyncio.Event) -> None:
        async with follower:
            assert shown([await anext(follower)]) == [1]
            loop = asyncio.ensure_future(anext(follower))
            await held.wait()
            loop.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loop
        assert [item async for item in follower] == []

    holding_server(scene)


def test_a_timeout_of_the_caller_is_the_callers() -> None:
    async def scene(follower: AsyncFollower, held: asyncio.Event) -> None:
        await anext(follower)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(follower)
        assert follower.cursor == 1

    holding_server(scene)
