"""What requests to search ask for, read strictly: every field that is not known is refused by its name."""

from typing import Any, Final, Literal, TypeGuard

import msgspec

from topics.api.calls import Call
from topics.api.v1.hit_fields import HitFields, hit_fields_of
from topics.core.errors import InvalidRequestError, quoted
from topics.engine.topic import Topic
from topics.indexing.highlights import Highlighter
from topics.indexing.limits import DEFAULT_PAGE_HITS, DEFAULT_PAGE_KEYS, MAX_PAGE_HITS, MAX_PAGE_KEYS
from topics.indexing.predicates import Predicate
from topics.indexing.ranking import Statistics, terms_of
from topics.indexing.sorting import NumberOf, Place, Sort, parse_place
from topics.schema.limits import MAX_KEY_BYTES
from topics.schema.search import SearchConfig
from topics.searching.known import known_search, known_sort
from topics.searching.messages import KeysQuery, SearchQuery
from topics.streams.contracts import contract_of
from topics.streams.offsets import read_offset

_REFUSED = "track_total_hits"
_NO_LONGER = f"{_REFUSED} is no longer supported"
_NAMES = (
    "q", "size", "search_after", "sort", "timeout_ms", "track_total", "_source", "fields", "explain", "highlight",
    "rank",
)  # fmt: skip
Rank = Literal["bm25"]
_STATISTIC_MAX: Final = 1 << 53


class SearchRequest(msgspec.Struct, frozen=True, kw_only=True):
    topic: Topic
    config: SearchConfig
    query: SearchQuery
    predicate: Predicate
    shows: HitFields
    sort: Sort
    timeout_ms: int
    track_total: bool
    explain: bool
    source: bool
    fields: tuple[str, ...] | None
    highlight: Highlighter | None = None


class SearchBody(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "_source"}):
    q: str | None = None
    size: int | None = None
    search_after: list[Any] | None = None
    sort: list[str] | str | None = None
    timeout_ms: int | None = None
    track_total: bool = False
    explain: bool = False
    source: bool = True
    fields: list[str] | None = None
    highlight: bool | list[str] = False
    rank: Rank | None = None


class ManyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of several streams."""

    streams: str | list[str]
    search_after: dict[str, list[Any] | None] = {}
    """Where the page goes on in each of them; null for one that has no more."""


_decode = msgspec.json.Decoder(SearchBody).decode
_decode_any = msgspec.json.Decoder().decode


def tenant_of(call: Call) -> str | None:
    """Whose searches are counted together; None where there are no keys."""
    return (call.key.tenant or call.key.owner) or None


def parse_search_call(
    call: Call, topic: Topic, config: SearchConfig, max_timeout_ms: int, number_of: NumberOf | None = None
) -> SearchRequest:
    """What is asked for. `number_of` reads an offset where it is written otherwise than in /v1."""
    body = _from_query(call) if call.exchange.head.method == "GET" else _from_body(call.exchange.body)
    return bind_request(body, topic, config, max_timeout_ms, number_of)


def bind_request(
    body: SearchBody, topic: Topic, config: SearchConfig, max_timeout_ms: int, number_of: NumberOf | None = None
) -> SearchRequest:
    """What a request asks of one stream."""

    def read_text(value: object) -> int | None:
        return read_offset(topic, value).counter if isinstance(value, str) else None

    size = DEFAULT_PAGE_HITS if body.size is None else body.size
    if not 1 <= size <= MAX_PAGE_HITS:
        raise InvalidRequestError(f"size must be from 1 to {MAX_PAGE_HITS}", field="size", max=MAX_PAGE_HITS)
    timeout_ms = max_timeout_ms if body.timeout_ms is None else body.timeout_ms
    if timeout_ms < 0:
        raise InvalidRequestError("timeout_ms must not be negative", field="timeout_ms")
    q = body.q or ""
    registry = contract_of(topic).registry
    bound = known_search(q, registry)
    items = body.sort.split(",") if isinstance(body.sort, str) else body.sort or []
    sort = known_sort(items, registry, bound.has_text)
    after: list[Any] | None = None
    statistics: tuple[int, ...] = ()
    if body.search_after is not None:
        place, statistics = _parse_after(body, sort, config, bound.predicate, number_of or read_text)
        after = list(place)
    fields = None if body.fields is None else _declared(body.fields, config, "fields")
    return SearchRequest(
        topic=topic,
        config=config,
        query=SearchQuery(q, tuple(items), size, after, body.track_total, body.rank is not None, statistics),
        predicate=bound.predicate,
        shows=hit_fields_of(registry),
        sort=sort,
        timeout_ms=min(timeout_ms, max_timeout_ms),
        track_total=body.track_total,
        explain=body.explain,
        source=body.source,
        fields=fields,
        highlight=_highlighter(body.highlight, bound.predicate, config, registry.current_version),
    )


def _parse_after(
    body: SearchBody, sort: Sort, config: SearchConfig, predicate: Predicate, number_of: NumberOf
) -> tuple[Place, tuple[int, ...]]:
    """Where the page goes on, and what the page before it was ranked by, if that is told."""
    values = body.search_after or []
    statistics: tuple[int, ...] = ()
    if body.rank is not None and len(values) == len(sort.keys) + 1:
        *values, counted = values
        wanted = len(Statistics(terms_of(predicate)).numbers)
        if not _are_counts(counted) or len(counted) != wanted:
            problem = "its statistics are not of this query; without them the page is ranked by new ones"
            raise InvalidRequestError(f"search_after: {problem}", field="search_after")
        statistics = tuple(counted)
    return parse_place(values, sort, config, number_of), statistics


def _are_counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(number) is int and 0 <= number <= _STATISTIC_MAX for number in value)


def _declared(names: list[str], config: SearchConfig, what: str) -> tuple[str, ...]:
    for name in names:
        if config.resolve(name) is None:
            raise InvalidRequestError(f"{what}: {quoted(name)} is not declared", field=what)
    # Each once: a request may name one many thousand times, and every hit is asked for all of them.
    return tuple(dict.fromkeys(config.aliases.get(name, name) for name in names))


def _highlighter(
    wanted: bool | list[str], predicate: Predicate, config: SearchConfig, version: int
) -> Highlighter | None:
    if wanted is False:
        return None
    names = None if wanted is True else _declared(wanted, config, "highlight")
    return Highlighter(predicate, config, version, names)


def _from_body(raw: bytes) -> SearchBody:
    try:
        document = _decode_any(raw) if raw else {}
        if isinstance(document, dict):
            _check_names(document)
        return _decode(raw) if raw else SearchBody()
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.from_decode("body", error) from None


def _from_query(call: Call) -> SearchBody:
    """The same fields as parameters; the place is a JSON array. As in every request, others are nobody's business."""
    given: dict[str, Any] = {name: text for name, text in call.query.items() if name in (*_NAMES, _REFUSED)}
    _check_names(given)
    for name in ("size", "timeout_ms"):
        if name in given:
            text = given[name]
            if not (text.isascii() and text.isdigit() and len(text) <= 9):
                raise InvalidRequestError(f"{name}: must be a whole number", field=name)
            given[name] = int(text)
    for name in ("track_total", "explain", "_source"):
        if name in given:
            if given[name] not in ("true", "false"):
                raise InvalidRequestError(f"{name}: must be true or false", field=name)
            given[name] = given[name] == "true"
    if "fields" in given:
        given["fields"] = given["fields"].split(",")
    if "highlight" in given:
        named = {"true": True, "false": False}.get(given["highlight"])
        given["highlight"] = given["highlight"].split(",") if named is None else named
    try:
        if "search_after" in given:
            given["search_after"] = _decode_any(given["search_after"].encode())
        return msgspec.convert(given, SearchBody)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.from_decode("query", error) from None


def _check_names(given: dict[str, Any]) -> None:
    if _REFUSED in given:
        raise InvalidRequestError(_NO_LONGER, field=_REFUSED)
    for name in given:
        if name not in _NAMES:
            raise InvalidRequestError(f"{quoted(name)} is not a field of a search", field=name[:80])


def parse_many(call: Call) -> tuple[ManyRequest, SearchBody]:
    """What is asked of several streams, and what each of them is asked."""
    raw = call.exchange.body
    try:
        document = _decode_any(raw) if raw else {}
        many = msgspec.convert(document, ManyRequest)
        each = {name: value for name, value in document.items() if name not in ("streams", "search_after")}
        _check_names(each)
        return many, msgspec.convert(each, SearchBody)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.from_decode("body", error) from None


def parse_keys(call: Call) -> KeysQuery:
    given = call.query
    limit = given.get("limit", str(DEFAULT_PAGE_KEYS))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 9 and 1 <= int(limit) <= MAX_PAGE_KEYS):
        raise InvalidRequestError("invalid limit", field="limit", max=MAX_PAGE_KEYS)
    after = given.get("after")
    if after is not None and len(after) > MAX_KEY_BYTES:
        raise InvalidRequestError("invalid after", field="after", max=MAX_KEY_BYTES)
    return KeysQuery(after, int(limit))
