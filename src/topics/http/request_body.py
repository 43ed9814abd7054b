"""Request bodies: collected with limits on size, decompression and memory.

A body receives its parts, refuses the part that exceeds a limit, and is either finished or released. Limits are checked
before bytes are buffered, and for gzip before they are decompressed: zlib is asked for one byte more than the limit
allows, so a decompression bomb costs no more than the limit.
"""

import zlib
from typing import Protocol

from topics.http.messages import Fault, HttpError, HttpLimits
from topics.system.reserved_memory import reserve_memory

_GZIP_WINDOW = 16 + zlib.MAX_WBITS
# A body may consist of several gzip members. Each costs a decompressor, and an empty one has 20 bytes, so their number
# is limited.
_MEMBERS_MAX = 1000
# Parts are joined when there are this many, because a body of tiny chunks would cost fifty times its size.
_PARTS_MAX = 64
# Bodies up to this size are not counted in the budget, because the number of connections bounds them.
UNCOUNTED_BYTES = 64 * 1024
LARGE_BYTES = 1024 * 1024
"""A longer body is passed as a `LargeBody` to applications that accept it."""


class Body(Protocol):
    """A body that is being received."""

    def add(self, part: bytes) -> None:
        """Adds received bytes. Raises `HttpError` if there are too many or they are invalid."""
        ...

    def finish(self) -> "bytes | LargeBody":
        """Returns the whole body, decoded. Raises `HttpError` if it is incomplete."""
        ...

    def release(self) -> None:
        """Releases the memory of a body that will not be finished. May be called more than once."""
        ...


class Budget:
    """The bytes of all bodies being received."""

    __slots__ = ("held_bytes", "max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0

    def take(self, nbytes: int) -> None:
        if self.held_bytes + nbytes > self.max_bytes:
            raise HttpError(Fault.TOO_MANY_BODIES)
        self.held_bytes += nbytes


class LargeBody:
    """A body that is read in portions by its receiver. It counts in the budget until it is released."""

    __slots__ = ("_budget", "_taken", "view")

    def __init__(self, view: memoryview, budget: Budget, taken: int) -> None:
        self.view = view
        self._budget = budget
        self._taken = taken

    def forget(self) -> None:
        """Drops the raw bytes after they were read. The decoded bytes take as much memory, so they still count."""
        self.view = memoryview(b"")

    def release(self) -> None:
        """Releases the body. May be called more than once."""
        self._budget.held_bytes -= self._taken
        self._taken = 0
        self.forget()

    def __del__(self) -> None:
        # The reader of the body may have disconnected or been refused.
        self.release()


class PlainBody:
    """An uncompressed body, of any length up to a limit.

    Its parts are joined when there are many, and the joined parts again when there are many of them. So a body costs
    its length while it is received, whatever its parts, and twice that while it is joined at the end.

    Joining a very long body would block the loop. If it may become a `LargeBody`, its parts are copied to their
    positions as they arrive, in memory that the system allocates on use.
    """

    __slots__ = ("_budget", "_free_bytes", "_levels", "_limit", "_places", "_size", "_taken", "nbytes")

    def __init__(self, limit: int, budget: Budget, large_size: int = 0, free_bytes: int = UNCOUNTED_BYTES) -> None:
        """`large_size` is the maximum length as a `LargeBody`; 0 means never.

        Up to `free_bytes` it is not counted in the budget.
        """
        self._limit = limit
        self._free_bytes = free_bytes
        self._budget = budget
        self._size = large_size
        self._places: memoryview | None = None
        self._taken = 0
        self._levels: list[list[bytes]] = [[]]
        """The newest parts, then the joined earlier ones, and so on."""
        self.nbytes = 0

    def add(self, part: bytes) -> None:
        nbytes = self.nbytes + len(part)
        if nbytes > self._limit:
            raise too_large(self._limit)
        if nbytes > self._free_bytes:
            self._budget.take(nbytes - self._taken)
            self._taken = nbytes
        if self._places is None and self._size and nbytes > LARGE_BYTES:
            self._places = reserve_memory(self._size)
            self._places[: self.nbytes] = self._joined()
            self._levels = [[]]
        if self._places is not None:
            self._places[self.nbytes : nbytes] = part
        else:
            self._keep(part, 0)
        self.nbytes = nbytes

    def _keep(self, part: bytes, level: int) -> None:
        parts = self._levels[level]
        parts.append(part)
        if len(parts) == _PARTS_MAX:
            self._levels[level] = []
            if level + 1 == len(self._levels):
                self._levels.append([])
            self._keep(b"".join(parts), level + 1)

    def _joined(self) -> bytes:
        parts = [part for level in reversed(self._levels) for part in level]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def finish(self) -> bytes | LargeBody:
        if self._places is not None:
            large = LargeBody(self._places[: self.nbytes], self._budget, self._taken)
            self._places, self._taken = None, 0
            return large
        whole = self._joined()
        self.release()
        return whole

    def release(self) -> None:
        self._budget.held_bytes -= self._taken
        self._taken = 0
        self._levels = [[]]
        self._places = None


class GzipBody:
    """A compressed body. The limit applies to the received and to the decoded bytes."""

    __slots__ = ("_inflated", "_limit", "_limits", "_members", "_wire_bytes", "_zlib")

    def __init__(
        self, limit: int, limits: HttpLimits, budget: Budget, large: bool = False, free_bytes: int = UNCOUNTED_BYTES
    ) -> None:
        self._limit = limit
        self._limits = limits
        self._inflated = PlainBody(limit, budget, limit if large else 0, free_bytes)
        self._wire_bytes = 0
        self._zlib = zlib.decompressobj(_GZIP_WINDOW)
        self._members = 1

    def add(self, part: bytes) -> None:
        self._wire_bytes += len(part)
        if self._wire_bytes > self._limit:
            raise too_large(self._limit)
        try:
            self._inflate(part)
        except zlib.error:
            raise HttpError(Fault.BAD_ENCODING) from None

    def _inflate(self, part: bytes) -> None:
        while part:
            if self._zlib.eof:
                self._next_member()
            room = self._allowed() - self._inflated.nbytes
            inflated = self._zlib.decompress(part, room + 1)
            if len(inflated) > room:
                raise HttpError(Fault.BODY_TOO_LARGE, f"the decompressed body exceeds {self._allowed()} bytes")
            if inflated:
                self._inflated.add(inflated)
            part = self._zlib.unused_data if self._zlib.eof else self._zlib.unconsumed_tail

    def _allowed(self) -> int:
        """The number of decoded bytes allowed for the bytes received so far."""
        by_ratio = max(self._limits.inflate_free_bytes, self._wire_bytes * self._limits.inflate_ratio)
        return min(self._limit, by_ratio)

    def _next_member(self) -> None:
        self._members += 1
        if self._members > _MEMBERS_MAX:
            raise HttpError(Fault.BAD_ENCODING, f"the body is more than {_MEMBERS_MAX} gzip files in a row")
        self._zlib = zlib.decompressobj(_GZIP_WINDOW)

    def finish(self) -> bytes | LargeBody:
        # No bytes mean an empty body; a client may send an empty body uncompressed.
        if self._wire_bytes and not self._zlib.eof:
            raise HttpError(Fault.BAD_ENCODING, "the gzip body ends too early")
        return self._inflated.finish()

    def release(self) -> None:
        self._inflated.release()


def too_large(limit: int) -> HttpError:
    return HttpError(Fault.BODY_TOO_LARGE, f"the body exceeds {limit} bytes")


def open_body(
    encoding: str,
    length: int | None,
    limit: int,
    limits: HttpLimits,
    budget: Budget,
    large: bool = False,
    free_bytes: int = UNCOUNTED_BYTES,
) -> Body:
    """Returns the collector for a body; `length` is None for a chunked one.

    Raises `HttpError` if the body cannot be accepted.

    `large` states that it may become a `LargeBody`, `free_bytes` is the number of bytes not counted in the budget.
    """
    if length is not None and length > limit:
        raise too_large(limit)
    coding = encoding.strip().lower()
    if coding in ("gzip", "x-gzip"):
        return GzipBody(limit, limits, budget, large, free_bytes)
    if coding not in ("", "identity"):
        raise HttpError(Fault.UNSUPPORTED_ENCODING, headers=[("accept-encoding", "gzip, identity")])
    return PlainBody(limit, budget, (limit if length is None else length) if large else 0, free_bytes)
