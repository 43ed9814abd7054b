"""The load generator against a real server, in small: its counts equal those of the server."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from bench.install import Missing
from bench.load import Load, Workload, generator
from bench.peers import OURS, Running, running
from bench.protocols import PAYLOAD_BYTES, Nats, Redis, Speaker, Streams, Topics

FILLED = 20_000


@pytest.fixture(scope="module")
def target() -> Iterator[Running]:
    try:
        generator()
    except Missing as error:
        pytest.skip(str(error))
    with running(OURS["disk"], None) as up:
        yield up


@pytest.fixture(scope="module")
def load(target: Running) -> Load:
    return Load(None, 0.3, warm_up_s=0.1, patience_s=0)


def ask(target: Running, method: str, path: str, body: str | None = None) -> Any:
    host, _, port = target.address.rpartition(":")
    client = http.client.HTTPConnection(host, int(port), timeout=30)
    try:
        client.request(method, path, body, {"content-type": "application/json"})
        return json.loads(client.getresponse().read())
    finally:
        client.close()


def count(target: Running, place: str) -> int:
    found: int = ask(target, "GET", f"/v0/topics/{place}")["count"]
    return found


def read(target: Running, place: str, limit: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(target, "POST", f"/v0/topics/{place}/diff", json.dumps({"limit": limit}))[
        "records"
    ]
    return found


def test_a_place_is_filled_to_the_record(target: Running, load: Load) -> None:
    target.server.speaker.make(target.address, "filled")
    load.fill(target, "filled", FILLED)
    assert count(target, "filled") == FILLED


@pytest.mark.parametrize(("connections", "records"), [(1, 1), (16, 1), (4, 100)])
def test_no_append_is_counted_that_was_not_made(target: Running, load: Load, connections: int, records: int) -> None:
    place = f"append-{connections}-{records}"
    target.server.speaker.make(target.address, place)
    found = load.measure(target, place, Workload(place, place, connections, records))
    assert 0 < found.records_per_s * load.seconds <= count(target, place)
    assert 0.0 < found.p50_ms <= found.p99_ms


def test_sizes_take_turns(target: Running, load: Load) -> None:
    target.server.speaker.make(target.address, "sizes")
    sizes = range(100, 301, 5)
    load.measure(target, "sizes", Workload("sizes", "sizes", 3, 1, sizes=sizes))
    found = {len(json.dumps(each["data"], separators=(",", ":"))) for each in read(target, "sizes", 200)}
    assert found == set(sizes)


def test_reads_go_over_all_there_is(target: Running, load: Load) -> None:
    target.server.speaker.make(target.address, "read")
    load.fill(target, "read", FILLED)
    found = load.measure(target, "read", Workload("read", "read", 2, 1000, reads=True), FILLED)
    assert found.records_per_s > 0


def test_a_server_that_breaks_off_is_an_error(target: Running, load: Load) -> None:
    broken = Running(target.pid, target.address, target.server)
    with pytest.raises(RuntimeError, match="topics, class disk"):
        load.measure(broken, "no such topic", Workload("x", "x", 1, 1, reads=True), 10)


@pytest.mark.parametrize("speaker", [Topics("disk"), Streams("/v1/stream")], ids=["topics", "streams"])
@pytest.mark.parametrize("records", [1, 100])
def test_a_request_over_http_is_as_long_as_it_states(speaker: Speaker, records: int) -> None:
    head, _, body = speaker.append("place", records).partition("\r\n\r\n")
    assert f"content-length: {len(body)}" in head.lower()
    assert body.count("~") == records
    assert len(body) >= records * PAYLOAD_BYTES


@pytest.mark.parametrize("speaker", [Redis(), Nats()], ids=["redis", "nats"])
def test_peers_are_sent_as_many_records(speaker: Speaker) -> None:
    assert speaker.append("place", 100).count("~") == 100
