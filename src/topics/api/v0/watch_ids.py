"""The id of an event: all positions of a watch at that moment, so that one word resumes all of it.

Up to 64 topics it is the JSON map of topic to seq. Above that the names would be most of every event, so they are left
out, and what remains means something only for a watch of the same topics:

    byte 0      1: seqs of four bytes, 2: seqs of eight bytes
    bytes 1-8   XXH3-64 of the sorted names, a zero byte behind each
    then        the seqs in the order of the sorted names, little-endian

Both are written in base64url without padding. A client treats either as opaque.
"""

import base64
import binascii
from array import array
from collections.abc import Iterable

import msgspec
from xxhash import xxh3_64_digest

from topics.core.limits import MAX_U64

MAPPED_TOPICS_MAX = 64
_NARROW, _WIDE = 1, 2
_NARROW_MAX = 2**32 - 1
_HEAD_BYTES = 9

_encode = msgspec.json.Encoder().encode
_decode_map = msgspec.json.Decoder(dict[str, int]).decode


def encode_map(cursors: dict[str, int]) -> bytes:
    return base64.urlsafe_b64encode(_encode(cursors)).rstrip(b"=")


class IdWriter:
    """Writes the ids of one stream, whose topics do not change."""

    __slots__ = ("_cursors", "_fingerprint", "_names")

    def __init__(self, cursors: dict[str, int]) -> None:
        self._cursors = cursors
        self._names = sorted(cursors)
        self._fingerprint = _fingerprint(self._names) if len(cursors) > MAPPED_TOPICS_MAX else b""

    def write(self) -> bytes:
        """The id of the positions as they are now."""
        if not self._fingerprint:
            return encode_map(self._cursors)
        seqs = list(map(self._cursors.__getitem__, self._names))
        kind, code = (_NARROW, "I") if max(seqs) <= _NARROW_MAX else (_WIDE, "Q")
        packed = bytes((kind,)) + self._fingerprint + array(code, seqs).tobytes()
        return base64.urlsafe_b64encode(packed).rstrip(b"=")


def read_id(text: str, names: Iterable[str]) -> dict[str, int] | None:
    """The positions in an id, for a watch of these topics; None when it is no id, or one of other topics."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        cursors = _decode_map(raw) if raw[:1] == b"{" else _unpack(raw, sorted(names))
    except (ValueError, binascii.Error):
        return None
    return cursors if cursors is not None and all(0 <= seq <= MAX_U64 for seq in cursors.values()) else None


def _unpack(raw: bytes, names: list[str]) -> dict[str, int] | None:
    kind, packed = raw[:1], raw[_HEAD_BYTES:]
    width = {b"\x01": 4, b"\x02": 8}.get(kind)
    if width is None or raw[1:_HEAD_BYTES] != _fingerprint(names) or len(packed) != width * len(names):
        return None
    seqs = array("I" if width == 4 else "Q", packed)
    return dict(zip(names, seqs, strict=True))


def _fingerprint(names: list[str]) -> bytes:
    return xxh3_64_digest(b"".join(name.encode() + b"\0" for name in names))
