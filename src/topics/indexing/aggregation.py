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
from topics.schema.search import Rollup, SearchConfig, SummaryParts, interval_ms, own_rollup

_EARLIEST, _LATEST = -(1 << 62), 1 << 62
"""Where a request names no time."""


class Aggregation(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What is asked for."""

    config: SearchConfig
    version: int
    name: str
    from_ms: int
    to_ms: int
    interval: str
    interval_ms: int
    """0 is one bucket for all."""
    group_by: tuple[str, ...]
    measures: tuple[str, ...]
    predicate: Predicate
    given: Rollup | None = None
    """The rollup of a request that brings its own."""
    top: int | None = None
    """How many groups of a bucket are shown, those with the greatest counts; all without it."""

    @property
    def rollup(self) -> Rollup:
        return self.given or self.config.rollups[self.name]

    def start_of(self, moment: int) -> int:
        """The beginning of the bucket of a moment."""
        return moment // self.interval_ms * self.interval_ms if self.interval_ms else self.from_ms

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
        self._ask = ask
        self.groups: dict[GroupKey, tuple[State, ...]] = {}

    def add(self, contribution: Contribution) -> bool:
        """Adds what an entry contributes. False when it would be one group too many, and nothing was added."""
        return self.put(GroupKey(self._ask.start_of(contribution.timestamp), contribution.group), contribution.states)

    def merge(self, other: "Table") -> bool:
        """Adds the sums of another part, which are used up. False when not all of them were added."""
        if not self.groups and len(other.groups) <= limits.MAX_GROUPS:
            self.groups = other.groups
            return True
        return all([self.put(key, states) for key, states in other.groups.items()])

    def put(self, key: GroupKey, states: tuple[State, ...]) -> bool:
        """Adds the sums of one group, which are used up. False when it would be one group too many."""
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
        for key in self._ordered(ask.top):
            groups = found.setdefault(key.start_ms, [])
            if ask.top is None or len(groups) < ask.top:
                shown = {name: state.show() for name, state in zip(names, self.groups[key], strict=True)}
                groups.append({"key": dict(zip(ask.group_by, key.group, strict=True)), "measures": shown})
        length = ask.interval_ms or ask.to_ms - ask.from_ms
        return [
            {"start": write_date(start), "end": write_date(start + length), "groups": groups}
            for start, groups in found.items()
        ]

    def _ordered(self, top: int | None) -> list[GroupKey]:
        """By time, then by the group; with `top` the greatest counts first."""
        ordered = sorted(
            self.groups, key=lambda key: (key.start_ms, [(part is None, part or "") for part in key.group])
        )
        if top is not None:
            ordered.sort(key=lambda key: (key.start_ms, -self.groups[key][0].count))
        return ordered


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
    """The aggregation of a request's body: of a declared rollup, or of one that the request brings."""
    try:
        asked = _decode(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.from_decode("body", error, body) from None
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
    """An aggregation over fields, of which nothing was declared but the fields."""
    if isinstance(asked.measures, list):
        raise InvalidRequestError("measures must be an object where no rollup is named", field="measures")
    if asked.top is not None and not 1 <= asked.top <= limits.MAX_GROUPS:
        raise InvalidRequestError(f"top must be from 1 to {limits.MAX_GROUPS}", field="top", max=limits.MAX_GROUPS)
    length = 0 if asked.interval is None else interval_ms(asked.interval)
    if length is None:
        raise InvalidRequestError(f"interval {quoted(asked.interval or '')} is no length such as 10s", field="interval")
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
