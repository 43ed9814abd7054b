"""Rollups: what an entry contributes to the sums of its interval and its group.

An entry contributes if it matches the rollup's `include`, has exactly one timestamp, at most one value of each
dimension (none is null), and a usable value for every summary, whichever measures are asked for. So the sums of two
measures are always about the same entries, and those that an index keeps are those that a scan makes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import UNSET

from topics.indexing.extraction import Extractor, Row
from topics.indexing.matching import Test, compile_test
from topics.indexing.measures import Counted, Histogram, Number, State, Summed, summary_of
from topics.indexing.predicates import Everything, Predicate, bind_search, fields_of
from topics.indexing.values import Value, shown
from topics.schema.pointers import finder, parse_pointer
from topics.schema.search import Count, Measure, Rollup, SearchConfig, Summary, SummaryParts

Group = tuple[str | None, ...]
"""The dimensions of an entry, as texts."""

Contribute = Callable[[object, Row], State | None]
"""What an entry, and its row, adds to a measure; None for an entry that cannot be summed at all."""


class Contribution(NamedTuple):
    timestamp: int
    group: Group
    states: tuple[State, ...]


class Contributions:
    """The contributions of entries to one rollup, restricted by a predicate and to some of its measures."""

    def __init__(
        self,
        rollup: Rollup,
        config: SearchConfig,
        version: int,
        predicate: Predicate = Everything(),  # noqa: B008 - it is a constant
        group_by: tuple[str, ...] | None = None,
        measures: tuple[str, ...] | None = None,
    ) -> None:
        includes = {
            name: bind_search(measure.include, config, f"rollup include of {name}").predicate
            for name, measure in rollup.measures.items()
            if isinstance(measure, Count) and measure.include is not UNSET
        }
        include = (
            Everything() if rollup.include is UNSET else bind_search(rollup.include, config, "rollup include").predicate
        )
        needed = [rollup.timestamp_field, *rollup.dimensions]
        needed += [measure.field for measure in rollup.measures.values() if isinstance(measure, Summary)]
        for part in (predicate, include, *includes.values()):
            needed += fields_of(part)
        self._extractor = Extractor(config, version, needed)
        places = self._extractor.places
        self.fields = tuple(places)
        self._include = compile_test(include, places)
        self._predicate = compile_test(predicate, places)
        self._timestamp = places[rollup.timestamp_field]
        self._dimensions = tuple(places[name] for name in rollup.dimensions)
        wanted = rollup.dimensions if group_by is None else group_by
        self._grouped = tuple(rollup.dimensions.index(name) for name in wanted)
        chosen = tuple(rollup.measures) if measures is None else measures
        self._measures = tuple(
            (name in chosen, _contribute(measure, places, includes.get(name)))
            for name, measure in rollup.measures.items()
        )

    def of(self, entry: object, first_ms: int, end_ms: int) -> Contribution | None:
        """What an entry adds, if its time is in the range; None for nothing."""
        row = self._extractor.row(entry)
        times = row[self._timestamp]
        if times is None or len(times) != 1 or not first_ms <= times[0] < end_ms:
            return None
        if not self._include(row) or not self._predicate(row):
            return None
        group: list[Value | None] = []
        for place in self._dimensions:
            values = row[place] or ()
            if len(values) > 1:
                return None
            group.append(values[0] if values else None)
        states: list[State] = []
        for is_chosen, contribute in self._measures:
            state = contribute(entry, row)
            if state is None:
                return None
            if is_chosen:
                states.append(state)
        named = tuple(None if group[index] is None else shown(group[index]) for index in self._grouped)  # type: ignore[arg-type]
        return Contribution(times[0], named, tuple(states))


def _contribute(measure: Measure, places: dict[str, int], include: Predicate | None) -> Contribute:
    if isinstance(measure, Count):
        test: Test | None = None if include is None else compile_test(include, places)
        return lambda entry, row: Counted(1 if test is None or test(row) else 0)
    if isinstance(measure, Summary):
        return _summary(places[measure.field], measure.histogram is not UNSET)
    return summary_parts(measure)


def _summary(place: int, with_histogram: bool) -> Contribute:
    def contribute(_: object, row: Row) -> State | None:
        values = row[place]
        return summary_of(values[0], with_histogram) if values is not None and len(values) == 1 else None

    return contribute


def summary_parts(measure: SummaryParts) -> Callable[[object, Row], Summed | None]:
    """The contribution of an entry that is a summary already: its count and its sum; the rest may be null."""
    find_count, find_sum, find_min, find_max = (
        finder(parse_pointer(pointer, "jsonPointer"))
        for pointer in (
            measure.count_json_pointer,
            measure.sum_json_pointer,
            measure.min_json_pointer,
            measure.max_json_pointer,
        )
    )
    pointer = measure.histogram_json_pointer
    find_histogram = None if pointer is UNSET else finder(parse_pointer(pointer, "jsonPointer"))

    def contribute(entry: object, _: Row) -> Summed | None:
        count, total = number_in(find_count(entry)), number_in(find_sum(entry))
        if count is None or total is None:
            return None
        histogram = None if find_histogram is None else read_histogram(find_histogram(entry))
        return Summed(count, total, number_in(find_min(entry)), number_in(find_max(entry)), histogram)

    return contribute


def number_in(value: object) -> Number | None:
    if type(value) is int or (type(value) is float and value - value == 0.0):
        return value
    return None


def read_histogram(found: Any) -> Histogram | None:
    """Counts by the lower bounds of their buckets; what is none is left out."""
    if type(found) is not dict:
        return None
    histogram: Histogram = {}
    for name, given in found.items():
        count = number_in(given)
        if count is not None and count >= 0 and name.isascii() and name.isdigit() and len(name) <= 400:
            histogram[int(name)] = histogram.get(int(name), 0) + count
    return histogram
