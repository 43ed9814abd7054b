"""A stream of several topics: a turn of delivery is one write, in order, each event with its id."""

from tests.unit.api.live.rig import Rig
from topics.api.auth import ANYONE, KeyRing
from topics.api.live import Live, LiveLimits, Sweep
from topics.api.live.run_queue import ALLOWANCE
from topics.api.v0.watch import SHARED, WatchStream, read_id
from topics.http.streaming import Stream
from topics.testing import SeededEntropy


class Channel:
    """A connection that records its output, and has room for so many bytes."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.room_left = 1 << 30
        self.ended = False

    @property
    def write_paused(self) -> bool:
        return self.room_left <= 0

    def write(self, data: bytes) -> bool:
        self.writes.append(data)
        self.room_left -= len(data)
        return not self.write_paused

    def end_stream(self, *, last: bool) -> None:
        self.ended = True

    @property
    def buffered_bytes(self) -> int:
        return 0

    def room(self, account: object) -> int:
        return 1 << 20


class Watch:
    def __init__(self, topics: int) -> None:
        self.rig = Rig()
        self.names = [f"t{number:03}" for number in range(topics)]
        for name in self.names:
            self.rig.put(name)
        live = Live(LiveLimits(), KeyRing([]), self.rig.clock, SeededEntropy(1))
        live.run_queue, live._feeds, live.sweep = self.rig.run_queue, self.rig.feeds, Sweep(self.rig.run_queue)
        ids = {name: self.rig.engine.core.existing(name).id for name in self.names}
        projection = self.rig.projection
        session = live.sessions.create(ANYONE, projection, 10_000, dict.fromkeys(self.names, 0), ids, ids)
        self.cursors = session.cursors
        self.sink = WatchStream(live, session, set())
        self.stream = Stream(chunked=False, muted=False)
        self.channel = Channel()
        self.stream.begin(self.channel)
        self.sink.open(self.stream)
        self.rig.run_until_idle()

    def events(self) -> list[tuple[str, bytes]]:
        """Returns the events written since the last call: the id and the kind of each."""
        text, self.channel.writes = b"".join(self.channel.writes).decode(), []
        found = []
        for event in text.split("\n\n")[:-1]:
            fields = dict(line.split(": ", 1) for line in event.split("\n"))
            found.append((fields.get("id", ""), fields.get("event", "").encode()))
        return found


def test_topics_that_change_together_are_written_together() -> None:
    watch = Watch(80)
    watch.events()
    # As a commit of many forwards does: all of them are notified in one tick.
    scheduler = watch.rig.engine.core.scheduler
    ticks: list[object] = []
    defer, scheduler._defer = scheduler._defer, ticks.append
    for name in watch.names:
        watch.rig.append_values(name, [1])
    scheduler._defer = defer
    assert len(ticks) == 1
    scheduler.run()
    watch.rig.run_until_idle()
    assert len(watch.channel.writes) == -(-80 // ALLOWANCE)
    events = watch.events()
    assert [kind for _, kind in events] == [b"record"] * 80
    # Each id states where everything stood at that moment.
    for number, (word, _) in enumerate(events):
        seen = read_id(word, watch.names)
        assert seen is not None
        assert sorted(seen.cursors.values()) == [0] * (79 - number) + [1] * (number + 1)
    assert set(watch.cursors.values()) == {1}


def test_large_events_are_not_kept_for_the_end_of_the_turn() -> None:
    watch = Watch(2)
    watch.events()
    for name in watch.names:
        watch.rig.append(name, 30, data="x" * 3000)
    watch.rig.run_until_idle()
    assert len(watch.channel.writes) == 2


def test_full_connection_continues_after_it_drained() -> None:
    watch = Watch(3)
    watch.events()
    watch.channel.room_left = 1
    watch.rig.append("t000")
    watch.rig.run_until_idle()
    assert watch.sink.full
    watch.rig.append("t001")
    watch.rig.append("t002")
    watch.rig.run_until_idle()
    assert [kind for _, kind in watch.events()] == [b"record"]
    watch.channel.room_left = 1 << 20
    watch.stream.drained()
    watch.rig.run_until_idle()
    assert sorted(kind for _, kind in watch.events()) == [b"caught-up"] * 2 + [b"record"] * 2


def test_the_last_topic_is_reported_of_before_the_stream_ends() -> None:
    watch = Watch(2)
    watch.events()
    for name in watch.names:
        watch.rig.drop(name)
    watch.rig.run_until_idle()
    assert [kind for _, kind in watch.events()] == [b"topic-deleted"] * 2
    assert watch.channel.ended


def test_what_is_written_meanwhile_comes_behind_what_was_gathered() -> None:
    watch = Watch(2)
    watch.events()
    run_queue = watch.rig.run_queue
    run_queue.running = True
    watch.sink.buffer(SHARED.caught_up("t000", 1))
    assert watch.channel.writes == []
    watch.sink.end()
    run_queue.running = False
    assert [kind for _, kind in watch.events()] == [b"caught-up", b"error"]
