"""The catalog: the sealed segments of all topics, in small files for readers in other processes.

Programs that read sealed segments in place (the Spark pipeline is one) must know which segments are valid, their topics
and their deleted records. The engine writes this list beside its snapshots at each checkpoint, after the deletes of
that checkpoint were flipped into the segments' flags and before any file it no longer names is removed. So a caller
that reads the catalog and then the files sees every delete before the catalog's checkpoint; a missing file was removed
by a later one, and the newer catalog states why.

    offset  size  field
         0     8  magic "TPCAT002"
         8     8  number: that of the checkpoint's snapshot
        16     8  stamp: a hash of the changes of this catalog and of the stamp before it
        24     n  msgpack of `CatalogHead`, then of `CatalogTopic` for each topic that has or had sealed records
      24+n     8  XXH3-64 of every byte before it

Both structures are msgpack arrays. The file is written under another name, synced and renamed, so a broken one is
damage; the next checkpoint replaces it. It is not a part of the log: nothing is recovered from it. A large catalog is
not written at each checkpoint, but followed by files of changes (`log.catalog_files`). Version TPCAT001, without number
and stamp, is read; the next checkpoint replaces it.
"""

from collections.abc import Collection, Iterable, Iterator
from struct import Struct
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from topics.model.seq_ranges import SeqRange

MAGIC = b"TPCAT002"
_BEFORE = b"TPCAT001"
_CHECKSUM = Struct("<Q")
_LINK = Struct("<QQ")
HEAD_BYTES = len(MAGIC) + _LINK.size
"""The bytes of a file that name its catalog."""


class Link(NamedTuple):
    """Names one catalog. Two that were written by different histories of a folder have different stamps."""

    number: int
    stamp: int


class CatalogSegment(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A sealed segment whose two files are on disk."""

    first_seq: int
    count: int
    text_bytes: int
    traits: int
    first_ts: int
    last_ts: int
    marked: int
    """The number of its records that the flags in the file mark as deleted."""
    cold: bool

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


class CatalogRemoval(msgspec.Struct, array_like=True, frozen=True):
    """Records deleted by request from sealed segments, some of which may be removed by now."""

    number: int
    """The first catalog that listed it."""
    ranges: list[SeqRange]


class CatalogTopic(msgspec.Struct, array_like=True, frozen=True):
    topic_id: int
    name: str
    epoch: int
    config: bytes
    """JSON, as in a snapshot."""
    head: int
    earliest: int
    """The first live seq: all records below it are removed, for any reason."""
    evict_floor: int
    """All records below it were evicted by a cap or by time, or deleted before."""
    segments: list[CatalogSegment]
    lost: list[SeqRange]
    """Ranges lost by a crash or damage."""
    removals: list[CatalogRemoval]
    """Deletes that the archive has not confirmed, oldest first; only kept if there is an archive."""
    contract: bytes = b""
    """The contract of a stream (`topics.schema.contract`); empty without one."""


class Listed(msgspec.Struct, array_like=True, frozen=True):
    """The number of segments that catalogs have ever named.

    The difference of two counts the segments between their catalogs.
    """

    segments: int = 0
    records: int = 0
    bytes: int = 0

    def since(self, earlier: "Listed") -> "Listed":
        """The changes after `earlier`; none if it belongs to another history, such as before a restore."""
        if earlier.segments > self.segments:
            return Listed()
        return Listed(
            self.segments - earlier.segments,
            max(self.records - earlier.records, 0),
            max(self.bytes - earlier.bytes, 0),
        )


class CatalogHead(msgspec.Struct, array_like=True, frozen=True):
    number: int
    """The number of the snapshot written with it; ascending."""
    now_ms: int
    """The engine's time when it was written; expiry is judged by the reader's own clock."""
    topics: int
    tracked: bool = False
    """Whether the engine keeps deletes for an archive: an archive built from this catalog receives every later
    delete."""
    has_contracts: bool = False
    """Whether the contracts of streams are included; earlier servers left them out."""
    listed: Listed = Listed()


class Catalog(msgspec.Struct, frozen=True):
    head: CatalogHead
    topics: list[CatalogTopic]

    def by_name(self) -> dict[str, CatalogTopic]:
        return {topic.name: topic for topic in self.topics}

    def by_id(self) -> dict[int, CatalogTopic]:
        return {topic.topic_id: topic for topic in self.topics}


Encoded = dict[bytes, CatalogTopic]
"""Topics by their encoded bytes."""


class _File(msgspec.Struct, array_like=True, frozen=True):
    head: CatalogHead
    topics: list[CatalogTopic]


class _RawFile(msgspec.Struct, array_like=True, frozen=True):
    head: CatalogHead
    topics: list[msgspec.Raw]


_PIECE_BYTES = 4 * 1024 * 1024
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_File)
_raw_decoder = msgspec.msgpack.Decoder(_RawFile)
_topic_decoder = msgspec.msgpack.Decoder(CatalogTopic)


def encode_topic(topic: CatalogTopic) -> bytes:
    return _encoder.encode(topic)


class _TopicId(msgspec.Struct, array_like=True, frozen=True):
    """The beginning of an encoded topic."""

    topic_id: int


_id_decoder = msgspec.msgpack.Decoder(_TopicId)


def topic_id_in(entry: bytes) -> int:
    """The id of an encoded topic, of which nothing else is decoded."""
    return _id_decoder.decode(entry).topic_id


def topic_in(entry: bytes) -> CatalogTopic:
    return _topic_decoder.decode(entry)


def contract_in(entry: bytes) -> bytes:
    """The contract of an encoded topic."""
    return _topic_decoder.decode(entry).contract


def encode_catalog(
    number: int, now_ms: int, topics: Iterable[bytes], tracked: bool = False, listed: Listed | None = None,
    stamp: int = 0,
) -> bytes:  # fmt: skip
    """The whole file; the topics are already encoded, since most of them are the same as last time."""
    parts = list(topics)
    head = CatalogHead(number, now_ms, len(parts), tracked, True, listed or Listed())
    return b"".join(catalog_pieces(head, parts, stamp))


def catalog_pieces(head: CatalogHead, topics: Collection[bytes], stamp: int) -> Iterator[bytes]:
    """The whole file in pieces of a few megabytes."""
    hashed = xxh3_64()
    # An array of two: the head, and the array of the topics.
    first = MAGIC + _LINK.pack(head.number, stamp) + b"\x92" + _encoder.encode(head) + b"\xdd"
    pending, size = [first, len(topics).to_bytes(4, "big")], 0
    for topic in topics:
        pending.append(topic)
        size += len(topic)
        if size >= _PIECE_BYTES:
            piece, pending, size = b"".join(pending), [], 0
            hashed.update(piece)
            yield piece
    piece = b"".join(pending)
    hashed.update(piece)
    yield piece + _CHECKSUM.pack(hashed.intdigest())


def decode_catalog(data: bytes | memoryview) -> Catalog:
    """Reads and checks a catalog; raises ValueError with the problem."""
    found = _decoder.decode(_checked(data))
    return Catalog(found.head, found.topics)


def decode_parts(data: bytes | memoryview) -> tuple[CatalogHead, dict[int, bytes]]:
    """The head, and the topics by id still encoded."""
    found = _raw_decoder.decode(_checked(data))
    return found.head, {topic_id_in(raw): raw for raw in map(bytes, found.topics)}


def link_in(data: bytes | memoryview) -> Link | None:
    """The name of the catalog in a file, of which the first bytes suffice; None for one of the version before."""
    if bytes(data[: len(MAGIC)]) != MAGIC or len(data) < HEAD_BYTES:
        return None
    return Link(*_LINK.unpack_from(data, len(MAGIC)))


def _checked(data: bytes | memoryview) -> memoryview:
    view = memoryview(data)
    if len(view) < HEAD_BYTES + 8 or bytes(view[:8]) not in (MAGIC, _BEFORE):
        raise ValueError("it is not a catalog")
    if xxh3_64_intdigest(view[:-8]) != _CHECKSUM.unpack_from(view, len(view) - 8)[0]:
        raise ValueError("it has a wrong checksum")
    return view[HEAD_BYTES if bytes(view[:8]) == MAGIC else len(_BEFORE) : -8]
