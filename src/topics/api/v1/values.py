"""The values that headers and queries of /v1 carry, read strictly: what is not plainly one of them is refused."""

import re
from datetime import datetime

from topics.core.errors import InvalidRequestError, quoted
from topics.formats.stream import Producer
from topics.http.headers import Headers

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(0|[1-9][0-9]{0,14})(ms|s|m|h|d)?")
_RFC3339 = re.compile(r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}:\d{2})(?:\.(\d{1,9})\d*)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)
_INTEGER_MAX = 2**53 - 1
"""Producers are often programs in JavaScript, which counts exactly only up to here."""


def _refuse(field: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{field}: {problem}", field=field)


def read_duration_ms(field: str, text: str, bare_ms: int) -> int:
    """A duration such as 250ms, 30s or 24h; a bare number counts `bare_ms` milliseconds each."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise _refuse(field, f"{quoted(text)} is not a duration such as 30s")
    number, unit = found.groups()
    return int(number) * (_UNIT_MS[unit] if unit else bare_ms)


def read_ttl_s(text: str) -> int:
    """A time to live, in whole seconds."""
    millis = read_duration_ms("Stream-TTL", text, bare_ms=1000)
    if millis % 1000:
        raise _refuse("Stream-TTL", "must be whole seconds")
    return millis // 1000


def read_time_ms(field: str, text: str) -> int:
    """A time as nanoseconds since 1970 or as RFC 3339 has it; in milliseconds."""
    if text.isascii() and text.isdigit():
        if len(text) > 19:
            raise _refuse(field, "is too far in the future")
        return int(text) // 1_000_000
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise _refuse(field, f"{quoted(text)} is not a time such as 2026-01-31T12:00:00Z")
    date, clock, fraction, zone = found.groups()
    try:
        whole = datetime.fromisoformat(f"{date}T{clock}{zone.upper()}")
        millis = int(whole.timestamp()) * 1000 + int(((fraction or "") + "000")[:3])
    except (ValueError, OverflowError) as error:
        raise _refuse(field, f"{quoted(text)} is not a time") from error
    if millis < 0:
        raise _refuse(field, "is before 1970")
    return millis


def read_integer(field: str, text: str) -> int:
    """A plain decimal number without sign, blank or leading zero."""
    plain = text.isascii() and text.isdigit() and (text == "0" or text[0] != "0") and len(text) <= 16
    number = int(text) if plain else _INTEGER_MAX + 1
    if number > _INTEGER_MAX:
        raise _refuse(field, f"must be a whole number from 0 to {_INTEGER_MAX}")
    return number


def read_producer(headers: Headers) -> Producer | None:
    given = [headers.get(name) for name in ("producer-id", "producer-epoch", "producer-seq")]
    if given == [None, None, None]:
        return None
    producer_id, epoch, seq = given
    if producer_id is None or epoch is None or seq is None:
        raise _refuse("Producer-Id", "Producer-Id, Producer-Epoch and Producer-Seq come together or not at all")
    if not producer_id:
        raise _refuse("Producer-Id", "must not be empty")
    return Producer(
        utf8(producer_id, "Producer-Id"), read_integer("Producer-Epoch", epoch), read_integer("Producer-Seq", seq)
    )


def utf8(text: str, field: str) -> str:
    """A header's value as text: its bytes are UTF-8, though HTTP reads them as Latin-1."""
    if text.isascii():
        return text
    try:
        return text.encode("latin-1").decode()
    except UnicodeDecodeError as error:
        raise _refuse(field, "is not valid UTF-8") from error


def latin1(text: str) -> str:
    """The reverse of `utf8`: text for the value of a header."""
    return text if text.isascii() else text.encode().decode("latin-1")


def is_true(text: str | None) -> bool:
    """Only the word itself, in any case, switches something on."""
    return text is not None and text.lower() == "true"
