"""Keeps the catalog: one entry for each topic with sealed records, rewritten as a whole at each checkpoint.

Entries stay encoded between checkpoints, since most topics do not change between two of them. They are made from the
states that the snapshot holds, off the loop, so that the two cannot tell different things.
"""

from functools import lru_cache

import msgspec
from xxhash import xxh3_64_digest

from topics.log.catalog import (
    CatalogRemoval,
    CatalogSegment,
    CatalogTopic,
    contract_in,
    decode_parts,
    encode_catalog,
    encode_topic,
    read_catalog_bytes,
    write_catalog,
)
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.log.snapshot import REMOVALS_PART, SegmentState, SnapshotHead, TopicState, decode_removals, decode_topic
from topics.model.names import is_server_name
from topics.schema.contract import decode_contract
from topics.schema.registry import Registry
from topics.streams.stream_frames import PART_NAME as STREAM_PART
from topics.streams.stream_frames import decode_part
from topics.system.events import Event


class CatalogKeeper:
    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._layout = layout
        self._entries: dict[int, bytes] = {}
        self._changed = False
        self.number = 0
        """The last one published."""
        self.tracked = False
        """Whether deletes are kept for an archive (`engine.delete_export`)."""
        self.work_number = 0
        """The last one in which anything changed that a pipeline would have to work on: segments and removals."""
        self.families_number = 0
        """The same, of streams that ask for indexes alone."""
        self._families_changed = False
        self._work: dict[int, bytes] = {}
        self.published: Event[[]] = Event()
        """The catalog was published; emitted off the loop."""

    def load(self, snapshot: int) -> bool:
        """Goes on with the catalog that is there; False when it is not the one of this snapshot."""
        data = read_catalog_bytes(self._fs, self._layout)
        if data is None:
            return snapshot == 0
        try:
            head, entries = decode_parts(data)
        except ValueError:
            return False
        if head.number != snapshot or not head.has_contracts:
            return False
        self._entries, self.number, self.work_number = entries, head.number, head.number
        if any(asks_for_indexes(contract_in(entry)) for entry in entries.values()):
            self.families_number = head.number
        return True

    def take(self, state: bytes) -> None:
        """Notes a topic as a snapshot has it."""
        topic = decode_topic(memoryview(state))
        if is_server_name(topic.name):
            return  # It holds what no guest should have, such as the key that signs webhooks.
        entry = catalog_topic(topic)
        work = encode_work(entry)
        if self._work.get(topic.topic_id, b"") != work:
            self._work[topic.topic_id] = work
            self._changed = True
            self._families_changed |= asks_for_indexes(entry.contract)
        if entry.segments or entry.earliest > 1:
            self._entries[topic.topic_id] = encode_topic(entry)
        else:
            self._entries.pop(topic.topic_id, None)

    def publish(self, head: SnapshotHead) -> None:
        """Replaces the file, durably."""
        for topic_id in head.dropped:
            self._work.pop(topic_id, None)
            gone = self._entries.pop(topic_id, None)
            if gone is not None:
                self._changed = True
                self._families_changed |= asks_for_indexes(contract_in(gone))
        data = encode_catalog(head.number, head.now_ms, self._entries.values(), self.tracked)
        write_catalog(self._fs, self._layout, data)
        self.number = head.number
        if self._changed:
            self.work_number, self._changed = head.number, False
        if self._families_changed:
            self.families_number, self._families_changed = head.number, False
        self.published.emit()


def catalog_topic(state: TopicState) -> CatalogTopic:
    removals = [CatalogRemoval(*removal) for removal in decode_removals(state.parts.get(REMOVALS_PART, b""))]
    return CatalogTopic(
        state.topic_id, state.name, state.epoch, state.config, state.head, state.earliest, state.evict_floor,
        [_segment(segment) for segment in state.segments], [(lost.first, lost.last) for lost in state.lost], removals,
        _contract(state),
    )  # fmt: skip


def _contract(state: TopicState) -> bytes:
    part = state.parts.get(STREAM_PART)
    return b"" if part is None else decode_part(part).contract


@lru_cache(maxsize=256)
def asks_for_indexes(contract: bytes) -> bool:
    """Whether a pipeline makes indexes of a stream. Streams by the thousand have few contracts."""
    registry = decode_contract(contract).registry if contract else Registry()
    return registry.search is not None or registry.routing_key is not None


def encode_work(entry: CatalogTopic) -> bytes:
    """A digest of what a pipeline works on; empty when there is nothing."""
    if not entry.segments and not entry.removals:
        return b""
    spans = [(segment.first_seq, segment.count) for segment in entry.segments]
    return xxh3_64_digest(msgspec.msgpack.encode((spans, entry.removals, entry.contract)))


def _segment(state: SegmentState) -> CatalogSegment:
    return CatalogSegment(
        state.first_seq, state.count, state.text_bytes, state.traits, state.first_ts, state.last_ts, state.marked,
        state.cold,
    )  # fmt: skip
