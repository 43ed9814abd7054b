"""The registry of a stream: its versions, its routing key, and its search description, as one value.

A version has a schema, the lens that leads to it, and a boundary: the number of its first entry. The documents are kept
as JSON texts, because their own formats have versions. In the log and in snapshots a registry is

    u8 1 | msgpack [[[schema, lens | nil, boundary], ...], [jsonPointer, required] | nil, search | nil]

A reader takes further fields at the end of any of these lists; another first byte it refuses.
"""

from functools import cached_property
from typing import Any

import msgspec

from topics.schema.documents import encode, parse
from topics.schema.lenses import Lens, Op, parse_lens
from topics.schema.promotion import Promoter
from topics.schema.proofs import settled
from topics.schema.routing_keys import RoutingKey
from topics.schema.search import SearchConfig, parse_search
from topics.schema.validation import EntryValidator

REGISTRY_API_VERSION = "durable.streams/schema-registry/v1"
_FORMAT = 1


class Version(msgspec.Struct, array_like=True, frozen=True):
    schema: bytes
    lens: bytes | None
    """From the version before; None for the first one."""
    boundary: int


class Registry(msgspec.Struct, frozen=True, dict=True):
    """What one stream has installed. Nothing, at first."""

    versions: tuple[Version, ...] = ()
    routing_key: RoutingKey | None = None
    search: bytes | None = None

    @property
    def current_version(self) -> int:
        return len(self.versions)

    @property
    def size(self) -> int:
        """Bytes of all its documents."""
        texts = [text for version in self.versions for text in (version.schema, version.lens or b"")]
        return sum(map(len, texts)) + len(self.search or b"")

    @cached_property
    def search_config(self) -> SearchConfig | None:
        return None if self.search is None else parse_search(parse("search", self.search))

    @cached_property
    def validator(self) -> EntryValidator | None:
        """That of the current version; None before the first."""
        return EntryValidator(self.schema(self.current_version)) if self.versions else None

    @cached_property
    def promoter(self) -> Promoter:
        ops = [self.ops(version) for version in range(1, self.current_version)]
        return Promoter([version.boundary for version in self.versions], ops)

    def schema(self, version: int) -> dict[str, Any]:
        document: dict[str, Any] = parse("schema", self.versions[version - 1].schema)
        return document

    def lens(self, version: int) -> Lens:
        """The lens from `version` to the next one."""
        return parse_lens(parse("lens", self.versions[version].lens or b"null"))

    def ops(self, version: int) -> tuple[Op, ...]:
        """The ops of that lens, ready to be compiled."""
        return settled(self.lens(version).ops, self.schema(version + 1))


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    versions: tuple[Version, ...] = ()
    routing_key: tuple[str, bool] | None = None
    search: bytes | None = None


_encode_stored = msgspec.msgpack.Encoder().encode
_decode_stored = msgspec.msgpack.Decoder(_Stored).decode


def encode_registry(registry: Registry) -> bytes:
    key = registry.routing_key
    pair = None if key is None else (key.json_pointer, key.required)
    return bytes((_FORMAT,)) + _encode_stored(_Stored(registry.versions, pair, registry.search))


def decode_registry(raw: bytes | memoryview) -> Registry:
    """Raises ValueError for what no version of this server wrote."""
    if not len(raw) or raw[0] != _FORMAT:
        raise ValueError("a registry in a format that is not known")
    stored = _decode_stored(raw[1:])
    key = None if stored.routing_key is None else RoutingKey(*stored.routing_key)
    return Registry(stored.versions, key, stored.search)


def registry_json(registry: Registry, stream: str) -> bytes:
    """The registry as `GET _schema` shows it."""
    numbered = list(enumerate(registry.versions, 1))
    document: dict[str, Any] = {
        "apiVersion": REGISTRY_API_VERSION,
        "schema": stream,
        "currentVersion": registry.current_version,
    }
    if registry.routing_key is not None:
        document["routingKey"] = registry.routing_key
    if registry.search is not None:
        document["search"] = msgspec.Raw(registry.search)
    document["boundaries"] = [{"offset": version.boundary, "version": number} for number, version in numbered]
    document["schemas"] = {str(number): msgspec.Raw(version.schema) for number, version in numbered}
    document["lenses"] = {str(number - 1): msgspec.Raw(version.lens) for number, version in numbered if version.lens}
    return encode(document)
