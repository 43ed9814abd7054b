"""Every frame the server writes by hand is one of the typed frames of the protocol."""

import msgspec

from topics.api.live.frames import RecordBatch
from topics.api.v0 import websocket_messages
from topics.api.v0.websocket_messages import WS_FRAMING
from topics.engine.results import AppendResult
from topics.http import text_frame
from topics.model.errors import ThrottledError, TopicNotFoundError
from topics.model.seq_ranges import LossReason, Tombstone
from topics_protocol import websocket_frames
from topics_protocol.v0 import RecordOut

NAME = 'quote"\\ü'
_decode = msgspec.json.Decoder(websocket_frames.ServerFrame).decode


def text(frame: bytes) -> bytes:
    """The text in a frame, which must be framed right."""
    body = frame[2:] if len(frame) < 128 else frame[4:]
    assert text_frame(body) == frame
    return body


def test_records() -> None:
    frame = WS_FRAMING.records(RecordBatch(NAME, b'{"$seq":2,"$ts":3,"data":{"a": 1.50}}', 1, 5, 9))
    assert _decode(text(frame)) == websocket_frames.Records(
        topic=NAME, from_seq=1, to_seq=5, head_seq=9, records=[RecordOut(seq=2, ts=3, data={"a": 1.5})]
    )
    assert b'{"a": 1.50}' in frame


def test_the_other_frames_of_delivery() -> None:
    tombstone = Tombstone(1, 2, LossReason.CAP, 2, 3, 9)
    assert _decode(
        text(WS_FRAMING.tombstone(NAME, tombstone, "from_seq_too_old", 2))
    ) == websocket_frames.TombstoneFrame(topic=NAME, reason="cap", gap_from=1, gap_to=2, earliest_seq=3, head_seq=9)
    assert _decode(text(WS_FRAMING.caught_up(NAME, 9))) == websocket_frames.CaughtUp(topic=NAME, head_seq=9)
    deleted = websocket_frames.TopicDeleted(topic=NAME, head_seq=9, reason="deleted")
    assert _decode(text(WS_FRAMING.deleted(NAME, 9, 9))) == deleted
    error = _decode(text(WS_FRAMING.error(NAME, TopicNotFoundError("x"))))
    assert isinstance(error, websocket_frames.ErrorFrame)
    assert (error.topic, error.code, error.detail) == (NAME, "topic_not_found", {"topic": "x"})


def test_answers() -> None:
    outcome = AppendResult(NAME, 4, 6, 6, True, False, 0.25, 0.5)
    ack = _decode(text(websocket_messages.ack_frame(outcome, "r", True, 1.0)))
    assert isinstance(ack, websocket_frames.Ack)
    assert (ack.request_id, ack.topic, ack.seqs, ack.count, ack.created) == ("r", NAME, [4, 5, 6], 3, True)
    assert isinstance(ack.performance, msgspec.Struct) and ack.performance.fsync_ms == 0.5
    short = text(websocket_messages.ack_frame(outcome, None, False, 1.0))
    assert b"request_id" not in short and b"seqs" not in short
    assert _decode(text(websocket_messages.pong_frame(7))) == websocket_frames.Pong(request_id=7)
    assert text(websocket_messages.pong_frame(None)) == b'{"op":"pong"}'
    places = {NAME: websocket_frames.Position(from_seq=1, head_seq=2, earliest_seq=1, epoch=5)}
    assert _decode(text(websocket_messages.subscribed_frame("s", places))) == websocket_frames.Subscribed(
        request_id="s", topics=places
    )
    assert _decode(text(websocket_messages.unsubscribed_frame(None, [NAME]))) == websocket_frames.Unsubscribed(
        topics=[NAME]
    )
    error = _decode(text(websocket_messages.error_frame(ThrottledError.over_cap("max_topics", 1), "r")))
    assert isinstance(error, websocket_frames.ErrorFrame)
    assert (error.request_id, error.code, error.detail) == ("r", "throttled", {"limit": "max_topics", "max": 1})
