"""Authentication and authorization: bearer keys with scopes and name prefixes.

A key is written `secret`, `secret:scopes`, `secret:scopes:prefixes` or `secret::prefixes`; keys are separated by
commas, scopes by `+`, prefixes by `|`. An empty field means everything. Only the SHA-256 of a secret is kept, and a
presented token is compared with every key in constant time, without stopping at the first match. An unknown scope stops
the server from starting, so that a typo never grants more than was meant.
"""

import copy
import hashlib
import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from enum import Flag, auto

from topics.api.error_responses import ForbiddenError, UnauthorizedError
from topics.http.output_backpressure import Account
from topics.model.errors import TopicsError, quoted
from topics.model.key_file import KeyFileError, StoredKey, key_file_version, load_keys
from topics.model.topic_config import TopicConfig, TopicConfigPatch
from topics.system.clock import Clock
from topics.system.entropy import Entropy
from topics.system.events import Event

_BEARER = "bearer "
_TOKEN = "tok_"
_TAG_BYTES, _MARK_BYTES = 12, 16
_EXPIRES = struct.Struct(">Q")
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
    """A key in the settings is invalid; the message never contains the secret."""


class Key:
    """The rights of a key."""

    __slots__ = (
        "_bits", "digest", "inflight", "name", "number", "output_account", "owner", "prefixes", "revoked", "scopes",
        "tenant",
    )  # fmt: skip

    def __init__(self, number: int, digest: bytes, scopes: Scope, prefixes: tuple[str, ...], name: str = "") -> None:
        self.number = number
        self.name = name
        """The key's name in logs; keys from a setting have their position as name."""
        self.digest = digest
        self.owner = hashlib.sha256(digest).hexdigest()[:_OWNER_CHARS] if digest else ""
        """The owner that logs and subscriptions record: it distinguishes keys and reveals nothing about them."""
        self.scopes = scopes
        # Arithmetic on enum members is slow, and every request needs it.
        self._bits = scopes.value
        self.prefixes = prefixes
        self.tenant = hashlib.sha256("|".join(sorted(prefixes)).encode()).hexdigest()[:_OWNER_CHARS] if prefixes else ""
        """Keys with the same prefixes are one tenant; the tenant without prefixes has no name."""
        self.inflight = 0
        """The number of requests of this key in progress."""
        self.output_account = Account()
        """Output that clients with this key have not read yet (`http.output_backpressure`)."""
        self.revoked = False

    def revoke(self) -> None:
        """Revokes the key, including for connections opened with it."""
        self.revoked = True
        self._bits = 0

    def may_touch(self, name: str) -> bool:
        return not self.prefixes or name.startswith(self.prefixes)

    def check(self, scopes: Scope, name: str | None = None) -> None:
        """Raises ForbiddenError unless the key has all these scopes and the name is within its prefixes."""
        if self.revoked:
            raise UnauthorizedError
        if scopes.value & ~self._bits:
            missing = scopes & ~self.scopes
            words = "+".join(str(scope.name).lower() for scope in Scope if scope in missing)
            raise ForbiddenError(f"the key lacks the scope {words}", scope=words)
        if name is not None and not self.may_touch(name):
            raise ForbiddenError(f"the key may not access the name {quoted(name)}", name=name)


ANYONE = Key(-1, b"", ALL_SCOPES, ())
"""The identity of every client while no keys are set."""


class KeyRing:
    """The valid keys. They can be replaced while the server runs; whether keys are required cannot change."""

    def __init__(self, keys: Iterable[Key], *, required: bool = False) -> None:
        """`required` demands a key even while there are none, such as with an empty key file."""
        self._keys = tuple(keys)
        self.is_open = not self._keys and not required
        """Whether authentication is off."""
        self.version: object = object()
        """Replaced each time the keys change: decisions made with an earlier object must be repeated."""
        self.changed: Event[[]] = Event()
        """Called after a change of the keys."""
        self.tokens: Tokens | None = None
        self._next_number = len(self._keys)

    @classmethod
    def parse(cls, text: str, *, required: bool = False) -> "KeyRing":
        return cls(parse_keys(text), required=required)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def replace(self, keys: Iterable[Key]) -> list[Key]:
        """Replaces the keys and returns the removed ones. A key with unchanged permissions keeps its object, with
        everything that is counted for it.
        """
        before = {(key.digest, key.scopes, key.prefixes): key for key in self._keys}
        after = []
        for key in keys:
            known = before.pop((key.digest, key.scopes, key.prefixes), None)
            if known is None:
                known = Key(self._next_number, key.digest, key.scopes, key.prefixes, key.name)
                self._next_number += 1
            after.append(known)
        self._keys, self.version = tuple(after), object()
        for key in before.values():
            key.revoke()
        self.changed.emit()
        return list(before.values())

    def authenticate(self, authorization: str | None) -> Key:
        """Returns the key of an Authorization header. Raises UnauthorizedError if it is unknown."""
        if self.is_open:
            return ANYONE
        if authorization is None or authorization[: len(_BEARER)].lower() != _BEARER:
            raise UnauthorizedError
        return self.find(authorization[len(_BEARER) :].strip())

    def authenticate_stream(self, authorization: str | None, token: str | None, *, takes_keys: bool = True) -> Key:
        """Returns the key for an event stream or a WebSocket, from the header or, because browsers send no header
        there, from the query.

        The header takes precedence. A token in a URL ends up in logs and histories, so no other route accepts one, and
        it should be short-lived. `takes_keys` is for routes that accept a key in the query as well.
        """
        if authorization is not None or token is None or self.is_open:
            return self.authenticate(authorization)
        if self.tokens is not None and self.tokens.is_one(token):
            return self.tokens.find(token, self)
        if not takes_keys:
            raise UnauthorizedError
        return self.find(token)

    def find(self, token: str) -> Key:
        digest = digest_of(token)
        found: Key | None = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        if found is None:
            raise UnauthorizedError
        return found


class Tokens:
    """Short-lived tokens that replace a key if only a URL can be given, as in a browser's event streams.

    A token contains its key and its expiry, with an HMAC that only this process can compute, so tokens are not stored.
    Another process does not accept it: after a restart a page requests a new one.

        tok_ base64url(u64 moment of its end, in ms | 12 bytes for the key | 16 bytes of HMAC-SHA256 over both)
    """

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self._clock = clock
        self._secret = entropy.token(32)
        self._version: object = None
        self._by_tag: dict[bytes, Key] = {}

    def issue(self, key: Key, ttl_ms: int) -> tuple[str, int]:
        """Returns a token of a key, and its expiry."""
        expires_ms = self._clock.now_ms() + ttl_ms
        said = _EXPIRES.pack(expires_ms) + self._tag(key)
        return _TOKEN + urlsafe_b64encode(said + self._mark(said)).decode(), expires_ms

    @staticmethod
    def is_one(text: str) -> bool:
        return text.startswith(_TOKEN)

    def find(self, token: str, keys: KeyRing) -> Key:
        """Returns the key of a token. Raises UnauthorizedError for an expired or forged token, or a removed key."""
        try:
            raw = urlsafe_b64decode(token[len(_TOKEN) :])
        except ValueError:
            raise UnauthorizedError from None
        said, mark = raw[:-_MARK_BYTES], raw[-_MARK_BYTES:]
        if len(said) != _EXPIRES.size + _TAG_BYTES or not hmac.compare_digest(mark, self._mark(said)):
            raise UnauthorizedError
        if self._version is not keys.version:
            self._by_tag, self._version = {self._tag(key): key for key in keys}, keys.version
        key = self._by_tag.get(said[_EXPIRES.size :])
        if key is None or _EXPIRES.unpack_from(said)[0] <= self._clock.now_ms():
            raise UnauthorizedError
        return key

    def _tag(self, key: Key) -> bytes:
        # Not the digest itself: the holder of a token must not be able to test secrets against it.
        return hmac.digest(self._secret, b"key" + key.digest, "sha256")[:_TAG_BYTES]

    def _mark(self, said: bytes) -> bytes:
        return hmac.digest(self._secret, b"token" + said, "sha256")[:_MARK_BYTES]


def digest_of(secret: str) -> bytes:
    """Returns the stored digest of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def parse_keys(text: str) -> list[Key]:
    """Parses the keys of a setting. Raises `BadKeyError`."""
    entries = [entry.strip() for entry in text.split(",")]
    if text and not any(entries):
        raise BadKeyError(
            "the list of keys is empty. Name at least one key, or remove the setting to serve without keys"
        )
    return [_parse_key(number, entry) for number, entry in enumerate(filter(None, entries))]


def parse_scopes(words: Iterable[str]) -> Scope:
    """Parses scopes; no words mean all scopes. Raises `BadKeyError`."""
    scopes = Scope(0)
    for word in words:
        scope = _WORDS.get(word.strip().lower())
        if scope is None:
            raise BadKeyError(f"an unknown scope {quoted(word)}")
        scopes |= scope
    return scopes or ALL_SCOPES


def _parse_key(number: int, entry: str) -> Key:
    secret, _, rest = entry.partition(":")
    words, _, names = rest.partition(":")
    if not secret:
        raise BadKeyError(f"key number {number + 1} has no secret")
    try:
        scopes = parse_scopes(filter(None, words.split("+")))
    except BadKeyError as error:
        raise BadKeyError(f"key number {number + 1} has {error}") from None
    return Key(number, digest_of(secret), scopes, tuple(filter(None, names.split("|"))), f"#{number + 1}")


# Sources of keys: a setting, which is read once, and a file, which is read again on request.


class KeyStore:
    def __init__(self, text: str | None, path: str | None) -> None:
        """`text` is dropped once its keys are parsed. Raises `BadKeyError` or `KeyFileError`."""
        self._fixed = parse_keys(text or "")
        self._path = path
        self._version: tuple[int, int, int] | None = None
        self.ring = KeyRing(self._all(), required=path is not None)

    def has_changed(self) -> bool:
        """Whether the file changed since the last attempt to load it; a missing file counts as unchanged."""
        return self._path is not None and key_file_version(self._path) not in (None, self._version)

    def reload(self) -> list[Key]:
        """Reloads the file and returns the removed keys. Raises `KeyFileError` without a change."""
        return self.ring.replace(self._all())

    def _all(self) -> list[Key]:
        stored: list[StoredKey] = []
        if self._path is not None:
            # Before the content: a change in between then counts as another change.
            self._version = key_file_version(self._path)
            stored = load_keys(self._path)
        return [*self._fixed, *(self._key(number, key) for number, key in enumerate(stored, len(self._fixed)))]

    def _key(self, number: int, key: StoredKey) -> Key:
        try:
            scopes = parse_scopes(key.scopes)
        except BadKeyError as error:
            raise KeyFileError(f"the key file {self._path} is not valid: the key {key.name!r} has {error}") from error
        return Key(number, bytes.fromhex(key.sha256), scopes, tuple(key.prefixes), key.name)


# Name prefixes of a key: the permitted names, and the errors for others.
#
# A name can appear in more places than the path: in a config, in the destination of a router or a subscription, in an
# error message. Every operation that accepts or returns a name checks it here.

_NAMING = ("topic", "source", "dest", "router", "stream", "cycle", "dead_letter")
"""The fields of an error's detail that have a name of a topic, stream or router, or a list of them."""
_UNSAID = "(not shown)"


def check_config(key: Key, patch: TopicConfigPatch | None, existing: TopicConfig | None = None) -> None:
    """Raises ForbiddenError for a config with which the server would write to topics that the key may not use.

    A name that the config already has may be repeated, because a client that changes one field sends the others back
    unchanged.
    """
    if not key.prefixes or patch is None:
        return
    dead_letter = patch.dead_letter
    if isinstance(dead_letter, str) and (existing is None or existing.dead_letter != dead_letter):
        key.check(Scope(0), dead_letter)


def check_found(key: Key, names: Iterable[str], what: str) -> None:
    """Raises ForbiddenError, without a name, if a found record belongs to a name outside the key's prefixes.

    Names in the request are checked by `Key.check`, whose error may contain them.
    """
    if key.prefixes and not all(map(key.may_touch, names)):
        raise ForbiddenError(f"{what} is outside of the key's prefixes", name=None)


def error_for(key: Key, error: TopicsError) -> TopicsError:
    """Returns an error for this key: names outside of its prefixes are null, and are not in the message."""
    if not key.prefixes:
        return error
    named = [(field, error.detail[field]) for field in _NAMING if field in error.detail]
    foreign = {name for _, value in named for name in _names(value) if not key.may_touch(name)}
    if not foreign:
        return error
    shown = copy.copy(error)
    shown.detail = {**error.detail, **{field: _without(foreign, value) for field, value in named}}
    for name in foreign:
        shown.message = shown.message.replace(quoted(name), _UNSAID)
    return shown


def _names(value: object) -> list[str]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]


def _without(foreign: set[str], value: object) -> object:
    if isinstance(value, list):
        return [_without(foreign, one) for one in value]
    return None if value in foreign else value
