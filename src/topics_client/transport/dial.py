"""Opening a WebSocket: options for the library, and the meaning of its exceptions."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypedDict

from websockets.exceptions import InvalidStatus, WebSocketException

from topics_client.errors import ConnectionFailed
from topics_client.retry import response_error
from topics_client.session import Session
from topics_client.transport.http1 import Response

# The longest frame is a batch of records with a little around it; servers limit batches to 8 MiB by default.
_FRAME_BYTES_MAX = 64 * 1024 * 1024
_CLOSE_TIMEOUT_S = 2.0


class DialSettings(TypedDict):
    """How the WebSocket library is set up."""

    uri: str
    additional_headers: dict[str, str]
    ssl: ssl.SSLContext | None
    compression: None
    proxy: str | None
    open_timeout: float
    close_timeout: float
    max_size: int


def dial_settings(session: Session) -> DialSettings:
    options, address = session.options, session.address
    # Nothing is negotiated in a handshake; the library has its own name.
    left_out = ("accept", "accept-encoding", "user-agent")
    trusted = options.ssl_context or ssl.create_default_context() if address.is_tls else None
    return DialSettings(
        uri="ws" + address.url.rstrip("/")[len("http") :] + "/v0/ws",
        additional_headers={name: value for name, value in session.standing.items() if name not in left_out},
        ssl=trusted,
        compression=None,
        proxy=session.route.proxy,
        open_timeout=options.connect_timeout_s + options.timeout_s,
        close_timeout=_CLOSE_TIMEOUT_S,
        max_size=_FRAME_BYTES_MAX,
    )


@contextmanager
def dial_errors(session: Session) -> Iterator[None]:
    """Converts the library's handshake errors into the client's exceptions."""
    try:
        yield
    except InvalidStatus as error:
        reported = error.response
        headers = {name.lower(): value for name, value in reported.headers.raw_items()}
        response = Response(reported.status_code, reported.reason_phrase, headers, bytes(reported.body or b""))
        raise response_error(response, session.clock) from error
    except (OSError, EOFError, WebSocketException) as error:
        what = str(error) or type(error).__name__
        raise ConnectionFailed(f"{session.address.url}: {what}", maybe_done=False) from error
