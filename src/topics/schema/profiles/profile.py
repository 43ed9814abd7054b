"""Profile interface: the members that every profile has."""

from collections.abc import Sequence
from typing import Any

import msgspec

from topics.model.errors import InvalidRequestError
from topics.schema.documents import MAX_REDACT_KEYS, RoutingKey, encode
from topics.schema.registry import Registry, Version
from topics.schema.search_fields import parse_search


class Profile(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    rename="camel",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """A declared profile. `GET _profile` returns it."""

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def needs_json(self) -> bool:
        """Whether its streams have the content type application/json."""
        return True

    def normalized(self) -> "Profile":
        """Returns the profile with defaults filled in. Refuses invalid values."""
        return self

    def canonical(self) -> "Canonical | None":
        """Returns the registry that the profile installs in an empty stream; None for a profile without a schema.

        All results of `normalise` conform to this schema, so they are not validated again.
        """
        return None

    def unpack(self, raws: Sequence[bytes | msgspec.Raw]) -> Sequence[bytes | msgspec.Raw] | None:
        """Returns the entries of an append if some payloads contain several entries, otherwise None."""
        return None

    def normalise(self, index: int, value: Any, now_ms: int) -> Any:
        """Returns the stored form of an entry; `index` is its position in the batch, for error messages."""
        return value

    def make_plain(self, raws: Sequence[bytes | msgspec.Raw]) -> tuple[list[bytes], list[str | None]] | None:
        """Returns the stored form of a batch and its keys if there is a fast path for it, with the results of
        `normalise` and `key_of`; otherwise None."""
        return None

    def key_of(self, value: Any) -> str | None:
        """Returns the routing key of a stored entry, unless its registry declares another."""
        return None


class Canonical(msgspec.Struct, frozen=True):
    """Returns the registry that a profile installs."""

    schema: dict[str, Any]
    search: dict[str, Any]
    routing_key: RoutingKey | None = None

    def install(self, registry: Registry, next_seq: int) -> Registry:
        """Returns the registry of an empty stream with this profile's schema. An existing routing key stays."""
        search = encode(parse_search(self.search))
        first = Version(encode(self.schema), None, next_seq)
        return Registry((first,), registry.routing_key or self.routing_key, search)


def refusal(index: int, profile: str, problem: str, field: str | None = None) -> InvalidRequestError:
    detail: dict[str, object] = {"index": index} if field is None else {"index": index, "field": field}
    return InvalidRequestError(f"{profile}: {problem}", **detail)


def text_of(value: Any) -> str | None:
    """Returns a text without surrounding blanks; None for an empty text and for any other type."""
    if not isinstance(value, str):
        return None
    return value.strip() or None


def number_of(value: Any) -> int | float | None:
    """Returns a number, given as a number or as text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    if isinstance(value, str) and 0 < len(value.strip()) <= 40:
        try:
            # Only texts that are valid in JSON: Python also parses «1_000», «infinity» and digits of other scripts.
            number = msgspec.json.decode(value.strip())
        except msgspec.DecodeError:
            return None
        return number if isinstance(number, int | float) and not isinstance(number, bool) else None
    return None


def integer_of(value: Any) -> int | None:
    number = number_of(value)
    if number is None or (isinstance(number, float) and not number.is_integer()):
        return None
    return int(number)


def keyword(pointer: str, **flags: Any) -> dict[str, Any]:
    """Returns a field of texts that are matched whole or by prefix."""
    return _field("keyword", pointer, {"exact": True, "prefix": True, "exists": True, "sortable": True, **flags})


def column(kind: str, pointer: str) -> dict[str, Any]:
    """Returns a field of numbers or dates that are compared, sorted and aggregated."""
    flags = ("exact", "column", "exists", "sortable", "aggregatable")
    return _field(kind, pointer, dict.fromkeys(flags, True))


def words(pointer: str) -> dict[str, Any]:
    """Returns a full-text field."""
    return _field("text", pointer, {"analyzer": "unicode_word_v1", "exists": True, "positions": True})


def _field(kind: str, pointer: str, flags: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "bindings": [{"version": 1, "jsonPointer": pointer}], **flags}


# Redaction: secrets are replaced before an entry is stored.

REDACTED = "[REDACTED]"
_NESTED = (dict, list)


def parse_redact_keys(keys: tuple[str, ...], what: str) -> tuple[str, ...]:
    """Returns the keys in the form used for comparison: in lower case, without blanks, distinct."""
    if len(keys) > MAX_REDACT_KEYS:
        raise InvalidRequestError(f"{what} has more than {MAX_REDACT_KEYS} keys", field=what, max=MAX_REDACT_KEYS)
    cleaned = tuple(dict.fromkeys(key.strip().lower() for key in keys))
    if "" in cleaned:
        raise InvalidRequestError(f"{what} must not have empty keys", field=what)
    return cleaned


def redact(value: Any, keys: frozenset[str], found: list[str], path: str = "") -> Any:
    """Returns the value, or a copy in which every member named in `keys` is redacted, at any depth.

    Their paths are added to `found`.
    """
    return _struck(value, keys, found, path) if _has_any(value, keys) else value


def _has_any(value: Any, keys: frozenset[str]) -> bool:
    """Returns whether there is anything to redact; usually not, and then no copy is needed."""
    if type(value) is dict:
        for name, member in value.items():
            if name.lower() in keys or (type(member) in _NESTED and _has_any(member, keys)):
                return True
        return False
    return type(value) is list and any(type(element) in _NESTED and _has_any(element, keys) for element in value)


def _struck(value: Any, keys: frozenset[str], found: list[str], path: str) -> Any:
    if isinstance(value, dict):
        clean = {}
        for name, member in value.items():
            here = f"{path}.{name}" if path else name
            if name.lower() in keys:
                clean[name] = REDACTED
                found.append(here)
            else:
                clean[name] = _struck(member, keys, found, here)
        return clean
    if isinstance(value, list):
        return [
            _struck(element, keys, found, f"{path}.{index}" if path else str(index))
            for index, element in enumerate(value)
        ]
    return value


# The profile `generic`: entries are stored unchanged.


class Generic(Profile, frozen=True, kw_only=True, tag="generic"):
    @property
    def needs_json(self) -> bool:
        return False
