"""Allowed addresses of webhooks: prevents access to the server's network (SSRF). Pure.

A name is checked when it is set and again when it is resolved, and the call uses exactly the checked address, which
prevents DNS rebinding.
"""

import hashlib
import hmac
import ipaddress
from base64 import urlsafe_b64encode
from typing import NamedTuple
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from topics.streams.subscriptions.subscription import WebhookRejectedError

_URL_CHARS_MAX = 2048

# Addresses outside the public internet, by the tables of the registries (RFC 6890 and its successors), not only by
# Python's, which differ between versions: protocol assignments, relays and anycast services, tests and documentation,
# and all IPv6 addresses with an IPv4 address inside, which a translator would call.
_OUTSIDE_V4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
            "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16",
            "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
        ),
    )
)  # fmt: skip
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_OUTSIDE_V6 = tuple(
    map(
        ipaddress.IPv6Network,
        ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3ffe::/16", "3fff::/20"),
    )
)


class Target(NamedTuple):
    scheme: str
    host: str
    port: int
    path: str


def check_url(url: str, allow_loopback: bool) -> Target:
    """Returns the parts of a webhook's address. Raises WebhookRejectedError for one that must not be called."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise WebhookRejectedError("the webhook's url is malformed", field="webhook.url") from None
    host = parts.hostname
    if len(url) > _URL_CHARS_MAX or not url.isprintable() or " " in url or not host:
        raise WebhookRejectedError("the webhook's url is malformed", field="webhook.url")
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
    """Raises WebhookRejectedError unless the address is in the public internet, or this machine if allowed."""
    found = _address(address)
    if found is None:
        raise WebhookRejectedError("the webhook's host resolves to no address", field="webhook.url")
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    found = mapped or found
    if not (found.is_loopback and allow_loopback) and not _is_public(found):
        raise WebhookRejectedError("the webhook's host is not on the public internet", field="webhook.url")


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if not address.is_global:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _OUTSIDE_V4)
    # An address with a zone belongs to a network that this machine is connected to.
    in_use = address in _GLOBAL_V6 and address.scope_id is None
    return in_use and not any(address in network for network in _OUTSIDE_V6)


def is_loopback_name(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or host.endswith(".localhost") or (address is not None and address.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


# Signatures of webhooks: Ed25519, so that receivers verify with a public key and no secret is shared.
#
# Webhook-Signature: t=<unix seconds>,kid=<key id>,ed25519=<base64url of the signature of "<t>.<body>">

SEED_BYTES = 32
_MARK_BYTES = 18


class Signer:
    def __init__(self, seed: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self._public = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        # Separate from the signing key, so that knowledge of one reveals nothing about the other.
        self._secret = hashlib.sha256(b"topics claims" + seed).digest()
        self.key_id = "ds_" + hashlib.sha256(self._public).hexdigest()[:16]

    def header(self, body: bytes, now_s: int) -> str:
        signature = self._private.sign(b"%d.%b" % (now_s, body))
        return f"t={now_s},kid={self.key_id},ed25519={_b64(signature)}"

    def mark(self, text: str) -> str:
        """Returns a MAC of a text, which only this server can compute."""
        return _b64(hmac.digest(self._secret, text.encode(), "sha256")[:_MARK_BYTES])

    def jwks(self) -> dict[str, object]:
        """Returns the public key in the form that receivers fetch."""
        key = {"kty": "OKP", "crv": "Ed25519", "x": _b64(self._public), "kid": self.key_id}
        return {"keys": [{**key, "use": "sig", "alg": "EdDSA"}]}


def _b64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
