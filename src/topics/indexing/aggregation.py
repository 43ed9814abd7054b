"""Aggregations: a rollup over a range of time, as buckets of one interval with a group for each of their keys."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from topics.core.errors import InvalidRequestError, quoted
from topics.indexing import limits
from topics.indexing.measures import State
from topics.indexing.predicates import Predicate, bind_search
from topics.indexing.rollups import Contribution, Contributions, Group
from topics.indexing.values import date_of, write_date
from topics.schema.search import Rollup, SearchConfig, SummaryParts, interval_ms


class Aggregation(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What is asked for."""

    config: SearchConfig
    version: int
    name: str
    from_ms: int
    to_ms: int
    interval: str
    interval_ms: int
    group_by: tuple[str, ...]
    measures: tuple[str, ...]
    predicate: Predicate

    @property
    def rollup(self) -> Rollup:
        return self.config.rollups[self.name]

    def contributions(self) -> Contributions:
        return Contributions(self.rollup, self.config, self.version, self.predicate, self.group_by, self.measures)

    def needed_fields(self) -> tuple[str, ...] | None:
        """The fields that it looks at; None where it looks at entries besides."""
        rollup = self.rollup
        if any(isinstance(measure, SummaryParts) for measure in rollup.measures.values()):
            return None
        return self.contributions().fields


class GroupKey(NamedTuple):
    start_ms: int
    group: Group


class Table:
    """The sums so far, of one part or of all."""

    def __init__(self, ask: Aggregation) -> None:
        self._interval = ask.interval_ms
        self.groups: dict[GroupKey, tuple[State, ...]] = {}

    def add(self, contribution: Contribution) -> bool:
        """Adds what an entry contributes. False when it would be one group too many, and nothing was added."""
        start = contribution.timestamp // self._interval * self._interval
        return self._add(GroupKey(start, contribution.group), contribution.states)

    def merge(self, other: "Table") -> bool:
        """Adds the sums of another part, which are used up. False when not all of them were added."""
        return all([self._add(key, states) for key, states in other.groups.items()])

    def _add(self, key: GroupKey, states: tuple[State, ...]) -> bool:
        known = self.groups.get(key)
        if known is None:
            if len(self.groups) >= limits.MAX_GROUPS:
                return False
            self.groups[key] = states
            return True
        for state, further in zip(known, states, strict=True):
            state.merge(further)
        return True

    def buckets(self, ask: Aggregation, names: Sequence[str]) -> list[dict[str, Any]]:
        """The buckets as they are answered, the oldest first and the groups of each in order; null is the last."""
        found: dict[int, list[dict[str, Any]]] = {}
        ordered = sorted(
            self.groups, key=lambda key: (key.start_ms, [(part is None, part or "") for part in key.group])
        )
        for key in ordered:
            shown = {name: state.show() for name, state in zip(names, self.groups[key], strict=True)}
            group = dict(zip(ask.group_by, key.group, strict=True))
            found.setdefault(key.start_ms, []).append({"key": group, "measures": shown})
        return [
            {"start": write_date(start), "end": write_date(start + self._interval), "groups": groups}
            for start, groups in found.items()
        ]


class _Request(msgspec.Struct, frozen=True, rename={"from_": "from"}, forbid_unknown_fields=True):
    rollup: str
    from_: str | int | float
    to: str | int | float
    interval: str
    q: str | None = None
    group_by: list[str] | None = None
    measures: list[str] | None = None


_decode = msgspec.json.Decoder(_Request).decode


def parse_aggregation(body: bytes, config: SearchConfig, version: int) -> Aggregation:
    """The aggregation of a request's body."""
    try:
        asked = _decode(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.from_decode("body", error, body) from None
    rollup = config.rollups.get(asked.rollup)
    if rollup is None:
        raise InvalidRequestError(f"rollup {quoted(asked.rollup)} is not declared", field="rollup")
    length = interval_ms(asked.interval)
    if length is None or all(interval_ms(known) != length for known in rollup.intervals):
        raise InvalidRequestError(
            f"interval {quoted(asked.interval)} is not one of the rollup's: {', '.join(rollup.intervals)}",
            field="interval",
        )
    from_ms, to_ms = _time(asked.from_, "from"), _time(asked.to, "to")
    if from_ms >= to_ms:
        raise InvalidRequestError("from must be before to", field="from")
    return Aggregation(
        config=config,
        version=version,
        name=asked.rollup,
        from_ms=from_ms,
        to_ms=to_ms,
        interval=asked.interval,
        interval_ms=length,
        group_by=_names(asked.group_by, rollup.dimensions, "group_by", "dimensions", ()),
        measures=_names(asked.measures, tuple(rollup.measures), "measures", "measures", tuple(rollup.measures)),
        predicate=bind_search(asked.q or "", config).predicate,
    )


def _time(given: str | int | float, what: str) -> int:
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
