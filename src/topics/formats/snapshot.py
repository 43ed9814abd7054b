"""A snapshot: what the log's absorbed part amounts to, written as frames.

    SNAPSHOT_HEAD   msgpack of `SnapshotHead`
    TOPIC           msgpack of `TopicState`, for each topic that changed since the snapshot before (all, in a full one)
      APPEND ...    the blocks of that topic's tail, as they stood in the log
    SNAPSHOT_END    u64 number of TOPIC frames

A frame's lsn is its place in the file, from 1. A snapshot that adds to others names them in `chain`; the state is that
of the oldest with each younger one's topics put over it and its `dropped` ones taken away. Payload is copied only for
tails too small to deserve a segment, and only when their topic changed.

`WalPosition` says where replay goes on: everything before that file of that shard is in the snapshot, and nothing
behind it is, because a topic is captured as it stood when its shard turned to that file.
"""

from struct import Struct

import msgspec

_COUNT = Struct("<Q")


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


class TopicState(msgspec.Struct, array_like=True, frozen=True):
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


_encoder = msgspec.msgpack.Encoder()
_head_decoder = msgspec.msgpack.Decoder(SnapshotHead)
_topic_decoder = msgspec.msgpack.Decoder(TopicState)


def encode_head(head: SnapshotHead) -> bytes:
    return _encoder.encode(head)


def decode_head(body: memoryview) -> SnapshotHead:
    return _head_decoder.decode(body)


def encode_topic(state: TopicState) -> bytes:
    return _encoder.encode(state)


def decode_topic(body: memoryview) -> TopicState:
    return _topic_decoder.decode(body)


def encode_end(topics: int) -> bytes:
    return _COUNT.pack(topics)


def decode_end(body: memoryview) -> int:
    return int(_COUNT.unpack(body)[0])
