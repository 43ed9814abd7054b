"""Searching with the real server in the loop: its hits equal a plain filter over the appended entries, and every
request is answered."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.live import LiveServer
from tests.property.effort import effort
from tests.property.search_model import SortItems, configs, entries, judge, plain_search, queries, sorts
from topics.model.errors import InvalidRequestError
from topics.schema.search_fields import SearchConfig
from topics.search.query.predicates import Node, bind_filter, print_query
from topics.streams.stream_state import decode_offset

_names = itertools.count(1)
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with LiveServer(tmp_path_factory.mktemp("search"), segment_max_events="5") as live:
        with httpx.Client(base_url=live.url, timeout=60) as client:
            yield client
        assert '"level":"error"' not in live.log()


def described(http: httpx.Client, config: SearchConfig) -> str:
    path = f"/v1/stream/s{next(_names)}"
    assert http.put(path, headers=JSON).status_code == 201
    body = {"schema": {}, "search": msgspec.to_builtins(config)}
    answer = http.post(f"{path}/_schema", json=body)
    assert answer.status_code == 200, answer.text
    return path


def asked_until_complete(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer of a search. A machine that is busy may take more than its time, which is then said."""
    while True:
        answer = http.post(f"{path}/_search", json=body)
        if answer.status_code == 200:
            found: dict[str, Any] = answer.json()
            assert found["coverage"]["complete"] is True
            return found
        assert answer.status_code == 408, answer.text


cases = configs().flatmap(
    lambda config: st.tuples(
        st.just(config),
        st.lists(st.lists(entries, min_size=1, max_size=6), min_size=1, max_size=4),
        st.one_of(st.none(), queries(config), queries(config)),
        sorts(config),
    )
)


@given(cases, st.integers(1, 7))
@effort(60)
def test_a_search_is_a_plain_filter(
    http: httpx.Client, case: tuple[SearchConfig, list[list[Any]], Node | None, SortItems], size: int
) -> None:
    config, batches, node, items = case
    path = described(http, config)
    text = "" if node is None else print_query(node)
    sort = [f"{name}:{'asc' if up else 'desc'}" for name, up in items]
    values: list[Any] = []
    for batch in batches:
        assert http.post(path, content=json.dumps(batch), headers=JSON).status_code == 204
        values += batch
        expected = plain_search(values, node, items, config)
        found: list[tuple[int, float]] = []
        after: list[Any] | None = None
        while True:
            more = {} if after is None else {"search_after": after}
            answer = asked_until_complete(http, path, {"q": text, "sort": sort, "size": size, **more})
            found += [(decode_offset(hit["offset"])[1] - 1, hit["score"]) for hit in answer["hits"]]
            after = answer["next_search_after"]
            if after is None:
                break
        assert found == expected
    check_filter(http, path, config, values, node)


def check_filter(http: httpx.Client, path: str, config: SearchConfig, values: list[Any], node: Node | None) -> None:
    text = "" if node is None else print_query(node)
    try:
        bind_filter(text, config)
    except InvalidRequestError:
        assert http.get(path, params={"offset": "-1", "filter": text}).status_code == 400
        return
    expected = [value for value in values if node is None or judge(node, value, config) is not None]
    assert http.get(path, params={"offset": "-1", **({"filter": text} if text else {})}).json() == expected


fields: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 600),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(("a:1", "(", "-", "x*", "has:key", "key:>=a", "offset:asc", "_score", "time", "sums", "1m")),
    st.lists(st.one_of(st.text(max_size=5), st.integers(), st.none()), max_size=3),
)
NAMES = ("q", "size", "sort", "search_after", "timeout_ms", "track_total", "_source", "fields", "rollup", "from", "to",
         "interval", "group_by", "measures", "limit", "after", "filter", "offset", "more")  # fmt: skip
bodies = st.dictionaries(st.sampled_from(NAMES), fields, max_size=5)


@given(configs(), st.lists(bodies, min_size=5, max_size=15), st.binary(max_size=30))
@effort(40)
def test_whatever_is_sent_is_answered(
    http: httpx.Client, config: SearchConfig, sent: list[dict[str, Any]], raw: bytes
) -> None:
    path = described(http, config)
    http.post(path, json=[{"key": "a", "time": 1, "num": 2}])
    for body in sent:
        parameters = {name: str(value) for name, value in body.items()}
        for answer in (
            http.post(f"{path}/_search", json=body),
            http.post(f"{path}/_aggregate", json=body),
            http.get(f"{path}/_search", params=parameters),
            http.get(f"{path}/_routing_keys", params=parameters),
            http.get(path, params=parameters),
            http.post(f"{path}/_search", content=raw),
        ):
            assert answer.status_code in (200, 204, 400, 408, 410), (body, answer.text)
            if answer.status_code in (400, 410):
                assert answer.json()["error"]["message"]
