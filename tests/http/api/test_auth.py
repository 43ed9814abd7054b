"""Keys: authentication, scopes, and names."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.api.conftest import refused
from tests.http.live import LiveServer

KEYS = (
    "full", "reader:read", "writer:w", "deleter:del", "admin:ADMIN", "both:rw", "tenant::acme:|shared.",
    "tenant-reader:r:acme:",
)  # fmt: skip
ONE = {"records": [{"data": 1}]}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("guarded"), api_keys=" , ".join(KEYS)) as live:
        yield live


@contextlib.contextmanager
def as_key(live: LiveServer, token: str | None) -> Iterator[httpx.Client]:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=live.url, headers=headers, timeout=30.0) as client:
        yield client


@pytest.mark.parametrize("token", [None, "wrong", "ful", "fulll", "reader:read"])
def test_request_without_a_key_is_401(guarded: LiveServer, token: str | None) -> None:
    with as_key(guarded, token) as client:
        answer = client.get("/v0/topics")
        refused(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
        refused(client.get("/v0/metrics"), 401, "unauthorized")
        assert client.get("/v0/health").status_code == 200
        assert client.get("/v0/ready").status_code == 200


def test_the_word_bearer_may_be_written_any_way(guarded: LiveServer) -> None:
    with httpx.Client(base_url=guarded.url) as client:
        assert client.get("/v0/topics", headers={"authorization": "bearer full"}).status_code == 200
        refused(client.get("/v0/topics", headers={"authorization": "Basic full"}), 401, "unauthorized")
        refused(client.get("/v0/topics?token=full"), 401, "unauthorized")


_CALLS: dict[str, list[tuple[str, str, dict[str, Any] | None]]] = {
    "read": [("GET", "/v0/topics", None), ("GET", "/v0/topics/t", None), ("POST", "/v0/topics/t/diff", {}),
             ("GET", "/v0/metrics", None)],
    "write": [("POST", "/v0/topics/t", ONE)],
    "delete": [("POST", "/v0/topics/t/delete", {"before_seq": 0}), ("DELETE", "/v0/topics/absent", None)],
    "admin": [("PUT", "/v0/topics/t", {})],
}  # fmt: skip
_MAY = {
    "full": {"read", "write", "delete", "admin"}, "reader": {"read"}, "writer": {"write"}, "deleter": {"delete"},
    "admin": {"admin"}, "both": {"read", "write"},
}  # fmt: skip


@pytest.mark.parametrize("token", list(_MAY))
@pytest.mark.parametrize("scope", list(_CALLS))
def test_each_route_needs_its_scope(guarded: LiveServer, token: str, scope: str) -> None:
    with as_key(guarded, "full") as full:
        full.put("/v0/topics/t", json={})
    with as_key(guarded, token) as client:
        for method, path, body in _CALLS[scope]:
            answer = client.request(method, path, json=body) if body is not None else client.request(method, path)
            if scope in _MAY[token]:
                assert answer.is_success, answer.text
            else:
                assert refused(answer, 403, "forbidden") == {"scope": scope}


def test_creating_with_a_config_needs_admin(guarded: LiveServer) -> None:
    with as_key(guarded, "writer") as client:
        refused(client.post("/v0/topics/w1", json={**ONE, "config": {"ttl_ms": 5}}), 403, "forbidden")
        assert client.post("/v0/topics/w1", json=ONE).status_code == 201
        # On a topic that exists the config is ignored, so it asks for nothing.
        assert client.post("/v0/topics/w1", json={**ONE, "config": {"ttl_ms": 5}}).status_code == 200


def test_names_outside_the_prefixes_are_out_of_reach(guarded: LiveServer) -> None:
    with as_key(guarded, "tenant") as client:
        assert client.put("/v0/topics/acme:x", json={}).is_success
        assert client.put("/v0/topics/acme%3Ay", json={}).is_success
        assert client.put("/v0/topics/shared.z", json={}).is_success
        for method, path in (("PUT", "/v0/topics/other"), ("GET", "/v0/topics/acm"), ("POST", "/v0/topics/other/diff")):
            answer = client.request(method, path) if method == "GET" else client.request(method, path, json={})
            assert refused(answer, 403, "forbidden")["name"]


def test_a_list_shows_only_what_the_key_may_see(guarded: LiveServer) -> None:
    with as_key(guarded, "full") as full:
        for name in ("acme:1", "acme:2", "shared.1", "zother", "aother"):
            full.put(f"/v0/topics/{name}", json={})
    with as_key(guarded, "tenant") as client:
        names, cursor = [], ""
        for _ in range(100):
            page = client.get("/v0/topics", params={"page_size": 1, "cursor": cursor}).json()
            names += [topic["topic"] for topic in page["topics"]]
            if "next_cursor" not in page:
                break
            cursor = page["next_cursor"]
        assert names == sorted(names)
        assert {"acme:1", "acme:2", "shared.1"} <= set(names)
        assert all(name.startswith(("acme:", "shared.")) for name in names)
        within = client.get("/v0/topics", params={"prefix": "acme:1"}).json()["topics"]
        assert [topic["topic"] for topic in within] == ["acme:1"]
        assert client.get("/v0/topics", params={"prefix": "zot"}).json()["topics"] == []


def test_no_secret_is_ever_logged(guarded: LiveServer) -> None:
    with as_key(guarded, "full") as client:
        client.get("/v0/topics/no-such-topic")
    log = guarded.log()
    assert "AUTHENTICATION IS DISABLED" not in log
    for key in ("tenant-reader", "deleter"):
        assert key not in log


@pytest.mark.parametrize("keys", ["k:reed", ":read", "a,b:x:y"])
def test_a_key_that_cannot_be_understood_stops_the_start(tmp_path: Path, keys: str) -> None:
    with pytest.raises(AssertionError, match="TOPICS_API_KEYS"):
        LiveServer(tmp_path, api_keys=keys).start()


def test_no_keys_beyond_this_machine_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="TOPICS_ALLOW_INSECURE_NO_AUTH"):
        LiveServer(tmp_path, host="0.0.0.0").start()


def test_probes_can_be_guarded_too(tmp_path: Path) -> None:
    with LiveServer(tmp_path, api_keys="k", probe_auth="1") as live, httpx.Client(base_url=live.url) as client:
        refused(client.get("/v0/health"), 401, "unauthorized")
        assert client.get("/healthz", headers={"authorization": "Bearer k"}).status_code == 200


def test_a_key_has_a_limit_of_requests_at_once(tmp_path: Path) -> None:
    with (
        LiveServer(tmp_path, api_keys="k,other", max_inflight_per_key="1") as live,
        as_key(live, "k") as client,
        as_key(live, "k") as second,
        as_key(live, "other") as other,
    ):
        assert client.post("/v0/topics/t", json=ONE).is_success
        answers: list[httpx.Response] = []

        def wait() -> None:
            answers.append(client.post("/v0/topics/t/diff", json={"from_seq": 1, "wait_ms": 30_000}))

        waiting = threading.Thread(target=wait)
        waiting.start()
        # The waiting request is the one the key may have; until it has arrived the second is let through.
        for _ in range(10_000):
            answer = second.get("/v0/topics/t")
            if answer.status_code != 200:
                break
        assert refused(answer, 429, "throttled") == {"limit": "max_inflight_per_key", "max": 1}
        assert refused(second.get("/v0/metrics"), 429, "throttled") == {"limit": "max_inflight_per_key", "max": 1}
        assert other.get("/v0/metrics").is_success
        assert other.post("/v0/topics/t", json=ONE).is_success
        waiting.join(40.0)
        assert answers[0].json()["records"][0]["$seq"] == 2
        # The slot is free again.
        assert second.get("/v0/topics/t").status_code == 200
        for _ in range(3):
            assert second.get("/v0/metrics").status_code == 200
