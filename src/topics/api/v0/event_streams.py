"""What every event stream has in common at its beginning: who may have it, and its header fields."""

from topics.api.calls import Call
from topics.api.errors import NotAcceptableError
from topics.http.messages import RequestHead
from topics.http.streams import Stream

_HEADERS = (
    ("Content-Type", "text/event-stream; charset=utf-8"),
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),
)
_ACCEPTED = ("text/event-stream", "text/*", "*/*")


def check_accepts_events(head: RequestHead) -> None:
    """Raises NotAcceptableError for a client that says it takes anything but an event stream."""
    accept = head.headers.get("accept")
    if accept is None:
        return
    ranges = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    if not any(one in _ACCEPTED for one in ranges) and ranges != [""]:
        raise NotAcceptableError


def start_events(call: Call) -> Stream:
    """The answer begins. From here on nothing can be refused with a status of its own."""
    head = call.exchange.head
    # Said although it is the default, for proxies that want to be told.
    modern = head.http_version == "1.1"
    headers = (*_HEADERS, ("Connection", "keep-alive")) if modern and head.keep_alive else _HEADERS
    return call.detach().start_stream(200, headers, chunked=True)
