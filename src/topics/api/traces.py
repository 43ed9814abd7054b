"""W3C trace context: which trace of its caller a request belongs to.

    traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01

A header that is none of that form, or of zeros, counts as not given, as its specification asks.
"""

import re

from topics.http.messages import RequestHead

_PARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})(?P<span>[0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?"
)


def trace_of(head: RequestHead) -> tuple[str, str] | None:
    """The ids of the trace and of the span that called."""
    said = head.headers.get("traceparent")
    if said is None:
        return None
    match = _PARENT.fullmatch(said.strip())
    return None if match is None else (match["trace"], match["span"])
