"""The catalog: the sealed segments of all topics, in one small file for readers in other processes.

Programs that read sealed segments in place (the Spark pipeline is one) must know which segments are valid, their topics
and their deleted records. The engine writes this list beside its snapshots at each checkpoint, after the deletes of
that checkpoint were flipped into the segments' flags and before any file it no longer names is removed. So a caller
that reads the catalog and then the files sees every delete before the catalog's checkpoint; a missing file was removed
by a later one, and the newer catalog states why.

    offset  size  field
         0     8  magic "TPCAT001"
         8     n  msgpack of `CatalogHead`, then of `CatalogTopic` for each topic that has or had sealed records
       8+n     8  XXH3-64 of every byte before it

Both structures are msgpack arrays. The file is written under another name, synced and renamed, so a broken one is
damage; the next checkpoint replaces it. It is not a part of the log: nothing is recovered from it.
"""

from collections.abc import Iterable, Mapping
from struct import Struct

import msgspec
from xxhash import xxh3_64_intdigest

from topics.log.fs import FileSystem, read_whole, replace_file
from topics.log.layout import Layout
from topics.model.seq_ranges import SeqRange

MAGIC = b"TPCAT001"
_CHECKSUM = Struct("<Q")


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


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_File)
_raw_decoder = msgspec.msgpack.Decoder(_RawFile)
_topic_decoder = msgspec.msgpack.Decoder(CatalogTopic)


def encode_topic(topic: CatalogTopic) -> bytes:
    return _encoder.encode(topic)


def contract_in(entry: bytes) -> bytes:
    """Returns the contract of an encoded topic."""
    return _topic_decoder.decode(entry).contract


def encode_catalog(
    number: int, now_ms: int, topics: Iterable[bytes], tracked: bool = False, listed: Listed | None = None
) -> bytes:
    """Returns the whole file. The topics are encoded already, because most of them have not changed."""
    parts = [msgspec.Raw(topic) for topic in topics]
    head = CatalogHead(number, now_ms, len(parts), tracked, True, listed or Listed())
    body = MAGIC + _encoder.encode(_RawFile(head, parts))
    return body + _CHECKSUM.pack(xxh3_64_intdigest(body))


def decode_catalog(data: bytes | memoryview) -> Catalog:
    """Reads and checks a catalog; raises ValueError with the problem."""
    found = _decoder.decode(_checked(data))
    return Catalog(found.head, found.topics)


def decode_since(data: bytes | memoryview, known: Mapping[bytes, CatalogTopic]) -> tuple[CatalogHead, Encoded]:
    """Like `decode_catalog`, for a caller that reads repeatedly: an unchanged topic is not decoded again.

    `known` is the previous result: the topics by their encoded bytes, in the order of the file.
    """
    found = _raw_decoder.decode(_checked(data))
    topics = {}
    for raw in map(bytes, found.topics):
        topic = known.get(raw)
        topics[raw] = topic if topic is not None else _topic_decoder.decode(raw)
    return found.head, topics


def decode_parts(data: bytes | memoryview) -> tuple[CatalogHead, dict[int, bytes]]:
    """Returns the head and the encoded topics by number, for the engine, which writes them again."""
    found = _raw_decoder.decode(_checked(data))
    return found.head, {_topic_decoder.decode(raw).topic_id: bytes(raw) for raw in found.topics}


def _checked(data: bytes | memoryview) -> memoryview:
    view = memoryview(data)
    if len(view) < len(MAGIC) + 8 or bytes(view[:8]) != MAGIC:
        raise ValueError("it is not a catalog")
    if xxh3_64_intdigest(view[:-8]) != _CHECKSUM.unpack_from(view, len(view) - 8)[0]:
        raise ValueError("it has a wrong checksum")
    return view[8:-8]


# The catalog's file: replaced in one step, so that a reader sees the old one or the new one, never a part.


def write_catalog(fs: FileSystem, layout: Layout, data: bytes) -> None:
    replace_file(fs, layout.catalog, data)


def read_catalog_bytes(fs: FileSystem, layout: Layout) -> bytes | None:
    """Returns the content of the file; None if it does not exist."""
    return read_whole(fs, layout.catalog)


def read_catalog(fs: FileSystem, layout: Layout) -> Catalog | None:
    """Returns the catalog; None if it does not exist. Raises ValueError if it is damaged."""
    data = read_catalog_bytes(fs, layout)
    return None if data is None else decode_catalog(data)
