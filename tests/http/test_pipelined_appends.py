"""Pipelined appends keep their order."""

import json
import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.http.live import LiveServer
from tests.http.pipelined import pipeline


def test_pipelined_appends_of_any_size_are_logged_and_answered_in_order(tmp_path: Path) -> None:
    """A small append waits for a long one before it on the connection, which is read and validated in turns."""
    with LiveServer(tmp_path) as server:
        check_order(server.url)


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def check_order(url: str) -> None:
    httpx.put(f"{url}/v1/stream/ordered", headers={"content-type": "application/json"})
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    httpx.post(f"{url}/v1/stream/ordered/_schema", json={"schema": schema}).raise_for_status()
    sizes = (1, 20_000, 1, 3, 9_000, 1)
    batches, first = [], 0
    for size in sizes:
        batches.append([{"n": n} for n in range(first, first + size)])
        first += size
    records = [json.dumps({"records": [{"data": one} for one in some[:9_000]]}).encode() for some in batches]
    answered = pipeline(url, [post("/v0/topics/ordered-v0", body) for body in records])
    found = [int(seq) for seq in re.findall(rb'"first_seq":(\d+)', answered)]
    assert found == [1 + sum(min(size, 9_000) for size in sizes[:place]) for place in range(len(sizes))]
    entries = [post("/v1/stream/ordered", json.dumps(some).encode()) for some in batches]
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        connection.sendall(b"".join(entries))
        text = b""
        while text.count(b"\r\n\r\n") < len(sizes):
            text += connection.recv(65536)
    assert text.count(b"HTTP/1.1 204") == len(sizes)
    offsets = re.findall(rb"(?i)stream-next-offset: (\w+)", text)
    assert offsets == sorted(offsets)
    shown: list[int] = []
    offset = "-1"
    while len(shown) < first:
        page = httpx.get(f"{url}/v1/stream/ordered", params={"offset": offset})
        shown += [entry["n"] for entry in page.json()]
        offset = page.headers["stream-next-offset"]
    assert shown == list(range(first))
