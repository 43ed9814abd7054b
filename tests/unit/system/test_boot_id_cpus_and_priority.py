import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from topics.system import process


def test_the_boot_id_is_stable_while_the_machine_runs() -> None:
    assert process.boot_id() == process.boot_id()
    assert process.boot_id() == process.boot_id().strip()


def test_a_machine_that_does_not_report_has_no_boot_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_BOOT_ID", tmp_path / "missing")
    assert process.boot_id() == ""


def test_only_the_cpus_that_we_may_use_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    assert process.cpu_count() == 3


def test_without_affinity_every_cpu_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert process.cpu_count() == 1


def test_resident_memory_grows_with_what_is_touched() -> None:
    before = process.resident_bytes()
    if before == 0:
        pytest.skip("the kernel does not tell")
    # Newly mapped pages: the heap may hold freed memory that an ordinary object would be given without growing.
    with mmap.mmap(-1, 32 * 1024 * 1024) as block:
        block.write(b"x" * len(block))
        assert process.resident_bytes() - before > len(block) // 2


def test_a_kernel_that_does_not_report_reports_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_STATM", tmp_path / "missing")
    assert process.resident_bytes() == 0


@pytest.mark.parametrize(
    ("how", "reported"),
    [("idle", f"{os.SCHED_IDLE} 0"), ("low", f"{os.SCHED_OTHER} 10"), ("normal", f"{os.SCHED_OTHER} 0")],
)
def test_a_process_steps_back_with_those_it_starts(how: str, reported: str) -> None:
    ask = "import os; print(os.sched_getscheduler(0), os.nice(0))"
    code = (
        "import subprocess, sys; from topics.system.process import step_back; "
        f"step_back({how!r}); subprocess.run([sys.executable, '-c', {ask!r}])"
    )
    before = os.nice(0)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    policy, niceness = done.stdout.split()
    assert f"{policy} {min(int(niceness), 19) - min(before, 9 if how == 'low' else 19)}" == reported


@pytest.mark.parametrize(
    ("how", "cores", "chosen"),
    [("idle", {2, 3, 5}, [3, 5]), ("idle", {4}, None), ("low", {2, 3}, None), ("normal", {2, 3}, None)],
)
def test_of_several_cores_one_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, how: Literal["idle", "low", "normal"], cores: set[int], chosen: list[int] | None
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: None, raising=False)
    monkeypatch.setattr(os, "nice", lambda _: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, requested: asked.append(requested), raising=False)
    process.step_back(how)
    assert asked == ([] if chosen is None else [chosen])


def test_where_there_is_no_such_class_the_lowest_priority_has_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    niced: list[int] = []
    monkeypatch.delattr(os, "SCHED_IDLE", raising=False)
    monkeypatch.setattr(os, "nice", niced.append)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    process.step_back("idle")
    assert niced == [19]


def test_the_memory_of_a_tree_includes_those_it_started() -> None:
    """A child that holds 64 MiB makes the tree so much larger, and so does a child of a child."""
    before = process.tree_bytes()
    if not before:
        pytest.skip("the kernel does not tell")
    hold = "import sys; held = b'x' * (64 << 20); print(len(held), flush=True); sys.stdin.read()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    child = subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == b"67108864"
        assert process.tree_bytes() - before > 48 << 20
    finally:
        child.communicate(timeout=30)
