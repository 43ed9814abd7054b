"""Finding fragments in a text whose rows are lost.

A JSON object is complete at exactly one place: no shorter piece of it is an object too. So a fragment ends at the
first place that looks like the beginning of the next seq and up to which the text decodes as a whole; what a payload
may hold that looks the same cannot mislead, because the piece before it does not decode.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from topics.core.rows import DATA_NAME, META_NAME, NODE_NAME, SEQ_NAME, TAG_NAME, TS_NAME

_BEGIN = re.compile(re.escape(SEQ_NAME) + rb"([1-9][0-9]{0,19})" + re.escape(TS_NAME))
_NONE = msgspec.Raw()


class FragmentParts(NamedTuple):
    """Where a fragment stands in the text and how long its parts are; in the words of `core.rows`."""

    seq: int
    ts: int
    start: int
    end: int
    meta: int
    tag: int
    head: int


class _Fragment(msgspec.Struct, gc=False):
    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: msgspec.Raw
    node: msgspec.Raw = msgspec.field(name="$node", default=_NONE)
    meta: msgspec.Raw = _NONE
    tag: msgspec.Raw = msgspec.field(name="$tag", default=_NONE)


_decode = msgspec.json.Decoder(_Fragment).decode


def read_fragment(text: bytes, start: int, end: int) -> FragmentParts | None:
    """The fragment that fills the text from `start` to `end` exactly; None when that is not one whole fragment."""
    piece = text[start:end]
    try:
        found = _decode(piece)
    except (ValueError, RecursionError):
        return None
    node = NODE_NAME + bytes(found.node) if len(found.node) else b""
    head = b"%b%d%b%d%b%b" % (SEQ_NAME, found.seq, TS_NAME, found.ts, node, DATA_NAME)
    tag = TAG_NAME + bytes(found.tag) if len(found.tag) else b""
    if not piece.startswith(head) or not piece.endswith(tag + b"}"):
        return None
    meta = 0
    if len(found.meta):
        stop = len(piece) - 1 - len(tag)
        begin = piece.rfind(META_NAME, 0, len(piece[:stop].rstrip()) - len(found.meta))
        if begin < len(head):
            return None
        meta = stop - begin
    return FragmentParts(found.seq, found.ts, start, end, meta, len(tag), len(head))


def scan_fragments(text: bytes, start: int, seq: int, limit: int) -> Iterator[FragmentParts]:
    """Fragments from `start` on, the first of which has this seq, as far as they are whole before `limit`."""
    while start < limit:
        marker = b",%b%d%b" % (SEQ_NAME, seq + 1, TS_NAME)
        found, at = None, start
        while found is None and (at := text.find(marker, at + 1, limit)) >= 0:
            found = read_fragment(text, start, at)
        if found is None and limit == len(text):
            found = read_fragment(text, start, limit)
        if found is None or found.seq != seq:
            return
        yield found
        start, seq = found.end + 1, seq + 1


def scan_to_end(text: bytes, start: int, first_seq: int, last_seq: int) -> list[FragmentParts]:
    """The longest row of fragments behind `start` that reaches the end of the text with `last_seq`; used behind damage.

    Only the end proves that a beginning was a real one and not part of a payload.
    """
    for match in _BEGIN.finditer(text, start):
        seq = int(match[1])
        if first_seq <= seq <= last_seq and (match.start() == 0 or text[match.start() - 1] == ord(",")):
            found = list(scan_fragments(text, match.start(), seq, len(text)))
            if found and found[-1].seq == last_seq and found[-1].end == len(text):
                return found
    return []
