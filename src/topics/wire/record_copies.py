"""Copies of records for another topic: the source's fragments with another head, cut and joined, never parsed.

A copy differs from its record in `$seq` and `$ts` only, and, if the router is configured so, in `$node`, `$tag` or
`meta`. So everything after the ts is copied unchanged. It is extracted once for all destinations of a record
(`cut_copies`); for each of them only new heads are added (`render`).
"""

import re
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import add
from typing import NamedTuple

import msgspec

from topics.model.records import (
    DATA_NAME,
    META_NAME,
    ROW,
    SEQ_NAME,
    TAG_NAME,
    TRAIT_META,
    TRAIT_NODES,
    TRAIT_TAGS,
    TS_NAME,
    OptionalRawJson,
    Record,
)
from topics.model.router_rules import Stamp
from topics.wire.record_encoding import Fragments, node_suffix
from topics.wire.record_slicing import View

_BEFORE_DIGITS = len(SEQ_NAME) + len(TS_NAME)
_META_KEYS_MAX = 64

STAMP_KEY = b'"_topics_router":'
ORIGINAL_META_KEY = b'"_topics_original_meta":'

_encode_json = msgspec.json.Encoder().encode
_decode_meta = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class RecordSlice(NamedTuple):
    """Records from lo to before hi of a view; `origin` is the seq of its record 0."""

    view: View
    lo: int
    hi: int
    origin: int

    @property
    def first_seq(self) -> int:
        return self.origin + self.lo

    @property
    def last_seq(self) -> int:
        return self.origin + self.hi - 1


class Copies(NamedTuple):
    """The common part of copies of some records, the same for every destination."""

    rests: list[bytes]
    """The text after the ts of each: `,"data":DATA}` and other members."""
    offsets: list[int]
    """The start of each in their concatenation, and the end of the last."""
    metas: list[int]
    lasts: list[int]
    """The third word of each row; its head counts only the part in the rest."""
    sizes: list[int]
    """The size of each, as counted for caps."""
    traits: int

    def first(self, count: int) -> "Copies":
        """Returns the first few of them."""
        return Copies(
            self.rests[:count], self.offsets[: count + 1], self.metas[:count], self.lasts[:count], self.sizes[:count],
            self.traits,
        )  # fmt: skip


class CopyChange(NamedTuple):
    """Differences between a copy and its record."""

    keep_node: bool = True
    keep_tag: bool = True
    stamp: Stamp | None = None


VERBATIM = CopyChange()


def cut_copies(slices: Iterable[RecordSlice], change: CopyChange = VERBATIM) -> Copies:
    """Extracts the common part of the copies of some records."""
    rests: list[bytes] = []
    metas: list[int] = []
    lasts: list[int] = []
    verbatim = change == VERBATIM
    for slice_ in slices:
        text, starts, ends, part_metas, words = _parts(slice_)
        seqs = range(slice_.first_seq, slice_.last_seq + 1)
        # The digits of the ts end at the next comma: the one before "$node" or "data".
        digits_end = [
            text.find(b",", start + _BEFORE_DIGITS + len(str(seq))) for seq, start in zip(seqs, starts, strict=True)
        ]
        if verbatim:
            rests += [text[begin:end] for begin, end in zip(digits_end, ends, strict=True)]
            metas += part_metas
            lasts += [
                last - (begin - start << 16) for last, begin, start in zip(words, digits_end, starts, strict=True)
            ]
            continue
        for seq, start, begin, end, meta, last in zip(seqs, starts, digits_end, ends, part_metas, words, strict=True):
            rest, new_meta, new_last = _changed(
                change, seq, text[begin:end], start + (last >> 16) - begin, meta, last & 0xFFFF
            )
            rests.append(rest)
            metas.append(new_meta)
            lasts.append(new_last)
    offsets = list(accumulate(map(len, rests), initial=0))
    sizes = [
        len(rest) - 1 - (last >> 16) - (last & 0xFFFF) - (len(META_NAME) if meta else 0)
        for rest, meta, last in zip(rests, metas, lasts, strict=True)
    ]
    return Copies(rests, offsets, metas, lasts, sizes, _traits(metas, lasts))


class _Rest(msgspec.Struct, rename={"node": "$node", "tag": "$tag"}):
    """Returns the members after the ts of a fragment."""

    data: msgspec.Raw
    node: str | None = None
    tag: str | None = None
    meta: OptionalRawJson = None


_decode_rest = msgspec.json.Decoder(_Rest).decode


def records_of(copies: Copies) -> list[Record]:
    """Returns the copies as records, for callers that inspect them before the write."""
    rests = [_decode_rest(b"{" + rest[1:]) for rest in copies.rests]
    return [Record(rest.data, rest.tag, rest.node, rest.meta) for rest in rests]


def copies_of(records: Sequence[Record]) -> Copies:
    """Returns records as copies, for records that are not stored unchanged."""
    rests: list[bytes] = []
    metas: list[int] = []
    lasts: list[int] = []
    sizes: list[int] = []
    for record in records:
        head = DATA_NAME if record.node is None else node_suffix(record.node)
        meta = b"" if record.meta is None else b"%b%b" % (META_NAME, record.meta)
        tag = b"" if record.tag is None else TAG_NAME + _encode_json(record.tag)
        rests.append(b"%b%b%b%b}" % (head, record.data, meta, tag))
        metas.append(len(meta))
        lasts.append(len(head) << 16 | len(tag))
        sizes.append(len(record.data) + len(record.meta or b""))
    return Copies(rests, list(accumulate(map(len, rests), initial=0)), metas, lasts, sizes, _traits(metas, lasts))


def _parts(slice_: RecordSlice) -> tuple[bytes, list[int], list[int], list[int], list[int]]:
    """Yields a text, and for each record the start and end of its fragment, its meta part and its third word."""
    view, lo, hi, _ = slice_
    text = view.text if isinstance(view.text, bytes) else bytes(view.whole(lo, hi))
    shift = view.bias if text is view.text else view.bias + view.start(lo)
    starts = [word - shift for word in view.rows[3 * lo : 3 * hi : 3].tolist()]
    # The fragment ends before the comma that precedes the next one.
    ends = [start - 1 for start in starts[1:]]
    ends.append(view.start(hi) + view.bias - shift - 1)
    return text, starts, ends, view.rows[3 * lo + 1 : 3 * hi : 3].tolist(), view.rows[3 * lo + 2 : 3 * hi : 3].tolist()


def _changed(change: CopyChange, seq: int, rest: bytes, head: int, meta: int, tag: int) -> tuple[bytes, int, int]:
    """Returns the rest of a record's copy, the length of its meta part, and its third word."""
    begin = 0 if change.keep_node else head - len(DATA_NAME)
    data_end = len(rest) - 1 - tag - meta
    meta_part = rest[data_end : data_end + meta]
    if change.stamp is not None:
        meta_part = META_NAME + _stamped(meta_part[len(META_NAME) :], _provenance(change.stamp, seq))
    tag_part = rest[data_end + meta : -1] if change.keep_tag else b""
    copy = b"".join((rest[begin:data_end], meta_part, tag_part, b"}"))
    return copy, len(meta_part), head - begin << 16 | len(tag_part)


def _traits(metas: list[int], lasts: list[int]) -> int:
    tags = any([last & 0xFFFF for last in lasts])
    nodes = any([last >> 16 > len(DATA_NAME) for last in lasts])
    return (TRAIT_TAGS if tags else 0) | (TRAIT_NODES if nodes else 0) | (TRAIT_META if any(metas) else 0)


def render(copies: Copies, first_seq: int, ts: int, base: int) -> Fragments:
    """Returns the copies as fragments of a destination, equal to the output of `encode_fragments`."""
    count = len(copies.rests)
    middle = b',"$ts":%d' % ts
    if count == 1:
        rest, last = copies.rests[0], copies.lasts[0]
        text = b'{"$seq":%d%b%b' % (first_seq, middle, rest)
        head = len(text) - len(rest) + (last >> 16)
        return Fragments(text, ROW.pack(base, copies.metas[0], last & 0xFFFF, head), copies.sizes[0], copies.traits)
    digits = len(str(first_seq))
    if len(str(first_seq + count - 1)) != digits:
        return _render_separately(copies, first_seq, ts, base, 10**digits - first_seq)
    arguments: list[object] = [None] * (2 * count)
    arguments[0::2] = range(first_seq, first_seq + count)
    arguments[1::2] = copies.rests
    text = (b",".join([b'{"$seq":%d' + middle + b"%b"] * count)) % tuple(arguments)
    head = 8 + digits + len(middle)
    rows = array("I", bytes(12 * count))
    rows[0::3] = array("I", map(add, copies.offsets[:count], range(base, base + count * (head + 1), head + 1)))
    rows[1::3] = array("I", copies.metas)
    word = head << 16
    rows[2::3] = array("I", [last + word for last in copies.lasts])
    return Fragments(text, rows.tobytes(), sum(copies.sizes), copies.traits)


def _render_separately(copies: Copies, first_seq: int, ts: int, base: int, before: int) -> Fragments:
    """If the seqs become longer by a digit, both halves are done separately."""
    start = copies.offsets[before]
    behind = Copies(
        copies.rests[before:], [offset - start for offset in copies.offsets[before:]], copies.metas[before:],
        copies.lasts[before:], copies.sizes[before:], copies.traits,
    )  # fmt: skip
    one = render(copies.first(before), first_seq, ts, base)
    two = render(behind, first_seq + before, ts, base + len(one.text) + 1)
    return Fragments(
        one.text + b"," + two.text, one.rows + two.rows, one.payload_bytes + two.payload_bytes, copies.traits
    )


def filtered(slices: Sequence[RecordSlice], passes: Iterable[int]) -> list[RecordSlice]:
    """Returns the slices restricted to the given ascending seqs."""
    kept: list[RecordSlice] = []
    requested = iter(passes)
    seq = next(requested, None)
    for slice_ in slices:
        view, origin = slice_.view, slice_.origin
        while seq is not None and seq <= slice_.last_seq:
            index = seq - origin
            if kept and kept[-1].view is view and kept[-1].hi == index:
                kept[-1] = RecordSlice(view, kept[-1].lo, index + 1, origin)
            else:
                kept.append(RecordSlice(view, index, index + 1, origin))
            seq = next(requested, None)
    return kept


def _provenance(stamp: Stamp, seq: int) -> bytes:
    names = _encode_json(f"{stamp.key_prefix}{seq}"), _encode_json(stamp.router), _encode_json(stamp.source)
    numbers = stamp.source_id, stamp.source_epoch, seq
    return b'{"idempotency_key":%b,"router":%b,"source_topic":%b,' % names + (
        b'"source_topic_id":%d,"source_epoch":%d,"source_seq":%d}' % numbers
    )


def stamp_mark(stamp: Stamp) -> bytes:
    """Returns bytes that occur in every fragment with this stamp, and rarely elsewhere."""
    return b'%b{"idempotency_key":%b' % (STAMP_KEY, _encode_json(stamp.key_prefix)[:-1])


def stamp_in(view: View, index: int, stamp: Stamp) -> int | None:
    """Returns the source seq in a record's stamp; None if it has none, or one of another router."""
    end = view.start(index + 1) - 2 - (view.rows[3 * index + 2] & 0xFFFF)
    meta = bytes(view.text[end - view.rows[3 * index + 1] : end])
    mark = stamp_mark(stamp)
    at = meta.rfind(mark)
    digits = meta[at + len(mark) : meta.find(b'"', at + len(mark))]
    if at < 0 or not digits.isdigit():
        return None
    seq = int(digits)
    return seq if meta[at + len(STAMP_KEY) : -1] == _provenance(stamp, seq) else None


def _stamped(meta: bytes, provenance: bytes) -> bytes:
    """Returns a record's meta with its provenance as the last member."""
    if not meta:
        return b"{%b%b}" % (STAMP_KEY, provenance)
    # The common case needs no parsing: few members, and none that could be an older stamp.
    if meta.count(b":") < _META_KEYS_MAX and b"_topics_router" not in meta and meta[:1] == b"{":
        inner = meta[1:-1].strip()
        return b"{%b%b%b%b}" % (inner, b"," if inner else b"", STAMP_KEY, provenance)
    try:
        members = _decode_meta(meta)
    except (msgspec.DecodeError, RecursionError):
        members = None
    if members is not None:
        members.pop("_topics_router", None)
        if len(members) < _META_KEYS_MAX:
            inner = b",".join([_encode_json(key) + b":" + bytes(value) for key, value in members.items()])
            return b"{%b%b%b%b}" % (inner, b"," if inner else b"", STAMP_KEY, provenance)
    return b"{%b%b,%b%b}" % (ORIGINAL_META_KEY, meta, STAMP_KEY, provenance)


# Origin and reason of a dead letter: keys at the front of its `meta`, added and removed without a parser.
#
#     {"$dead_letter_from":"jobs","$dead_letter_deliveries":"5","$dead_letter_src_seq":"17",
#      "$dead_letter_reason":"ValueError: no such file","$dead_letter_first_failure_ms":"1767225600000",
#      "$dead_letter_last_failure_ms":"1767225660000", ...what the writer sent...}
#
# The last three are present if a failure is known, the reason if it has one. Values are texts. The writer's meta
# follows byte for byte, so that a redriven job has its original meta again. A meta with these keys in another form,
# which any client may write, is handled with a parser.

_FROM = b'"$dead_letter_from"'
_KEYS = frozenset(
    (
        "$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq", "$dead_letter_reason",
        "$dead_letter_first_failure_ms", "$dead_letter_last_failure_ms",
    )
)  # fmt: skip
_FRONT = re.compile(
    rb'\{"\$dead_letter_from":"([^"\\]*)","\$dead_letter_deliveries":"\d+","\$dead_letter_src_seq":"\d+"'
    rb'(?:,"\$dead_letter_reason":"(?:[^"\\]|\\.)*")?'
    rb'(?:,"\$dead_letter_first_failure_ms":"\d+","\$dead_letter_last_failure_ms":"\d+")?(,|\}\Z)'
)
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


class Provenance(NamedTuple):
    source: str
    """The queue the job was in."""
    meta: bytes | None
    """Its meta there."""


class Failures(NamedTuple):
    """The failures that a dead letter records."""

    reason: str
    """The reason of the last failure."""
    first_ms: int
    last_ms: int


def stamp(meta: bytes | None, source: str, deliveries: int, seq: int, failures: Failures | None = None) -> bytes:
    """Returns the meta of a dead letter. For a job that was one before, only the last queue is included."""
    earlier = read_provenance(meta)
    meta = earlier.meta if earlier is not None else _without_keys(meta)
    front = b'{"$dead_letter_from":%b,"$dead_letter_deliveries":"%d","$dead_letter_src_seq":"%d"' % (
        _encode(source), deliveries, seq,
    )  # fmt: skip
    if failures is not None:
        if failures.reason:
            front += b',"$dead_letter_reason":%b' % _encode(failures.reason)
        front += b',"$dead_letter_first_failure_ms":"%d","$dead_letter_last_failure_ms":"%d"' % failures[1:]
    own = (meta or b"").strip()[1:]
    return front + b"," + own if own.rstrip(b"}").strip() else front + b"}"


def read_provenance(meta: bytes | None) -> Provenance | None:
    """Returns the origin of a record; None if it is not a dead letter."""
    if meta is None or _FROM not in meta:
        return None
    front = _FRONT.match(meta)
    if front is not None:
        rest = meta[front.end() :]
        own = b"{" + rest if rest else None
        if own is _without_keys(own):
            return Provenance(str(front[1], "utf-8"), own)
    try:
        keys = _decode_object(meta)
        source = _decode_text(keys["$dead_letter_from"])
    except (ValueError, KeyError, RecursionError):
        return None
    return Provenance(source, _encode_own(keys))


def _without_keys(meta: bytes | None) -> bytes | None:
    """Returns a meta without these keys, which are reserved; the same object if it has none."""
    if meta is None or (b"dead_letter" not in meta and b"\\" not in meta):
        return meta
    try:
        keys = _decode_object(meta)
    except (ValueError, RecursionError):
        return meta
    return meta if _KEYS.isdisjoint(keys) else _encode_own(keys)


def _encode_own(keys: dict[str, msgspec.Raw]) -> bytes | None:
    own = {key: value for key, value in keys.items() if key not in _KEYS}
    return _encode(own) if own else None
