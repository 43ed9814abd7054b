"""What `__registry__` holds: one entry for each thing that became of a stream.

    {"event": "created", "stream": "orders", "epoch": 7, "at": "2026-03-01T10:00:00.000Z",
     "content_type": "application/json", "profile": "generic", "schema_version": 0, "contract": null,
     "closed": false, "next_offset": "0", "expires_at": null, "forked_from": null}

The event says what happened; everything behind it is how the stream stands after it, so the last entry of a stream is
all that anyone needs, and one that comes twice says the same. The key of an entry is the name of its stream.
"""

from hashlib import blake2b
from typing import Any, Final, Literal

import msgspec

from topics.core.config import TopicConfig
from topics.core.durability import Durability
from topics.core.limits import MIB
from topics.core.moments import write_time
from topics.core.names import REGISTRY_STREAM
from topics.core.records import Record
from topics.engine.streams.state import stream_of
from topics.engine.topic import Topic
from topics.schema.contract import Contract
from topics.schema.documents import encode
from topics.schema.registry import Registry, Version
from topics.streams.contracts import contract_of
from topics.streams.lifecycle import describe
from topics.streams.own_names import own_title

EventName = Literal["created", "schema", "profile", "closed", "deleted"]
EVENTS: Final[tuple[EventName, ...]] = ("created", "schema", "profile", "closed", "deleted")
CAP_BYTES = 32 * MIB
"""About 100,000 entries; the oldest go first."""
CONFIG = TopicConfig(durability=Durability.DISK, cap_bytes=CAP_BYTES)

_TEXT: Final = {"type": "string"}
_OPTIONAL_TEXT: Final = {"type": ["string", "null"]}
_PROPERTIES: Final[dict[str, Any]] = {
    "event": {"enum": list(EVENTS)},
    "stream": _TEXT,
    "epoch": {"type": "integer"},
    "at": _TEXT,
    "content_type": _TEXT,
    "profile": _TEXT,
    "schema_version": {"type": "integer"},
    "contract": _OPTIONAL_TEXT,
    "closed": {"type": "boolean"},
    "next_offset": _TEXT,
    "expires_at": _OPTIONAL_TEXT,
    "forked_from": _OPTIONAL_TEXT,
}
SCHEMA: Final[dict[str, Any]] = {
    "title": own_title(REGISTRY_STREAM), "type": "object", "required": list(_PROPERTIES), "properties": _PROPERTIES,
}  # fmt: skip
CONTRACT = Contract(Registry((Version(encode(SCHEMA), None, 0),)))


class Standing(msgspec.Struct, frozen=True, gc=False):
    """What of an entry tells whether something happened since."""

    stream: str
    epoch: int
    event: EventName = "created"
    profile: str = "generic"
    contract: str | None = None
    closed: bool = False


def event_of(event: EventName, topic: Topic, at_ms: int) -> dict[str, Any]:
    """What happened to a stream, and how it stands after it."""
    info, state = describe(topic), stream_of(topic)
    description = state.description if state is not None else None
    return {
        "event": event,
        "stream": topic.name,
        "epoch": topic.epoch,
        "at": write_time(at_ms),
        "content_type": info.content_type,
        "profile": info.profile,
        "schema_version": 0 if description is None else description.contract.registry.current_version,
        "contract": contract_digest(topic),
        "closed": info.closed,
        "next_offset": str(topic.head),
        "expires_at": None if info.deadline_ms is None else write_time(info.deadline_ms),
        "forked_from": state.fork.source if state is not None and state.fork is not None else None,
    }


def end_of(standing: Standing, at_ms: int) -> dict[str, Any]:
    """The end of a stream of which nothing is left but what the registry says."""
    return {
        "event": "deleted", "stream": standing.stream, "epoch": standing.epoch, "at": write_time(at_ms),
        "content_type": "", "profile": standing.profile, "schema_version": 0, "contract": standing.contract,
        "closed": standing.closed, "next_offset": "0", "expires_at": None, "forked_from": None,
    }  # fmt: skip


def standing_of(topic: Topic) -> Standing:
    """How a stream stands now, as its next entry would say it."""
    # Not by `describe`: this is asked of every stream in the log, and of the offsets in there nothing is compared.
    state, profile = stream_of(topic), contract_of(topic).profile.kind
    closed = state is not None and state.closed
    return Standing(topic.name, topic.epoch, "created", profile, contract_digest(topic), closed)


def contract_digest(topic: Topic) -> str | None:
    """Another one for every other contract; null where the stream promises nothing."""
    state = stream_of(topic)
    if state is None or state.description is None:
        return None
    return blake2b(state.description.raw, digest_size=8).hexdigest()


def record_of(event: dict[str, Any]) -> Record:
    return Record(encode(event), tag=event["stream"])
