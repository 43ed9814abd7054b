"""`python -m bench.h2`: the cost of an HTTP/2 request beside an HTTP/1.1 request, sent by plain sockets in turns.

One server, on one core. The same request goes to it over either version, one round after the other: one at a time on
one connection, and sixteen at a time, which are sixteen connections of HTTP/1.1 and sixteen streams on one of HTTP/2.
The client writes frames as they are, with headers that were packed once, so that it costs next to nothing in both.
`--write` puts the table into bench/results/h2.md.
"""

import argparse
import os
import selectors
import socket
import statistics
import struct
import time
from dataclasses import dataclass

from hpack import Encoder

from bench.command import end_with_servers
from bench.load import Usage
from bench.peers import OURS, Running, our_version, running
from bench.report import machine, write_results

_BODY = b'{"records":[{"data":"%b"}]}' % (b"x" * 200)
_REQUESTS = 3000
_QUIET_LOAD_MAX = 0.5
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
_END_STREAM = 0x1
_DATA, _HEADERS, _SETTINGS, _GOAWAY = 0, 1, 4, 7


@dataclass(frozen=True)
class Asked:
    """A request in the format of each version."""

    title: str
    method: str
    path: str
    body: bytes = b""


ASKED = (
    Asked("append 1 record", "POST", "/v0/topics/bench", _BODY),
    Asked("read 10 records", "POST", "/v0/topics/bench/diff", b'{"limit":10}'),
    Asked("health", "GET", "/v0/health"),
)
AT_ONCE = (1, 16)


@dataclass(frozen=True)
class Found:
    per_s: float
    cpu_us: float


def connect(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    found = socket.create_connection((host, int(port)), timeout=60.0)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


class Http1:
    """HTTP/1.1: one request in flight on each connection."""

    name = "HTTP/1.1"

    def __init__(self, address: str, asked: Asked, at_once: int) -> None:
        head = f"{asked.method} {asked.path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
        self._said = f"{head}Content-Length: {len(asked.body)}\r\n\r\n".encode() + asked.body
        self._sockets = [connect(address) for _ in range(at_once)]
        self._heard = {each: b"" for each in self._sockets}
        self._selector = selectors.DefaultSelector()
        for each in self._sockets:
            self._selector.register(each, selectors.EVENT_READ)

    def ask(self, requests: int) -> None:
        left, asked = requests, 0
        for each in self._sockets[: min(requests, len(self._sockets))]:
            each.sendall(self._said)
            asked += 1
        while left:
            for key, _ in self._selector.select():
                heard = key.fileobj
                assert isinstance(heard, socket.socket)
                if self._has_answer(heard):
                    left -= 1
                    if asked < requests:
                        heard.sendall(self._said)
                        asked += 1

    def _has_answer(self, each: socket.socket) -> bool:
        heard = self._heard[each] + each.recv(65536)
        head, end, body = heard.partition(b"\r\n\r\n")
        if not end or len(body) < int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]):
            self._heard[each] = heard
            return False
        assert head.startswith(b"HTTP/1.1 2"), heard
        self._heard[each] = b""
        return True

    def close(self) -> None:
        self._selector.close()
        for each in self._sockets:
            each.close()


class Http2:
    """HTTP/2: the same number of streams on one connection."""

    name = "HTTP/2"

    def __init__(self, address: str, asked: Asked, at_once: int) -> None:
        self._at_once = at_once
        # Nothing goes into the table of either side, so that the same bytes mean the same with each request.
        fields = {
            ":method": asked.method, ":scheme": "http", ":path": asked.path, ":authority": address,
            "content-type": "application/json", "content-length": str(len(asked.body)),
        }  # fmt: skip
        encoder = Encoder()
        encoder.header_table_size = 0
        self._block = encoder.encode(fields.items())
        self._body = asked.body
        self._next = 1
        self._socket = connect(address)
        self._socket.sendall(_PREFACE + _frame(8, 0, 0, struct.pack(">L", 2**30)))
        self._heard = b""

    def ask(self, requests: int) -> None:
        answered, asked = 0, 0
        while answered < requests:
            more = min(requests - asked, self._at_once - (asked - answered))
            self._socket.sendall(b"".join(self._request() for _ in range(more)))
            asked += more
            answered += self._answers()

    def _request(self) -> bytes:
        stream_id, self._next = self._next, self._next + 2
        if not self._body:
            return _frame(_HEADERS, 0x4 | _END_STREAM, stream_id, self._block)
        return _frame(_HEADERS, 0x4, stream_id, self._block) + _frame(_DATA, _END_STREAM, stream_id, self._body)

    def _answers(self) -> int:
        """The number of answers that the received bytes complete."""
        self._heard += self._socket.recv(65536)
        at = answers = 0
        while len(self._heard) - at >= 9:
            length, kind, flags = int.from_bytes(self._heard[at : at + 3], "big"), *self._heard[at + 3 : at + 5]
            if len(self._heard) - at < 9 + length:
                break
            assert kind != _GOAWAY, "the server has enough"
            if kind == _SETTINGS and not flags & 1:
                self._socket.sendall(_frame(_SETTINGS, 1, 0, b""))
            answers += kind in (_DATA, _HEADERS) and flags & _END_STREAM
            at += 9 + length
        self._heard = self._heard[at:]
        return answers

    def close(self) -> None:
        self._socket.close()


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return struct.pack(">L", len(payload))[1:] + struct.pack(">BBL", kind, flags, stream_id) + payload


def measure(server: Running, client: Http1 | Http2, requests: int) -> Found:
    client.ask(requests // 10)
    before, begin = Usage(server.pid), time.perf_counter()
    client.ask(requests)
    spent_s = time.perf_counter() - begin
    return Found(requests / spent_s, (Usage(server.pid).server - before.server) / requests * 1e6)


def rows(server: Running, rounds: int, requests: int) -> list[str]:
    found = []
    for asked in ASKED:
        for at_once in AT_ONCE:
            runs: dict[str, list[Found]] = {Http1.name: [], Http2.name: []}
            for _ in range(rounds):
                for kind in (Http1, Http2):
                    client = kind(server.address, asked, at_once)
                    runs[kind.name].append(measure(server, client, requests))
                    client.close()
            cells = [f"{asked.title}, {at_once} at a time"]
            for of_one in runs.values():
                cells.append(f"{statistics.median(run.per_s for run in of_one):,.0f}")
                cells.append(f"{statistics.median(run.cpu_us for run in of_one):.0f}")
            found.append("| " + " | ".join(cells) + " |")
            print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=_REQUESTS, help="of each round")
    parser.add_argument("--write", action="store_true", help="put the table into bench/results/h2.md")
    given = parser.parse_args()
    end_with_servers("h2")
    load = os.getloadavg()[0]
    cores = sorted(os.sched_getaffinity(0))
    with running(OURS["disk"], cores[0]) as server:
        table = [
            "| request | HTTP/1.1, requests/s | CPU µs each | HTTP/2, requests/s | CPU µs each |",
            "|---|---|---|---|---|",
            *rows(server, given.rounds, given.requests),
        ]
    if given.write:
        said = (
            f"`python -m bench.h2`: {machine({'topics': our_version()})}. Medians of {given.rounds} rounds of "
            f"{given.requests:,} requests, both versions in turns, from one thread of plain sockets. Sixteen at a time "
            "are sixteen connections of HTTP/1.1, and sixteen streams of one connection of HTTP/2."
        )
        doubt = ""
        if load > _QUIET_LOAD_MAX:
            doubt = (
                f"\n\n**To be doubted:** the machine was not quiet, with a load of {load:.0f} on "
                f"{os.cpu_count()} cores. "
                "The requests a second say nothing then, and the times of the processor are longer than needed."
            )
        write_results(said + "\n\n" + "\n".join(table) + doubt, "h2", "HTTP/2 beside HTTP/1.1")


if __name__ == "__main__":
    main()
