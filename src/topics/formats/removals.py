"""Deletes that an archive still has to hear of, as a topic keeps them in its snapshots.

    removals    msgpack array of [number, ranges]: the first catalog that told of these deletes, and ranges of
                [first, last], each inclusive, ascending, apart

The part is named `removals` in `TopicState.parts`.
"""

import msgspec

from topics.core.ranges import SeqRange

REMOVALS_PART = "removals"

Removal = tuple[int, list[SeqRange]]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Removal])


def encode_removals(removals: list[Removal]) -> bytes:
    return _encoder.encode(removals) if removals else b""


def decode_removals(part: bytes) -> list[Removal]:
    return _decoder.decode(part) if part else []
