"""Which addresses the server may call: it must not become somebody's way into the network it stands in. Pure.

A name is checked when it is given and again when it is resolved, and the call goes to the very address that was
checked, so that a name which resolves differently the second time gains nothing.
"""

import ipaddress
from typing import NamedTuple
from urllib.parse import urlsplit

from topics.streams.subscriptions.errors import WebhookRejectedError

_URL_CHARS_MAX = 2048


class Target(NamedTuple):
    scheme: str
    host: str
    port: int
    path: str


def check_url(url: str, allow_loopback: bool) -> Target:
    """The parts of a webhook's address. Raises WebhookRejectedError for one that must not be called."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise WebhookRejectedError("the webhook's url makes no sense", field="webhook.url") from None
    host = parts.hostname
    if len(url) > _URL_CHARS_MAX or not url.isprintable() or " " in url or not host:
        raise WebhookRejectedError("the webhook's url makes no sense", field="webhook.url")
    if parts.scheme not in ("http", "https") or parts.username is not None or parts.password is not None:
        raise WebhookRejectedError("a webhook's url is http or https, without credentials", field="webhook.url")
    loopback = is_loopback_name(host)
    if parts.scheme == "http" and not (loopback and allow_loopback):
        raise WebhookRejectedError("a webhook's url must be https", field="webhook.url")
    address = _address(host)
    if address is not None or loopback:
        check_address(host if address is not None else "127.0.0.1", allow_loopback)
    port = port or (443 if parts.scheme == "https" else 80)
    path = parts.path or "/"
    return Target(parts.scheme, host, port, f"{path}?{parts.query}" if parts.query else path)


def check_address(address: str, allow_loopback: bool) -> None:
    """Raises WebhookRejectedError unless the address is one of the public internet, or this machine where allowed."""
    found = _address(address)
    if found is None:
        raise WebhookRejectedError("the webhook's host resolves to no address", field="webhook.url")
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    found = mapped or found
    if found.is_loopback and allow_loopback:
        return
    if not found.is_global or found.is_multicast or found.is_reserved or found.is_unspecified:
        raise WebhookRejectedError("the webhook's host is not on the public internet", field="webhook.url")


def is_loopback_name(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or host.endswith(".localhost") or (address is not None and address.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
