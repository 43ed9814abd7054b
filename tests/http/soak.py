"""Many followers that check their records: the world of `test_live_soak`.

Each record states which topic it is of, the how-manieth of that name, and its number there. So every follower knows
what has to come next, whatever happened to it, to the topic or to the connection, and fails at the first thing that is
missing, repeated, out of order or of another topic.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.http.crew import Crew
from tests.http.followers import Caller, Follower

PAD = "x" * 400
# Topics with small caps get large records, so that a slow reader soon has a full buffer and then a gap.
LARGE_PAD = "x" * 20_000
WRITERS = 8
_APPENDS_PER_S = 120
_TELL_MAX = 10

KEEPING = [f"keeping-{n}" for n in range(30)]
LOSSY = [f"lossy-{n}" for n in range(10)]
MORTAL = [f"mortal-{n}" for n in range(10)]
TOPICS = KEEPING + LOSSY + MORTAL


class Plan(NamedTuple):
    """The amount of it, and the longest waits. Only to fail instead of hanging."""

    seconds: float
    streams: int
    sockets: int
    guard_s: float
    session_ttl_s: float


class World:
    """The records that were written, and the events of the run."""

    def __init__(self, url: str, seed: int, plan: Plan) -> None:
        self.url = url
        self.plan = plan
        self.rng = random.Random(seed)
        self.instances = dict.fromkeys(TOPICS, 1)
        self.heads = dict.fromkeys(TOPICS, 0)
        self.busy = {topic: asyncio.Lock() for topic in TOPICS}
        self.closing = False
        self.over = False
        """Nothing more is written or deleted."""
        self.happened: Counter[str] = Counter()

    def config(self, topic: str) -> dict[str, object]:
        cap = {"cap_records": 10} if topic in LOSSY else {}
        return {"durability": self.rng.choice(["disk", "memory", "ephemeral"]), **cap}

    async def write(self) -> None:
        """Appends to random topics until it is over."""
        with await Caller.connect(self.url) as caller:
            while not self.closing:
                topic = self.rng.choice(TOPICS)
                async with self.busy[topic]:
                    count, head = self.rng.choice([1, 1, 1, 3]), self.heads[topic]
                    values = [
                        [topic, self.instances[topic], head + n + 1, LARGE_PAD if topic in LOSSY else PAD]
                        for n in range(count)
                    ]
                    seqs = await caller.append(topic, *values)
                    assert seqs == list(range(head + 1, head + count + 1))
                    self.heads[topic] += count
                    self.happened["records"] += count
                await asyncio.sleep(WRITERS / _APPENDS_PER_S)

    async def kill(self) -> None:
        """Deletes a topic now and then, and makes it anew at once or later."""
        with await Caller.connect(self.url) as caller:
            while not self.closing:
                await asyncio.sleep(1.5)
                topic = self.rng.choice(MORTAL)
                async with self.busy[topic]:
                    status, _ = await caller.call("DELETE", f"/v0/topics/{topic}")
                    assert status == 200
                    self.happened["deleted topics"] += 1
                    await asyncio.sleep(self.rng.choice([0, 0.3]))
                    self.instances[topic] += 1
                    self.heads[topic] = 0
                    await caller.call("PUT", f"/v0/topics/{topic}", self.config(topic))


class Reader:
    """The records that one follower has seen of its topics, checked as they arrive."""

    def __init__(self, world: World, topics: list[str]) -> None:
        self.world = world
        self.topics = topics
        self.cursors = dict.fromkeys(topics, 0)
        self.instances: dict[str, int | None] = {topic: world.instances[topic] for topic in topics}
        self.doing = "nothing yet"

    def records(self, topic: str, records: list[dict[str, Any]]) -> None:
        for record in records:
            name, instance, number, _ = record["data"]
            known = self.instances[topic]
            assert name == topic
            assert known in (None, instance), f"{topic}: of {instance}, while following {known}"
            assert record["$seq"] == number == self.cursors[topic] + 1, f"{topic}: {number} after {self.cursors[topic]}"
            self.instances[topic] = instance
            self.cursors[topic] = number
        self.world.happened["deliveries"] += len(records)

    def tombstone(self, topic: str, reported: dict[str, Any]) -> None:
        if reported["reason"] == "recreated":
            assert topic in MORTAL
            self.instances[topic] = None
            self.cursors[topic] = 0
        else:
            assert topic in LOSSY, reported
            assert reported["gap_from"] == self.cursors[topic] + 1
            self.cursors[topic] = reported["gap_to"]
        self.world.happened[f"tombstone {reported['reason']}"] += 1

    async def maybe_nap(self, rng: random.Random, chance: float, lengths: list[float]) -> None:
        if rng.random() < chance and not self.world.over:
            self.world.happened["naps"] += 1
            self.doing = "napping"
            await asyncio.sleep(rng.choice(lengths))
            self.doing = "reading"

    def done(self) -> bool:
        return not self.missing()

    def missing(self) -> list[str]:
        """The topics that it has not seen to their end."""
        world = self.world
        return [
            f"{type(self).__name__}, {self.doing}, {topic}: {self.cursors[topic]} of {world.heads[topic]}, "
            f"{self.instances[topic]} of {world.instances[topic]}"
            for topic in self.topics
            if self.cursors[topic] != world.heads[topic] or self.instances[topic] not in (None, world.instances[topic])
        ]


class StreamReader(Reader):
    """Follows by an event stream; comes back to its session after every end, and makes another when it is gone."""

    async def run(self, rng: random.Random) -> None:
        world = self.world
        path, last = await self.make_session(), None
        window = rng.choice([None, None, None, 4096])
        opened = time.monotonic()
        while True:
            self.doing = "opening"
            try:
                follower = await Follower.open(world.url, path, last, window=window)
            except ConnectionRefusedError as refusal:
                # Forgotten, which it may only be after its time without a stream; and it had one until then.
                assert " 404 " in str(refusal), refusal
                assert time.monotonic() - opened >= world.plan.session_ttl_s, "a session was forgotten too early"
                world.happened["forgotten sessions"] += 1
                path, last = await self.make_session(), None
                continue
            opened = time.monotonic()
            try:
                await self.follow(follower, rng, chance=0.002 if window is None else 0.02)
            except (asyncio.IncompleteReadError, ConnectionError):
                world.happened["cut off"] += 1
            finally:
                last = follower.last_id or last
                follower.close()
            world.happened["streams"] += 1
            self.doing = "between two streams"
            await asyncio.sleep(rng.random() * 0.2)

    async def make_session(self) -> str:
        """A session from where this reader stands. Topics that may be others by now are begun anew."""
        for topic in set(self.topics) & set(MORTAL):
            self.cursors[topic], self.instances[topic] = 0, None
        starts = {topic: {"from_seq": self.cursors[topic]} for topic in self.topics}
        body = {"topics": starts, "limit": 50, "heartbeat_ms": 1000}
        with await Caller.connect(self.world.url) as caller:
            while (answer := await caller.call("POST", "/v0/watch", body))[0] == 404:
                # One of them is deleted at this moment.
                await asyncio.sleep(0.1)
        status, made = answer
        assert status == 200, made
        return str(made["stream_url"])

    async def follow(self, follower: Follower, rng: random.Random, chance: float) -> None:
        self.doing = "reading"
        stay = time.monotonic() + rng.choice([1, 4, 15, 1000])
        async for event in follower.events():
            if not self.take(event.name, event.data) or time.monotonic() > stay:
                return
            await self.maybe_nap(rng, chance, [0.5, 3, 15])

    def take(self, name: str, data: dict[str, Any]) -> bool:
        """Whether to go on with this stream."""
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
                if data["code"] == 429:
                    # Only advice: late requests still come.
                    self.world.happened["paced"] += 1
                    return True
                assert data["code"] == 408, data
                self.world.happened["too slow"] += 1
                return False
        return True


class SocketReader(Reader):
    """Follows by a WebSocket; subscribes again from its cursors."""

    async def run(self, rng: random.Random) -> None:
        world = self.world
        target = world.url.replace("http:", "ws:", 1) + "/v0/ws"
        while True:
            stay = time.monotonic() + rng.choice([1, 4, 15, 1000])
            self.doing = "opening"
            # The guard limits the time for opening, and no ping needs an answer during a pause.
            async with connect(target, compression=None, proxy=None, open_timeout=None, ping_interval=None) as socket:
                starts = {topic: {"from_seq": self.cursors[topic]} for topic in self.topics}
                await socket.send(json.dumps({"op": "subscribe", "topics": starts, "limit": 50}))
                self.doing = "reading"
                try:
                    while time.monotonic() < stay:
                        try:
                            # Not by `wait_for`, which loses a cancellation that comes together with a frame.
                            async with asyncio.timeout(1.0):
                                text = await socket.recv()
                        except TimeoutError:
                            continue
                        self.take(json.loads(text))
                        await self.maybe_nap(rng, 0.002, [0.5, 3])
                except ConnectionClosed:
                    world.happened["cut off"] += 1
                self.doing = "closing"
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


async def soak(url: str, seed: int, plan: Plan) -> Counter[str]:
    """All of it, from topics that do not exist to topics that do not exist any more."""
    world = World(url, seed, plan)
    await _for_each_topic(url, lambda caller, topic: caller.call("PUT", f"/v0/topics/{topic}", world.config(topic)))
    await _follow_and_write(world, seed)
    await _for_each_topic(url, lambda caller, topic: caller.call("DELETE", f"/v0/topics/{topic}"))
    return world.happened


async def _for_each_topic(url: str, ask: Callable[[Caller, str], Awaitable[tuple[int, Any]]]) -> None:
    with await Caller.connect(url) as caller:
        for topic in TOPICS:
            status, answer = await ask(caller, topic)
            assert status in (200, 201), answer


async def _follow_and_write(world: World, seed: int) -> None:
    rng, plan = world.rng, world.plan
    readers: list[StreamReader | SocketReader] = []
    for _ in range(plan.streams):
        readers.append(StreamReader(world, rng.sample(TOPICS, rng.choice([1, 1, 2, 4]))))
    # A client's cursor cannot distinguish two topics of one name, so these follow topics that are never deleted.
    for _ in range(plan.sockets):
        readers.append(SocketReader(world, rng.sample(KEEPING + LOSSY, rng.choice([1, 2, 4]))))
    crew = Crew()
    writers = [crew.start(world.write()) for _ in range(WRITERS)]
    writers.append(crew.start(world.kill()))

    async def lead() -> None:
        for number, reader in enumerate(readers):
            crew.start(reader.run(random.Random(seed + number)))
            if number % 20 == 0:
                await asyncio.sleep(0.01)
        await asyncio.sleep(plan.seconds)
        world.closing = True
        await asyncio.wait(writers)
        world.over = True
        over = time.monotonic()
        await _all_have_everything(readers, plan.guard_s)
        print(f"everyone had everything {time.monotonic() - over:.1f} s later")

    await crew.until(lead(), plan.seconds + 2 * plan.guard_s)


async def _all_have_everything(readers: list[StreamReader | SocketReader], guard_s: float) -> None:
    give_up = time.monotonic() + guard_s
    while missing := [reader.missing() for reader in readers if not reader.done()]:
        assert time.monotonic() < give_up, f"{len(missing)} wait for ever: {missing[:_TELL_MAX]}"
        await asyncio.sleep(0.1)


async def until_nobody_is_left(url: str, guard_s: float) -> None:
    """Waits until every connection and every session is gone."""
    async with asyncio.timeout(2 * guard_s):
        give_up = time.monotonic() + guard_s
        while left := await _left(url):
            assert time.monotonic() < give_up, f"still there: {left}"
            await asyncio.sleep(0.5)


async def _left(url: str) -> dict[str, int]:
    with await Caller.connect(url) as caller:
        # A lookup of a session removes idle ones.
        assert (await caller.call("GET", "/v0/watch/none"))[0] == 404
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(b"GET /v0/metrics HTTP/1.0\r\naccept: application/json\r\n\r\n")
    metrics = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
    writer.close()
    shown = {name: int(metrics[name]) for name in ("topics_sse_connections", "topics_watch_sessions")}
    return {name: number for name, number in shown.items() if number}
