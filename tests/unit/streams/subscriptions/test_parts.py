"""Patterns, addresses, signatures and requests."""

import random
import re
from base64 import urlsafe_b64decode

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from topics.model.errors import InvalidRequestError
from topics.streams.subscriptions.subscription import (
    DEEP_MAX,
    SubscriptionRequest,
    Webhook,
    WebhookRejectedError,
    literal_prefix,
    matcher,
)
from topics.streams.subscriptions.webhook_security import Signer, Target, check_address, check_url


@pytest.mark.parametrize(
    ("pattern", "fits", "not_"),
    [
        ("a/*", ["a/b", "a/"], ["a", "a/b/c", "b/a"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b"]),
        ("**/x", ["x", "a/x", "a/b/x"], ["ax", "x/y"]),
        ("a*c", ["ac", "abc"], ["a/c", "abcd"]),
        ("**", ["a", "a/b"], []),
        ("a.b", ["a.b"], ["axb"]),
        ("*a", ["a", "aba"], ["ab"]),
        ("a*a*a", ["aaa", "abaca"], ["aa", "aab"]),
        ("*a/*b", ["aba/xb"], ["ab", "a/b/b"]),
        ("**a*b", ["a/ab", "x/y/ab"], ["a/b"]),
    ],
)
def test_stars_stand_for_segments(pattern: str, fits: list[str], not_: list[str]) -> None:
    match = matcher(pattern)
    assert [name for name in fits if not match(name)] == []
    assert [name for name in not_ if match(name)] == []
    assert all(name.startswith(literal_prefix(pattern)) for name in fits)


def test_no_pattern_takes_long_on_any_name() -> None:
    """Fails by not coming to an end."""
    assert not matcher("*a" * 100 + "b")("a" * 1024)
    assert not matcher("*" * 100 + "b")("a" * 1024)
    assert not matcher("**/**a" + "*a" * 50 + "b")("a/" * 500)
    costly = [matcher(f"**z*y**{n}") for n in range(2000)]
    assert not any(match("zy" * 500) for match in costly)
    assert all(match("z" * 1000 + "y" + str(n)) for n, match in enumerate(costly))
    with pytest.raises(InvalidRequestError):
        SubscriptionRequest(type="pull-wake", pattern="**a**a**", wake_stream="w").check()


def test_a_pattern_fits_what_its_expression_fits(seed: int) -> None:
    """Against the plainest expression of each pattern, on names so short that this takes no time."""
    rng = random.Random(seed)
    parts = {"*": "[^/]*", "**": ".*", "**/": "(?:.*/)?"}
    for _ in range(3000):
        pattern = "".join(rng.choices(["*", "**", "**/", "a", "b", "/", "ab"], k=rng.randint(1, 6)))
        tokens = re.findall(r"\*\*/?|\*|[^*]+", re.sub(r"\*{3,}", "**", pattern))
        if sum(token.startswith("**") for token in tokens) > DEEP_MAX:
            continue
        plain = re.compile("".join(parts.get(token, re.escape(token)) for token in tokens), re.DOTALL)
        match = matcher(pattern)
        for _ in range(10):
            name = "".join(rng.choices("ab/", k=rng.randint(0, 7)))
            assert match(name) == bool(plain.fullmatch(name)), (pattern, name)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111"])
def test_public_addresses_may_be_called(address: str) -> None:
    check_address(address, allow_loopback=False)


@pytest.mark.parametrize(
    "address",
    [
        "10.1.2.3", "172.16.0.1", "192.168.0.1", "127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "100.64.0.1",
        "::1", "fe80::1", "fd00::1", "::ffff:192.168.0.1", "::", "255.255.255.255", "not an address", "192.0.0.1",
        "192.0.0.8", "192.0.0.170", "192.88.99.1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1",
        "240.0.0.1", "192.31.196.1", "192.52.193.1", "192.175.48.1", "0.1.2.3", "2002:7f00:1::", "2002:c0a8:1::1",
        "2001:0:7f00:1::", "2001:db8::1", "2001:2::1", "2001:10::1", "64:ff9b::7f00:1", "64:ff9b::a00:1",
        "64:ff9b:1::1", "100::1", "fec0::1", "ff02::1", "::7f00:1", "::ffff:0:7f00:1", "3fff::1", "5f00::1",
        "2620:4f:8000::1", "4000::1", "fe80::1%eth0", "2606:4700::1111%1",
    ],
)  # fmt: skip
def test_all_others_may_not(address: str) -> None:
    with pytest.raises(WebhookRejectedError):
        check_address(address, allow_loopback=False)


def test_this_machine_may_be_called_where_that_is_allowed() -> None:
    check_address("127.0.0.1", allow_loopback=True)
    assert check_url("http://localhost:99/x?y", allow_loopback=True) == Target("http", "localhost", 99, "/x?y")
    with pytest.raises(WebhookRejectedError):
        check_url("https://localhost/x", allow_loopback=False)


def test_a_signature_can_be_verified_by_the_public_key() -> None:
    signer = Signer(bytes(range(32)))
    header = signer.header(b"body", 1234)
    fields = dict(part.split("=", 1) for part in header.split(","))
    key: dict[str, str] = msgspec.convert(signer.jwks()["keys"], list[dict[str, str]])[0]
    assert fields["t"] == "1234" and fields["kid"] == key["kid"] and key["kid"].startswith("ds_")
    public = Ed25519PublicKey.from_public_bytes(urlsafe_b64decode(key["x"] + "="))
    public.verify(urlsafe_b64decode(fields["ed25519"] + "=="), b"1234.body")


@pytest.mark.parametrize(
    "request_",
    [
        SubscriptionRequest(type="other", pattern="a"),
        SubscriptionRequest(type="webhook", webhook=Webhook("https://a.b")),
        SubscriptionRequest(type="webhook", pattern="a"),
        SubscriptionRequest(type="webhook", pattern="a", webhook=Webhook("https://a.b"), wake_stream="w"),
        SubscriptionRequest(type="pull-wake", pattern="a"),
        SubscriptionRequest(type="pull-wake", pattern="a", wake_stream="w", lease_ttl_ms=10),
        SubscriptionRequest(type="pull-wake", streams=["a"] * 10_001, wake_stream="w"),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(request_: SubscriptionRequest) -> None:
    with pytest.raises(InvalidRequestError):
        request_.check()
