"""No wake-up is lost, however an append and a new follower meet.

Thousands of times somebody begins to follow a topic while a record is appended to it: before, after, or in the middle
of it. Every record must come. How long each took is printed; the promise is 50 ms on an idle machine, and the test only
fails for what never comes.
"""

import asyncio
import random
import time

import pytest

from tests.http.followers import Caller, Follower
from tests.http.live import LiveServer

_GUARD_S = 30.0
_TOPICS = 6
_WORKERS = 12


class Race:
    """One worker: it makes a follower and an append meet, again and again."""

    def __init__(self, url: str, number: int, dice: random.Random) -> None:
        self.url = url
        self.number = number
        self.dice = dice
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
        topics = self.dice.sample([f"race-{n}" for n in range(_TOPICS)], self.dice.choice([1, 1, 2, 3]))
        topic = topics[0]
        start = self.dice.choice([{"tail": True}, {}])
        made = await self.maker.watch({name: start for name in topics}, consistency=self.consistency())
        since = made["topics"][topic]["head_seq"]
        appended = asyncio.create_task(self.append(topic, word))
        await asyncio.sleep(self.dice.choice([0, 0, 0.0005, 0.002]) * self.dice.random())
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
        return self.dice.choice(["eventual", "eventual", "strong"])

    async def append(self, topic: str, word: str) -> tuple[int, float]:
        await asyncio.sleep(self.dice.choice([0, 0.001, 0.003]) * self.dice.random())
        [seq] = await self.writer.append(topic, word)
        return seq, time.monotonic()

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


async def race(url: str, rounds: int, seed: int) -> list[float]:
    caller = await Caller.connect(url)
    for number in range(_TOPICS):
        durability = ["disk", "fsync", "memory", "ephemeral"][number % 4]
        await caller.call("PUT", f"/v0/topics/race-{number}", {"durability": durability})
    caller.close()
    workers = [Race(url, number, random.Random(seed * 1000 + number)) for number in range(_WORKERS)]
    await asyncio.gather(*(worker.run(rounds // _WORKERS) for worker in workers))
    return sorted(wait for worker in workers for wait in worker.waits_ms)


@pytest.mark.parametrize(
    "rounds", [pytest.param(600, id="some"), pytest.param(6_000, id="thousands", marks=pytest.mark.slow)]
)
def test_every_record_reaches_whoever_began_to_follow_meanwhile(server: LiveServer, rounds: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    waits = asyncio.run(race(server.url, rounds, seed))
    shown = ", ".join(
        f"p{part:g} {waits[min(int(len(waits) * part / 100), len(waits) - 1)]:.2f}" for part in (50, 90, 99, 100)
    )
    print(f"{len(waits)} races, milliseconds until delivery: {shown}")
    assert len(waits) == rounds // _WORKERS * _WORKERS
