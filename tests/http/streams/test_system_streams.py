"""`__registry__` and `__stream_metrics__`: streams that the server writes and clients with permission may read."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.live import LiveServer, wait_until_ready
from tests.http.streams.conftest import append, create, offset_of, reason_of

REGISTRY, METRICS = "/v1/stream/__registry__", "/v1/stream/__stream_metrics__"
BOTH = pytest.mark.parametrize("path", [REGISTRY, METRICS])
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("system")
    with LiveServer(folder, streams_metrics_ms="100", api_keys="boss,acme::acme-,own:read:__registry__") as live:
        yield live


@pytest.fixture(scope="module")
def http(server: LiveServer) -> Iterator[httpx.Client]:
    yield from client(server, "boss")


def client(live: LiveServer, key: str) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=live.url, headers=headers, timeout=PATIENCE_S) as opened:
        yield opened


def until_there(http: httpx.Client, path: str, requested: int = 1) -> list[dict[str, Any]]:
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        answer = http.get(path)
        if answer.status_code == 200 and len(answer.json()) >= requested:
            found: list[dict[str, Any]] = answer.json()
            return found
        time.sleep(0.01)
    raise AssertionError(f"{path} has fewer than {requested} entries")


def events_of(http: httpx.Client, name: str, requested: int) -> list[str]:
    return [one["event"] for one in until_there(http, f"{REGISTRY}/pk/{name}", requested)]


def test_the_list_of_streams_can_be_followed(http: httpx.Client, name: str) -> None:
    """The end of the registry first, then the list, then new entries: nothing is missed in between."""
    offset = offset_of(http.get(f"{REGISTRY}?offset=now"))
    streams = {one["name"] for one in http.get("/v1/streams?limit=1000").json()}
    create(http, f"/v1/stream/{name}/a")
    create(http, f"/v1/stream/{name}/b")
    http.delete(f"/v1/stream/{name}/a")
    seen: list[str] = []
    give_up = time.monotonic() + PATIENCE_S
    while f"deleted {name}/a" not in seen:
        assert time.monotonic() < give_up
        answer = http.get(f"{REGISTRY}?offset={offset}&live=long-poll&timeout=1s")
        for one in answer.json() if answer.status_code == 200 else []:
            seen.append(f"{one['event']} {one['stream']}")
            streams = streams - {one["stream"]} if one["event"] == "deleted" else streams | {one["stream"]}
        offset = offset_of(answer)
    assert [one for one in seen if name in one] == [f"created {name}/a", f"created {name}/b", f"deleted {name}/a"]
    assert streams == {one["name"] for one in http.get("/v1/streams?limit=1000").json()}


def test_it_can_be_followed_by_events(http: httpx.Client, path: str, name: str) -> None:
    offset = offset_of(http.get(f"{REGISTRY}?offset=now"))
    with ThreadPoolExecutor(1) as pool:
        create(http, path, "application/json")

        def first() -> dict[str, Any]:
            with http.stream("GET", f"{REGISTRY}?offset={offset}&live=sse") as answer:
                for line in answer.iter_lines():
                    if line.startswith("data:["):
                        reported: dict[str, Any] = json.loads(line[5:])[0]
                        return reported
            raise AssertionError("nothing came")

        reported = pool.submit(first).result(PATIENCE_S)
    assert (reported["event"], reported["stream"], reported["content_type"]) == ("created", name, "application/json")


def test_registry_reports_every_event_of_a_stream(http: httpx.Client, path: str, name: str) -> None:
    create(http, path, "application/json")
    http.post(f"{path}/_schema", json={"schema": {"type": "object"}})
    http.post(f"{path}/_profile", json={"profile": {"kind": "state-protocol"}})
    append(http, path, b"", "application/json", stream_closed="true")
    http.delete(path)
    assert events_of(http, name, 5) == ["created", "schema", "profile", "closed", "deleted"]


def test_the_registry_does_not_report_of_the_server_s_own(http: httpx.Client, path: str, name: str) -> None:
    create(http, path)
    events_of(http, name, 1)
    assert not [one for one in http.get(REGISTRY).json() if one["stream"].startswith("__")]


def test_metrics_are_intervals_that_are_read_by_their_series(http: httpx.Client) -> None:
    found = until_there(http, METRICS, 25)
    assert {one["apiVersion"] for one in found} == {"durable.streams/metrics/v1"}
    names = {one["metric"] for one in found}
    assert {
        "topics.append.records", "topics.append.bytes", "topics.read.count", "topics.http.requests",
        "topics.log.sync.time", "topics.seal.backlog.bytes", "topics.pipeline.lag", "topics.commit.time",
    } <= names  # fmt: skip
    series = next(one["seriesKey"] for one in found if one["metric"] == "topics.http.requests")
    of_it = http.get(METRICS, params={"key": series}).json()
    assert {one["seriesKey"] for one in of_it} == {series} and len(of_it) < len(found)
    assert sum(one["sum"] for one in of_it) > 0
    profile = http.get(f"{METRICS}/_profile").json()
    assert profile["profile"] == {"kind": "metrics"}
    schema = http.get(f"{METRICS}/_schema").json()
    assert schema["currentVersion"] == 1 and "search" not in schema and "routingKey" not in schema
    assert http.get(f"{METRICS}/_index_status").json()["search_families"] == []


@BOTH
def test_they_are_in_lists_and_details(http: httpx.Client, path: str) -> None:
    name = path.rpartition("/")[2]
    listed = {one["name"]: one["profile"] for one in http.get("/v1/streams?prefix=__").json()}
    assert listed == {"__registry__": "generic", "__stream_metrics__": "metrics"}
    assert http.get(f"{path}/_details").json()["stream"]["name"] == name


def test_lists_of_topics_and_totals_leave_them_out_unless_asked_for(http: httpx.Client) -> None:
    create(http, "/v1/stream/mine")
    names = [one["topic"] for one in http.get("/v0/topics?streams=true").json()["topics"]]
    assert "mine" in names and not {"__registry__", "__stream_metrics__"} & set(names)
    asked = [one["topic"] for one in http.get("/v0/topics?streams=true&prefix=__").json()["topics"]]
    assert asked == ["__registry__", "__stream_metrics__"]
    lines = http.get("/v0/metrics").text.splitlines()
    numbers = {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}
    by_class = sum(value for name, value in numbers.items() if name.startswith("topics_topics_by_class"))
    assert by_class == numbers["topics_topics"]
    assert numbers["topics_system_topics"] >= 2
    assert numbers["topics_system_records_live"] > 0 < numbers["topics_system_bytes_live"]
    assert numbers["topics_records_live"] == sum(
        value for name, value in numbers.items() if name.startswith("topics_topic_records_live") and '"__' not in name
    )


def test_lists_of_streams_leave_them_out_unless_asked_for(http: httpx.Client) -> None:
    """Also by place: each page begins where the one before it ended."""
    for name in ("A-before", "a-behind", "__mine", "zz"):
        http.put(f"/v1/stream/{name}").raise_for_status()

    def listed(**query: str | int | bool) -> list[str]:
        return [
            one["name"] for one in http.get("/v1/streams", params={"limit": 1000, **query}).raise_for_status().json()
        ]

    theirs, every = listed(), listed(system=True)
    assert set(every) - set(theirs) == {"__registry__", "__stream_metrics__"}
    assert theirs == [name for name in every if name in theirs]
    assert [listed(offset=at, limit=1) for at in range(len(theirs) + 1)] == [[name] for name in theirs] + [[]]
    assert [listed(offset=at, limit=1, system=True) for at in range(len(every))] == [[name] for name in every]
    assert listed(after="A", limit=3, offset=1) == [name for name in theirs if name > "A"][1:4]
    assert listed(prefix="__") == [name for name in every if name.startswith("__")]
    assert listed(prefix="__", system=False) == [name for name in theirs if name.startswith("__")]
    for name in ("A-before", "a-behind", "__mine", "zz"):
        http.delete(f"/v1/stream/{name}").raise_for_status()


@BOTH
def test_writes_to_system_streams_are_refused(http: httpx.Client, path: str) -> None:
    before = http.get(f"{REGISTRY}?offset=now").headers["stream-next-offset"]
    form = {"content-type": "application/json"}
    for method, below, headers in (
        ("PUT", "", form), ("PUT", "", {}), ("POST", "", form), ("POST", "", {**form, "stream-closed": "true"}),
        ("DELETE", "", {}), ("POST", "/_schema", {}), ("POST", "/_profile", {}),
    ):  # fmt: skip
        answer = http.request(method, path + below, headers=headers, content=b"{}" if method == "POST" else b"")
        assert (answer.status_code, reason_of(answer)) == (403, "system_stream"), (method, below)
        # However it is spelled.
        spelled = path.replace("__r", "%5F%5fr").replace("__s", "%5f_s") + "/" + below
        assert http.request(method, spelled.replace("//", "/"), headers=headers, content=b"{}").status_code == 403
    name = path.rpartition("/")[2]
    assert http.post(f"/v0/topics/{name}/delete", json={"before_seq": 10**9}).status_code == 404
    assert http.delete(f"/v0/topics/{name}").json().get("deleted", False) is False
    assert http.get(path).status_code == 200
    assert http.get(f"{REGISTRY}?offset=now").headers["stream-next-offset"] >= before


@BOTH
def test_they_have_no_families_and_so_no_searches(http: httpx.Client, path: str) -> None:
    aggregate = {"rollup": "metrics", "from": 0, "to": 1, "interval": "10s"}
    for answer in (
        http.get(f"{path}/_search?q=created"), http.post(f"{path}/_search", json={"q": ""}),
        http.post(f"{path}/_aggregate", json=aggregate), http.get(f"{path}/_routing_keys"),
        http.get(f"{path}?filter=event:created"),
    ):  # fmt: skip
        assert answer.status_code == 400, answer.text


@BOTH
def test_a_key_with_prefixes_reads_neither(server: LiveServer, path: str) -> None:
    for acme in client(server, "acme"):
        create(acme, "/v1/stream/acme-one")
        for below in ("", "?offset=-1&live=sse", "/_details", "/_schema", "/pk/acme-one"):
            assert acme.get(path + below).status_code == 403, below
        assert acme.head(path).status_code == 403
        forked = acme.put("/v1/stream/acme-fork", headers={"stream-forked-from": path})
        assert forked.status_code == 403
        assert [one["name"] for one in acme.get("/v1/streams").json()] == ["acme-one"]
        assert "__" not in acme.get("/v1/server/_mem").text.partition("top_streams")[2]


def test_a_key_for_the_registry_reads_it_and_nothing_else(server: LiveServer) -> None:
    for own in client(server, "own"):
        assert own.get(REGISTRY).status_code == 200
        assert own.get(METRICS).status_code == 403


def test_a_pattern_means_neither(http: httpx.Client, name: str, path: str) -> None:
    create(http, path)
    for pattern in ("**", "__*"):
        body = {"type": "pull-wake", "pattern": pattern, "wake_stream": name}
        made = http.put(f"/v1/stream/__ds/subscriptions/{name}-{len(pattern)}", json=body)
        assert made.is_success, made.text
        assert not [one for one in made.json()["streams"] if one["path"].startswith("__")]


def test_a_kill_leaves_nothing_untold(tmp_path: Path) -> None:
    with LiveServer(tmp_path, streams_metrics="0") as live, httpx.Client(timeout=PATIENCE_S) as http:
        for number in range(40):
            http.put(f"{live.url}/v1/stream/s{number}").raise_for_status()
            if number % 3 == 0:
                http.delete(f"{live.url}/v1/stream/s{number}").raise_for_status()
        live.kill()
        live.start()
        wait_until_ready(live.url)
        requested = {one["name"] for one in http.get(f"{live.url}/v1/streams?limit=1000&prefix=s").json()}
        give_up = time.monotonic() + PATIENCE_S
        believed: set[str] = set()
        while believed != requested:
            assert time.monotonic() < give_up, believed ^ requested
            believed = set()
            for one in http.get(f"{live.url}{REGISTRY}").json():
                believed = believed - {one["stream"]} if one["event"] == "deleted" else believed | {one["stream"]}
        assert http.get(f"{live.url}{METRICS}").status_code == 404


def test_they_can_be_switched_off(tmp_path: Path) -> None:
    with LiveServer(tmp_path, streams_metrics="0", streams_registry="0") as live:
        httpx.put(f"{live.url}/v1/stream/a").raise_for_status()
        assert [one["name"] for one in httpx.get(f"{live.url}/v1/streams").json()] == ["a"]
        for path in (REGISTRY, METRICS):
            assert httpx.get(live.url + path).status_code == 404
            assert httpx.put(live.url + path).status_code == 400
