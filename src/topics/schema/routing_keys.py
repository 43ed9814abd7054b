"""Routing keys: which member of an entry is its key."""

from collections.abc import Sequence
from typing import Any

import msgspec

from topics.core.errors import InvalidRequestError
from topics.schema.limits import MAX_KEY_BYTES
from topics.schema.pointers import MISSING, finder, parse_pointer


class RoutingKey(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    json_pointer: str
    required: bool


class KeyExtractor:
    """The keys of entries, by the pointer of a registry."""

    def __init__(self, routing_key: RoutingKey) -> None:
        self._pointer = routing_key.json_pointer
        self._required = routing_key.required
        self._find = finder(parse_pointer(routing_key.json_pointer, "routingKey.jsonPointer"))

    def keys_of(self, values: Sequence[Any]) -> list[str | None]:
        """One key an entry; None for an entry that has none and needs none."""
        return [self._key_of(index, value) for index, value in enumerate(values)]

    def _key_of(self, index: int, value: Any) -> str | None:
        found = self._find(value)
        if type(found) is str:
            # A character has at most four bytes: most keys are known to be short without being encoded.
            if len(found) * 4 > MAX_KEY_BYTES and len(found.encode()) > MAX_KEY_BYTES:
                raise self._refusal(index, f"has more than {MAX_KEY_BYTES} bytes")
            return found
        if found is not MISSING:
            raise self._refusal(index, "must be a string")
        if self._required:
            raise self._refusal(index, "is missing")
        return None

    def _refusal(self, index: int, problem: str) -> InvalidRequestError:
        return InvalidRequestError(f"the routing key {problem}", index=index, field=self._pointer)
