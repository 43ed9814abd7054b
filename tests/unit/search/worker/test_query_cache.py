"""Queries that were understood before: the same meaning, for one description only, and refusals every time."""

import msgspec
import pytest

from tests.unit.search.helpers import LOGS
from topics.model.errors import InvalidRequestError
from topics.schema.registry import Registry, Version
from topics.search.query.aggregate import parse_aggregation
from topics.search.query.plan import known_aggregation, known_search, known_sort
from topics.search.query.predicates import bind_search
from topics.search.query.sort import parse_sort

OTHER = {**LOGS, "aliases": {"req": "service"}}


def registry(document: dict[str, object], versions: int = 1) -> Registry:
    return Registry((Version(b"{}", None, 0),) * versions, search=msgspec.json.encode(document))


@pytest.mark.parametrize("q", ["", "status:>=500 -service:a", '"two words" OR req:x*', "w" * 600])
def test_a_query_means_what_it_meant(q: str) -> None:
    described = registry(LOGS)
    assert described.search_config is not None
    for _ in range(2):
        assert known_search(q, described) == bind_search(q, described.search_config)
    assert (known_search(q, described) is known_search(q, registry(LOGS))) == (len(q) < 600)


def test_a_name_means_what_its_own_description_states() -> None:
    assert known_search("req:a", registry(LOGS)) != known_search("req:a", registry(OTHER))


def test_a_refusal_is_made_anew() -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="not declared"):
            known_search("nothing:1", registry(LOGS))
        with pytest.raises(InvalidRequestError, match="is not declared"):
            known_aggregation(b'{"rollup":"none"}', registry(LOGS))


def test_an_aggregation_is_one_of_its_version() -> None:
    body = b'{"group_by":["service"]}'
    described = registry(LOGS)
    assert described.search_config is not None
    found = known_aggregation(body, described)
    assert found == parse_aggregation(body, described.search_config, 1)
    assert known_aggregation(body, described) is found
    assert known_aggregation(body, registry(LOGS, 2)).version == 2
    long = body + b" " * 600
    assert known_aggregation(long, described) == found


def test_a_sort_is_one_of_its_description_and_of_what_the_query_has() -> None:
    for items in ((), ("eventTime:asc",), ["eventTime", "offset:asc"]):
        for has_text in (True, False):
            described = registry(LOGS)
            assert described.search_config is not None
            for _ in range(2):
                assert known_sort(items, described, has_text) == parse_sort(items, described.search_config, has_text)
    without = {**LOGS, "fields": {name: {**field, "sortable": False} for name, field in LOGS["fields"].items()}}
    assert known_sort(("duration",), registry(LOGS), False).fields == ("duration",)
    with pytest.raises(InvalidRequestError):
        known_sort(("duration",), registry(without), False)
