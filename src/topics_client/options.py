"""How a client behaves, and where it finds its server."""

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from topics_protocol.config import DEFAULT_URL

if TYPE_CHECKING:
    import ssl

_PATIENCE_S = 30.0
_UNREACHED_S = 2.0


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a request that could not be taken is sent again.

    The wait doubles from try to try up to its maximum, less a random part, so that clients which failed together do
    not come back together. Where the server said how long to wait, it is at least that long.
    """

    deadline_s: float | None = None
    """No try begins later than this after the first one; 0 never tries again. None is 30 seconds for a server that has
    answered this client before, and 2 for one that has not: that one is rather not there at all.

    It has to stay below the topic's `idempotency_window_ms`, by default two minutes: behind it the server has forgotten
    that it already appended.
    """
    backoff_min_s: float = 0.05
    backoff_max_s: float = 2.0

    def patience_s(self, reached: bool) -> float:
        """The deadline, for a server that was reached before or was not."""
        return self.deadline_s if self.deadline_s is not None else _PATIENCE_S if reached else _UNREACHED_S


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a client that is not its server's address or its key."""

    timeout_s: float = 10.0
    """The longest silence of the server, and the longest wait for a free connection. A call that asked the server to
    wait adds that time to it.
    """
    connect_timeout_s: float = 2.0
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
    proxy: str | None = None
    """The URL of an HTTP proxy, or an empty text for none. None uses HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY; a
    server on this machine is never reached through those.
    """
    ssl_context: "ssl.SSLContext | None" = None
    """For https: whom to trust, and a certificate of one's own. None trusts whom the system trusts."""


class Address(msgspec.Struct, frozen=True):
    """A server and the key to it, checked."""

    url: str = DEFAULT_URL
    api_key: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.username is not None or parts.password is not None:
            # Without the URL: a password would end up in errors and logs.
            raise ValueError("a URL has no user or password here; a key is given as api_key")
        if parts.scheme not in ("http", "https") or not _is_host(parts.hostname) or parts.query or parts.fragment:
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


def _is_host(name: str | None) -> bool:
    """Whether a name can be looked up at all: the system's resolver does not refuse the others, it fails."""
    try:
        labels = (name or "").encode("ascii" if name and name.isascii() else "idna").removesuffix(b".").split(b".")
    except UnicodeError:
        return False
    return all(0 < len(label) < 64 for label in labels)
