"""The expected content of a topic after some of its operations, computed in the plainest way.

The engine keeps blocks, segments, flags and floors; this model keeps one dictionary of live records and applies each
operation to it. It has no notion of files, so it cannot share a mistake with the code that writes them.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from topics.model.topic_config import TopicConfig, TopicConfigPatch, resolve_config

Payload = tuple[object, str | None]
"""A record as a test hands it in: its value and its tag."""


class Kept(NamedTuple):
    """A live record."""

    value: object
    tag: str | None
    ts: int
    logged: bool
    """Whether the class it was written under puts records into the log at all."""

    @property
    def size(self) -> int:
        return len(msgspec.json.encode(self.value))


@dataclass
class Model:
    """One topic. Every method is one operation, in the order in which the topic meets them."""

    config: TopicConfig
    head: int = 0
    live: dict[int, Kept] = field(default_factory=dict)
    evict_floor: int = 1
    cap_floor: int = 1
    ttl_floor: int = 1
    keys: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    lost: frozenset[int] = frozenset()
    """Seqs that an earlier crash took, which readers receive as lost as long as no floor covers them."""
    volatile: bool = False
    """Whether it was ever of a class that is not logged: then its head and floors are only known while it runs."""
    returning: set[int] = field(default_factory=set)
    """Records that were evicted while their topic was volatile. Evictions for the sake of records that are not logged
    are not logged either, so after a crash that takes the ones, the others may be there again."""

    consumers: dict[str, int] = field(default_factory=dict)
    """The committed cursors."""
    fence: str = ""

    def copy(self) -> "Model":
        return replace(
            self,
            live=dict(self.live),
            keys=dict(self.keys),
            returning=set(self.returning),
            consumers=dict(self.consumers),
        )

    def commit(self, consumer: str, seq: int | None) -> None:
        """A consumer's cursor; None is not a consumer."""
        if seq is None:
            self.consumers.pop(consumer, None)
        else:
            self.consumers[consumer] = seq

    def append(self, records: list[Payload], key: str | None, ts: int) -> None:
        self.expire(ts)
        logged = self.config.durability.logged
        first = self.head + 1
        for value, tag in records:
            self.head += 1
            self.live[self.head] = Kept(value, tag, ts, logged)
        if key is not None:
            self.keys[key] = (first, len(records), ts)
        self._enforce_caps()

    def delete(self, below: int, tag: str | None) -> None:
        for seq, kept in list(self.live.items()):
            if seq < below and tag in (None, kept.tag):
                del self.live[seq]
        if tag is None:
            self.returning = {seq for seq in self.returning if seq >= below}

    def configure(self, patch: TopicConfigPatch, name: str) -> None:
        self.config = resolve_config(patch, name, self.config)
        self.volatile = self.volatile or not self.config.durability.logged
        self._enforce_caps()

    def expire(self, now_ms: int) -> None:
        if self.config.ttl_ms:
            old = [seq for seq, kept in self.live.items() if kept.ts < now_ms - self.config.ttl_ms]
            self.ttl_floor = max(self.ttl_floor, self._evict(old))

    def fresh_keys(self, now_ms: int) -> dict[str, tuple[int, int, int]]:
        oldest = now_ms - self.config.idempotency_window_ms
        return {key: known for key, known in self.keys.items() if known[2] >= oldest}

    def _enforce_caps(self) -> None:
        config, seqs = self.config, sorted(self.live)
        over = len(seqs) - config.cap_records if config.cap_records else 0
        self.cap_floor = max(self.cap_floor, self._evict(seqs[: max(over, 0)]))
        excess = sum(kept.size for kept in self.live.values()) - config.cap_bytes
        while config.cap_bytes and excess > 0:
            oldest = min(self.live)
            excess -= self.live[oldest].size
            self.cap_floor = max(self.cap_floor, self._evict([oldest]))

    def _evict(self, seqs: list[int]) -> int:
        """Loses these records; the floor that follows from it."""
        if not seqs:
            return 1
        for seq in seqs:
            del self.live[seq]
        if self.volatile:
            self.returning.update(seqs)
        floor = max(seqs) + 1
        self.evict_floor = max(self.evict_floor, floor)
        self.lost = frozenset(seq for seq in self.lost if seq >= self.evict_floor)
        return floor
