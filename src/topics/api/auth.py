"""Who may do what: bearer keys with scopes and name prefixes.

A key is written `secret`, `secret:scopes`, `secret:scopes:prefixes` or `secret::prefixes`; keys are separated by
commas, scopes by `+`, prefixes by `|`. An empty field means everything. Only the SHA-256 of a secret is kept, and a
presented token is compared with every key in constant time, without stopping at the first that fits. A word that is
not a scope stops the server from starting: it must never grant what was not meant.
"""

import hashlib
import hmac
from collections.abc import Iterable
from enum import Flag, auto

from topics.api.errors import ForbiddenError, UnauthorizedError
from topics.core.errors import quoted

_BEARER = "bearer "
_OWNER_CHARS = 32


class Scope(Flag):
    READ = auto()
    WRITE = auto()
    DELETE = auto()
    ADMIN = auto()


ALL_SCOPES = Scope.READ | Scope.WRITE | Scope.DELETE | Scope.ADMIN
_WORDS = {
    "read": Scope.READ, "r": Scope.READ, "write": Scope.WRITE, "w": Scope.WRITE, "rw": Scope.READ | Scope.WRITE,
    "delete": Scope.DELETE, "del": Scope.DELETE, "d": Scope.DELETE, "admin": Scope.ADMIN, "a": Scope.ADMIN,
}  # fmt: skip


class BadKeyError(ValueError):
    """A key in the settings that cannot be understood; the message never contains the secret."""


class Key:
    """One key's rights. Its place in the list is its only name."""

    __slots__ = ("_bits", "digest", "inflight", "number", "owner", "prefixes", "scopes", "tenant")

    def __init__(self, number: int, digest: bytes, scopes: Scope, prefixes: tuple[str, ...]) -> None:
        self.number = number
        self.digest = digest
        self.owner = hashlib.sha256(digest).hexdigest()[:_OWNER_CHARS] if digest else ""
        """What is noted in the log of whose something is: it tells keys apart and nothing about them."""
        self.scopes = scopes
        # Arithmetic on enum members is slow, and every request asks.
        self._bits = scopes.value
        self.prefixes = prefixes
        self.tenant = hashlib.sha256("|".join(sorted(prefixes)).encode()).hexdigest()[:_OWNER_CHARS] if prefixes else ""
        """Keys with the same prefixes are one tenant; the one without any has no name."""
        self.inflight = 0
        """Requests of this key being worked on."""

    def may_touch(self, name: str) -> bool:
        return not self.prefixes or name.startswith(self.prefixes)

    def check(self, scopes: Scope, name: str | None = None) -> None:
        """Raises ForbiddenError unless the key has all these scopes and the name is within its prefixes."""
        if scopes.value & ~self._bits:
            missing = scopes & ~self.scopes
            words = "+".join(str(scope.name).lower() for scope in Scope if scope in missing)
            raise ForbiddenError(f"the key lacks the scope {words}", scope=words)
        if name is not None and not self.may_touch(name):
            raise ForbiddenError(f"the key may not touch the name {quoted(name)}", name=name)


ANYONE = Key(-1, b"", ALL_SCOPES, ())
"""Everybody, while no keys are set."""


class KeyRing:
    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = tuple(keys)

    @classmethod
    def parse(cls, text: str) -> "KeyRing":
        entries = [entry.strip() for entry in text.split(",")]
        return cls(_parse_key(number, entry) for number, entry in enumerate(filter(None, entries)))

    def __len__(self) -> int:
        return len(self._keys)

    def authenticate(self, authorization: str | None) -> Key:
        """The key of an Authorization header; raises UnauthorizedError when it is none of ours."""
        if not self._keys:
            return ANYONE
        if authorization is None or authorization[: len(_BEARER)].lower() != _BEARER:
            raise UnauthorizedError
        return self.find(authorization[len(_BEARER) :].strip())

    def authenticate_stream(self, authorization: str | None, token: str | None) -> Key:
        """The key of whoever opens an event stream. It may stand in the query: a browser sends no header there.

        The header wins. A token in a URL ends up in logs and histories, so no other route takes one.
        """
        if authorization is None and token is not None and self._keys:
            return self.find(token)
        return self.authenticate(authorization)

    def find(self, token: str) -> Key:
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found: Key | None = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        if found is None:
            raise UnauthorizedError
        return found


def _parse_key(number: int, entry: str) -> Key:
    secret, _, rest = entry.partition(":")
    words, _, names = rest.partition(":")
    if not secret:
        raise BadKeyError(f"key number {number + 1} has no secret")
    scopes = Scope(0)
    for word in filter(None, words.split("+")):
        scope = _WORDS.get(word.strip().lower())
        if scope is None:
            raise BadKeyError(f"key number {number + 1} has an unknown scope {quoted(word)}")
        scopes |= scope
    prefixes = tuple(filter(None, names.split("|")))
    digest = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
    return Key(number, digest, scopes or ALL_SCOPES, prefixes)
