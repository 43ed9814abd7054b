"""Aggregations: a rollup over a range of time, as buckets of one interval with a group for each of their keys."""

from functools import cached_property
from typing import Any, Final

import msgspec

from topics.core.errors import InvalidRequestError, quoted
from topics.indexing import limits
from topics.indexing.predicates import Predicate, bind_search
from topics.indexing.rollups import Contributions
from topics.indexing.values import date_of
from topics.schema.search import Rollup, SearchConfig, SummaryParts, interval_ms, own_rollup

_EARLIEST, _LATEST = -(1 << 62), 1 << 62
"""Where a request names no time."""
FIRST: Final = -(1 << 63)
"""The first moment that 64 bits can say."""


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

    @cached_property
    def shown_measures(self) -> tuple[str, ...]:
        """The measures that are wanted, in the order of the rollup."""
        return tuple(name for name in self.rollup.measures if name in self.measures)

    def start_of(self, moment: int) -> int:
        """The beginning of the bucket of a moment, as far as 64 bits reach."""
        return max(moment // self.interval_ms * self.interval_ms, FIRST) if self.interval_ms else self.from_ms

    def contributions(self) -> Contributions:
        return Contributions(self.rollup, self.config, self.version, self.predicate, self.group_by, self.measures)

    @cached_property
    def needed_fields(self) -> tuple[str, ...] | None:
        """The fields that it looks at; None where it looks at entries besides."""
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
