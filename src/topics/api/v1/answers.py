"""Answers of /v1: the headers that every one carries, and refusals in their shape."""

from collections.abc import Callable

from topics.api.auth import Key
from topics.api.calls import Call
from topics.api.errors import error_headers
from topics.api.isolation import told_to
from topics.api.refusals import V1_ROOT, refusal_of
from topics.api.v1.values import latin1
from topics.core.errors import (
    ProducerFencedError,
    ProducerGapError,
    SequenceConflictError,
    StreamClosedError,
    TopicsError,
)
from topics.core.moments import write_time
from topics.http.exchange import Exchange
from topics.streams.offsets import tail_offset

Header = tuple[str, str]

EVERY: tuple[Header, ...] = (
    ("x-content-type-options", "nosniff"),
    ("cross-origin-resource-policy", "cross-origin"),
    ("access-control-allow-origin", "*"),
    # All of them: answers are for any origin and never carry credentials, so the wildcard holds.
    ("access-control-expose-headers", "*"),
)
CLOSED: Header = ("stream-closed", "true")
UP_TO_DATE: Header = ("stream-up-to-date", "true")
NO_STORE: Header = ("cache-control", "no-store")
REFUSED: tuple[Header, ...] = (*EVERY, NO_STORE)
"""On every refusal. Caches may keep 404 and 410 unless told otherwise, and the stream may be there a moment later."""


def base_url(call: Call) -> str:
    """How the client reached the server: scheme, host and port, and nothing behind them."""
    headers = call.exchange.head.headers
    scheme = headers.get("x-forwarded-proto", call.scheme).partition(",")[0].strip()
    return f"{scheme if scheme in ('http', 'https') else call.scheme}://{headers.get('host', 'localhost')}"


def expiry(deadline_ms: int | None) -> tuple[Header, ...]:
    """When the stream ends, where it does."""
    return () if deadline_ms is None else (("stream-expires-at", write_time(deadline_ms)),)


def answer(call: Call, status: int, headers: tuple[Header, ...], body: bytes = b"", content_type: str = "") -> None:
    call.finish(status, body, (*EVERY, *headers), content_type)


def refuse(call: Call, error: TopicsError) -> None:
    status, body = refusal_of(told_to(call.key, error), V1_ROOT)
    call.finish(status, body, (*REFUSED, *_told(call, error)), "application/json")


def refuse_exchange(exchange: Exchange, key: Key, error: TopicsError) -> None:
    """The same where nothing but the exchange is there, for what may befall any append."""
    status, body = refusal_of(told_to(key, error), V1_ROOT)
    exchange.respond(status, body, "application/json", (*REFUSED, *error_headers(error)))


def guarded(handler: Callable[[Call], None]) -> Callable[[Call], None]:
    """A handler whose refusals are answered in this protocol's way."""

    def handle(call: Call) -> None:
        try:
            handler(call)
        except TopicsError as error:
            refuse(call, error)

    return handle


def _told(call: Call, error: TopicsError) -> tuple[Header, ...]:
    """What a refusal says in its headers."""
    if isinstance(error, StreamClosedError):
        topic = call.engine.core.by_name.get(call.topic)
        return (CLOSED,) if topic is None else (CLOSED, ("stream-next-offset", tail_offset(topic)))
    if isinstance(error, ProducerGapError):
        return (
            ("producer-expected-seq", str(error.expected)),
            ("producer-received-seq", str(error.received)),
        )
    if isinstance(error, SequenceConflictError):
        # Seqs are compared and not counted: what is expected is anything above the last one, which is told.
        return (("stream-expected-seq", latin1(error.last)), ("stream-received-seq", latin1(error.given)))
    if isinstance(error, ProducerFencedError):
        return (("producer-epoch", str(error.epoch)),)
    return error_headers(error)
