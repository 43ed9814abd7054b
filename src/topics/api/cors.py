"""CORS and protection from cross-site requests: decides which web pages may use the server.

A browser sends requests on behalf of any page. It prevents a page from reading responses of other origins unless they
allow it (CORS), but not from sending requests, and not if the page's own name resolves to this machine (DNS rebinding).
It does send the origin of a request.

Without keys, the origin is the only evidence. So only names of this machine are served, and requests from pages of
other origins are refused. With keys, every page needs a key; a setting names the origins that may read responses.
Programs send none of these headers and are not affected.
"""

import ipaddress
import re
from urllib.parse import urlsplit

from topics.api.error_responses import ForbiddenError
from topics.http.exchange import Exchange
from topics.http.messages import RequestHead

_ALL = "*"
_HOSTS_KNOWN_MAX = 64
_HOST_HEADER = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]+)?", re.IGNORECASE | re.ASCII)
_STAY_OUT = "pages of other sites may not use a server without keys. Allow an origin with TOPICS_CORS_ORIGINS"
PREFLIGHT = (
    ("x-content-type-options", "nosniff"),
    ("cross-origin-resource-policy", "cross-origin"),
    ("access-control-allow-origin", _ALL),
    ("access-control-allow-methods", "GET, HEAD, POST, PUT, DELETE, OPTIONS"),
    (
        "access-control-allow-headers",
        "Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, Stream-Key, Stream-Timestamp, "
        "Stream-Seq, Stream-TTL, Stream-Expires-At, Stream-Closed, Stream-Forked-From, Stream-Fork-Offset, "
        "Stream-Fork-Sub-Offset, Producer-Id, Producer-Epoch, Producer-Seq, *",
    ),
    ("access-control-max-age", "86400"),
)


class BadOriginError(ValueError):
    """An origin or a host in the settings is invalid."""


class BrowserRules:
    def __init__(
        self, *, keyless: bool = False, any_host: bool = False, hosts: str | None = None, origins: str | None = None
    ) -> None:
        """`hosts` and `origins` are lists as in the settings. Raises `BadOriginError`.

        `any_host` is for a server without keys that other machines may use, because its names are unknown.
        """
        self._keyless = keyless
        self._hosts = frozenset(map(_checked_host, _listed(hosts)))
        self._origins = frozenset(map(_checked_origin, _listed(origins)))
        self._any_host = _ALL in self._hosts or (any_host and not self._hosts)
        self._known_hosts: set[bytes] = set()
        """Cached Host headers that name this machine; bounded, because clients choose them."""

    def admit(self, head: RequestHead) -> None:
        """Raises ForbiddenError for a disallowed origin, and records in the head which origin may read the answer."""
        first = head.headers.first
        origin = head.headers.get("origin")
        if origin is not None:
            head.allow_origin = ""
        if self._keyless:
            host = first.get(b"host")
            if host is not None and host not in self._known_hosts:
                self._check_host(host)
        if origin is not None:
            head.allow_origin = self._allowed(origin, head)
        # A preflight has no effect, and without the page's origin in its answer the browser sends no further request.
        if not self._keyless or head.method == "OPTIONS":
            return
        if origin is not None and not head.allow_origin:
            raise ForbiddenError(_STAY_OUT, origin=origin[:256])
        if head.headers.get("sec-fetch-site") == "cross-site" and not (origin is not None and self._is_listed(origin)):
            raise ForbiddenError(_STAY_OUT)

    def names(self, header: str) -> bool:
        """Returns whether a `Host` header certainly names this server: a loopback name, or one of the settings."""
        host = host_of(f"//{header}") if _HOST_HEADER.fullmatch(header) else None
        return host is not None and (_ALL in self._hosts or self._is_served(host))

    def _allowed(self, origin: str, head: RequestHead) -> str:
        """Returns the origin that may read the response (`Access-Control-Allow-Origin`); empty if none may."""
        if self._is_listed(origin):
            return origin if _ALL not in self._origins else _ALL
        if not self._keyless:
            return ""
        host = host_of(origin)
        same = host is not None and host == host_of(f"//{head.headers.get('host', '')}")
        return origin if host is not None and (same or self._is_served(host)) else ""

    def _is_listed(self, origin: str) -> bool:
        return _ALL in self._origins or origin.lower() in self._origins

    def _is_served(self, host: str) -> bool:
        return is_loopback(host) or host in self._hosts

    def _check_host(self, header: bytes) -> None:
        text = header.decode("latin-1").strip()
        host = host_of(f"//{text}")
        if not self._any_host and (host is None or not self._is_served(host)):
            raise ForbiddenError(
                "a server without keys answers to names of this machine only; TOPICS_ALLOWED_HOSTS can add others",
                host=text[:256],
            )
        if len(self._known_hosts) < _HOSTS_KNOWN_MAX:
            self._known_hosts.add(header)


def preflight(exchange: Exchange) -> None:
    """Answers a CORS preflight request."""
    exchange.respond(204, b"", "", PREFLIGHT)


def is_preflight(head: RequestHead) -> bool:
    return head.method == "OPTIONS" and b"access-control-request-method" in head.headers.first


def is_loopback(host: str) -> bool:
    """Returns whether a name or address always means this machine, with every name server."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(url: str) -> str | None:
    """Returns the host of a URL in lower case; None if there is none."""
    try:
        host = urlsplit(url).hostname
    except ValueError:
        # Such as an unclosed bracket.
        return None
    return host.removesuffix(".") if host else None


def _listed(text: str | None) -> list[str]:
    return [entry.strip().lower() for entry in (text or "").split(",") if entry.strip()]


def _checked_host(entry: str) -> str:
    host = host_of(f"//{entry}")
    bare = host is not None and entry in (host, f"[{host}]")
    if entry != _ALL and not bare:
        raise BadOriginError(f"{entry!r} is not a host without a port")
    return entry if host is None else host


def _checked_origin(entry: str) -> str:
    parts = urlsplit(entry)
    bare = parts.scheme in ("http", "https") and parts.netloc and entry == f"{parts.scheme}://{parts.netloc}"
    if entry != _ALL and not bare:
        raise BadOriginError(f"{entry!r} is not an origin, such as https://app.example.com")
    return entry
