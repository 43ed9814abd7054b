"""The official clients of Durable Streams, in JavaScript and in Python, against the project's server."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.node import require_node, run_node
from tests.http.live import LiveServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("clients"), streams_long_poll_ms="300") as live:
        yield live


def test_the_javascript_client_creates_appends_resumes_tails_closes_and_produces(server: LiveServer) -> None:
    home = require_node()
    seen = json.loads(run_node(home, Path(__file__).parent / "client.mjs", server.url).splitlines()[-1])
    assert seen["items"] == [{"n": n} for n in range(5)]
    assert seen["resumed"] == [{"n": 5}]
    assert seen["long-poll"] == seen["sse"] == "Hello, world!\n and more"
    assert seen["bytes"] == [0, 255, 10, 13]
    assert seen["errors"] == []
    assert seen["produced"] == list(range(300)), "each message once, in order, over three runs of one producer"
    assert seen["closed"] is True


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_the_package_for_the_state_protocol_keeps_rows(server: LiveServer, live: str) -> None:
    home = require_node()
    script = Path(__file__).parent / "state.mjs"
    seen = json.loads(run_node(home, script, server.url, live).splitlines()[-1])
    ada, bob = {"id": "1", "name": "Ada L."}, {"id": "2", "name": "Bob"}
    assert seen["profile"] == "state-protocol" and seen["refused"] == 400
    assert seen["materialized"] == [ada, bob]
    assert seen["preloaded"] == [ada, bob]
    assert seen["followed"] == [ada]
    assert seen["said"] == ["hello"]
    assert seen["settled"] is True


def test_the_python_client_creates_appends_and_resumes(server: LiveServer) -> None:
    streams = pytest.importorskip("durable_streams")
    with streams.DurableStream.create(f"{server.url}/v1/stream/py/json", content_type="application/json") as handle:
        for n in range(5):
            handle.append({"n": n})
        with handle.stream(live=False) as found:
            assert found.read_json() == [{"n": n} for n in range(5)]
            resume_at = found.offset
        handle.append({"n": 5})
        with handle.stream(offset=resume_at, live=False) as found:
            assert found.read_json() == [{"n": 5}]
        assert handle.head().exists
        handle.delete()


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_the_python_client_follows_a_stream(server: LiveServer, live: str) -> None:
    streams = pytest.importorskip("durable_streams")
    url = f"{server.url}/v1/stream/py/{live}"
    with streams.DurableStream.create(url, content_type="application/json") as handle:
        writing = threading.Thread(target=lambda: [handle.append({"n": n}) for n in range(10)])
        with streams.stream(url, offset="-1", live=live) as found:
            writing.start()
            items = found.iter_json()
            assert [next(items) for _ in range(10)] == [{"n": n} for n in range(10)]
        writing.join()
