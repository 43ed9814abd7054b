"""Concurrent requests are read and answered in batches, and neither the answers nor the records show it."""

import json
import random
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.http.live import LiveServer
from tests.http.protocol.support import Reply, post, split_answers

JSON = "content-type: application/json"


class Line:
    """One connection, on which any number of requests are sent at once."""

    def __init__(self, url: str, name: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=60)
        self._host = f"host: {parts.netloc}"
        self._name = name

    def append(self, body: bytes, *headers: str) -> bytes:
        return self._request("POST", "", body, *headers)

    def configure(self, body: bytes) -> bytes:
        return self._request("PUT", "", body)

    def delete(self, body: bytes) -> bytes:
        return self._request("POST", "/delete", body)

    def drop(self, query: str = "") -> bytes:
        return f"DELETE /v0/topics/{self._name}{query} HTTP/1.1\r\n{self._host}\r\n\r\n".encode()

    def _request(self, method: str, rest: str, body: bytes, *headers: str) -> bytes:
        target = f"/v0/topics/{self._name}{rest}"
        request = post(target, body, JSON, *headers).replace(b"POST", method.encode(), 1)
        return request.replace(b"host: x", self._host.encode())

    def send(self, *requests: bytes) -> None:
        self._socket.sendall(b"".join(requests))

    def ask(self, *requests: bytes) -> list[Reply]:
        self.send(*requests)
        return self.answers(len(requests))

    def answers(self, missing: int) -> list[Reply]:
        answered = b""
        while True:
            piece = self._socket.recv(1 << 20)
            assert piece, answered
            answered += piece
            try:
                replies = split_answers(answered)
            except (ValueError, IndexError):
                continue
            if len(replies) == missing and replies[-1].headers.get("content-length", "0") == str(len(replies[-1].body)):
                return replies

    def close(self) -> None:
        self._socket.close()


class Sender:
    """Requests at random; equal seeds give equal requests."""

    def __init__(self, luck: random.Random, line: Line) -> None:
        self._luck = luck
        self._line = line
        self._number = 0
        self._keys: list[tuple[str, int]] = []

    def next(self) -> bytes:
        self._number += 1
        kind = self._luck.choices(
            ("plain", "keyed", "again", "other", "two", "tagged", "broken", "no text", "put", "drop", "headed"),
            (40, 15, 8, 4, 6, 6, 3, 2, 2, 1, 8),
        )[0]
        number = 1_000_000 + self._number
        if kind == "put":
            return self._line.configure(b'{"cap_records":%d}' % self._luck.choice((500, 1000)))
        if kind == "drop":
            self._keys.clear()
            return self._line.drop()
        if kind == "headed" and self._keys:
            # The key has another position, so the request does not take the path of the ones before it.
            key, first = self._luck.choice(self._keys[-8:])
            return self._line.append(b'{"records":[{"data":%d}]}' % first, f"idempotency-key: {key}")
        return self._line.append(self._body(kind, number))

    def _body(self, kind: str, number: int) -> bytes:
        if kind == "broken":
            return b'{"records":[{"data":%d}' % number
        if kind == "no text":
            return b'{"records":[{"data":"\xff"}]}'
        if kind == "two":
            return b'{"records":[{"data":%d},{"data":-1}]}' % number
        if kind == "tagged":
            return b'{"records":[{"data":%d,"tag":"t%d"}]}' % (number, number % 3)
        if kind == "plain" or (kind != "keyed" and not self._keys):
            return b'{"records":[{"data":%d}]}' % number
        key = f"key-{number}"
        if kind == "keyed":
            self._keys.append((key, number))
        else:
            key, first = self._luck.choice(self._keys)
            number = first if kind == "again" else number
        return b'{"records":[{"data":%d}],"idempotency_key":"%b","idempotency_check":true}' % (number, key.encode())


def shown(replies: list[Reply]) -> list[tuple[int, Any]]:
    """Returns the answer without its variable parts."""
    reported = []
    for reply in replies:
        body = json.loads(reply.body)
        for varies in ("performance", "topic", "config", "created_ts", "epoch"):
            body.pop(varies, None)
        error = body.get("error")
        reported.append((reply.status, (error["code"], error.get("detail", {}).get("first_seq")) if error else body))
    return reported


@pytest.mark.parametrize("seed", range(6))
def test_requests_in_one_piece_are_answered_as_one_by_one(server: LiveServer, name: str, seed: int) -> None:
    print(f"seed {seed}")
    single, many = Line(server.url, f"{name}-single"), Line(server.url, f"{name}-many")
    one_by_one, together = Sender(random.Random(seed), single), Sender(random.Random(seed), many)
    luck = random.Random(seed + 1000)
    for line in (single, many):
        line.ask(line.append(b'{"records":[{"data":0}]}'))
    for _ in range(40):
        size = luck.choice((1, 2, 5, 16, 40))
        requested = shown([single.ask(one_by_one.next())[0] for _ in range(size)])
        assert shown(many.ask(*[together.next() for _ in range(size)])) == requested
    stored = []
    for topic in (f"{name}-single", f"{name}-many"):
        page = httpx.post(f"{server.url}/v0/topics/{topic}/diff", json={"limit": 1000, "include_tags": True}).json()
        stored.append([(each["$seq"], each.get("$tag"), each["data"]) for each in page.get("records", [])])
    assert stored[0] == stored[1]
    single.close()
    many.close()


def test_a_topic_is_not_empty_while_what_came_before_waits(server: LiveServer, name: str) -> None:
    line = Line(server.url, name)
    for number in (1, 1, 2):
        line.ask(*[line.append(b'{"records":[{"data":0}]}')] * number)
    line.ask(line.delete(b'{"before_seq":100}'))
    replies = line.ask(*[line.append(b'{"records":[{"data":1}]}')] * 3, line.drop("?if_empty=true"))
    assert [reply.status for reply in replies] == [200, 200, 200, 409]
    page = httpx.post(f"{server.url}/v0/topics/{name}/diff", json={}).json()
    assert [each["data"] for each in page["records"]] == [1, 1, 1]
    line.close()


def test_requests_behind_gathered_ones_start_in_the_middle_of_no_other(tmp_path: Path) -> None:
    """The last request of a full pipeline is refused when a topic is created: the room it leaves admits another."""
    with LiveServer(tmp_path) as server:
        first, second = Line(server.url, "first"), Line(server.url, "second")
        for _ in range(3):
            first.ask(*[first.append(b'{"records":[{"data":0}]}')] * 8)
        second.ask(second.drop())
        made = Line(server.url, "made")
        for number in range(5):
            with server.held():
                first.send(*[first.append(b'{"records":[{"data":0}]]')] * 16, made.configure(b"{}"))
                second.send(second.configure(b"{}"))
            assert [reply.status for reply in first.answers(17)] == [400] * 16 + [201]
            assert [reply.status for reply in second.answers(1)] == [201]
            # Two topics of one id would show each other's records.
            for each in ("made", "second"):
                httpx.post(f"{server.url}/v0/topics/{each}", json={"records": [{"data": each}]}).raise_for_status()
            for each in ("made", "second"):
                page = httpx.post(f"{server.url}/v0/topics/{each}/diff", json={"from_seq": 0}).json()
                assert [record["data"] for record in page["records"]] == [each], f"round {number}"
            second.ask(made.drop(), second.drop())
        for line in (first, second, made):
            line.close()


def test_many_connections_at_a_time_keep_their_order_and_lose_nothing(server: LiveServer, name: str) -> None:
    lines = [Line(server.url, name) for _ in range(8)]
    lines[0].ask(lines[0].append(b'{"records":[{"data":[99,0]}]}'))
    acknowledged: list[list[tuple[int, Any]]] = [[] for _ in lines]

    def send(place: int) -> None:
        sent = 100_000
        for burst in range(30):
            keyed = b',"idempotency_key":"%d-%d"' if (burst + place) % 3 == 0 else b""
            requests = []
            for _ in range(16):
                sent += 1
                key = keyed % (place, sent) if keyed else b""
                requests.append(lines[place].append(b'{"records":[{"data":[%d,%d]}]%b}' % (place, sent, key)))
            for number, (status, body) in enumerate(shown(lines[place].ask(*requests))):
                assert (status, body["count"], body["deduped"]) == (200, 1, False)
                acknowledged[place].append((body["first_seq"], [place, sent - 15 + number]))

    threads = [threading.Thread(target=send, args=(place,)) for place in range(len(lines))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for line in lines:
        line.close()
    stored: dict[int, Any] = {}
    while True:
        body = {"from_seq": max(stored, default=0), "limit": 1000}
        records = httpx.post(f"{server.url}/v0/topics/{name}/diff", json=body).json()["records"]
        if not records:
            break
        stored |= {record["$seq"]: record["data"] for record in records}
    reported = {seq: data for each in acknowledged for seq, data in each}
    assert len(reported) == 8 * 30 * 16
    assert {seq: data for seq, data in stored.items() if seq > 1} == reported
    for place, each in enumerate(acknowledged):
        assert [data for _, data in each] == [[place, 100_001 + number] for number in range(480)]
        assert [seq for seq, _ in each] == sorted(seq for seq, _ in each)
