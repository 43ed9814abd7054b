import mmap
import os
from pathlib import Path

import pytest

from topics.system import machine


def test_the_boot_id_is_stable_while_the_machine_runs() -> None:
    assert machine.boot_id() == machine.boot_id()
    assert machine.boot_id() == machine.boot_id().strip()


def test_a_machine_that_does_not_tell_has_no_boot_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_BOOT_ID", tmp_path / "missing")
    assert machine.boot_id() == ""


def test_only_the_cpus_that_we_may_use_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    assert machine.cpu_count() == 3


def test_without_affinity_every_cpu_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.cpu_count() == 1


def test_resident_memory_grows_with_what_is_touched() -> None:
    before = machine.resident_bytes()
    if before == 0:
        pytest.skip("the kernel does not tell")
    # Pages of its own: the heap may hold freed memory that an ordinary object would be given without growing.
    with mmap.mmap(-1, 32 * 1024 * 1024) as block:
        block.write(b"x" * len(block))
        assert machine.resident_bytes() - before > len(block) // 2


def test_a_kernel_that_does_not_tell_reports_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_STATM", tmp_path / "missing")
    assert machine.resident_bytes() == 0
