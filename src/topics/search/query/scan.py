"""Full scan: matches every entry without an index. It is the reference that all indexes are tested against."""

from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import Any

from topics.schema.registry import Registry
from topics.search.memory_index.column_store import Decoder, EntryBatch, PlainBatch, read_value
from topics.search.memory_index.memory_index import MemoryIndex
from topics.search.query.aggregate import AggregateState, Aggregation
from topics.search.query.field_values import Extractor
from topics.search.query.match import compile_test
from topics.search.query.plan import Ask, Budget, Count, Counted, Found, KeysFound, Source, Span, Totalled
from topics.search.query.predicates import Everything
from topics.search.query.score import Statistics
from topics.search.query.sort import Hit

_SPARE_HITS = 256
"""Hits that are kept besides the wanted ones before they are sorted and cut."""


class Scan:
    """A part that scans a source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def span(self) -> Span:
        return self._source.span

    def search(self, ask: Ask, budget: Budget) -> Found:
        matcher = ask.matcher()
        place_of = ask.sort.place_maker(matcher.places)
        by_offset = ask.sort.by_offset
        stops_early = by_offset is not None and not ask.count_all
        descending = by_offset is None or not by_offset.ascending
        found = Found(hits=[])
        hits = found.hits
        for entry in self._source.entries(ask.predicate, descending):
            if not budget.take(entry.size):
                self._miss(found, entry.number, descending)
                break
            found.looked_at += 1
            row = matcher.row(entry.value)
            if not matcher.matches(row):
                continue
            found.matched += 1
            score = matcher.score(row)
            place = place_of(row, entry.number, score)
            if ask.after is None or ask.sort.is_behind(place, ask.after):
                hits.append(Hit(place, entry.number, score))
                if stops_early and len(hits) == ask.size:
                    break
                if len(hits) >= 2 * ask.size + _SPARE_HITS:
                    self._cut(ask, hits)
        self._cut(ask, hits)
        return found

    @staticmethod
    def _cut(ask: Ask, hits: list[Hit]) -> None:
        ask.sort.arrange(hits)
        del hits[ask.size :]

    def count(self, ask: Count, budget: Budget) -> Counted:
        statistics = Statistics(ask.terms)
        extractor = Extractor(ask.config, ask.version, statistics.fields)
        tests = [compile_test(term, extractor.places) for term in ask.terms]
        places = [extractor.places[name] for name in statistics.fields]
        is_text = [ask.config.fields[name].kind == "text" for name in statistics.fields]
        found = Counted(numbers=[])
        for entry in self._source.entries(Everything(), False):
            if not budget.take(entry.size):
                self._miss(found, entry.number, False)
                break
            found.looked_at += 1
            row = extractor.row(entry.value)
            for index, place in enumerate(places):
                values = row[place] or ()
                words = sum(map(len, values)) if is_text[index] else len(values)
                statistics.entries[index] += words > 0
                statistics.words[index] += words if is_text[index] else 0
            for index, test in enumerate(tests):
                statistics.found[index] += test(row)
        found.numbers = statistics.numbers
        return found

    def aggregate(self, ask: Aggregation, budget: Budget) -> Totalled:
        contributions = ask.contributions()
        totalled, state = Totalled(), AggregateState(ask)
        for entry in self._source.entries(ask.predicate, False):
            if not budget.take(entry.size):
                self._miss(totalled, entry.number, False)
                break
            contribution = contributions.of(entry.value, ask.from_ms, ask.to_ms)
            if contribution is not None and not state.add(contribution):
                budget.out_of_memory()
                self._miss(totalled, entry.number, False)
                break
            totalled.looked_at += 1
        totalled.groups = state.groups()
        return totalled

    def keys(self, after: str | None, limit: int, budget: Budget) -> KeysFound:
        known: set[str] = set()
        ordered: list[str] = []
        found = KeysFound(keys=ordered)
        for entry in self._source.entries(Everything(), False):
            if not budget.take(len(entry.key or "")):
                found.missed = self.span.rows - found.looked_at
                break
            found.looked_at += 1
            key = entry.key
            if key is None or (after is not None and key <= after) or key in known:
                continue
            if len(ordered) == limit:
                if key > ordered[-1]:
                    continue
                known.discard(ordered.pop())
            known.add(key)
            insort(ordered, key)
        return found

    def _miss(self, found: Found | Totalled | Counted, number: int, descending: bool) -> None:
        """Notes that the entry of this number, and those that would have come behind it, were not looked at."""
        found.missed = self.span.rows - found.looked_at
        found.first_missed = self.span.first if descending else number


# Stored text as entries: parsed and promoted as a read does it, for a caller that fills an index.


class EntryReader:
    """Fills indexes with the entries of one stream, as it is described now."""

    def __init__(self, registry: Registry) -> None:
        self._is_searched = registry.search_config is not None
        self._promoter = registry.promoter if registry.current_version > 1 else None

    def fill(
        self,
        index: MemoryIndex,
        decoder: Decoder,
        numbers: Sequence[int],
        raws: Sequence[bytes | memoryview],
        keys: Sequence[str | None],
    ) -> None:
        """Adds entries as they are stored, in the order of their numbers, behind all that are there."""
        promoter, begin = self._promoter, 0
        if promoter is not None and numbers and numbers[0] <= promoter.current_from:
            begin = bisect_right(numbers, promoter.current_from)
            values = [self._value(*entry) for entry in zip(numbers[:begin], raws, strict=False)]
            index.add_batch(PlainBatch(numbers[:begin], values, keys[:begin]))
        if begin < len(numbers):
            index.add_batch(self._batch(decoder, numbers[begin:], raws[begin:], keys[begin:]))

    def _batch(
        self,
        decoder: Decoder,
        numbers: Sequence[int],
        raws: Sequence[bytes | memoryview],
        keys: Sequence[str | None],
    ) -> EntryBatch:
        """Entries of the current version. A stream that is searched for its keys alone is not parsed."""
        if not self._is_searched:
            return PlainBatch(numbers, [None] * len(raws), keys)
        return decoder.batch(numbers, raws, keys)

    def _value(self, seq: int, raw: bytes | memoryview) -> Any:
        """An entry of an earlier version, promoted."""
        if not self._is_searched:
            return None
        value = read_value(raw)
        promoter = self._promoter
        assert promoter is not None
        # Seqs begin with 1, and a registry counts entries from 0.
        if promoter.is_current(promoter.version_of(seq - 1)):
            return value
        try:
            return promoter.chain(promoter.version_of(seq - 1)).apply(value, len(raw))
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            # As a read does: an entry that cannot be promoted stays as it is. The attempt may have changed it.
            return read_value(raw)
