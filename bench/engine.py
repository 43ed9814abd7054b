"""`make bench`: what the engine does in process, on this machine, in this run.

Every row runs in a process of its own on a fresh folder below the system's temporary folder. The tables go to the
terminal and, with `--write`, into docs/benchmarks.md between its markers. `--quick` uses smaller numbers.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

_ROOT = Path(__file__).resolve().parent.parent
_PAGE = _ROOT / "docs" / "benchmarks.md"
_CLASSES = ("ephemeral", "memory", "disk", "fsync")
_CHILD_TIMEOUT_S = 600

Rows = list[list[str]]


class Bench:
    def __init__(self, quick: bool) -> None:
        self._scale = 10 if quick else 1
        self._console = Console()
        self._markdown: list[str] = []

    def run(self) -> str:
        self._markdown.append(f"Measured with `make bench` on {_machine()}.\n")
        self._appends()
        self._reads()
        self._volume()
        self._idle()
        return "\n".join(self._markdown)

    def _appends(self) -> None:
        rows: Rows = []
        for durability in _CLASSES:
            for size in (1, 100, 1000):
                row = [durability, str(size)]
                for writers in (1, 16, 64):
                    total = (100_000 if size == 1 else 2_000_000) // self._scale
                    total = total // 5 if writers == 1 or (durability == "fsync" and size == 1) else total
                    answer = self._measure("append", durability=durability, size=size, writers=writers, total=total)
                    row.append(_rate(answer["records_per_s"]))
                rows.append(row)
        title = "Appends, records a second (200-byte payloads; 1, 16, 64 batches on their way)"
        self._show(title, ["class", "batch", "1", "16", "64"], rows)

    def _reads(self) -> None:
        rows: Rows = []
        for place, sealed in (("memory", False), ("sealed segments", True)):
            row = [place]
            for limit in (100, 1000):
                answer = self._measure("read", sealed=sealed, total=1_000_000 // self._scale, limit=limit)
                row.append(_rate(answer["records_per_s"]))
            rows.append(row)
        self._show("Catch-up reads, records a second", ["from", "by 100", "by 1000"], rows)

    def _volume(self) -> None:
        rows: Rows = []
        for total in (1_000_000 // self._scale, 10_000_000 // self._scale):
            for stop in ("clean", "kill"):
                with _folder() as folder:
                    filled = self._fill(folder, total, stop)
                    recovered = self._child("recover", folder, {})
                    if recovered["count"] < total:
                        raise SystemExit(f"{recovered['count']:.0f} of {total} records came back")
                    rows.append(
                        [
                            f"{total:,}", stop, _rate(filled["records_per_s"]), f"{filled['growth_mb']:.0f} MB",
                            f"{filled['growth_mb'] / (total / 1e6):.1f} MB", f"{recovered['seconds']:.2f} s",
                        ]
                    )  # fmt: skip
        head = ["records", "stop", "appended a second", "memory growth", "growth per million", "recovered in"]
        self._show("Volume through one topic (class disk, batches of 100), and starting again", head, rows)

    def _idle(self) -> None:
        topics = 100_000 // self._scale
        answer = self._measure("idle_topics", topics=topics)
        row = [
            f"{topics:,}", f"{answer['mb']:.0f} MB", f"{answer['bytes_per_topic']:.0f} B",
            _rate(answer["created_per_s"]), f"{answer['reopened_s']:.2f} s",
        ]  # fmt: skip
        head = ["topics", "memory", "each", "created a second", "opened again in"]
        self._show("Idle topics of one record each", head, [row])

    def _measure(self, name: str, **arguments: object) -> dict[str, float]:
        with _folder() as folder:
            return self._child(name, folder, arguments)

    def _fill(self, folder: str, total: int, stop: str) -> dict[str, float]:
        if stop == "clean":
            return self._child("fill", folder, {"total": total, "stop": stop})
        command = _command("fill", folder, {"total": total, "stop": stop})
        child = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None
            return msgspec.json.decode(child.stdout.readline(), type=dict[str, float])
        finally:
            child.kill()
            child.wait()

    def _child(self, name: str, folder: str, arguments: dict[str, object]) -> dict[str, float]:
        done = subprocess.run(
            _command(name, folder, arguments), cwd=_ROOT, stdout=subprocess.PIPE, check=True, timeout=_CHILD_TIMEOUT_S
        )
        return msgspec.json.decode(done.stdout, type=dict[str, float])

    def _show(self, title: str, head: list[str], rows: Rows) -> None:
        table = Table(title=title, title_justify="left")
        for place, name in enumerate(head):
            table.add_column(name, justify="left" if place == 0 else "right")
        for row in rows:
            table.add_row(*row)
        self._console.print(table)
        self._markdown += [f"### {title}\n", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        self._markdown += ["| " + " | ".join(row) + " |" for row in rows]
        self._markdown.append("")


def _command(name: str, folder: str, arguments: dict[str, object]) -> list[str]:
    return [sys.executable, "-m", "bench.workloads", name, folder, msgspec.json.encode(arguments).decode()]


class _folder:
    """A fresh folder that is gone afterwards, whatever happened."""

    def __enter__(self) -> str:
        self._path = tempfile.mkdtemp(prefix="topics-bench-")
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        # Pages still on their way to the disk would slow the next row down instead of this one.
        os.sync()


def _rate(value: float) -> str:
    return f"{value / 1e6:.2f}M" if value >= 1e6 else f"{value / 1e3:.1f}k"


def _machine() -> str:
    cpu = "an unknown processor"
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        cpu = found[1] if found else cpu
    except OSError:
        pass
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    when = time.strftime("%Y-%m-%d")
    return f"{os.cpu_count()} cores of {cpu}, {memory:.0f} GiB, Python {platform.python_version()}, {when}"


def write_page(text: str) -> None:
    """Puts the tables between the markers of the benchmarks page."""
    page = _PAGE.read_text()
    begin, end = "<!-- bench:engine -->", "<!-- /bench:engine -->"
    before, after = page.split(begin)[0], page.split(end)[1]
    _PAGE.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the volume")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    arguments = parser.parse_args()
    text = Bench(arguments.quick).run()
    if arguments.write:
        write_page(text)


if __name__ == "__main__":
    main()
