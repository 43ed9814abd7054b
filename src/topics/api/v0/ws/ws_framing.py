"""What the server says on a WebSocket, as bytes that are ready to be sent.

Frames of delivery are made once and shared by every socket that gets them, so they say nothing of the socket.
"""

from collections.abc import Iterable

import msgspec

from topics.api.live.frames import RecordBatch
from topics.api.v0.appends import encode_appended
from topics.core.errors import TopicsError
from topics.core.loss import Tombstone
from topics.engine.results import AppendResult
from topics.http.websocket.text_frames import text_frame
from topics.wire.ws import (
    CaughtUp,
    ErrorFrame,
    Pong,
    Position,
    RequestId,
    Subscribed,
    TombstoneFrame,
    TopicDeleted,
    Unsubscribed,
)

_encode = msgspec.json.Encoder(enc_hook=str).encode


class WsFraming:
    """Implements `Framing`."""

    def records(self, batch: RecordBatch) -> bytes:
        return text_frame(
            b'{"op":"record","topic":%b,"from_seq":%d,"to_seq":%d,"head_seq":%d,"records":[%b]}'
            % (_encode(batch.topic), batch.from_seq, batch.to_seq, batch.head_seq, batch.body)
        )

    def tombstone(self, topic: str, tombstone: Tombstone, reason: str, cursor: int) -> bytes:
        frame = TombstoneFrame(
            topic=topic, reason=reason, gap_from=tombstone.gap_from, gap_to=tombstone.gap_to,
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
        # An error frame that names a topic ends it here, and the protocol has no other for this.
        return b""


WS_FRAMING = WsFraming()
"""The only one: a feed knows its framing by identity."""


def error_frame(error: TopicsError, request_id: RequestId = None, topic: str | None = None) -> bytes:
    frame = ErrorFrame(
        request_id=request_id, topic=topic, code=error.code, message=error.message, detail=error.detail or None
    )
    return text_frame(_encode(frame))


def ack_frame(outcome: AppendResult, request_id: RequestId, return_seqs: bool, spent_ms: float) -> bytes:
    (before,) = ack_befores([request_id])
    return text_frame(encode_appended(outcome, return_seqs, spent_ms, before))


def ack_befores(request_ids: Iterable[RequestId]) -> list[bytes]:
    """What acks begin with: that they are some, and the id of the command where it had one, each with a comma."""
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
