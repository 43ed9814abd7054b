"""Process information and tuning: metrics, memory, file descriptors, priority, allocator and garbage collector."""

import contextlib
import ctypes
import gc
import os
import posix
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessNumbers(NamedTuple):
    cpu_s: float
    resident_bytes: int
    virtual_bytes: int
    started_s: float
    """The start time, since 1970."""
    threads: int
    descriptors_max: int


def process_numbers() -> ProcessNumbers | None:
    """None on systems without /proc."""
    try:
        with open("/proc/self/stat", "rb") as file:
            # The name of the program is in parentheses and may contain any character.
            fields = file.read().rpartition(b")")[2].split()
        with open("/proc/stat", "rb") as file:
            booted_s = next(int(line.split()[1]) for line in file if line.startswith(b"btime"))
    except (OSError, StopIteration):
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ProcessNumbers(
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
        virtual_bytes=int(fields[20]),
        started_s=booted_s + int(fields[19]) / _TICKS,
        threads=int(fields[17]),
        descriptors_max=soft,
    )


# Memory of this process.

_STATUS = Path("/proc/self/status")


class ProcessMemory(NamedTuple):
    """In bytes; all 0, and `known` false, if the kernel does not report it."""

    known: bool = False
    resident: int = 0
    highest_resident: int = 0
    """The maximum."""
    anonymous: int = 0
    """Anonymous memory, as opposed to pages of files."""
    files: int = 0
    shared: int = 0


def process_memory() -> ProcessMemory:
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ProcessMemory()
    values = dict(line.partition(":")[::2] for line in lines)
    return ProcessMemory(True, *(_bytes(values.get(name, "")) for name in _NAMES))


_NAMES = ("VmRSS", "VmHWM", "RssAnon", "RssFile", "RssShmem")


def _bytes(text: str) -> int:
    """A number of KiB, as `  123 kB`."""
    number = text.split()[:1]
    return int(number[0]) * 1024 if number and number[0].isdigit() else 0


# File descriptor limits.
#
# Every connection and every open file needs one. Without a free descriptor the process cannot rotate the log or open a
# segment, so connections have a separate limit, and the rest is reserved for files.

FILES = 1024
"""For mapped segments (two each), the log, files being written, webhooks, and the interpreter."""


def raise_limit(requested: int) -> int:
    """Raises the limit of the process to `requested` as far as the system allows; returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return requested
    target = requested if hard == resource.RLIM_INFINITY else min(requested, hard)
    if target > soft:
        # A system may have lower limits than the hard limit; then the limit stays unchanged.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            return target
    return soft


def connections_within(limit: int, requested: int) -> int:
    """Returns the number of connections under a limit: all descriptors except the reserved ones, or half of a small
    limit."""
    return max(min(requested, limit - min(FILES, limit // 2)), 1)


def forget_variable(name: str) -> None:
    """Removes a secret from the environment of this process. The kernel keeps the initial environment."""
    os.environ.pop(name, None)
    # The interpreter keeps a copy of the initial environment.
    posix.environ.pop(name.encode(), None)
    # So does a module of the standard library that the metrics import.
    handlers = sys.modules.get("wsgiref.handlers")
    if handlers is not None:
        handlers.BaseHandler.os_environ.pop(name, None)


# Thread switching.

_SWITCH_S = 0.0005


def tune_threads() -> None:
    """Shortens the switch interval of the interpreter.

    By default a computing thread keeps the interpreter lock for five milliseconds, and every request would wait that
    long while a segment is written in the background.
    """
    sys.setswitchinterval(_SWITCH_S)


# The machine.

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PROC = Path("/proc")
_STATM = Path("/proc/self/statm")
_LOW_PRIORITY, _LOWEST_PRIORITY = 10, 19


def boot_id() -> str:
    """Returns the boot id of the kernel; empty if it is not available.

    While it is unchanged, bytes that were written but never synced are still in the page cache: a killed process has
    lost nothing. Empty must be treated as changed.
    """
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def cpu_count() -> int:
    """Returns the number of CPUs that this process may use, which in a container is often lower than the machine's."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # Only Linux has affinity.
        return os.cpu_count() or 1


def resident_bytes() -> int:
    """Returns the resident memory of the process; 0 if it is not available."""
    try:
        resident_pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return resident_pages * os.sysconf("SC_PAGE_SIZE")


def tree_bytes() -> int:
    """The physical memory of this process and its descendants (PSS: shared pages are divided).

    0 if it is not available; a process that ends meanwhile counts as 0.
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
    """Lowers the scheduling priority of this process and its children.

    `low` is a nice value: a share of the processor also under load. But a waking process then waits for the end of this
    one's time slice, which writers would notice. `idle` is the scheduling class SCHED_IDLE, which is preempted at once
    and gets only unused time; without it, the lowest nice value is used. Even an idle process is not preempted within a
    system call, so one core of several is not used at all.
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
        # Affinity is not available everywhere.
        return


# Allocator tuning: glibc keeps freed memory.
#
# By default glibc allocates more than 128 KiB as a fresh mapping and unmaps it when it is freed, so every large answer
# costs page faults and zeroed pages. Keeping such blocks in the heap made large and concurrent reads 2.3 to 3.0 times
# as fast. The cost is up to 128 MiB of freed heap that is not returned to the system.

_MIB = 1024 * 1024

# Parameter numbers of mallopt(3) and our values. Setting any of them stops glibc from adapting the threshold itself.
_TUNING: tuple[tuple[int, int], ...] = (
    (-3, 32 * _MIB),  # M_MMAP_THRESHOLD: smaller blocks come from the heap. 32 MiB is the most glibc accepts.
    (-1, 128 * _MIB),  # M_TRIM_THRESHOLD: this much free heap is kept for the next answer.
    (-2, 1 * _MIB),  # M_TOP_PAD: the heap grows by at least this much, hence with fewer system calls.
)


def tune_allocator() -> bool:
    """Tunes glibc's malloc for the whole process. Returns False without effect with another C library."""
    mallopt = _find_mallopt()
    if mallopt is None:
        return False
    # A loop and not all() over a generator: every value is set even if an earlier one was refused.
    accepted = [mallopt(parameter, value) == 1 for parameter, value in _TUNING]
    return all(accepted)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Disables the garbage collector while long-lived state is rebuilt.

    It would traverse all objects each time their number has grown by a quarter, a third of the time of a start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def tune_collector() -> None:
    """Excludes permanent objects from the garbage collector, and makes it run less often.

    Requests leave no reference cycles, so collections only cost time; the state rebuilt at the start is large and
    permanent. Called after the start.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _find_mallopt() -> Callable[[int, int], int] | None:
    """Returns the function if it is glibc's: with musl and others its parameters have no effect or another meaning."""
    try:
        libc = ctypes.CDLL(None)
    except (OSError, TypeError):
        return None
    if not hasattr(libc, "gnu_get_libc_version"):
        return None
    mallopt = libc.mallopt
    mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    mallopt.restype = ctypes.c_int
    return mallopt
