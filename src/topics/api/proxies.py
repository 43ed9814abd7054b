"""Whose address a request comes from when proxies stand before the server.

    X-Forwarded-For: 198.51.100.7, 203.0.113.9

A proxy adds the address it was called from at the end. Anybody can send such a header, so only what proxies that the
operator trusts have added counts: from the end, the first address that is none of theirs.
"""

import ipaddress

from topics.http.headers import Headers

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class BadProxyError(ValueError):
    """An entry of the settings that is neither an address nor a network."""


class TrustedProxies:
    def __init__(self, listed: str | None = None) -> None:
        """Addresses and networks, separated by commas. Raises `BadProxyError`."""
        entries = [entry.strip() for entry in (listed or "").split(",") if entry.strip()]
        try:
            self._networks = [ipaddress.ip_network(entry) for entry in entries]
        except ValueError as error:
            raise BadProxyError(str(error)) from error

    def client(self, peer: str, headers: Headers) -> str:
        """The address of who asks; `peer`, host:port, is who is connected."""
        host = peer.rpartition(":")[0].strip("[]")
        if not self._networks or not self._trusts(_address(host)):
            return peer
        client = peer
        for said in reversed(headers.get_list("x-forwarded-for").split(",")):
            address = _address(said.strip())
            if address is None:
                return client
            client = str(address)
            if not self._trusts(address):
                return client
        return client

    def _trusts(self, address: _Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def _address(text: str) -> _Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    # A socket for both kinds shows the older ones inside of the newer ones.
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found
