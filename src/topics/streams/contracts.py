"""Contract updates of a stream: schema, routing key, search description, profile.

An update is a change of the topic like an append: decided on the staged state and ordered in the topic's log. So its
boundary is the number of the next entry; entries before it met the old schema, entries after it meet the new one.
"""

from collections.abc import Callable

import msgspec

from topics.engine.engine import Engine
from topics.engine.topic import Topic
from topics.engine.write_path import Change, Gate
from topics.log.commit_requests import CommitTiming
from topics.log.frame import FrameKind
from topics.model.errors import InvalidRequestError, StreamClosedError, TopicsError
from topics.schema.contract import Contract, decide_profile, parse_profile_update
from topics.schema.registry import SchemaUpdate, decide_update, parse_update
from topics.streams.chunked_validation import REASON, Description
from topics.streams.entry_encoding import is_json
from topics.streams.stream_state import CONTRACT_FACTOR, JSON_TYPE, StreamChange, check_visible, stream_of

ContractDone = Callable[[Contract | TopicsError], None]
_NOTHING = Contract()


class Place(msgspec.Struct, frozen=True):
    """The staged state of a stream when an update is decided."""

    stream: str
    empty: bool
    """Whether no entry was ever appended."""
    next_entry: int
    """The number of the next entry, counted from 0."""
    is_json: bool


Decide = Callable[[Contract, Place], Contract]


class Contracts:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._feature = engine.streams

    def update_schema(self, name: str, body: bytes | SchemaUpdate, done: ContractDone) -> None:
        update = parse_update(body) if isinstance(body, bytes) else body

        def decide(contract: Contract, place: Place) -> Contract:
            registry = decide_update(
                contract.registry, update, stream=place.stream, empty=place.empty, next_seq=place.next_entry,
                is_json=place.is_json,
            )  # fmt: skip
            return Contract(registry, contract.profile)

        self._change(name, decide, "schema", done)

    def update_profile(self, name: str, body: bytes, done: ContractDone) -> None:
        profile = parse_profile_update(body)

        def decide(contract: Contract, place: Place) -> Contract:
            return decide_profile(
                contract, profile, is_json=place.is_json, empty=place.empty, next_seq=place.next_entry
            )

        self._change(name, decide, "profile", done)

    def _change(self, name: str, decide: Decide, change: StreamChange, done: ContractDone) -> None:
        engine = self._engine
        engine.check_accepting()
        topic = check_visible(engine.find(name), name)
        known = stream_of(topic)
        if known is not None and (known.closed or (known.staged is not None and known.staged.closed)):
            raise StreamClosedError(name)
        # First flush coalesced records of this tick, so that they have seqs before the update is decided.
        engine.write_path.check(topic)
        held = known.staged_description if known is not None else None
        content_type = known.content_type if known is not None else JSON_TYPE
        place = Place(name, topic.staged_head == 0, topic.staged_head, is_json(content_type))
        description = Description(decide(held.contract if held is not None else _NOTHING, place))
        if held is None or len(description.raw) > len(held.raw):
            self._feature.check_memory(topic, CONTRACT_FACTOR * len(description.raw))
        self._feature.renew(topic)
        # Only now: a topic whose update is refused does not become a stream.
        state = self._feature.state(topic)
        state.describe(description)

        def applied(timing: CommitTiming) -> None:
            state.description = description
            state.unstage(None)
            self._feature.kept(topic)
            self._feature.emit_change(change, topic)
            done(description.contract)

        def failed(error: TopicsError) -> None:
            state.unstage(error)
            done(error)

        frame = (FrameKind.STREAM_CONTRACT, description.raw, b"")
        engine.write_path.log(Change(engine.write_path, topic, (frame,), applied, failed), Gate.SYNC)


def contract_of(topic: Topic) -> Contract:
    """The contract of a stream as readers see it."""
    state = stream_of(topic)
    return _NOTHING if state is None or state.description is None else state.description.contract


def has_versions(topic: Topic) -> bool:
    """Whether lenses may change how entries are shown: only for a stream with a schema."""
    return contract_of(topic).registry.current_version > 0


def check_own_key(description: Description, key: str | None) -> None:
    """Refuse an explicit key where the routing key comes from the entries."""
    if key is not None and description.has_routing_key:
        raise InvalidRequestError(
            "Stream-Key not allowed when routingKey is configured", field="Stream-Key", reason=REASON
        )
