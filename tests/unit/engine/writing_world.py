"""An engine with two shards on a disk that can fail, and its books: everything that a refused write leaves alone."""

import logging
from collections.abc import Callable

from tests.unit.conftest import Answers, committers, keys_on_their_way, killed, open_engine, put
from tests.unit.conftest import append as append_values
from topics.consumers.consumer_state import consumers_of
from topics.engine.conditional_append import fence_of, newest_fence
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.engine.topic import Topic
from topics.log.layout import Layout
from topics.model.errors import TopicNotFoundError, TopicsError
from topics.model.limits import Limits
from topics.queues.leases import LeaseTable
from topics.queues.queue_state import find_queue
from topics.streams.lifecycle import CreateRequest
from topics.streams.stream_state import stream_of
from topics.streams.streams import inline_streams
from topics.testing import FakeDisk, FaultPlan, FaultyFileSystem, ManualClock

JSON = "application/json"
LARGEST = 4096
"""The bytes of the largest record there may be."""
SMALL, HUGE = "new", "x" * LARGEST

Books = dict[str, object]


class World:
    """`payload` is the payload of paths with a record."""

    def __init__(self, warnings: "Warnings", max_total_bytes: int = 0) -> None:
        self.disk = FakeDisk()
        self.clock = ManualClock()
        self.limits = Limits(max_record_bytes=LARGEST, max_total_bytes=max_total_bytes)
        self.payload = SMALL
        self.warnings = warnings
        self._fillers = 0
        self._open()
        for shard in (0, 1):
            self.make(f"victim-{shard}", shard)

    def _open(self) -> None:
        self.fs = FaultyFileSystem(self.disk)
        self.engine = open_engine(self.fs, self.clock, wal_shards=2, limits=self.limits)
        self.streams = inline_streams(self.engine)

    def restart(self) -> None:
        """Does the operator's part for a log that takes no more writes."""
        self.disk = killed(self.disk)
        self._open()
        self.engine.routing.kick()

    # Topics

    def find(self, name: str) -> Topic | None:
        return self.engine.core.directory.find(name)

    def topic(self, name: str) -> Topic:
        return self.engine.core.directory.load(name)

    def come_to(self, shard: int) -> None:
        """Sees to it that the next topic belongs to a shard."""
        core = self.engine.core
        while core.shard_number(core.next_topic_id) != shard:
            self._fillers += 1
            put(self.engine, f"filler-{self._fillers}")

    def make(self, name: str, shard: int = 0, **config: object) -> None:
        """A topic with these settings in a shard, if there is none of its name."""
        if self.find(name) is None:
            self.come_to(shard)
            put(self.engine, name, **config)

    def make_stream(self, name: str, shard: int = 0) -> None:
        """A stream of JSON with one entry."""
        if self.find(name) is None:
            self.come_to(shard)
            request = CreateRequest(content_type=JSON, body=b'["old"]')
            (created,) = reported(lambda done: self.streams.create(name, request, done))
            assert not isinstance(created, TopicsError), created

    def values(self, name: str) -> list[object]:
        """Returns the values that a reader finds in a topic; none where the topic cannot be read."""
        found: list[object] = []
        cursor = 0
        try:
            # A read ends where a crash left a hole.
            while cursor < self.topic(name).head:
                part = self.engine.read_now(name, ReadRequest(from_seq=cursor, limit=1000))
                found += [record["data"] for record in part.records()]
                cursor = part.next_from_seq
        except (KeyError, TopicNotFoundError):
            return []
        return found

    # The log

    def hold(self, shard: int, held: bool) -> None:
        committer = committers(self.engine)[shard]
        committer.hold = held
        if not held:
            committer.flush()

    def fail(self, shard: int) -> None:
        """From now on every call on the files of a shard's log fails."""
        folder = Layout("data").shard(shard)
        self.fs.plan = FaultPlan(call=self.fs.calls + 1, lasting=True, within=folder)

    def poison(self, shard: int) -> None:
        """Another write fails, so the shard takes no more."""
        name = f"victim-{shard}"
        self.fail(shard)
        (answer,) = reported(lambda done: append_values(self.engine, name, "lost"))
        assert isinstance(answer, TopicsError)
        assert self.engine.core.shards[shard].writer.poison is not None


class Warnings(logging.Handler):
    """Keeps the reasons why jobs could not be moved: only the log contains them, because no client waits for a move to
    the dead letters."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.errors.append(str(getattr(record, "error", "")))

    def take(self) -> list[str]:
        errors, self.errors = self.errors, []
        return errors


def reported(begin: Callable[[Callable[[object], None]], object]) -> Answers:
    """Returns the outcome of an operation, whether it was raised or passed to its callback."""
    answers: Answers = []
    try:
        begin(answers.append)
    except TopicsError as error:
        answers.append(error)
    return answers


def books(engine: Engine, blind: frozenset[str] = frozenset()) -> Books:
    """Everything that a refused write leaves as it was; `blind` names entries that are not looked at."""
    core = engine.core
    found: Books = {
        "names": sorted(core.directory.resident),
        "bytes": core.total_bytes,
        "staged bytes": core.staged_bytes,
    }
    for topic in core.topics.values():
        found[f"topic {topic.name}"] = _topic_books(topic)
        found[f"jobs of {topic.name}"] = _jobs(topic)
    for info in engine.list_routers(limit=1000):
        found[f"router {info.router}"] = {"cursor": info.cursor, "forwarded": info.forwarded_total}
    return {entry: value for entry, value in found.items() if entry not in blind}


def changes(before: Books, after: Books) -> dict[str, tuple[object, object]]:
    """The entries that differ, as they were and as they are."""
    entries = sorted(before.keys() | after.keys())
    return {entry: (before.get(entry), after.get(entry)) for entry in entries if before.get(entry) != after.get(entry)}


def _topic_books(topic: Topic) -> Books:
    state = stream_of(topic)
    return {
        "head": topic.head,
        "staged_head": topic.staged_head,
        "earliest": topic.earliest,
        "count": topic.live_count,
        "bytes": topic.live_bytes,
        "staged": (topic.staged_count, topic.staged_bytes),
        "keys": dict(topic.keys or {}),
        "keys on their way": keys_on_their_way(topic),
        "configs": (topic.config, topic.staged_config),
        "waiting for a sync": topic.sync_inflight,
        "closing": topic.closing,
        "lost": list(topic.lost or ()),
        "consumers": (dict(consumers.marks), dict(consumers.staged))
        if (consumers := consumers_of(topic))
        else ({}, {}),
        "fence": (fence_of(topic), newest_fence(topic)),
        "contract": None if state is None or state.description is None else state.description.contract,
        "stream": (False, None, {}, False, 0, True)
        if state is None
        else (state.closed, state.last_seq, dict(state.producers or {}), state.retired, state.refs, not state.staged),
    }


def _jobs(topic: Topic) -> Books:
    queue = find_queue(topic)
    book = queue.lease_table if queue is not None else LeaseTable()
    leases = {lease.seq: (lease.node, lease.token, lease.deadline, lease.deliveries) for lease in book.leases.values()}
    delayed, delivered = dict(book.delayed), dict(book.delivered)
    return {"leases": leases, "leaving": sorted(book.leaving), "delayed": delayed, "delivered": delivered}
