"""Opening a WebSocket: what both clients tell the library, and what its exceptions mean."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypedDict

from websockets.exceptions import InvalidStatus, WebSocketException

from topics.client.attempts import read_refusal, standing_headers
from topics.client.errors import ConnectionFailed
from topics.client.options import Address, ClientOptions
from topics.system.clock import Clock

# The longest frame is a batch of records with a little around it; servers cut batches at 8 MiB unless told otherwise.
_FRAME_BYTES_MAX = 64 * 1024 * 1024
_CLOSE_TIMEOUT_S = 2.0


class DialSettings(TypedDict):
    """How the WebSocket library is set up."""

    additional_headers: dict[str, str]
    ssl: ssl.SSLContext | None
    compression: None
    proxy: None
    open_timeout: float
    close_timeout: float
    max_size: int


def dial_url(address: Address) -> str:
    return "ws" + address.url.rstrip("/")[len("http") :] + "/v0/ws"


def dial_settings(address: Address, options: ClientOptions) -> DialSettings:
    headers = standing_headers(address.api_key, options)
    for name in ("accept", "accept-encoding", "user-agent"):
        # Nothing is negotiated in a handshake; the library has a name of its own.
        headers.pop(name, None)
    return DialSettings(
        additional_headers=headers,
        ssl=ssl.create_default_context() if address.is_tls else None,
        compression=None,
        # As for HTTP: the environment does not redirect a server that was named in code.
        proxy=None,
        open_timeout=options.connect_timeout_s + options.timeout_s,
        close_timeout=_CLOSE_TIMEOUT_S,
        max_size=_FRAME_BYTES_MAX,
    )


@contextmanager
def dial_errors(clock: Clock) -> Iterator[None]:
    """Turns what the library says of a handshake into the client's exceptions."""
    try:
        yield
    except InvalidStatus as error:
        response = error.response
        retry_after = response.headers.get("retry-after")
        body = bytes(response.body or b"")
        raise read_refusal(response.status_code, response.reason_phrase, retry_after, body, clock) from error
    except (OSError, EOFError, WebSocketException) as error:
        raise ConnectionFailed(str(error) or type(error).__name__, maybe_done=False) from error
