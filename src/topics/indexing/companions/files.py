"""How a companion is stored: named arrays one behind the other, and a directory of them at the end.

    offset   size  field
         0      8  magic "TPCMP001"
         8      -  the sections; each begins at a multiple of 64, with zeros in between
         n      m  the directory: msgpack of `_Directory`
       n+m      8  u64: m
     n+m+8      8  u64: XXH3-64 of the directory
    n+m+16      8  magic "TPCMPEND"

Everything is little endian. A section is the bytes of one array; the directory has its name, the type of its elements
as numpy writes it, where it is, how long, and the XXH3-64 of its bytes. The directory is checked when a companion is
opened, a section when somebody first asks for it, so that a companion which is large costs what is asked of it.

What the sections are called, for a field `f`, for the routing keys (`key` in the place of `field/f`), for a rollup `r`
with an interval of `i` ms, and for a measure `m` of it:

    numbers              i64  the seq of each row; missing where there are no holes between them
    field/f/values            the values of all rows, texts as codes in the order of their bytes
    field/f/starts            for each row, and behind the last, where its values begin; missing where each row has one
    field/f/present           for each row whether it has the field; missing where all have it
    field/f/lows, highs       for each block the least and the greatest value; not for words
    field/f/counts       u32  for each block how many rows have a value; not for words
    field/f/order             the rows in the order of their values, those without one last; only of numbers, and
                              missing where a row has several, or where it is the order of the rows
    field/f/texts        u8   the texts of the codes as UTF-8, one behind the other
    field/f/ends              where each of them ends
    field/f/places            where the codes stand among the values: those of code 0, ascending, then those of code 1
    field/f/stops             where those of each code end
    rollup/r/i/all/...        sums by all dimensions of the rollup, rollup/r/i/none/... by none of them: groups in the
                              order of their buckets, then of the texts of their dimensions; null is the last
      starts             i64  when the bucket of each begins
      by/n/codes              the n-th dimension of each, as a code; the one behind all texts is null
      by/n/texts, ends        the texts of the codes, as those of a field
      of/m/counts             the m-th measure, a count; or of a summary how many values
      of/m/sums, least, most  i64 or f64, of a summary
      of/m/stops, powers, times  histograms: where those of each group end, exponents of two, and how often
      of/m/ends, states       instead of all these, where something is no number of 64 bits: JSON
    sums/r/m/ends, states     the rows that are summaries already, as JSON; empty for a row that is none
"""

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

MAGIC: Final = b"TPCMP001"
END: Final = b"TPCMPEND"
_TAIL = Struct("<QQ8s")
_ALIGNED: Final = 64
_KINDS: Final = frozenset(("<i8", "<f8", "|i1", "|u1", "<u2", "<u4", "<u8", "|b1"))


def bytes_of(array: NDArray[Any]) -> memoryview:
    """The bytes of an array that is in one piece."""
    return array.data.cast("B") if array.size else memoryview(b"")


class CompanionDamagedError(ValueError):
    """The bytes of a companion are not those that were written."""


class Section(msgspec.Struct, array_like=True, frozen=True):
    name: str
    kind: str
    offset: int
    size: int
    checksum: int


class _Directory(msgspec.Struct, array_like=True, frozen=True):
    head: msgspec.Raw
    sections: list[Section]


class _Found(msgspec.Struct, array_like=True, frozen=True):
    head: msgspec.Raw
    sections: list[Section]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Found).decode


Write = Callable[[bytes | memoryview], object]
"""Puts bytes behind those that it was given before."""


class SectionWriter:
    """Writes a file one section at a time, so that no more than one of them is in memory."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._at = 0
        self._sections: list[Section] = []
        self._put(MAGIC)

    def _put(self, data: bytes | memoryview) -> None:
        self._write(data)
        self._at += len(data)

    def add(self, name: str, array: NDArray[Any]) -> None:
        data = bytes_of(np.ascontiguousarray(array))
        if array.dtype.str not in _KINDS:
            raise TypeError(f"a section of {array.dtype.str}")
        self._put(bytes(-self._at % _ALIGNED))
        self._sections.append(Section(name, array.dtype.str, self._at, len(data), xxh3_64_intdigest(data)))
        self._put(data)

    def finish(self, head: msgspec.Struct) -> int:
        """Adds the directory; the bytes of the file."""
        directory = _encode(_Directory(msgspec.Raw(_encode(head)), self._sections))
        self._put(directory)
        self._put(_TAIL.pack(len(directory), xxh3_64_intdigest(directory), END))
        return self._at


class SectionFile:
    """A file that is opened. `data` is all of it, mapped."""

    def __init__(self, data: memoryview | bytes) -> None:
        view = memoryview(data)
        if len(view) < len(MAGIC) + _TAIL.size or bytes(view[: len(MAGIC)]) != MAGIC:
            raise CompanionDamagedError("it is not a companion")
        length, checksum, end = _TAIL.unpack_from(view, len(view) - _TAIL.size)
        begin = len(view) - _TAIL.size - length
        if end != END or begin < len(MAGIC):
            raise CompanionDamagedError("it has no end")
        directory = view[begin : begin + length]
        if xxh3_64_intdigest(directory) != checksum:
            raise CompanionDamagedError("its directory has a wrong checksum")
        try:
            found = _decode(directory)
        except ValueError as error:
            raise CompanionDamagedError(f"its directory cannot be read: {error}") from error
        self._view = view
        self.head = bytes(found.head)
        self._sections = {section.name: section for section in found.sections}
        self._arrays: dict[str, NDArray[Any]] = {}
        for section in found.sections:
            if section.kind not in _KINDS or section.offset < 0 or section.offset + section.size > begin:
                raise CompanionDamagedError(f"its directory has a section {section.name} that is none")

    def __contains__(self, name: str) -> bool:
        return name in self._sections

    def names(self) -> Iterable[str]:
        return self._sections.keys()

    def array(self, name: str) -> NDArray[Any]:
        """A section, checked when it is first asked for."""
        known = self._arrays.get(name)
        if known is None:
            section = self._sections.get(name)
            if section is None:
                raise CompanionDamagedError(f"it has no section {name}")
            data = self._view[section.offset : section.offset + section.size]
            if xxh3_64_intdigest(data) != section.checksum:
                raise CompanionDamagedError(f"its section {name} has a wrong checksum")
            known = self._arrays[name] = np.frombuffer(data, section.kind)
        return known

    def array_if_any(self, name: str) -> NDArray[Any] | None:
        return self.array(name) if name in self._sections else None

    def check(self) -> None:
        """Looks at every byte that counts. Raises CompanionDamagedError."""
        for name in self._sections:
            self.array(name)
