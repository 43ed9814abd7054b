"""One server for all tests that only need their own empty name."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.http.live import LiveServer

Append = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("server")) as live:
        yield live


@pytest.fixture
def api(server: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30.0) as client:
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A unique topic name."""
    safe = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"t-{safe}"[:250]


@pytest.fixture
def append(api: httpx.Client, name: str) -> Append:
    """Appends values to the test's topic and gives the answer."""

    def appending(*values: object, **fields: object) -> dict[str, Any]:
        body = {"records": [{"data": value} for value in values], **fields}
        answer = api.post(f"/v0/topics/{name}", json=body)
        assert answer.is_success, answer.text
        decoded: dict[str, Any] = answer.json()
        return decoded

    return appending


@pytest.fixture
def diff(api: httpx.Client, name: str) -> Append:
    """Reads the test's topic."""

    def reading(**fields: object) -> dict[str, Any]:
        answer = api.post(f"/v0/topics/{name}/diff", json=fields)
        assert answer.status_code == 200, answer.text
        decoded: dict[str, Any] = answer.json()
        return decoded

    return reading


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Checks the one shape every refusal has, and gives its detail."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json"), answer.text
    error = answer.json()["error"]
    assert set(error) <= {"code", "message", "detail"}
    assert error["code"] == code, error
    assert error["message"]
    detail: dict[str, Any] = error.get("detail", {})
    return detail
