"""Writes the system stream `__registry__`: creation, changes and deletion of streams, in order and in batches.

An entry is written after its change is as durable as promised, so it never reports a change that a crash reverts. A
crash, a full disk or a time without this log may leave changes unreported; they are found by comparing the log with the
existing streams, at every start and whenever the queue of pending entries overflows.

System stream: a stream that only the server writes, created when it is missing and found again after a restart.

A user's stream that got the same name before it was reserved is not changed. Entries of a system stream are validated,
logged, sealed and evicted like all others.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, Final, Literal

import msgspec

from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, ReadResult, execute_read
from topics.engine.results import AppendResult, PutResult
from topics.engine.topic import Topic
from topics.engine.write_path import Change, Gate
from topics.log.commit_requests import CommitTiming
from topics.log.frame import FrameKind
from topics.model.errors import InvalidRequestError, TopicsError
from topics.model.limits import MIB
from topics.model.records import Batch, Record
from topics.model.topic_config import REGISTRY_STREAM, Durability, TopicConfig, is_server_name
from topics.model.topic_epochs import epoch_at
from topics.schema.contract import Contract
from topics.schema.documents import encode
from topics.schema.registry import Registry, Version
from topics.streams.append import Later
from topics.streams.chunked_validation import Description
from topics.streams.lifecycle import describe, is_own_stream, own_title
from topics.streams.stream_frames import StreamPart, encode_creation
from topics.streams.stream_state import JSON_TYPE, contract_of, is_retired, stream_of
from topics.streams.streams import Streams
from topics_protocol.rfc3339 import rfc3339_to_unix_millis, write_time

_log = logging.getLogger(__name__)

Done = Callable[[TopicsError | None], None]


class SystemStream:
    def __init__(self, engine: Engine, name: str, contract: Contract, config: TopicConfig) -> None:
        self._engine = engine
        self._name = name
        self._description = Description(contract)
        self._config = config
        self._topic: Topic | None = None

    @property
    def topic(self) -> Topic | None:
        """The stream, if it exists."""
        topic = self._topic
        return topic if topic is not None and topic.created else None

    def open(self, done: Done) -> None:
        """Finds or creates the stream, and sets its config. May be called again after a failure."""
        topic = self._engine.find(self._name)
        if topic is None:
            self._create(done)
        elif not is_own_stream(topic):
            _log.warning("stream uses the name of a system stream", extra={"stream": topic.name})
        else:
            self._topic = topic
            self._configure(topic, done)

    def write(self, records: Sequence[Record], done: Done) -> None:
        """Appends entries atomically."""
        engine, topic = self._engine, self.topic
        assert topic is not None, "a stream is written once it is open"

        def written(outcome: AppendResult | TopicsError) -> None:
            done(outcome if isinstance(outcome, TopicsError) else None)

        try:
            admitted = engine.streams.admit(topic, lambda: records, False) or records
            engine.write(topic, Batch(records=admitted), written)
        except TopicsError as error:
            done(error)

    def _create(self, done: Done) -> None:
        engine = self._engine
        try:
            topic = engine.new_topic(self._name, self._config)
            engine.write_path.check(topic)
        except TopicsError as error:
            done(error)
            return
        part = StreamPart(JSON_TYPE, renewed_ms=topic.created_ts, contract=self._description.raw)
        engine.streams.adopt(topic, part)

        def applied(timing: CommitTiming) -> None:
            engine.add_topic(topic)
            self._topic = topic
            done(None)

        def failed(error: TopicsError) -> None:
            engine.release_name(topic)
            done(error)

        frame = (FrameKind.STREAM_CREATE, encode_creation(part, engine.creation_body(topic)), b"")
        engine.write_path.log(Change(engine.write_path, topic, (frame,), applied, failed), Gate.SYNC)

    def _configure(self, topic: Topic, done: Done) -> None:
        """Applies the current settings of retention, which may differ from those at the creation of the stream."""
        if topic.staged_config == self._config:
            done(None)
            return

        def put(outcome: PutResult | TopicsError) -> None:
            done(outcome if isinstance(outcome, TopicsError) else None)

        try:
            self._engine.put_config(topic, self._config, put)
        except TopicsError as error:
            done(error)


# Content of `__registry__`: one entry for each event of a stream.
#
#     {"event": "created", "stream": "orders", "epoch": 7, "at": "2026-03-01T10:00:00.000Z",
#      "content_type": "application/json", "profile": "generic", "schema_version": 0, "contract": null,
#      "closed": false, "next_offset": "0", "expires_at": null, "forked_from": null}
#
# The event names the change; the other members describe the stream after it, so the last entry of a stream is
# sufficient, and a repeated entry is harmless. The key of an entry is the name of its stream.

EventName = Literal["created", "schema", "profile", "closed", "deleted"]
EVENTS: Final[tuple[EventName, ...]] = ("created", "schema", "profile", "closed", "deleted")
CAP_BYTES = 32 * MIB
"""About 100,000 entries; the oldest are evicted first."""
CONFIG = TopicConfig(durability=Durability.DISK, cap_bytes=CAP_BYTES)

_TEXT: Final = {"type": "string"}
_OPTIONAL_TEXT: Final = {"type": ["string", "null"]}
_PROPERTIES: Final[dict[str, Any]] = {
    "event": {"enum": list(EVENTS)},
    "stream": _TEXT,
    "epoch": {"type": "integer"},
    "at": _TEXT,
    "content_type": _TEXT,
    "profile": _TEXT,
    "schema_version": {"type": "integer"},
    "contract": _OPTIONAL_TEXT,
    "closed": {"type": "boolean"},
    "next_offset": _TEXT,
    "expires_at": _OPTIONAL_TEXT,
    "forked_from": _OPTIONAL_TEXT,
}
SCHEMA: Final[dict[str, Any]] = {
    "title": own_title(REGISTRY_STREAM), "type": "object", "required": list(_PROPERTIES), "properties": _PROPERTIES,
}  # fmt: skip
CONTRACT = Contract(Registry((Version(encode(SCHEMA), None, 0),)))


class Standing(msgspec.Struct, frozen=True, gc=False):
    """The fields of an entry that show whether the stream changed since."""

    stream: str
    epoch: int
    event: EventName = "created"
    profile: str = "generic"
    contract: str | None = None
    closed: bool = False
    at: str = ""


def event_of(event: EventName, topic: Topic, at_ms: int) -> dict[str, Any]:
    """The entry for an event of a stream, with the state after it."""
    info, state = describe(topic), stream_of(topic)
    description = state.description if state is not None else None
    return {
        "event": event,
        "stream": topic.name,
        "epoch": topic.epoch,
        "at": write_time(at_ms),
        "content_type": info.content_type,
        "profile": info.profile,
        "schema_version": 0 if description is None else description.contract.registry.current_version,
        "contract": contract_digest(topic),
        "closed": info.closed,
        "next_offset": str(topic.head),
        "expires_at": None if info.deadline_ms is None else write_time(info.deadline_ms),
        "forked_from": state.fork.source if state is not None and state.fork is not None else None,
    }


def end_of(standing: Standing, at_ms: int) -> dict[str, Any]:
    """Returns the end of a deleted stream for the registry."""
    return {
        "event": "deleted", "stream": standing.stream, "epoch": standing.epoch, "at": write_time(at_ms),
        "content_type": "", "profile": standing.profile, "schema_version": 0, "contract": standing.contract,
        "closed": standing.closed, "next_offset": "0", "expires_at": None, "forked_from": None,
    }  # fmt: skip


def standing_of(topic: Topic) -> Standing:
    """Returns the current state of a stream, in the form of its next registry entry."""
    # Without `describe`: this is called for every stream in the log, and offsets are not compared.
    state, profile = stream_of(topic), contract_of(topic).profile.kind
    closed = state is not None and state.closed
    return Standing(topic.name, topic.epoch, "created", profile, contract_digest(topic), closed)


def contract_digest(topic: Topic) -> str | None:
    """An identifier of the contract; null without a contract."""
    state = stream_of(topic)
    if state is None or state.description is None:
        return None
    return blake2b(state.description.raw, digest_size=8).hexdigest()


def record_of(event: dict[str, Any]) -> Record:
    return Record(encode(event), tag=event["stream"])


# Compares `__registry__` with the existing streams and appends missing entries.
#
# The last entry of each stream is the state that a reader of the log assumes. If it differs from the stream, an entry
# is missing and is appended now, late, with the current state. A stream older than the log, or than the oldest creation
# that its cap has left in it, counts as reported; age is compared by id and epoch, not by clock.
#
# It runs in short steps with a pause after each, since a request that meets a running step waits for its end. Changes
# during the run are reported as they happen, and their streams are skipped here.

STEP = 100
"""The number of streams examined in one step: about a millisecond, like the other steps."""
PAUSE_S = 0.01
_ENTRIES_A_STEP = 500
_NUMBERS_A_STEP = 2_000

EventWriter = Callable[[dict[str, Any]], None]


class Reconciler:
    def __init__(
        self, streams: Streams, log: Topic, write_event: EventWriter, later: Later, skip: set[str], done: Done
    ) -> None:
        self._streams = streams
        self._engine = streams.engine
        self._log = log
        self._upto = log.head
        self._behind = streams.engine.next_topic_id
        self._write_event = write_event
        self._later = later
        self._done = done
        self._standing: dict[str, Standing] = {}
        self._compared: set[int] = set()
        """The ids of existing streams in the log."""
        self._oldest: Standing | None = None
        """The oldest remaining creation in a log whose cap removed entries: older streams count as reported."""
        self._is_cut = log.evict_floor > 1
        self.skip = skip
        """Streams with events since it began."""

    def begin(self) -> None:
        self._read(0)

    # The log

    def _read(self, cursor: int) -> None:
        if cursor >= self._upto:
            self._compare(iter(list(self._standing.values())))
            return
        request = ReadRequest(from_seq=cursor, limit=_ENTRIES_A_STEP, up_to=self._upto)
        try:
            self._streams.engine.read_as(self._log, request, execute_read, lambda found: self._got(cursor, found))
        except TopicsError as error:
            self._done(error)

    def _got(self, cursor: int, found: ReadResult | TopicsError) -> None:
        if isinstance(found, TopicsError):
            self._done(found)
            return
        for record in found.records():
            standing = msgspec.convert(record["data"], Standing)
            if self._is_cut and standing.event == "created":
                self._oldest, self._is_cut = standing, False
            if standing.event == "deleted":
                self._standing.pop(standing.stream, None)
            else:
                self._standing[standing.stream] = standing
        # A range lost in a crash has no entries, but is skipped.
        following = found.next_from_seq if found.next_from_seq > cursor else self._upto
        self._later(PAUSE_S, lambda: self._read(following))

    # The streams

    def _compare(self, standing: Iterator[Standing]) -> None:
        """Compares the streams in the registry stream with the existing ones."""
        some = list(islice(standing, STEP))
        for one in some:
            if one.stream not in self.skip:
                self._compare_one(one)
        if len(some) == STEP:
            self._later(PAUSE_S, lambda: self._compare(standing))
        else:
            self._begin_look()

    def _compare_one(self, believed: Standing) -> None:
        topic = self._engine.peek(believed.stream)
        now = self._engine.wall()
        if topic is None or not self._streams.is_listed(topic) or topic.epoch != believed.epoch:
            self._write_event(end_of(believed, now))
            # A newer stream of the same name is found with the new ones.
            return
        self._compared.add(topic.id)
        stands = standing_of(topic)
        if stands.contract != believed.contract:
            self._write_event(event_of("profile" if stands.profile != believed.profile else "schema", topic, now))
        if stands.closed != believed.closed:
            # A stream of a weaker class may have been reported as closed and be open after a power cut.
            self._write_event(event_of("closed" if stands.closed else "created", topic, now))

    def _begin_look(self) -> None:
        oldest = self._oldest
        topic = self._engine.peek(oldest.stream) if oldest is not None else None
        if oldest is None or (topic is not None and topic.epoch == oldest.epoch):
            self._look_for_new((self._log.id if topic is None else topic.id) + 1)
        else:
            # Recreating a name within a second raises its epoch above that of its time.
            created = epoch_at(rfc3339_to_unix_millis(oldest.at))
            self._find_older(min(oldest.epoch, created), self._behind)

    def _find_older(self, epoch: int, behind: int) -> None:
        """Iterates from the newest topic back to the first one below an epoch.

        Older topics, perhaps a million, are not examined.
        """
        first = max(behind - _NUMBERS_A_STEP, self._log.id + 1)
        some = list(islice(filter(self._engine.has_id, range(behind - 1, first - 1, -1)), STEP))
        for number in some:
            topic = self._engine.peek_at(number)
            if topic is not None and topic.epoch < epoch:
                self._look_for_new(number + 1)
                return
        following = some[-1] if len(some) == STEP else first
        if following > self._log.id + 1:
            self._later(PAUSE_S, lambda: self._find_older(epoch, following))
        else:
            self._look_for_new(self._log.id + 1)

    def _look_for_new(self, first: int) -> None:
        """Finds existing streams that are not in the log."""
        end = min(first + _NUMBERS_A_STEP, self._behind)
        unknown = [number for number in range(first, end) if number not in self._compared]
        new = [number for number in unknown if self._engine.has_id(number)]
        for number in new[:STEP]:
            self._look_at(number)
        following = new[STEP] if len(new) > STEP else end
        if following < self._behind:
            self._later(PAUSE_S, lambda: self._look_for_new(following))
        else:
            self._done(None)

    def _look_at(self, number: int) -> None:
        topic = self._engine.peek_at(number)
        if topic is None or topic.name in self.skip or is_server_name(topic.name):
            return
        if self._streams.is_listed(topic):
            self._write_event(event_of("created", topic, self._engine.wall()))


BATCH_MAX = 500
PENDING_MAX = 100_000
"""The maximum number of pending entries.

Beyond it they are dropped, and the streams are compared with the log instead.
"""
RETRY_S = 1.0


class LifecycleLog:
    def __init__(self, streams: Streams, later: Later) -> None:
        self._streams = streams
        self._engine = streams.engine
        self._later = later
        self._stream = SystemStream(streams.engine, REGISTRY_STREAM, CONTRACT, CONFIG)
        self._pending: list[Record] = []
        self._due = False
        self._writing = False
        self._overflowed = False
        self._reconciler: Reconciler | None = None
        self.reconciled = False
        """Whether all events before this start were reported."""

    def start(self) -> None:
        """Starts listening, and writing as soon as the stream exists."""
        self._engine.topic_added.subscribe(lambda topic: self._report_event("created", topic))
        self._engine.topic_removed.subscribe(self._topic_deleted)
        self._engine.streams.changed.subscribe(self._report_event)
        self._open()

    def _open(self) -> None:
        if not self._engine.is_closed:
            self._stream.open(self._opened)

    def _opened(self, error: TopicsError | None) -> None:
        if error is not None:
            _log.warning("stream registry write failed", extra={"error": error.message})
            self._later(RETRY_S, self._open)
            return
        self._reconcile()
        self._flush()

    # Events

    def _topic_deleted(self, topic: Topic) -> None:
        if not is_retired(topic):
            self._report_event("deleted", topic)

    def _report_event(self, event: EventName, topic: Topic) -> None:
        if is_server_name(topic.name):
            return
        if self._reconciler is not None:
            # Earlier entries of the log about it are obsolete.
            self._reconciler.skip.add(topic.name)
        self._add(record_of(event_of(event, topic, self._engine.wall())))

    def _add(self, record: Record) -> None:
        if len(self._pending) >= PENDING_MAX:
            self._overflowed = True
            return
        self._pending.append(record)
        if not self._due:
            # In a separate turn: clients that create thousands of streams do not wait for these entries.
            self._due = True
            self._later(0, self._flush)

    # Writing

    def _flush(self) -> None:
        self._due = False
        if self._writing or not self._pending or self._stream.topic is None or self._engine.is_closed:
            return
        batch = self._pending[:BATCH_MAX]
        self._writing = True
        self._stream.write(batch, lambda error: self._written(len(batch), error))

    def _written(self, count: int, error: TopicsError | None) -> None:
        self._writing = False
        if error is not None and not isinstance(error, InvalidRequestError):
            self._later(RETRY_S, self._flush)
            return
        if error is not None:
            # A retry would fail again, and block all later entries.
            _log.error("stream registry entries refused", extra={"error": error.message, "entries": count})
        del self._pending[:count]
        if self._pending:
            self._later(0, self._flush)
        else:
            self._make_up()

    def _make_up(self) -> None:
        """Finds missing entries, after all pending ones are written."""
        if self._overflowed and not self._pending and self._reconciler is None:
            self._overflowed = False
            self._reconcile()

    def _reconcile(self) -> None:
        topic = self._stream.topic
        if self._reconciler is not None or topic is None or self._engine.is_closed:
            return
        write_event = {record.tag for record in self._pending if record.tag is not None}
        self._reconciler = Reconciler(self._streams, topic, self._late, self._later, write_event, self._done)
        self._reconciler.begin()

    def _late(self, event: dict[str, Any]) -> None:
        self._add(record_of(event))

    def _done(self, error: TopicsError | None) -> None:
        self._reconciler = None
        if error is None:
            self.reconciled = True
            self._make_up()
        elif not self._engine.is_closed:
            _log.warning("stream registry read failed", extra={"error": error.message})
            self._later(RETRY_S, self._reconcile)
