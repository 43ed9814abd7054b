"""Keys as they are written in the settings."""

import pytest

from topics.api.auth import ALL_SCOPES, ANYONE, BadKeyError, KeyRing, Scope
from topics.api.errors import ForbiddenError, UnauthorizedError


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
def test_what_a_key_grants(text: str, scopes: Scope, prefixes: tuple[str, ...]) -> None:
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


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Bearer other", "Basic k", "k"])
def test_who_is_not_known_stays_outside(header: str | None) -> None:
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
