"""What a stream promises about its entries, changed: a schema, a routing key, a search description, a profile.

An update is a change of the topic like an append. It is decided on what is on its way already and it is ordered in the
topic's log, so its boundary is the number of the very next entry: what was decided before it is in front of that, and
what comes after it has met the new schema.
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
from topics.streams.stream_state import JSON_TYPE, StreamChange, check_visible, stream_of

ContractDone = Callable[[Contract | TopicsError], None]
_NOTHING = Contract()


class Place(msgspec.Struct, frozen=True):
    """Where a stream stands when an update is decided, everything on its way included."""

    stream: str
    empty: bool
    """Whether nothing was ever appended."""
    next_entry: int
    """The number of the entry that comes next, counted from 0."""
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
        core = self._engine.core
        core.check_accepting()
        topic = check_visible(core.directory.find(name), name)
        known = stream_of(topic)
        if known is not None and (known.closed or (known.staged is not None and known.staged.closed)):
            raise StreamClosedError(name)
        # Before it is decided: single records that came earlier in this tick have their seqs then.
        core.path.check(topic)
        held = known.staged_description if known is not None else None
        content_type = known.content_type if known is not None else JSON_TYPE
        place = Place(name, topic.staged_head == 0, topic.staged_head, is_json(content_type))
        description = Description(decide(held.contract if held is not None else _NOTHING, place))
        self._feature.renew(topic)
        # Only now: a topic that is refused an update stays as plain as it was.
        state = self._feature.state(topic)
        state.describe(description)

        def applied(timing: CommitTiming) -> None:
            state.description = description
            state.unstage(None)
            self._feature.tell(change, topic)
            done(description.contract)

        def failed(error: TopicsError) -> None:
            state.unstage(error)
            done(error)

        frame = (FrameKind.STREAM_CONTRACT, description.raw, b"")
        core.path.log(Change(core.path, topic, (frame,), applied, failed), Gate.SYNC)


def contract_of(topic: Topic) -> Contract:
    """What a stream promises about its entries, as readers see it."""
    state = stream_of(topic)
    return _NOTHING if state is None or state.description is None else state.description.contract


def has_versions(topic: Topic) -> bool:
    """Whether entries may one day be shown otherwise than they are now: only a stream that has a schema gets lenses."""
    return contract_of(topic).registry.current_version > 0


def check_own_key(description: Description, key: str | None) -> None:
    """Refuses a key beside those that entries bring themselves."""
    if key is not None and description.has_routing_key:
        raise InvalidRequestError(
            "Stream-Key not allowed when routingKey is configured", field="Stream-Key", reason=REASON
        )
