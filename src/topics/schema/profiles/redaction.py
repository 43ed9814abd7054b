"""Redaction: secrets are struck out before an entry is stored."""

from typing import Any

from topics.core.errors import InvalidRequestError
from topics.schema.limits import MAX_REDACT_KEYS

REDACTED = "[REDACTED]"
_NESTED = (dict, list)


def parse_redact_keys(keys: tuple[str, ...], what: str) -> tuple[str, ...]:
    """The keys as they are compared: in lower case, without blanks, each once."""
    if len(keys) > MAX_REDACT_KEYS:
        raise InvalidRequestError(f"{what} has more than {MAX_REDACT_KEYS} keys", field=what, max=MAX_REDACT_KEYS)
    cleaned = tuple(dict.fromkeys(key.strip().lower() for key in keys))
    if "" in cleaned:
        raise InvalidRequestError(f"{what} must not have empty keys", field=what)
    return cleaned


def redact(value: Any, keys: frozenset[str], found: list[str], path: str = "") -> Any:
    """The value, or a copy with every member whose name is one of `keys` struck out, at any depth. Their paths go to
    `found`."""
    return _struck(value, keys, found, path) if _has_any(value, keys) else value


def _has_any(value: Any, keys: frozenset[str]) -> bool:
    """Whether there is something to strike out; mostly there is not, and nothing has to be copied."""
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
