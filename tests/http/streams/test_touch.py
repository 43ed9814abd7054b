"""Waiting for changes of rows over the wire: events that end a wait, and events that do not prolong it."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.http.live import LiveServer, wait_until_ready
from tests.http.streams.conftest import append, code_of, create
from topics_protocol.touch_keys import table_key

JSON = "application/json"
POSTS = table_key("posts")
CHANGE = b'{"type":"posts","key":"1","value":{"a":1},"headers":{"operation":"insert"}}'


def enable(http: httpx.Client, path: str, **touch: object) -> None:
    create(http, path, JSON)
    body = {"profile": {"kind": "state-protocol", "touch": {"enabled": True, **touch}}}
    assert http.post(f"{path}/_profile", json=body).status_code == 200


@pytest.fixture
def touched(http: httpx.Client, path: str) -> str:
    enable(http, path)
    return path


def meta(http: httpx.Client, path: str, **query: str) -> dict[str, object]:
    found: dict[str, object] = http.get(f"{path}/touch/meta", params=query).json()
    return found


def wait(http: httpx.Client, path: str, **body: object) -> httpx.Response:
    return http.post(f"{path}/touch/wait", json={"cursor": "now", "keys": [POSTS], **body})


def until_waiting(http: httpx.Client, path: str, count: int) -> None:
    while meta(http, path)["activeWaiters"] != count:
        pass


def test_routes_that_are_not_there(http: httpx.Client, path: str) -> None:
    create(http, path, JSON)
    for method, part in (("GET", "meta"), ("POST", "wait"), ("POST", "templates/activate")):
        answer = http.request(method, f"{path}/touch/{part}", content=b"{}")
        assert (answer.status_code, code_of(answer)) == (404, "not_found")
    assert http.get(f"{path}/touch/wait").status_code == 405
    assert http.post(f"{path}/touch/meta").status_code == 405
    assert http.get(f"{path}/touch/other").status_code == 404


@pytest.mark.parametrize("body", [b"", b"[]", b'{"cursor":"now"}', b'{"cursor":"x","keys":["a"]}', b'{"keys":["a"]}'])
def test_waits_that_are_malformed(http: httpx.Client, touched: str, body: bytes) -> None:
    answer = http.post(f"{touched}/touch/wait", content=body)
    assert (answer.status_code, code_of(answer)) == (400, "bad_request")


def test_a_wait_ends_with_the_change_or_with_its_time(http: httpx.Client, touched: str) -> None:
    over = wait(http, touched, timeoutMs=20).json()
    assert (over["touched"], over["cursor"]) == (False, meta(http, touched)["cursor"])
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(wait, http, touched, timeoutMs=60_000)
        until_waiting(http, touched, 1)
        append(http, touched, CHANGE, JSON)
        found = answer.result().json()
    assert found["touched"] and found["cursor"].endswith(":1")
    assert wait(http, touched, cursor=over["cursor"], timeoutMs=0).json()["touched"]
    assert not wait(http, touched, cursor=found["cursor"], timeoutMs=0).json()["touched"]


def test_a_client_that_goes_away_waits_no_longer(http: httpx.Client, server: LiveServer, touched: str) -> None:
    address = urlsplit(server.url)
    body = json.dumps({"cursor": "now", "keys": [POSTS], "timeoutMs": 120_000}).encode()
    named = f"host: {address.netloc}\r\ncontent-length: {len(body)}"
    head = f"POST {touched}/touch/wait HTTP/1.1\r\n{named}\r\n\r\n"
    with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=60) as connection:
        connection.sendall(head.encode() + body)
        until_waiting(http, touched, 1)
    until_waiting(http, touched, 0)


def test_settling_waits_for_what_was_appended(http: httpx.Client, touched: str) -> None:
    meta(http, touched)
    append(http, touched, CHANGE, JSON)
    found = meta(http, touched, settle="flush")
    assert (found["settled"], found["generation"], found["bucketMaxSourceOffsetSeq"]) == (True, 1, "0")
    for query in ({"settle": "all"}, {"settle": "flush", "timeoutMs": "soon"}):
        assert http.get(f"{touched}/touch/meta", params=query).status_code == 400


def test_a_change_of_the_profile_ends_waits(http: httpx.Client, touched: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(wait, http, touched, timeoutMs=60_000)
        until_waiting(http, touched, 1)
        http.post(f"{touched}/_profile", json={"profile": {"kind": "generic"}})
        assert answer.result().json()["stale"]
    assert wait(http, touched).status_code == 404


def test_a_cursor_from_before_a_restart_is_stale_and_a_stop_ends_waits(tmp_path: Path) -> None:
    path = "/v1/stream/s"
    with LiveServer(tmp_path) as server:
        with httpx.Client(base_url=server.url, timeout=60.0) as http, ThreadPoolExecutor(1) as pool:
            enable(http, path)
            cursor = meta(http, path)["cursor"]
            answer = pool.submit(wait, http, path, timeoutMs=60_000)
            until_waiting(http, path, 1)
            server.stop()
            assert answer.result().json()["touched"] is False
        server.start()
        wait_until_ready(server.url)
        with httpx.Client(base_url=server.url) as http:
            found = wait(http, path, cursor=cursor, timeoutMs=0).json()
            assert found["stale"] and found["cursor"] != cursor
            assert found["cursor"] == meta(http, path)["cursor"]
