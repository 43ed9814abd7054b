"""The schema registry of a stream: its versions, its routing key and its search description, as one value.

A version has a schema, the lens that leads to it, and a boundary: the number of its first entry. The documents are kept
as JSON texts, because their own formats have versions. The encoding in the log and in snapshots is

    u8 1 | msgpack [[[schema, lens | nil, boundary], ...], [jsonPointer, required] | nil, search | nil]

A reader ignores further fields at the end of any of these lists, and rejects another first byte.

Promotion (schema migration on read): converts entries of older schema versions to the current version.

A proven lens never fails on an entry that was valid when it was written (`topics.schema.lens_proof`). An entry that was
never validated, because it was written through /v0, or that would grow beyond the limit, is returned unchanged: a
reader can skip one unexpected entry, but not an error.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import Any, overload

import msgspec
from msgspec import UNSET, UnsetType

from topics.model.errors import InvalidRequestError
from topics.schema.documents import (
    MAX_PROMOTED_BYTES,
    MAX_PROMOTION_STEPS,
    MAX_PROOF_STEPS,
    MAX_REGISTRY_BYTES,
    RoutingKey,
    check_api_version,
    convert,
    decode,
    encode,
    parse,
    parse_pointer,
    parse_request,
    refuse_others,
)
from topics.schema.lens_proof import prove_lens, resolve_defaults
from topics.schema.lenses import (
    In,
    Lens,
    Map,
    Op,
    Step,
    check_lens_place,
    compile_ops,
    count_ops,
    growth,
    parse_lens,
    run,
)
from topics.schema.search_fields import SearchConfig, is_short, parse_search
from topics.schema.validation import (
    COMPILED_PER_BYTE,
    EntryValidator,
    Incremental,
    check_schema_incrementally,
    pattern_bytes,
    run_to_end,
)

_encode = msgspec.json.Encoder().encode
_NOT_VALID = (LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""The exceptions of ops on an entry that was never valid."""


class CompiledLens:
    """The migration from one version to the next."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.steps: tuple[Step, ...] = compile_ops(ops)
        self.parts = [(compile_ops((op,)), growth((op,))) for op in ops]
        """The same migration op by op, each with the possible growth of an entry."""
        self.factor, self.extra = growth(ops)
        self.ops, self.mapped_ops = count_ops(ops), sum([count_ops(op.ops) for op in ops if isinstance(op, Map)])
        self.mapped_ops += sum([count_ops(op.ops) for op in ops if isinstance(op, In)])
        """The number of ops that may run for each element of an array."""


_CHAINS_MAX = 16
"""The number of cached composed chains of a stream; others are composed again when needed."""


class Chain:
    """The migration from one version to the current one."""

    def __init__(self, lenses: Sequence[CompiledLens]) -> None:
        self._lenses = lenses
        self.steps: tuple[Step, ...] = tuple([step for lens in lenses for step in lens.steps])
        self._ops, self._mapped_ops = sum([one.ops for one in lenses]), sum([one.mapped_ops for one in lenses])
        factor, extra = 1, 0
        for lens in lenses:
            factor, extra = factor * lens.factor, extra * lens.factor + lens.extra
        self._safe_bytes = (MAX_PROMOTED_BYTES - extra) // factor
        """An entry of at most this size cannot grow beyond the limit, so its size is not checked."""

    def steps_for(self, size: int) -> int:
        """Returns the maximum number of ops for an entry of this size: an element of an array has at least two
        bytes."""
        return self._ops + self._mapped_ops * (size // 2)

    def steps_of(self, raw: bytes | memoryview) -> int:
        """Returns the maximum number of ops for an entry: elements of an array are separated by commas."""
        return self._ops + (self._mapped_ops * (bytes(raw).count(b",") + 1) if self._mapped_ops else 0)

    def promote(self, raw: bytes | memoryview) -> bytes | memoryview:
        """Returns the text of the promoted entry; `raw` itself if it cannot be promoted."""
        if self.steps_for(len(raw)) > MAX_PROMOTION_STEPS and self.steps_of(raw) > MAX_PROMOTION_STEPS:
            return raw
        try:
            value = self.apply(decode(raw), len(raw))
        except _NOT_VALID:
            return raw
        return _encode(value)

    def promote_all(self, raws: Sequence[bytes | memoryview]) -> bytes | None:
        """Returns the texts of several promoted entries joined by commas, much faster than one by one; None if an entry
        needs `promote`."""
        if max(map(len, raws)) > self._safe_bytes:
            return None
        try:
            values = decode(b"[%b]" % b",".join(raws))
            for step in self.steps:
                values = list(map(step, values))
        except _NOT_VALID:
            return None
        return _encode(values)[1:-1] if len(values) == len(raws) else None

    def apply(self, value: Any, size: int) -> Any:
        """Promotes `value` in place and returns it. Raises the errors of its ops on an invalid value."""
        if size <= self._safe_bytes:
            return run(self.steps, value)
        # Measured only if it may have grown too large since the last time, because measuring takes as long as encoding.
        bound = size
        for lens in self._lenses:
            if bound * lens.factor + lens.extra <= MAX_PROMOTED_BYTES:
                value, bound = run(lens.steps, value), bound * lens.factor + lens.extra
                continue
            for steps, (factor, extra) in lens.parts:
                value, bound = run(steps, value), bound * factor + extra
                if bound > MAX_PROMOTED_BYTES:
                    left = _left(value, MAX_PROMOTED_BYTES)
                    if left < 0:
                        raise ValueError("the entry grows too large")
                    bound = MAX_PROMOTED_BYTES - left
        return value


class Promoter:
    """The promotions of a stream.

    `boundaries` are the first entries of versions 1, 2 and so on; `ops` are the ops of the lenses from each version to
    the next, with defaults filled in.
    """

    def __init__(
        self, boundaries: Sequence[int], ops: Sequence[Sequence[Op]], costs: Sequence[int] | None = None
    ) -> None:
        """`costs` are upper bounds of the numbers of ops, if these are unknown without parsing the lenses."""
        if boundaries and len(ops) != len(boundaries) - 1:
            raise ValueError("every version but the last one needs a lens")
        self._boundaries = list(boundaries)
        self._ops = ops
        self._costs = list(map(len, ops)) if costs is None else costs
        self._lenses: dict[int, CompiledLens] = {}
        self._chains: dict[int, Chain] = {}

    @property
    def current_version(self) -> int:
        return len(self._boundaries)

    @property
    def current_from(self) -> int:
        """The number of the first entry of the current version; earlier entries are promoted."""
        return self._boundaries[-1] if self._boundaries else 0

    def version_of(self, entry: int) -> int:
        """The version of an entry; 0 before the first version."""
        return bisect_right(self._boundaries, entry)

    def is_current(self, version: int) -> bool:
        return version == len(self._boundaries) or version == 0

    def chain(self, version: int) -> Chain:
        """The migration from `version` to the current one, composed on first use of lenses that are compiled once."""
        chain = self._chains.get(version)
        if chain is None:
            while len(self._chains) >= _CHAINS_MAX:
                self._chains.pop(next(iter(self._chains)), None)
            lenses = [self._lens(number) for number in range(version - 1, len(self._ops))]
            chain = self._chains[version] = Chain(lenses)
        return chain

    def _lens(self, number: int) -> CompiledLens:
        lens = self._lenses.get(number)
        if lens is None:
            lens = self._lenses[number] = CompiledLens(self._ops[number])
        return lens

    def ops_to_compile(self, version: int) -> int:
        """Returns the maximum number of ops that are parsed and compiled for the chain from `version`."""
        if version in self._chains:
            return 0
        missing = [number for number in range(version - 1, len(self._ops)) if number not in self._lenses]
        return sum([self._costs[number] for number in missing])

    def last_of(self, version: int) -> int:
        """Returns the number of the last entry of a version that is not the current one."""
        return self._boundaries[version] - 1

    def promote(self, entry: int, raw: bytes | memoryview) -> bytes | memoryview:
        version = self.version_of(entry)
        return raw if self.is_current(version) else self.chain(version).promote(raw)


def _left(value: Any, room: int) -> int:
    """Returns `room` minus the approximate length of the value's text; negative if it does not fit.

    It slightly underestimates and stops early, so that a text beyond the limit is never encoded.
    """
    if isinstance(value, str):
        return room - len(value) - 2
    if isinstance(value, dict):
        for name, member in value.items():
            room = _left(member, room - len(name) - 4)
            if room < 0:
                break
        return room
    if isinstance(value, list):
        for element in value:
            room = _left(element, room - 1)
            if room < 0:
                break
        return room
    return room - 1


REGISTRY_API_VERSION = "durable.streams/schema-registry/v1"
_FORMAT = 1
_PARSED_BYTES = 500
"""Bytes of a document that are parsed in the time in which an op is compiled."""


class Version(msgspec.Struct, array_like=True, frozen=True):
    schema: bytes
    lens: bytes | None
    """The lens from the previous version; None for the first one."""
    boundary: int


class Registry(msgspec.Struct, frozen=True, dict=True):
    """The installed schema versions, routing key and search description of one stream; empty at first."""

    versions: tuple[Version, ...] = ()
    routing_key: RoutingKey | None = None
    search: bytes | None = None

    @property
    def current_version(self) -> int:
        return len(self.versions)

    @property
    def size(self) -> int:
        """The bytes of all its documents."""
        texts = [text for version in self.versions for text in (version.schema, version.lens or b"")]
        return sum(map(len, texts)) + len(self.search or b"")

    @cached_property
    def search_config(self) -> SearchConfig | None:
        return None if self.search is None else parse_search(parse("search", self.search))

    @cached_property
    def validator(self) -> EntryValidator | None:
        """The schema of the current version; None before the first."""
        return EntryValidator(self.schema(self.current_version)) if self.versions else None

    @cached_property
    def promoter(self) -> Promoter:
        lenses = [version.lens or b"" for version in self.versions[1:]]
        schemas = [version.schema for version in self.versions[1:]]
        sizes = [(len(lens) + len(schema)) // _PARSED_BYTES for lens, schema in zip(lenses, schemas, strict=True)]
        costs = [lens.count(b'"op"') + size for lens, size in zip(lenses, sizes, strict=True)]
        return Promoter([version.boundary for version in self.versions], _StoredOps(self), costs)

    @property
    def compiled_bytes(self) -> int:
        """The estimated memory of validator and promoter."""
        patterns = pattern_bytes(self.schema(self.current_version)) if self.versions else 0
        return COMPILED_PER_BYTE * self.size + patterns

    def forget_compiled(self) -> None:
        """Drops validator and promoter; they are built again when needed."""
        for name in ("validator", "promoter"):
            self.__dict__.pop(name, None)

    def schema(self, version: int) -> dict[str, Any]:
        document: dict[str, Any] = parse("schema", self.versions[version - 1].schema)
        return document

    def lens(self, version: int) -> Lens:
        """Returns the lens from `version` to the next one."""
        return parse_lens(parse("lens", self.versions[version].lens or b"null"))

    def ops(self, version: int) -> tuple[Op, ...]:
        """Returns the ops of that lens, ready to be compiled."""
        return resolve_defaults(self.lens(version).ops, self.schema(version + 1))


class _StoredOps(Sequence[Sequence[Op]]):
    """The ops of the lenses of a registry. They are parsed on demand: thousands take tenths of a second."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def __len__(self) -> int:
        return self._registry.current_version - 1

    @overload
    def __getitem__(self, number: int) -> Sequence[Op]: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[Sequence[Op]]: ...

    def __getitem__(self, number: int | slice) -> Sequence[Op] | Sequence[Sequence[Op]]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        return self._registry.ops(number + 1)


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
    """Raises ValueError for data that no version of this server wrote."""
    if not len(raw) or raw[0] != _FORMAT:
        raise ValueError("a registry in a format that is not known")
    stored = _decode_stored(raw[1:])
    key = None if stored.routing_key is None else RoutingKey(*stored.routing_key)
    return Registry(stored.versions, key, stored.search)


def registry_json(registry: Registry, stream: str) -> bytes:
    """Returns the answer of `GET _schema`."""
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


# Registry updates: pure decisions.
#
#     schema (+ lens, routingKey, search)   the first schema, on an empty stream and without a lens; or the next
#     version,
#                                           with a proven lens, from the next entry on
#     routingKey                            with or without a schema; null clears it
#     search                                needs a version, unless a field of it, or of one installed before, is in the
#                                           short form; null clears it
#
# Parts that an update does not mention stay as they are.

_WHAT = "schemaUpdate"
_KNOWN = frozenset(("apiVersion", "schema", "lens", "routingKey", "search"))


class SchemaUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A well-formed request. Omitted parts are `UNSET`, cleared ones None."""

    schema: dict[str, Any] | UnsetType = UNSET
    lens: dict[str, Any] | UnsetType = UNSET
    routing_key: RoutingKey | UnsetType | None = UNSET
    search: SearchConfig | UnsetType | None = UNSET
    has_short_fields: bool = False
    """Returns whether the search description has fields in the short form."""


def parse_update(body: bytes) -> SchemaUpdate:
    """Parses the body of `POST _schema`, and refuses errors that do not depend on the stream."""
    return run_to_end(parse_update_incrementally(body))


def parse_update_incrementally(body: bytes) -> Incremental[SchemaUpdate]:
    """Like `parse_update`, a few milliseconds at a time."""
    document = parse_request(_WHAT, body)
    refuse_others(_WHAT, document, _KNOWN)
    check_api_version(_WHAT, document, REGISTRY_API_VERSION)
    if not document.keys() & {"schema", "routingKey", "search"}:
        raise InvalidRequestError(f"{_WHAT} must have a schema, a routingKey or a search", field=_WHAT)
    yield
    schema: dict[str, Any] | UnsetType = UNSET
    if "schema" in document:
        schema = yield from check_schema_incrementally(document["schema"])
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
        has_short_fields=is_short(document.get("search")),
    )


def decide_update(
    registry: Registry, update: SchemaUpdate, *, stream: str, empty: bool, next_seq: int, is_json: bool = True,
    proof_steps: int = MAX_PROOF_STEPS,
) -> Registry:  # fmt: skip
    """Returns the registry after the update.

    `next_seq` is the number of the next entry, `empty` states whether the stream has no entries that a first schema
    would have to describe, `is_json` whether its content type is application/json. A proof may make `proof_steps`
    comparisons; with 0 it was made before.
    """
    if not is_json:
        raise InvalidRequestError("a schema registry requires application/json stream content-type", field=_WHAT)
    versions = registry.versions
    if update.schema is not UNSET:
        versions = (*versions, _next_version(registry, update, stream, empty, next_seq, proof_steps))
    if update.search is not UNSET and not versions and registry.search is None and not update.has_short_fields:
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


def _next_version(
    registry: Registry, update: SchemaUpdate, stream: str, empty: bool, next_seq: int, proof_steps: int
) -> Version:
    schema, current = update.schema, registry.current_version
    assert not isinstance(schema, UnsetType)
    if current == 0:
        if update.lens is not UNSET:
            check_lens_place(parse_lens(update.lens), stream, 0)
            raise InvalidRequestError("the first schema has no lens", field="lens")
        if not empty:
            raise InvalidRequestError("first schema requires empty stream", field="schema")
        return Version(encode(schema), None, next_seq)
    if update.lens is UNSET:
        raise InvalidRequestError(f"a schema after version {current} requires a lens", field="lens")
    lens: Lens = parse_lens(update.lens)
    check_lens_place(lens, stream, current)
    if proof_steps:
        prove_lens(lens, registry.schema(current), schema, proof_steps)
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
