"""Names of streams: spellings that mean the same, and invalid names in every kind of request."""

from urllib.parse import quote

import httpx
import pytest

from tests.http.api.sockets import open_socket
from tests.http.live import LiveServer
from tests.http.streams.conftest import append, create
from topics.model.topic_config import SYSTEM_STREAMS

RESERVED = [
    "__ds", "__ds/subscriptions", "__ds/subscriptions/a", "__registry__", "__stream_metrics__", "__stream_stats__",
    "a/_schema", "a/_profile", "a/_new", "a/b/_details", "a/pk/k", "a/pk/x/y", "a/pk", "a/touch/meta", "a/touch/x/y",
    "a/touch",
]  # fmt: skip
SPELLINGS = ["raw", "encoded"]


def address(name: str, spelling: str) -> str:
    return "/v1/stream/" + quote(name, safe="/" if spelling == "raw" else "")


def listed(http: httpx.Client) -> set[str]:
    return {stream["name"] for stream in http.get("/v1/streams?limit=1000").json()}


def refused(answer: httpx.Response) -> bool:
    return 400 <= answer.status_code < 500


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("reserved", RESERVED)
def test_no_stream_gets_a_reserved_name(http: httpx.Client, path: str, reserved: str, spelling: str) -> None:
    before = listed(http)
    there = address(reserved, spelling)
    assert refused(create(http, there, body=b"x"))
    assert refused(append(http, there, b"x"))
    create(http, path)
    assert refused(create(http, there, stream_forked_from=path))
    assert listed(http) == before | {path.removeprefix("/v1/stream/")}


@pytest.mark.parametrize("reserved", RESERVED)
def test_nor_does_a_topic(http: httpx.Client, server: LiveServer, name: str, reserved: str) -> None:
    """By its config, by an append, by a router's end, or as the place for dead letters."""
    before = listed(http)
    named = f"/v0/topics/{quote(reserved, safe='')}"
    assert http.put(named, json={}).status_code == 400
    # Where the server writes such a stream, there is no topic of the name for this protocol.
    appended = http.post(named, json={"records": [{"data": 1}], "create": True}).status_code
    assert appended == (404 if reserved in SYSTEM_STREAMS else 400)
    for ends in ({"source": name, "dest": reserved}, {"source": reserved, "dest": name}):
        assert http.put(f"/v0/routers/{name}", json=ends).status_code == 400
    assert http.put(f"/v0/topics/{name}", json={"type": "queue", "dead_letter": reserved}).status_code == 400
    with open_socket(server.url) as socket:
        command = {"op": "publish", "topic": reserved, "records": [{"data": 1}], "create": True, "request_id": "r"}
        socket.refused(command, "topic_not_found" if reserved in SYSTEM_STREAMS else "invalid_request")
    assert listed(http) == before


@pytest.mark.parametrize("first", SPELLINGS)
def test_a_slash_means_the_same_however_it_is_spelled(http: httpx.Client, name: str, first: str) -> None:
    second = SPELLINGS[1 - SPELLINGS.index(first)]
    name = f"{name}/deep/est"
    assert create(http, address(name, first), "application/json").status_code == 201
    assert create(http, address(name, second), "application/json").status_code == 200
    assert append(http, address(name, second), b"1", "application/json", stream_key="k/1").status_code == 204
    assert http.get(address(name, first)).json() == [1]
    assert http.get(address(f"{name}/pk/k/1", first)).json() == [1]
    assert http.get(address(f"{name}/pk/k/1", second)).json() == [1]
    assert http.get(address(f"{name}/pk/k", second)).json() == []
    fork = {"stream_forked_from": address(name, second)}
    assert create(http, f"{address(name, first)}-fork", "application/json", b"", **fork).status_code == 201
    assert name in listed(http)
    assert http.delete(address(name, second)).status_code == 204
    assert http.head(address(name, first)).status_code == 410


def test_a_part_of_a_stream_is_nothing_to_fork(http: httpx.Client, path: str) -> None:
    create(http, path)
    assert create(http, f"{path}-fork", stream_forked_from=f"{path}/_schema").status_code == 400
    assert create(http, f"{path}-fork", stream_forked_from=f"{path}%2Fpk%2Fx").status_code == 400


@pytest.mark.parametrize("name_", ["_a", "pk/x", "touch/x", "a/_b/c", "__registry__/x", "pk", "a/pkk/x"])
def test_names_that_only_look_reserved_are_free(http: httpx.Client, name: str, name_: str) -> None:
    assert create(http, f"/v1/stream/{name_}-{name}").status_code == 201


@pytest.mark.parametrize(
    "query",
    [
        "offset=", "offset=7", "offset=-1&offset=-1", "since=", "since=yesterday", "format=", "format=xml", "live=",
        "live=no&offset=-1", "timeout=", "timeout=-1s&live=true&offset=-1", "timeout=soon",
    ],
)  # fmt: skip
def test_a_parameter_with_a_bad_value_is_refused(http: httpx.Client, path: str, query: str) -> None:
    create(http, path, "application/json")
    assert http.get(f"{path}?{query}").status_code == 400


@pytest.mark.parametrize("query", ["limit=x", "limit=0", "limit=-1", "offset=x", "offset=1.5"])
def test_so_is_one_of_a_list(http: httpx.Client, query: str) -> None:
    assert http.get(f"/v1/streams?{query}").status_code == 400


def test_unknown_parameter_is_ignored(http: httpx.Client, path: str) -> None:
    create(http, path, "application/json", b"[1]")
    assert http.get(f"{path}?offset=-1&colour=blue&x=&=&limit=x").json() == [1]
    assert http.get("/v1/streams?colour=blue&x=").status_code == 200
    for method in ("PUT", "POST"):
        sent = {"content-type": "application/json"}
        assert http.request(method, f"{path}?offset=7", headers=sent, content=b"[2]").status_code in (200, 204)
    assert http.head(f"{path}?offset=7").status_code == 200
