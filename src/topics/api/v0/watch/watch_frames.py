"""Events of a watch as text, in the two forms in which many streams can share them.

A watch of one topic has ids that follow from the topic and the seq, so whole events are shared, already as chunks of
HTTP. The ids of a watch of several topics are its own: then only what follows the id is shared.
"""

import functools

import msgspec

from topics.api.errors import status_of
from topics.api.live.frames import RecordBatch
from topics.api.v0.watch.watch_ids import encode_map
from topics.core.errors import TopicsError
from topics.core.loss import Tombstone
from topics.wire.watch import CaughtUpEvent, ErrorEvent, TombstoneEvent, TopicDeletedEvent

RETRY_FIELD = b"retry: 2000\n"
RETRY = RETRY_FIELD + b"\n"
_encode = msgspec.json.Encoder().encode


def event(name: bytes, data: bytes) -> bytes:
    """An event without an id. A payload may hold line ends between its JSON tokens; each line is a field of its own."""
    if b"\n" in data or b"\r" in data:
        data = _in_fields(data)
    return b"event: %b\ndata: %b\n\n" % (name, data)


def _in_fields(data: bytes) -> bytes:
    return b"\ndata: ".join(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"))


@functools.lru_cache(256)
def _behind_records(from_seq: int, to_seq: int, head_seq: int) -> bytes:
    """How an event of records ends. Kept, as topics that a router copies into mostly stand alike."""
    return b'],"from_seq":%d,"to_seq":%d,"head_seq":%d}\n\n' % (from_seq, to_seq, head_seq)


def error_event(code: int, text: str, retry_after_ms: int | None = None, topics: list[str] | None = None) -> bytes:
    retry = msgspec.UNSET if retry_after_ms is None else retry_after_ms
    named = msgspec.UNSET if topics is None else topics
    return event(b"error", _encode(ErrorEvent(code=code, error=text, retry_after_ms=retry, topics=named)))


def heartbeat(now_ms: int) -> bytes:
    return b": hb %d\n\n" % now_ms


class SharedFraming:
    """Events without their ids."""

    def records(self, batch: RecordBatch) -> bytes:
        body, behind = batch.body, _behind_records(batch.from_seq, batch.to_seq, batch.head_seq)
        if b"\n" in body or b"\r" in body:
            body = _in_fields(body)
        return b"".join((b'event: record\ndata: {"topic":', _encode(batch.topic), b',"records":[', body, behind))

    def tombstone(self, topic: str, tombstone: Tombstone, reason: str, cursor: int) -> bytes:
        told = TombstoneEvent(
            topic=topic, reason=reason, gap_from=tombstone.gap_from, gap_to=tombstone.gap_to,
            earliest_seq=tombstone.earliest_seq, head_seq=tombstone.head_seq,
        )  # fmt: skip
        return event(b"tombstone", _encode(told))

    def caught_up(self, topic: str, head_seq: int) -> bytes:
        return event(b"caught-up", _encode(CaughtUpEvent(topic=topic, head_seq=head_seq)))

    def deleted(self, topic: str, head_seq: int, cursor: int) -> bytes:
        return event(b"topic-deleted", _encode(TopicDeletedEvent(topic=topic, head_seq=head_seq)))

    def error(self, topic: str, error: TopicsError) -> bytes:
        return error_event(status_of(error), error.message, topics=[topic])

    def paced(self, topic: str, retry_after_ms: int) -> bytes:
        return error_event(429, "watch throttled under pressure", retry_after_ms, [topic])


class SoloFraming:
    """Whole events of a watch of one topic, as chunks of HTTP."""

    def __init__(self) -> None:
        self._plain = SharedFraming()

    def records(self, batch: RecordBatch) -> bytes:
        return _chunk(batch.topic, batch.to_seq, self._plain.records(batch))

    def tombstone(self, topic: str, tombstone: Tombstone, reason: str, cursor: int) -> bytes:
        return _chunk(topic, cursor, self._plain.tombstone(topic, tombstone, reason, cursor))

    def caught_up(self, topic: str, head_seq: int) -> bytes:
        return _chunk(topic, head_seq, self._plain.caught_up(topic, head_seq))

    def deleted(self, topic: str, head_seq: int, cursor: int) -> bytes:
        return _chunk(topic, cursor, self._plain.deleted(topic, head_seq, cursor))

    def error(self, topic: str, error: TopicsError) -> bytes:
        text = self._plain.error(topic, error)
        return b"%x\r\n%b\r\n" % (len(text), text)

    def paced(self, topic: str, retry_after_ms: int) -> bytes:
        text = self._plain.paced(topic, retry_after_ms)
        return b"%x\r\n%b\r\n" % (len(text), text)


def _chunk(topic: str, cursor: int, text: bytes) -> bytes:
    word = encode_map({topic: cursor})
    return b"%x\r\nid: %b\n%b\r\n" % (len(text) + len(word) + 5, word, text)


SHARED = SharedFraming()
SOLO = SoloFraming()
