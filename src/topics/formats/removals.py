"""Deletes that an archive still has to hear of, as a topic keeps them in its snapshots.

    removals    msgpack array of [number, ranges]: the first catalog that told of these deletes, and ranges of
                [first, last], each inclusive, ascending, apart

The part is named `removals` in `TopicState.parts`. While a topic is in memory its ranges stay encoded: they are a tenth
as large, and every checkpoint writes them as they are.
"""

import msgspec

from topics.core.ranges import Ranges, SeqRange

REMOVALS_PART = "removals"

Removal = tuple[int, list[SeqRange]]
PackedRemoval = tuple[int, msgspec.Raw]
"""A removal with its ranges encoded."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Removal])
_packed_decoder = msgspec.msgpack.Decoder(list[PackedRemoval])
_ranges_decoder = msgspec.msgpack.Decoder(list[SeqRange])


def encode_removals(removals: list[PackedRemoval]) -> bytes:
    return _encoder.encode(removals) if removals else b""


def decode_removals(part: bytes) -> list[Removal]:
    return _decoder.decode(part) if part else []


def decode_packed(part: bytes) -> list[PackedRemoval]:
    # Copied, because a Raw holds on to all of what it was found in.
    return [(number, ranges.copy()) for number, ranges in _packed_decoder.decode(part)] if part else []


def pack(ranges: Ranges) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(ranges))


def unpack(ranges: msgspec.Raw) -> Ranges:
    return _ranges_decoder.decode(ranges)


def packed_bytes(ranges: msgspec.Raw) -> int:
    return len(memoryview(ranges))
