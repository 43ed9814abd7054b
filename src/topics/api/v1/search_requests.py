"""Parsing of search requests. Unknown fields are rejected by name."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, TypeGuard

import msgspec
from msgspec import UNSET

from topics.api.app import Call
from topics.engine.topic import Topic
from topics.model.bounded_cache import Memo
from topics.model.errors import InvalidRequestError, quoted
from topics.schema.documents import MAX_KEY_BYTES, decode, parse
from topics.schema.registry import Registry
from topics.schema.search_fields import SearchConfig
from topics.search.query.field_values import declared_fields, pointer_of
from topics.search.query.match import Highlighter
from topics.search.query.plan import known_search, known_sort
from topics.search.query.predicates import DEFAULT_PAGE_HITS, DEFAULT_PAGE_KEYS, MAX_PAGE_HITS, MAX_PAGE_KEYS, Predicate
from topics.search.query.score import Statistics, terms_of
from topics.search.query.sort import NumberOf, Place, Sort, parse_place
from topics.search.worker.messages import KeysQuery, SearchQuery
from topics.streams.stream_state import contract_of, read_offset

# The declared fields of hits, decoded from stored text.
#
# A hit shows a few members of its entry. So the fields of a description are compiled to a type; decoding an entry to
# this type skips all other members and builds no dictionary. Values that such a type cannot express are read in the
# general way (`topics.search.query.field_values.declared_fields`): a description that points to an object and into it,
# or an entry that has something else where a pointer goes through an object. Both show the same.

_KNOWN: Final = 256
"""The number of descriptions whose types are cached."""

Tree = dict[str, Any]
"""By token of a pointer: another tree, or the attribute name of a member."""


class _Compiled(NamedTuple):
    read: Callable[[bytes], Any]
    """Raises ValueError if the entry has another shape."""
    show: Callable[[Any], Any] | None
    """Converts decoded to rendered values; None if they are equal."""
    values: Callable[[Any], tuple[Any, ...]]
    """Returns the values of all fields, in the order of `names`; UNSET for missing ones."""
    names: tuple[str, ...]


class HitFields:
    """Renders the entries of one description."""

    def __init__(self, config: SearchConfig, version: int) -> None:
        self._find = declared_fields(config, version)
        self._compiled = _compile(config, version)

    def of(self, raws: Sequence[bytes], requested: tuple[str, ...] | None = None) -> list[Any]:
        """Returns the fields of each entry as values that JSON can encode: all declared fields, or the requested ones,
        in order."""
        compiled = self._compiled
        if compiled is None:
            return [self._general(raw, requested) for raw in raws]
        try:
            found = list(map(compiled.read, raws))
        except ValueError:
            return [self._one(compiled, raw, requested) for raw in raws]
        if requested is not None:
            return [_chosen(compiled, entry, requested) for entry in found]
        return found if compiled.show is None else list(map(compiled.show, found))

    def _one(self, compiled: _Compiled, raw: bytes, requested: tuple[str, ...] | None) -> Any:
        try:
            found = compiled.read(raw)
        except ValueError:
            return self._general(raw, requested)
        if requested is not None:
            return _chosen(compiled, found, requested)
        return found if compiled.show is None else compiled.show(found)

    def _general(self, raw: bytes, requested: tuple[str, ...] | None) -> dict[str, object]:
        fields = self._find(parse("entry", raw))
        return fields if requested is None else {name: fields[name] for name in requested if name in fields}


def _chosen(compiled: _Compiled, entry: Any, requested: tuple[str, ...]) -> dict[str, Any]:
    values = dict(zip(compiled.names, compiled.values(entry), strict=True))
    return {name: value for name in requested if (value := values.get(name, UNSET)) is not UNSET}


_memo: Memo[tuple[bytes | None, int], HitFields] = Memo(_KNOWN)


def hit_fields_of(registry: Registry) -> HitFields:
    """Returns the current renderer of a stream's entries."""

    def make() -> HitFields:
        config = registry.search_config
        assert config is not None
        return HitFields(config, registry.current_version)

    return _memo.get((registry.search, registry.current_version), make)


def _compile(config: SearchConfig, version: int) -> _Compiled | None:
    """Returns the type of a description; None if a type cannot express it."""
    tree: Tree = {}
    paths: list[str] = []
    names: list[str] = []
    for name, field in config.fields.items():
        pointer = pointer_of(field, version)
        if pointer is None:
            continue
        path = _add(tree, pointer, len(names))
        if path is None:
            return None
        names.append(name)
        paths.append(path)
    if not names:
        return None
    entry = _type_of(tree)
    read = msgspec.json.Decoder(entry).decode
    get = attrgetter(*paths)
    values = get if len(paths) > 1 else lambda found: (get(found),)
    if list(tree) == names and not any(type(below) is dict for below in tree.values()):
        return _Compiled(read, None, values, tuple(names))
    shown = _type_of({name: f"f{number}" for number, name in enumerate(names)})
    return _Compiled(read, lambda found: shown(*values(found)), values, tuple(names))


def _add(tree: Tree, pointer: tuple[str, ...], number: int) -> str | None:
    """Adds a pointer to a tree.

    Returns the path to its value, or None if the value is the whole entry or another pointer passes through it.
    """
    if not pointer:
        return None
    path = []
    for token in pointer[:-1]:
        below = tree.setdefault(token, {})
        if type(below) is not dict:
            return None
        path.append(f"n{list(tree).index(token)}")
        tree = below
    attribute = tree.setdefault(pointer[-1], f"f{number}")
    return None if type(attribute) is dict else ".".join([*path, attribute])


def _type_of(tree: Tree) -> type[msgspec.Struct]:
    """Returns a type with the members of a tree, in order.

    Its attributes have generated names, because names of members are arbitrary.
    """
    fields: list[Any] = []
    rename: dict[str, str] = {}
    for place, (token, below) in enumerate(tree.items()):
        attribute = f"n{place}" if type(below) is dict else below
        rename[attribute] = token
        if type(below) is dict:
            nested = _type_of(below)
            # If the object is missing, all its members are.
            fields.append((attribute, nested, nested()))
        else:
            fields.append((attribute, Any, UNSET))
    return msgspec.defstruct("Shown", fields, rename=rename, frozen=True, gc=False)


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
    sort: list[str] | None = None
    timeout_ms: int | None = None
    track_total: bool = False
    explain: bool = False
    source: bool = True
    fields: list[str] | None = None
    highlight: bool | list[str] = False
    rank: Rank | None = None


class ManyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a search over several streams."""

    streams: str | list[str]
    search_after: dict[str, list[Any] | None] = {}
    """The start of the page in each of them; null for a stream without more hits."""


_decode = msgspec.json.Decoder(SearchBody).decode


def tenant_of(call: Call) -> str | None:
    """The tenant that a search is counted under; None without keys."""
    return (call.key.tenant or call.key.owner) or None


def parse_search_call(
    call: Call, topic: Topic, config: SearchConfig, max_timeout_ms: int, number_of: NumberOf | None = None
) -> SearchRequest:
    """Binds a request body. `number_of` parses offsets of protocols other than /v1."""
    body = _from_query(call) if call.exchange.head.method == "GET" else _from_body(call.exchange.body)
    return bind_request(body, topic, config, max_timeout_ms, number_of)


def bind_request(
    body: SearchBody, topic: Topic, config: SearchConfig, max_timeout_ms: int, number_of: NumberOf | None = None
) -> SearchRequest:
    """A search request bound to one stream."""

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
    items = body.sort or []
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
    """Returns the start of the page, and the statistics of the previous page, if given."""
    values = body.search_after or []
    statistics: tuple[int, ...] = ()
    if body.rank is not None and len(values) == len(sort.keys) + 1:
        *values, counted = values
        requested = len(Statistics(terms_of(predicate)).numbers)
        if not _are_counts(counted) or len(counted) != requested:
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
    # Deduplicated: a request may repeat a name thousands of times, and every hit is rendered with all of them.
    return tuple(dict.fromkeys(config.aliases.get(name, name) for name in names))


def _highlighter(
    requested: bool | list[str], predicate: Predicate, config: SearchConfig, version: int
) -> Highlighter | None:
    if requested is False:
        return None
    names = None if requested is True else _declared(requested, config, "highlight")
    return Highlighter(predicate, config, version, names)


def _from_body(raw: bytes) -> SearchBody:
    try:
        document = decode(raw) if raw else {}
        if isinstance(document, dict):
            _check_names(document)
        return _decode(raw) if raw else SearchBody()
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.from_decode("body", error) from None


def _from_query(call: Call) -> SearchBody:
    """Parses query parameters as a body; `search_after` is a JSON array. Unknown parameters are ignored."""
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
    if "sort" in given:
        given["sort"] = given["sort"].split(",")
    if "fields" in given:
        given["fields"] = given["fields"].split(",")
    if "highlight" in given:
        named = {"true": True, "false": False}.get(given["highlight"])
        given["highlight"] = given["highlight"].split(",") if named is None else named
    try:
        if "search_after" in given:
            given["search_after"] = decode(given["search_after"].encode())
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
    """Parses a search over several streams: the request, and the body for each stream."""
    raw = call.exchange.body
    try:
        document = decode(raw) if raw else {}
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
