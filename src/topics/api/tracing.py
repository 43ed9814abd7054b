"""Trace context propagation: from a request to its answer and to the webhooks that it causes.

An answer has its position in the caller's trace (`traceresponse`). A webhook is caused by new entries and not by one
request, so the newest trace of a write is kept for each stream, for one minute and a bounded number of streams, and a
call has the trace of its streams. Only requests with a trace cost anything. With `topics.api.spans` the server adds
spans to these traces and begins new ones.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from topics.api.auth import Scope
from topics.http.exchange import Exchange
from topics.http.messages import RequestHead

if TYPE_CHECKING:
    # The extra `otel` may not be installed.
    from topics.api.spans import Span, Spans

# W3C trace context: the caller's trace of a request.
#
#     traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
#     tracestate: vendor=value
#
# A malformed header, or one of zeros, counts as missing, as the specification requires. Outgoing headers have version
# 00, and the unchanged state, unless it is longer than the required minimum.

_PARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})(?P<span>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_STATE_CHARS_MAX = 512


class TraceContext(NamedTuple):
    """A position in a client's trace."""

    trace_id: str
    span_id: str
    sampled: bool = False
    state: str = ""

    @property
    def parent(self) -> str:
        """Returns the value of `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"

    def headers(self) -> dict[str, str]:
        """Returns the position of a request that is made on behalf of this one."""
        return {"traceparent": self.parent, **({"tracestate": self.state} if self.state else {})}


def context_of(head: RequestHead) -> TraceContext | None:
    """Returns the caller's position in a trace."""
    said = head.headers.get("traceparent")
    match = None if said is None else _PARENT.fullmatch(said.strip())
    if match is None or (match["version"] == "00" and match["more"] is not None):
        return None
    state = head.headers.get_list("tracestate").strip()
    fit = len(state) <= _STATE_CHARS_MAX and state.isascii() and state.isprintable()
    return TraceContext(match["trace"], match["span"], bool(int(match["flags"], 16) & 1), state if fit else "")


def trace_of(head: RequestHead) -> tuple[str, str] | None:
    """The ids of the trace and of the calling span."""
    context = context_of(head)
    return None if context is None else (context.trace_id, context.span_id)


_WRITES_KEPT_MAX = 1024
_WRITES_KEPT_S = 60.0


class _Wake(msgspec.Struct):
    """Returns the streams in the body of a webhook call."""

    class Stream(msgspec.Struct):
        path: str

    streams: list[Stream] = []


class Tracing:
    def __init__(self, monotonic: Callable[[], float], spans: "Spans | None" = None) -> None:
        self._monotonic = monotonic
        self._spans = spans
        self._writes: OrderedDict[str, tuple[TraceContext, float]] = OrderedDict()

    def admitted(self, head: RequestHead, route: str, scopes: Scope, name: str) -> "Span | None":
        """Called when a request is admitted.

        Its answer gets its trace position, and the trace is kept for the streams that it writes.
        """
        context = context_of(head)
        if context is None:
            return None
        span = None
        if self._spans is not None:
            span = self._spans.begin(head, route, name, context)
            context = span.context
        head.answer_headers = (("traceresponse", context.parent),)
        if name and scopes & Scope.WRITE:
            self._writes[name] = (context, self._monotonic())
            self._writes.move_to_end(name)
            if len(self._writes) > _WRITES_KEPT_MAX:
                self._writes.popitem(last=False)
        return span

    async def close(self) -> None:
        """Sends the remaining spans. Blocks while the collector answers, up to a few seconds."""
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)

    def answered(self, exchange: Exchange, status: int, spent_s: float) -> None:
        """Called for every answer, if tracing is on."""
        assert self._spans is not None
        match = exchange.head.context
        span = getattr(match, "span", None)
        if span is None:
            route, name = getattr(getattr(match, "route", None), "path", ""), getattr(match, "topic", "")
            span = self._spans.begin(exchange.head, route, name, context_of(exchange.head), spent_s)
        span.end(status)

    def call(self, url: str, body: bytes) -> "tuple[dict[str, str], Span | None]":
        """Returns the headers of a webhook call, and the span to end with it."""
        context = self._written(body) if self._writes or self._spans is not None else None
        if self._spans is not None:
            span = self._spans.call(url, context)
            return span.context.headers(), span
        return ({} if context is None else context.headers()), None

    def _written(self, body: bytes) -> TraceContext | None:
        """Returns the newest trace of a write to one of the streams of a call."""
        since = self._monotonic() - _WRITES_KEPT_S
        found: Sequence[tuple[TraceContext, float]] = [
            self._writes[stream.path]
            for stream in msgspec.json.decode(body, type=_Wake).streams
            if stream.path in self._writes
        ]
        context, at = max(found, key=lambda one: one[1], default=(None, 0.0))
        return context if at >= since else None
