"""No record is lost, repeated or out of order on a socket, however publishes, subscribes and unsubscribes meet.

Several sockets publish to a few topics and follow them on and off at random moments, with cursors they remember. Each
publishes records with its name and their number. In the end every follower must have seen, of every topic from its
first cursor on, every record once and in order, after all its subscriptions and breaks. The seed is printed.
"""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.http.live import LiveServer
from tests.http.talkers import Talker

_GUARD_S = 60.0
_TOPICS = ("race-disk", "race-fsync", "race-memory", "race-ephemeral")


class Player:
    """One socket that does both, and its notes."""

    def __init__(self, talker: Talker, name: str, rng: random.Random) -> None:
        self.talker = talker
        self.name = name
        self.rng = rng
        self.cursors: dict[str, int] = {}
        self.seen: dict[str, list[int]] = {topic: [] for topic in _TOPICS}
        self.following: set[str] = set()
        self.answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.moved = asyncio.Event()
        self.request_id = 0

    async def listen(self) -> None:
        order = 0
        async for frame in self.talker.frames():
            if "request_id" in frame:
                # Answers come in the order of the commands.
                assert frame["request_id"] == order + 1, frame
                order = frame["request_id"]
                self.answers.pop(order).set_result(frame)
                continue
            topic = frame["topic"]
            assert topic in self.following, frame
            if frame["op"] == "record":
                assert frame["from_seq"] == self.cursors[topic], frame
                self.cursors[topic] = frame["to_seq"]
                self.seen[topic] += [record["$seq"] for record in frame["records"]]
            else:
                assert (frame["op"], frame["head_seq"]) == ("caught_up", self.cursors[topic]), frame
            self.moved.set()

    async def command(self, op: str, **fields: object) -> dict[str, Any]:
        self.request_id += 1
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.answers[self.request_id] = future
        self.talker.send({"op": op, "request_id": self.request_id, **fields})
        return await future

    async def follow(self, topic: str) -> None:
        start = {"from_seq": self.cursors.setdefault(topic, 0)}
        self.following.add(topic)
        answer = await self.command("subscribe", topic=topic, limit=self.rng.choice([1, 3, 1000]), **start)
        assert answer["op"] == "subscribed", answer

    async def leave(self, topic: str) -> None:
        answer = await self.command("unsubscribe", topic=topic)
        assert answer == {"op": "unsubscribed", "request_id": answer["request_id"], "topics": [topic]}
        self.following.discard(topic)

    async def play(self, rounds: int) -> None:
        for _ in range(rounds):
            topic = self.rng.choice(_TOPICS)
            match self.rng.random():
                case luck if luck < 0.5:
                    records = [{"data": self.name}] * self.rng.randint(1, 4)
                    answers = [
                        self.command("publish", topic=topic, records=records) for _ in range(self.rng.randint(1, 5))
                    ]
                    assert {answer["op"] for answer in await asyncio.gather(*answers)} == {"ack"}
                case luck if luck < 0.8 and topic not in self.following:
                    await self.follow(topic)
                case _ if topic in self.following:
                    await self.leave(topic)
            await asyncio.sleep(self.rng.choice([0, 0, 0.001]))

    async def catch_up(self, heads: dict[str, int]) -> None:
        for topic in _TOPICS:
            if topic not in self.following:
                await self.follow(topic)
        while self.cursors != heads:
            self.moved.clear()
            await self.moved.wait()


async def play(url: str, seed: int, players: int, rounds: int) -> None:
    talkers = [await Talker.open(url) for _ in range(players + 1)]
    *others, judge = talkers
    for topic in _TOPICS:
        config = {"durability": topic.partition("-")[2]}
        await judge.ask({"op": "publish", "topic": topic, "records": [{"data": "first"}], "config": config})
    team = [Player(talker, f"p{n}", random.Random(f"{seed}-{n}")) for n, talker in enumerate(others)]
    listening = [asyncio.create_task(player.listen()) for player in team]
    try:
        async with asyncio.timeout(_GUARD_S):
            await asyncio.gather(*(player.play(rounds) for player in team))
            heads = {}
            for topic in _TOPICS:
                answer = await judge.ask({"op": "publish", "topic": topic, "records": [{"data": "last"}]})
                heads[topic] = answer["last_seq"]
            await asyncio.gather(*(player.catch_up(heads) for player in team))
        for player in team:
            assert player.seen == {topic: list(range(1, head + 1)) for topic, head in heads.items()}
    finally:
        for talker in talkers:
            talker.close()
        outcomes = await asyncio.gather(*listening, return_exceptions=True)
        failures = [one for one in outcomes if isinstance(one, AssertionError)]
        if failures:
            raise failures[0]


@pytest.mark.parametrize("run", range(2))
def test_every_record_comes_once_and_in_order(tmp_path: Path, run: int, seed: int) -> None:
    with LiveServer(tmp_path) as live:
        asyncio.run(play(live.url, seed + run, players=6, rounds=80))


@pytest.mark.slow
def test_every_record_comes_once_and_in_order_for_long(tmp_path: Path, seed: int) -> None:
    with LiveServer(tmp_path) as live:
        for number in range(20):
            asyncio.run(play(live.url, seed + number, players=20, rounds=300))
