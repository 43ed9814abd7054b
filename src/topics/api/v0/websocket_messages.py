"""Parsing of WebSocket messages into commands.

An invalid message is answered by an error and the socket stays open: `invalid_json` for anything but a JSON object with
a known `op`, `invalid_request` for invalid fields of a known `op`. The `request_id` is repeated where it can be read.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Annotated, Any, cast

import msgspec

from topics.api.error_responses import InvalidJsonError
from topics.api.live import Projection
from topics.api.live.frames import RecordBatch
from topics.api.v0.appends import encode_appended
from topics.api.v0.request_parsing import check_number
from topics.engine.results import AppendResult
from topics.http.websocket.message_reader import text_frame
from topics.model.errors import InvalidRequestError, TopicsError, quoted
from topics.model.limits import MAX_U64, Limits
from topics.model.records import AppendBody, Record
from topics.model.seq_ranges import Tombstone
from topics.wire.json_array_reader import BESIDE_BYTES, Scan, find_array
from topics_protocol.websocket_frames import (
    COMMANDS,
    CaughtUp,
    ErrorFrame,
    Ping,
    Pong,
    Position,
    RequestId,
    Subscribe,
    Subscribed,
    SubscribeFrom,
    TombstoneFrame,
    TopicDeleted,
    Unsubscribe,
    Unsubscribed,
)

# Messages to a WebSocket client, as bytes that are ready to be sent. Delivery frames are encoded once and shared by all
# sockets, so they contain nothing specific to a socket.

_encode = msgspec.json.Encoder(enc_hook=str).encode


class WsFraming:
    """Implements `Framing`."""

    def records(self, batch: RecordBatch) -> bytes:
        return text_frame(
            b'{"op":"record","topic":%b,"from_seq":%d,"to_seq":%d,"head_seq":%d,"records":[%b]}'
            % (_encode(batch.topic), batch.from_seq, batch.to_seq, batch.head_seq, batch.body)
        )

    def tombstone(self, topic: str, tombstone: Tombstone, reason: str, cursor: int) -> bytes:
        # Also at the connect: only event streams use `from_seq_too_old`.
        frame = TombstoneFrame(
            topic=topic, reason=tombstone.reason.value, gap_from=tombstone.gap_from, gap_to=tombstone.gap_to,
            earliest_seq=tombstone.earliest_seq, head_seq=tombstone.head_seq,
        )  # fmt: skip
        return text_frame(_encode(frame))

    def caught_up(self, topic: str, head_seq: int) -> bytes:
        return text_frame(_encode(CaughtUp(topic=topic, head_seq=head_seq)))

    def deleted(self, topic: str, head_seq: int, cursor: int) -> bytes:
        return text_frame(_encode(TopicDeleted(topic=topic, head_seq=head_seq, reason="deleted")))

    def error(self, topic: str, error: TopicsError) -> bytes:
        return error_frame(error, topic=topic)

    def paced(self, topic: str, retry_after_ms: int) -> bytes:
        # An error frame with a topic ends its subscription; the protocol has no other frame for this.
        return b""


WS_FRAMING = WsFraming()
"""The only instance: a feed compares its framing by identity."""


def error_frame(error: TopicsError, request_id: RequestId = None, topic: str | None = None) -> bytes:
    frame = ErrorFrame(
        request_id=request_id, topic=topic, code=error.code, message=error.message, detail=error.detail or None
    )
    return text_frame(_encode(frame))


def ack_frame(outcome: AppendResult, request_id: RequestId, return_seqs: bool, spent_ms: float) -> bytes:
    (before,) = ack_befores([request_id])
    return text_frame(encode_appended(outcome, return_seqs, spent_ms, before))


def ack_befores(request_ids: Iterable[RequestId]) -> list[bytes]:
    """Returns the beginning of each ack: its type, and the id of the command if it had one, each with a comma."""
    return [
        b'"op":"ack",' if request_id is None else b'"op":"ack","request_id":%b,' % _encode(request_id)
        for request_id in request_ids
    ]


def subscribed_frame(request_id: RequestId, topics: dict[str, Position]) -> bytes:
    return text_frame(_encode(Subscribed(request_id=request_id, topics=topics)))


def unsubscribed_frame(request_id: RequestId, topics: list[str]) -> bytes:
    return text_frame(_encode(Unsubscribed(request_id=request_id, topics=topics)))


def pong_frame(request_id: RequestId) -> bytes:
    return text_frame(_encode(Pong(request_id=request_id)))


# Commands that clients send.

REQUEST_ID_CHARS_MAX = 256
_DEFAULT_LIMIT = 1000


class Publish(AppendBody, frozen=True, kw_only=True, tag_field="op", tag="publish"):
    """Appends records to a topic, like `POST /v0/topics/{topic}`."""

    request_id: RequestId = None
    topic: str
    return_seqs: bool = True


Command = Subscribe | Unsubscribe | Publish | Ping
_decode: "msgspec.json.Decoder[Command]" = msgspec.json.Decoder(Command)


class SinglePublish(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True, tag_field="op", tag="publish"
):
    """A publish of one record with no other option than an idempotency key (see `SingleAppendBody`)."""

    topic: str
    records: tuple[Record]
    request_id: Annotated[str, msgspec.Meta(max_length=REQUEST_ID_CHARS_MAX)] | int | None = None
    return_seqs: bool = True
    idempotency_key: str | None = None
    idempotency_check: bool = False
    create: bool | None = None


_decode_single = msgspec.json.Decoder(SinglePublish).decode


class _Envelope(msgspec.Struct):
    """The fields that every command has, even if the rest is invalid."""

    op: Any = None
    request_id: Any = None


_MEMBER_BEGIN, _COLON, _COMMA = re.compile(r"\s*\{\s*"), re.compile(r"\s*:\s*"), re.compile(r"\s*,\s*")
_decode_envelope = msgspec.json.Decoder(_Envelope).decode


class BadCommand(Exception):
    """A message is not a valid command. `cause` has the reason."""

    def __init__(self, cause: TopicsError, request_id: RequestId) -> None:
        super().__init__(cause)
        self.cause = cause
        self.request_id = request_id


def read_command(text: bytes) -> Command:
    """Raises `BadCommand`."""
    try:
        command = _decode.decode(text)
    except (ValueError, RecursionError) as error:
        raise _explain(text, error) from error
    request_id = command.request_id
    if isinstance(request_id, str) and len(request_id) > REQUEST_ID_CHARS_MAX:
        refusal = InvalidRequestError(
            f"field request_id: at most {REQUEST_ID_CHARS_MAX} characters", field="request_id", max=REQUEST_ID_CHARS_MAX
        )
        raise BadCommand(refusal, None)
    return command


def read_publishes(texts: Sequence[bytes]) -> list[SinglePublish]:
    """Returns the commands of the first texts, up to the first that is not a publish of a single record.

    `read_command` gives the same results for each, and reports the errors of others.
    """
    publishes: list[SinglePublish] = []
    try:
        # Valid commands before the refused one stay in the list.
        publishes.extend(map(_decode_single, texts))
    except (ValueError, RecursionError):
        pass
    return publishes


def _explain(text: bytes, error: Exception) -> BadCommand:
    try:
        envelope = _decode_envelope(text)
    except (ValueError, RecursionError) as reason:
        return BadCommand(InvalidJsonError(f"the message is not a JSON object: {_plain(reason)}"), None)
    request_id = _valid_request_id(envelope.request_id)
    op = envelope.op
    if op not in COMMANDS:
        shown = quoted(op) if isinstance(op, str) else "missing or not a string"
        return BadCommand(InvalidJsonError(f"the op is {shown}; known are {', '.join(COMMANDS)}"), request_id)
    return BadCommand(InvalidRequestError.from_decode(str(op), error), request_id)


def request_id_of(beginning: bytes) -> RequestId:
    """Returns the `request_id` of an incomplete message; None if it is not among the available members."""
    decoder, text = json.JSONDecoder(), beginning.decode(errors="replace")
    at = _MEMBER_BEGIN.match(text, 0)
    try:
        while at is not None:
            name, end = decoder.raw_decode(text, at.end())
            colon = _COLON.match(text, end)
            if colon is None:
                return None
            value, end = decoder.raw_decode(text, colon.end())
            at = _COMMA.match(text, end)
            # A value at the end of the text may be incomplete.
            if name == "request_id" and end < len(text):
                return _valid_request_id(value)
    except (ValueError, RecursionError):
        pass
    return None


def find_request_id(view: memoryview) -> Generator[None, None, RequestId]:
    """Returns the `request_id` of a long publish, before its records or after them."""
    request_id = request_id_of(bytes(view[:BESIDE_BYTES]))
    start = find_array(view, b"records")
    if request_id is None and start:
        scan = Scan(view, start, depth=1)
        while not scan.step():
            yield
        if not scan.ended:
            request_id = request_id_of(b"{" + bytes(view[scan.pos + 1 :][:BESIDE_BYTES]))
    return request_id


def _valid_request_id(value: object) -> RequestId:
    is_valid = isinstance(value, str | int) and not isinstance(value, bool) and len(str(value)) <= REQUEST_ID_CHARS_MAX
    return cast("RequestId", value) if is_valid else None


def _plain(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def starts_of(command: Subscribe) -> dict[str, SubscribeFrom]:
    """Returns the start position of each topic of a command. Raises `InvalidRequestError`."""
    starts = {name: start or SubscribeFrom() for name, start in command.topics.items()}
    if command.topic is not None:
        starts[command.topic] = SubscribeFrom(from_seq=command.from_seq, tail=command.tail, epoch=command.epoch)
    if not starts:
        raise InvalidRequestError("subscribe: name a topic, or several in topics", field="topics")
    for start in starts.values():
        check_number("subscribe", "from_seq", start.from_seq, MAX_U64)
    return starts


def projection_of(command: Subscribe, limits: Limits) -> Projection:
    """Returns the record fields of a subscribe command, and the batch limits. Raises `InvalidRequestError`."""
    check_number("subscribe", "limit", command.limit)
    check_number("subscribe", "max_batch_bytes", command.max_batch_bytes)
    node = command.node
    return Projection(
        framing=WS_FRAMING,
        nodes=() if node is None else (node,) if isinstance(node, str) else tuple(sorted(set(node))),
        include_tags=command.include_tags, include_data=command.include_data,
        include_meta=command.include_data if command.include_meta is None else command.include_meta,
        limit=limits.clamp_limit(command.limit or _DEFAULT_LIMIT),
        max_bytes=limits.clamp_batch_bytes(command.max_batch_bytes),
    )  # fmt: skip


def names_of(command: Unsubscribe) -> list[str]:
    """Returns the topics of a command. Raises `InvalidRequestError`."""
    names = list(dict.fromkeys([*([] if command.topic is None else [command.topic]), *command.topics]))
    if not names:
        raise InvalidRequestError("unsubscribe: name a topic, or several in topics", field="topic")
    return names


# Answers to commands, in the order of the commands.
#
# Publishes of one socket run concurrently and may finish in any order, because their topics have different classes and
# shards. Answers are nevertheless sent in order, for clients that match answers by order or stop at the first error.


class Reply:
    """A reserved position for one answer, or for several that are given together."""

    __slots__ = ("count", "frame")

    def __init__(self, count: int) -> None:
        self.count = count
        self.frame: bytes | None = None


class Replies:
    __slots__ = ("_count", "_owed", "_send")

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._owed: deque[Reply] = deque()
        self._count = 0

    def __len__(self) -> int:
        """The pending answers."""
        return self._count

    def now(self, frame: bytes) -> None:
        """Adds a finished answer. It is sent after the pending earlier ones."""
        if not self._owed:
            self._send(frame)
            return
        self.later().frame = frame

    def later(self, count: int = 1) -> Reply:
        """Reserves a position for this many later answers, given together."""
        reply = Reply(count)
        self._owed.append(reply)
        self._count += count
        return reply

    def withdraw(self, reply: Reply) -> None:
        """Releases the last reserved position."""
        last = self._owed.pop()
        assert last is reply
        self._count -= reply.count

    def part(self, reply: Reply) -> list[Reply]:
        """Returns a position for each of several answers within their common position."""
        parts = [Reply(1) for _ in range(reply.count)]
        if reply in self._owed:
            at = self._owed.index(reply)
            self._owed.remove(reply)
            for number, each in enumerate(parts, at):
                self._owed.insert(number, each)
        return parts

    def give(self, reply: Reply, frame: bytes) -> None:
        """Sends the answer, and the finished ones after it, as soon as it is first."""
        reply.frame = frame
        owed = self._owed
        while owed and (first := owed[0].frame) is not None:
            self._count -= owed.popleft().count
            self._send(first)

    def close(self) -> None:
        """Stops sending, and drops the reference to the sender, so that a lost connection does not wait for garbage
        collection."""
        self._owed.clear()
        self._count = 0
        self._send = _drop


def _drop(frame: bytes) -> None:
    """Ignores an answer."""
