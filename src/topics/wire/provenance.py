"""Where a dead letter came from: three keys at the front of its `meta`, put there and taken away without a parser.

    {"$dead_letter_from":"jobs","$dead_letter_deliveries":"5","$dead_letter_src_seq":"17", ...what the writer sent... }

Values are texts. What the writer sent follows byte for byte, so that a job that comes back has its own meta again. A
meta that carries the keys in another form, since anybody may write them, is read and taken apart with a parser.
"""

import re
from typing import NamedTuple

import msgspec

_FROM = b'"$dead_letter_from"'
_KEYS = frozenset(("$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq"))
_FRONT = re.compile(
    rb'\{"\$dead_letter_from":"([^"\\]*)","\$dead_letter_deliveries":"\d+","\$dead_letter_src_seq":"\d+"(,|\}\Z)'
)
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


class Provenance(NamedTuple):
    source: str
    """The queue the job was in."""
    meta: bytes | None
    """The meta it had there."""


def stamp(meta: bytes | None, source: str, deliveries: int, seq: int) -> bytes:
    """The meta of a dead letter. Of a job that was one before, only the last queue is told."""
    earlier = read_provenance(meta)
    meta = earlier.meta if earlier is not None else _without_keys(meta)
    front = b'{"$dead_letter_from":%b,"$dead_letter_deliveries":"%d","$dead_letter_src_seq":"%d"' % (
        _encode(source), deliveries, seq,
    )  # fmt: skip
    own = (meta or b"").strip()[1:]
    return front + b"," + own if own.rstrip(b"}").strip() else front + b"}"


def read_provenance(meta: bytes | None) -> Provenance | None:
    """Where a record came from; None when it is no dead letter."""
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
    """A meta without the three keys, whatever their values: they are ours to write. Itself where it has none."""
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
