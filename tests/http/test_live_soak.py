"""Many followers for a long time: everyone sees every record of its topics once and in order, or is told of the gap.

A thousand event streams and two hundred WebSockets follow fifty topics. They come and go, some read slowly or not at
all for a while, some topics keep only their newest records, and some are deleted and made anew. Each record says which
topic it is of, the how-manieth of that name, and its number there, so every follower can check what it gets by itself.

TOPICS_SOAK_S sets the seconds of it, TOPICS_SOAK_SHARE the part of the followers.
"""

import asyncio
import json
import os
import random
import resource
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.http.api.conftest import wait_until_ready
from tests.http.followers import Caller, Follower
from tests.http.live import LiveServer

SECONDS = float(os.environ.get("TOPICS_SOAK_S", "120"))
SHARE = float(os.environ.get("TOPICS_SOAK_SHARE", "1"))
STREAMS, SOCKETS = int(1000 * SHARE), int(200 * SHARE)
RATE = 120
PAD = "x" * 400
# Those that keep little are large, so that who does not read is soon full and then too late.
LARGE_PAD = "x" * 20_000
# Only to fail instead of hanging.
GUARD_S = 120.0
GROWTH_BYTES_MAX = 96 * 1024 * 1024

KEEPING = [f"keeping-{n}" for n in range(30)]
LOSSY = [f"lossy-{n}" for n in range(10)]
MORTAL = [f"mortal-{n}" for n in range(10)]
TOPICS = KEEPING + LOSSY + MORTAL


class World:
    """What was written, and what happened on the way."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.dice = random.Random(seed)
        self.instances = dict.fromkeys(TOPICS, 1)
        self.heads = dict.fromkeys(TOPICS, 0)
        self.busy = {topic: asyncio.Lock() for topic in TOPICS}
        self.closing = False
        self.over = False
        """Nothing more is written or deleted."""
        self.happened: Counter[str] = Counter()

    def config(self, topic: str) -> dict[str, object]:
        cap = {"cap_records": 10} if topic in LOSSY else {}
        return {"durability": self.dice.choice(["disk", "memory", "ephemeral"]), **cap}

    async def write(self) -> None:
        """Appends to random topics until it is over."""
        caller = await Caller.connect(self.url)
        while not self.closing:
            topic = self.dice.choice(TOPICS)
            async with self.busy[topic]:
                count, head = self.dice.choice([1, 1, 1, 3]), self.heads[topic]
                values = [
                    [topic, self.instances[topic], head + n + 1, LARGE_PAD if topic in LOSSY else PAD]
                    for n in range(count)
                ]
                seqs = await caller.append(topic, *values)
                assert seqs == list(range(head + 1, head + count + 1))
                self.heads[topic] += count
                self.happened["records"] += count
            await asyncio.sleep(8 / RATE)
        caller.close()

    async def kill(self) -> None:
        """Deletes a topic now and then, and makes it anew at once or later."""
        caller = await Caller.connect(self.url)
        while not self.closing:
            await asyncio.sleep(1.5)
            topic = self.dice.choice(MORTAL)
            async with self.busy[topic]:
                status, _ = await caller.call("DELETE", f"/v0/topics/{topic}")
                assert status == 200
                self.happened["deleted topics"] += 1
                await asyncio.sleep(self.dice.choice([0, 0.3]))
                self.instances[topic] += 1
                self.heads[topic] = 0
                await caller.call("PUT", f"/v0/topics/{topic}", self.config(topic))
        caller.close()


class Reader:
    """What one follower has seen of its topics, checked as it comes."""

    def __init__(self, world: World, topics: list[str]) -> None:
        self.world = world
        self.topics = topics
        self.cursors = dict.fromkeys(topics, 0)
        self.instances: dict[str, int | None] = {topic: world.instances[topic] for topic in topics}

    def records(self, topic: str, records: list[dict[str, Any]]) -> None:
        for record in records:
            name, instance, number, _ = record["data"]
            known = self.instances[topic]
            assert name == topic
            assert known in (None, instance), f"{topic}: of {instance}, while following {known}"
            assert record["$seq"] == number == self.cursors[topic] + 1, f"{topic}: {number} after {self.cursors[topic]}"
            self.instances[topic] = instance
            self.cursors[topic] = number

    def tombstone(self, topic: str, told: dict[str, Any]) -> None:
        if told["reason"] == "recreated":
            assert topic in MORTAL
            self.instances[topic] = None
            self.cursors[topic] = 0
        else:
            assert topic in LOSSY, told
            assert told["gap_from"] == self.cursors[topic] + 1
            self.cursors[topic] = told["gap_to"]
        self.world.happened[f"tombstone {told['reason']}"] += 1

    def done(self) -> bool:
        return not self.missing()

    def missing(self) -> list[str]:
        """The topics that it has not seen to their end."""
        world = self.world
        return [
            f"{type(self).__name__} {topic}: {self.cursors[topic]} of {world.heads[topic]}, "
            f"{self.instances[topic]} of {world.instances[topic]}"
            for topic in self.topics
            if self.cursors[topic] != world.heads[topic] or self.instances[topic] not in (None, world.instances[topic])
        ]


class StreamReader(Reader):
    """Follows by an event stream; comes back to its session after every end."""

    async def run(self, dice: random.Random) -> None:
        world = self.world
        caller = await Caller.connect(world.url)
        body = {"topics": {topic: {} for topic in self.topics}, "limit": 50, "heartbeat_ms": 1000}
        status, made = await caller.call("POST", "/v0/watch", body)
        while status == 404:
            # One of them is deleted at this moment.
            await asyncio.sleep(0.1)
            status, made = await caller.call("POST", "/v0/watch", body)
        assert status == 200, made
        caller.close()
        # What existed when the session was made is what it begins with.
        self.instances = dict.fromkeys(self.topics)
        last: str | None = None
        window = dice.choice([None, None, None, 4096])
        while True:
            follower = await Follower.open(world.url, made["stream_url"], last, window=window)
            stay = time.monotonic() + dice.choice([1, 4, 15, 1000])
            try:
                async for event in follower.events():
                    if not self.take(event.name, event.data):
                        break
                    last = event.id or last
                    if dice.random() < (0.002 if window is None else 0.02) and not world.over:
                        world.happened["naps"] += 1
                        await asyncio.sleep(dice.choice([0.5, 3, 15]))
                    if time.monotonic() > stay:
                        break
            except (asyncio.IncompleteReadError, ConnectionError, ValueError):
                world.happened["cut off"] += 1
            finally:
                follower.close()
            world.happened["streams"] += 1
            await asyncio.sleep(dice.random() * 0.2)

    def take(self, name: str, data: dict[str, Any]) -> bool:
        match name:
            case "record":
                self.records(data["topic"], data["records"])
            case "tombstone":
                self.tombstone(data["topic"], data)
            case "caught-up":
                assert data["head_seq"] == self.cursors[data["topic"]]
            case "topic-deleted":
                self.world.happened["told of deletes"] += 1
                # Following the next topic of the name needs a new stream.
                return False
            case "error":
                assert data["code"] == 408, data
                self.world.happened["too slow"] += 1
                return False
        return True


class SocketReader(Reader):
    """Follows by a WebSocket; subscribes again from its cursors."""

    async def run(self, dice: random.Random) -> None:
        world = self.world
        target = world.url.replace("http:", "ws:", 1) + "/v0/ws"
        while True:
            stay = time.monotonic() + dice.choice([1, 4, 15, 1000])
            async with connect(target, compression=None, proxy=None) as socket:
                starts = {topic: {"from_seq": self.cursors[topic]} for topic in self.topics}
                await socket.send(json.dumps({"op": "subscribe", "topics": starts, "limit": 50}))
                try:
                    while time.monotonic() < stay:
                        try:
                            text = await asyncio.wait_for(socket.recv(), 1.0)
                        except TimeoutError:
                            continue
                        self.take(json.loads(text))
                        if dice.random() < 0.002 and not world.over:
                            world.happened["naps"] += 1
                            await asyncio.sleep(dice.choice([0.5, 3]))
                except ConnectionClosed:
                    world.happened["cut off"] += 1
            world.happened["sockets"] += 1

    def take(self, frame: dict[str, Any]) -> None:
        match frame["op"]:
            case "record":
                self.records(frame["topic"], frame["records"])
            case "tombstone":
                self.tombstone(frame["topic"], frame)
            case "caught_up":
                assert frame["head_seq"] == self.cursors[frame["topic"]]
            case "subscribed":
                assert frame["topics"].keys() == set(self.topics)
            case op:
                assert (op, frame.get("code")) == ("error", "slow_consumer"), frame


async def soak(url: str, seed: int) -> Counter[str]:
    world = World(url, seed)
    caller = await Caller.connect(url)
    for topic in TOPICS:
        await caller.call("PUT", f"/v0/topics/{topic}", world.config(topic))
    caller.close()
    readers: list[StreamReader | SocketReader] = []
    for _ in range(STREAMS):
        readers.append(StreamReader(world, world.dice.sample(TOPICS, world.dice.choice([1, 1, 2, 4]))))
    # A cursor of one's own cannot tell two topics of one name apart, so these follow what is never deleted.
    for _ in range(SOCKETS):
        readers.append(SocketReader(world, world.dice.sample(KEEPING + LOSSY, world.dice.choice([1, 2, 4]))))
    async with asyncio.TaskGroup() as group:
        writers = [group.create_task(world.write()) for _ in range(8)]
        killer = group.create_task(world.kill())
        following = []
        for number, reader in enumerate(readers):
            following.append(group.create_task(reader.run(random.Random(seed + number))))
            if number % 20 == 0:
                await asyncio.sleep(0.01)
        await asyncio.sleep(SECONDS)
        world.closing = True
        await asyncio.wait([*writers, killer])
        world.over = True
        give_up = time.monotonic() + GUARD_S
        while missing := [reader.missing() for reader in readers if not reader.done()]:
            assert time.monotonic() < give_up, missing
            await asyncio.sleep(0.1)
        for task in following:
            # Those that have everything wait for more.
            task.cancel()
    return world.happened


@pytest.mark.slow
def test_everyone_sees_everything_once_and_memory_comes_back(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    # A file for every connection, here and in the server, which inherits it.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    settings = {
        "tail_memory_bytes": "2000000", "segment_max_events": "500", "map_cache_bytes": "4000000",
        "slow_consumer_timeout_ms": "4000", "buffer_grace_ms": "1000", "watch_session_ttl_ms": "40000",
    }  # fmt: skip
    with LiveServer(tmp_path, **settings) as live:
        wait_until_ready(live.url)
        asyncio.run(warm_up(live.url))
        before = resources(live)
        happened = asyncio.run(asyncio.wait_for(soak(live.url, seed), SECONDS + 2 * GUARD_S))
        print(dict(happened))
        left = asyncio.run(settled(live))
        print(f"memory {before[0] / 1e6:.0f} MB before, {left[0] / 1e6:.0f} MB after; {before[1]} and {left[1]} files")
        assert left[0] - before[0] < GROWTH_BYTES_MAX
        assert left[1] <= before[1] + 60
        assert "Traceback" not in live.log(), live.log()
    assert happened["records"] > 0


async def warm_up(url: str) -> None:
    """So that what is loaded once is not counted as growth."""
    caller = await Caller.connect(url)
    await caller.append("warm", "up")
    made = await caller.watch({"warm": {}})
    follower = await Follower.open(url, made["stream_url"])
    async for event in follower.events():
        if event.name == "caught-up":
            break
    follower.close()
    caller.close()


async def settled(live: LiveServer) -> tuple[int, int]:
    """Resident memory and open files once every connection and session is gone."""
    caller = await Caller.connect(live.url)
    give_up = time.monotonic() + GUARD_S
    while time.monotonic() < give_up:
        # Making a session is what forgets idle ones.
        await caller.watch({"warm": {}})
        if await connections(live.url) == 0:
            break
        await asyncio.sleep(0.5)
    caller.close()
    return resources(live)


async def connections(url: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(b"GET /v0/metrics HTTP/1.0\r\naccept: application/json\r\n\r\n")
    answer = await reader.read()
    writer.close()
    metrics = json.loads(answer.partition(b"\r\n\r\n")[2])
    return int(metrics["topics_sse_connections"])


def resources(live: LiveServer) -> tuple[int, int]:
    assert live._process is not None
    process = Path(f"/proc/{live._process.pid}")
    [resident] = [
        line.split()[1] for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS:")
    ]
    return int(resident) * 1024, len(list((process / "fd").iterdir()))
