"""Contract of a stream: schemas, lenses, routing key, search fields and profile."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from topics_client.requests import Request, encode_values
from topics_client.streams.contents import stream_path
from topics_client.transport.http1 import Response

Document = Mapping[str, object]
"""A JSON object."""

_LENS_API_VERSION = "durable.lens/v1"


class RoutingKey(msgspec.Struct, frozen=True, rename="camel"):
    """Which member of an entry is its key."""

    json_pointer: str
    required: bool = False
    """Whether an entry without it is refused."""


class Lens(msgspec.Struct, frozen=True):
    """The way from one version of a schema to the next; the rest of the document follows from the stream.

    `ops` are those of the protocol, such as `{"op": "rename", "from": "/buyer", "to": "/customer"}`.
    """

    source: int
    """The version that it leads from, which is the current one."""
    ops: Sequence[Document]
    description: str = ""


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """Where a version begins."""

    offset: int
    """The number of its first entry, counted from 0."""
    version: int


class StreamSchema(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The registry of a stream."""

    stream: str = msgspec.field(name="schema")
    current_version: int
    """0 before the first schema."""
    boundaries: list[Boundary] = []
    schemas: dict[int, Any] = {}
    """By version."""
    lenses: dict[int, dict[str, Any]] = {}
    """By the version that each leads from."""
    routing_key: RoutingKey | None = None
    search: dict[str, Any] | None = None

    @property
    def current(self) -> Any:
        """The schema that entries have to meet; None before the first one."""
        return self.schemas.get(self.current_version)


class SkippedMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of entries that is not proposed as a field."""

    pointer: str
    reason: str


class InferredSearch(msgspec.Struct, frozen=True, kw_only=True):
    """A search description that the server proposes."""

    search: dict[str, Any]
    """The argument of `update_schema`: `{"fields": {"status": "integer", ...}}`."""
    sampled: dict[str, int]
    """The numbers of examined `entries`, JSON `objects` and `bytes`."""
    skipped: list[SkippedMember] = []


class StreamProfile(msgspec.Struct, frozen=True):
    """The profile of a stream."""

    kind: str
    """`generic`, `evlog`, `metrics`, `otel-traces` or `state-protocol`; a newer server may know more."""
    settings: dict[str, Any] = {}
    """Further settings, such as `redactKeys` of evlog."""


def get_schema(name: str) -> Request[StreamSchema]:
    """Returns the schema registry: schemas, lenses, version boundaries, routing key and search description."""
    return Request(method="GET", target=stream_path(name, "/_schema"), answer=StreamSchema)


def update_schema(
    name: str,
    *,
    schema: Document | None = None,
    lens: Lens | Document | None = None,
    routing_key: RoutingKey | Document | UnsetType | None = UNSET,
    search: Document | UnsetType | None = UNSET,
) -> Request[StreamSchema]:
    """Changes the schema registry of a stream and returns it. Arguments that are not given change nothing.

    The first `schema` requires an empty stream, every later one a `lens` that converts entries to it. None removes the
    routing key or the search description. An update with a schema is not retried after a lost answer; `get_schema`
    shows whether it was applied.
    """
    given: dict[str, object] = {}
    if schema is not None:
        given["schema"] = schema
    if lens is not None:
        given["lens"] = _lens_document(name, lens) if isinstance(lens, Lens) else lens
    if routing_key is not UNSET:
        given["routingKey"] = routing_key
    if search is not UNSET:
        given["search"] = search
    if not given:
        raise TypeError("update_schema takes a schema, a routing_key or a search, at least one of them")
    return Request(
        method="POST",
        target=stream_path(name, "/_schema"),
        body=encode_values(given),
        answer=StreamSchema,
        repeatable=schema is None,
    )


def infer_search(name: str, *, entries: int | None = None) -> Request[InferredSearch]:
    """Proposes a search description from the newest `entries` of a stream, 200 by default and at most 1000. It changes
    nothing: `update_schema(name, search=found.search)` installs it."""
    return Request(
        method="POST",
        target=stream_path(name, "/_schema/infer"),
        body=encode_values({} if entries is None else {"entries": entries}),
        answer=InferredSearch,
        repeatable=True,
    )


def get_profile(name: str) -> Request[StreamProfile]:
    """Returns the profile of a stream."""
    return Request(method="GET", target=stream_path(name, "/_profile"), answer=StreamProfile, read=_read_profile)


def set_profile(name: str, profile: str | StreamProfile | Document) -> Request[StreamProfile]:
    """Sets the profile of a stream: the name of a kind, or a profile with settings. Returns the profile."""
    if isinstance(profile, str):
        profile = StreamProfile(profile)
    document = {"kind": profile.kind, **profile.settings} if isinstance(profile, StreamProfile) else profile
    return Request(
        method="POST",
        target=stream_path(name, "/_profile"),
        body=encode_values({"profile": document}),
        answer=StreamProfile,
        read=_read_profile,
    )


def _lens_document(stream: str, lens: Lens) -> dict[str, object]:
    about = {"description": lens.description} if lens.description else {}
    return {
        "apiVersion": _LENS_API_VERSION,
        "schema": stream.strip("/"),
        "from": lens.source,
        "to": lens.source + 1,
        **about,
        "ops": list(lens.ops),
    }


def profile_of(document: dict[str, Any]) -> StreamProfile:
    return StreamProfile(document.pop("kind"), document)


class _Profile(msgspec.Struct):
    profile: dict[str, Any]


def _read_profile(response: Response) -> StreamProfile:
    return profile_of(msgspec.json.decode(response.content, type=_Profile).profile)
