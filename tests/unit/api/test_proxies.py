import pytest

from topics.api.request_logs import BadProxyError, TrustedProxies
from topics.http.messages import Headers


def forwarded(*values: str) -> Headers:
    return Headers.of((b"x-forwarded-for", value.encode()) for value in values)


@pytest.mark.parametrize(
    ("trusted", "peer", "said", "client"),
    [
        (None, "127.0.0.1:9", ["203.0.113.9"], "127.0.0.1:9"),
        ("127.0.0.1", "10.0.0.1:9", ["203.0.113.9"], "10.0.0.1:9"),
        ("127.0.0.1", "127.0.0.1:9", [], "127.0.0.1:9"),
        ("127.0.0.1", "127.0.0.1:9", ["203.0.113.9"], "203.0.113.9"),
        # The address that the client claims stands before the one that the proxy saw.
        ("127.0.0.1", "127.0.0.1:9", ["198.51.100.7, 203.0.113.9"], "203.0.113.9"),
        ("127.0.0.1, 10.0.0.0/8", "127.0.0.1:9", ["203.0.113.9, 10.1.2.3"], "203.0.113.9"),
        ("127.0.0.1, 10.0.0.0/8", "127.0.0.1:9", ["203.0.113.9", "10.1.2.3"], "203.0.113.9"),
        # Only proxies all the way: the farthest of them counts as the client.
        ("10.0.0.0/8", "10.0.0.1:9", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        # Addresses before an invalid one are not trusted.
        ("10.0.0.0/8", "10.0.0.1:9", ["203.0.113.9, unknown, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.0/8", "10.0.0.1:9", ["unknown"], "10.0.0.1:9"),
        ("::1", "[::1]:9", ["2001:db8::7"], "2001:db8::7"),
        ("127.0.0.1", "[::ffff:127.0.0.1]:9", ["203.0.113.9"], "203.0.113.9"),
    ],
)
def test_who_asks(trusted: str | None, peer: str, said: list[str], client: str) -> None:
    assert TrustedProxies(trusted).client(peer, forwarded(*said)) == client


@pytest.mark.parametrize("listed", ["proxy.example.com", "127.0.0.1/99", "10.0.0.1/8"])
def test_invalid_proxy_address_is_refused(listed: str) -> None:
    with pytest.raises(BadProxyError):
        TrustedProxies(listed)
