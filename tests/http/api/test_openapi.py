"""The server against its own description: no 500, no answer outside its schema."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, settings
from schemathesis.checks import not_a_server_error, response_schema_conformance, status_code_conformance
from schemathesis.config import SchemathesisConfig

from tests.http.live import LiveServer
from tests.seeds import SEED
from tests.unit.docs.pages import ROOT
from tests.unit.search.helpers import LOGS
from topics.api.error_responses import STATUS_BY_CODE, V1_STATUS_BY_CODE
from topics.api.operator_routes import OpsHandlers
from topics.model import errors
from topics.model.settings import Settings
from topics.server import stream_routes
from topics.system.clock import SystemClock


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(
        tmp_path_factory.mktemp("described"), max_body_bytes="1000000", streams_long_poll_max_ms="20"
    ) as live:
        for name, content_type in STREAMS.items():
            headers = {"content-type": content_type}
            assert httpx.put(f"{live.url}/v1/stream/{name}", headers=headers, content=b"[1]").status_code == 201
        touched = {"profile": {"kind": "state-protocol", "touch": {"enabled": True}}}
        assert httpx.post(f"{live.url}/v1/stream/b/d/_profile", json=touched).status_code == 200
        asked = {"type": "pull-wake", "pattern": "b/*", "wake_stream": "a"}
        assert httpx.put(f"{live.url}/v1/stream/__ds/subscriptions/s", json=asked).status_code == 201
        assert httpx.put(f"{live.url}/v1/stream/logs", headers=JSON).status_code == 201
        body = {"schema": {}, "routingKey": {"jsonPointer": "/service", "required": False}, "search": LOGS}
        assert httpx.post(f"{live.url}/v1/stream/logs/_schema", json=body).status_code == 200
        entries = [{"eventTime": n, "service": "ab"[n % 2], "status": n, "message": "card declined"} for n in range(9)]
        assert httpx.post(f"{live.url}/v1/stream/logs", json=entries).status_code == 204
        yield live


JSON = {"content-type": "application/json"}
QUERIES = ("", "status:>=3", "card", 'message:"card declined" -service:a', "has:why OR service:b", "nothing:1", "((")
SORTS: tuple[list[str], ...] = (["status:asc"], ["_score", "eventTime"], ["offset:asc"], ["message"])
STREAMS = {"a": "application/json", "b/c": "text/plain", "b/d": "application/json"}
"""Streams that are there; of other names most requests could only hear that there is nothing."""
OPS = OpsHandlers(SystemClock(), stream_routes(Settings()))
ROUTES = OPS.routes()
DOCUMENT: dict[str, Any] = msgspec.json.decode(OPS.description)
schema = schemathesis.openapi.from_dict(DOCUMENT, config=SchemathesisConfig(seed=SEED))


def aim(names: dict[str, Any]) -> None:
    """Lets most of the names be of something that is there."""
    if "stream" in names:
        known = [*STREAMS, names["stream"]]
        names["stream"] = known[len(names["stream"]) % len(known)]
    if "id" in names and len(names["id"]) % 2:
        names["id"] = "s"


def aim_search(case: schemathesis.Case[Any]) -> None:
    """Directs most searches to a searchable stream, and most queries to existing values."""
    names: dict[str, Any] = case.path_parameters or {}
    for name in ("stream", "topic"):
        if name in names and len(names[name]) % 4:
            names[name] = "logs"
    if not isinstance(case.body, dict):
        return
    body: dict[str, Any] = case.body
    if isinstance(body.get("q"), str):
        body["q"] = QUERIES[len(body["q"]) % len(QUERIES)]
    if isinstance(body.get("sort"), list):
        body["sort"] = SORTS[len(body["sort"]) % len(SORTS)]
    if isinstance(body.get("group_by"), list):
        body["group_by"] = ["service", "status"][: len(body["group_by"]) % 3]
    if "streams" in body and len(str(body["streams"])) % 4:
        body["streams"] = "l*"


SEARCHES = ("/_search", "/search", "/_aggregate", "/_routing_keys")


@schema.parametrize()
@settings(
    max_examples=40, deadline=None, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_every_answer_is_as_described(case: schemathesis.Case[Any], described: LiveServer) -> None:
    checks = [not_a_server_error, response_schema_conformance, status_code_conformance]
    query = case.query or {}
    if case.method not in ("PUT", "DELETE"):
        aim(case.path_parameters or {})
    if case.path.endswith(SEARCHES):
        aim_search(case)
    # Events do not end before a minute is over, and JSON one behind the other is not a JSON document.
    assume(query.get("live") != "sse" and query.get("format") != "raw")
    webhook = case.body.get("webhook") if isinstance(case.body, dict) else None
    if isinstance(webhook, dict):
        # No test connects to another machine.
        webhook["url"] = "http://127.0.0.1:9/"
    if case.path.endswith("/touch/wait") and isinstance(case.body, dict):
        case.body["timeoutMs"] = 0
    case.call_and_validate(base_url=described.url, checks=checks, timeout=20.0)


def test_refusals_of_streams_over_v0_are_described(server: LiveServer) -> None:
    with httpx.Client(base_url=server.url, timeout=30.0) as api:
        closed, gone = "described-closed", "described-gone"
        assert api.put(f"/v1/stream/{closed}", headers={**JSON, "stream-closed": "true"}).status_code == 201
        assert api.put(f"/v1/stream/{gone}", headers=JSON, content=b"[1]").status_code == 201
        forked = {**JSON, "stream-forked-from": f"/v1/stream/{gone}"}
        assert api.put("/v1/stream/described-fork", headers=forked).status_code == 201
        assert api.delete(f"/v1/stream/{gone}").status_code == 204
        records = {"records": [{"data": 1}]}
        for name, method, body, code in (
            (closed, "post", records, "stream_closed"),
            (gone, "post", records, "stream_gone"),
            (gone, "put", {}, "stream_gone"),
        ):
            answer = api.request(method, f"/v0/topics/{name}", json=body)
            assert answer.json()["error"]["code"] == code
            reported = DOCUMENT["paths"]["/v0/topics/{topic}"][method]["responses"][str(answer.status_code)]
            assert code in str(reported)


def test_every_route_is_described_or_meant_not_to_be(server: LiveServer) -> None:
    document = httpx.get(f"{server.url}/v0/openapi.json").json()
    assert document["paths"] == DOCUMENT["paths"]
    left_out = {(route.method, route.path) for route in ROUTES.all if route.operation is None}
    assert left_out == {
        ("GET", path) for path in ("/health", "/healthz", "/readyz", "/v0/openapi.json", "/docs", "/docs/plain", "/")
    }
    left_out |= {("GET", "/console"), ("GET", "/console/{file}"), ("GET", "/docs/{file}")}
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    there = {(method, path) for method, path in ROUTES.listed() if method != "OPTIONS"}
    assert described == there - left_out, "a route needs its description, and a description its route"


def test_the_page_shows_both_protocols(server: LiveServer) -> None:
    page = httpx.get(f"{server.url}/docs/plain").text
    assert page.index("<h2>/v0</h2>") < page.index("/v0/topics/{topic}") < page.index("<h2>/v1</h2>")
    for path in DOCUMENT["paths"]:
        assert f"<code>{path}</code>" in page
    assert "<script" not in page


def test_every_header_that_streams_answer_with_is_described() -> None:
    sources = [path.read_text() for path in (ROOT / "src/topics/api/v1").glob("*.py")]
    written = {name for text in sources for name in re.findall(r'\("((?:stream|producer)-[a-z-]+)",', text)}
    described = {
        name.lower()
        for path, methods in DOCUMENT["paths"].items()
        if path.startswith("/v1/")
        for operation in methods.values()
        for answer in operation["responses"].values()
        for name in answer.get("headers", {})
    }
    assert len(written) > 10
    assert written - described - {"producer-id"} == set(), "all but what is only read"


def test_every_error_code_has_a_status() -> None:
    classes = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.TopicsError)
    ]
    offline = {errors.BackupTargetError.code}  # `topics backup restore` alone raises it.
    assert {cls.code for cls in classes} - offline <= STATUS_BY_CODE.keys() | V1_STATUS_BY_CODE.keys()


def test_names_in_the_description_are_words() -> None:
    names = [one["operationId"] for methods in DOCUMENT["paths"].values() for one in methods.values()]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z][A-Za-z]+", name) for name in names)
