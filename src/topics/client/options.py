"""How a client behaves, and where it finds its server."""

from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

DEFAULT_URL = "http://127.0.0.1:4000"


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a request that could not be taken is sent again.

    The wait doubles from try to try up to its maximum, less a random part, so that clients which failed together do
    not come back together. Where the server said how long to wait, it is at least that long.
    """

    deadline_s: float = 30.0
    """No try begins later than this after the first one; 0 never tries again.

    It has to stay below the topic's `idempotency_window_ms`, by default two minutes: behind it the server has forgotten
    that it already appended.
    """
    backoff_min_s: float = 0.05
    backoff_max_s: float = 2.0


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a client that is not its server's address or its key."""

    timeout_s: float = 10.0
    """The longest silence of the server, and the longest wait for a free connection. A call that asked the server to
    wait adds that time to it.
    """
    connect_timeout_s: float = 5.0
    max_connections: int = 100
    """Connections in the pool; calls beyond it wait for one."""
    headers: Mapping[str, str] = {}
    """Sent with every request, such as what a proxy asks for."""
    retry: RetryPolicy = RetryPolicy()
    idempotent_appends: bool = True
    """Gives every append that has none an idempotency key, so that sending it again cannot append twice. Without a
    key, an append whose answer was lost is not sent again.
    """
    gzip: bool = False
    """Compresses large requests and asks for compressed answers. Worth its CPU only over a slow line."""


class Address(msgspec.Struct, frozen=True):
    """A server and the key to it, checked."""

    url: str = DEFAULT_URL
    api_key: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{self.url!r} is not the URL of a server, such as {DEFAULT_URL}")
        key = self.api_key
        if key is not None and not (key and key.isascii() and key.isprintable()):
            # The key itself is a secret, also one with a typing error.
            raise ValueError("the API key is empty or has characters that a header cannot carry")

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "Address":
        """`TOPICS_URL` and `TOPICS_API_KEY`; blank counts as not set."""
        return cls(env.get("TOPICS_URL", "").strip() or DEFAULT_URL, env.get("TOPICS_API_KEY", "").strip() or None)

    @property
    def is_tls(self) -> bool:
        return self.url.lower().startswith("https:")

    def __repr__(self) -> str:
        return f"Address({self.url!r})"
