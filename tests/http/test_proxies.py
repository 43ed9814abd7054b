"""The server behind the proxies of deploy/proxy: nothing is held back, nothing is cut, and it knows the client's
address."""

import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from typing import NamedTuple

import httpx
import pytest
from websockets.sync.client import connect

from tests.http.live import LiveServer
from tests.http.proxies import PROXIES, Proxy, proxied
from tests.http.streams.authority import Authority

pytestmark = pytest.mark.slow

KEY = "behind-a-proxy"
HEADERS = {"authorization": f"Bearer {KEY}"}
MIB = 1 << 20


class Behind(NamedTuple):
    proxy: Proxy
    trust: ssl.SSLContext
    api: httpx.Client
    live: LiveServer


@pytest.fixture(scope="module", params=PROXIES)
def behind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    folder = tmp_path_factory.mktemp(request.param)
    authority = Authority(folder, "authority")
    pair = authority.certificate("localhost")
    trust = ssl.create_default_context(cafile=str(authority.file))
    settings = {"api_keys": KEY, "access_log": "1", "log_format": "json", "trusted_proxies": "127.0.0.1"}
    with (
        LiveServer(folder, **settings) as live,
        proxied(request.param, folder, live.url, (pair, pair)) as proxy,
        httpx.Client(base_url=proxy.url, verify=trust, headers=HEADERS, timeout=60.0, trust_env=False) as api,
    ):
        yield Behind(proxy, trust, api, live)


def append(api: httpx.Client, topic: str, *values: object) -> None:
    api.post(f"/v0/topics/{topic}", json={"records": [{"data": value} for value in values]}).raise_for_status()


def test_what_is_written_is_read(behind: Behind) -> None:
    append(behind.api, "plain", 1, 2)
    found = behind.api.post("/v0/topics/plain/diff", json={"from_seq": 0}).json()
    assert [record["data"] for record in found["records"]] == [1, 2]


def test_events_come_when_they_happen(behind: Behind) -> None:
    """Nothing else is sent for a minute, so data that a proxy holds back would not come at all."""
    append(behind.api, "watched", 0)
    watch = behind.api.post("/v0/watch", json={"topics": {"watched": {"from_seq": 0}}, "heartbeat_ms": 60_000})
    with behind.api.stream("GET", watch.raise_for_status().json()["stream_url"]) as events:
        assert events.headers["content-type"].startswith("text/event-stream")
        lines = events.iter_lines()
        for number in range(3):
            found = next(line for line in lines if line.startswith("data:") and '"records"' in line)
            assert [record["data"] for record in json.loads(found[5:])["records"]] == [number]
            append(behind.api, "watched", number + 1)


def test_a_request_that_waits_is_answered_by_what_comes(behind: Behind) -> None:
    behind.api.put("/v1/stream/waited", headers={"content-type": "application/json"}).raise_for_status()
    offset = behind.api.head("/v1/stream/waited").headers["stream-next-offset"]
    writing = threading.Timer(1.0, lambda: behind.api.post("/v1/stream/waited", json=[{"n": 1}]))
    writing.start()
    answer = behind.api.get("/v1/stream/waited", params={"offset": offset, "live": "long-poll"})
    writing.join()
    assert answer.json() == [{"n": 1}]


def test_websockets_pass(behind: Behind) -> None:
    url = behind.proxy.url.replace("https:", "wss:")
    append(behind.api, "socket", "here")
    with connect(f"{url}/v0/ws", ssl=behind.trust, additional_headers=HEADERS, open_timeout=60) as socket:
        socket.send(json.dumps({"op": "subscribe", "topic": "socket"}))
        while "here" not in str(socket.recv(timeout=60)):
            pass
        socket.send(json.dumps({"op": "publish", "topic": "socket", "records": [{"data": "there"}]}))
        while "there" not in str(socket.recv(timeout=60)):
            pass


def test_large_bodies_pass_and_too_large_ones_do_not(behind: Behind) -> None:
    text = "x" * (MIB - 100)
    body = json.dumps({"records": [{"data": text} for _ in range(60)]}).encode()
    headers = {"content-type": "application/json"}
    assert behind.api.post("/v0/topics/large", content=body, headers=headers).status_code in (200, 201)
    read = behind.api.post("/v0/topics/large/diff", json={"from_seq": 0, "limit": 1}).json()
    assert read["records"][0]["data"] == text
    try:
        assert behind.api.post("/v0/topics/large", content=body + b" " * 8 * MIB, headers=headers).status_code == 413
    except httpx.TransportError:
        pass  # The proxy has answered and closed while the body was still being sent.


def test_the_server_knows_who_asks_and_by_which_name(behind: Behind) -> None:
    """A forged client address is ignored: only the address that the proxy added counts."""
    append(behind.api, "who", 1)
    behind.api.post("/v0/topics/who/diff", json={}, headers={"x-forwarded-for": "203.0.113.9"}).raise_for_status()
    lines = [json.loads(line) for line in behind.live.log().splitlines() if '"answered"' in line]
    [peer] = [line["peer"] for line in lines if line["path"] == "/v0/topics/who/diff"]
    assert peer in ("127.0.0.1", "203.0.113.9"), "the address without the proxy's port"
    made = behind.api.put("/v1/stream/named", headers={"content-type": "application/json"})
    assert made.headers["location"] == f"{behind.proxy.url}/v1/stream/named"


def test_http_2_is_spoken_to_clients(behind: Behind) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("there is no curl")
    done = subprocess.run(
        [curl, "-sk", "--http2", "-o", "/dev/null", "-w", "%{http_version} %{http_code}",
         f"{behind.proxy.url}/healthz"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout == "2 200"
