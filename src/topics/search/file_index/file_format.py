"""File format of index files (also known as: companions): named arrays one behind the other, with a directory at the
end.

    offset   size  field
         0      8  magic "TPCMP001"
         8      -  the sections; each begins at a multiple of 64, with zeros in between
         n      m  the directory: msgpack of `_Directory`
       n+m      8  u64: m
     n+m+8      8  u64: XXH3-64 of the directory
    n+m+16      8  magic "TPCMPEND"

All numbers are little endian. A section is the bytes of one array; the directory has its name, the type of its elements
as numpy writes it, where it is, how long, and the XXH3-64 of its bytes. The directory is verified when an index file is
opened, a section at its first use, so the cost of a large index file depends on the sections used.

Names of the sections, for a field `f`, for the routing keys (`key` in the place of `field/f`), for a rollup `r`
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
      of/m/ends, states       instead of all these, where a value is not a number of 64 bits: JSON
    sums/r/m/ends, states     the rows that are summaries already, as JSON; empty for a row that is none
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence, Sized
from functools import cached_property
from struct import Struct
from typing import Any, Final, NamedTuple, overload

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_64_intdigest, xxh3_128_hexdigest

from topics.model.bounded_cache import Memo
from topics.schema.registry import Registry
from topics.schema.search_fields import Count, Field, Rollup, SearchConfig, Summary, SummaryParts
from topics.search.query.aggregate import Aggregation
from topics.search.query.field_values import GAP, Mask, Numbers, Repeats, repeats_in
from topics.search.query.predicates import Predicate, bind_search, fields_of

MAGIC: Final = b"TPCMP001"
END: Final = b"TPCMPEND"
_TAIL = Struct("<QQ8s")
TAIL_BYTES: Final = _TAIL.size
_ALIGNED: Final = 64
_WORD_PARTS: Final = frozenset(("texts", "ends", "places", "stops"))
"""Sections of the inverted index of a text field. Its other sections are a column."""
_KINDS: Final = frozenset(("<i8", "<f8", "|i1", "|u1", "<u2", "<u4", "<u8", "|b1"))


def bytes_of(array: NDArray[Any]) -> memoryview:
    """The bytes of a contiguous array."""
    return array.data.cast("B") if array.size else memoryview(b"")


class IndexFileDamagedError(ValueError):
    """An index file is damaged."""


class Section(msgspec.Struct, array_like=True, frozen=True):
    name: str
    kind: str
    offset: int
    size: int
    checksum: int


class _Directory(msgspec.Struct, array_like=True, frozen=True):
    head: msgspec.Raw
    sections: list[Section]


def seal_of(tail: bytes) -> int:
    """The seal of a file by its last `TAIL_BYTES`."""
    return int(_TAIL.unpack(tail)[1])


class _Found(msgspec.Struct, array_like=True, frozen=True):
    head: msgspec.Raw
    sections: list[Section]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Found).decode


Write = Callable[[bytes | memoryview], object]
"""Appends bytes."""


class SectionWriter:
    """Writes a file section by section, so at most one section is in memory."""

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
        """Writes the directory. Returns the size of the file."""
        directory = _encode(_Directory(msgspec.Raw(_encode(head)), self._sections))
        self._put(directory)
        self._put(_TAIL.pack(len(directory), xxh3_64_intdigest(directory), END))
        return self._at


class MappedFile(NamedTuple):
    """A mapped file.

    Each part is read before its mapping is accessed: an unreadable or truncated page would kill the process with
    SIGBUS, but only fails a read.
    """

    view: memoryview
    read: Callable[[int, int], bytes]
    """Takes an offset and a length; raises OSError."""


_READ_BYTES: Final = 1 << 20


class SectionFile:
    """An open index file. `data` is its whole content."""

    def __init__(self, data: memoryview | bytes | MappedFile) -> None:
        self._read = data.read if isinstance(data, MappedFile) else None
        view = memoryview(data.view if isinstance(data, MappedFile) else data)
        self._digest(view, max(len(view) - _TAIL.size, 0), _TAIL.size)
        self._digest(view, 0, len(MAGIC))
        if len(view) < len(MAGIC) + _TAIL.size or bytes(view[: len(MAGIC)]) != MAGIC:
            raise IndexFileDamagedError("it is not a companion")
        length, checksum, end = _TAIL.unpack_from(view, len(view) - _TAIL.size)
        begin = len(view) - _TAIL.size - length
        if end != END or begin < len(MAGIC):
            raise IndexFileDamagedError("it has no end")
        directory = view[begin : begin + length]
        if self._digest(view, begin, length) != checksum:
            raise IndexFileDamagedError("its directory has a wrong checksum")
        try:
            found = _decode(directory)
        except ValueError as error:
            raise IndexFileDamagedError(f"its directory cannot be read: {error}") from error
        self._view = view
        self.seal: int = checksum
        """The checksum of the directory.

        It identifies the file, because the directory has the checksums of all sections.
        """
        self.head = bytes(found.head)
        self._sections = {section.name: section for section in found.sections}
        self._arrays: dict[str, NDArray[Any]] = {}
        for section in found.sections:
            if section.kind not in _KINDS or section.offset < 0 or section.offset + section.size > begin:
                raise IndexFileDamagedError(f"its directory has an invalid section {section.name}")

    def __contains__(self, name: str) -> bool:
        return name in self._sections

    def sizes(self) -> dict[str, int]:
        """The bytes of the sections by owner.

        Owners are `field/f/words` and `field/f/column` of a field and of the keys (`key/...`), `rollup/r` and `sums/r`.
        Other bytes, such as the directory, are not counted.
        """
        found: dict[str, int] = {}
        for section in self._sections.values():
            owner, _, part = section.name.rpartition("/")
            kind, _, rest = section.name.partition("/")
            if kind in ("rollup", "sums"):
                owner = f"{kind}/{rest.partition('/')[0]}"
            elif owner:
                owner += "/words" if part in _WORD_PARTS else "/column"
            else:
                continue
            found[owner] = found.get(owner, 0) + section.size
        return found

    def names(self) -> Iterable[str]:
        return self._sections.keys()

    def array(self, name: str) -> NDArray[Any]:
        """Returns a section, verified at its first use."""
        known = self._arrays.get(name)
        if known is None:
            section = self._sections.get(name)
            if section is None:
                raise IndexFileDamagedError(f"it has no section {name}")
            data = self._view[section.offset : section.offset + section.size]
            if self._digest(self._view, section.offset, section.size) != section.checksum:
                raise IndexFileDamagedError(f"its section {name} has a wrong checksum")
            known = self._arrays[name] = np.frombuffer(data, section.kind)
        return known

    def _digest(self, view: memoryview, begin: int, size: int) -> int:
        """Returns the checksum of a part, computed from a read and not from the mapping."""
        if self._read is None:
            return xxh3_64_intdigest(view[begin : begin + size])
        digest, end = xxh3_64(), min(begin + size, len(view))
        try:
            for at in range(begin, end, _READ_BYTES):
                data = self._read(at, min(_READ_BYTES, end - at))
                if len(data) != min(_READ_BYTES, end - at):
                    raise IndexFileDamagedError("it is shorter than it was")
                digest.update(data)
        except OSError as error:
            raise IndexFileDamagedError(f"it cannot be read: {error.strerror or error}") from error
        return digest.intdigest()

    def array_if_any(self, name: str) -> NDArray[Any] | None:
        return self.array(name) if name in self._sections else None

    def check(self) -> None:
        """Verifies every section. Raises IndexFileDamagedError."""
        for name in self._sections:
            self.array(name)


# A dictionary in a file: texts in the order of their bytes, which is the order of their characters, too.
#
# So the code of a text is its rank, texts with a common prefix are a range of codes, and both are found by binary
# search.

_PARTS_KEPT: Final = 8
_FOUND_KEPT: Final = 16
"""The number of cached text positions.

A query looks up a text several times, and later queries look up the same ones.
"""
_LONGEST: Final = 128
"""Longer texts are not cached."""


def encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


class MappedTexts(Sequence[str]):
    """The texts of a column by their codes."""

    def __init__(self, raw: NDArray[np.uint8], ends: NDArray[Any]) -> None:
        self.raw = raw
        self.ends = ends
        self._having: dict[str, Mask] = {}
        self._found: Memo[bytes, tuple[int, bool]] = Memo(_FOUND_KEPT)
        self._bytes = _BytesOf(bytes_of(raw), ends)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, code: int) -> str: ...
    @overload
    def __getitem__(self, code: slice) -> "Sequence[str]": ...
    def __getitem__(self, code: int | slice) -> "str | Sequence[str]":
        if isinstance(code, slice):
            return [self[index] for index in range(*code.indices(len(self)))]
        return self._bytes[code].decode("utf-8", "surrogatepass")

    @property
    def texts(self) -> Sequence[str]:
        return self

    @property
    def encoded(self) -> "Sequence[bytes]":
        return self._bytes

    def place(self, text: str) -> int:
        """Returns the number of texts that sort before this one."""
        return self._find(encode_text(text))[0]

    def _find(self, requested: bytes) -> tuple[int, bool]:
        """Returns the number of texts that sort before this one, and whether the dictionary contains it."""
        return (
            self._found.get(requested, lambda: self._halve(requested))
            if len(requested) <= _LONGEST
            else self._halve(requested)
        )

    def _halve(self, requested: bytes) -> tuple[int, bool]:
        place = bisect_left(self._bytes, requested)
        return place, place < len(self) and self._bytes[place] == requested

    def code(self, text: str) -> int | None:
        place, is_there = self._find(encode_text(text))
        return place if is_there else None

    def span(self, prefix: str) -> tuple[int, int]:
        """Returns the range of the codes of the texts with this prefix; the end is exclusive."""
        begin = encode_text(prefix)
        if not begin:
            return 0, len(self)
        # No byte of a text is 255, so there is a next one.
        behind = begin[:-1] + bytes((begin[-1] + 1,))
        return self._find(begin)[0], self._find(behind)[0]

    def rank(self, text: str) -> int:
        place, is_there = self._find(encode_text(text))
        return 2 * place if is_there else 2 * place - 1

    is_ranked = True

    def ranked(self, codes: NDArray[Any]) -> Numbers:
        return codes.astype(np.int64) * 2

    def come_behind(self, text: str, codes: NDArray[Any]) -> Mask:
        place, is_there = self._find(encode_text(text))
        return np.asarray(codes >= place + is_there)

    def first_among(self, codes: NDArray[Any], size: int, ascending: bool) -> NDArray[Any]:
        distinct = np.unique(codes)
        return distinct[:size] if ascending else distinct[::-1][:size]

    def begin_with(self, prefix: str, codes: NDArray[Any]) -> Mask:
        begin, end = self.span(prefix)
        return np.asarray((codes >= begin) & (codes < end))

    def contain(self, part: str, codes: NDArray[Any]) -> Mask:
        mask: Mask = self._having_part(part)[codes]
        return mask

    def _having_part(self, part: str) -> Mask:
        """Returns for each code whether its text contains this one.

        Called for each block, so the last few results are cached.
        """
        known = self._having.get(part)
        if known is None:
            requested = encode_text(part)
            # The search also restarts inside a match, because a match across two texts may overlap one inside the
            # second.
            begins = [found.start() for found in re.finditer(b"(?=%b)" % re.escape(requested), bytes_of(self.raw))]
            places = np.array(begins, np.int64)
            owners = np.searchsorted(self.ends, places, "right")
            inside = owners[places + len(requested) <= self.ends[owners]]
            known = np.zeros(len(self), np.bool_)
            known[inside] = True
            if len(self._having) >= _PARTS_KEPT:
                self._having.clear()
            self._having[part] = known
        return known


class _BytesOf(Sequence[bytes]):
    def __init__(self, raw: memoryview, ends: NDArray[Any]) -> None:
        self._raw = raw
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, code: int) -> bytes: ...
    @overload
    def __getitem__(self, code: slice) -> Sequence[bytes]: ...
    def __getitem__(self, code: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(code, slice):
            return [self[index] for index in range(*code.indices(len(self)))]
        if code < 0 or code >= len(self._ends):
            raise IndexError(code)
        return bytes(self._raw[int(self._ends[code - 1]) if code else 0 : int(self._ends[code])])


def pack_strings(texts: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Returns the bytes and the ends of sorted texts."""
    joined = "".join(texts)
    # ASCII text has as many bytes as characters, so it is packed without looking at each text.
    return _packed(joined.encode(), texts) if joined.isascii() else pack_texts(map(encode_text, texts))


def pack_texts(texts: Iterable[bytes]) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    encoded = texts if isinstance(texts, list) else list(texts)
    return _packed(b"".join(encoded), encoded)


def _packed(raw: bytes, texts: Sequence[Sized]) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    return np.frombuffer(raw, np.uint8), narrow(ends)


def narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Returns unsigned numbers in the smallest type that holds them."""
    return values.astype(narrowest(int(values.max(initial=0))), copy=False)


def narrowest(most: int) -> type[np.unsignedinteger[Any]]:
    """Returns the smallest unsigned type that holds this number."""
    return np.uint8 if most < 1 << 8 else np.uint16 if most < 1 << 16 else np.uint32 if most < 1 << 32 else np.uint64


# One column of an index file: its arrays, read from a file or about to be written.

Array = NDArray[Any]

KIND_TYPES: Final = {"integer": np.int64, "date": np.int64, "float": np.float64, "bool": np.int8}


_REPEATS_KEPT: Final = 8
"""The number of words of a column whose repeated rows are cached."""
_MOST_REPEATS: Final = 1 << 16
"""Positions of words with more occurrences take too much memory to be cached."""


class FieldHead(msgspec.Struct, frozen=True, kw_only=True):
    """A column's summary in the head of an index file, for queries that need not read the column."""

    kind: str
    values: int
    """The number of values in all rows."""
    nulls: int
    """Rows without a value."""
    distinct: int
    low: int | float | str | None = None
    """The least value; not for words."""
    high: int | float | str | None = None


class StoredColumn:
    """The column of one field over all rows of an index file."""

    def __init__(
        self,
        kind: str,
        rows: int,
        values: Array,
        starts: Array | None = None,
        present: Array | None = None,
        texts: MappedTexts | None = None,
        places: Array | None = None,
        stops: Array | None = None,
    ) -> None:
        self.kind = kind
        self.rows = rows
        self.values = values
        self.starts = starts
        self.present = present
        self._texts = texts
        self._places = places
        self._stops = stops
        self._repeats: dict[tuple[int, int], Repeats] = {}

    @property
    def is_text(self) -> bool:
        return self._texts is not None

    @property
    def texts(self) -> MappedTexts:
        assert self._texts is not None
        return self._texts

    @property
    def places(self) -> Array:
        assert self._places is not None
        return self._places

    @property
    def stops(self) -> Array:
        assert self._stops is not None
        return self._stops

    def places_of(self, begin: int, end: int) -> Array:
        """Returns the positions of a range of codes among the values."""
        first = int(self.stops[begin - 1]) if begin else 0
        return self.places[first : int(self.stops[end - 1]) if end else 0]

    def rows_at(self, places: Array) -> Array:
        """Returns the row of each position."""
        return places if self.starts is None else np.searchsorted(self.starts, places, "right") - 1

    def rows_between(self, places: Array, lo: int, hi: int) -> Numbers:
        """Like `rows_at`, for positions within a range of rows.

        Faster, because only the starts of these rows are read.
        """
        if self.starts is None:
            return places.astype(np.int64)
        return np.asarray(np.searchsorted(self.starts[lo:hi], places, "right") + (lo - 1), np.int64)

    def value_range(self, lo: int, hi: int) -> tuple[int, int]:
        """Returns the starts and ends of the values of a range of rows."""
        return (lo, hi) if self.starts is None else (int(self.starts[lo]), int(self.starts[hi]))

    def value_bounds(self, rows: Numbers) -> tuple[Array, Array]:
        """Returns the starts and ends of the values of each given row."""
        return (rows, rows + 1) if self.starts is None else (self.starts[rows], self.starts[rows + 1])

    @cached_property
    def has_several(self) -> bool:
        """Whether a row of a text column may have several texts. Each text ends with a gap."""
        gap = self.texts.code(GAP)
        posted = 0 if gap is None else len(self.places_of(gap, gap + 1))
        # Posting lists omit gaps.
        return len(self.values) - len(self.places) + posted > int(np.count_nonzero(self.counts()))

    def repeats(self, begin: int, end: int) -> Repeats:
        """Returns the rows in which texts of a range of codes occur more than once."""
        found = self._repeats.get((begin, end))
        if found is None:
            found = repeats_in(np.sort(self.rows_at(self.places_of(begin, end))))
            if len(found.rows) <= _MOST_REPEATS:
                if len(self._repeats) >= _REPEATS_KEPT:
                    self._repeats.clear()
                self._repeats[begin, end] = found
        return found

    def counts(self) -> Array:
        """Returns the number of values of each row."""
        return np.ones(self.rows, np.int64) if self.starts is None else np.diff(self.starts.astype(np.int64))


def is_same(one: StoredColumn, other: StoredColumn) -> bool:
    """Returns whether two columns have the same texts."""
    if one.kind != other.kind or not (one.is_text and other.is_text):
        return False
    pairs = [
        (one.values, other.values),
        (one.texts.ends, other.texts.ends),
        (one.starts, other.starts),
        (one.present, other.present),
        (one.texts.raw, other.texts.raw),
    ]
    return all(
        mine is theirs if mine is None or theirs is None else np.array_equal(mine, theirs) for mine, theirs in pairs
    )


def code_places(codes: Array, count: int, without: int | None = None) -> tuple[Array, Array]:
    """Returns the positions of each code, and the end of each code's positions. One code may be left out."""
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes, minlength=count).astype(np.int64)
    if without is not None:
        first = int(counts[:without].sum())
        order = np.delete(order, np.s_[first : first + int(counts[without])])
        counts[without] = 0
    return narrow(order), narrow(np.cumsum(counts))


class Blocks(msgspec.Struct, frozen=True):
    """Statistics of each block of rows of a column."""

    lows: Array
    highs: Array
    counts: Array
    """The number of rows with a value. If it is 0, the minimum and maximum are undefined."""
    rows: Array


def block_bounds(rows: int, block_rows: int) -> Numbers:
    """Returns the first row of each block, and the end of the last one."""
    return np.append(np.arange(0, rows, block_rows, dtype=np.int64), rows)


def measure_blocks(column: StoredColumn, block_rows: int) -> Blocks:
    bounds = block_bounds(column.rows, block_rows)
    value_bounds = bounds if column.starts is None else column.starts[bounds].astype(np.int64)
    size = len(bounds) - 1
    lows, highs = np.zeros(size, column.values.dtype), np.zeros(size, column.values.dtype)
    filled = np.flatnonzero(np.diff(value_bounds))
    if len(filled):
        lows[filled] = np.minimum.reduceat(column.values, value_bounds[filled])
        highs[filled] = np.maximum.reduceat(column.values, value_bounds[filled])
    has = np.add.reduceat(column.counts() > 0, bounds[:-1]) if size else np.zeros(0, np.int64)
    return Blocks(lows, highs, has.astype(np.uint32), np.diff(bounds))


def write_column(writer: SectionWriter, prefix: str, column: StoredColumn, block_rows: int) -> FieldHead:
    """Adds the sections of a column."""
    writer.add(f"{prefix}/values", column.values)
    for name, array in (("starts", column.starts), ("present", column.present)):
        if array is not None:
            writer.add(f"{prefix}/{name}", array)
    if column.is_text:
        writer.add(f"{prefix}/texts", column.texts.raw)
        writer.add(f"{prefix}/ends", column.texts.ends)
        writer.add(f"{prefix}/places", column.places)
        writer.add(f"{prefix}/stops", column.stops)
    nulls = int(np.count_nonzero(column.counts() == 0))
    head = FieldHead(kind=column.kind, values=len(column.values), nulls=nulls, distinct=_distinct(column))
    if column.kind == "text":
        return head
    blocks = measure_blocks(column, block_rows)
    writer.add(f"{prefix}/lows", blocks.lows)
    writer.add(f"{prefix}/highs", blocks.highs)
    writer.add(f"{prefix}/counts", blocks.counts)
    order = value_order(column)
    if order is not None:
        writer.add(f"{prefix}/order", order)
    if not len(column.values):
        return head
    low, high = column.values.min().item(), column.values.max().item()
    if column.is_text:
        low, high = column.texts[low], column.texts[high]
    return msgspec.structs.replace(head, low=low, high=high)


def value_order(column: StoredColumn) -> Array | None:
    """Returns the rows sorted by value, rows without a value last.

    None if a row has several values, or if the rows or the positions of texts are in this order already.
    """
    counts = column.counts()
    if column.is_text or not column.rows or int(counts.max()) > 1:
        return None
    values = column.values
    if len(values) == column.rows and bool((values[1:] >= values[:-1]).all()):
        return None
    order = np.argsort(_narrowed(values), kind="stable")
    if len(values) < column.rows:
        order = np.concatenate((np.flatnonzero(counts)[order], np.flatnonzero(counts == 0)))
    return narrow(order)


def _narrowed(values: Array) -> Array:
    """Returns numbers of a small range as small integers, which numpy sorts by counting."""
    if values.dtype.kind != "i" or not len(values):
        return values
    low, high = int(values.min()), int(values.max())
    return (values - low).astype(np.uint16) if high - low < 1 << 16 else values


def _distinct(column: StoredColumn) -> int:
    return len(column.texts) if column.is_text else len(np.unique(column.values))


def read_column(file: SectionFile, prefix: str, kind: str, rows: int) -> StoredColumn:
    texts = None
    if f"{prefix}/ends" in file:
        texts = MappedTexts(file.array(f"{prefix}/texts"), file.array(f"{prefix}/ends"))
    return StoredColumn(
        kind,
        rows,
        file.array(f"{prefix}/values"),
        file.array_if_any(f"{prefix}/starts"),
        file.array_if_any(f"{prefix}/present"),
        texts,
        file.array_if_any(f"{prefix}/places"),
        file.array_if_any(f"{prefix}/stops"),
    )


def read_blocks(file: SectionFile, prefix: str, rows: int, block_rows: int) -> Blocks:
    bounds = block_bounds(rows, block_rows)
    return Blocks(
        file.array(f"{prefix}/lows"), file.array(f"{prefix}/highs"), file.array(f"{prefix}/counts"), np.diff(bounds)
    )


# Index plans: digests of all inputs that determine the contents of a column.
#
# Two columns with the same digest were extracted alike, so an index file built for an earlier description of its stream
# still serves queries whose fields have not changed. All digests together are a plan, and the digest of the plan is its
# generation. Index files of another generation are rebuilt, and serve such queries until then.

EXTRACTION: Final = 1
"""The version of the functions that extract, tokenise and normalise. Increment it when their results change."""

_READ_AS: Final = {"bool": "bool in any case"}
"""Kinds whose extraction changed since `EXTRACTION` was last incremented."""

ROLLUPS: Final = 2
"""The version of the stored form of rollups. Rollups of another version are not read, and are rebuilt with their index
files.
"""

_encode_identity = msgspec.msgpack.Encoder(order="sorted").encode


def _digest(*parts: Any) -> str:
    return xxh3_128_hexdigest(_encode_identity([EXTRACTION, *parts]))


class IndexPlan(msgspec.Struct, frozen=True):
    """The columns of a stream's index file, each with its digest."""

    fields: dict[str, str]
    rollups: dict[str, str]
    sums: dict[str, str]
    """The digests of entries that are summaries, by `rollup/measure`."""

    @property
    def generation(self) -> str:
        return _digest(self.fields, self.rollups, self.sums)


def plan_of(registry: Registry) -> IndexPlan:
    config = registry.search_config
    if config is None:
        return IndexPlan({}, {}, {})
    version = registry.current_version
    promotion = _promotion(registry)
    fields = {name: _field_digest(field, version, promotion) for name, field in config.fields.items()}
    rollups, sums = {}, {}
    for name, rollup in config.rollups.items():
        looked_at = _rollup_fields(rollup, config, fields)
        rollups[name] = _digest(ROLLUPS, rollup, config.aliases, config.default_fields, looked_at)
        for measure_name, measure in rollup.measures.items():
            if isinstance(measure, SummaryParts):
                sums[f"{name}/{measure_name}"] = _digest(measure, promotion)
    return IndexPlan(fields, rollups, sums)


def _promotion(registry: Registry) -> str:
    """Entries of the current version are used as written, so its name does not matter."""
    if registry.current_version <= 1:
        return ""
    return _digest([(version.boundary, version.lens, version.schema) for version in registry.versions])


def _field_digest(field: Field, version: int, promotion: str) -> str:
    normalizer = None if field.normalizer is UNSET else field.normalizer
    analyzer = None if field.analyzer is UNSET else field.analyzer
    read_as = _READ_AS.get(field.kind, field.kind)
    return _digest(read_as, normalizer, analyzer, field.pointer_for(version), promotion)


def _rollup_fields(rollup: Rollup, config: SearchConfig, digests: dict[str, str]) -> dict[str, str]:
    return {name: digests[name] for name in sorted(fields_of_rollup(rollup, config))}


def fields_of_rollup(rollup: Rollup, config: SearchConfig) -> set[str]:
    """The fields that a rollup reads."""
    needed = {rollup.timestamp_field, *rollup.dimensions}
    includes = [rollup.include]
    for measure in rollup.measures.values():
        if isinstance(measure, Summary):
            needed.add(measure.field)
        elif isinstance(measure, Count):
            includes.append(measure.include)
    for include in includes:
        if include is not UNSET:
            needed.update(fields_of(bind_search(include, config).predicate))
    return needed


class IndexNeeds(msgspec.Struct, frozen=True):
    """The columns that a query needs, each with its required digest."""

    fields: dict[str, str] = {}
    sums: dict[str, str] = {}

    def are_met(self, plan: IndexPlan) -> bool:
        return all(plan.fields.get(name) == digest for name, digest in self.fields.items()) and all(
            plan.sums.get(name) == digest for name, digest in self.sums.items()
        )


def needs_of_search(plan: IndexPlan, predicate: Predicate, sorted_by: tuple[str, ...]) -> IndexNeeds:
    return IndexNeeds({name: plan.fields[name] for name in (*fields_of(predicate), *sorted_by)})


def needs_of_aggregation(plan: IndexPlan, ask: Aggregation) -> IndexNeeds:
    fields = fields_of_rollup(ask.rollup, ask.config) | set(fields_of(ask.predicate))
    parts = [name for name, measure in ask.rollup.measures.items() if isinstance(measure, SummaryParts)]
    # Index files omit summaries that no rollup declares.
    sums = {f"{ask.name}/{name}": plan.sums.get(f"{ask.name}/{name}", "nowhere") for name in parts}
    return IndexNeeds({name: plan.fields[name] for name in sorted(fields)}, sums)
