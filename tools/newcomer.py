"""`make newcomer`: how long it takes from a clone to the console and to the first event, without an earlier set-up.

A fresh clone of this repository without .venv, `make serve`, a look at `/` until the console is there, and the commands
of "First event" in the README. Nothing that an earlier set-up left is used but pip's own cache, and `--cold` does
without that as well.
"""

import argparse
import os
import re
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import httpx

ROOT = Path(__file__).parents[1]
PATIENCE_S = 600.0
GOAL_S = 120.0


class Walk(NamedTuple):
    clone_s: float
    output_s: float
    """From `make serve` to its first line of output."""
    serve_s: float
    """From `make serve` to the console."""
    event_s: float
    """From the console to an event that was appended and read."""
    cpu_s: float
    """The processor time of the walk: on a busy machine the rest is waiting."""
    page: str

    @property
    def console_s(self) -> float:
        return self.clone_s + self.serve_s

    @property
    def total_s(self) -> float:
        return self.console_s + self.event_s


def walk(folder: Path, *, cold: bool = False) -> Walk:
    """Goes from a clone in this folder to the first event. Started processes are ended."""
    began, before_s = time.monotonic(), _cpu_s()
    clone = folder / "topics"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True, timeout=PATIENCE_S)
    cloned = time.monotonic()
    port = _free_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "PYTHON", "VIRTUAL"))}
    environment = {**kept, "TOPICS_PORT": str(port), **({"PIP_NO_CACHE_DIR": "1"} if cold else {})}
    serving = subprocess.Popen(
        ["make", "serve"],
        cwd=clone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    spoke: list[float] = []
    forwarding = threading.Thread(target=_forward, args=(serving, spoke), daemon=True)
    forwarding.start()
    try:
        url = f"http://127.0.0.1:{port}"
        page = _console(f"{url}/", serving)
        there = time.monotonic()
        first_event(clone, {**kept, "TOPICS_URL": url})
        read = time.monotonic()
    finally:
        os.killpg(serving.pid, signal.SIGTERM)
        serving.wait(PATIENCE_S)
        forwarding.join(PATIENCE_S)
    return Walk(cloned - began, spoke[0] - cloned, there - cloned, read - there, _cpu_s() - before_s, page)


def first_event(clone: Path, environment: dict[str, str]) -> None:
    """Runs the commands of the README's first event and compares their output with the README."""
    section = (clone / "README.md").read_text().partition("## First event")[2]
    path = re.search(r"run `PATH=\$PWD/(\S+):\$PATH`", section)
    block = re.search(r"```console\n(.*?)```", section, re.DOTALL)
    assert path is not None and block is not None
    environment["PATH"] = f"{clone / path[1]}:{environment['PATH']}"
    commands = re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", block[1], re.MULTILINE)
    for command, shown in commands:
        done = subprocess.run(
            shlex.split(command), cwd=clone, env=environment, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S,
            check=True,
        )  # fmt: skip
        if done.stdout != shown:
            raise RuntimeError(f"`{command}` printed {done.stdout!r}, and the README shows {shown!r}")


def _forward(serving: "subprocess.Popen[bytes]", spoke: list[float]) -> None:
    """Copies the output of `make serve`, and notes the time of its first line."""
    assert serving.stdout is not None
    for line in serving.stdout:
        if not spoke:
            spoke.append(time.monotonic())
        sys.stderr.buffer.write(line)
        sys.stderr.flush()


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
    parser = argparse.ArgumentParser(description="From a clone to the first event, timed.")
    parser.add_argument("--cold", action="store_true", help="without pip's cache")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="topics-newcomer-"))
    try:
        found = walk(folder, cold=arguments.cold)
    finally:
        shutil.rmtree(folder)
    print(
        f"cloned in {found.clone_s:.1f} s, first output {found.output_s:.1f} s later, the console after "
        f"{found.console_s:.1f} s, the first event after {found.total_s:.1f} s; {found.cpu_s:.1f} s of it work"
    )
    if found.total_s > GOAL_S:
        sys.exit(f"that is more than {GOAL_S:.0f} s")


if __name__ == "__main__":
    main()
