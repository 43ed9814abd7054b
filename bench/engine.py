"""`make bench`: the engine in process, on this machine, in this run.

Every row runs in its own process on a fresh folder below the system's temporary folder. The tables go to the terminal
and, with `--write`, into bench/results/engine.md. `--quick` uses smaller numbers.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile

import msgspec
from rich.console import Console

from bench.install import ROOT
from bench.peers import our_version
from bench.report import Sheet, machine, short, write_results

_CLASSES = ("ephemeral", "memory", "disk", "fsync")
_CHILD_TIMEOUT_S = 600

Rows = list[list[str]]


class Bench(Sheet):
    def __init__(self, quick: bool) -> None:
        super().__init__(Console())
        self._scale = 10 if quick else 1

    def run(self) -> str:
        self.paragraph(f"Measured with `make bench` on {machine({'topics': our_version()})}.")
        self._appends()
        self._reads()
        self._volume()
        self._idle()
        return self.text

    def _appends(self) -> None:
        rows: Rows = []
        for durability in _CLASSES:
            for size in (1, 100, 1000):
                row = [durability, str(size)]
                for writers in (1, 16, 64):
                    total = (100_000 if size == 1 else 2_000_000) // self._scale
                    total = total // 5 if writers == 1 or (durability == "fsync" and size == 1) else total
                    answer = self._measure("append", durability=durability, size=size, writers=writers, total=total)
                    row.append(short(answer["records_per_s"]))
                rows.append(row)
        title = "Appends, records a second (200-byte payloads; 1, 16, 64 batches on their way)"
        self.table(title, ["class", "batch", "1", "16", "64"], rows)

    def _reads(self) -> None:
        rows: Rows = []
        for place, sealed in (("memory", False), ("sealed segments", True)):
            row = [place]
            for limit in (100, 1000):
                answer = self._measure("read", sealed=sealed, total=1_000_000 // self._scale, limit=limit)
                row.append(short(answer["records_per_s"]))
            rows.append(row)
        self.table("Catch-up reads, records a second", ["from", "by 100", "by 1000"], rows)

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
                            f"{total:,}", stop, short(filled["records_per_s"]), f"{filled['growth_mb']:.0f} MB",
                            f"{filled['growth_mb'] / (total / 1e6):.1f} MB", f"{recovered['seconds']:.2f} s",
                        ]
                    )  # fmt: skip
        head = ["records", "stop", "appended a second", "memory growth", "growth per million", "recovered in"]
        self.table("Volume through one topic (class disk, batches of 100), and starting again", head, rows)

    def _idle(self) -> None:
        topics = 100_000 // self._scale
        answer = self._measure("idle_topics", topics=topics)
        row = [
            f"{topics:,}", f"{answer['mb']:.0f} MB", f"{answer['bytes_per_topic']:.0f} B",
            short(answer["created_per_s"]), f"{answer['reopened_s']:.2f} s",
        ]  # fmt: skip
        head = ["topics", "memory", "each", "created a second", "opened again in"]
        self.table("Idle topics of one record each", head, [row])

    def _measure(self, name: str, **arguments: object) -> dict[str, float]:
        with _folder() as folder:
            return self._child(name, folder, arguments)

    def _fill(self, folder: str, total: int, stop: str) -> dict[str, float]:
        if stop == "clean":
            return self._child("fill", folder, {"total": total, "stop": stop})
        command = _command("fill", folder, {"total": total, "stop": stop})
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None
            return msgspec.json.decode(child.stdout.readline(), type=dict[str, float])
        finally:
            child.kill()
            child.wait()

    def _child(self, name: str, folder: str, arguments: dict[str, object]) -> dict[str, float]:
        done = subprocess.run(
            _command(name, folder, arguments), cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=_CHILD_TIMEOUT_S
        )
        return msgspec.json.decode(done.stdout, type=dict[str, float])


def _command(name: str, folder: str, arguments: dict[str, object]) -> list[str]:
    return [sys.executable, "-m", "bench.workloads", name, folder, msgspec.json.encode(arguments).decode()]


class _folder:
    """A fresh folder, always removed afterwards."""

    def __enter__(self) -> str:
        self._path = tempfile.mkdtemp(prefix="topics-bench-")
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        # Pages still on their way to the disk would slow the next row down instead of this one.
        os.sync()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the volume")
    parser.add_argument("--write", action="store_true", help="write the tables into bench/results/engine.md")
    arguments = parser.parse_args()
    text = Bench(arguments.quick).run()
    if arguments.write:
        write_results(text, "engine", "Engine")


if __name__ == "__main__":
    main()
