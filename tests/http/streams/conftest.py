"""A separate server for the tests of /v1, and short helpers for its requests."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.http.live import LiveServer

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder: Path = tmp_path_factory.mktemp("streams")
    with LiveServer(folder, streams_long_poll_ms="300", segment_max_events="50") as live:
        yield live


@pytest.fixture(scope="module")
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30.0) as client:
        yield client


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"stream-{next(_numbers)}"


@pytest.fixture
def path(name: str) -> str:
    return f"/v1/stream/{name}"


def create(
    http: httpx.Client, path: str, content_type: str = "text/plain", body: bytes = b"", **headers: str
) -> httpx.Response:
    return create_with(http, path, content_type, headers, body)


def create_with(
    http: httpx.Client, path: str, content_type: str, headers: dict[str, str], body: bytes = b""
) -> httpx.Response:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return http.put(path, content=body, headers={"content-type": content_type, **named})


def append(
    http: httpx.Client, path: str, body: bytes, content_type: str = "text/plain", **headers: str
) -> httpx.Response:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return http.post(path, content=body, headers={"content-type": content_type, **named})


def offset_of(response: httpx.Response) -> str:
    return response.headers["stream-next-offset"]


def code_of(response: httpx.Response) -> str:
    code: str = response.json()["error"]["code"]
    return code


def reason_of(response: httpx.Response) -> str:
    """The finer word of a refusal, which is its code where there is none."""
    error = response.json()["error"]
    reason: str = (error.get("detail") or {}).get("reason") or error["code"]
    return reason
