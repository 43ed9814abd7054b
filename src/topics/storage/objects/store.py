"""What the cold tier asks of an object store, in eight calls.

An object is written whole and in one step: whoever reads it gets the old bytes or the new ones. What a call answers is
durable, and every later call sees it. There are no folders, only names with `/` in them, below the prefix that the
store was opened with.

A missing object is a `FileNotFoundError`: the store was asked and said so. `StoreUnavailable` is every answer that
leaves open what the store holds: it cannot be reached, takes too long, fails, or does not let us in. The first may be
damage, the second never is; everything above this module depends on that difference.
"""

import errno
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from topics.storage.fs import BytesLike


class StoreUnavailable(OSError):
    """The store could not be asked. Nothing is known about what it holds; the same call may succeed later."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EHOSTUNREACH, f"the object store is not available: {why}")
        self.why = why


class Listing(NamedTuple):
    """What lies directly below a folder of names; both sorted."""

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

    def remove(self, name: str) -> None:
        """Removes an object; a missing one is fine, as it is in every store."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Copies an object inside the store, in one step."""
        ...

    def list_folder(self, folder: str) -> Listing:
        """The names directly below a folder; empty where nothing is."""
        ...
