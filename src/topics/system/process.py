"""What the system says of this process, under the names that collectors of metrics know."""

import os
import resource
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessNumbers(NamedTuple):
    cpu_s: float
    resident_bytes: int
    virtual_bytes: int
    started_s: float
    """Since 1970."""
    threads: int
    descriptors_max: int


def process_numbers() -> ProcessNumbers | None:
    """None where the system has no /proc."""
    try:
        with open("/proc/self/stat", "rb") as file:
            # The name of the program is in brackets and may hold anything.
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
