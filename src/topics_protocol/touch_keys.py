"""Touch keys, also known as invalidation keys: the names under which clients wait for changes of rows.

Every key is XXH3-64 of a text, written as 16 hex digits; `id` stands for the 8 bytes of a template's id.

    table       "tbl" 0 entity
    template id "tpl" 0 entity 0 field 0 field ...          fields in the order of their names
    template    "tpl" 0 id
    watch       "key" 0 id 0 argument 0 argument ...        any change of a row with these values
    membership  "mem" 0 id 0 argument 0 argument ...        a row comes to these values, or leaves them
    projection  "fld" 0 id 0 field 0 argument ...           this field of a row with these values changes

Arguments stand in the order of their fields. A waiting client computes the same keys from its query.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

try:
    import xxhash
except ImportError as error:
    raise ImportError("touch keys need xxhash. Install it with: pip install 'topics-client[touch]'") from error

from topics_protocol.rfc3339 import rfc3339_to_unix_millis, unix_millis_to_rfc3339

Encoding = Literal["string", "int64", "bool", "datetime", "bytes"]

_HEX = re.compile(r"[0-9a-fA-F]{16}")
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def table_key(entity: str) -> str:
    return _hash(b"tbl", entity.encode())


def template_id(entity: str, fields: Iterable[str]) -> str:
    return _hash(b"tpl", entity.encode(), *(field.encode() for field in sorted(fields)))


def template_key(template: str) -> str:
    return _hash(b"tpl", bytes.fromhex(template))


def watch_key(template: str, arguments: Sequence[str]) -> str:
    return _hash(b"key", bytes.fromhex(template), *(argument.encode() for argument in arguments))


def membership_key(template: str, arguments: Sequence[str]) -> str:
    return _hash(b"mem", bytes.fromhex(template), *(argument.encode() for argument in arguments))


def projection_key(template: str, field: str, arguments: Sequence[str]) -> str:
    return _hash(b"fld", bytes.fromhex(template), field.encode(), *(argument.encode() for argument in arguments))


def key_id(key: str) -> int:
    """The 32 bits that a journal keeps of a key."""
    if _HEX.fullmatch(key):
        return int(key, 16) & 0xFFFF_FFFF
    return xxhash.xxh32_intdigest(key.encode())


def encode_argument(value: Any, encoding: Encoding) -> str | None:
    """A row's value as the argument of a key; None for a value that its encoding cannot express."""
    if encoding == "string" or encoding == "bytes":
        return value if isinstance(value, str) else None
    if encoding == "bool":
        return {True: "true", False: "false"}.get(value) if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if encoding == "int64":
        return _integer(value)
    if isinstance(value, str):
        try:
            return unix_millis_to_rfc3339(rfc3339_to_unix_millis(value.strip()))
        except ValueError:
            return None
    return unix_millis_to_rfc3339(value) if isinstance(value, int | float) else None


def _integer(value: Any) -> str | None:
    if isinstance(value, str):
        if _INTEGER.fullmatch(value.strip()) is None:
            return None
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, int) and _INT64_MIN <= value <= _INT64_MAX else None


def _hash(*parts: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(b"\0".join(parts))
