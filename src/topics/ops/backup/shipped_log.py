"""Shipped log: numbered objects with the log of one run behind its backups (also known as: archived WAL).

An object holds what was logged in every shard between two moments, so the objects of a run, read in order, continue the
state of any backup of that run. They are named `ship/<run>/<number>.log` below the lineage, each number with 16 digits;
the run is the number of its first backup, and the first object has number 1.

    offset   size  field
         0      8  magic `TOPSHIP` and the format, 1
         8      4  length of the head, little endian
        12      n  the head, JSON (`ShippedHead`)
    12 + n         the spans that the head names, one after the other, each of whole frames
    last 8      8  XXH3-64 of everything before, little endian

An object is written in one step, and never changed. Several are written at once, so a crash may leave a number out with
later ones behind it: the log ends before the first that is missing. `confirmed` of a later object proves that it was
there once, and then it is damage, as every object is that cannot be read.

A server that takes a new term ends the log of the last run with an object that has `fence`; a primary with a lease
makes objects with conditional puts, so it cannot pass that one. Behind a fence only fences of later terms count. If the
server continues with its own folder, its fence has the log that it had not shipped (`ops.failover.unshipped`).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from topics.log.fs import BytesLike
from topics.log.snapshot_files import WalPosition

_MAGIC = b"TOPSHIP\x01"
_HEAD_AT = len(_MAGIC) + 4
_CHECKSUM_BYTES = 8


class LogSpan(msgspec.Struct, frozen=True, array_like=True):
    """A range of bytes of a log file."""

    shard: int
    file: int
    start: int
    length: int


class ShippedHead(msgspec.Struct, frozen=True, kw_only=True):
    lineage: str
    run: int
    number: int
    confirmed: int
    """All objects up to this number were stored before this one was written."""
    moment: int
    """Everything logged up to this moment is in this object and those before it. Frames above it may be there as well,
    but not all of them."""
    spans: list[LogSpan]
    fence: int = 0
    """The term that ended the log (`ops.failover`); then only fences of later terms count behind this object."""


class ShippedObject(NamedTuple):
    head: ShippedHead
    spans: list[memoryview]


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ShippedHead)


def encode_shipped(head: ShippedHead, spans: Sequence[BytesLike]) -> list[BytesLike]:
    """Returns the pieces of an object."""
    text = _encoder.encode(head)
    pieces: list[BytesLike] = [_MAGIC + len(text).to_bytes(4, "little") + text, *spans]
    digest = xxh3_64()
    for piece in pieces:
        digest.update(piece)
    return [*pieces, digest.intdigest().to_bytes(_CHECKSUM_BYTES, "little")]


def decode_shipped(data: memoryview) -> ShippedObject:
    """Raises ValueError unless the bytes are a complete object."""
    end = len(data) - _CHECKSUM_BYTES
    if bytes(data[: len(_MAGIC)]) != _MAGIC or end < _HEAD_AT:
        raise ValueError("it is not shipped log, or has an unknown format")
    if xxh3_64_intdigest(data[:end]) != int.from_bytes(data[end:], "little"):
        raise ValueError("a wrong checksum")
    at = _HEAD_AT + int.from_bytes(data[len(_MAGIC) : _HEAD_AT], "little")
    head = _decoder.decode(data[_HEAD_AT:at])
    spans = []
    for span in head.spans:
        spans.append(data[at : at + span.length])
        at += span.length
    if at != end:
        raise ValueError("its spans do not fill it")
    return ShippedObject(head, spans)


class Continuity:
    """Checks that spans continue the log of a backup, shard by shard. Earlier spans belong to the backup itself."""

    def __init__(self, positions: Sequence[WalPosition]) -> None:
        self._first = {position.shard: position.file for position in positions}
        self._ends = {shard: (file, 0) for shard, file in self._first.items()}

    def behind(self, head: ShippedHead) -> Iterator[tuple[int, LogSpan]]:
        """The spans of an object that are behind the backup, each with its place in the object. Raises ValueError
        where log is missing before one."""
        for index, span in enumerate(head.spans):
            if span.file < self._first.get(span.shard, span.file + 1):
                continue
            file, end = self._ends[span.shard]
            if (span.file, span.start) != (file, end) and (span.file <= file or span.start):
                raise ValueError(f"log of shard {span.shard} is missing before file {span.file} at {span.start}")
            self._ends[span.shard] = (span.file, span.start + span.length)
            yield index, span


def ship_folder(run: int) -> str:
    return f"ship/{run:016d}"


def ship_name(run: int, number: int) -> str:
    return f"{ship_folder(run)}/{number:016d}.log"
