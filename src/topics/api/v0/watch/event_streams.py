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
"""The narrowest first: it says what a wider one beside it does not."""


def check_accepts_events(head: RequestHead, *, by_name: bool = False) -> None:
    """Raises NotAcceptableError for a client that says it takes anything but an event stream.

    With `by_name` it must have asked for just that, if it says anything: a browser that fetches an image for a page
    takes everything, and an older one does not say where the page is from.
    """
    accept = head.headers.get_list("accept").lower()
    weights = dict([_media_range(part) for part in accept.split(",") if part.strip()])
    accepted = _ACCEPTED[:1] if by_name else _ACCEPTED
    if weights and not next((weights[one] for one in accepted if one in weights), 0.0):
        raise NotAcceptableError


def _media_range(text: str) -> tuple[str, float]:
    """A media type and its weight: 1 unless it says otherwise, 0 for what is no number."""
    name, *parameters = [word.strip() for word in text.split(";")]
    weight = next((word[2:] for word in parameters if word.startswith("q=")), "1")
    try:
        return name, float(weight)
    except ValueError:
        return name, 0.0


def start_events(call: Call) -> Stream:
    """The answer begins. From here on nothing can be refused with a status of its own."""
    head = call.exchange.head
    # Said although it is the default, for proxies that want to be told.
    modern = head.http_version == "1.1"
    headers = (*_HEADERS, ("Connection", "keep-alive")) if modern and head.keep_alive else _HEADERS
    return call.detach().start_stream(200, headers, chunked=True)
