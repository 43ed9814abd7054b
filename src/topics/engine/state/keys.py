"""The idempotency keys that a topic remembers, with what was written under each.

Kept is not the content but its hash: of the text as it is stored, with the seqs and the ts that were given to it. Who
comes with the key again is compared by being encoded as if it were the first: with the seqs and the ts of then, the
same records are the same bytes. So nothing has to be logged for it, and a replay comes to the same hashes.

Keys are forgotten when their window has passed. They are kept block by block, because thousands of them may come in a
second and all of a block are of the same age.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple, Self

from xxhash import xxh3_64_digest

from topics.core.rows import ROW_WORDS, words
from topics.engine.state.runs import Block
from topics.formats.block import Keys
from topics.formats.snapshot import KeyedState, KeyState

DIGEST_BYTES = 8


class KnownAppend(NamedTuple):
    """What a key stands for."""

    first_seq: int
    records: int
    written: int
    """What the clock said then; what its window is counted from."""
    digest: bytes
    """The hash of its text; empty where an older server remembered the key."""
    ts: int
    """The time that its records carry."""

    def holds(self, text: bytes) -> bool:
        """Whether this is the text that was written, as far as anybody knows."""
        return not self.digest or xxh3_64_digest(text) == self.digest


class KeyedBlock:
    """The keys that came with one block."""

    __slots__ = ("count", "digests", "first_seq", "keys", "ts", "written")

    def __init__(self, first_seq: int, count: int, ts: int, keys: Keys, digests: bytes, written: int) -> None:
        self.first_seq = first_seq
        self.count = count
        """Of the records of one key."""
        self.ts = ts
        self.keys = keys
        self.digests = digests
        """In the order of the keys; empty where nobody knows them."""
        self.written = written

    @classmethod
    def of(cls, block: Block) -> Self:
        keys = block.key
        assert keys is not None
        if isinstance(keys, str):
            return cls(block.first_seq, block.count, block.ts, keys, xxh3_64_digest(block.text), block.written)
        return cls(block.first_seq, 1, block.ts, keys, _digests(block, keys.values()), block.written)

    @property
    def names(self) -> Iterable[str]:
        return (self.keys,) if isinstance(self.keys, str) else self.keys

    def find(self, key: str) -> KnownAppend:
        """What one of its keys stands for."""
        if isinstance(self.keys, str):
            return KnownAppend(self.first_seq, self.count, self.written, self.digests, self.ts)
        at = list(self.keys).index(key) * DIGEST_BYTES
        digest = self.digests[at : at + DIGEST_BYTES]
        return KnownAppend(self.first_seq + self.keys[key], self.count, self.written, digest, self.ts)


def _digests(block: Block, places: Collection[int]) -> bytes:
    text, base = block.text, block.base
    starts = words(block.rows)[::ROW_WORDS].tolist()
    starts.append(base + len(text) + 1)
    if len(places) == block.count:
        return b"".join([xxh3_64_digest(text[a - base : b - base - 1]) for a, b in pairwise(starts)])
    return b"".join([xxh3_64_digest(text[starts[place] - base : starts[place + 1] - base - 1]) for place in places])


class KeyMemory(Mapping[str, KnownAppend]):
    """All keys of a topic, the oldest first."""

    __slots__ = ("_blocks", "by_key")

    def __init__(self) -> None:
        self.by_key: dict[str, KeyedBlock] = {}
        self._blocks: deque[KeyedBlock] = deque()

    @classmethod
    def load(cls, keyed: Iterable[KeyedState], single: Iterable[KeyState]) -> "KeyMemory | None":
        """The keys as a snapshot has them; an older one has them one by one. None where there are none."""
        memory = cls()
        for key in single:
            memory._add(KeyedBlock(key.first_seq, key.count, key.ts, key.key, b"", key.ts))
        for state in keyed:
            written = state.written or state.ts
            memory._add(KeyedBlock(state.first_seq, state.count, state.ts, state.keys, state.digests, written))
        return memory if memory.by_key else None

    def save(self) -> list[KeyedState]:
        return [
            KeyedState(b.first_seq, b.count, b.ts, b.keys, b.digests, 0 if b.written == b.ts else b.written)
            for b in self._blocks
        ]

    def remember(self, block: Block) -> None:
        self._add(KeyedBlock.of(block))

    def _add(self, block: KeyedBlock) -> None:
        self._blocks.append(block)
        if isinstance(block.keys, str):
            self.by_key[block.keys] = block
        else:
            self.by_key.update(dict.fromkeys(block.keys, block))

    def heal(self, written: int) -> None:
        """The clock was set back: nothing was written after this moment."""
        for block in self._blocks:
            block.written = min(block.written, written)

    def forget(self, oldest: int) -> None:
        """Forgets what was written before a moment."""
        blocks, by_key = self._blocks, self.by_key
        while blocks and blocks[0].written < oldest:
            block = blocks.popleft()
            for key in block.names:
                # A key that was used again after its window is a younger block's.
                if by_key.get(key) is block:
                    del by_key[key]

    def below(self, seq: int) -> "KeyMemory | None":
        """Only the keys of records below a seq."""
        kept = KeyMemory()
        for block in self._blocks:
            if isinstance(block.keys, str):
                names = [block.keys] if block.first_seq + block.count <= seq else []
            else:
                names = [key for key, place in block.keys.items() if block.first_seq + place < seq]
            for key in names:
                if self.by_key.get(key) is block:
                    one = block.find(key)
                    kept._add(KeyedBlock(one.first_seq, one.records, one.ts, key, one.digest, one.written))
        return kept if kept.by_key else None

    # As a mapping, for those who look at all of them.

    def __getitem__(self, key: str) -> KnownAppend:
        return self.by_key[key].find(key)

    def __iter__(self) -> Iterator[str]:
        for block in self._blocks:
            for key in block.names:
                if self.by_key.get(key) is block:
                    yield key

    def __len__(self) -> int:
        return len(self.by_key)
