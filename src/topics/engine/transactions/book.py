"""The books of transactions: which are open, what is staged for them, and what was committed last for each id.

Pure state. Live operations and replay come through the same few methods, each of which says which records of the topic
that keeps the books have had their day.
"""

from collections.abc import Callable

from topics.formats.transaction import (
    Begun,
    Committed,
    Ended,
    KnownState,
    OpenState,
    PartState,
    Staged,
    TransactionsPart,
)

SeqRange = tuple[int, int]
Told = Callable[..., None]

_ENTRY_BYTES = 64


class Open:
    """An attempt at a transaction."""

    __slots__ = (
        "attempt", "bytes", "committing", "deadline", "id", "inflight", "inflight_bytes", "inflight_records", "owner",
        "parts", "records", "sequence", "timeout_ms", "touched_ms",
    )  # fmt: skip

    def __init__(self, begun: Begun) -> None:
        self.id = begun.id
        self.sequence = begun.sequence
        self.attempt = begun.attempt
        self.owner = begun.owner
        self.timeout_ms = begun.timeout_ms
        self.touched_ms = begun.now_ms
        """When something was last done to it, by the clock on the wall: what is kept of it."""
        self.deadline = 0
        """When it is abandoned, by the steady clock."""
        self.parts: dict[str, PartState] = {}
        """In the order in which they were first staged."""
        self.records = 0
        self.bytes = 0
        self.inflight = 0
        """Parts that are on their way to the log."""
        self.inflight_records = 0
        self.inflight_bytes = 0
        self.committing: list[Told] | None = None
        """While a commit is on its way: everyone who waits for it."""

    def expect(self, parts: int, records: int, size: int) -> None:
        """More is on its way, or less."""
        self.inflight += parts
        self.inflight_records += records
        self.inflight_bytes += size

    def is_meant(self, sequence: int, attempt: str) -> bool:
        return self.sequence == sequence and self.attempt == attempt

    def ranges(self) -> list[SeqRange]:
        return sorted((part.first_seq, part.first_seq + part.count - 1) for part in self.parts.values())


class Book:
    def __init__(self) -> None:
        self.open: dict[str, Open] = {}
        self.known: dict[str, KnownState] = {}
        """By id, the oldest commit first."""
        self.known_bytes = 0
        """About as much memory as what is remembered of commits takes."""

    # Changes, live and in a replay

    def begin(self, begun: Begun) -> list[SeqRange]:
        old = self.open.get(begun.id)
        if old is not None and old.is_meant(begun.sequence, begun.attempt):
            # Two of those who share an attempt came at the same moment.
            old.touched_ms = max(old.touched_ms, begun.now_ms)
            return []
        self.open[begun.id] = Open(begun)
        return old.ranges() if old is not None else []

    def stage(self, staged: Staged, first_seq: int, count: int, size: int) -> list[SeqRange]:
        entry = self.open.get(staged.id)
        if entry is None or not entry.is_meant(staged.sequence, staged.attempt):
            return [(first_seq, first_seq + count - 1)]
        old = entry.parts.get(staged.part)
        entry.parts[staged.part] = PartState(
            staged.part, staged.topic, first_seq, count, size, staged.create, staged.config
        )
        entry.records += count - (old.count if old is not None else 0)
        entry.bytes += size - (old.size if old is not None else 0)
        entry.touched_ms = max(entry.touched_ms, staged.now_ms)
        return [(old.first_seq, old.first_seq + old.count - 1)] if old is not None else []

    def end(self, ended: Ended) -> list[SeqRange]:
        entry = self.open.get(ended.id)
        if entry is None or not entry.is_meant(ended.sequence, ended.attempt):
            return []
        return self.open.pop(ended.id).ranges()

    def commit(self, committed: Committed) -> list[SeqRange]:
        entry = self.open.pop(committed.id, None)
        self.forget(committed.id)
        known = KnownState(committed.id, committed.sequence, committed.now_ms, committed.placed)
        self.known[committed.id] = known
        self.known_bytes += _memory(known)
        return entry.ranges() if entry is not None else []

    def forget(self, transaction_id: str) -> None:
        known = self.known.pop(transaction_id, None)
        if known is not None:
            self.known_bytes -= _memory(known)

    # Sums

    def staged_bytes(self, owner: str) -> int:
        return sum([entry.bytes + entry.inflight_bytes for entry in self.open.values() if entry.owner == owner])

    def open_of(self, owner: str) -> int:
        return sum([entry.owner == owner for entry in self.open.values()])

    def ids_of(self, tenant: str) -> int:
        """How many ids of a tenant there are."""
        return sum([name.startswith(tenant + "/") for name in self.known.keys() | self.open.keys()])

    # Snapshots

    def part(self) -> TransactionsPart:
        return TransactionsPart(
            [
                OpenState(
                    entry.id, entry.sequence, entry.attempt, entry.owner, entry.timeout_ms, entry.touched_ms,
                    list(entry.parts.values()),
                )
                for entry in self.open.values()
            ],
            list(self.known.values()),
        )  # fmt: skip

    def load(self, part: TransactionsPart) -> None:
        self.open = {}
        for state in part.open:
            entry = Open(
                Begun(state.id, state.sequence, state.attempt, state.owner, state.timeout_ms, state.touched_ms)
            )
            entry.parts = {one.name: one for one in state.parts}
            entry.records = sum([one.count for one in state.parts])
            entry.bytes = sum([one.size for one in state.parts])
            self.open[entry.id] = entry
        self.known = {known.id: known for known in part.known}
        self.known_bytes = sum(map(_memory, part.known))


def _memory(known: KnownState) -> int:
    return _ENTRY_BYTES + len(known.id) + sum([_ENTRY_BYTES + len(placed.topic) for placed in known.placed])
