"""Events of a watch as text, in the two forms in which many streams can share them.

A watch of one topic has ids that follow from the topic and the seq, so whole events are shared, already as chunks of
HTTP. The ids of a watch of several topics are its own: then only what follows the id is shared.
"""

import base64
import functools
import struct
from array import array
from binascii import b2a_base64
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64_digest

from topics.api.error_responses import status_of
from topics.api.live.frames import RecordBatch
from topics.model.errors import TopicsError
from topics.model.limits import MAX_U64
from topics.model.seq_ranges import Tombstone
from topics_protocol.watch import CaughtUpEvent, ErrorEvent, TombstoneEvent, TopicDeletedEvent

# The id of an event: all positions of a watch at that moment, so that one word resumes all of it.
#
# Up to 64 topics it is the JSON map of topic to seq. Above that the names would be most of every event, so they are
# left out, and what remains means something only for a watch of the same topics:
#
#     byte 0      1: seqs of four bytes, 2: seqs of eight bytes
#     bytes 1-4   the generation, little-endian
#     bytes 5-12  XXH3-64 of the sorted names, a zero byte behind each
#     then        the seqs in the order of the sorted names, little-endian
#
# Both are written in base64url without padding. A client treats either as opaque.
#
# The generation counts how often the session has met another topic of a name it followed. It tells an id of before from
# one of after, whose seqs may look alike. It is 0 for nearly all watches, and a map of generation 0 does not show it.

MAPPED_TOPICS_MAX = 64
_NARROW, _WIDE = 1, 2
_NARROW_MAX = 2**32 - 1
_HEAD = struct.Struct("<BI8s")
_SEQ = struct.Struct("<I")
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_GENERATION = "$generation"
"""No topic's name begins so."""

_encode = msgspec.json.Encoder().encode
_decode_map = msgspec.json.Decoder(dict[str, int]).decode


class Positions(NamedTuple):
    """The decoded content of an event id."""

    cursors: dict[str, int]
    generation: int


def encode_map(cursors: dict[str, int], generation: int = 0) -> bytes:
    shown = {**cursors, _GENERATION: generation} if generation else cursors
    return base64.urlsafe_b64encode(_encode(shown)).rstrip(b"=")


class IdWriter:
    """Writes the ids of one stream, whose topics do not change."""

    __slots__ = ("_cursors", "_fingerprint", "_names", "_packed", "_places", "_text", "generation")

    def __init__(self, cursors: dict[str, int]) -> None:
        self.generation = 0
        self._cursors = cursors
        self._names = sorted(cursors)
        self._fingerprint = _fingerprint(self._names) if len(cursors) > MAPPED_TOPICS_MAX else b""
        self._places = {name: _HEAD.size + _SEQ.size * number for number, name in enumerate(self._names)}
        self._packed = bytearray()
        self._text: bytearray | None = None
        """The last id, and the same before it became text, where its seqs are of four bytes: the next one differs in
        one seq, which lies in two groups of three bytes."""

    def write(self) -> bytes:
        """The id of the positions as they are now."""
        self._text = None
        if not self._fingerprint:
            return encode_map(self._cursors, self.generation)
        seqs = list(map(self._cursors.__getitem__, self._names))
        kind, code = (_NARROW, "I") if max(seqs) <= _NARROW_MAX else (_WIDE, "Q")
        packed = _HEAD.pack(kind, self.generation, self._fingerprint) + array(code, seqs).tobytes()
        text = _in_base64(packed).rstrip(b"=")
        if kind == _NARROW:
            # To whole groups: what fills the last one up is not part of the text.
            self._packed, self._text = bytearray(packed + bytes(-len(packed) % 3)), bytearray(text)
        return text

    def move(self, topic: str, cursor: int) -> bytes | bytearray:
        """Notes where one topic stands now; the id of the positions with that, which is good until the next move."""
        self._cursors[topic] = cursor
        text, packed = self._text, self._packed
        if text is None or cursor > _NARROW_MAX:
            return self.write()
        place = self._places[topic]
        _SEQ.pack_into(packed, place, cursor)
        # Four bytes always lie in two groups of three, which are eight letters.
        first, length = place // 3, len(text)
        text[4 * first : 4 * first + 8] = _in_base64(packed[3 * first : 3 * first + 6])
        # The padding of base64 is left out.
        del text[length:]
        return text


def read_id(text: str, names: Iterable[str]) -> Positions | None:
    """The positions in an id, for a watch of these topics; None when it is no id, or one of other topics."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        positions = _read_map(raw) if raw[:1] == b"{" else _unpack(raw, sorted(names))
    except (ValueError, struct.error):
        return None
    if positions is None or not all(0 <= number <= MAX_U64 for number in (*positions.cursors.values(), positions[1])):
        return None
    return positions


def _read_map(raw: bytes) -> Positions:
    cursors = _decode_map(raw)
    return Positions(cursors, cursors.pop(_GENERATION, 0))


def _unpack(raw: bytes, names: list[str]) -> Positions | None:
    kind, generation, fingerprint = _HEAD.unpack_from(raw)
    width, packed = {_NARROW: 4, _WIDE: 8}.get(kind), raw[_HEAD.size :]
    if width is None or fingerprint != _fingerprint(names) or len(packed) != width * len(names):
        return None
    seqs = array("I" if width == 4 else "Q", packed)
    return Positions(dict(zip(names, seqs, strict=True)), generation)


def _in_base64(packed: bytes | bytearray) -> bytes:
    return b2a_base64(packed, newline=False).translate(_URL_SAFE)


def _fingerprint(names: list[str]) -> bytes:
    return xxh3_64_digest(b"".join(name.encode() + b"\0" for name in names))


RETRY_FIELD = b"retry: 2000\n"
RETRY = RETRY_FIELD + b"\n"


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
