"""Routers in recovery and in checkpoints: what their frames did when they were logged, done again.

A forward is a frame of its destination and moves a cursor of its source. The two may be in different shards, which are
read one after the other, and the source may be gone by the end of the log. So the moves are kept until everything is
read, and then reach the routers that are left. A router is known by an id of its own: one that was deleted and created
again under the same name is another.
"""

import logging

from topics.core.findings import Finding
from topics.core.loss import LossReason
from topics.engine.core import EngineCore
from topics.engine.features import Rebuild
from topics.engine.routing.log_index import LogIndex, Piece
from topics.engine.routing.registry import PART, Registry, Router, RouterPart, make_part, part_of, rules_of
from topics.engine.state.runs import Block
from topics.engine.streams.state import is_retired
from topics.engine.topic import Topic
from topics.formats.frame import Frame, FrameKind
from topics.formats.routing import (
    Forward,
    decode_forward,
    decode_router,
    decode_routers,
    decode_unroute,
    encode_routers,
)
from topics.storage.replay import LogDamaged

_log = logging.getLogger(__name__)


class RouterFeature:
    """Implements `engine.features.Feature`."""

    name = PART
    kinds = frozenset({FrameKind.ROUTER, FrameKind.UNROUTE, FrameKind.FORWARD})

    def __init__(self, core: EngineCore, registry: Registry) -> None:
        self._core = core
        self._registry = registry
        self._sources: set[int] = set()
        """Topics whose frames a forward may refer to, whatever became of them since."""
        self._moved: dict[int, tuple[int, int]] = {}
        """By router id: the cursor, and how many copies were made."""
        self._index: LogIndex | None = None

    # Snapshots

    def save(self, topic: Topic) -> bytes:
        part = part_of(topic)
        if part is None or not (part.routers or part.hops):
            return b""
        return encode_routers(part.state())

    def load(self, topic: Topic, part: bytes) -> None:
        state, loaded = decode_routers(part), RouterPart()
        loaded.routers = {router.router_id: Router(router, topic) for router in state.routers}
        loaded.hops = list(state.hops)
        topic.parts = {**(topic.parts or {}), PART: loaded}
        self._sources.add(topic.id)

    # The log

    def replay(self, topic: Topic, frame: Frame, rebuild: Rebuild) -> None:
        if frame.kind is FrameKind.ROUTER:
            self._put(topic, frame)
        elif frame.kind is FrameKind.UNROUTE:
            make_part(topic).routers.pop(decode_unroute(frame.body), None)
        else:
            self.forward(topic, decode_forward(frame.body), rebuild)

    def _put(self, topic: Topic, frame: Frame) -> None:
        state, part = decode_router(frame.body), make_part(topic)
        self._sources.add(topic.id)
        known = part.routers.get(state.router_id)
        if known is None:
            part.routers[state.router_id] = Router(state, topic)
        else:
            known.rules, known.cursor = rules_of(state), max(known.cursor, state.cursor)

    def forward(self, topic: Topic, forward: Forward, rebuild: Rebuild) -> None:
        if forward.first_seq != topic.head + 1:
            missing = (topic.head + 1, forward.first_seq - 1)
            raise LogDamaged(
                Finding(
                    "wal", f"records {missing[0]} to {missing[1]} are missing", seq_range=missing, topic=topic.name
                ),
                None,
            )
        lost_upto = topic.head + forward.lost
        if forward.lost:
            self._core.applier.gap(topic, forward.first_seq, lost_upto, LossReason.SOURCE_TRIM)
        if forward.count:
            self._copy(topic, forward, rebuild)
        topic.next_base = forward.next_base
        topic.last_ts = max(topic.last_ts, forward.ts)
        if forward.hops:
            make_part(topic).note_hops(lost_upto + 1, forward.last_seq, forward.hops)
        cursor, copied = self._moved.get(forward.router_id, (0, 0))
        self._moved[forward.router_id] = (max(cursor, forward.cursor), copied + forward.count)

    def _copy(self, topic: Topic, forward: Forward, rebuild: Rebuild) -> None:
        """Makes the copies again. What they were made of may never have been synced, and have gone with the power."""
        missing, missing_bytes = forward.count, forward.payload_bytes
        for piece in self._pieces(forward, rebuild):
            _lose_upto(topic, piece.first_seq - 1, rebuild)
            text, rows, payload_bytes, traits = piece.fragments
            block = Block(
                piece.first_seq, forward.ts, payload_bytes, piece.base, traits, None, rows, text, forward.written
            )
            self._core.applier.append(topic, block)
            missing, missing_bytes = missing - piece.count, missing_bytes - payload_bytes
        _lose_upto(topic, forward.last_seq, rebuild)
        if missing:
            self._core.retention.make_room(topic, missing, missing_bytes)

    def _pieces(self, forward: Forward, rebuild: Rebuild) -> list[Piece]:
        if self._index is None:
            self._index = LogIndex(self._sources, rebuild.walk_log)
        pieces = self._index.copies(forward)
        whole = len(pieces) == 1 and pieces[0].count == forward.count
        if whole and len(pieces[0].fragments.text) != forward.text_length:
            raise ValueError("the copies of a forward are not what they were when it was logged")
        return pieces

    # The end

    def may_sleep(self, topic: Topic) -> bool:
        return False

    def settle(self) -> None:
        core, registry = self._core, self._registry
        self._index = None
        routers = [r for t in core.topics.values() if (part := part_of(t)) is not None for r in part.routers.values()]
        for router in sorted(routers, key=lambda router: (router.created_ts, router.id)):
            self._settle(router)
        for topic in core.topics.values():
            part = part_of(topic)
            if part is not None:
                # The checkpoint that ends a recovery leaves nothing of the log.
                part.wal_floor = topic.head
                part.forget_hops()
        self._moved, self._sources = {}, set()
        registry.mark_cycles()

    def _settle(self, router: Router) -> None:
        core, registry, source = self._core, self._registry, router.source
        part = part_of(source)
        assert part is not None
        dest = core.topic_at(router.dest_id)
        if dest is None or is_retired(dest) or is_retired(source):
            # It went with its source or its destination, whose end is the only frame that says so.
            part.routers.pop(router.id)
            return
        older = registry.by_name.get(router.name)
        if older is not None:
            # A name is given out once at a time: the creation of the older one failed with its frame in the log.
            _log.warning("a router whose creation had failed is left out", extra={"router": router.name})
            registry.remove(older)
        cursor, copied = self._moved.get(router.id, (0, 0))
        # A class that promises nothing may have fallen back: what comes in the place of lost records is new.
        router.cursor = min(max(router.cursor, cursor), source.head)
        router.dedupe_upto = min(router.dedupe_upto, source.head)
        router.forwarded += copied
        registry.add(router, dest)


def _lose_upto(topic: Topic, seq: int, rebuild: Rebuild) -> None:
    if seq > topic.head:
        rebuild.lose(topic, topic.head + 1, seq)
