"""What an update makes of a registry: a pure decision.

    schema (+ lens, routingKey, search)   the first schema, on an empty stream and without a lens; or the next version,
                                          with a proven lens, from the next entry on
    routingKey                            with or without a schema; null clears it
    search                                needs a version; null clears it

What an update does not mention stays as it is.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from topics.core.errors import InvalidRequestError
from topics.schema.bits import Steps, in_one_go
from topics.schema.documents import check_api_version, convert, encode, parse_request, refuse_others
from topics.schema.jsonschemas import check_schema_in_steps
from topics.schema.lenses import Lens, check_lens_place, parse_lens
from topics.schema.limits import MAX_REGISTRY_BYTES
from topics.schema.pointers import parse_pointer
from topics.schema.proofs import prove_lens
from topics.schema.registry import REGISTRY_API_VERSION, Registry, Version
from topics.schema.routing_keys import RoutingKey
from topics.schema.search import SearchConfig, parse_search

_WHAT = "schemaUpdate"
_KNOWN = frozenset(("apiVersion", "schema", "lens", "routingKey", "search"))


class SchemaUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is well formed. `UNSET` is what it does not mention, None what it clears."""

    schema: dict[str, Any] | UnsetType = UNSET
    lens: dict[str, Any] | UnsetType = UNSET
    routing_key: RoutingKey | UnsetType | None = UNSET
    search: SearchConfig | UnsetType | None = UNSET


def parse_update(body: bytes) -> SchemaUpdate:
    """Reads the body of `POST _schema`, and refuses whatever needs no look at the stream to be refused."""
    return in_one_go(parse_update_in_steps(body))


def parse_update_in_steps(body: bytes) -> Steps[SchemaUpdate]:
    """`parse_update`, a few milliseconds at a time."""
    document = parse_request(_WHAT, body)
    refuse_others(_WHAT, document, _KNOWN)
    check_api_version(_WHAT, document, REGISTRY_API_VERSION)
    if not document.keys() & {"schema", "routingKey", "search"}:
        raise InvalidRequestError(f"{_WHAT} must have a schema, a routingKey or a search", field=_WHAT)
    yield
    schema: dict[str, Any] | UnsetType = UNSET
    if "schema" in document:
        schema = yield from check_schema_in_steps(document["schema"])
        yield
    lens = document.get("lens", UNSET)
    if lens is None:
        lens = UNSET
    if lens is not UNSET:
        if schema is UNSET:
            raise InvalidRequestError("a lens comes with the schema it leads to", field=f"{_WHAT}.lens")
        parse_lens(lens)
    return SchemaUpdate(
        schema=schema,
        lens=lens,
        routing_key=_parse_routing_key(document.get("routingKey", UNSET)),
        search=_parse_search(document.get("search", UNSET)),
    )


def decide_update(
    registry: Registry, update: SchemaUpdate, *, stream: str, empty: bool, next_seq: int, is_json: bool = True
) -> Registry:
    """The registry after the update. `next_seq` is the number of the entry that comes next, `empty` whether the stream
    holds none that a first schema would have to describe, `is_json` whether its content type is application/json."""
    if not is_json:
        raise InvalidRequestError("a schema registry requires application/json stream content-type", field=_WHAT)
    versions = registry.versions
    if update.schema is not UNSET:
        versions = (*versions, _next_version(registry, update, stream, empty, next_seq))
    if update.search is not UNSET and not versions:
        raise InvalidRequestError("search config requires an installed schema version", field="search")
    decided = Registry(
        versions,
        registry.routing_key if update.routing_key is UNSET else update.routing_key,
        registry.search if update.search is UNSET else (None if update.search is None else encode(update.search)),
    )
    if decided.size > MAX_REGISTRY_BYTES:
        raise InvalidRequestError(
            f"the registry would have more than {MAX_REGISTRY_BYTES} bytes", bytes=decided.size, max=MAX_REGISTRY_BYTES
        )
    return decided


def _next_version(registry: Registry, update: SchemaUpdate, stream: str, empty: bool, next_seq: int) -> Version:
    schema, current = update.schema, registry.current_version
    assert not isinstance(schema, UnsetType)
    if current == 0:
        if update.lens is not UNSET:
            check_lens_place(parse_lens(update.lens), stream, 0)
            raise InvalidRequestError("the first schema takes no lens", field="lens")
        if not empty:
            raise InvalidRequestError("first schema requires empty stream", field="schema")
        return Version(encode(schema), None, next_seq)
    if update.lens is UNSET:
        raise InvalidRequestError(f"a schema after version {current} requires a lens", field="lens")
    lens: Lens = parse_lens(update.lens)
    check_lens_place(lens, stream, current)
    prove_lens(lens, registry.schema(current), schema)
    return Version(encode(schema), encode(update.lens), next_seq)


def _parse_routing_key(document: Any) -> RoutingKey | UnsetType | None:
    if document is None or document is UNSET:
        return document
    routing_key = convert("routingKey", document, RoutingKey)
    if not parse_pointer(routing_key.json_pointer, "routingKey.jsonPointer"):
        raise InvalidRequestError("routingKey.jsonPointer must lead to a member", field="routingKey.jsonPointer")
    return routing_key


def _parse_search(document: Any) -> SearchConfig | UnsetType | None:
    if document is None or document is UNSET:
        return document
    return parse_search(document)
