"""Cache of parsed and bound queries.

Clients ask the same again and again, and to understand a query takes longer than to send it. What it means follows from
its text and from the description that it is asked of; both are the key. A query that is refused is refused anew.
"""

from collections.abc import Sequence
from typing import Final

from topics.model.bounded_cache import Memo
from topics.schema.registry import Registry
from topics.schema.search_fields import SearchConfig
from topics.search.query.aggregate import Aggregation, parse_aggregation
from topics.search.query.predicates import Bound, bind_search
from topics.search.query.sort import Sort, parse_sort

_QUERIES: Final = 256
LONGEST_KNOWN: Final = 512
"""Longer texts are understood each time: what they become is many times as large."""

_searches: Memo[tuple[bytes | None, str], Bound] = Memo(_QUERIES)
_sorts: Memo[tuple[bytes | None, tuple[str, ...], bool], Sort] = Memo(_QUERIES)
_aggregations: Memo[tuple[bytes | None, int, bytes], Aggregation] = Memo(_QUERIES)


def known_search(q: str, registry: Registry) -> Bound:
    """The predicate of a search's query. Raises InvalidRequestError."""
    if len(q) > LONGEST_KNOWN:
        return bind_search(q, _config_of(registry))
    return _searches.get((registry.search, q), lambda: bind_search(q, _config_of(registry)))


def known_sort(items: Sequence[str], registry: Registry, has_text: bool) -> Sort:
    """The sort of a search. Raises InvalidRequestError."""
    config = _config_of(registry)
    if sum(map(len, items)) > LONGEST_KNOWN:
        return parse_sort(items, config, has_text)
    return _sorts.get((registry.search, tuple(items), has_text), lambda: parse_sort(items, config, has_text))


def known_aggregation(body: bytes, registry: Registry) -> Aggregation:
    """The aggregation of a request's body. Raises InvalidRequestError."""
    version = registry.current_version
    if len(body) > LONGEST_KNOWN:
        return parse_aggregation(body, _config_of(registry), version)
    key = registry.search, version, body
    return _aggregations.get(key, lambda: parse_aggregation(body, _config_of(registry), version))


def _config_of(registry: Registry) -> SearchConfig:
    config = registry.search_config
    assert config is not None, "who asks has looked"
    return config
