"""A request leaves nothing that only the garbage collector finds.

The collector stops everybody, for milliseconds where thousands of objects wait for it. So all objects of a request are
freed by reference counting when it is answered: cycles would stay.
"""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.http import counted_server
from tests.http.live import LiveServer
from tests.http.searched import Searched

_TIMES = 20
_ANY = {200, 201, 204, 304}

Ask = Callable[[httpx.Client, int], httpx.Response]


def _post(path: str, **body: object) -> Ask:
    return lambda http, _: http.post(path, json=body)


def _get(path: str) -> Ask:
    return lambda http, _: http.get(path)


def _search(**body: object) -> Ask:
    return _post("/v1/stream/logs/_search", **body)


def _claim_and(verb: str) -> Ask:
    def ask(http: httpx.Client, _: int) -> httpx.Response:
        [job] = http.post("/v0/topics/jobs/claim", json={"node": "a", "max": 1}).json()["claimed"]
        return http.post(f"/v0/topics/jobs/{verb}", json={"node": "a", "seqs": [job["$seq"]]})

    return ask


_REQUESTS: dict[str, Ask] = {
    "append": _post("/v0/topics/plain", records=[{"data": 1}]),
    "append with a key": lambda http, number: http.post(
        "/v0/topics/plain", json={"records": [{"data": 1}], "idempotency_key": f"k{number}"}
    ),
    "create": lambda http, number: http.put(f"/v0/topics/new-{number}", json={}),
    "diff": _post("/v0/topics/plain/diff", from_seq=0),
    "diff that waits": _post("/v0/topics/plain/diff", from_seq=10**9, wait_ms=5),
    "diff with a filter": _post("/v0/topics/plain/diff", from_seq=0, filter="tag:a"),
    "describe": _get("/v0/topics/plain"),
    "list": _get("/v0/topics"),
    "claim and ack": _claim_and("ack"),
    "claim and nack": _claim_and("nack"),
    "append to a stream": lambda http, _: http.post("/v1/stream/logs", json={"service": "s-1", "status": 1}),
    "read": _get("/v1/stream/logs?offset=-1"),
    "read of a key": _get("/v1/stream/logs?offset=-1&key=s-1"),
    "read with a filter": _get("/v1/stream/logs?offset=-1&filter=service:s-1"),
    "long-poll": _get("/v1/stream/logs?offset=now&live=long-poll"),
    "search": _search(q="service:s-1"),
    "search by a field": _search(q="status:>1", sort=["time:asc"]),
    "search that ranks": _search(q="card OR declined", rank="bm25"),
    "search of many streams": _post("/v1/_search", streams="logs", q="service:s-1"),
    "aggregation": _post("/v1/stream/logs/_aggregate", group_by=["service"], measures={"n": {"kind": "count"}}),
    "routing keys": _get("/v1/stream/logs/_routing_keys"),
    "details": _get("/v1/stream/logs/_details"),
}


@pytest.fixture(scope="module")
def census(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("census") / "census"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, census: Path) -> Iterator[LiveServer]:
    program = [counted_server.__file__, str(census)]
    folder = tmp_path_factory.mktemp("garbage")
    with LiveServer(folder, program=program, streams_long_poll_ms="5") as live:
        yield live


@pytest.fixture(scope="module")
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30.0) as http, Searched(server.url, "logs") as logs:
        logs.append(200)
        for name, config in (("plain", {}), ("jobs", {"type": "queue", "claim_jitter_ms": 0})):
            assert http.put(f"/v0/topics/{name}", json=config).status_code in _ANY
            records = [{"data": number, "tag": "a"} for number in range(200)]
            assert http.post(f"/v0/topics/{name}", json={"records": records}).status_code in _ANY
        yield http


@pytest.mark.parametrize("kind", _REQUESTS)
def test_a_request_leaves_nothing_to_the_collector(
    server: LiveServer, http: httpx.Client, census: Path, kind: str
) -> None:
    ask = _REQUESTS[kind]

    def garbage() -> dict[str, int]:
        return dict(counted_server.ask_census(server.pid, census, signal.SIGUSR2))

    # Objects that the first request of a kind creates once do not count.
    first = ask(http, 0)
    assert first.status_code in _ANY, json.dumps(first.text)
    garbage()
    for number in range(1, 1 + _TIMES):
        assert ask(http, number).status_code in _ANY
    assert {kind: count for kind, count in garbage().items() if count >= _TIMES // 2} == {}
