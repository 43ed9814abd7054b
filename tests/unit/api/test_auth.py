"""Keys as they are written in the settings."""

import pytest

from topics.api.auth import ALL_SCOPES, ANYONE, BadKeyError, KeyRing, Scope, Tokens, parse_keys
from topics.api.error_responses import ForbiddenError, UnauthorizedError
from topics.testing import ManualClock, SeededEntropy


@pytest.mark.parametrize(
    ("text", "scopes", "prefixes"),
    [
        ("k", ALL_SCOPES, ()),
        ("k:", ALL_SCOPES, ()),
        ("k::", ALL_SCOPES, ()),
        ("k:read", Scope.READ, ()),
        ("k:READ+w", Scope.READ | Scope.WRITE, ()),
        ("k:rw+d+a", ALL_SCOPES, ()),
        ("k:del", Scope.DELETE, ()),
        ("k::a:|b.", ALL_SCOPES, ("a:", "b.")),
        ("k:r:a:b", Scope.READ, ("a:b",)),
    ],
)
def test_scopes_and_prefixes_of_a_key(text: str, scopes: Scope, prefixes: tuple[str, ...]) -> None:
    key = KeyRing.parse(text).authenticate("Bearer k")
    assert (key.scopes, key.prefixes) == (scopes, prefixes)


@pytest.mark.parametrize("text", ["k:reed", "k:read+x", ":read", "ok,:w"])
def test_a_key_that_cannot_be_meant_is_refused_without_its_secret(text: str) -> None:
    with pytest.raises(BadKeyError) as refusal:
        KeyRing.parse(text)
    assert "k:" not in str(refusal.value)


def test_blank_entries_are_no_keys() -> None:
    assert len(KeyRing.parse(" , a , ,b:r ")) == 2
    assert KeyRing.parse("").authenticate(None) is ANYONE


@pytest.mark.parametrize("text", [" , ", ",", " "])
def test_a_setting_without_a_key_in_it_is_refused(text: str) -> None:
    """It would serve everybody, and was not meant to."""
    with pytest.raises(BadKeyError, match="the list of keys is empty"):
        KeyRing.parse(text)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Bearer other", "Basic k", "k"])
def test_unknown_key_is_unauthorized(header: str | None) -> None:
    with pytest.raises(UnauthorizedError):
        KeyRing.parse("k").authenticate(header)


def test_a_missing_scope_and_a_foreign_name_are_forbidden() -> None:
    key = KeyRing.parse("k:r:a:").authenticate("Bearer k")
    key.check(Scope.READ, "a:1")
    key.check(Scope.READ)
    with pytest.raises(ForbiddenError, match="write\\+delete"):
        key.check(Scope.READ | Scope.WRITE | Scope.DELETE, "a:1")
    with pytest.raises(ForbiddenError, match="name"):
        key.check(Scope.READ, "b:1")


# Tokens, and keys that change.


def _ring(text: str, clock: ManualClock) -> tuple[KeyRing, Tokens]:
    ring = KeyRing.parse(text)
    ring.tokens = Tokens(clock, SeededEntropy(1))
    return ring, ring.tokens


def test_a_token_stands_for_its_key_until_it_ends() -> None:
    clock = ManualClock()
    ring, tokens = _ring("a,b:r:x", clock)
    key = ring.find("b")
    token, expires_ms = tokens.issue(key, 1000)
    assert expires_ms == clock.now_ms() + 1000
    clock.advance(999)
    assert ring.authenticate_stream(None, token) is key
    assert ring.authenticate_stream(None, token, takes_keys=False) is key
    with pytest.raises(UnauthorizedError):
        ring.authenticate(f"Bearer {token}")
    clock.advance(1)
    with pytest.raises(UnauthorizedError):
        ring.authenticate_stream(None, token)


def test_a_token_of_another_process_or_of_a_key_that_is_gone_is_none() -> None:
    clock = ManualClock()
    ring, tokens = _ring("a,b", clock)
    token, _ = tokens.issue(ring.find("a"), 1000)
    with pytest.raises(UnauthorizedError):
        Tokens(clock, SeededEntropy(2)).find(token, ring)
    ring.replace(parse_keys("b"))
    with pytest.raises(UnauthorizedError):
        tokens.find(token, ring)


def test_a_key_that_stays_is_the_same_object_and_one_that_goes_may_do_nothing() -> None:
    ring = KeyRing.parse("a,b:r,c")
    a, b, c = ring
    version = ring.version
    gone = ring.replace(parse_keys("c,b:rw,d,a"))
    assert ring.version is not version
    assert gone == [b]
    assert ring.find("a") is a
    assert ring.find("c") is c
    changed = ring.find("b")
    assert changed is not b
    assert len({key.number for key in (*ring, b)}) == 5, "what is counted by number is not mixed up"
    with pytest.raises(UnauthorizedError):
        b.check(Scope.READ)


def test_a_ring_that_asks_for_keys_never_stops_asking() -> None:
    assert KeyRing.parse("").is_open
    assert not KeyRing.parse("", required=True).is_open
    ring = KeyRing.parse("a")
    ring.replace([])
    for header in (None, "Bearer a", "Bearer "):
        with pytest.raises(UnauthorizedError):
            ring.authenticate(header)


def test_of_a_secret_that_is_given_twice_the_last_counts() -> None:
    ring = KeyRing.parse("a:read+write,b,a:read:shop.")
    key = ring.authenticate("Bearer a")
    assert (key.scopes, key.prefixes) == (Scope.READ, ("shop.",))
