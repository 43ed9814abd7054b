"""Cursors of live reads: a number that moves on, so that caches which collapse equal requests never loop.

It counts intervals of 20 seconds. All who wait in the same interval ask with the same cursor and may share one answer;
a client that comes back within it gets a larger one, so its next request is never answered from the same cache entry.
"""

_EPOCH_MS = 1_728_432_000_000
"""2024-10-09 in UTC."""
_INTERVAL_MS = 20_000


def cursor_after(now_ms: int, given: str) -> str:
    """The cursor to go on with, above the one that the client has."""
    current = max(now_ms - _EPOCH_MS, 0) // _INTERVAL_MS
    known = int(given) if given.isascii() and given.isdigit() and len(given) <= 18 else -1
    return str(max(current, known + 1))
