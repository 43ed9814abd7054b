"""Faults between two servers and their object store, a mixed load of both protocols, and what must be true after it.

Each server reaches the store through a separate proxy, which can be slow, cut, silent, or lose answers after the
request took effect. The load notes every answer; readers follow both servers and note each record that they are shown.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

from tests.http.live import LiveServer
from tests.s3 import S3Server

PATIENCE_S = 120.0
_CHUNK_BYTES = 256 * 1024
_SHIFTED_CLOCK = """
import runpy, sys, time
real, real_ns = time.time, time.time_ns
time.time, time.time_ns = lambda: real() + {0}, lambda: real_ns() + {0} * 10**9
sys.argv = ["topics", "serve"]
runpy.run_module("topics", run_name="__main__")
"""


class FaultProxy:
    """Passes connections on to a port of loopback, with the faults that a test asks for."""

    def __init__(self, port: int) -> None:
        self.delay_s = 0.0
        """How much later bytes arrive, in both directions."""
        self.loses_answers = False
        """Requests arrive, and their answers do not: the connection ends instead."""
        self._cut = False
        self._target = port
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._accept, "127.0.0.1", 0), self._loop)
        self._server = starting.result(10)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """Ends all connections and refuses new ones."""
        self._cut = True
        self._loop.call_soon_threadsafe(self._end_connections)

    def heal(self) -> None:
        self._cut, self.delay_s, self.loses_answers = False, 0.0, False

    def close(self) -> None:
        def end() -> None:
            self._server.close()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.call_soon(self._loop.stop)

        self._loop.call_soon_threadsafe(end)
        self._thread.join(10)
        self._loop.close()

    def _end_connections(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, far_writer}
        self._open |= pair
        try:
            await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer, answers=True))
        finally:
            self._open -= pair
            for one in pair:
                one.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool = False) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if answers and self.loses_answers:
                    writer.transport.abort()
                    return
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        if not answers:
            with suppress(OSError):
                writer.write_eof()
        else:
            writer.close()


class FaultyServer(LiveServer):
    """A server with a separate data folder and proxy; its clock may be off."""

    def __init__(self, folder: Path, store: S3Server, place: str, clock_off_s: int = 0, **settings: str) -> None:
        folder.mkdir()
        program = ["-c", _SHIFTED_CLOCK.format(clock_off_s)] if clock_off_s else None
        super().__init__(
            folder, *([program] if program else []), backup_dir=place, standby="1", backup_ship_ms="500",
            remote_flush_ms="20", drain_ms="1000", streams_durability="remote", **settings,
        )  # fmt: skip
        self._environment = store.environment
        self.proxy = FaultProxy(int(store.environment["AWS_ENDPOINT_URL"].rpartition(":")[2]))

    def start(self) -> "FaultyServer":
        environment = {**self._environment, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.proxy.port}"}
        with mock.patch.dict(os.environ, environment):
            super().start()
        return self

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self) -> None:
        """Ends the process, if it still runs."""
        if self.runs:
            self.signal(18)  # SIGCONT
            self.kill()

    def wait_for_end(self) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while self.runs:
            assert time.monotonic() < give_up, f"it goes on without the lease:\n{self.log()}"
            time.sleep(0.02)


def ready(server: LiveServer) -> httpx.Response | None:
    try:
        return httpx.get(f"{server.url}/v0/ready", trust_env=False, timeout=2)
    except httpx.HTTPError:
        return None


def wait_for_primary(servers: list[FaultyServer], above_term: int = 0) -> tuple[FaultyServer, int]:
    """The server that is ready, and its term."""
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        for server in servers:
            answer = ready(server) if server.runs else None
            if answer is not None and answer.status_code == 200 and answer.json()["primary_term"] > above_term:
                return server, answer.json()["primary_term"]
        time.sleep(0.02)
    raise AssertionError("no server became the primary:\n" + "\n".join(server.log()[-4000:] for server in servers))


class Load:
    """A mixed load on both protocols, with notes of all answers.

    `orders` and the stream and the queue are of class `remote`, `local` is of class `disk` and `synced` of `fsync`.
    """

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._stop = threading.Event()
        self.wrong: list[str] = []
        """Violations that were found."""
        self.acked: dict[str, dict[int, str]] = {"orders": {}, "local": {}, "synced": {}}
        """The value of each acknowledged seq, by topic."""
        self.seen: dict[str, dict[int, str]] = {"orders": {}, "local": {}, "synced": {}}
        """The value of each seq that was read, from either server."""
        self.streamed: list[str] = []
        self.done_jobs: set[str] = set()
        self.jobs: set[str] = set()
        self.wrongly_answered = 0
        work: list[Callable[[], None]] = [
            lambda: self._append("orders", 0), lambda: self._append("orders", 1), lambda: self._append("local", 2),
            lambda: self._append("synced", 3), self._stream, self._produce, self._work,
            *(lambda topic=topic, url=url: self._follow(topic, url) for topic in self.seen for url in urls),
        ]  # fmt: skip
        self._threads = [threading.Thread(target=self._guarded, args=(one,), daemon=True) for one in work]

    def set_up(self) -> None:
        for topic, durability in (("orders", "remote"), ("local", "disk"), ("synced", "fsync")):
            self._request("PUT", f"/v0/topics/{topic}", {"durability": durability})
        self._request("PUT", "/v0/topics/jobs", {"type": "queue", "durability": "remote", "lease_ms": 1000})
        self._request("PUT", "/v1/stream/chat", None, {"content-type": "application/json"})
        # A change of class remote is acknowledged when everything before it is in the store.
        self._request("PUT", "/v0/topics/barrier", {"durability": "remote"})

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def wait_for(self, more: int) -> None:
        wanted, give_up = len(self.acked["orders"]) + more, time.monotonic() + PATIENCE_S
        while len(self.acked["orders"]) < wanted and not self.wrong:
            assert time.monotonic() < give_up, "nothing is acknowledged any more"
            time.sleep(0.01)

    # Requests

    def _try(self, url: str, method: str, path: str, body: object, headers: dict[str, str]) -> httpx.Response | None:
        try:
            answer = self._client.request(method, url + path, json=body, headers=headers)
        except httpx.HTTPError:
            return None
        if answer.status_code in (421, 503, 408, 410, 429, 500, 502, 504):
            return None
        return answer

    @property
    def _client(self) -> httpx.Client:
        local = threading.current_thread().__dict__
        if "client" not in local:
            local["client"] = httpx.Client(trust_env=False, timeout=3)
        found: httpx.Client = local["client"]
        return found

    def _request(
        self, method: str, path: str, body: object, headers: dict[str, str] | None = None, once: bool = False
    ) -> httpx.Response | None:
        """The answer of the primary; None if the load ends before, or `once` and nobody has answered."""
        give_up, at = time.monotonic() + PATIENCE_S, 0
        while not self._stop.is_set():
            answer = self._try(self._urls[at % len(self._urls)], method, path, body, headers or {})
            if answer is not None:
                if answer.status_code >= 400:
                    self.wrong.append(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
                return answer
            at += 1
            if once and at >= len(self._urls):
                return None
            assert time.monotonic() < give_up, f"nobody answers {method} {path}"
            time.sleep(0.02)
        return None

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.wrong.append(repr(error))
        finally:
            self._client.close()

    # Writers

    def _append(self, topic: str, writer: int) -> None:
        number = 0
        while not self._stop.is_set():
            value = f"{writer}-{number}"
            # Requests of lower classes are sent once: they may be lost, and are not repeated under their key.
            body = {"records": [{"data": value}], "idempotency_key": value}
            answer = self._request("POST", f"/v0/topics/{topic}", body, once=topic != "orders")
            if answer is not None:
                first = answer.json()["first_seq"]
                before = self.acked[topic].setdefault(first, value)
                if before != value:
                    self.wrong.append(f"{topic} {first} was acknowledged for {before} and {value}")
            number += 1
            time.sleep(0.002)

    def _stream(self) -> None:
        number = 0
        while not self._stop.is_set():
            headers = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(number)}
            value = f"entry-{number}"
            answer = self._request("POST", "/v1/stream/chat", [value], headers)
            if answer is not None:
                self.streamed.append(value)
            number += 1
            time.sleep(0.005)

    def _produce(self) -> None:
        number = 0
        while not self._stop.is_set():
            value = f"job-{number}"
            body = {"records": [{"data": value}], "idempotency_key": value}
            if self._request("POST", "/v0/topics/jobs", body) is not None:
                self.jobs.add(value)
            number += 1
            time.sleep(0.02)

    def _work(self) -> None:
        while not self._stop.is_set():
            answer = self._request("POST", "/v0/topics/jobs/claim", {"node": "w", "max": 3}, once=True)
            for record in answer.json()["claimed"] if answer is not None and answer.status_code == 200 else ():
                if record["data"] in self.done_jobs:
                    self.wrong.append(f"{record['data']} was acknowledged and is delivered again")
                body = {"node": "w", "seqs": [record["$seq"]]}
                acked = self._request("POST", "/v0/topics/jobs/ack", body, once=True)
                if acked is not None and acked.json().get("acked") == 1:
                    self.done_jobs.add(record["data"])
            time.sleep(0.02)

    # Readers

    def _follow(self, topic: str, url: str) -> None:
        """Reads from one server whatever it shows, over and over from a moving cursor."""
        cursor = 0
        while not self._stop.is_set():
            body = {"from_seq": cursor, "limit": 500}
            answer = self._try(url, "POST", f"/v0/topics/{topic}/diff", body, {})
            if answer is None or answer.status_code != 200:
                time.sleep(0.05)
                continue
            page = answer.json()
            if page["tombstone"] is not None and page["tombstone"]["reason"] == "recreated":
                # This server is behind the cursor.
                cursor = 0
                continue
            self._note(topic, page)
            cursor = page["next_from_seq"]
            if page["caught_up"]:
                time.sleep(0.02)

    def _note(self, topic: str, page: dict[str, Any]) -> None:
        for record in page["records"]:
            before = self.seen[topic].setdefault(record["$seq"], record["data"])
            if before != record["data"]:
                self.wrong.append(f"{topic} {record['seq']} was {before} and is {record['data']}")

    # At the end

    def check(self, url: str) -> dict[str, int]:
        """Everything must hold on the primary. Returns what was counted."""
        assert self.wrong == [], self.wrong[:5]
        counts = {"jobs": len(self.done_jobs), "entries": len(self.streamed)}
        for topic, acked in self.acked.items():
            found, lost = read_all(url, topic)
            values = list(found.values())
            assert len(values) == len(set(values)), f"{topic}: a key was written twice"
            for noted in (acked, self.seen[topic]):
                for seq, value in noted.items():
                    if seq in found:
                        assert found[seq] == value, f"{topic} {seq} was {value} and is {found[seq]}"
                    else:
                        assert topic != "orders", f"{topic} {seq} {value}: acknowledged or shown, and lost"
                        assert any(first <= seq <= last for first, last in lost), (
                            f"{topic} {seq}: lost without a report"
                        )
            if topic == "orders":
                assert lost == [], "class remote has no gap"
                assert sorted(found) == list(range(1, len(found) + 1))
            counts[topic] = len(found)
            counts[f"{topic} lost"] = sum(seq not in found for seq in acked)
        entries = httpx.get(f"{url}/v1/stream/chat?offset=-1", trust_env=False, timeout=30).json()
        missing = [value for value in self.streamed if value not in set(entries)]
        assert missing == [], "entries of the stream were acknowledged and lost"
        assert len(entries) == len(set(entries)), "an entry of a producer was written twice"
        return counts


def read_all(url: str, topic: str) -> tuple[dict[int, str], list[tuple[int, int]]]:
    """All records of a topic by seq, and the ranges that are reported as lost."""
    found: dict[int, str] = {}
    lost: list[tuple[int, int]] = []
    cursor = 0
    while True:
        body = {"from_seq": cursor, "limit": 1000}
        page = httpx.post(f"{url}/v0/topics/{topic}/diff", json=body, trust_env=False, timeout=30).json()
        if page["tombstone"] is not None:
            assert page["tombstone"]["reason"] == "failover"
            lost.append((page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]))
        found |= {record["$seq"]: record["data"] for record in page["records"]}
        if page["caught_up"]:
            return found, lost
        cursor = page["next_from_seq"]
