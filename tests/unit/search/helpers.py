"""Shared parts of the search tests: a registry of request logs, entries of it, and one way to query."""

from collections.abc import Sequence
from itertools import repeat
from typing import Any

from topics.schema.search_fields import SearchConfig, parse_search
from topics.search.query.aggregate import Group
from topics.search.query.aggregate_arrays import Groups, State
from topics.search.query.plan import Ask, Budget, Entries, Entry, Page, Span, search
from topics.search.query.predicates import bind_search
from topics.search.query.scan import Scan
from topics.search.query.sort import parse_place, parse_sort


def bound(kind: str, pointer: str, **flags: Any) -> dict[str, Any]:
    more = {"analyzer": "unicode_word_v1"} if kind == "text" else {}
    return {"kind": kind, "bindings": [{"version": 1, "jsonPointer": pointer}], **more, **flags}


LOGS: dict[str, Any] = {
    "primaryTimestampField": "eventTime",
    "aliases": {"req": "requestId", "ts": "eventTime"},
    "defaultFields": [{"field": "message", "boost": 2}, {"field": "why", "boost": 1.5}],
    "fields": {
        "eventTime": bound("date", "/eventTime", column=True, exists=True, sortable=True),
        "service": bound(
            "keyword", "/service", exact=True, exists=True, normalizer="lowercase_v1", prefix=True, sortable=True
        ),
        "status": bound("integer", "/status", exact=True, column=True, exists=True, sortable=True, aggregatable=True),
        "duration": bound("float", "/duration", column=True, exists=True, sortable=True, aggregatable=True),
        "requestId": bound("keyword", "/requestId", exact=True, prefix=True, sortable=True),
        "hidden": bound("keyword", "/hidden"),
        "ok": bound("bool", "/ok", exact=True, column=True),
        "message": bound("text", "/message", exists=True, positions=True),
        "why": bound("text", "/why", exists=True),
    },
}
CONFIG: SearchConfig = parse_search(LOGS)


def plenty() -> Budget:
    """A budget that nothing spends."""
    return Budget(lambda: 0.0, 1.0, 1 << 60)


def states_of(groups: Groups) -> dict[tuple[int, Group], tuple[State, ...]]:
    """Returns the state of each group, by its beginning and its dimensions."""
    named = [[names[code] for code in codes.tolist()] for codes, names in groups.dimensions]
    keys = zip(groups.starts.tolist(), zip(*named, strict=True) if named else repeat(()), strict=False)
    return dict(zip(keys, zip(*[measure.states() for measure in groups.measures], strict=True), strict=True))


def part_of(values: Sequence[Any], first: int = 0) -> Scan:
    entries = [Entry(first + index, value, len(str(value)), _key(value)) for index, value in enumerate(values)]
    return Scan(Entries(Span(first, first + len(values) - 1, len(values)), entries))


def _key(value: Any) -> str | None:
    key = value.get("key") if isinstance(value, dict) else None
    return key if isinstance(key, str) else None


def find(
    values: Sequence[Any],
    q: str,
    *,
    sort: Sequence[str] = (),
    size: int = 50,
    after: list[Any] | None = None,
    config: SearchConfig = CONFIG,
) -> Page:
    query = bind_search(q, config)
    order = parse_sort(sort, config, query.has_text)
    place = None if after is None else parse_place(after, order, config, _number)
    ask = Ask(config=config, version=1, predicate=query.predicate, sort=order, size=size, after=place)
    return search([part_of(values)], ask, plenty())


def numbers(page: Page) -> list[int]:
    return [hit.number for hit in page.hits]


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, str) else None
