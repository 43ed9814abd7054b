"""Events that need next to nothing: those whose members are all of the envelope, of the types it has, and tidy.

They are what clients of the profile send most. A batch of them is read into structures and written out of them by the
library, and only time and level are looked at one by one. Whatever is not so plain is left to `Evlog.normalise`, which
decides the same (`tests/property/test_schema_laws.py` holds the two side by side).
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

_SPOILERS: Final = (b"\\", b'" ', b' "', b'""', b"\t", b"\n", b"\r")
"""In a text without any of these no string is empty, begins or ends with a blank, or has to be looked at at all."""

_LEVELS: Final = frozenset(("debug", "info", "warn", "error"))
_NO_KEYS: Final[dict[str, list[str]]] = {"keys": []}
_NOTHING: Final[dict[str, Any]] = {}


class _Event(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The envelope in its order. What a plain event cannot have was not declared for reading, and is as it is then."""

    timestamp: str
    level: str | None = None
    service: str | None = None
    environment: str | None = None
    version: str | None = None
    region: str | None = None
    requestId: str | None = None
    traceId: str | None = None
    spanId: str | None = None
    method: str | None = None
    path: str | None = None
    status: int | None = None
    duration: int | float | None = None
    message: str | None = None
    why: str | None = None
    fix: str | None = None
    link: str | None = None
    sampling: None = None
    redaction: dict[str, list[str]] | None = None
    context: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(list[_Event]).decode
_encode_lines = msgspec.json.Encoder().encode_lines


def make_plain(
    raws: Sequence[bytes | msgspec.Raw], is_canonical: Callable[[str], bool]
) -> tuple[list[bytes], list[str | None]] | None:
    """The stored texts and the keys of a batch of plain events; None where one of them is not plain."""
    text = b"[%b]" % b",".join(raws)
    if not text.isascii() or any(spoiler in text for spoiler in _SPOILERS):
        return None
    try:
        events = _decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None
    for event in events:
        if event.context is not None or event.redaction is not None or not is_canonical(event.timestamp):
            return None
        level = event.level
        if level is None:
            event.level = _level_of(event)
        elif level not in _LEVELS:
            return None
        event.redaction, event.context = _NO_KEYS, _NOTHING
    if len(events) != len(raws):
        return None
    lines = _encode_lines(events).split(b"\n")
    lines.pop()
    return lines, [event.requestId or event.traceId for event in events]


def _level_of(event: _Event) -> str:
    status = event.status
    if event.why or event.fix or event.link:
        return "error"
    if status is not None and status >= 400:
        return "error" if status >= 500 else "warn"
    return "info"
