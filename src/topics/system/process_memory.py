"""What the kernel tells about the memory of this process."""

from pathlib import Path
from typing import NamedTuple

_STATUS = Path("/proc/self/status")


class ProcessMemory(NamedTuple):
    """In bytes; all 0, and `known` false, where the kernel does not tell."""

    known: bool = False
    resident: int = 0
    highest_resident: int = 0
    """The most there ever was."""
    anonymous: int = 0
    """What the process made itself, as opposed to pages of files."""
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
