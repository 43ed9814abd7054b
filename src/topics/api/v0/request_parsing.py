"""Parsing of request bodies into messages, and of numbers with a range.

Numbers that the server clamps (`limit`, `wait_ms`, `max`, durations) have no upper bound here; greater values get the
maximum.
"""

import base64
import binascii
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, seek_last, seek_time
from topics.engine.topic import SEQ_BASE, Topic
from topics.model.errors import InvalidRequestError
from topics.search.query.field_values import date_of
from topics_protocol.v0 import DiffBody, PageCursor

T = TypeVar("T")
_DIGITS_MAX = 40


def decode_body(what: str, decode: Callable[[bytes], T], body: bytes) -> T:
    """Raises InvalidRequestError with the field and the reason."""
    try:
        # The decoder does not check a Raw payload, so invalid UTF-8 in it must be found here, once for the body.
        if not body.isascii():
            body.decode()
        return decode(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.from_decode(what, error, body) from error


def check_number(what: str, field: str, value: int, maximum: int | None = None) -> None:
    """Raises InvalidRequestError if a number of a body is out of range."""
    if value < 0:
        raise InvalidRequestError(f"{what} field {field}: must not be negative", field=field)
    if maximum is not None and value > maximum:
        raise InvalidRequestError(f"{what} field {field}: must be from 0 to {maximum}", field=field)


def query_number(text: str | None, name: str, default: int, maximum: int | None = None) -> int:
    """Returns an integer of a query. Raises InvalidRequestError if it is invalid or out of range."""
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequestError(f"query {name}: must be a whole number", field=name)
    # Python only parses numbers of up to a few thousand digits. Longer ones are out of every range.
    number = int(text[-_DIGITS_MAX:]) if not text[:-_DIGITS_MAX].strip("0") else 10**_DIGITS_MAX
    if maximum is not None and number > maximum:
        raise InvalidRequestError(f"query {name}: must be from 0 to {maximum}", field=name)
    return number


# Paged lists: opaque cursors, and the names visible to a key with prefixes.

PAGE_SIZE = 100
PAGE_SIZE_MAX = 1000
_encode = msgspec.json.Encoder().encode
_decode_cursor = msgspec.json.Decoder(PageCursor).decode


def allowed_prefixes(asked: str, allowed: tuple[str, ...]) -> Iterator[str]:
    """Returns the prefixes to list, ordered and disjoint: the requested ones within the key's prefixes."""
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
    """Returns the name after which a page begins."""
    return read_page_cursor(text).after


def read_page_cursor(text: str) -> PageCursor:
    """Returns the name after which a page begins, and its sort value."""
    if not text:
        return PageCursor("")
    try:
        # A cursor of an earlier release has the standard alphabet and padding; a plus may have been decoded to a space.
        standard = text.replace("-", "+").replace("_", "/").replace(" ", "+").rstrip("=")
        return _decode_cursor(base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True))
    except (ValueError, binascii.Error, msgspec.DecodeError) as error:
        raise InvalidRequestError("query cursor: it is not one that a list gave out", field="cursor") from error


def write_cursor(name: str, value: int | None = None) -> str:
    """Returns the cursor of a page that ends with a name. It needs no encoding in a URL."""
    return base64.urlsafe_b64encode(_encode(PageCursor(name, value))).rstrip(b"=").decode()


# The start of a diff that has a time, or a number of records, instead of a cursor.


def begin_elsewhere(engine: Engine, topic: Topic, asked: DiffBody, request: ReadRequest) -> ReadRequest:
    """Returns the read with a cursor, computed from the current topic."""
    given = [name for name in ("since_ts", "last") if getattr(asked, name) is not None]
    if len(given) > 1 or asked.from_seq:
        raise InvalidRequestError("diff: from_seq, since_ts and last exclude each other", field=given[0])
    # Before a read: forwards pending records of routers, and removes expired ones.
    engine.catch_up(topic)
    engine.expire(topic)
    if asked.last is None:
        return msgspec.structs.replace(request, from_seq=_since(engine, topic, asked.since_ts), epoch=None)
    check_number("diff", "last", asked.last)
    limits = engine.limits
    requested = limits.clamp_limit(asked.last) if asked.last else 0
    found = seek_last(topic, engine.reader, requested) if requested else topic.head
    return msgspec.structs.replace(
        request,
        # A count beyond the oldest record reads from the beginning, and the answer has a tombstone for lost records.
        from_seq=0 if found is None else found,
        limit=requested if requested and not asked.limit else request.limit,
        epoch=None,
    )


def _since(engine: Engine, topic: Topic, given: int | str | None) -> int:
    since_ms = date_of(given)
    if since_ms is None:
        raise InvalidRequestError("diff field since_ts: must be milliseconds since 1970, or a date", field="since_ts")
    found = seek_time(topic, engine.reader, since_ms)
    if found < topic.earliest and topic.evict_floor > SEQ_BASE:
        # The age of lost records is unknown. The read reports the loss.
        return 0
    return found
