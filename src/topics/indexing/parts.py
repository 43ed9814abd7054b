"""Parts: what a query is asked of. The tail, a sealed segment, an index over many of them: each answers the same way.

A part holds the entries of a range of numbers and of no other. It answers from an index or by a scan, and both give the
same rows; which one changes what it costs. A part that runs out of its budget says how many entries it did not look
at, never too few.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from topics.indexing.aggregation import Aggregation
from topics.indexing.groups import NO_GROUPS, Groups
from topics.indexing.matching import Matcher
from topics.indexing.predicates import Predicate
from topics.indexing.ranking import Term, Weights
from topics.indexing.sorting import Hit, Place, Sort
from topics.schema.search import SearchConfig

PartKind = Literal["tail", "segment", "index"]
"""How an answer is accounted for: entries that were never sealed, a sealed range that is scanned, an index."""

_CLOCK_EVERY = 64


class Entry(NamedTuple):
    """A live entry as a source gives it: promoted and parsed."""

    number: int
    value: Any
    size: int
    """Bytes that were read for it."""
    key: str | None = None


class Span(msgspec.Struct, frozen=True):
    """What a part holds: numbers from `first` to `last`, at most `rows` live entries."""

    first: int
    last: int
    rows: int
    kind: PartKind = "tail"
    oldest_append_ms: int | None = None
    """When the first of them was appended."""


class Budget:
    """What one query may spend, in all its parts. `now` is a clock in seconds."""

    def __init__(self, now: Callable[[], float], seconds: float, max_bytes: int) -> None:
        self._now = now
        self._deadline = now() + seconds
        self._bytes_left = max_bytes
        self._looks = 0
        self.taken_bytes = 0
        self.spent: str | None = None
        """What ran out: `time`, `bytes` or `memory`; None as long as nothing did."""

    def take(self, size: int) -> bool:
        """Whether there is enough left to look at one more entry of so many bytes."""
        if self.spent is not None:
            return False
        if self._looks % _CLOCK_EVERY == 0 and self.is_late():
            return False
        self._looks += 1
        if size > self._bytes_left:
            self.spent = "bytes"
            return False
        self._bytes_left -= size
        self.taken_bytes += size
        return True

    def is_late(self) -> bool:
        """Looks at the clock. An index asks between two steps."""
        if self.spent is None and self._now() >= self._deadline:
            self.spent = "time"
        return self.spent is not None

    def out_of_memory(self) -> None:
        self.spent = self.spent or "memory"


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A search: which entries, in which order, how many, behind which place."""

    config: SearchConfig
    version: int
    predicate: Predicate
    sort: Sort
    size: int
    after: Place | None = None
    count_all: bool = False
    """Whether all matches are counted, although only some are wanted."""
    until: Place | None = None
    """The last of as many hits as are wanted, which other parts gave: what comes behind it need not be found. There is
    none where all matches are counted."""
    weights: Weights | None = None
    """What terms are worth, where hits are ranked by rarity."""

    def matcher(self) -> Matcher:
        return Matcher(self.predicate, self.config, self.version, self.sort.fields, self.weights)


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """A request for statistics: in how many entries terms stand, and how long the entries are."""

    config: SearchConfig
    version: int
    terms: tuple[Term, ...]


class Found(msgspec.Struct, kw_only=True):
    """What a part found: its best hits, the first one first, and what it did not look at."""

    hits: list[Hit]
    matched: int = 0
    """Entries that match and were met, whether they are among the hits or not."""
    looked_at: int = 0
    missed: int = 0
    first_missed: int | None = None
    candidates: int | None = None
    """Entries that an index named; None for a scan."""


class Totalled(msgspec.Struct, kw_only=True):
    """What a part adds to an aggregation."""

    groups: Groups = NO_GROUPS
    rolled: bool = False
    """Whether some of it had been added up before."""
    looked_at: int = 0
    missed: int = 0
    first_missed: int | None = None


class KeysFound(msgspec.Struct, kw_only=True):
    """The first routing keys of a part behind some key, in order."""

    keys: list[str]
    looked_at: int = 0
    missed: int = 0


class Counted(msgspec.Struct, kw_only=True):
    """What a part adds to statistics (`topics.indexing.ranking.Statistics`)."""

    numbers: list[int]
    looked_at: int = 0
    missed: int = 0
    first_missed: int | None = None


class Part(Protocol):
    @property
    def span(self) -> Span: ...

    def search(self, ask: Ask, budget: Budget) -> Found: ...

    def count(self, ask: Count, budget: Budget) -> Counted: ...

    def aggregate(self, ask: Aggregation, budget: Budget) -> Totalled: ...

    def keys(self, after: str | None, limit: int, budget: Budget) -> KeysFound: ...


class Source(Protocol):
    """Whoever has entries and no more. A source that knows which of them can match may leave the others out."""

    @property
    def span(self) -> Span: ...

    def entries(self, predicate: Predicate, descending: bool) -> Iterator[Entry]: ...


class Entries:
    """A source of entries that are in memory."""

    def __init__(self, span: Span, entries: Sequence[Entry]) -> None:
        self.span = span
        self._entries = entries

    def entries(self, predicate: Predicate, descending: bool) -> Iterator[Entry]:
        return iter(reversed(self._entries) if descending else self._entries)
