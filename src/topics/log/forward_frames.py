"""FORWARDS: the same records forwarded into many topics of one shard, as one frame. All numbers are little endian.

A source with a thousand routers makes a thousand forwards of each batch that differ in four numbers only. One frame
contains their common part and a column for each of the four numbers:

    offset  size  field
         0     4  n: the number of destinations
         4     4  length of the pattern
         8     p  pattern: the body of a FORWARD by reference (see `router_frames`) less router, first seq and base
         .     .  four columns: router ids, numbers of the destinations, first seqs, bases

and a column is

    offset  size  field
         0     8  the lowest of its numbers
         8     1  width w: 0, 1, 2, 4 or 8
         9     7  zero
        16    nw  how much each number is above the lowest, in w bytes; with w = 0 all are the same

The frame is of the source. It stands for n FORWARD frames of distinct destinations, in this order. The log reader
expands it, so no other module sees this kind.
"""

from array import array
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from topics.log.frame import Frame, FrameKind

_HEAD = Struct("<II")
_COLUMN = Struct("<QB7x")
_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
_BETWEEN = slice(8, 24)
"""The slices of a FORWARD: between router id and first seq, between first seq and base, and after the base."""
_UP_TO_BASE = slice(32, 60)
_BEHIND = slice(64, None)


class Destination(NamedTuple):
    """The fields of a forward that differ by destination."""

    router_id: int
    topic_id: int
    first_seq: int
    base: int


def encode_forwards(pattern: bytes, columns: Sequence[Sequence[int]]) -> bytes:
    """Encodes a FORWARDS with these columns, in the order of the fields of `Destination`.

    `pattern` is the body of any of its FORWARD frames; its four numbers are ignored.
    """
    return b"".join([_HEAD.pack(len(columns[0]), len(pattern)), pattern, *map(_encode_column, columns)])


def decode_forwards(body: memoryview) -> tuple[memoryview, list[Destination]]:
    """Returns the pattern and the destinations. Raises ValueError if the lengths disagree."""
    if len(body) < _HEAD.size:
        raise ValueError("forwards shorter than their head")
    count, size = _HEAD.unpack_from(body, 0)
    if count > len(body):
        # Ids of routers differ, so each destination takes at least a byte. Damaged bodies are decoded, too.
        raise ValueError("forwards whose lengths disagree")
    at = _HEAD.size + size
    columns: list[list[int]] = []
    for _ in Destination._fields:
        if at + _COLUMN.size > len(body):
            raise ValueError("forwards whose lengths disagree")
        low, width = _COLUMN.unpack_from(body, at)
        at += _COLUMN.size
        above = body[at : at + count * width]
        if (width and width not in _CODES) or len(above) != count * width:
            raise ValueError("forwards whose lengths disagree")
        columns.append([low + number for number in array(_CODES[width], bytes(above))] if width else [low] * count)
        at += count * width
    if at != len(body) or not count:
        raise ValueError("forwards whose lengths disagree")
    return body[_HEAD.size : _HEAD.size + size], [Destination(*row) for row in zip(*columns, strict=True)]


def _encode_column(numbers: Sequence[int]) -> bytes:
    low = min(numbers)
    span = max(numbers) - low
    if not span:
        return _COLUMN.pack(low, 0)
    width = next(width for width in _CODES if span < 1 << 8 * width)
    return _COLUMN.pack(low, width) + array(_CODES[width], map((-low).__add__, numbers)).tobytes()


def parts_of(frame: Frame) -> Iterator[Frame]:
    """Returns the frames that a logged frame stands for: itself, or one for each destination."""
    if frame.kind is not FrameKind.FORWARDS:
        yield frame
        return
    pattern, destinations = decode_forwards(frame.body)
    between, up_to_base, behind = bytes(pattern[_BETWEEN]), bytes(pattern[_UP_TO_BASE]), bytes(pattern[_BEHIND])
    for router_id, topic_id, first_seq, base in destinations:
        body = b"".join(
            (
                router_id.to_bytes(8, "little"), between, first_seq.to_bytes(8, "little"), up_to_base,
                base.to_bytes(4, "little"), behind,
            )
        )  # fmt: skip
        yield frame._replace(kind=FrameKind.FORWARD, topic_id=topic_id, body=memoryview(body))
