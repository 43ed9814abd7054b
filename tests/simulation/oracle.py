"""The answers of the server, and the later answers that they exclude.

Every value that a client sends is sent once and is a unique number, so a value that is found identifies its request.
The answer to a request decides which values may be found: acknowledged values must be there until an operation that the
topic's class allows removes them, refused ones must not, and the others are undecided.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise


class Broken(AssertionError):
    """A promise was broken."""


class Fate(Enum):
    UNKNOWN = "on its way, or lost with its connection: it may be there or not"
    ACKED = "acknowledged"
    REFUSED = "refused: it must not be there"


class End(Enum):
    """The kinds of end of a server's life."""

    STOP = "it was asked to stop"
    KILL = "the process was killed; everything written is still in the page cache"
    POWER_CUT = "the machine lost its power"


# The classes that may lose acknowledged records and must report that, with the ends that cause it.
_MAY_LOSE = {
    "ephemeral": {End.STOP, End.KILL, End.POWER_CUT},
    "memory": {End.POWER_CUT},
    "disk": {End.POWER_CUT},
    "fsync": set(),
}


@dataclass
class Sent:
    fate: Fate = Fate.UNKNOWN
    seq: int = 0


@dataclass
class Scan:
    """The records and gaps of a reader that began at the front."""

    records: list[tuple[int, int]]
    """Seqs with their values."""
    gaps: list[tuple[int, int, str]]
    """The losses that were reported: first and last seq, and the reason."""
    head: int


@dataclass
class LogTruth:
    """A topic that takes records and loses them by its class, by deletes and by a cap."""

    name: str
    durability: str
    cap: int = 0
    sent: dict[int, Sent] = field(default_factory=dict)
    values: dict[int, int] = field(default_factory=dict)
    """Which value a seq was seen to have, or acknowledged to have got."""
    deleted_below: int = 0
    maybe_deleted_below: int = 0
    may_have_lost: bool = False

    # Reports of clients

    def sending(self, values: Iterable[int]) -> None:
        for value in values:
            self.sent.setdefault(value, Sent())

    def acked(self, values: list[int], first_seq: int) -> None:
        for seq, value in enumerate(values, first_seq):
            sent = self.sent[value]
            if sent.fate is Fate.ACKED and sent.seq != seq:
                raise Broken(f"{self.name}: value {value} is said to be {seq}, and was said to be {sent.seq}")
            sent.fate, sent.seq = Fate.ACKED, seq
            self._is_at(seq, value)

    def refused(self, values: Iterable[int]) -> None:
        for value in values:
            if self.sent[value].fate is Fate.UNKNOWN:
                self.sent[value].fate = Fate.REFUSED

    def deleting(self, before_seq: int) -> None:
        self.maybe_deleted_below = max(self.maybe_deleted_below, before_seq)

    def deleted(self, before_seq: int) -> None:
        self.deleted_below = max(self.deleted_below, before_seq)

    def restarted(self, end: End, lacked: bool = False) -> None:
        """`lacked` states that something could not be written in the life that ended."""
        if end in _MAY_LOSE[self.durability]:
            self.may_have_lost = True
            # A delete is as durable as an append.
            self.deleted_below = 0
            if self.durability == "memory" or (self.durability == "ephemeral" and lacked):
                # Its seqs may be assigned again: the log did not take a ceiling, or lost visible records.
                self.values.clear()
                for sent in self.sent.values():
                    if sent.fate is Fate.ACKED:
                        sent.fate = Fate.UNKNOWN

    # Findings of readers

    def check_page(self, records: list[tuple[int, int]], deleted_below: int | None = None) -> None:
        """Checks the conditions of any page read at any moment; `deleted_below` is the floor of deletes at the time of
        the request."""
        floor = self.deleted_below if deleted_below is None else deleted_below
        for (before, _), (after, _) in pairwise(records):
            if before >= after:
                raise Broken(f"{self.name}: record {after} comes behind {before}")
        for seq, value in records:
            sent = self.sent.get(value)
            if sent is None:
                raise Broken(f"{self.name}: record {seq} holds {value}, which nobody sent")
            if sent.fate is Fate.REFUSED:
                raise Broken(f"{self.name}: record {seq} holds {value}, which was refused")
            if sent.fate is Fate.ACKED and sent.seq != seq:
                raise Broken(f"{self.name}: value {value} was acknowledged as {sent.seq} and is found at {seq}")
            if seq < floor:
                raise Broken(f"{self.name}: record {seq} was deleted, with all below {floor}")
            self._is_at(seq, value)

    def check_whole(self, scan: Scan) -> None:
        """Checks the conditions of the complete content."""
        self.check_page(scan.records)
        values = [value for _, value in scan.records]
        if len(set(values)) < len(values):
            raise Broken(f"{self.name}: a value is there twice: {sorted(v for v in values if values.count(v) > 1)[:5]}")
        found, reported = dict(scan.records), _Ranges([(first, last) for first, last, _ in scan.gaps])
        reasons = {reason for _, _, reason in scan.gaps}
        allowed = {"crash", "mixed"} if self.may_have_lost else set()
        allowed |= {"cap", "mixed"} if self.cap else set()
        if reasons - allowed:
            raise Broken(f"{self.name}: lost for {sorted(reasons)}, and nothing happened that may cost records")
        for value, sent in self.sent.items():
            if sent.fate is not Fate.ACKED or sent.seq in found or sent.seq < self.maybe_deleted_below:
                continue
            if sent.seq not in reported:
                raise Broken(f"{self.name}: {value} was acknowledged as {sent.seq}, is not there, and nobody says so")

    def _is_at(self, seq: int, value: int) -> None:
        known = self.values.setdefault(seq, value)
        if known != value:
            raise Broken(f"{self.name}: seq {seq} means {known} and {value}")


class _Ranges:
    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        self._ranges = ranges

    def __contains__(self, seq: int) -> bool:
        return any(first <= seq <= last for first, last in self._ranges)


@dataclass
class TransactionTruth:
    """Transactions over several topics: each is in all of them or in none."""

    made: list[dict[str, list[int]]] = field(default_factory=list)

    def check_whole(self, logs: dict[str, LogTruth], found: dict[str, set[int]]) -> None:
        for parts in self.made:
            if not any(found[topic] & set(values) for topic, values in parts.items()):
                continue
            for topic, values in parts.items():
                missing = set(values) - found[topic]
                if missing and not logs[topic].maybe_deleted_below:
                    raise Broken(f"{topic}: {sorted(missing)} of the transaction {parts} are not there, others are")


@dataclass
class StreamTruth:
    """A stream that one producer writes to: each entry repeated until its answer is there once, in order."""

    name: str
    acked: list[int] = field(default_factory=list)
    pending: int | None = None
    created: bool = False

    def check_whole(self, values: list[int]) -> None:
        expected = [self.acked, [*self.acked, self.pending]] if self.pending is not None else [self.acked]
        if values not in expected:
            raise Broken(f"{self.name}: {values[-5:]} ({len(values)}) is there instead of {self.acked[-5:]} "
                         f"({len(self.acked)}), with {self.pending} on its way")  # fmt: skip


@dataclass
class TypedTruth:
    """A stream with a schema: every entry is one of the version that is current, whichever it was written under."""

    name: str
    version: int = 0
    """The newest that was acknowledged, or seen."""
    newest: int = 0
    """The newest that was asked for."""
    sent: dict[int, Fate] = field(default_factory=dict)

    def sending(self, values: Iterable[int]) -> None:
        self.sent.update(dict.fromkeys(values, Fate.UNKNOWN))

    def acked(self, values: Iterable[int]) -> None:
        self.sent.update(dict.fromkeys(values, Fate.ACKED))

    def refused(self, values: Iterable[int]) -> None:
        self.sent.update(dict.fromkeys(values, Fate.REFUSED))

    def saw(self, version: int) -> None:
        if not self.version <= version <= self.newest:
            raise Broken(
                f"{self.name}: version {version}, and {self.version} was acknowledged, {self.newest} asked for"
            )
        self.version = version

    def check_whole(self, values: list[int]) -> None:
        if len(set(values)) < len(values):
            raise Broken(f"{self.name}: an entry is there twice")
        acked = {value for value, fate in self.sent.items() if fate is Fate.ACKED}
        refused = {value for value, fate in self.sent.items() if fate is Fate.REFUSED}
        if missing := acked - set(values):
            raise Broken(f"{self.name}: {sorted(missing)[:5]} were acknowledged and are not there")
        if wrong := set(values) & refused | set(values) - self.sent.keys():
            raise Broken(f"{self.name}: {sorted(wrong)[:5]} were refused or never sent, and are there")


@dataclass
class QueueTruth:
    """Jobs: acknowledged ones never come back, all others come in the end."""

    produced: LogTruth
    done: set[int] = field(default_factory=set)
    """Jobs whose acknowledgement was acknowledged."""
    maybe_done: set[int] = field(default_factory=set)

    def restarted(self, end: End) -> None:
        self.produced.restarted(end)
        if self.produced.may_have_lost:
            # An acknowledgement is as durable as an append.
            self.maybe_done |= self.done
            self.done.clear()

    def check_claimed(self, values: Iterable[int]) -> None:
        again = self.done & set(values)
        if again:
            raise Broken(f"{self.produced.name}: jobs {sorted(again)} were acknowledged and are handed out again")

    def check_left(self, values: set[int]) -> None:
        """Checks the jobs that are left in the queue, claimed or not."""
        if values & self.done:
            raise Broken(f"{self.produced.name}: jobs {sorted(values & self.done)} were acknowledged and are there")
        if self.produced.may_have_lost:
            return
        acked = {value for value, sent in self.produced.sent.items() if sent.fate is Fate.ACKED}
        missing = acked - values - self.done - self.maybe_done
        if missing:
            raise Broken(f"{self.produced.name}: jobs {sorted(missing)[:5]} are gone, and nobody acknowledged them")
