"""Object store interface of the cold tier, in eight calls.

An object is written whole and in one step: a caller that reads it gets the old bytes or the new ones. A completed call
is durable, and every later call sees it. There are no folders, only names with `/` in them, below the prefix that the
store was opened with.

A missing object is a `FileNotFoundError`: the store was asked and said so. `StoreUnavailable` is every answer that
leaves open what the store holds: it cannot be reached, takes too long, fails, or does not let us in. The first may be
damage, the second never is; everything above this module depends on that difference.
"""

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from topics.log.fs import BytesLike


class StoreUnavailable(OSError):
    """The store could not be asked. Nothing is known about what it holds; the same call may succeed later."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EHOSTUNREACH, f"the object store is not available: {why}")
        self.why = why


class Listing(NamedTuple):
    """The direct children of a prefix; both sorted."""

    folders: list[str]
    objects: list[str]


class ObjectStore(Protocol):
    def get(self, name: str) -> memoryview:
        """All bytes of an object."""
        ...

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        """Some bytes; fewer than `length` only where the object ends."""
        ...

    def get_tail(self, name: str, length: int) -> bytes:
        """The last bytes; fewer than `length` only where the object is shorter."""
        ...

    def size(self, name: str) -> int: ...

    def put(self, name: str, pieces: Sequence[BytesLike]) -> None:
        """Makes these bytes, one after the other, the object, in one step."""
        ...

    def put_new(self, name: str, data: bytes) -> None:
        """Makes an object, in one step. Raises FileExistsError where there is one of that name."""
        ...

    def remove(self, name: str) -> None:
        """Removes an object; a missing one is fine, as it is in every store."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Copies an object inside the store, in one step."""
        ...

    def list_folder(self, folder: str) -> Listing:
        """The names directly below a folder; empty where nothing is."""
        ...


# Keeps callers from queueing up behind a store that does not answer.
#
# A call to a store that is gone may take as long as all its retries, and there are two threads for reads of cold
# segments. So after a call that found the store unavailable, the next ones are refused at once, for a moment; then one
# is let through to see.

PAUSE_S = 2.0

T = TypeVar("T")


class GuardedStore:
    """Passes every call on, except shortly after one that failed. `seconds` is a clock that never runs back."""

    def __init__(self, inner: ObjectStore, seconds: Callable[[], float], pause_s: float = PAUSE_S) -> None:
        self._inner = inner
        self._seconds = seconds
        self._pause_s = pause_s
        # Two threads may race to set it, and either value will do.
        self._failure: tuple[float, str] | None = None

    @property
    def paused(self) -> bool:
        """Whether calls are refused at the moment."""
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


# Counts what a server asks of its object store, and what comes of it.
#
# A call counts once, when it is over, however often the library had to try; one that was never made, because the store
# is left alone after a failure, does not count. Any thread may call, so the counts have a lock: it is nothing beside a
# call.

KINDS = ("get", "put", "delete", "list")
"""As stores charge for them: `get` is also the size of an object or a part of it, `put` also a copy of it."""
OK, MISSING, UNAVAILABLE = OUTCOMES = ("ok", "missing", "unavailable")


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


OPERATIONS = ("puts", "gets", "heads", "lists", "deletes")
"""Requests of one topic by operation."""
_TOPICS_MAX = 100_000
"""Topics whose requests are counted; the counts of the topic that was asked for least recently are given up."""
_ARTIFACTS = {"data": "segment", "idx": "segment_index", "companion": "bundled_companion"}

TopicRequests = dict[str, dict[str, int]]
"""The requests of one topic: counts by operation for each kind of object (also known as: artifact)."""


def _owner_of(name: str) -> tuple[int, str] | None:
    """The topic of an object or folder, and its kind; see `log.layout`. None for objects of no topic."""
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
        """The counts so far, together with what others know of the store."""
        with self._lock:
            requests = {kind: dict(outcomes) for kind, outcomes in self._requests.items()}
            received, sent = self._received, self._sent
        return StoreStats(requests, received, sent, paused, cache_bytes, cache_hits, cache_misses)

    def of_topic(self, topic_id: int) -> TopicRequests:
        """The requests for one topic."""
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
