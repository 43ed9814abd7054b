"""The snapshot format: the state of topics as frames, which replaces the log before it.

    SNAPSHOT_HEAD   msgpack of `SnapshotHead`
    TOPIC           msgpack of `TopicState`, for each topic that changed since the snapshot before (all, in a full one)
      APPEND ...    the blocks of that topic's tail, as they stood in the log
    DIRECTORY       msgpack of `Directory`, about every MiB; only where there are many topics
    SNAPSHOT_END    u64 number of TOPIC frames | with directories: u64 offset of the last DIRECTORY frame

A frame's lsn is its place in the file, from 1. A snapshot that adds to others names them in `chain`; the state is that
of the oldest with each younger one's topics put over it and its `dropped` ones taken away. Payload is copied only for
tails too small to deserve a segment, and only when their topic changed.

A directory has one checksum for everything since the directory before it, and tells where in there which topics are
and what a start has to know of them. So a start with a million topics checks and reads as many bytes as ever, and looks
at a thousandth as many frames; a topic is decoded when somebody asks for it. The frames are there all the same: a
repair loses no more topics than the damage has hit.

`WalPosition` says where replay goes on: everything before that file of that shard is in the snapshot, and nothing
behind it is, because a topic is captured as it stood when its shard turned to that file.
"""

from struct import Struct

import msgspec

from topics.model.seq_ranges import Ranges, SeqRange

_COUNT = Struct("<Q")
_END = Struct("<QQ")


class WalPosition(msgspec.Struct, array_like=True, frozen=True):
    shard: int
    file: int
    lsn: int
    """The lsn of the first frame of that file."""


class SnapshotHead(msgspec.Struct, array_like=True, frozen=True):
    number: int
    chain: list[int]
    """The snapshots this one adds to, the full one first; empty when it is a full one itself."""
    shard_count: int
    positions: list[WalPosition]
    next_topic_id: int
    now_ms: int
    """What the clock said."""
    dropped: list[int]
    quiet: bool = False
    """Whether no seqs were given out while it was taken: at the end of a recovery or of a clean stop."""
    moment: int = 0
    """No frame before its positions has a higher moment; 0 where that is not known."""


class SegmentState(msgspec.Struct, array_like=True, frozen=True):
    first_seq: int
    count: int
    payload_bytes: int
    text_bytes: int
    traits: int
    first_ts: int
    last_ts: int
    live: int
    live_bytes: int
    marked: int
    cold: bool
    flags: bytes = b""
    """The delete flags, where they say more than the file does; empty when the file has them all."""
    first_written: int = 0
    last_written: int = 0
    """When its first and its last record were written, where that is known not to be what their ts says; else 0."""


class LostState(msgspec.Struct, array_like=True, frozen=True):
    first: int
    last: int
    reason: str


class KeyState(msgspec.Struct, array_like=True, frozen=True):
    key: str
    first_seq: int
    count: int
    ts: int


class KeyedState(msgspec.Struct, array_like=True, frozen=True):
    """The idempotency keys of one block."""

    first_seq: int
    count: int
    """The records of one key: all of the block's, or one where single records have keys of their own."""
    ts: int
    keys: str | dict[str, int]
    """The key of the block, or each key with the place of its record."""
    digests: bytes = b""
    """XXH3-64 of the text of each key's records, big endian, in the order of the keys; empty where not known."""
    written: int = 0
    """What the clock said, where the ts says otherwise; 0 where it is the same."""
    of_data: bool = False
    """The digests are those of the data of single records that have nothing else, instead of their text."""


class TopicPeek(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The first fields of a topic's state: the listed properties of one that is paged out."""

    topic_id: int
    name: str
    epoch: int
    config: bytes
    head: int
    ceiling: int
    earliest: int
    evict_floor: int
    cap_floor: int
    ttl_floor: int
    created_ts: int


class TopicState(TopicPeek, array_like=True, frozen=True, gc=True):
    """A topic's state in a snapshot, behind the fields of `TopicPeek`."""

    last_ts: int
    last_write_ts: int
    next_base: int
    segments: list[SegmentState]
    lost: list[LostState]
    keys: list[KeyState]
    """As older servers wrote them; new ones are in `keyed`."""
    tail_flags: list[bytes]
    """The delete flags of each tail block that follows, empty where nothing in it is deleted."""
    parts: dict[str, bytes] = {}
    """What else the topic is, by the name of the feature that owns and encodes it; see `engine.features`."""
    unlogged: bool = False
    """Whether it may hold records that a replay does not have, so that every eviction is a frame; see EVICT."""
    keyed: list[KeyedState] = []
    """The idempotency keys, block by block, the oldest first."""
    tail_live: int = 0
    """Live records of the tail, and their payload, for whoever does not read the blocks; only where a directory names
    the topic."""
    tail_live_bytes: int = 0


CLASSES = ("ephemeral", "memory", "disk", "fsync")
"""The classes in the order of their numbers in directories; never changed."""


class Directory(msgspec.Struct, array_like=True, frozen=True):
    """The topics of a span of the file that may stay there until they are asked for, a column each, and the rest."""

    previous: int
    """Where the directory before this one is; 0 where there is none."""
    begin: int
    """Where the span begins: where the directory before it ends, or with the file. It ends where this one begins."""
    digest: int
    """XXH3-64 of the bytes of the span."""
    others: list[tuple[int, int]]
    """The topics that a start has to have whole: where the TOPIC frame is, and the bytes of all frames."""
    ids: list[int]
    names: list[str]
    offsets: list[int]
    """Where the TOPIC frame of each is."""
    sizes: list[int]
    """The bytes of that frame and of the APPEND frames behind it."""
    classes: bytes
    """The durability of each, a number of `CLASSES`."""
    live: list[int]
    live_bytes: list[int]
    written: list[int]
    """When the oldest block of each one's tail was written; 0 where there is none."""


_encoder = msgspec.msgpack.Encoder()
_head_decoder = msgspec.msgpack.Decoder(SnapshotHead)
_topic_decoder = msgspec.msgpack.Decoder(TopicState)
_directory_decoder = msgspec.msgpack.Decoder(Directory)


def encode_head(head: SnapshotHead) -> bytes:
    return _encoder.encode(head)


def decode_head(body: memoryview) -> SnapshotHead:
    return _head_decoder.decode(body)


def encode_topic(state: TopicState) -> bytes:
    return _encoder.encode(state)


def decode_topic(body: memoryview) -> TopicState:
    return _topic_decoder.decode(body)


decode_peek = msgspec.msgpack.Decoder(TopicPeek).decode
"""The first fields of what `encode_topic` wrote; the rest is skipped."""


def encode_directory(directory: Directory) -> bytes:
    return _encoder.encode(directory)


def decode_directory(body: memoryview) -> Directory:
    """Raises ValueError where its columns are not of one length."""
    found = _directory_decoder.decode(body)
    columns = (found.names, found.offsets, found.sizes, found.classes, found.live, found.live_bytes, found.written)
    if any(len(column) != len(found.ids) for column in columns) or any(map(len(CLASSES).__le__, found.classes)):
        raise ValueError("a directory whose columns disagree")
    return found


def encode_end(topics: int, directory: int = 0) -> bytes:
    return _END.pack(topics, directory) if directory else _COUNT.pack(topics)


def decode_end(body: memoryview) -> int:
    return int(_COUNT.unpack_from(body)[0]) if len(body) in (_COUNT.size, _END.size) else -1


def directory_in_end(body: memoryview) -> int:
    """Where the last directory is; 0 where there is none."""
    return int(_END.unpack(body)[1]) if len(body) == _END.size else 0


# Deletes that an archive still has to hear of, as a topic keeps them in its snapshots.
#
#     removals    msgpack array of [number, ranges]: the first catalog that told of these deletes, and ranges of
#                 [first, last], each inclusive, ascending, apart
#
# The part is named `removals` in `TopicState.parts`. While a topic is in memory its ranges stay encoded: they are a
# tenth as large, and every checkpoint writes them as they are.

REMOVALS_PART = "removals"

Removal = tuple[int, list[SeqRange]]
PackedRemoval = tuple[int, msgspec.Raw]
"""A removal with its ranges encoded."""

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
