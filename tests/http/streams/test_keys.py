"""Permissions for streams: the same keys as for topics."""

from collections.abc import Iterator

import httpx
import pytest

from tests.http.live import LiveServer

KEYS = "all,reader:read,writer:write,remover:delete,mine:rw+delete:mine/"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("keys"), api_keys=KEYS) as live:
        yield live


def ask(
    server: LiveServer,
    key: str,
    method: str,
    path: str,
    *,
    content: bytes | None = None,
    json: object = None,
    headers: dict[str, str] | None = None,
) -> int:
    own = {"authorization": f"Bearer {key}", "content-type": "text/plain"} if key else {}
    given = {**own, **(headers or {})}
    return httpx.request(method, server.url + path, headers=given, content=content, json=json).status_code


@pytest.mark.parametrize(
    ("key", "method", "status"),
    [
        ("", "GET", 401), ("wrong", "GET", 401), ("", "OPTIONS", 204), ("reader", "GET", 200), ("reader", "HEAD", 200),
        ("reader", "PUT", 403), ("reader", "POST", 403), ("reader", "DELETE", 403), ("writer", "GET", 403),
        ("writer", "PUT", 200), ("writer", "POST", 204), ("writer", "DELETE", 403), ("mine", "GET", 403),
        ("remover", "POST", 403),
    ],
)  # fmt: skip
def test_each_method_needs_its_scope(server: LiveServer, key: str, method: str, status: int) -> None:
    ask(server, "all", "PUT", "/v1/stream/a")
    content = b"x" if method == "POST" else None
    assert ask(server, key, method, "/v1/stream/a", content=content) == status


@pytest.mark.parametrize("part", ["_schema", "_profile"])
@pytest.mark.parametrize(
    ("key", "get", "post"),
    [("", 401, 401), ("reader", 200, 403), ("writer", 403, 403), ("mine", 403, 403), ("all", 200, 200)],
)
def test_contract_updates_need_the_scope_admin(server: LiveServer, part: str, key: str, get: int, post: int) -> None:
    json_type = {"content-type": "application/json"}
    ask(server, "all", "PUT", "/v1/stream/j", headers=json_type)
    body = b'{"profile":{"kind":"generic"}}' if part == "_profile" else b'{"routingKey":null}'
    assert ask(server, key, "GET", f"/v1/stream/j/{part}") == get
    assert ask(server, key, "POST", f"/v1/stream/j/{part}", content=body, headers=json_type) == post


def test_a_prefix_holds_for_streams_and_for_what_they_are_forked_from(server: LiveServer) -> None:
    ask(server, "all", "PUT", "/v1/stream/other")
    assert ask(server, "mine", "PUT", "/v1/stream/mine/a") == 201
    assert ask(server, "mine", "PUT", "/v1/stream/mine%2Fb") == 201
    assert ask(server, "mine", "PUT", "/v1/stream/b") == 403
    forked = {"stream-forked-from": "/v1/stream/other"}
    assert ask(server, "mine", "PUT", "/v1/stream/mine/c", headers=forked) == 403
    listed = httpx.get(f"{server.url}/v1/streams", headers={"authorization": "Bearer mine"}).json()
    assert [entry["name"] for entry in listed] == ["mine/a", "mine/b"]


def test_with_keys_nothing_is_for_shared_caches(server: LiveServer) -> None:
    ask(server, "all", "PUT", "/v1/stream/cached", content=b"x")
    answer = httpx.get(f"{server.url}/v1/stream/cached", headers={"authorization": "Bearer all"})
    assert answer.headers["cache-control"].startswith("private")


def test_subscriptions_need_the_scope_admin(server: LiveServer) -> None:
    path = "/v1/stream/__ds/subscriptions/s"
    body = {"type": "pull-wake", "pattern": "a*", "wake_stream": "wake"}
    assert ask(server, "writer", "PUT", path, json=body) == 403
    assert ask(server, "all", "PUT", path, json=body, headers={"content-type": "application/json"}) == 201
    assert ask(server, "reader", "GET", path) == 200
    assert ask(server, "", "GET", "/v1/stream/__ds/jwks.json") == 200
    assert ask(server, "", "POST", f"{path}/ack", json={"wake_id": "x", "generation": 1}) == 401
