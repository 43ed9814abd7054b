"""Memory of the search process while it answers: the size of a block of rows, and nothing afterwards."""

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import msgspec
import pytest

from tests.unit.search.helpers import LOGS
from topics.schema.registry import Registry, Version, encode_registry
from topics.search.file_index.merge import build
from topics.search.query.plan import Entry
from topics.search.worker.messages import (
    AggregateQuery,
    Answer,
    AskMessage,
    CountQuery,
    KeysQuery,
    Mapped,
    Message,
    Messages,
    More,
    Open,
    Query,
    Question,
    Result,
    SearchQuery,
)
from topics.search.worker.search_worker import Worker

FEW, MANY, BLOCK_ROWS = 4_000, 32_000, 2_000
ROLLUPS = {
    "load": {
        "dimensions": ["service"],
        "intervals": ["1h"],
        "measures": {"n": {"kind": "count"}, "d": {"kind": "summary", "field": "duration", "histogram": "log2_v1"}},
    }
}
DESCRIBED = Registry((Version(b"{}", None, 0),), None, msgspec.json.encode({**LOGS, "rollups": ROLLUPS}))
OWN = {"group_by": ["service"], "measures": {"d": {"kind": "summary", "field": "duration"}}}
CUT = {"rollup": "load", "from": 1, "to": 60_000_000, "interval": "1h", "group_by": ["service"]}
QUERIES: dict[str, Query] = {
    "own aggregation": AggregateQuery(msgspec.json.encode(OWN)),
    "own aggregation of some": AggregateQuery(msgspec.json.encode({**OWN, "q": "status:>=5 error"})),
    "rollup": AggregateQuery(msgspec.json.encode(CUT)),
    "rollup of some": AggregateQuery(msgspec.json.encode({**CUT, "q": "status:>=5"})),
    "newest": SearchQuery("status:>=5", (), 10),
    "sorted": SearchQuery("status:>=5", ("duration:desc",), 10),
    "sorted, all": SearchQuery("status:>=5", ("service:asc", "duration:desc"), 10, count_all=True),
    "words": SearchQuery("an error", (), 10, count_all=True),
    "phrase": SearchQuery('message:"error here"', ("duration:asc",), 10),
    "statistics": CountQuery("an error"),
    "keys": KeysQuery(None, 100),
}


@lru_cache
def index_file(rows: int) -> memoryview:
    values = (
        {
            "eventTime": 1_000 * number, "service": f"s{number % 7}", "status": number % 10,
            "message": f"an error here {number % 5}", "duration": number * 7919 % 1000 if number % 9 else None,
        }
        for number in range(rows)
    )  # fmt: skip
    entries = [Entry(number, value, 1, f"k{number}") for number, value in enumerate(values)]
    data = bytearray()
    build(DESCRIBED, [entries], 1, 0, rows - 1, data.extend, BLOCK_ROWS)
    return memoryview(bytes(data))


class Asking:
    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._worker = Worker(lambda: 0.0, lambda _: index_file(rows))
        self._worker.take(Message(Open(1, encode_registry(DESCRIBED)), memoryview(b"")))

    def ask(self, query: Query) -> Result:
        self._take(AskMessage(1, 1, 1e9, 1, 0, (), query, stays=True))
        result = self._take(More(2, 1, mapped=(Mapped("all", 0, self._rows - 1),), is_last=True))
        assert result.is_final and not result.missed
        return result

    def _take(self, question: Question) -> Result:
        (answer,) = Messages().feed(self._worker.take(Message(question, memoryview(b""))) or b"")
        assert isinstance(answer.head, Answer) and answer.head.result is not None, answer
        return answer.head.result


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def peak_bytes(rows: int, query: Query) -> int:
    """The most that an answer takes, with nothing left to the collector."""
    asking = Asking(rows)
    asking.ask(query)
    with without_collector():
        tracemalloc.start()
        try:
            asking.ask(query)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("name", QUERIES)
def test_no_answer_has_a_number_for_every_entry(name: str) -> None:
    few, many = (peak_bytes(rows, QUERIES[name]) for rows in (FEW, MANY))
    assert many - few < 8 * (MANY - FEW), (few, many)


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_leaves_nothing_to_the_garbage_collector(name: str) -> None:
    asking = Asking(FEW)
    asking.ask(QUERIES[name])
    with without_collector():
        asking.ask(QUERIES[name])
        assert gc.collect() == 0
