"""Aggregations: a rollup over a range of time, as buckets of one interval with a group for each of their keys."""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET

from topics.model.errors import InvalidRequestError, quoted
from topics.schema.documents import finder, parse_pointer
from topics.schema.search_fields import (
    Count,
    Measure,
    Rollup,
    SearchConfig,
    Summary,
    SummaryParts,
    interval_ms,
    own_rollup,
)
from topics.search.query import predicates
from topics.search.query.aggregate_arrays import (
    NO_GROUPS,
    Counted,
    Dimension,
    Groups,
    Histogram,
    Number,
    State,
    States,
    Summed,
    regroup,
    summary_of,
)
from topics.search.query.field_values import Extractor, Row, Value, date_of, shown, write_date
from topics.search.query.match import Test, compile_test
from topics.search.query.predicates import Everything, Predicate, bind_search, fields_of

# Rollups: the contribution of an entry to the aggregates of its interval and its group.
#
# An entry contributes if it matches the rollup's `include`, has exactly one timestamp, at most one value of each
# dimension (none is null), and a usable value for every summary, whichever measures are requested. So two measures
# always cover the same entries, and stored aggregates equal those of a scan.

Group = tuple[str | None, ...]
"""The dimensions of an entry, as texts."""

Contribute = Callable[[object, Row], State | None]
"""Returns the contribution of an entry and its row to a measure; None if the entry cannot be aggregated."""


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
        requested = rollup.dimensions if group_by is None else group_by
        self._grouped = tuple(rollup.dimensions.index(name) for name in requested)
        chosen = tuple(rollup.measures) if measures is None else measures
        self._measures = tuple(
            (name in chosen, _contribute(measure, places, includes.get(name)))
            for name, measure in rollup.measures.items()
        )

    def of(self, entry: object, first_ms: int, end_ms: int) -> Contribution | None:
        """Returns the contribution of an entry whose time is in the range, otherwise None."""
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
    """The contribution of an entry that is a summary already. Its count and its sum are required, the rest may be
    null."""
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
    """Returns counts by the lower bounds of their buckets; invalid members are omitted."""
    if type(found) is not dict:
        return None
    histogram: Histogram = {}
    for name, given in found.items():
        count = number_in(given)
        if count is not None and count >= 0 and name.isascii() and name.isdigit() and len(name) <= 400:
            histogram[int(name)] = histogram.get(int(name), 0) + count
    return histogram


_EARLIEST, _LATEST = -(1 << 62), 1 << 62
"""Used if a request has no time range."""
FIRST: Final = -(1 << 63)
"""The smallest timestamp of 64 bits."""


class Aggregation(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A parsed aggregation request."""

    config: SearchConfig
    version: int
    name: str
    from_ms: int
    to_ms: int
    interval: str
    interval_ms: int
    """0 means one bucket for all."""
    group_by: tuple[str, ...]
    measures: tuple[str, ...]
    predicate: Predicate
    given: Rollup | None = None
    """The rollup of a request that defines its own."""
    top: int | None = None
    """The number of groups in a bucket, those with the greatest counts; None for all."""

    @property
    def rollup(self) -> Rollup:
        return self.given or self.config.rollups[self.name]

    @cached_property
    def shown_measures(self) -> tuple[str, ...]:
        """The requested measures, in the order of the rollup."""
        return tuple(name for name in self.rollup.measures if name in self.measures)

    def start_of(self, moment: int) -> int:
        """Returns the start of the bucket of a timestamp, clamped to 64 bits."""
        return max(moment // self.interval_ms * self.interval_ms, FIRST) if self.interval_ms else self.from_ms

    def contributions(self) -> Contributions:
        return Contributions(self.rollup, self.config, self.version, self.predicate, self.group_by, self.measures)

    @cached_property
    def needed_fields(self) -> tuple[str, ...] | None:
        """The fields that the aggregation reads; None if it reads whole entries."""
        rollup = self.rollup
        if any(isinstance(measure, SummaryParts) for measure in rollup.measures.values()):
            return None
        return self.contributions().fields


class _Request(msgspec.Struct, frozen=True, rename={"from_": "from"}, forbid_unknown_fields=True):
    from_: str | int | float | None = None
    to: str | int | float | None = None
    rollup: str | None = None
    interval: str | None = None
    q: str | None = None
    group_by: list[str] | None = None
    measures: list[str] | dict[str, Any] | None = None
    timestamp_field: str | None = None
    top: int | None = None


_decode = msgspec.json.Decoder(_Request).decode


def parse_aggregation(body: bytes, config: SearchConfig, version: int) -> Aggregation:
    """Parses the body of a request, for a declared rollup or one that the request defines."""
    try:
        asked = _decode(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.from_decode("body", error, body) from None
    if asked.measures == []:
        raise InvalidRequestError("measures: is empty; leave it out for all measures", field="measures")
    if asked.rollup is None:
        return _parse_own(asked, config, version)
    rollup = config.rollups.get(asked.rollup)
    if rollup is None:
        raise InvalidRequestError(f"rollup {quoted(asked.rollup)} is not declared", field="rollup")
    for name in ("timestamp_field", "top"):
        if getattr(asked, name) is not None:
            raise InvalidRequestError(f"{name} goes without a declared rollup", field=name)
    if isinstance(asked.measures, dict):
        raise InvalidRequestError("measures must be names of the rollup's measures", field="measures")
    length = None if asked.interval is None else interval_ms(asked.interval)
    if length is None or all(interval_ms(known) != length for known in rollup.intervals):
        raise InvalidRequestError(
            f"interval {quoted(asked.interval or '')} is not one of the rollup's: {', '.join(rollup.intervals)}",
            field="interval",
        )
    from_ms, to_ms = _range(asked, None, None)
    return Aggregation(
        config=config,
        version=version,
        name=asked.rollup,
        from_ms=from_ms,
        to_ms=to_ms,
        interval=asked.interval or "",
        interval_ms=length,
        group_by=_names(asked.group_by, rollup.dimensions, "group_by", "dimensions", ()),
        measures=_names(asked.measures, tuple(rollup.measures), "measures", "measures", tuple(rollup.measures)),
        predicate=bind_search(asked.q or "", config).predicate,
    )


def _parse_own(asked: _Request, config: SearchConfig, version: int) -> Aggregation:
    """Parses an aggregation over fields that the request itself defines."""
    if isinstance(asked.measures, list):
        raise InvalidRequestError("measures must be an object where no rollup is named", field="measures")
    if asked.top is not None and not 1 <= asked.top <= predicates.MAX_GROUPS:
        raise InvalidRequestError(
            f"top must be from 1 to {predicates.MAX_GROUPS}", field="top", max=predicates.MAX_GROUPS
        )
    length = 0 if asked.interval is None else interval_ms(asked.interval)
    if length is None:
        raise InvalidRequestError(
            f"interval {quoted(asked.interval or '')} is not a duration such as 10s", field="interval"
        )
    group_by = tuple(dict.fromkeys(config.aliases.get(name, name) for name in asked.group_by or ()))
    rollup = own_rollup(config, asked.timestamp_field, group_by, asked.measures or {"count": {"kind": "count"}})
    from_ms, to_ms = _range(asked, _EARLIEST, _LATEST)
    return Aggregation(
        config=config,
        version=version,
        name="",
        from_ms=from_ms,
        to_ms=to_ms,
        interval=asked.interval or "",
        interval_ms=length,
        group_by=group_by,
        measures=tuple(rollup.measures),
        predicate=bind_search(asked.q or "", config).predicate,
        given=rollup,
        top=asked.top,
    )


def _range(asked: _Request, first: int | None, end: int | None) -> tuple[int, int]:
    from_ms = _time(asked.from_, "from") if asked.from_ is not None or first is None else first
    to_ms = _time(asked.to, "to") if asked.to is not None or end is None else end
    if from_ms >= to_ms:
        raise InvalidRequestError("from must be before to", field="from")
    return from_ms, to_ms


def _time(given: str | int | float | None, what: str) -> int:
    found = date_of(given)
    if found is None:
        raise InvalidRequestError(f"{what} must be a date, or milliseconds since 1970", field=what)
    return found


def _names(
    given: list[str] | None, known: tuple[str, ...], what: str, of: str, default: tuple[str, ...]
) -> tuple[str, ...]:
    if given is None:
        return default
    for name in given:
        if name not in known:
            raise InvalidRequestError(f"{what}: {quoted(name)} is not one of the rollup's {of}", field=what)
    return tuple(dict.fromkeys(given))


# Merging of aggregates: of single entries, and of parts.


class AggregateState:
    """Accumulates the contributions of single entries."""

    def __init__(self, ask: Aggregation) -> None:
        self._ask = ask
        self._states: dict[tuple[int, Group], tuple[State, ...]] = {}

    def add(self, contribution: Contribution) -> bool:
        """Adds the contribution of an entry. Returns False, without adding it, if there would be too many groups."""
        key = self._ask.start_of(contribution.timestamp), contribution.group
        known = self._states.get(key)
        if known is None:
            if len(self._states) >= predicates.MAX_GROUPS:
                return False
            self._states[key] = contribution.states
            return True
        for state, further in zip(known, contribution.states, strict=True):
            state.merge(further)
        return True

    def groups(self) -> Groups:
        if not self._states:
            return NO_GROUPS
        starts, found = zip(*self._states, strict=True)
        return Groups(
            np.array(starts, np.int64),
            [_dimension(names) for names in zip(*found, strict=True)],
            [States(states) for states in zip(*self._states.values(), strict=True)],
        )


def _dimension(names: Sequence[str | None]) -> Dimension:
    codes = {name: code for code, name in enumerate(dict.fromkeys(names))}
    return Dimension(np.array([codes[name] for name in names]), list(codes))


class Table:
    """The aggregates so far, of one or all parts. Parts are merged when there are many, or on demand."""

    def __init__(self) -> None:
        self._parts: list[Groups] = []
        self._count = 0

    def add(self, groups: Groups) -> bool:
        """Adds the aggregates of another part. Returns False if there are too many groups; only the first ones are
        kept."""
        if len(groups):
            self._parts.append(groups)
            self._count += len(groups)
        if self._count <= predicates.MAX_GROUPS:
            return True
        merged = self.groups()
        fits = len(merged) <= predicates.MAX_GROUPS
        self._parts = [merged if fits else merged.take(np.arange(predicates.MAX_GROUPS))]
        self._count = len(self._parts[0])
        return fits

    def groups(self) -> Groups:
        if not self._parts:
            return NO_GROUPS
        if len(self._parts) > 1:
            # Their buckets already have one length.
            self._parts = [regroup(self._parts, 1, range(len(self._parts[0].dimensions)))]
        return self._parts[0]


# Aggregates as JSON: buckets, oldest first, with the groups of each in order; null is last.
#
#     [{"start", "end", "groups": [{"key": {dimension: text | null}, "measures": {name: count or summary}}]}]
#
# There may be tens of thousands of groups, so work is done for all groups at once where possible, and the objects are
# not tracked by the garbage collector, because they have no cycles.

_encode = msgspec.json.Encoder().encode


class _Group(msgspec.Struct, gc=False):
    key: Any
    measures: Any


class _Bucket(msgspec.Struct, gc=False):
    start: str
    end: str
    groups: list[_Group]


def show(groups: Groups, ask: Aggregation) -> bytes:
    if not len(groups):
        return b"[]"
    chosen = groups.arranged() if ask.top is None else _greatest(groups.arranged(), ask.top)
    names = [[names[code] for code in codes.tolist()] for codes, names in chosen.dimensions]
    keys = _objects(ask.group_by, names, len(chosen))
    measures = _objects(ask.shown_measures, [measure.shown() for measure in chosen.measures], len(chosen))
    shown = list(map(_Group, keys, measures))
    starts, firsts = np.unique(chosen.starts, return_index=True)
    length = ask.interval_ms or ask.to_ms - ask.from_ms
    ends = [*firsts[1:].tolist(), len(chosen)]
    return _encode(
        [
            _Bucket(write_date(start), write_date(start + length), shown[first:end])
            for start, first, end in zip(starts.tolist(), firsts.tolist(), ends, strict=True)
        ]
    )


def _greatest(groups: Groups, top: int) -> Groups:
    """Returns the groups of each bucket with the greatest counts of the first measure, greatest first."""
    order = np.argsort(-groups.measures[0].counts, kind="stable")
    order = order[np.argsort(groups.starts[order], kind="stable")]
    starts = groups.starts[order]
    places = np.arange(len(order)) - np.searchsorted(starts, starts)
    return groups.take(order[places < top])


def _objects(names: tuple[str, ...], columns: Sequence[Sequence[Any]], count: int) -> list[msgspec.Struct]:
    """Creates an object for each row of some columns."""
    shape = _shape(names)
    return list(map(shape, *columns)) if columns else [shape()] * count


@lru_cache(maxsize=256)
def _shape(names: tuple[str, ...]) -> type[msgspec.Struct]:
    """Returns a struct with these fields; a dictionary for each object would take three times as long."""
    fields = [f"field{place}" for place in range(len(names))]
    return msgspec.defstruct("Shape", fields, rename=dict(zip(fields, names, strict=True)), gc=False)
