"""Answers of /v1: the common headers, and the format of refusals."""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from topics.api.app import Call
from topics.api.auth import Key, error_for
from topics.api.error_responses import V1_ROOT, NotFoundError, error_headers, refusal_of
from topics.http.exchange import Exchange
from topics.http.messages import Headers
from topics.model.errors import (
    InvalidRequestError,
    ProducerFencedError,
    ProducerGapError,
    SequenceConflictError,
    StreamClosedError,
    TopicsError,
    quoted,
)
from topics.model.topic_config import NESTED_PART, PART_WORDS
from topics.streams.stream_frames import Producer
from topics.streams.stream_state import tail_offset
from topics_protocol.rfc3339 import write_time

# Values of headers and queries of /v1, parsed strictly: invalid values are refused.

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(0|[1-9][0-9]{0,14})(ms|s|m|h|d)?")
_RFC3339 = re.compile(r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}:\d{2})(?:\.(\d{1,9})\d*)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)
_INTEGER_MAX = 2**53 - 1
"""The greatest integer that JavaScript represents exactly; producers are often JavaScript programs."""


def _refuse(field: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{field}: {problem}", field=field)


def read_duration_ms(field: str, text: str, bare_ms: int) -> int:
    """Parses a duration such as 250ms, 30s or 24h; a bare number is in units of `bare_ms` milliseconds."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise _refuse(field, f"{quoted(text)} is not a duration such as 30s")
    number, unit = found.groups()
    return int(number) * (_UNIT_MS[unit] if unit else bare_ms)


def read_ttl_s(text: str) -> int:
    """Parses a time to live, in whole seconds."""
    millis = read_duration_ms("Stream-TTL", text, bare_ms=1000)
    if millis % 1000:
        raise _refuse("Stream-TTL", "must be whole seconds")
    return millis // 1000


def read_time_ms(field: str, text: str) -> int:
    """Parses a time in nanoseconds since 1970 or in RFC 3339. Returns milliseconds."""
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
    """Parses a plain decimal number without sign, blank or leading zero."""
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
    """Returns a header's value as text: its bytes are UTF-8, although HTTP decodes them as Latin-1."""
    if text.isascii():
        return text
    try:
        return text.encode("latin-1").decode()
    except UnicodeDecodeError as error:
        raise _refuse(field, "is not valid UTF-8") from error


def latin1(text: str) -> str:
    """The inverse of `utf8`: returns text for the value of a header."""
    return text if text.isascii() else text.encode().decode("latin-1")


def is_true(text: str | None) -> bool:
    """Only the word itself, in any case, enables a flag."""
    return text is not None and text.lower() == "true"


Header = tuple[str, str]

EVERY: tuple[Header, ...] = (
    ("x-content-type-options", "nosniff"),
    ("cross-origin-resource-policy", "cross-origin"),
    ("access-control-allow-origin", "*"),
    # The wildcard exposes all headers, because answers are for any origin and never have credentials.
    ("access-control-expose-headers", "*"),
)
CLOSED: Header = ("stream-closed", "true")
UP_TO_DATE: Header = ("stream-up-to-date", "true")
NO_STORE: Header = ("cache-control", "no-store")
REFUSED: tuple[Header, ...] = (*EVERY, NO_STORE)
"""On every refusal. By default caches may keep 404 and 410, but the stream may exist a moment later."""


def base_url(call: Call) -> str:
    """Returns the scheme, host and port that the client used."""
    headers = call.exchange.head.headers
    scheme = headers.get("x-forwarded-proto", call.scheme).partition(",")[0].strip()
    return f"{scheme if scheme in ('http', 'https') else call.scheme}://{headers.get('host', 'localhost')}"


def location(call: Call) -> str:
    """Returns the URL of a created resource: absolute if `Host` names this server, otherwise only the path.

    A foreign `Host` must not be part of an answer that caches and logs may store.
    """
    path = call.exchange.head.path
    rules, host = call.browsers, call.exchange.head.headers.get("host")
    return path if rules is not None and host is not None and not rules.names(host) else base_url(call) + path


def expiry(deadline_ms: int | None) -> tuple[Header, ...]:
    """The expiry of the stream, if any."""
    return () if deadline_ms is None else (("stream-expires-at", write_time(deadline_ms)),)


def answer(call: Call, status: int, headers: tuple[Header, ...], body: bytes = b"", content_type: str = "") -> None:
    call.finish(status, body, (*EVERY, *headers), content_type)


def refuse(call: Call, error: TopicsError) -> None:
    status, body = refusal_of(error_for(call.key, error), V1_ROOT)
    call.finish(status, body, (*REFUSED, *_refusal_headers(call, error)), "application/json")


def refuse_exchange(exchange: Exchange, key: Key, error: TopicsError) -> None:
    """Refuses an append of which only the exchange exists."""
    status, body = refusal_of(error_for(key, error), V1_ROOT)
    exchange.respond(status, body, "application/json", (*REFUSED, *error_headers(error)))


def guarded(handler: Callable[[Call], None]) -> Callable[[Call], None]:
    """Wraps a handler so that its refusals have the format of this protocol."""

    def handle(call: Call) -> None:
        try:
            handler(call)
        except TopicsError as error:
            refuse(call, error)

    return handle


def _refusal_headers(call: Call, error: TopicsError) -> tuple[Header, ...]:
    """The headers of an error response."""
    if isinstance(error, StreamClosedError):
        topic = call.engine.find(call.topic)
        return (CLOSED,) if topic is None else (CLOSED, ("stream-next-offset", tail_offset(topic)))
    if isinstance(error, ProducerGapError):
        return (
            ("producer-expected-seq", str(error.expected)),
            ("producer-received-seq", str(error.received)),
        )
    if isinstance(error, SequenceConflictError):
        # Stream-Seq values are only compared: any value above the last one, which is returned, is accepted.
        return (("stream-expected-seq", latin1(error.last)), ("stream-received-seq", latin1(error.given)))
    if isinstance(error, ProducerFencedError):
        return (("producer-epoch", str(error.epoch)),)
    return error_headers(error)


# Parsing of paths below /v1/stream.
#
# /v1/stream/__ds/...            subscriptions
# /v1/stream/{name}/pk/{key}     the entries of one key
# /v1/stream/{name}/touch/...    what a stream of the profile state-protocol touches
# /v1/stream/{name}/_...         another part of a stream; `RESOURCES` are those there are
# /v1/stream/{name}              the stream itself
#
# Names and keys may contain slashes, written plainly or as %2F: a path is decoded first and then split, so that no
# spelling can bypass a reserved word. The first `pk` or `touch` after the first segment ends the name.

ROOT = "/v1/stream/"
SUBSCRIPTIONS = "__ds"
_NESTED = "/" + "/".join(NESTED_PART)
RESOURCES = frozenset((
    "_schema", "_schema/infer", "_profile", "_search", "_aggregate", "_routing_keys", "_index_status", "_details",
))  # fmt: skip


class StreamPath(NamedTuple):
    name: str
    resource: str = ""
    """Empty for the stream itself, `pk` for one key of it, otherwise a word that begins with `_` or `touch/`."""
    key: str = ""


def split_path(path: str) -> StreamPath:
    """Returns the parts of a path below `ROOT`. Raises NotFoundError if there is no such resource."""
    rest = decode(path[len(ROOT) :].rstrip("/"))
    found = _split(rest) if "/" in rest else StreamPath(rest)
    if not found.name or found.name == SUBSCRIPTIONS or found.name.startswith(f"{SUBSCRIPTIONS}/"):
        raise NotFoundError(f"there is nothing at {quoted(path)}")
    return found


def _split(rest: str) -> StreamPath:
    segments = rest.split("/")
    for place, word in enumerate(segments[1:-1], start=1):
        name, behind = "/".join(segments[:place]), "/".join(segments[place + 1 :])
        if word in PART_WORDS and behind:
            return StreamPath(name, "pk", behind) if word == "pk" else StreamPath(name, f"{word}/{behind.rstrip('/')}")
    name = rest.rstrip("/")
    if len(segments) > len(NESTED_PART) and name.endswith(_NESTED):
        return StreamPath(name.removesuffix(_NESTED), _NESTED[1:])
    before, slash, last = name.rpartition("/")
    return StreamPath(before, last) if slash and last.startswith("_") else StreamPath(name)


def decode(text: str) -> str:
    if "%" not in text and text.isascii():
        return text
    try:
        return str(unquote_to_bytes(text.encode("latin-1")), "utf-8")
    except UnicodeDecodeError as error:
        raise NotFoundError(f"there is nothing at {quoted(text)}") from error


def read_name(path: str) -> str:
    """Returns the stream of a header such as Stream-Forked-From, given by its path or its URL."""
    if "://" in path:
        path = "/" + path.partition("://")[2].partition("/")[2]
    if not path.startswith(ROOT):
        raise InvalidRequestError(f"{quoted(path)} is not the path of a stream", field="Stream-Forked-From")
    found = split_path(path.partition("?")[0])
    if found.resource:
        raise InvalidRequestError(f"{quoted(path)} is a part of a stream", field="Stream-Forked-From")
    return found.name


# Cursors of live reads: an increasing number, so that caches that collapse equal requests never loop.
#
# It counts intervals of 20 seconds. Clients that wait in the same interval have the same cursor and may share one
# answer; a client that returns within it gets a greater one, so its next request is never answered from the same cache
# entry.

_EPOCH_MS = 1_728_432_000_000
"""2024-10-09 in UTC."""
_INTERVAL_MS = 20_000


def cursor_after(now_ms: int, given: str) -> str:
    """Returns the next cursor, above the client's."""
    current = max(now_ms - _EPOCH_MS, 0) // _INTERVAL_MS
    known = int(given) if given.isascii() and given.isdigit() and len(given) <= 18 else -1
    return str(max(current, known + 1))


# Deadlines of many requests with one timer: all have the same length, so they end in the order of arrival.

REQUEST_TIMEOUT_S = 5.0
"""Timeout of all requests except appends and live reads."""
_TICK_S = 0.25


class Pending:
    """A request that is usually answered immediately; it gets a deadline only if it is not."""

    __slots__ = ("at", "missed", "open")

    def __init__(self) -> None:
        self.open = True
        self.at = 0.0
        self.missed: Callable[[], None] | None = None

    def met(self) -> bool:
        """Returns whether the answer is in time; if so, nothing else will answer."""
        was, self.open = self.open, False
        # It references the request, whose body should be freed before the next check of the clock.
        self.missed = None
        return was

    def expire(self) -> None:
        missed = self.missed
        if self.met() and missed is not None:
            missed()


class Deadlines:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: deque[Pending] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, missed: Callable[[], None], pending: Pending | None = None) -> Pending:
        """Calls `missed` once if a request, by default a new one, is not answered in time."""
        pending = pending or Pending()
        loop = asyncio.get_running_loop()
        pending.at, pending.missed = loop.time() + self._seconds, missed
        self._waiting.append(pending)
        if self._timer is None:
            self._timer = loop.call_later(_TICK_S, self._look, loop)
        return pending

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        waiting = self._waiting
        while waiting and (not waiting[0].open or now >= waiting[0].at):
            # Each separately: a failing one must not affect the others.
            loop.call_soon(waiting.popleft().expire)
        self._timer = loop.call_later(_TICK_S, self._look, loop) if waiting else None


class ExchangeDeadlines:
    """Starts deadlines of batched requests, which have only an exchange; late ones are passed to `missed`."""

    def __init__(self, seconds: float, now_s: Callable[[], float], missed: Callable[[Exchange], None]) -> None:
        self._seconds = seconds
        self._now_s = now_s
        self._missed = missed
        self._waiting: deque[Exchange] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, exchange: Exchange) -> None:
        self._waiting.append(exchange)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_TICK_S, self._look, loop)

    def forget(self, exchanges: list[Exchange]) -> None:
        """Cancels the newest deadlines of exchanges; another handler takes them over."""
        others = set(map(id, exchanges))
        while self._waiting and id(self._waiting[-1]) in others:
            self._waiting.pop()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, late = self._waiting, self._now_s() - self._seconds
        while waiting:
            exchange = waiting[0]
            if exchange.channel is not None:
                if exchange.started > late:
                    break
                # Each separately: a failing one must not affect the others.
                loop.call_soon(self._expire, exchange)
            waiting.popleft()
        self._timer = loop.call_later(_TICK_S, self._look, loop) if waiting else None

    def _expire(self, exchange: Exchange) -> None:
        if exchange.channel is not None and not exchange.answered:
            self._missed(exchange)
