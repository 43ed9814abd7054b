"""Delivery without sockets: an engine on a fake disk, ticks that a test runs by hand, and sinks that remember."""

from collections.abc import Callable
from typing import Any

import msgspec

from topics.api.live import Feeds, Frame, Projection, RunQueue, Sink, SlowLimits, Subscription
from topics.api.live.frames import RecordBatch
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record
from topics.model.router_rules import RouterWish, parse_selector
from topics.model.seq_ranges import Tombstone
from topics.model.topic_config import TopicConfigPatch
from topics.testing import FakeDisk, ManualClock, SeededEntropy


class PlainFraming:
    """Frames as JSON lines, and how often each was made."""

    def __init__(self) -> None:
        self.encoded = 0

    def _line(self, **fields: object) -> bytes:
        self.encoded += 1
        return msgspec.json.encode(fields)

    def records(self, batch: RecordBatch) -> bytes:
        self.encoded += 1
        return b'{"kind":"records","records":[%b],"from_seq":%d,"to_seq":%d,"head_seq":%d}' % (
            batch.body, batch.from_seq, batch.to_seq, batch.head_seq,
        )  # fmt: skip

    def tombstone(self, topic: str, tombstone: Tombstone, reason: str, cursor: int) -> bytes:
        return self._line(
            kind="tombstone", reason=reason, gap_from=tombstone.gap_from, gap_to=tombstone.gap_to, cursor=cursor
        )

    def caught_up(self, topic: str, head_seq: int) -> bytes:
        return self._line(kind="caught_up", head_seq=head_seq)

    def deleted(self, topic: str, head_seq: int, cursor: int) -> bytes:
        return self._line(kind="deleted", head_seq=head_seq)

    def error(self, topic: str, error: TopicsError) -> bytes:
        return self._line(kind="error", code=error.code)

    def paced(self, topic: str, retry_after_ms: int) -> bytes:
        return self._line(kind="paced", retry_after_ms=retry_after_ms)


class Rig:
    def __init__(self, **options: int) -> None:
        self.clock = ManualClock()
        settings: dict[str, Any] = {"wal_file_bytes": 65536, **options}
        self.engine = Engine.recover(
            FakeDisk(), EngineOptions(data_dir="data", **settings), self.clock, SeededEntropy(1), boot_id="a"
        )
        self._ticks: list[Callable[[], None]] = []
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self.run_queue = RunQueue(self._ticks.append, self._later, self.clock.monotonic)
        self.feeds = Feeds(self.engine, self.run_queue)
        self.framing = PlainFraming()
        self.projection = Projection(framing=self.framing)

    def _later(self, seconds: float, run: Callable[[], None]) -> None:
        self._timers.append((self.clock.monotonic() + seconds, run))

    def read_with(self, read: Callable[[str, ReadRequest, Callable[[Any], None]], None]) -> None:
        """Reads of the engine go another way from now on."""
        self.engine.read = read  # type: ignore[assignment]

    def tick(self) -> bool:
        """One tick of the loop; False when there was nothing to do."""
        due, self._ticks[:] = list(self._ticks), []
        ripe = [run for at, run in self._timers if at <= self.clock.monotonic()]
        self._timers = [(at, run) for at, run in self._timers if at > self.clock.monotonic()]
        for run in due + ripe:
            run()
        return bool(due or ripe)

    def run_until_idle(self) -> int:
        """Runs ticks until nothing is left to do; returns their number."""
        for count in range(10_000):
            if not self.tick():
                return count
        raise AssertionError("delivery never comes to rest")

    def put(self, topic: str, **config: object) -> None:
        self.engine.put_topic(topic, msgspec.convert(config, TopicConfigPatch), _expect)

    def append(self, topic: str, count: int = 1, node: str | None = None, data: object = 1) -> None:
        self.engine.append(topic, Batch(records=[Record.of(data, tag="t", node=node)] * count), _expect)

    def append_values(self, topic: str, values: list[int], node: str | None = None) -> None:
        self.engine.append(topic, Batch(records=[Record.of(value) for value in values], node=node), _expect)

    def delete(self, topic: str, before_seq: int) -> None:
        self.engine.delete_records(topic, parse_selector(before_seq, None), _expect)

    def drop(self, topic: str) -> None:
        self.engine.drop_topic(topic, False, _expect)

    def route(self, source: str, dest: str) -> None:
        self.engine.put_router(f"{source}->{dest}", RouterWish(source=source, dest=dest), _expect)

    def sink(self, **limits: float) -> "MemorySink":
        return MemorySink(self.run_queue, SlowLimits(**limits))

    def follow(self, topic: str, cursor: int = 0, sink: "MemorySink | None" = None, **options: object) -> "Follower":
        projection = msgspec.structs.replace(self.projection, **options) if options else self.projection
        sink = sink or self.sink()
        return Follower(sink, self.feeds.subscribe(sink, self.engine.core.existing(topic), projection, cursor))


def _expect(outcome: object) -> None:
    if isinstance(outcome, TopicsError):
        raise outcome


class MemorySink(Sink):
    """Records its frames. `room` is how many frames fit before it is full."""

    def __init__(self, run_queue: RunQueue, limits: SlowLimits) -> None:
        super().__init__(run_queue, limits)
        self.frames: list[tuple[Subscription, Frame]] = []
        self.room = 1_000_000
        self.ended: list[Subscription] = []
        self.slow = False
        self.beats = 0

    def transmit(self, subscription: Subscription, frame: Frame) -> None:
        assert not self.full
        assert subscription.cursor == frame.cursor
        self.frames.append((subscription, frame))
        self.room -= 1
        if self.room <= 0:
            self.filled()

    def drain(self, room: int = 1_000_000) -> None:
        self.room = room
        self.drained()

    def end_subscription(self, subscription: Subscription) -> None:
        self.ended.append(subscription)

    def end_slow(self) -> None:
        self.slow = True
        self.close()

    def beat(self) -> None:
        self.beats += 1


class Follower:
    def __init__(self, sink: MemorySink, subscription: Subscription) -> None:
        self.sink = sink
        self.subscription = subscription

    def take(self) -> list[dict[str, object]]:
        """Returns the frames sent since the last call."""
        mine = [frame for subscription, frame in self.sink.frames if subscription is self.subscription]
        self.sink.frames = [pair for pair in self.sink.frames if pair[0] is not self.subscription]
        return [msgspec.json.decode(frame.data) for frame in mine]

    def story(self) -> list[object]:
        """The same in short: the seqs of records, and other frames by their kind."""
        reported: list[object] = []
        for message in self.take():
            if message["kind"] == "records":
                records = message["records"]
                assert isinstance(records, list)
                reported.append([record["$seq"] for record in records])
            elif message["kind"] == "tombstone":
                reported.append((message["reason"], message["gap_from"], message["gap_to"]))
            else:
                reported.append(message["kind"])
        return reported
