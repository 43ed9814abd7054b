"""Counts what a server asks of its object store, and what comes of it.

A call counts once, when it is over, however often the library had to try; one that was never made, because the store is
left alone after a failure, does not count. Any thread may call, so the counts have a lock: it is nothing beside a call.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from topics.storage.fs import BytesLike
from topics.storage.objects.store import Listing, ObjectStore, StoreUnavailable

KINDS = ("get", "put", "delete", "list")
"""As stores charge for them: `get` is also the size of an object or a part of it, `put` also a copy of it."""
OK, MISSING, UNAVAILABLE = OUTCOMES = ("ok", "missing", "unavailable")

T = TypeVar("T")


class StoreStats(msgspec.Struct, frozen=True):
    """An object store as a server has met it since it started."""

    requests: dict[str, dict[str, int]]
    """By kind, and then by outcome."""
    received_bytes: int
    sent_bytes: int
    paused: bool
    """Whether the store is left alone for a moment, because a call has failed."""
    cache_bytes: int
    """Bytes of whole segments on the local disk."""
    cache_hits: int
    cache_misses: int


class MeteredStore:
    """Passes every call on."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._requests = {kind: dict.fromkeys(OUTCOMES, 0) for kind in KINDS}
        self._received = 0
        self._sent = 0

    def get(self, name: str) -> memoryview:
        return self._call("get", lambda: self._inner.get(name), received=len)

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self._call("get", lambda: self._inner.get_range(name, offset, length), received=len)

    def get_tail(self, name: str, length: int) -> bytes:
        return self._call("get", lambda: self._inner.get_tail(name, length), received=len)

    def size(self, name: str) -> int:
        return self._call("get", lambda: self._inner.size(name))

    def put(self, name: str, pieces: Sequence[BytesLike]) -> None:
        self._call("put", lambda: self._inner.put(name, pieces), sent=sum(map(len, pieces)))

    def remove(self, name: str) -> None:
        self._call("delete", lambda: self._inner.remove(name))

    def copy(self, source: str, target: str) -> None:
        self._call("put", lambda: self._inner.copy(source, target))

    def list_folder(self, folder: str) -> Listing:
        return self._call("list", lambda: self._inner.list_folder(folder))

    def stats(self, paused: bool, cache_bytes: int, cache_hits: int, cache_misses: int) -> StoreStats:
        """The counts so far, together with what others know of the store."""
        with self._lock:
            requests = {kind: dict(outcomes) for kind, outcomes in self._requests.items()}
            received, sent = self._received, self._sent
        return StoreStats(requests, received, sent, paused, cache_bytes, cache_hits, cache_misses)

    def _call(
        self, kind: str, call: Callable[[], T], received: Callable[[T], int] = lambda answer: 0, sent: int = 0
    ) -> T:
        try:
            answer = call()
        except (FileNotFoundError, StoreUnavailable) as error:
            outcome = UNAVAILABLE if isinstance(error, StoreUnavailable) else MISSING
            with self._lock:
                self._requests[kind][outcome] += 1
            raise
        with self._lock:
            self._requests[kind][OK] += 1
            self._received += received(answer)
            self._sent += sent
        return answer
