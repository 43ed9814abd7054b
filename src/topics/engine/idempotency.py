"""Idempotent appends: the idempotency keys of a topic's recent appends, with the result of each.

A key is stored with a hash of its content: of the data for a single record without other members, otherwise of the
stored text, which includes seqs and ts. A repeated append is encoded with the seqs and the ts of the first one and then
compared, so equal records have equal bytes. So nothing has to be logged for it, and a replay computes the same hashes.

A key is registered as soon as it is used: it waits for the end of the tick, is in flight, or is known. So one lookup
shows whether it is new. Keys are dropped when their window has passed. They are grouped by block, because thousands may
arrive in a second and all keys of a block have the same age.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from sys import getsizeof
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from xxhash import xxh3_64_digest

from topics.log.frame import Keys
from topics.log.snapshot_files import KeyedState, KeyState
from topics.model.records import PlainRecords
from topics.wire.record_slicing import View, data_of

if TYPE_CHECKING:
    from topics.engine.topic import Block

DIGEST_BYTES = 8
_BLOCK_BYTES = 500
"""Memory of a block of keys besides the keys: the object, its numbers and a small dict."""
_KEY_BYTES = 250
"""Memory of a key besides its text: its entries in two dicts."""


class KnownAppend(NamedTuple):
    """The batch that a key identifies."""

    first_seq: int
    records: int
    written: int
    """Wall time of the append; the deduplication window starts here."""
    digest: bytes
    """Its hash; empty for keys of an earlier release."""
    ts: int
    """The ts of its records."""
    of_data: bool = False
    """Whether the hash covers the data of a single record without other members."""

    def holds(self, content: bytes) -> bool:
        """Returns whether this text or data equals the written one, as far as known."""
        return not self.digest or xxh3_64_digest(content) == self.digest


class KeyedBlock:
    """The keys of one block, in flight or published."""

    __slots__ = ("append", "count", "digests", "first_seq", "keys", "known", "of_data", "ts", "written")

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.known = False
        self.append: Any = None
        """The append that writes the records, while it is in flight (`engine.append`)."""

    @classmethod
    def load(cls, state: KeyedState) -> Self:
        made = cls(state.keys)
        made.first_seq, made.count, made.ts = state.first_seq, state.count, state.ts
        made.digests, made.of_data = state.digests, state.of_data
        made.written = state.written or state.ts
        return made

    def save(self) -> KeyedState:
        written = 0 if self.written == self.ts else self.written
        return KeyedState(self.first_seq, self.count, self.ts, self.keys, self.digests, written, self.of_data)

    def stands_for(self, block: "Block", plain: PlainRecords | None = None) -> Self:
        """Stores the result under the keys; `plain` is the data of the block, if the caller still has it."""
        keys = self.keys
        self.first_seq, self.ts, self.written = block.first_seq, block.ts, block.written
        if isinstance(keys, str):
            self.count, self.of_data, self.digests = block.count, False, xxh3_64_digest(block.text)
            return self
        self.count, self.of_data = 1, not block.traits
        if self.of_data and plain is not None and len(keys) == block.count:
            # The digests of the data, equal to those of the data extracted from the text.
            self.digests = b"".join(map(xxh3_64_digest, plain.datas))
        else:
            view, cut = block.view, data_of if self.of_data else _fragment
            self.digests = b"".join([xxh3_64_digest(cut(view, place)) for place in keys.values()])
        return self

    @property
    def names(self) -> Iterable[str]:
        return (self.keys,) if isinstance(self.keys, str) else self.keys

    @property
    def memory_bytes(self) -> int:
        """Returns the estimated memory of the keys and their entries."""
        keys = self.keys
        if isinstance(keys, str):
            return _BLOCK_BYTES + _KEY_BYTES + getsizeof(keys)
        return _BLOCK_BYTES + _KEY_BYTES * len(keys) + sum(map(getsizeof, keys))

    def find(self, key: str) -> KnownAppend:
        """Returns the batch of a key."""
        if isinstance(self.keys, str):
            return KnownAppend(self.first_seq, self.count, self.written, self.digests, self.ts, self.of_data)
        at = list(self.keys).index(key) * DIGEST_BYTES
        digest = self.digests[at : at + DIGEST_BYTES]
        return KnownAppend(self.first_seq + self.keys[key], self.count, self.written, digest, self.ts, self.of_data)


def _fragment(view: View, place: int) -> bytes:
    # Records are separated by a comma.
    return bytes(view.text[view.start(place) : view.start(place + 1) - 1])


class KeyMemory(Mapping[str, KnownAppend]):
    """All keys of a topic; as a mapping it contains the known keys, oldest first."""

    __slots__ = ("_blocks", "by_key", "memory_bytes")

    def __init__(self) -> None:
        self.memory_bytes = 0
        """The estimated memory of the known keys."""
        self.by_key: dict[str, KeyedBlock] = {}
        """Known keys, including those in flight."""
        self._blocks: deque[KeyedBlock] = deque()

    @classmethod
    def load(cls, keyed: Iterable[KeyedState], single: Iterable[KeyState]) -> "KeyMemory | None":
        """Loads the keys of a snapshot; older snapshots have them one by one. Returns None if there are none."""
        memory = cls()
        for key in single:
            memory._add(KeyedBlock.load(KeyedState(key.first_seq, key.count, key.ts, key.key)))
        for state in keyed:
            memory._add(KeyedBlock.load(state))
        return memory if memory.by_key else None

    def save(self) -> list[KeyedState]:
        return [block.save() for block in self._blocks]

    def begin(self, key: str) -> KeyedBlock | None:
        """Reserves the key of a batch before it is logged; None if it is already in use."""
        taken = KeyedBlock(key)
        return taken if self.by_key.setdefault(key, taken) is taken else None

    def remember(self, block: "Block") -> None:
        """Notes that the block was published: its keys are known from now on."""
        keys = block.key
        assert keys is not None
        taken = self._taken(keys)
        if taken is None:
            self._add(KeyedBlock(keys).stands_for(block))
        else:
            taken.known, taken.append = True, None
            self._blocks.append(taken)
            self.memory_bytes += taken.memory_bytes

    def release(self, keys: Keys) -> None:
        """Removes keys whose append failed."""
        taken = self._taken(keys)
        for key in () if taken is None else taken.names:
            if self.by_key.get(key) is taken:
                del self.by_key[key]

    def _taken(self, keys: Keys) -> KeyedBlock | None:
        """Returns the keys of a block in flight; None if it is not in flight, as in replay."""
        found = self.by_key.get(keys if isinstance(keys, str) else next(iter(keys)))
        return found if found is not None and not found.known and found.keys is keys else None

    def _add(self, block: KeyedBlock) -> None:
        block.known = True
        self._blocks.append(block)
        self.memory_bytes += block.memory_bytes
        if isinstance(block.keys, str):
            self.by_key[block.keys] = block
        else:
            by_key = self.by_key
            for key in block.keys:
                by_key[key] = block

    def heal(self, written: int) -> None:
        """Handles a clock that was set back: no key is later than this time."""
        for block in self._blocks:
            block.written = min(block.written, written)

    def defer(self, ms: int, now_ms: int) -> None:
        """Extends the windows of all keys, as after a takeover by a server whose clock is ahead."""
        for block in self._blocks:
            block.written = min(block.written + ms, max(now_ms, block.written))

    def forget(self, oldest: int) -> None:
        """Drops keys written before a time."""
        blocks, by_key = self._blocks, self.by_key
        while blocks and blocks[0].written < oldest:
            block = blocks.popleft()
            self.memory_bytes -= block.memory_bytes
            for key in block.names:
                # A key that was reused after its window belongs to a younger block.
                if by_key.get(key) is block:
                    del by_key[key]

    def below(self, seq: int) -> "KeyMemory | None":
        """Keeps only the keys of records below a seq."""
        kept = KeyMemory()
        for block in self._blocks:
            if isinstance(block.keys, str):
                names = [block.keys] if block.first_seq + block.count <= seq else []
            else:
                names = [key for key, place in block.keys.items() if block.first_seq + place < seq]
            for key in names:
                if self.by_key.get(key) is block:
                    one = block.find(key)
                    state = KeyedState(one.first_seq, one.records, one.ts, key, one.digest, one.written, one.of_data)
                    kept._add(KeyedBlock.load(state))
        return kept if kept.by_key else None

    # The mapping interface, for callers that iterate over all keys.

    def __getitem__(self, key: str) -> KnownAppend:
        block = self.by_key[key]
        if not block.known:
            raise KeyError(key)
        return block.find(key)

    def __iter__(self) -> Iterator[str]:
        for block in self._blocks:
            for key in block.names:
                if self.by_key.get(key) is block:
                    yield key

    def __len__(self) -> int:
        """Includes keys in flight: limits are compared with this number."""
        return len(self.by_key)
