"""The server against its own description: no 500, no answer outside its schema."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error, response_schema_conformance, status_code_conformance
from schemathesis.config import SchemathesisConfig

from tests.http.api.conftest import wait_until_ready
from tests.http.live import LiveServer
from tests.seeds import SEED
from topics.api.app import Routes
from topics.api.errors import STATUS_BY_CODE, V1_STATUS_BY_CODE
from topics.api.openapi import build_document
from topics.api.ops import OpsHandlers
from topics.core import errors
from topics.system.clock import SystemClock


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("described"), max_body_bytes="1000000") as live:
        wait_until_ready(live.url)
        yield live


DOCUMENT = build_document(OpsHandlers(SystemClock()).routes().all, "0")
schema = schemathesis.openapi.from_dict(DOCUMENT, config=SchemathesisConfig(seed=SEED))


@schema.parametrize()
@settings(
    max_examples=40, deadline=None, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_every_answer_is_as_described(case: schemathesis.Case[Any], described: LiveServer) -> None:
    checks = [not_a_server_error, response_schema_conformance, status_code_conformance]
    case.call_and_validate(base_url=described.url, checks=checks, timeout=20.0)


def test_every_route_is_described_or_meant_not_to_be(server: LiveServer) -> None:
    document = httpx.get(f"{server.url}/v0/openapi.json").json()
    assert document["paths"] == DOCUMENT["paths"]
    routes: Routes = OpsHandlers(SystemClock()).routes()
    left_out = {(route.method, route.path) for route in routes.all if route.operation is None}
    assert left_out == {("GET", path) for path in ("/healthz", "/readyz", "/v0/openapi.json", "/docs")}
    for route in routes.all:
        if route.operation is not None:
            assert route.method.lower() in document["paths"][route.path]


def test_every_error_code_has_a_status() -> None:
    classes = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.TopicsError)
    ]
    assert {cls.code for cls in classes} <= STATUS_BY_CODE.keys() | V1_STATUS_BY_CODE.keys()


def test_names_in_the_description_are_words() -> None:
    routes = OpsHandlers(SystemClock()).routes()
    names = [route.operation.name for route in routes.all if route.operation is not None]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z][A-Za-z]+", name) for name in names)
