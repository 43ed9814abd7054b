"""Lists a page at a time: opaque cursors, and what a key with prefixes gets to see."""

import base64
import binascii
from collections.abc import Iterator

import msgspec

from topics.core.errors import InvalidRequestError
from topics.wire.v0 import PageCursor

PAGE_SIZE = 100
PAGE_SIZE_MAX = 1000
_encode = msgspec.json.Encoder().encode
_decode_cursor = msgspec.json.Decoder(PageCursor).decode


def allowed_prefixes(asked: str, allowed: tuple[str, ...]) -> Iterator[str]:
    """The prefixes to list, in order and apart: what was asked for, within what the key may see."""
    if not allowed:
        yield asked
        return
    within = sorted({max(asked, one, key=len) for one in allowed if one.startswith(asked) or asked.startswith(one)})
    last: str | None = None
    for prefix in within:
        if last is None or not prefix.startswith(last):
            yield prefix
            last = prefix


def read_cursor(text: str) -> str:
    """The name behind which a page begins."""
    if not text:
        return ""
    try:
        return _decode_cursor(base64.b64decode(text, validate=True)).after
    except (ValueError, binascii.Error, msgspec.DecodeError) as error:
        raise InvalidRequestError("query cursor: it is not one that a list gave out", field="cursor") from error


def write_cursor(name: str) -> str:
    return base64.b64encode(_encode(PageCursor(name))).decode()
