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
    """Deadline and waits of retries.

    The wait doubles with each attempt up to its maximum, less a random part, so that clients do not retry at once. It
    is at least as long as the server's `Retry-After`.
    """

    deadline_s: float | None = None
    """Time after the first attempt in which others begin; 0 never retries. Default: 30 seconds, or 2 if the server
    never answered this client.

    Keep it below `idempotency_window_ms` of the topic (two minutes): the server forgets keys after that.
    """
    backoff_min_s: float = 0.05
    backoff_max_s: float = 2.0

    def patience_s(self, reached: bool) -> float:
        """The deadline, for a server that was reached before or was not."""
        return self.deadline_s if self.deadline_s is not None else _PATIENCE_S if reached else _UNREACHED_S


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a client: everything but the URL and the key. They cannot be changed later."""

    timeout_s: float = 10.0
    """Maximum silence of the server, and maximum wait for a free connection; a call with `wait_ms` adds that."""
    connect_timeout_s: float = 2.0
    """Maximum time to connect."""
    max_connections: int = 100
    """Connections in the pool; calls beyond it wait for one."""
    headers: Mapping[str, str] = {}
    """Sent with every request."""
    retry: RetryPolicy = RetryPolicy()
    """Deadline and waits of retries; `deadline_s=0` never retries."""
    idempotent_appends: bool = True
    """Generates idempotency keys for appends without one. An append without a key is not retried after a lost answer.
    """
    gzip: bool = False
    """Compresses large requests and asks for compressed answers; for slow networks."""
    proxy: str | None = None
    """The URL of an HTTP proxy, which may have a user and password, or an empty text for none. By default HTTP_PROXY,
    HTTPS_PROXY, ALL_PROXY and NO_PROXY apply. http is forwarded, https tunnelled.
    """
    ssl_context: "ssl.SSLContext | None" = None
    """For https: trusted authorities, and a client certificate. Default: the system's authorities and SSL_CERT_FILE."""


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
