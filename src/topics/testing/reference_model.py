"""A reference model of the engine: topics as plain lists.

Every record that ever got a seq stays in its topic's list with its state; every answer is computed from all of them.
Without log, files and indexes the model can be verified by reading, and any different answer of the engine is a bug of
the engine.

If the engine has a choice, the model accepts each possibility:

* After a kill the head of a topic may have jumped, up to what was reserved: `restart` takes the head that was found.
* A topic of class ephemeral keeps its records in memory, and their changes are not logged. `restart` returns the lost
  records; the tombstones of their readers are checked against what is found, and `adopt` takes that over.
* An idempotency key that was outside its window at any time, even if a new config or a clock set back puts it inside
  again, may be known or forgotten.
"""

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from topics.model.errors import RecordTooLargeError, TopicFullError, TopicsError
from topics.model.records import Record
from topics.model.router_rules import TagMatch
from topics.model.seq_ranges import LossReason
from topics.model.topic_config import Discard, TopicConfig

Gap = tuple[int, int]
"""The first and the last seq of a range, both included."""


class Fate(enum.Enum):
    """The state of a record."""

    LIVE = "readers see it"
    DELETED = "somebody asked for it to go: silent, for ever"
    EVICTED = "a cap or time took it: told by the floor"
    LOST = "a restart took it: told by a lost range"


class Home(enum.Enum):
    """The place of a record, which determines the failures that can lose it."""

    LOG = "in the log or in a file that a snapshot names: it survives a kill"
    FILE = "in a file that the next checkpoint will name: until then a kill loses it"
    MEMORY = "in memory only: no restart brings it back"


@dataclass
class ModelRecord:
    seq: int
    ts: int
    tag: str | None
    node: str | None
    meta: bytes | None
    data: bytes
    home: Home
    fate: Fate = Fate.LIVE
    written: int = 0
    """The time at which it was written, as known to its topic; ages are counted from it."""

    @property
    def size(self) -> int:
        """Bytes counted against caps."""
        return len(self.data) + len(self.meta or b"")

    def json(self, tags: bool = True, meta: bool = True) -> bytes:
        """Returns the record in the form of an answer."""
        parts = [b'"$seq":%d' % self.seq, b'"$ts":%d' % self.ts]
        if self.node is not None:
            parts.append(b'"$node":' + _string(self.node))
        parts.append(b'"data":' + self.data)
        if meta and self.meta is not None:
            parts.append(b'"meta":' + self.meta)
        if tags and self.tag is not None:
            parts.append(b'"$tag":' + _string(self.tag))
        return b"{" + b",".join(parts) + b"}"


@dataclass
class ModelKey:
    """A remembered idempotency key."""

    first: int
    last: int
    ts: int
    content: list[object]
    """The content that the key was used for."""
    certain: bool = True
    """Whether it must be known; see the top of the file."""


@dataclass
class ModelTopic:
    config: TopicConfig
    records: list[ModelRecord] = field(default_factory=list)
    head: int = 0
    last_ts: int = 0
    last_written: int = 0
    cap_floor: int = 1
    ttl_floor: int = 1
    lost: list[Gap] = field(default_factory=list)
    keys: dict[str, ModelKey] = field(default_factory=dict)

    # Reads

    @property
    def live(self) -> list[ModelRecord]:
        return [record for record in self.records if record.fate is Fate.LIVE]

    @property
    def count(self) -> int:
        return len(self.live)

    @property
    def bytes(self) -> int:
        return sum(record.size for record in self.live)

    @property
    def earliest(self) -> int:
        return min((record.seq for record in self.live), default=self.head + 1)

    @property
    def evict_floor(self) -> int:
        return max(self.cap_floor, self.ttl_floor)

    def tombstone(self, cursor: int) -> tuple[int, int, LossReason] | None:
        """Returns the tombstone that a reader at this cursor gets before its next record: the range, up to the next
        live record, and the reason."""
        first = cursor + 1
        if cursor > self.head:
            return 1, self.head, LossReason.RECREATED
        if first < self.evict_floor:
            by_cap, by_time = first < self.cap_floor, first < self.ttl_floor
            reason = LossReason.MIXED if by_cap and by_time else LossReason.CAP if by_cap else LossReason.TTL
            return first, self.earliest - 1, reason
        resume = self.first_live(first)
        crossed = any(begin < resume and end > cursor for begin, end in self.lost)
        return (first, resume - 1, LossReason.CRASH) if crossed else None

    def first_live(self, seq: int) -> int:
        """Returns the first live seq from here on; head + 1 if there is none."""
        return min((record.seq for record in self.live if record.seq >= seq), default=self.head + 1)

    # Changes

    def refusal(self, batch: Sequence[Record]) -> type[TopicsError] | None:
        """Returns why a topic that rejects refuses a batch; None if it accepts it."""
        config = self.config
        if config.discard is not Discard.REJECT:
            return None
        size = sum(len(record.data) + len(record.meta or b"") for record in batch)
        if _over(config, len(batch), size):
            return RecordTooLargeError
        return TopicFullError if _over(config, self.count + len(batch), self.bytes + size) else None

    def known(self, key: str | None, now: int) -> ModelKey | None:
        """Returns the earlier write of a repeated key, while it may be known."""
        window = self.config.idempotency_window_ms
        found = self.keys.get(key) if key is not None and window else None
        return found if found is not None and now - found.ts <= window else None

    def append(self, batch: Sequence[Record], node: str | None, key: str | None, now: int) -> Gap:
        """Appends a batch that is neither refused nor known. Returns its seqs."""
        self.last_ts = max(self.last_ts, now)
        if now < self.last_written:
            # The clock was set back: no earlier record can have been written later.
            for older in self.records:
                older.written = min(older.written, now)
            for used in self.keys.values():
                used.ts = min(used.ts, now)
        self.last_written = now
        first = self.head + 1
        home = Home.LOG if self.config.durability.logged else Home.MEMORY
        for record in batch:
            self.head += 1
            owner = node if record.node is None else record.node
            meta = None if record.meta is None else bytes(record.meta)
            made = ModelRecord(self.head, self.last_ts, record.tag, owner, meta, bytes(record.data), home, written=now)
            self.records.append(made)
        if key is not None:
            self.keys[key] = ModelKey(first, self.head, now, content(batch, node))
        self._enforce_caps()
        return first, self.head

    def expire(self, now: int) -> None:
        """Lets time pass."""
        ttl = self.config.ttl_ms
        for record in self.live:
            if ttl and now - record.written > ttl:
                record.fate = Fate.EVICTED
                self.ttl_floor = record.seq + 1
        self._forget_below_floor()
        for key in self.keys.values():
            key.certain = key.certain and now - key.ts <= self.config.idempotency_window_ms

    def configure(self, config: TopicConfig) -> None:
        if config.durability.logged != self.config.durability.logged:
            # Records in memory only are written to a file, because from now on the log continues from it.
            for record in self.records:
                record.home = Home.FILE if record.home is Home.MEMORY else record.home
        self.config = config
        self._enforce_caps()

    def delete(self, before_seq: int | None, match: TagMatch | None, head: int | None = None) -> int:
        """Deletes the selected records up to `head`, the topic's head at the time of the request.

        Returns their number.
        """
        upto = self.head if head is None else head
        chosen = [
            record
            for record in self.live
            if record.seq <= upto
            and (before_seq is None or record.seq < before_seq)
            and (match is None or match.matches(record.tag))
        ]
        for record in chosen:
            record.fate = Fate.DELETED
        return len(chosen)

    # Restarts

    @property
    def exact(self) -> bool:
        """Returns whether a kill changes only the head: no change affected records that are not in the log."""
        return all(record.home is Home.LOG for record in self.records)

    def checkpoint(self) -> None:
        """Takes a snapshot with the floors and all files; only records in memory still depend on the process."""
        for record in self.records:
            if record.home is Home.FILE or record.fate is not Fate.LIVE:
                record.home = Home.LOG

    def restart(self, killed: bool, head: int) -> list[ModelRecord]:
        """Restarts with the found `head`. Returns the lost records."""
        if not killed:
            self.checkpoint()
        gone = [record for record in self.live if record.home is not Home.LOG]
        forgotten = {record.seq for record in self.records if record.home is not Home.LOG}
        for key in self.keys.values():
            key.certain = key.certain and key.first not in forgotten
        for record in gone:
            record.fate = Fate.LOST
        for record in self.records:
            record.home = Home.LOG
        self.head = head
        return gone

    def adopt(self, lost: list[Gap], cap_floor: int, ttl_floor: int, last_ts: int) -> None:
        """Adopts the engine's report of a loss, after it was verified, and the time of the last known write."""
        self.lost, self.cap_floor, self.ttl_floor, self.last_ts = lost, cap_floor, ttl_floor, last_ts

    def _enforce_caps(self) -> None:
        """Evicts the oldest records until the rest is within the caps. A topic that rejects never evicts."""
        while self.config.discard is Discard.OLD and _over(self.config, self.count, self.bytes):
            oldest = self.live[0]
            oldest.fate = Fate.EVICTED
            self.cap_floor = oldest.seq + 1
        self._forget_below_floor()

    def _forget_below_floor(self) -> None:
        self.lost = [gap for gap in self.lost if gap[1] >= self.evict_floor]


class Model(dict[str, ModelTopic]):
    """All topics by name; a deleted and recreated topic is another topic."""

    def expire(self, now: int) -> None:
        for topic in self.values():
            topic.expire(now)

    def checkpoint(self) -> None:
        for topic in self.values():
            topic.checkpoint()


def content(batch: Sequence[Record], node: str | None) -> list[object]:
    """Returns the stored content of a batch: a repeated key is a duplicate if this is equal."""
    return [
        (bytes(r.data), None if r.meta is None else bytes(r.meta), r.tag, node if r.node is None else r.node)
        for r in batch
    ]


def _over(config: TopicConfig, count: int, size: int) -> bool:
    return bool((config.cap_records and count > config.cap_records) or (config.cap_bytes and size > config.cap_bytes))


def _string(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()
