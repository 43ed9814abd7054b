"""Object store interface of the cold tier, in eight calls.

An object is written atomically: readers get the old bytes or the new ones. A completed call is durable, and every later
call sees it. There are no folders, only names that contain `/`, below the prefix of the store.

A missing object raises `FileNotFoundError`: the store has reported it missing. `StoreUnavailable` covers every outcome
that leaves the content unknown: the store cannot be reached, times out, fails, or denies access. The first may be
damage, the second never is; all callers depend on this difference.
"""

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from topics.log.fs import BytesLike


class StoreUnavailable(OSError):
    """The store is unavailable, so its content is unknown. The same call may succeed later."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EHOSTUNREACH, f"the object store is not available: {why}")
        self.why = why


class Listing(NamedTuple):
    """The direct children of a prefix; both sorted."""

    folders: list[str]
    objects: list[str]


class ObjectStore(Protocol):
    def get(self, name: str) -> memoryview:
        """Returns all bytes of an object."""
        ...

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        """Returns some bytes; fewer than `length` only at the end of the object."""
        ...

    def get_tail(self, name: str, length: int) -> bytes:
        """Returns the last bytes; fewer than `length` only if the object is shorter."""
        ...

    def size(self, name: str) -> int: ...

    def put(self, name: str, pieces: Sequence[BytesLike]) -> None:
        """Writes an object from these pieces, atomically."""
        ...

    def put_new(self, name: str, data: bytes) -> None:
        """Creates an object atomically. Raises FileExistsError if there is one of this name."""
        ...

    def remove(self, name: str) -> None:
        """Removes an object; a missing one is not an error."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Copies an object inside the store, atomically."""
        ...

    def list_folder(self, folder: str) -> Listing:
        """Returns the names directly below a folder; empty if there are none."""
        ...


# Circuit breaker for an object store that does not answer.
#
# A call to an unavailable store may take as long as all its retries, and only two threads read cold segments. So after
# such a call the next ones are refused at once, for a moment; then one call is let through as a probe.

PAUSE_S = 2.0

T = TypeVar("T")


class GuardedStore:
    """Passes every call on, except shortly after a failed one. `seconds` is a monotonic clock."""

    def __init__(self, inner: ObjectStore, seconds: Callable[[], float], pause_s: float = PAUSE_S) -> None:
        self._inner = inner
        self._seconds = seconds
        self._pause_s = pause_s
        # Two threads may race to set it; either value is correct.
        self._failure: tuple[float, str] | None = None

    @property
    def paused(self) -> bool:
        """Whether calls are refused currently."""
        failure = self._failure
        return failure is not None and self._seconds() < failure[0]

    def get(self, name: str) -> memoryview:
        return self._call(lambda: self._inner.get(name))

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self._call(lambda: self._inner.get_range(name, offset, length))

    def get_tail(self, name: str, length: int) -> bytes:
        return self._call(lambda: self._inner.get_tail(name, length))

    def size(self, name: str) -> int:
        return self._call(lambda: self._inner.size(name))

    def put(self, name: str, pieces: Sequence[BytesLike]) -> None:
        self._call(lambda: self._inner.put(name, pieces))

    def put_new(self, name: str, data: bytes) -> None:
        self._call(lambda: self._inner.put_new(name, data))

    def remove(self, name: str) -> None:
        self._call(lambda: self._inner.remove(name))

    def copy(self, source: str, target: str) -> None:
        self._call(lambda: self._inner.copy(source, target))

    def list_folder(self, folder: str) -> Listing:
        return self._call(lambda: self._inner.list_folder(folder))

    def _call(self, call: Callable[[], T]) -> T:
        failure = self._failure
        if failure is not None and self._seconds() < failure[0]:
            raise StoreUnavailable(failure[1])
        try:
            answer = call()
        except StoreUnavailable as error:
            self._failure = (self._seconds() + self._pause_s, error.why)
            raise
        self._failure = None
        return answer


# Counts of a server's requests to its object store, by outcome.
#
# A call counts once, at its end, whatever the number of retries. Calls refused by the circuit breaker do not count. Any
# thread may call, so the counts have a lock, whose cost is negligible beside a call.

KINDS = ("get", "put", "delete", "list")
"""Operations as stores bill them: `get` includes reading the size or a part of an object, `put` includes copies."""
OK, MISSING, UNAVAILABLE = OUTCOMES = ("ok", "missing", "unavailable")


class StoreStats(msgspec.Struct, frozen=True):
    """The state of an object store since the server's start."""

    requests: dict[str, dict[str, int]]
    """Requests by kind and outcome."""
    received_bytes: int
    sent_bytes: int
    paused: bool
    """Whether calls are refused for a moment after a failed one."""
    cache_bytes: int
    """Bytes of whole segments on the local disk."""
    cache_hits: int
    cache_misses: int


OPERATIONS = ("puts", "gets", "heads", "lists", "deletes")
"""Requests of one topic by operation."""
_TOPICS_MAX = 100_000
"""The maximum number of topics whose requests are counted; the least recently used counts are dropped."""
_ARTIFACTS = {"data": "segment", "idx": "segment_index", "companion": "bundled_companion"}

TopicRequests = dict[str, dict[str, int]]
"""The requests of one topic: counts by operation for each kind of object (also known as: artifact)."""


def _owner_of(name: str) -> tuple[int, str] | None:
    """Returns the topic and the kind of an object or folder; see `log.layout`. None for objects without a topic."""
    parts = name.split("/")
    if len(parts) < 2 or parts[0] not in ("topics", "families"):
        return None
    ending = name.rpartition(".")[2]
    try:
        return int(parts[1], 16), _ARTIFACTS.get(ending, "segment" if parts[0] == "topics" else "bundled_companion")
    except ValueError:
        return None


class MeteredStore:
    """Passes every call on."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._requests = {kind: dict.fromkeys(OUTCOMES, 0) for kind in KINDS}
        self._received = 0
        self._sent = 0
        self._of_topics: OrderedDict[int, TopicRequests] = OrderedDict()

    def get(self, name: str) -> memoryview:
        return self._call("get", "gets", name, lambda: self._inner.get(name), received=len)

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self._call("get", "gets", name, lambda: self._inner.get_range(name, offset, length), received=len)

    def get_tail(self, name: str, length: int) -> bytes:
        return self._call("get", "gets", name, lambda: self._inner.get_tail(name, length), received=len)

    def size(self, name: str) -> int:
        return self._call("get", "heads", name, lambda: self._inner.size(name))

    def put(self, name: str, pieces: Sequence[BytesLike]) -> None:
        self._call("put", "puts", name, lambda: self._inner.put(name, pieces), sent=sum(map(len, pieces)))

    def put_new(self, name: str, data: bytes) -> None:
        self._call("put", "puts", name, lambda: self._inner.put_new(name, data), sent=len(data))

    def remove(self, name: str) -> None:
        self._call("delete", "deletes", name, lambda: self._inner.remove(name))

    def copy(self, source: str, target: str) -> None:
        self._call("put", "puts", target, lambda: self._inner.copy(source, target))

    def list_folder(self, folder: str) -> Listing:
        return self._call("list", "lists", folder, lambda: self._inner.list_folder(folder))

    def stats(self, paused: bool, cache_bytes: int, cache_hits: int, cache_misses: int) -> StoreStats:
        """Returns the counts so far, with the state of the circuit breaker and the cache."""
        with self._lock:
            requests = {kind: dict(outcomes) for kind, outcomes in self._requests.items()}
            received, sent = self._received, self._sent
        return StoreStats(requests, received, sent, paused, cache_bytes, cache_hits, cache_misses)

    def of_topic(self, topic_id: int) -> TopicRequests:
        """Returns the requests for one topic."""
        with self._lock:
            return {artifact: dict(counts) for artifact, counts in self._of_topics.get(topic_id, {}).items()}

    def _call(
        self, kind: str, operation: str, name: str, call: Callable[[], T],
        received: Callable[[T], int] = lambda answer: 0, sent: int = 0,
    ) -> T:  # fmt: skip
        try:
            answer = call()
        except (FileNotFoundError, StoreUnavailable) as error:
            outcome = UNAVAILABLE if isinstance(error, StoreUnavailable) else MISSING
            with self._lock:
                self._requests[kind][outcome] += 1
                self._count_for_topic(operation, name)
            raise
        with self._lock:
            self._requests[kind][OK] += 1
            self._received += received(answer)
            self._sent += sent
            self._count_for_topic(operation, name)
        return answer

    def _count_for_topic(self, operation: str, name: str) -> None:
        owner = _owner_of(name)
        if owner is None:
            return
        topic_id, artifact = owner
        counts = self._of_topics.setdefault(topic_id, {}).setdefault(artifact, dict.fromkeys(OPERATIONS, 0))
        counts[operation] += 1
        self._of_topics.move_to_end(topic_id)
        if len(self._of_topics) > _TOPICS_MAX:
            self._of_topics.popitem(last=False)
