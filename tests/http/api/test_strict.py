"""A config with an unknown field: ignored, as the protocol defines, unless the client sends the strict header."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.api.conftest import refused
from tests.http.api.sockets import open_socket
from tests.http.live import LiveServer

TYPO: dict[str, Any] = {"durabilty": "fsync"}
RIGHT = {"durability": "fsync"}
DETAIL = {"field": "durabilty", "did_you_mean": "durability"}


def ways(api: httpx.Client, url: str, name: str, config: dict[str, Any], query: str) -> Iterator[tuple[str, Any]]:
    """Each way to bring a config, and the refusal with its detail, or None."""
    record = {"records": [{"data": 1}], "config": config}
    for way, answer in (
        ("put", api.put(f"/v0/topics/{name}-put{query}", json=config)),
        ("append", api.post(f"/v0/topics/{name}-append{query}", json=record)),
        ("queue", api.post(f"/v0/topics/{name}-q{query}", json={**record, "config": {"type": "queue", **config}})),
    ):
        yield way, None if answer.is_success else refused(answer, 400, "invalid_request")
    with open_socket(url, query=query) as socket:
        frame = socket.ask({"op": "publish", "request_id": 3, "topic": f"{name}-ws", **record})
        assert frame["request_id"] == 3
        yield "publish", None if frame["op"] == "ack" else frame["detail"]
        assert socket.ask({"op": "ping"})["op"] == "pong"


def test_a_typo_is_ignored_unless_asked(server: LiveServer, api: httpx.Client, name: str) -> None:
    assert [detail for _, detail in ways(api, server.url, name, TYPO, "")] == [None] * 4
    assert api.get(f"/v0/topics/{name}-put").json()["config"]["durability"] == "disk"


def test_a_typo_is_refused_where_it_is_asked_and_changes_nothing(
    server: LiveServer, api: httpx.Client, name: str
) -> None:
    assert [detail for _, detail in ways(api, server.url, name, TYPO, "?strict=true")] == [DETAIL] * 4
    assert api.get("/v0/topics", params={"prefix": name}).json()["topics"] == []
    assert [detail for _, detail in ways(api, server.url, name, RIGHT, "?strict=true")] == [None] * 4
    assert api.get(f"/v0/topics/{name}-ws").json()["config"]["durability"] == "fsync"


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path, strict_config="1") as server:
        yield server


def test_strict_config_setting_is_the_default_of_requests(strict: LiveServer) -> None:
    with httpx.Client(base_url=strict.url) as api:
        assert [detail for _, detail in ways(api, strict.url, "a", TYPO, "")] == [DETAIL] * 4
        assert api.get("/v0/topics").json()["topics"] == []
        assert [detail for _, detail in ways(api, strict.url, "a", TYPO, "?strict=false")] == [None] * 4
