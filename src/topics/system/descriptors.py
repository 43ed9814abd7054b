"""How many file descriptors the process may have, and how connections and files share them.

Every connection is one, and so is every mapped file. A process that has none left can turn no log file and read no
segment, so the connections are given a number of their own, and the rest belongs to the files.
"""

import contextlib
import resource

FILES = 1024
"""For mapped segments (two each), the log, what is written, webhooks, and what the system uses itself."""


def raise_limit(wanted: int) -> int:
    """Raises the process's limit to what is wanted, as far as the system allows; the limit there is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if target > soft:
        # A system may have bounds of its own below the hard limit; then it stays as it was.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            return target
    return soft


def connections_within(limit: int, wanted: int) -> int:
    """How many connections may be open under a limit: what the files do not need, and half of a small one."""
    return max(min(wanted, limit - min(FILES, limit // 2)), 1)
