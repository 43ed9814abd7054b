"""Router frames and the router part of a snapshot. All numbers are little endian.

    ROUTER   msgpack of `RouterState`: a router of this topic was created or changed
    UNROUTE  u64 id of the router that was deleted

FORWARD is a frame of the destination. It maps some of its seqs to records of the source, and contains everything else
that is needed to make identical copies again:

    offset  size  field
         0     8  router id
         8     8  source topic id
        16     8  cursor: the router is done with every source seq up to here
        24     8  first seq of the destination
        32     8  lost: so many seqs from there on stay empty, because the source lost its records before
        40     8  ts of the copies
        48     8  payload bytes of the copies
        56     4  count: how many copies follow the empty seqs
        60     4  base: where their text begins in the destination's running text coordinate
        64     4  length of their text
        68     4  number of ranges
        72     1  flags (1 by value, 2 the node is kept, 4 the tag is kept, 8 stamped, 16 written)
        73     1  hops: how often the copies were forwarded within a cycle
        74     2  length of the stamp
        76     1  traits of the copies, as in a block
        77     3  zero
         .     8  written: when the copies were made, where that is not their ts; only with flag 16
         .     s  stamp: source epoch, router name, source name, with line feeds between; `exactly_once` adds it to meta
         .   16r  ranges of source seqs, u64 first, u64 last, both included: what was copied, in order
         .     .  by value only: 12 bytes of row for each copy and the text, as in a block

By reference, which is the usual case, it has no payload: the copies are extracted from the source's frames (APPEND or
FORWARD), which are in the log whenever this frame is. By value is for records that the log no longer has, or never had.
The part of a topic's state called "routers" is msgpack of `RoutersState`.
"""

from struct import Struct

import msgspec

from topics.model.records import ROW_BYTES
from topics.model.router_rules import Stamp

FORWARD_HEAD = Struct("<QQQQQQQIIIIBBHB3x")
ROUTER_ID_BYTES = 8
"""Length of the router id at the start of a header."""
_PAIR = Struct("<QQ")
_U64 = Struct("<Q")

_BY_VALUE = 1
_NODE = 2
_TAG = 4
_STAMPED = 8
_WRITTEN = 16

SeqRange = tuple[int, int]


class RouterState(msgspec.Struct, array_like=True, frozen=True):
    """A router with its place in the source."""

    router_id: int
    name: str
    dest_id: int
    preserve_node: bool
    preserve_tag: bool
    filter: str | None
    filter_prefix: bool
    allow_cycle: bool
    exactly_once: bool
    cursor: int
    forwarded: int
    created_ts: int
    dedupe_upto: int = 0
    """Source seqs up to here may have been copied by an earlier router of the same name."""


class RoutersState(msgspec.Struct, array_like=True, frozen=True):
    routers: list[RouterState]
    hops: list[tuple[int, int, int]] = []
    """First and last seq of records that were forwarded within a cycle, and the number of forwards; only if they may be
    needed."""


class Forward(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded FORWARD; `rows` and `text` are empty unless it is by value."""

    router_id: int
    source_id: int
    cursor: int
    first_seq: int
    lost: int
    ts: int
    payload_bytes: int
    count: int
    base: int
    text_length: int
    traits: int
    keep_node: bool
    keep_tag: bool
    stamp: Stamp | None
    hops: int
    ranges: list[SeqRange]
    by_value: bool = False
    rows: bytes = b""
    text: bytes = b""
    written: int | None = None
    """None if it equals the ts."""

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.lost + self.count - 1

    @property
    def next_base(self) -> int:
        return self.base + self.text_length + 1 if self.count else self.base


class ForwardShape:
    """The common part of forwards of the same records, encoded once for all destinations."""

    __slots__ = ("_behind", "_flags", "_hops", "_ranges", "_stamp_bytes")

    def __init__(
        self, ranges: list[SeqRange], keep_node: bool, keep_tag: bool, stamp: Stamp | None, hops: int, by_value: bool
    ) -> None:
        encoded = f"{stamp.source_epoch}\n{stamp.router}\n{stamp.source}".encode() if stamp is not None else b""
        self._behind = encoded + b"".join([_PAIR.pack(first, last) for first, last in ranges])
        self._flags = (
            (_BY_VALUE if by_value else 0)
            | (_NODE if keep_node else 0)
            | (_TAG if keep_tag else 0)
            | (_STAMPED if stamp is not None else 0)
        )
        self._hops = hops
        self._ranges = len(ranges)
        self._stamp_bytes = len(encoded)

    def encode(
        self, router_id: int, source_id: int, cursor: int, first_seq: int, lost: int, ts: int, payload_bytes: int,
        count: int, base: int, text_length: int, traits: int, written: int | None,
    ) -> bytes:  # fmt: skip
        """A FORWARD; by value, its rows and its text follow."""
        flags, at = (
            (self._flags, b"") if written is None or written == ts else (self._flags | _WRITTEN, _U64.pack(written))
        )
        return (
            FORWARD_HEAD.pack(
                router_id, source_id, cursor, first_seq, lost, ts, payload_bytes, count, base, text_length,
                self._ranges, flags, self._hops, self._stamp_bytes, traits,
            )
            + at
            + self._behind
        )  # fmt: skip


def encode_forward(forward: Forward) -> bytes:
    """Encodes a FORWARD without the text of a forward by value."""
    shape = ForwardShape(
        forward.ranges, forward.keep_node, forward.keep_tag, forward.stamp, forward.hops, forward.by_value
    )
    head = shape.encode(
        forward.router_id, forward.source_id, forward.cursor, forward.first_seq, forward.lost, forward.ts,
        forward.payload_bytes, forward.count, forward.base, forward.text_length, forward.traits, forward.written,
    )  # fmt: skip
    return head + forward.rows


def decode_forward(body: memoryview) -> Forward:
    """Decodes a FORWARD body whose checksum was verified. Raises ValueError if its lengths disagree."""
    if len(body) < FORWARD_HEAD.size:
        raise ValueError("a forward shorter than its head")
    (
        router_id, source_id, cursor, first_seq, lost, ts, payload_bytes, count, base, text_length, range_count, flags,
        hops, stamp_length, traits,
    ) = FORWARD_HEAD.unpack_from(body, 0)  # fmt: skip
    by_value = bool(flags & _BY_VALUE)
    stamp_at = FORWARD_HEAD.size + (_U64.size if flags & _WRITTEN else 0)
    ranges_at = stamp_at + stamp_length
    rows_at = ranges_at + range_count * _PAIR.size
    text_at = rows_at + (count * ROW_BYTES if by_value else 0)
    ranges = list(_PAIR.iter_unpack(body[ranges_at:rows_at])) if rows_at <= len(body) else []
    if text_at + (text_length if by_value else 0) != len(body) or not count + lost:
        raise ValueError("a forward whose lengths disagree")
    if sum(last - first + 1 for first, last in ranges) != count:
        raise ValueError("a forward whose ranges do not add up")
    written = int(_U64.unpack_from(body, FORWARD_HEAD.size)[0]) if flags & _WRITTEN else None
    stamp = None
    if flags & _STAMPED:
        epoch, router, source = str(body[stamp_at:ranges_at], "utf-8").split("\n", 2)
        stamp = Stamp.of(router, source, source_id, int(epoch))
    return Forward(
        router_id=router_id, source_id=source_id, cursor=cursor, first_seq=first_seq, lost=lost, ts=ts,
        payload_bytes=payload_bytes, count=count, base=base, text_length=text_length, traits=traits, written=written,
        keep_node=bool(flags & _NODE), keep_tag=bool(flags & _TAG), stamp=stamp, hops=hops, ranges=ranges,
        by_value=by_value, rows=bytes(body[rows_at:text_at]), text=bytes(body[text_at:]),
    )  # fmt: skip


def forward_first_seq(body: memoryview) -> int:
    """Returns the first seq only, for callers that record the positions of forwards."""
    return int.from_bytes(body[24:32], "little")


_encoder = msgspec.msgpack.Encoder()
_router_decoder = msgspec.msgpack.Decoder(RouterState)
_part_decoder = msgspec.msgpack.Decoder(RoutersState)


def encode_router(state: RouterState) -> bytes:
    return _encoder.encode(state)


def decode_router(body: memoryview) -> RouterState:
    return _router_decoder.decode(body)


def encode_unroute(router_id: int) -> bytes:
    return _U64.pack(router_id)


def decode_unroute(body: memoryview) -> int:
    return int(_U64.unpack(body)[0])


def encode_routers(state: RoutersState) -> bytes:
    return _encoder.encode(state)


def decode_routers(part: bytes) -> RoutersState:
    return _part_decoder.decode(part)
