"""W3C trace context: which trace of its caller a request belongs to.

    traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
    tracestate: vendor=value

A header that is none of that form, or of zeros, counts as not given, as its specification asks. What goes on to others
is of version 00, whatever came, and the state as it came, unless it is longer than anybody has to keep.
"""

import re
from typing import NamedTuple

from topics.http.messages import RequestHead

_PARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})(?P<span>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_STATE_CHARS_MAX = 512


class TraceContext(NamedTuple):
    """A place in somebody's trace."""

    trace_id: str
    span_id: str
    sampled: bool = False
    state: str = ""

    @property
    def parent(self) -> str:
        """As `traceparent` has it."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"

    def headers(self) -> dict[str, str]:
        """For a request that is made on behalf of this one."""
        return {"traceparent": self.parent, **({"tracestate": self.state} if self.state else {})}


def context_of(head: RequestHead) -> TraceContext | None:
    """Where in a trace the caller stands."""
    said = head.headers.get("traceparent")
    match = None if said is None else _PARENT.fullmatch(said.strip())
    if match is None or (match["version"] == "00" and match["more"] is not None):
        return None
    state = head.headers.get_list("tracestate").strip()
    fit = len(state) <= _STATE_CHARS_MAX and state.isascii() and state.isprintable()
    return TraceContext(match["trace"], match["span"], bool(int(match["flags"], 16) & 1), state if fit else "")


def trace_of(head: RequestHead) -> tuple[str, str] | None:
    """The ids of the trace and of the span that called."""
    context = context_of(head)
    return None if context is None else (context.trace_id, context.span_id)
