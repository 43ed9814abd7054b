"""Contract updates of a stream: schema, routing key, search description, profile.

An update is a change of the topic like an append: decided on the staged state and ordered in the topic's log. So its
boundary is the number of the next entry; entries before it met the old schema, entries after it meet the new one.
"""

from collections.abc import Callable
from functools import partial

import msgspec

from topics.engine.engine import Engine
from topics.engine.write_path import Change, Gate
from topics.log.commit_requests import CommitTiming
from topics.log.frame import FrameKind
from topics.model.errors import StreamClosedError, TopicsError
from topics.schema.contract import Contract, decide_profile, parse_profile_update
from topics.schema.documents import INLINE_PROOF_STEPS
from topics.schema.lens_proof import ProofTooLongError
from topics.schema.registry import Registry, SchemaUpdate, decide_update, parse_update
from topics.streams.chunked_validation import Description
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
        self._update_schema(name, parse_update(body) if isinstance(body, bytes) else body, done, None)

    def _update_schema(self, name: str, update: SchemaUpdate, done: ContractDone, proven: Registry | None) -> None:
        """Decide an update. A proof that takes long is made by a thread, and the update is decided again
        afterwards. The proof counts if the registry is still the same."""
        proof: Callable[[], Registry] | None = None
        about: Registry | None = None

        def decide(contract: Contract, place: Place) -> Contract:
            nonlocal proof, about
            about = contract.registry
            updated = partial(
                decide_update, about, update, stream=place.stream, empty=place.empty, next_seq=place.next_entry,
                is_json=place.is_json,
            )  # fmt: skip
            proof = updated
            return Contract(updated(proof_steps=0 if about is proven else INLINE_PROOF_STEPS), contract.profile)

        try:
            self._change(name, decide, "schema", done)
        except ProofTooLongError:
            assert proof is not None

            def then(outcome: object) -> None:
                if isinstance(outcome, Exception):
                    done(outcome if isinstance(outcome, TopicsError) else TopicsError(f"a proof failed: {outcome}"))
                    return
                try:
                    self._update_schema(name, update, done, about)
                except TopicsError as error:
                    done(error)

            self._engine.in_background(proof, then, name)

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
            engine.write_path.acknowledge(topic, done, description.contract)

        def failed(error: TopicsError) -> None:
            state.unstage(error)
            done(error)

        frame = (FrameKind.STREAM_CONTRACT, description.raw, b"")
        engine.write_path.log(Change(engine.write_path, topic, (frame,), applied, failed), Gate.SYNC)
