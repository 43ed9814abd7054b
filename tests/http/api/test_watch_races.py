"""No wake-up is lost, however an append and a new follower meet.

Thousands of times a client begins to follow a topic while a record is appended to it: before, after, or in the middle
of it, by an event stream, by a subscription of a WebSocket, or by a long poll. Every record must come. How long each
took is printed; the promise is 50 ms on an idle machine, which `python -m bench.live --races` measures, and the test
only fails for what never comes.
"""

import asyncio
import random
import time

import pytest

from tests.http.followers import Caller, Follower
from tests.http.live import LiveServer
from tests.http.talkers import Talker

_GUARD_S = 30.0
_TOPICS = 6
_WORKERS = 12


class Race:
    """One worker: it makes a follower and an append meet, again and again."""

    def __init__(self, url: str, number: int, rng: random.Random) -> None:
        self.url = url
        self.number = number
        self.rng = rng
        self.waits_ms: list[float] = []

    async def run(self, rounds: int) -> None:
        self.maker, self.writer = await Caller.connect(self.url), await Caller.connect(self.url)
        try:
            for round_number in range(rounds):
                async with asyncio.timeout(_GUARD_S):
                    await self.once(f"{self.number}-{round_number}")
        finally:
            self.maker.close()
            self.writer.close()

    async def once(self, word: str) -> None:
        raise NotImplementedError

    def some_topics(self) -> list[str]:
        return self.rng.sample([f"race-{n}" for n in range(_TOPICS)], self.rng.choice([1, 1, 2, 3]))

    async def a_moment(self) -> None:
        await asyncio.sleep(self.rng.choice([0, 0, 0.0005, 0.002]) * self.rng.random())

    async def append(self, topic: str, word: str) -> tuple[int, float]:
        await asyncio.sleep(self.rng.choice([0, 0.001, 0.003]) * self.rng.random())
        [seq] = await self.writer.append(topic, word)
        return seq, time.monotonic()

    async def head(self, topic: str) -> int:
        status, state = await self.maker.call("GET", f"/v0/topics/{topic}")
        assert status == 200
        return int(state["head_seq"])


class WatchRace(Race):
    """By an event stream."""

    async def once(self, word: str) -> None:
        topics = self.some_topics()
        topic = topics[0]
        start = self.rng.choice([{"tail": True}, {}])
        made = await self.maker.watch({name: start for name in topics}, consistency=self.consistency())
        since = made["topics"][topic]["head_seq"]
        appended = asyncio.create_task(self.append(topic, word))
        await self.a_moment()
        follower = await Follower.open(self.url, made["stream_url"])
        opened = time.monotonic()
        try:
            found = await self.find(follower, topic, word)
        finally:
            follower.close()
        seq, answered = await appended
        assert found == seq > since
        self.waits_ms.append((time.monotonic() - max(opened, answered)) * 1000)

    def consistency(self) -> str:
        return self.rng.choice(["eventual", "eventual", "strong"])

    async def find(self, follower: Follower, topic: str, word: str) -> int:
        last = 0
        async for event in follower.events():
            data = event.data
            if event.name != "record" or data["topic"] != topic:
                assert event.name in ("record", "caught-up")
                continue
            for record in data["records"]:
                assert record["$seq"] > last
                last = int(record["$seq"])
                if record["data"] == word:
                    return last
        raise AssertionError("the stream ended")


class SocketRace(Race):
    """By a subscription, on a socket that stays open and follows on and off."""

    async def run(self, rounds: int) -> None:
        self.talker = await Talker.open(self.url)
        try:
            await super().run(rounds)
        finally:
            self.talker.close()

    async def once(self, word: str) -> None:
        topics = self.some_topics()
        starts = {topic: {"from_seq": await self.head(topic)} for topic in topics}
        appended = asyncio.create_task(self.append(topics[0], word))
        await self.a_moment()
        self.talker.send({"op": "subscribe", "topics": starts})
        opened = time.monotonic()
        found = await self.find(topics[0], word)
        seq, answered = await appended
        assert found == seq > starts[topics[0]]["from_seq"]
        self.waits_ms.append((time.monotonic() - max(opened, answered)) * 1000)
        self.talker.send({"op": "unsubscribe", "topics": topics})
        while (await self.talker.frame())["op"] != "unsubscribed":
            pass

    async def find(self, topic: str, word: str) -> int:
        while True:
            frame = await self.talker.frame()
            assert frame["op"] in ("subscribed", "record", "caught_up"), frame
            for record in frame.get("records", ()):
                if (frame["topic"], record["data"]) == (topic, word):
                    return int(record["$seq"])


class PollRace(Race):
    """By a long poll, which must be answered by the append and not by its own end."""

    async def once(self, word: str) -> None:
        [topic, *_] = self.some_topics()
        cursor = await self.head(topic)
        appended = asyncio.create_task(self.append(topic, word))
        await self.a_moment()
        opened, found = time.monotonic(), None
        while found is None:
            body = {"from_seq": cursor, "wait_ms": 30_000}
            status, answer = await self.maker.call("POST", f"/v0/topics/{topic}/diff", body)
            assert status == 200 and answer["records"], "it ended by itself"
            cursor = answer["next_from_seq"]
            found = next((record["$seq"] for record in answer["records"] if record["data"] == word), None)
        seq, answered = await appended
        assert found == seq
        self.waits_ms.append((time.monotonic() - max(opened, answered)) * 1000)


async def race(url: str, kind: type[Race], rounds: int, seed: int) -> list[float]:
    caller = await Caller.connect(url)
    for number in range(_TOPICS):
        durability = ["disk", "fsync", "memory", "ephemeral"][number % 4]
        await caller.call("PUT", f"/v0/topics/race-{number}", {"durability": durability})
    caller.close()
    workers = [kind(url, number, random.Random(seed * 1000 + number)) for number in range(_WORKERS)]
    await asyncio.gather(*(worker.run(rounds // _WORKERS) for worker in workers))
    return sorted(wait for worker in workers for wait in worker.waits_ms)


@pytest.mark.parametrize(
    "rounds", [pytest.param(600, id="some"), pytest.param(6_000, id="thousands", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", [WatchRace, SocketRace, PollRace])
def test_followers_that_join_during_writes_get_every_record(
    server: LiveServer, kind: type[Race], rounds: int, seed: int
) -> None:
    waits = asyncio.run(race(server.url, kind, rounds, seed))
    shown = ", ".join(
        f"p{part:g} {waits[min(int(len(waits) * part / 100), len(waits) - 1)]:.2f}" for part in (50, 90, 99, 100)
    )
    print(f"{len(waits)} races, milliseconds until delivery: {shown}")
    assert len(waits) == rounds // _WORKERS * _WORKERS
