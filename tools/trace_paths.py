"""`python -m tools.trace_paths`: how many source files a request crosses, path by path.

Starts a real server with a call profiler in every process, warms each path up and traces single requests. A file counts
when one of its functions is called between the request and its answer in more than half of the repetitions, so that
timers of the background do not count. Functions called in the search process are their own column.

    python -m tools.trace_paths                          # this checkout
    python -m tools.trace_paths --source OTHER/src       # another checkout, with the same tool
    python -m tools.trace_paths --files search           # lists the files of the paths whose name contains "search"

The index files of the path "search with history" are built by the pipeline, which needs Spark and half a minute;
`--no-history` leaves that path out.
"""

import argparse
import http.client
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
FOLDER = "TRACE_PATHS_FOLDER"
"""Names the variable with the folder of the control sockets; a process without it is not traced."""
RECOVERY = "Engine.recover"
_WARM_UP = 5
_REPETITIONS = 9
_BEHIND_S = 0.02
"""How long a trace goes on behind the answer: a step that the answer did not wait for belongs to its request."""
_CONNECTIONS = 16
_HISTORY_ENTRIES = 4000
_START_S = 60.0
_BUILD_S = 300.0
_POLL_S = 0.02
_QUIET = {"TOPICS_PIPELINE": "off", "TOPICS_PORT": "0", "TOPICS_LOG_LEVEL": "error"}
_SEALED = {"TOPICS_SNAPSHOT_INTERVAL_MS": "300", "TOPICS_SEGMENT_MAX_EVENTS": "1000"}
_SPARK = {"TOPICS_SPARK_MASTER": "local[1]", "TOPICS_PIPELINE_PRIORITY": "normal", "TOPICS_PIPELINE_IDLE_MS": "1"}

# In the traced process


class Recorder:
    """The files whose functions were called since `start`, in all threads of a process."""

    def __init__(self) -> None:
        self._files: set[str] | None = None
        self._recovery: set[str] = set()
        self._recovering: int | None = None
        """The thread that recovers; others answer probes meanwhile."""

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """The hook of `sys.setprofile`. Bodies of modules and classes are not calls."""
        code = frame.f_code
        if code.co_qualname == RECOVERY:
            self._recovering = threading.get_ident() if event == "call" else None
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED:
            if self._files is not None:
                self._files.add(code.co_filename)
            if self._recovering == threading.get_ident():
                self._recovery.add(code.co_filename)

    def answer(self, command: str) -> list[str]:
        if command == "start":
            self._files = set()
            return []
        if command == "recovery":
            return sorted(self._recovery)
        files, self._files = self._files, None
        return sorted(files or ())


def install() -> None:
    """Profiles this process from now on, in every thread that it starts, and answers on a socket named by its id."""
    recorder = Recorder()
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{os.environ[FOLDER]}/{os.getpid()}")
    server.listen()

    def answer() -> None:
        while True:
            connection, _ = server.accept()
            with connection, connection.makefile("rw") as stream:
                stream.write(json.dumps(recorder.answer(stream.readline().strip())))

    threading.Thread(target=answer, daemon=True).start()
    threading.setprofile(recorder.profile)
    sys.setprofile(recorder.profile)


_SITE = """
import os, sys
if {variable!r} in os.environ and {is_traced}:
    sys.path.append({root!r})
    from tools.trace_paths import install
    sys.path.remove({root!r})
    install()
"""
# A search process is `-m topics.search.worker`, or `-m topics.searching` in older sources.
_IS_TRACED = 'any("search" in part or part == "serve" for part in sys.orig_argv)'


# The traced server


class Traced(NamedTuple):
    """The files of one request: those that the server process and the search process opened."""

    server: frozenset[str]
    search: frozenset[str]


class Server:
    """A server of some source on a folder, traced. Leaving the context kills it."""

    def __init__(self, source: Path, folder: Path, settings: Mapping[str, str]) -> None:
        self._source, self._folder = source, folder
        self._control = folder / "control"
        self._env = {**environment(source, folder), **_QUIET, **settings, FOLDER: str(self._control)}
        self._env["TOPICS_PORT_FILE"] = str(folder / "port")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Server":
        self._control.mkdir(exist_ok=True)
        for old in self._control.iterdir():
            old.unlink()
        port = self._folder / "port"
        port.unlink(missing_ok=True)
        self._process = subprocess.Popen([sys.executable, "-m", "topics", "serve"], env=self._env)
        _wait(lambda: port.exists() and bool(port.read_text()), "the server has a port")
        self.host = port.read_text().strip()
        _wait(self._is_ready, "the server is ready")
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ends the server in good order, with a checkpoint."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(how)
            process.wait(_START_S)

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise SystemExit("the server ended")
        try:
            return Client(self.host).ask("GET", "/readyz", allowed=(200, 503))[0] == 200
        except OSError:
            return False

    def recovery(self) -> Traced:
        return Traced(self._known(self._report("recovery", self._sockets()[:1])), frozenset())

    def trace(self, request: Callable[[], object]) -> Traced:
        """The files that a request crosses once everything is warm."""
        for _ in range(_WARM_UP):
            request()
        counts: tuple[Counter[str], Counter[str]] = Counter(), Counter()
        for _ in range(_REPETITIONS):
            sockets = self._sockets()
            self._report("start", sockets)
            request()
            time.sleep(_BEHIND_S)
            counts[0].update(self._known(self._report("stop", sockets[:1])))
            counts[1].update(self._known(self._report("stop", sockets[1:])))
        usual = [frozenset(path for path, count in one.items() if count > _REPETITIONS // 2) for one in counts]
        return Traced(*usual)

    def _sockets(self) -> list[Path]:
        """The sockets of the server process and of its child processes."""
        assert self._process is not None
        own = self._control / str(self._process.pid)
        return [own, *(path for path in self._control.iterdir() if path != own)]

    def _report(self, command: str, sockets: Sequence[Path]) -> list[str]:
        found: list[str] = []
        for path in sockets:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                with connection.makefile("rw") as stream:
                    stream.write(f"{command}\n")
                    stream.flush()
                    found += json.loads(stream.read())
        return found

    def _known(self, paths: Sequence[str]) -> frozenset[str]:
        """The files of the source, relative to it."""
        below = f"{self._source}/"
        return frozenset(path.removeprefix(below) for path in paths if path.startswith(f"{below}topics"))


def environment(source: Path, folder: Path) -> dict[str, str]:
    """The variables of a process with this source and this data folder, with the profiler's hook on its path."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    text = _SITE.format(variable=FOLDER, root=str(ROOT), is_traced=_IS_TRACED)
    (site / "sitecustomize.py").write_text(text, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    return {**kept, "PYTHONPATH": f"{site}:{source}", "TOPICS_DATA_DIR": str(folder / "data")}


def _wait(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _START_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"gave up waiting until {what}")
        time.sleep(_POLL_S)


class Client:
    """One connection that stays open. Head and body of a request are sent at once, as most clients do."""

    def __init__(self, host: str) -> None:
        name, port = host.rsplit(":", 1)
        self._host, self._socket = host, socket.create_connection((name, int(port)), timeout=_START_S)

    def ask(self, method: str, path: str, body: object = None, allowed: Sequence[int] = ()) -> tuple[int, Any]:
        """Status and answer of a request. Raises SystemExit for any other error than the allowed ones."""
        self.send(method, path, body)
        return self.receive(allowed)

    def send(self, method: str, path: str, body: object = None) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        self._socket.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)

    def receive(self, allowed: Sequence[int] = ()) -> tuple[int, Any]:
        answer = http.client.HTTPResponse(self._socket)
        answer.begin()
        text = answer.read()
        if answer.status >= 400 and answer.status not in allowed:
            raise SystemExit(f"unexpected answer: {answer.status} {text.decode()}")
        return answer.status, json.loads(text) if text else None


# The requests

_FIELDS: dict[str, dict[str, Any]] = {
    "time": {"kind": "date", "column": True, "sortable": True},
    "service": {"kind": "keyword", "exact": True, "prefix": True},
    "status": {"kind": "integer", "exact": True, "column": True},
    "message": {"kind": "text", "analyzer": "unicode_word_v1", "positions": True},
}
_DESCRIPTION: dict[str, Any] = {
    "schema": {
        "type": "object",
        "required": ["time", "service"],
        "properties": {"time": {"type": "integer"}, "service": {"type": "string"}, "status": {"type": "integer"}},
    },
    "routingKey": {"jsonPointer": "/service", "required": True},
    "search": {
        "primaryTimestampField": "time",
        "fields": {
            name: {**field, "bindings": [{"version": 1, "jsonPointer": f"/{name}"}]} for name, field in _FIELDS.items()
        },
    },
}


def entries(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"time": n * 1000, "service": f"s-{n % 13}", "status": (200, 404, 500)[n % 3], "message": f"card {n} declined"}
        for n in range(first, first + count)
    ]


class Requests:
    """The requests of every path. Each call sends the next one of its kind, so that no cache of results has it."""

    def __init__(self, host: str) -> None:
        # Numbers of one width: requests of the same length have the same head, which the server knows by then.
        self._host, self._client, self._number = host, Client(host), 100

    def prepare(self) -> None:
        """Makes the topics, the queue, the router and the stream of the paths, where they are not there yet."""
        ask = self._client.ask
        ask("PUT", "/v0/topics/log", {"durability": "disk"})
        ask("PUT", "/v0/topics/jobs", {"type": "queue"})
        ask("PUT", "/v0/routers/copies", {"source": "log", "dest": "copy"})
        ask("POST", "/v0/topics/log", {"records": [{"data": n, "tag": f"t-{n}"} for n in range(100)]})
        ask("POST", "/v0/topics/jobs", {"records": [{"data": n} for n in range(1000)]})
        self.describe("fresh")
        self.fill("fresh", 500)

    def describe(self, stream: str) -> None:
        status, _ = self._client.ask("PUT", f"/v1/stream/{stream}")
        if status == 201:
            self._client.ask("POST", f"/v1/stream/{stream}/_schema", _DESCRIPTION)

    def fill(self, stream: str, count: int) -> None:
        for first in range(0, count, 100):
            self._client.ask("POST", f"/v1/stream/{stream}", entries(first, 100))

    def appends(self) -> Callable[[], None]:
        clients = [Client(self._host) for _ in range(_CONNECTIONS)]

        def append() -> None:
            for client in clients:
                client.send("POST", "/v0/topics/burst", {"records": [{"data": {"n": 1}}], "create": True})
            for client in clients:
                client.receive()

        return append

    def diff(self) -> None:
        self._client.ask("POST", "/v0/topics/log/diff", {"from_seq": 0, "limit": 50})

    def append_entry(self) -> None:
        self._client.ask("POST", "/v1/stream/fresh", entries(self._next(), 1))

    def search(self, stream: str) -> int:
        """Asks by a field and a word, and returns how many segments an index file answered for."""
        n = self._next()
        query = {"q": f"status:>={200 + n} message:declined", "sort": ["time:desc"], "size": 10}
        answer = self._client.ask("POST", f"/v1/stream/{stream}/_search", query)[1]
        assert len(answer["hits"]) == 10, answer
        return int(answer["coverage"]["indexed_segments"])

    def claim(self) -> int:
        answer = self._client.ask("POST", "/v0/topics/jobs/claim", {"node": "worker", "lease_ms": 60000})[1]
        return int(answer["claimed"][0]["$seq"])

    def acks(self) -> Callable[[], None]:
        claimed = [self.claim() for _ in range(100)]

        def ack() -> None:
            self._client.ask("POST", "/v0/topics/jobs/ack", {"node": "worker", "seqs": [claimed.pop()]})

        return ack

    def commit(self) -> None:
        """Commits a transaction over two topics, for the log that recovery reads."""
        transaction = {"id": "traced", "sequence": time.time_ns()}
        self._client.ask("POST", "/v0/transactions", transaction)
        for topic in ("log", "burst"):
            staged = {"sequence": transaction["sequence"], "part": topic, "topic": topic, "records": [{"data": 1}]}
            self._client.ask("POST", "/v0/transactions/traced/stage", staged)
        self._client.ask("POST", "/v0/transactions/traced/commit", {"sequence": transaction["sequence"]})

    def _next(self) -> int:
        self._number += 1
        return self._number


def trace_all(source: Path, folder: Path, *, with_history: bool) -> dict[str, Traced]:
    found: dict[str, Traced] = {}
    if with_history:
        _build_history(source, folder)
    with Server(source, folder, {}) as server:
        requests = Requests(server.host)
        requests.prepare()
        found["/v0 append, 16 connections"] = server.trace(requests.appends())
        found["/v0 diff"] = server.trace(requests.diff)
        assert requests.search("fresh") == 0
        found["/v1 append, schema and search"] = server.trace(requests.append_entry)
        found["_search, fresh"] = server.trace(lambda: requests.search("fresh"))
        if with_history:
            assert requests.search("history") > 0
            found["_search, history"] = server.trace(lambda: requests.search("history"))
        found["claim"] = server.trace(requests.claim)
        found["ack"] = server.trace(requests.acks())
        requests.commit()
        server.stop()
    with Server(source, folder, {}) as server:
        # The log behind the snapshot: killed without a checkpoint.
        requests = Requests(server.host)
        requests.prepare()
        requests.claim()
        requests.acks()()
        requests.commit()
    with Server(source, folder, {}) as server:
        found["recovery"] = server.recovery()
    return found


def _build_history(source: Path, folder: Path) -> None:
    """A stream whose entries are sealed and indexed."""
    with Server(source, folder, _SEALED) as server:
        requests = Requests(server.host)
        requests.describe("history")
        requests.fill("history", _HISTORY_ENTRIES)
        server.stop()
    env = {**environment(source, folder), **_SPARK}
    command = [sys.executable, "-m", "topics.spark.pipeline"]
    log = folder / "pipeline.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=output, stderr=output) as worker,
    ):
        # It ends when its input does, so that stays open.
        try:
            code = worker.wait(_BUILD_S)
        finally:
            worker.kill()
    if code:
        raise SystemExit(f"the pipeline failed: {log.read_text()[-2000:]}")


def report(found: Mapping[str, Traced], listed: str | None) -> str:
    lines = [f"{'path':<32}{'server':>8}{'search process':>16}{'both':>6}"]
    for name, traced in found.items():
        both = len(traced.server | traced.search)
        lines.append(f"{name:<32}{len(traced.server):>8}{len(traced.search):>16}{both:>6}")
    for name, traced in found.items():
        if listed is not None and listed in name:
            lines += ["", f"{name}, server process:", *sorted(traced.server)]
            if traced.search:
                lines += ["", f"{name}, search process:", *sorted(traced.search)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.trace_paths", description="Count the files a request crosses."
    )
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="the folder of the package `topics`")
    parser.add_argument("--no-history", action="store_true", help="leave out the path that needs Spark")
    parser.add_argument(
        "--files", metavar="TEXT", help='list the files of the paths whose name contains TEXT ("" is all)'
    )
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="topics-trace-") as folder:
        found = trace_all(chosen.source.resolve(), Path(folder), with_history=not chosen.no_history)
    sys.stdout.write(report(found, chosen.files) + "\n")


if __name__ == "__main__":
    main()
