"""`make newcomer`: how long it takes from a clone to the console, as somebody does it who has never been here.

A fresh clone of this repository without .venv, `make serve`, and a look at `/` until the console is there. Nothing that
an earlier set-up left is used but pip's own cache, and `--cold` does without that as well.
"""

import argparse
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import httpx

ROOT = Path(__file__).parents[1]
PATIENCE_S = 600.0
GOAL_S = 120.0


class Walk(NamedTuple):
    clone_s: float
    serve_s: float
    cpu_s: float
    """What of it was work: where others are busy on the machine, the rest is waiting for them."""
    page: str

    @property
    def total_s(self) -> float:
        return self.clone_s + self.serve_s


def walk(folder: Path, *, cold: bool = False) -> Walk:
    """From a clone in this folder to the page. What was started is ended."""
    began, before_s = time.monotonic(), _cpu_s()
    clone = folder / "topics"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True, timeout=PATIENCE_S)
    cloned = time.monotonic()
    port = _free_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "PYTHON", "VIRTUAL"))}
    environment = {**kept, "TOPICS_PORT": str(port), **({"PIP_NO_CACHE_DIR": "1"} if cold else {})}
    serving = subprocess.Popen(
        ["make", "serve"], cwd=clone, env=environment, stdout=sys.stderr, stderr=sys.stderr, start_new_session=True
    )
    try:
        page = _console(f"http://127.0.0.1:{port}/", serving)
        there = time.monotonic()
    finally:
        os.killpg(serving.pid, signal.SIGTERM)
        serving.wait(PATIENCE_S)
    return Walk(cloned - began, there - cloned, _cpu_s() - before_s, page)


def _cpu_s() -> float:
    """Of processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _console(url: str, serving: subprocess.Popen[bytes]) -> str:
    give_up = time.monotonic() + PATIENCE_S
    while serving.poll() is None and time.monotonic() < give_up:
        try:
            # As a browser asks, which is sent to the console.
            answer = httpx.get(url, headers={"accept": "text/html"}, follow_redirects=True, trust_env=False)
            if answer.status_code == httpx.codes.OK:
                return answer.text
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError("`make serve` has not come to the console")


def main() -> None:
    parser = argparse.ArgumentParser(description="From a clone to the console, timed.")
    parser.add_argument("--cold", action="store_true", help="without pip's cache")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="topics-newcomer-"))
    try:
        found = walk(folder, cold=arguments.cold)
    finally:
        shutil.rmtree(folder)
    print(f"cloned in {found.clone_s:.1f} s, the console after {found.total_s:.1f} s, {found.cpu_s:.1f} s of it work")
    if found.total_s > GOAL_S:
        sys.exit(f"that is more than {GOAL_S:.0f} s")


if __name__ == "__main__":
    main()
