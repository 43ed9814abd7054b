"""Sort order of hits, and the position where the next page begins.

A sort is a list of keys, each `_score`, `offset` or a field, descending unless it has `:asc`. Entries never tie,
because their offset is the last key. A missing field is null and greater than every value: last ascending, first
descending. Of several values the smallest counts ascending, the greatest descending.

The values of a hit's keys are its position. The next page begins behind the position of the last hit, so it repeats no
hit, also when entries are appended in between.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from topics.model.errors import InvalidRequestError, quoted
from topics.schema.search_fields import SearchConfig
from topics.search.query.field_values import Row, canonical
from topics.search.query.predicates import MAX_SORT_ITEMS

SCORE = "_score"
OFFSET = "offset"

Place = tuple[Any, ...]
"""The values of the keys, of an offset the number of the entry; None for null."""


class Key(msgspec.Struct, frozen=True):
    name: str
    ascending: bool = False

    def later(self, value: Any, other: Any) -> Any:
        """The one of two values that comes later."""
        return max(value, other, key=_rank) if self.ascending else min(value, other, key=_rank)


class Hit(NamedTuple):
    """An entry that matches."""

    place: Place
    number: int
    score: float


_NUMBER: Callable[[Hit], int] = attrgetter("number")


class Sort(msgspec.Struct, frozen=True):
    keys: tuple[Key, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(key.name for key in self.keys if key.name not in (SCORE, OFFSET))

    @property
    def needs_score(self) -> bool:
        return any(key.name == SCORE for key in self.keys)

    @property
    def by_offset(self) -> Key | None:
        """The first key, when it is the offset: then entries are met in the order of the hits."""
        return self.keys[0] if self.keys[0].name == OFFSET else None

    def place_maker(self, places: dict[str, int]) -> Callable[[Row, int, float], Place]:
        """A function from an entry's row, number and score to its place."""
        makers = [_key_maker(key, places) for key in self.keys]
        return lambda row, number, score: tuple(make(row, number, score) for make in makers)

    def arrange(self, hits: list[Hit]) -> None:
        """Sorts hits, the first one of the answer first."""
        if self.by_offset is not None:
            # Nothing is equal, so that no other key counts.
            hits.sort(key=_NUMBER, reverse=not self.by_offset.ascending)
            return
        for index, key in reversed(list(enumerate(self.keys))):
            column = [hit.place[index] for hit in hits]
            ranks = list(map(_rank, column)) if None in column else column
            order = sorted(range(len(hits)), key=ranks.__getitem__, reverse=not key.ascending)
            hits[:] = [hits[place] for place in order]

    def is_behind(self, place: Place, after: Place) -> bool:
        """Whether a hit comes behind a place."""
        for key, value, bound in zip(self.keys, place, after, strict=True):
            if value != bound:
                is_greater = _rank(value) > _rank(bound)
                return is_greater is key.ascending
        return False

    def is_surely_behind(self, best: Sequence[Any], place: Place) -> bool:
        """Whether every hit comes behind a place whose values of the first keys are at best these."""
        for key, value, bound in zip(self.keys, best, place, strict=False):
            if value != bound:
                is_greater = _rank(value) > _rank(bound)
                return is_greater is key.ascending
        return False

    def order_by(self, best: Mapping[int, Sequence[Any]]) -> list[int]:
        """Numbers of groups of hits in the order of the values that the first keys of their hits have at best."""
        ordered = list(best)
        known = min(map(len, best.values()), default=0)
        for index, key in reversed(list(enumerate(self.keys[:known]))):
            ordered.sort(key=partial(_rank_of, best, index), reverse=not key.ascending)
        return ordered


def _rank_of(best: Mapping[int, Sequence[Any]], index: int, number: int) -> tuple[Any, ...]:
    return _rank(best[number][index])


def _rank(value: Any) -> tuple[Any, ...]:
    return (1,) if value is None else (0, value)


def _key_maker(key: Key, places: dict[str, int]) -> Callable[[Row, int, float], Any]:
    if key.name == OFFSET:
        return lambda row, number, score: number
    if key.name == SCORE:
        return lambda row, number, score: score
    place = places[key.name]
    choose: Callable[[Any], Any] = min if key.ascending else max
    return lambda row, number, score: choose(row[place]) if row[place] else None


def default_sort(config: SearchConfig, has_text: bool) -> Sort:
    if not has_text:
        return Sort((Key(OFFSET),))
    primary = config.primary_timestamp_field
    return Sort((Key(SCORE), Key(OFFSET)) if primary is UNSET else (Key(SCORE), Key(primary), Key(OFFSET)))


def parse_sort(items: Sequence[str], config: SearchConfig, has_text: bool, what: str = "sort") -> Sort:
    """The sort that a request asks for; the default one if it asks for none."""
    if not items:
        return default_sort(config, has_text)
    if len(items) > MAX_SORT_ITEMS:
        raise InvalidRequestError(f"{what}: has more than {MAX_SORT_ITEMS} items", field=what, max=MAX_SORT_ITEMS)
    keys: list[Key] = []
    for item in items:
        given, _, direction = item.strip().partition(":")
        if direction not in ("", "asc", "desc"):
            raise InvalidRequestError(f"{what}: {quoted(item)} is neither ascending nor descending", field=what)
        name = given if given in (SCORE, OFFSET) else _sortable(given, config, what)
        if all(key.name != name for key in keys):
            # Entries that are equal by a key are equal by the same key again.
            keys.append(Key(name, direction == "asc"))
    if all(key.name != OFFSET for key in keys):
        keys.append(Key(OFFSET))
    return Sort(tuple(keys))


def _sortable(given: str, config: SearchConfig, what: str) -> str:
    name = config.aliases.get(given, given)
    field = config.fields.get(name)
    if field is None:
        raise InvalidRequestError(f"{what}: field {quoted(given)} is not declared", field=what)
    if not field.sortable and name != config.primary_timestamp_field:
        raise InvalidRequestError(f"{what}: field {quoted(given)} is not sortable", field=what)
    return name


NumberOf = Callable[[object], int | None]
"""The number of an entry from its offset as requests have it; None for what is none. May raise what it refuses with."""


def parse_place(
    values: object, sort: Sort, config: SearchConfig, number_of: NumberOf, what: str = "search_after"
) -> Place:
    """The place that a request goes on behind."""
    if not isinstance(values, list) or len(values) != len(sort.keys):
        raise InvalidRequestError(
            f"{what}: must be an array of {len(sort.keys)} values, one for each key of the sort", field=what
        )
    return tuple(
        _place_value(key, value, config, number_of, what) for key, value in zip(sort.keys, values, strict=True)
    )


def _score_of(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return None


def _place_value(key: Key, value: object, config: SearchConfig, number_of: NumberOf, what: str) -> Any:
    found: Any = None
    if key.name == OFFSET:
        found = number_of(value)
    elif key.name == SCORE:
        found = _score_of(value)
    elif value is None:
        return None
    elif config.fields[key.name].kind == "keyword":
        found = value if isinstance(value, str) else None
    else:
        found = canonical(config.fields[key.name])(value)
    if found is None:
        raise InvalidRequestError(f"{what}: a value does not fit the key {key.name}", field=what)
    return found
