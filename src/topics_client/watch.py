"""Watching topics by event stream: requests, events, and resumption after a disconnect. No function here waits.

A watch is a session of the server and a stream of it. After a break the stream is opened again with the id of the last
event that arrived. A session that the server no longer knows, because it was restarted or forgot it, is made again from
the cursors. So is a session without any received event: only the server would know its position.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from topics_client.errors import ClientError, ConnectionFailed, NotFound, ShuttingDown, TopicNotFound, refusal
from topics_client.inbox import Inbox, LiveItem, TombstoneMessage
from topics_client.requests import Request, given_only
from topics_client.system import logger
from topics_client.transport.http1 import Response
from topics_client.transport.sse import EventParser, ServerEvent
from topics_protocol.records import Record
from topics_protocol.watch import CaughtUpEvent, ErrorEvent, TopicDeletedEvent, WatchAnswer

T = TypeVar("T")

Start = int | tuple[int, int] | None
"""A cursor, a cursor and the epoch of the topic that it is of, or None for only what is new."""

Topics = str | Iterable[str] | Mapping[str, Start]
"""Topics to follow: one or several from their beginning, or each from its `Start`."""

_HEARTBEAT_MS = 15_000
# A stream is given up when it is quiet for two heartbeats and this.
_SLACK_S = 5.0
_ADVISORY_STATUS = 429

_encode = msgspec.json.Encoder().encode


class _RecordEvent(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    records: list[Record]
    to_seq: int


def starts_of(topics: Topics) -> dict[str, dict[str, object]]:
    """Where to begin with each topic, in the protocol's words."""
    if isinstance(topics, str):
        topics = [topics]
    if isinstance(topics, Mapping):
        return {name: _start(start) for name, start in topics.items()}
    return {name: {"from_seq": 0} for name in topics}


def _start(start: Start) -> dict[str, object]:
    if start is None:
        return {"tail": True}
    return {"from_seq": start[0], "epoch": start[1]} if isinstance(start, tuple) else {"from_seq": start}


def expected_epochs(starts: Mapping[str, Mapping[str, object]]) -> dict[str, int]:
    """The epochs that were said with cursors."""
    return {name: epoch for name, start in starts.items() if isinstance(epoch := start.get("epoch"), int)}


class Watching:
    """The state of a watcher, used by both clients."""

    what = "a watch"

    def __init__(
        self, starts: dict[str, dict[str, object]], body: dict[str, object], *, lenient: bool, raise_on_gap: bool,
        deadline_s: float, heartbeat_ms: int,
    ) -> None:  # fmt: skip
        self.inbox = Inbox(raise_on_gap)
        self.deadline_s = deadline_s
        self._starts = starts
        self._expected = expected_epochs(starts)
        self._body = body
        self._lenient = lenient
        self._heartbeat_s = heartbeat_ms / 1000
        self._session: WatchAnswer | None = None
        self._begun = False
        self._parser = EventParser()
        self._last_id = ""

    @property
    def ended(self) -> bool:
        """Whether every topic is gone."""
        return self._begun and not self.inbox.received and not len(self.inbox)

    def next_item(self) -> LiveItem | None:
        return self.inbox.next_item()

    # The session.

    def request(self) -> Request[WatchAnswer] | None:
        """The request that creates the session, or None when there is one to continue."""
        if self._session is not None:
            return None
        starts: dict[str, Any] = self._starts
        if self._begun:
            starts = {topic: self.inbox.start(topic) for topic in self.inbox.received}
        target = "/v0/watch?lenient=true" if self._lenient and not self._begun else "/v0/watch"
        body = _encode({**self._body, "topics": starts})
        return Request(method="POST", target=target, body=body, answer=WatchAnswer)

    def made(self, session: WatchAnswer) -> None:
        self._session = session
        self._last_id = ""
        for topic, position in session.topics.items():
            self.inbox.begin(topic, position.from_seq, position.epoch, self._expected.get(topic))
        self._begun = True

    def broke(self, error: ClientError) -> ClientError | None:
        """Handles a lost or failed connection. Returns the error to handle, or None to continue."""
        if not self._last_id:
            self._session = None
        if self._begun and isinstance(error, NotFound):
            self._session = None
            return ConnectionFailed("the server forgot the session", maybe_done=False)
        if self._begun and isinstance(error, TopicNotFound) and error.detail.get("topic") in self.inbox.received:
            # It was deleted while no client was connected.
            self.inbox.gone(str(error.detail["topic"]), 0)
            return None
        return error

    # The stream.

    def open(self) -> tuple[str, dict[str, str], float]:
        """The stream of the session: its target, its headers, and the longest silence."""
        assert self._session is not None
        self._parser = EventParser()
        headers = {"last-event-id": self._last_id} if self._last_id else {}
        return self._session.stream_url, headers, 2 * self._heartbeat_s + _SLACK_S

    def opened(self, response: Response) -> None:
        """The head of the answer is not used."""

    def feed(self, chunk: bytes) -> bool:
        """Queues received items, and returns whether there were any. Raises `ClientError` when the server ends the
        stream: a stream that ends immediately is a failure."""
        before = len(self.inbox)
        for event in self._parser.feed(chunk):
            self._take(event)
            self._last_id = event.id or self._last_id
        return len(self.inbox) > before

    def _take(self, event: ServerEvent) -> None:
        inbox = self.inbox
        match event.name:
            case "record":
                batch = _decode(event, _RecordEvent)
                inbox.records(batch.topic, batch.records, batch.to_seq)
            case "tombstone":
                inbox.tombstone(_decode(event, TombstoneMessage))
            case "caught-up":
                caught_up = _decode(event, CaughtUpEvent)
                inbox.caught_up(caught_up.topic, caught_up.head_seq)
            case "topic-deleted":
                deleted = _decode(event, TopicDeletedEvent)
                inbox.gone(deleted.topic, deleted.head_seq)
            case "error":
                self._error(_decode(event, ErrorEvent))
            case _:
                # A newer server knows more events; their id counts all the same.
                pass

    def _error(self, error: ErrorEvent) -> None:
        wait_s = error.retry_after_ms / 1000 if isinstance(error.retry_after_ms, int) else None
        if not isinstance(error.topics, list):
            if error.code == 503:
                raise ShuttingDown(503, "shutting_down", error.error, None, wait_s)
            self._session = None
            raise ConnectionFailed(f"the server ended the stream: {error.error} ({error.code})", maybe_done=False)
        if error.code == _ADVISORY_STATUS:
            logger(__name__).info("watch of %s slowed down by the server: %s", ", ".join(error.topics), error.error)
            return
        for topic in error.topics:
            self.inbox.failed(topic, refusal(error.code, _code_of(error.code), error.error, {"topic": topic}, wait_s))


def _code_of(status: int) -> str:
    """An event has the status only. A topic fails in the middle for one reason that has a name."""
    return "corrupt_segment" if status == 500 else "unexpected_answer"


def _decode(event: ServerEvent, type: type[T]) -> T:
    try:
        return msgspec.json.decode(event.data, type=type)
    except (ValueError, RecursionError) as error:
        raise ConnectionFailed(f"an event cannot be understood: {error}", maybe_done=False) from error


def watch(
    topics: Topics,
    *,
    node: str | Sequence[str] | None = None,
    limit: int | None = None,
    max_batch_bytes: int | None = None,
    heartbeat_ms: int = _HEARTBEAT_MS,
    include_tags: bool = False,
    include_meta: bool | None = None,
    include_data: bool = True,
    consistency: Literal["eventual", "strong"] | None = None,
    lenient: bool = False,
    raise_on_gap: bool = False,
    deadline_s: float = math.inf,
) -> Watching:
    """Iterates over the records of many topics, pushed by the server, and over gaps and ends of topics.

    Items are `TopicRecord`, `TopicGap`, `CaughtUp`, `TopicGone` and `TopicFailed`.

    `topics` is one name, several names, or a mapping of names to cursors. A cursor is a seq, a pair of seq and epoch,
    or None for new records only; the epoch detects a topic that was recreated. `lenient` leaves out missing topics.
    Missing heartbeats (`heartbeat_ms`) detect a broken connection. The watcher retries for `deadline_s`, by default
    forever, without loss or repetition. With `raise_on_gap` a gap is raised as a `GapError`.
    """
    given = {
        "node": node,
        "limit": limit,
        "max_batch_bytes": max_batch_bytes,
        "heartbeat_ms": heartbeat_ms,
        "include_tags": include_tags or None,
        "include_meta": include_meta,
        "include_data": None if include_data else False,
        "consistency": consistency,
    }
    return Watching(
        starts_of(topics),
        given_only(given),
        lenient=lenient,
        raise_on_gap=raise_on_gap,
        deadline_s=deadline_s,
        heartbeat_ms=heartbeat_ms,
    )
