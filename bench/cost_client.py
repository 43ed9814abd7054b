"""The client of `bench.cost`: it sends requests on every connection, waits for every answer, and then sends no more.

Only the server's use is measured, so the client may be slow; it must send the same in the same order each time. Client
and server share one core and neither takes it from the other (`SCHED_BATCH`), so the server finds a whole round before
it when its turn comes, as it does under load, and not as much of it as chance would have.
"""

import http.client
import json
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

_TIMEOUT_S = 60
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length: "


class Talk:
    """A connection that sends given bytes and waits for whole answers."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._heard = b""

    def send(self, data: bytes | bytearray) -> None:
        self._socket.sendall(data)

    def answer(self) -> bytes:
        """The body of the next HTTP answer; raises for any status but success."""
        while (end := self._heard.find(_HEAD_END)) < 0:
            self._hear()
        head, end = self._heard[:end], end + len(_HEAD_END)
        at = head.find(_LENGTH)
        length = 0 if at < 0 else int(head[at + len(_LENGTH) :].partition(b"\r\n")[0])
        while len(self._heard) < end + length:
            self._hear()
        body, self._heard = self._heard[end : end + length], self._heard[end + length :]
        if not head.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(f"the server answered {head[:100]!r} {body[:300]!r}")
        return body

    def until(self, word: bytes) -> None:
        """Reads until `word` arrives, and discards everything up to it."""
        while (at := self._heard.find(word)) < 0:
            self._heard = self._heard[-len(word) :]
            self._hear()
        self._heard = self._heard[at + len(word) :]

    def close(self) -> None:
        self._socket.close()

    def _hear(self) -> None:
        more = self._socket.recv(1 << 20)
        if not more:
            raise RuntimeError(f"the server hung up after {self._heard[-300:]!r}")
        self._heard += more


class Place:
    """A server and its connections, which are closed at the end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._talks: list[Talk] = []

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *_: object) -> None:
        for talk in self._talks:
            talk.close()

    def talks(self, count: int) -> list[Talk]:
        made = [Talk(self.address) for _ in range(count)]
        self._talks += made
        return made

    def ask(self, method: str, path: str, body: object = None) -> dict[str, object]:
        """Sends one request that is not measured."""
        connection = http.client.HTTPConnection(self.address, timeout=_TIMEOUT_S)
        try:
            connection.request(
                method, path, None if body is None else json.dumps(body),
                {"Content-Type": "application/json", "Accept": "application/json"},
            )  # fmt: skip
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path} was answered {answer.status}: {text[:300]!r}")
        found: dict[str, object] = json.loads(text) if text else {}
        return found

    def log_bytes(self) -> float:
        """The number of bytes that the server has written to its log."""
        found = self.ask("GET", "/v0/metrics")["topics_wal_bytes_written_total"]
        assert isinstance(found, float)
        return found


def in_step(talks: Sequence[Talk], request: Callable[[int], bytes | bytearray]) -> None:
    """Sends the request of its number on every connection, and then waits for all answers."""
    for number, talk in enumerate(talks):
        talk.send(request(number))
    for talk in talks:
        talk.answer()


def used_ns(pid: int) -> int:
    """The processor time that all threads of a process have used."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def share_one_core() -> None:
    """Pins this process and its children to one core, so that no wakeup moves them to another core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
