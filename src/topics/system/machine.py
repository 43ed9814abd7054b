"""What the process can learn about the machine it runs on."""

import os
from pathlib import Path
from typing import Literal

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PROC = Path("/proc")
_STATM = Path("/proc/self/statm")
_LOW_PRIORITY, _LOWEST_PRIORITY = 10, 19


def boot_id() -> str:
    """Names this run of the kernel, or is empty where the kernel does not tell.

    While it is unchanged, bytes that were written but never synced are still in the page cache: a killed process has
    lost nothing. Empty must be taken as "changed", since nobody can say that it was not.
    """
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def cpu_count() -> int:
    """How many CPUs this process may use, which in a container is often fewer than the machine has."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # Only Linux can tell; elsewhere every CPU counts.
        return os.cpu_count() or 1


def resident_bytes() -> int:
    """The physical memory that the process holds now; 0 where the kernel does not tell."""
    try:
        resident_pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return resident_pages * os.sysconf("SC_PAGE_SIZE")


def tree_bytes() -> int:
    """The physical memory of this process and of all that descend from it, shared pages shared out among them.

    0 where the kernel does not tell; a process that ends meanwhile counts for nothing.
    """
    children: dict[int, list[int]] = {}
    for entry in _PROC.glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        children.setdefault(parent, []).append(int(entry.name))
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        waiting += children.get(process, [])
        total += _share_of_memory(process)
    return total


def _share_of_memory(process: int) -> int:
    try:
        lines = (_PROC / str(process) / "smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def step_back(how: Literal["idle", "low", "normal"]) -> None:
    """Lets others go first, before this process and those it starts.

    `low` is a low priority: a share of the processor also when others want all of it. But a process that wakes up then
    waits until the slice of the one that runs is over, which writers would notice. `idle` is a class of scheduling that
    gives way at once and gets only what nobody else wants; where there is none, the lowest priority has to do. Not even
    such a process gives way within a call of the kernel, so one core of several is left alone altogether.
    """
    if how == "idle":
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        except (AttributeError, OSError):
            os.nice(_LOWEST_PRIORITY)
        _leave_a_core()
    elif how == "low":
        os.nice(_LOW_PRIORITY)


def _leave_a_core() -> None:
    try:
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            os.sched_setaffinity(0, cores[1:])
    except (AttributeError, OSError):
        # Only some systems let a process choose its cores.
        return
