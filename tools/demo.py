"""`make demo`: a server with live sample data, to look at in its console.

Flights go into a stream with a schema and a search description, events of GitHub into a topic from which routers copy,
and each flight that is late becomes a job of a queue whose workers sometimes fail. Where Spark is installed, the
pipeline keeps sealed records as a table and indexes them. All of it goes through the Python client and plain HTTP, like
an application. Ctrl-C ends it, and its data go with it.
"""

import argparse
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

from tools.demo_data import flights, webhooks
from topics_client import Client

_PATIENCE_S = 60.0
_JSON = {"content-type": "application/json"}
_LATE_MIN = 45


def _field(name: str, kind: str, **more: object) -> dict[str, object]:
    return {"kind": kind, "bindings": [{"version": 1, "jsonPointer": f"/{name}"}], **more}


_SEARCH = {
    "primaryTimestampField": "time",
    "aliases": {"from": "origin", "to": "dest"},
    "defaultFields": [{"field": "note", "boost": 1}],
    "fields": {
        "time": _field("time", "date", column=True, sortable=True),
        "carrier": _field("carrier", "keyword", exact=True, prefix=True),
        "origin": _field("origin", "keyword", exact=True),
        "dest": _field("dest", "keyword", exact=True),
        "delay_min": _field("delay_min", "integer", exact=True, column=True, sortable=True, aggregatable=True),
        "note": _field("note", "text", analyzer="unicode_word_v1", positions=True),
    },
    "rollups": {
        "departures": {
            "dimensions": ["carrier"],
            "intervals": ["10s", "1m", "1h"],
            "measures": {"flights": {"kind": "count"}},
        }
    },
}


class Demo:
    """Runs all parts of the demo until it is stopped."""

    def __init__(self, url: str, speed: float) -> None:
        self._url = url
        self._pause_s = 0.25 / speed
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def prepare(self) -> None:
        """Creates the required resources if they do not exist yet."""
        with httpx.Client(base_url=self._url, timeout=30.0) as api:
            made = api.put("/v1/stream/flights", headers=_JSON)
            made.raise_for_status()
            if made.status_code == 201:
                update = {"schema": {"type": "object", "required": ["flight", "delay_min"]}, "search": _SEARCH}
                api.post("/v1/stream/flights/_schema", json=update).raise_for_status()
            queue = {"type": "queue", "lease_ms": 10_000, "max_deliveries": 3, "dead_letter": "notices.failed"}
            api.put("/v0/topics/notices", json=queue).raise_for_status()
            for name, when in (
                ("notices.digest", {"every_ms": 60_000}),
                ("notices.report", {"cron": "0 6 * * 1-5", "timezone": "Europe/Berlin"}),
            ):
                job = {"topic": "notices", "tag": "schedule", "data": {"report": name}, **when}
                api.put(f"/v0/schedules/{name}", json=job).raise_for_status()
            api.put("/v0/topics/github", json={}).raise_for_status()
            api.put("/v0/topics/github.recent", json={"cap_records": 100}).raise_for_status()
            for name, dest, tags in (
                ("github->github.recent", "github.recent", None),
                ("github->github.issues", "github.issues", ["tag", "Glob", "issue*"]),
                ("github->github.pulls", "github.pulls", ["tag", "Glob", "pull*"]),
            ):
                body: dict[str, Any] = {"source": "github", "dest": dest, "filter": tags}
                api.put(f"/v0/routers/{name.replace('>', '%3E')}", json=body).raise_for_status()

    def start(self) -> None:
        for work in (self._fly, self._hook, self._notify, self._notify, self._consume):
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_PATIENCE_S)

    def _fly(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30.0) as api:
            for flight in flights():
                now = datetime.now(UTC).isoformat(timespec="milliseconds")
                self._try(api, "/v1/stream/flights", {"time": now, **flight})
                if flight["delay_min"] > _LATE_MIN:
                    self._try(api, "/v0/topics/notices", {"records": [{"data": flight, "tag": flight["carrier"]}]})
                if self._stop.wait(self._pause_s):
                    return

    def _hook(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30.0) as api:
            for name, payload in webhooks():
                self._try(api, "/v0/topics/github", {"records": [{"data": payload, "tag": name}], "node": "github"})
                if self._stop.wait(self._pause_s * 3):
                    return

    def _consume(self) -> None:
        """Reads like a job that runs every few seconds: its lag grows and falls."""
        rng = random.Random(1)
        with Client(self._url) as client:
            client.put_consumer("github", "warehouse")
            while not self._stop.wait(self._pause_s * rng.uniform(20, 60)):
                answer = client.read_consumer("github", "warehouse", limit=rng.randrange(5, 40))
                client.commit_consumer("github", "warehouse", answer.next_from_seq, epoch=answer.epoch)

    @staticmethod
    def _try(api: httpx.Client, path: str, body: object) -> None:
        """Makes a call; a server that is unavailable for a moment does not end the demo."""
        try:
            api.post(path, json=body)
        except httpx.TransportError:
            time.sleep(0.5)

    def _notify(self) -> None:
        rng = random.Random(threading.get_ident())

        def deliver(job: Any) -> None:
            if self._stop.wait(self._pause_s * rng.uniform(0.5, 4)):
                return
            if rng.random() < 0.35:
                raise ConnectionError("the passenger's phone is off")

        with Client(self._url) as client:
            worker = client.worker("notices", deliver)

            def end() -> None:
                self._stop.wait()
                worker.stop()

            threading.Thread(target=end, daemon=True).start()
            worker.run()


def pipeline_settings() -> dict[str, str]:
    """Settings with which the pipeline, if Spark is installed, has work within the first minute."""
    if find_spec("pyspark") is None:
        return {"TOPICS_PIPELINE": "off"}
    return {"TOPICS_ARCHIVE": "1", "TOPICS_SEGMENT_MAX_EVENTS": "100", "TOPICS_PIPELINE_PRIORITY": "low"}


def serve(folder: str, port: int) -> subprocess.Popen[bytes]:
    """Starts a server on a folder, and yields it once it is ready."""
    env = {**os.environ, "TOPICS_DATA_DIR": folder, "TOPICS_PORT": str(port), "TOPICS_LOG_LEVEL": "error"}
    env |= pipeline_settings()
    process = subprocess.Popen([sys.executable, "-m", "topics", "serve"], env=env)
    give_up = time.monotonic() + _PATIENCE_S
    while process.poll() is None and time.monotonic() < give_up:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                return process
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    process.kill()
    sys.exit("the server did not start; is the port taken? PORT=4001 make demo uses another one")


TRY = ("tail github", "search flights late", "show notices", "router ls")
"""Commands that show the sample data, without `topics`."""


def welcome(port: int) -> str:
    """The addresses to visit, with commands that run as written in this checkout."""
    address = "" if port == 4000 else f" --url http://127.0.0.1:{port}"
    lines = [
        f"  The console: http://127.0.0.1:{port}/console",
        "  A tour:      docs/tour.md",
        *(f"  {'' if at else 'Try:':<12} .venv/bin/topics {command}{address}" for at, command in enumerate(TRY)),
        "  Stop:        Ctrl-C",
    ]
    if find_spec("pyspark") is None:
        lines.append("  Pipeline:    off; `make setup-spark demo` runs it as well")
    return "\n".join(["", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description="A server with live sample data.")
    parser.add_argument("--port", type=int, default=4000)
    parser.add_argument("--speed", type=float, default=1.0, help="2 is twice as fast")
    arguments = parser.parse_args()
    # Failures of jobs are part of the demo, and the console shows them.
    logging.getLogger("topics_client").setLevel(logging.CRITICAL)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with tempfile.TemporaryDirectory(prefix="topics-demo-") as folder:
        print(f"starting a server on port {arguments.port}; its data in {folder} goes with it", flush=True)
        server = serve(str(Path(folder) / "data"), arguments.port)
        print("creating a stream with a schema, a queue and three routers; then flights and events arrive", flush=True)
        demo = Demo(f"http://127.0.0.1:{arguments.port}", arguments.speed)
        try:
            demo.prepare()
            demo.start()
            print(welcome(arguments.port), flush=True)
            print(flush=True)
            stopped.wait()
        finally:
            demo.stop()
            server.terminate()
            server.wait(_PATIENCE_S)


if __name__ == "__main__":
    main()
