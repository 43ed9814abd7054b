"""Column store of the memory index: append-only columns, dictionaries and the inverted index of words.

Column filling: all values of a field at once if they have one type, otherwise one by one.

Both paths store the same values. The first takes a tenth of the time, and most fields of most entries use it.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from itertools import chain, compress, filterfalse
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np
from msgspec import UNSET
from msgspec.structs import astuple
from numpy.typing import DTypeLike, NDArray

from topics.schema.documents import MISSING, decode, decoder_for, finder, finite, has_extreme_numbers
from topics.schema.search_fields import Binding, Field
from topics.search.query.field_values import (
    GAP,
    NORMALIZERS,
    Codes,
    Column,
    FieldValues,
    Mask,
    Numbers,
    Repeats,
    Snapshot,
    TextColumn,
    WordsColumn,
    ranges,
    reader,
    repeats_in,
    words_by_line,
)

# Growable arrays.

_FIRST_ROOM = 64


class Growing:
    """An array with spare capacity. Snapshots stay valid and unchanged while it grows."""

    __slots__ = ("_room", "count")

    def __init__(self, kind: DTypeLike) -> None:
        self._room: NDArray[Any] = np.empty(_FIRST_ROOM, kind)
        self.count = 0

    def extend(self, values: Sequence[Any] | NDArray[Any]) -> None:
        end = self.count + len(values)
        if end > len(self._room):
            larger = np.empty(max(end, 2 * len(self._room)), self._room.dtype)
            larger[: self.count] = self._room[: self.count]
            self._room = larger
        self._room[self.count : end] = values
        self.count = end

    @property
    def filled(self) -> NDArray[Any]:
        return self._room[: self.count]

    @property
    def memory_bytes(self) -> int:
        return int(self._room.nbytes)


# Texts as numbers: each distinct text of a column has a code, in the order of first occurrence.

_TEXT_BYTES: Final = 160
"""The overhead of a short text in a dictionary, in bytes."""
RUN_TEXTS: Final = 16_384
_RUNS_AT_ONCE: Final = 8
"""The number of texts sorted for one query, because other queries wait meanwhile.

With a scan of the rest of a million texts this takes about 150 ms.
"""


RANKED_TEXTS: Final = RUN_TEXTS * _RUNS_AT_ONCE
"""The number of texts up to which a dictionary is sorted entirely."""


class Run(NamedTuple):
    """Sorted texts, and the code of each."""

    texts: list[str]
    codes: Codes


class Dictionary:
    """The codes of texts, with sorted runs to find texts with a common prefix.

    Sorting a million texts takes seconds, so each query sorts one more run, and unsorted texts are compared one by one.
    Only a query that is sorted by a field with several values sorts all texts.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}
        self._runs: list[Run] = []
        self._sorted = 0
        """The number of texts in runs; these are the first ones."""
        self._ranks: Numbers = np.empty(0, np.int64)
        self._chars = 0

    def __len__(self) -> int:
        return len(self.texts)

    def encode(self, texts: Sequence[str]) -> Codes:
        """Returns the codes of texts. New texts get the next codes, in one step."""
        codes, count = self._codes, len(texts)
        try:
            return np.fromiter(map(codes.__getitem__, texts), np.int32, count)
        except KeyError:
            new = list(filterfalse(codes.__contains__, dict.fromkeys(texts)))
            codes.update(zip(new, range(len(codes), len(codes) + len(new)), strict=True))
            self.texts += new
            self._chars += sum(map(len, new))
        return np.fromiter(map(codes.__getitem__, texts), np.int32, count)

    def code(self, text: str) -> int | None:
        return self._codes.get(text)

    def _sort_all(self) -> Run:
        """Returns all texts as one run."""
        if self._sorted < len(self.texts) or len(self._runs) != 1:
            ordered = [text for run in self._runs for text in run.texts] + self.texts[self._sorted :]
            # Runs are sorted already, which this sort exploits.
            ordered.sort()
            codes = np.fromiter(map(self._codes.__getitem__, ordered), np.int32, len(ordered))
            self._runs, self._sorted = [Run(ordered, codes)], len(ordered)
        return self._runs[0]

    def _sort_some(self) -> list[str]:
        """Sorts some of the texts that are in no run. Returns those that are still in none."""
        texts = self.texts
        for _ in range(_RUNS_AT_ONCE):
            end = self._sorted + RUN_TEXTS
            if end > len(texts):
                break
            codes = sorted(range(self._sorted, end), key=texts.__getitem__)
            self._runs.append(Run([texts[code] for code in codes], np.array(codes, np.int32)))
            self._sorted = end
        return texts[self._sorted :]

    def ordered(self) -> Sequence[str]:
        """Returns all texts, sorted."""
        return self._sort_all().texts

    def ranks(self) -> Numbers:
        """Returns twice the rank of the text of each code."""
        run = self._sort_all()
        if len(self._ranks) != len(run.texts):
            ranks = np.empty(len(run.texts), np.int64)
            ranks[run.codes] = np.arange(0, 2 * len(run.texts), 2)
            self._ranks = ranks
        return self._ranks

    def rank(self, text: str) -> int:
        """Returns the rank of a text; a value between two ranks if it has no code."""
        texts = self._sort_all().texts
        place = bisect_left(texts, text)
        return 2 * place if place < len(texts) and texts[place] == text else 2 * place - 1

    @property
    def is_ranked(self) -> bool:
        return len(self.texts) <= RANKED_TEXTS

    def ranked(self, codes: NDArray[Any]) -> Numbers:
        ranks: Numbers = self.ranks()[codes]
        return ranks

    def begin_with(self, prefix: str, codes: NDArray[Any]) -> Mask:
        mask: Mask = self.having_prefix(prefix)[codes]
        return mask

    def contain(self, part: str, codes: NDArray[Any]) -> Mask:
        mask: Mask = self.having_part(part)[codes]
        return mask

    def having_prefix(self, prefix: str) -> Mask:
        """Returns for each code whether its text has this prefix."""
        rest = self._sort_some()
        mask = np.zeros(len(self.texts), np.bool_)
        for texts, codes in self._runs:
            begin = bisect_left(texts, prefix)
            end = bisect_left(texts, True, begin, key=lambda text: not text.startswith(prefix))
            mask[codes[begin:end]] = True
        mask[self._sorted :] = [text.startswith(prefix) for text in rest]
        return mask

    def come_behind(self, text: str, codes: NDArray[Any]) -> Mask:
        mask: Mask = self.behind(text)[codes]
        return mask

    def behind(self, text: str) -> Mask:
        """Returns for each code whether its text sorts after this one."""
        rest = self._sort_some()
        mask = np.zeros(len(self.texts), np.bool_)
        for texts, codes in self._runs:
            mask[codes[bisect_right(texts, text) :]] = True
        mask[self._sorted :] = [other > text for other in rest]
        return mask

    def first_among(self, codes: NDArray[Any], size: int, ascending: bool) -> Codes:
        rest = self._sort_some()
        requested = np.zeros(len(self.texts), np.bool_)
        requested[codes] = True
        found: list[str] = []
        for texts, in_order in self._runs:
            places = np.flatnonzero(requested[in_order])
            found += [texts[place] for place in (places[:size] if ascending else places[-size:]).tolist()]
        few = heapq.nsmallest if ascending else heapq.nlargest
        found += few(size, compress(rest, requested[self._sorted :].tolist()))
        found.sort(reverse=not ascending)
        return np.fromiter(map(self._codes.__getitem__, found[:size]), np.int32)

    def having_part(self, part: str) -> Mask:
        """Returns for each code whether its text contains this one."""
        return np.fromiter((part in text for text in self.texts), np.bool_, len(self.texts))

    def first_behind(self, text: str | None, live: Mask, limit: int) -> list[str]:
        """Returns the first texts after the given one, among those whose codes are alive."""
        rest = self._sort_some()
        found: list[str] = []
        for texts, codes in self._runs:
            begin, requested = 0 if text is None else bisect_right(texts, text), limit
            while requested and begin < len(texts):
                # Most are alive, so one pass is usually enough.
                alive = np.flatnonzero(live[codes[begin : begin + limit]])[:requested].tolist()
                found += [texts[begin + place] for place in alive]
                begin, requested = begin + limit, requested - len(alive)
        are_alive = live[self._sorted :].tolist()
        found += [
            other for other, is_live in zip(rest, are_alive, strict=True) if is_live and (text is None or other > text)
        ]
        return sorted(found)[:limit]

    @property
    def memory_bytes(self) -> int:
        return self._chars + _TEXT_BYTES * len(self.texts)


POSTING_WORDS = 1 << 16


class GrowingColumn(Column):
    """A column of the memory index; entries are appended to it."""

    def __init__(self, kind: Any) -> None:
        self.values = Growing(kind)
        self._rows = Growing(np.int32)
        self.present = Growing(np.bool_)
        self.is_single = True
        """Whether every row so far has exactly one value."""

    def extend(self, fields: Sequence[FieldValues]) -> None:
        begin = self.present.count
        self.present.extend([field is not None for field in fields])
        counts = [len(field) if field else 0 for field in fields]
        self.values.extend(self.encode(list(chain.from_iterable(filter(None, fields)))))
        self._rows.extend(np.repeat(np.arange(begin, begin + len(fields), dtype=np.int32), counts))
        self.is_single = self.is_single and counts.count(1) == len(counts)

    def extend_values(self, values: NDArray[Any], rows: Numbers, present: Mask) -> None:
        """Appends one row for each element of `present`. The rows `rows`, counted from 0, have one value each."""
        begin = self.present.count
        self.present.extend(present)
        self.values.extend(values)
        self._rows.extend(rows + begin)
        self.is_single = self.is_single and len(rows) == len(present)

    def encode(self, values: list[Any]) -> Sequence[Any] | NDArray[Any]:
        return values

    def snapshot(self, count: int) -> Snapshot:
        _, end = self.places_between(0, count)
        return Snapshot(self.values.filled[:end], None if self.is_single else self.rows[:end], count)

    def places_between(self, lo: int, hi: int) -> tuple[int, int]:
        """Returns the range of the values of the rows from `lo` to before `hi`."""
        if self.is_single:
            return lo, hi
        # Converted to the type of the rows; otherwise numpy would convert the whole array.
        begin, end = self.rows.searchsorted(np.array((lo, hi), np.int32)).tolist()
        return begin, end

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.filled.dtype

    def has_field(self, count: int) -> Mask:
        return self.present.filled[:count]

    @property
    def rows(self) -> NDArray[np.int32]:
        """Returns the row of each value."""
        return self._rows.filled

    @property
    def memory_bytes(self) -> int:
        return self.values.memory_bytes + self._rows.memory_bytes + self.present.memory_bytes


class Keywords(GrowingColumn, TextColumn):
    """A column of texts."""

    dictionary: Dictionary

    def __init__(self) -> None:
        super().__init__(np.int32)
        self.dictionary = Dictionary()

    def encode(self, values: list[Any]) -> Sequence[Any] | NDArray[Any]:
        return self.dictionary.encode(values)

    @property
    def memory_bytes(self) -> int:
        return super().memory_bytes + self.dictionary.memory_bytes


_KNOWN_SHARE: Final = 4
_KNOWN_LEAST: Final = 1 << 16
"""The maximum number of cached positions of queried words, plus one for each this many words of the column."""


class _Word(NamedTuple):
    """The occurrences of a word among the values up to `end`."""

    end: int
    places: NDArray[np.int64]
    repeats: Repeats

    @property
    def size(self) -> int:
        return len(self.places) + 2 * len(self.repeats.rows)


class WordColumn(Keywords, WordsColumn):
    """A column of words with postings.

    Postings are built for a few thousand words at a time and never change; later words are compared one by one. A
    column that is only written to a file has none.
    """

    has_postings = True

    def __init__(self) -> None:
        super().__init__()
        self._postings: list[tuple[NDArray[np.int32], NDArray[np.int64]]] = []
        self._lengths = Growing(np.int32)
        self._has_several = False
        self._known: dict[int, _Word] = {}
        self._known_places = 0

    @property
    def has_several(self) -> bool:
        return self._has_several

    def extend(self, fields: Sequence[FieldValues]) -> None:
        self._has_several = self._has_several or any([field is not None and len(field) > 1 for field in fields])
        super().extend([None if field is None else _with_gaps(field) for field in fields])
        self._lengths.extend([sum(map(len, field or ())) for field in fields])
        self._post()

    def extend_texts(self, texts: list[str], rows: Numbers, present: Mask) -> None:
        """Appends one row for each element of `present`; some have one text each. Equal texts are tokenized once."""
        distinct = dict.fromkeys(texts)
        if 2 * len(distinct) > len(texts):
            codes, lengths = self._words_of(texts)
        else:
            codes, lengths = self._words_of(list(distinct))
            place_of = dict(zip(distinct, range(len(distinct)), strict=True))
            chosen = np.fromiter(map(place_of.__getitem__, texts), np.int64, len(texts))
            begins = np.cumsum(lengths) - lengths
            lengths = lengths[chosen]
            codes = codes[ranges(begins[chosen], lengths)]
        begin = self.present.count
        self.present.extend(present)
        self.values.extend(codes)
        self._rows.extend(np.repeat(rows + begin, lengths))
        words = np.zeros(len(present), np.int32)
        words[rows] = lengths - 1
        self._lengths.extend(words)
        self.is_single = self.is_single and len(codes) == len(texts) == len(present)
        self._post()

    def _words_of(self, texts: list[str]) -> tuple[Codes, Numbers]:
        """Returns the codes of the words of texts, with a gap after each text, and the number of codes of each text."""
        if not texts:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        joined = GAP.join(texts)
        if joined.count(GAP) >= len(texts):
            # No word contains a gap, so it can be replaced by a blank.
            joined = GAP.join([text.replace(GAP, " ") for text in texts])
        found = words_by_line(joined)
        for words in found:
            words.append(GAP)
        return (
            self.dictionary.encode(list(chain.from_iterable(found))),
            np.fromiter(map(len, found), np.int64, len(found)),
        )

    def _post(self) -> None:
        while self.has_postings and self.values.count - len(self._postings) * POSTING_WORDS >= POSTING_WORDS:
            begin = len(self._postings) * POSTING_WORDS
            codes = self.values.filled[begin : begin + POSTING_WORDS]
            order = np.argsort(codes, kind="stable")
            self._postings.append((codes[order], order + begin))

    def places(self, code: int, first: int = 0, end: int | None = None) -> NDArray[np.int64]:
        """Returns the positions of a word, ascending, optionally only from `first` to before `end`."""
        return self._word(code).places if first == 0 and end is None else self._find_places(code, first, end)

    def repeats(self, code: int, count: int) -> Repeats:
        return self._word(code).repeats

    def _word(self, code: int) -> "_Word":
        """Returns the cached postings of a word. A repeated lookup only searches the rows added since."""
        known, end = self._known.get(code), self.values.count
        if known is not None and known.end == end:
            return known
        first = 0 if known is None else known.end
        places = self._find_places(code, first, None)
        repeats = repeats_in(self.rows[places])
        if known is not None:
            # Rows are appended whole, so no row has words on both sides.
            places = np.concatenate((known.places, places))
            repeats = Repeats(*map(np.concatenate, zip(known.repeats, repeats, strict=True)))
            self._known_places -= known.size
        word = _Word(end, places, repeats)
        if self._known_places + word.size > end // _KNOWN_SHARE + _KNOWN_LEAST:
            self._known.clear()
            self._known_places = 0
        if word.size <= end // _KNOWN_SHARE + _KNOWN_LEAST:
            self._known[code] = word
            self._known_places += word.size
        else:
            self._known.pop(code, None)
        return word

    def _find_places(self, code: int, first: int, end: int | None) -> NDArray[np.int64]:
        found = []
        words = self.values.filled[:end]
        # Converted to the type of the codes; otherwise numpy would convert the whole array.
        bounds = np.array((code, code + 1), np.int32)
        posted = first // POSTING_WORDS
        for codes, places in self._postings[posted : -(-len(words) // POSTING_WORDS)]:
            begin, behind = codes.searchsorted(bounds)
            if begin < behind:
                found.append(places[begin:behind])
        behind = max(len(self._postings) * POSTING_WORDS, first)
        found.append(np.flatnonzero(words[behind:] == code) + behind)
        every = np.concatenate(found)
        # The first and the last posting list may have rows outside the range.
        return every[slice(*every.searchsorted((first, len(words))))]

    def beginning(self, prefix: str) -> NDArray[np.int64]:
        return np.flatnonzero(self.dictionary.begin_with(prefix, self.values.filled))

    def lengths(self, count: int) -> NDArray[np.int32]:
        return self._lengths.filled[:count]

    @property
    def memory_bytes(self) -> int:
        postings = 12 * POSTING_WORDS * len(self._postings) + 8 * self._known_places
        return super().memory_bytes + self._lengths.memory_bytes + postings


def _with_gaps(field: tuple[Any, ...]) -> tuple[str, ...]:
    return (*field[0], GAP) if len(field) == 1 else tuple(word for text in field for word in (*text, GAP))


def column_for(field: Field) -> GrowingColumn:
    if field.kind == "text":
        return WordColumn()
    if field.kind == "keyword":
        return Keywords()
    return GrowingColumn({"integer": np.int64, "date": np.int64, "float": np.float64, "bool": np.int8}[field.kind])


_ABSENT: Final = frozenset((type(None), type(MISSING)))
_GIVEN: Final = frozenset((str, int, float, bool))
"""All that is taken at once, besides nothing."""
Encode = Callable[[list[Any]], NDArray[Any] | None]
"""Converts raw values of one type to column values; None if some cannot be converted."""


class Filler:
    """Fills the column of a field."""

    def __init__(self, field: Field, column: GrowingColumn | None = None) -> None:
        self.column = column_for(field) if column is None else column
        self._read = reader(field)
        self._kinds, self._encode = _encoder(field, self.column)

    def fill(self, found: list[Any]) -> None:
        """Adds the values of the next entries."""
        kinds = set(map(type, found))
        if not kinds - _ABSENT <= self._kinds or not self._fill_at_once(found, kinds):
            self.column.extend([self._read(value) for value in found])

    def _fill_at_once(self, found: list[Any], kinds: set[type]) -> bool:
        column, count = self.column, len(found)
        values, rows, present = found, np.arange(count), np.ones(count, np.bool_)
        if type(MISSING) in kinds:
            present = np.fromiter((value is not MISSING for value in found), np.bool_, count)
        if kinds & _ABSENT:
            has = np.fromiter(map(_GIVEN.__contains__, map(type, found)), np.bool_, count)
            values, rows = list(compress(found, has)), np.flatnonzero(has)
        if isinstance(column, WordColumn):
            column.extend_texts(values, rows, present)
            return True
        encoded = self._encode(values)
        if encoded is None:
            return False
        column.extend_values(encoded, rows, present)
        return True


def is_plain_keyword(field: Field) -> bool:
    """Returns whether the texts of a field are used unchanged."""
    return field.kind == "keyword" and (field.normalizer is UNSET or field.normalizer == "identity_v1")


def _encoder(field: Field, column: GrowingColumn) -> tuple[frozenset[type], Encode]:
    """Returns the value types that can be converted in one step, and their conversions."""
    if isinstance(column, Keywords):
        dictionary = column.dictionary
        if field.kind == "text" or field.normalizer is UNSET or is_plain_keyword(field):
            return frozenset((str,)), dictionary.encode
        normalise = NORMALIZERS[field.normalizer]
        return frozenset((str,)), lambda values: dictionary.encode(list(map(normalise, values)))
    return _TYPED[field.kind]


def _integers(values: list[Any]) -> NDArray[Any] | None:
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return None


def _floats(values: list[Any]) -> NDArray[Any] | None:
    try:
        numbers = np.array(values, np.float64)
    except OverflowError:
        return None
    # As for single values: adding 0 turns -0 into 0.
    return numbers + 0.0 if np.isfinite(numbers).all() else None


def _dates(values: list[Any]) -> NDArray[Any] | None:
    kinds = set(map(type, values))
    if kinds == {str}:
        return calendar_ms(values)
    return _integers(values) if kinds <= {int} else None


_DIGITS: Final = (0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18)
_SIGNS: Final = ((4, "-"), (7, "-"), (10, "T"), (13, ":"), (16, ":"))


def calendar_ms(texts: list[str]) -> Numbers | None:
    """Parses UTC dates that all have seconds, or all have milliseconds.

    Returns milliseconds since 1970; None if a date has another form or is invalid.
    """
    lengths = set(map(len, texts))
    joined = "".join(texts)
    if lengths not in ({24}, {20}) or not joined.isascii():
        return None
    (length,) = lengths
    chars = np.frombuffer(joined.encode(), np.uint8).reshape(len(texts), length)
    digits = _DIGITS if length == 20 else (*_DIGITS, 20, 21, 22)
    signs = [*_SIGNS, (length - 1, "Z")] + ([(19, ".")] if length == 24 else [])
    numbers = chars[:, digits] - ord("0")
    # Characters below "0" wrap around to values above 9 in this unsigned subtraction.
    if (numbers > 9).any() or any((chars[:, place] != ord(sign)).any() for place, sign in signs):
        return None
    if not numbers[:, :4].any(axis=1).all():
        return None
    try:
        moments = np.ascontiguousarray(chars[:, : length - 1]).view(f"S{length - 1}").ravel().astype("datetime64[ms]")
    except ValueError:
        return None
    return moments.astype(np.int64)


_TYPED: Final[dict[str, tuple[frozenset[type], Encode]]] = {
    "integer": (frozenset((int,)), _integers),
    "float": (frozenset((int, float)), _floats),
    "date": (frozenset((int, str)), _dates),
    "bool": (frozenset((bool,)), lambda values: np.array(values, np.int8)),
}


# Entries that are added together, processed member by member instead of entry by entry.
#
# If a description needs only members of objects, entries are decoded into structs with just these members, so the
# decoder skips all others.

Pointer = tuple[str, ...]
"""The tokens of a JSON pointer."""


class EntryBatch(Protocol):
    numbers: Sequence[int]
    keys: Sequence[str | None]

    def found(self, pointer: Pointer) -> list[Any]:
        """Returns the value at a pointer in each entry, or `MISSING`."""
        ...

    def values(self) -> Sequence[Any]:
        """Returns the whole entries. Raises TypeError if they were decoded in part."""
        ...


class PlainBatch:
    """Entries that are decoded already."""

    def __init__(self, numbers: Sequence[int], values: Sequence[Any], keys: Sequence[str | None]) -> None:
        self.numbers = numbers
        self.keys = keys
        self._values = values

    def found(self, pointer: Pointer) -> list[Any]:
        return list(map(finder(pointer), self._values))

    def values(self) -> Sequence[Any]:
        return self._values


class _StructBatch:
    def __init__(
        self,
        numbers: Sequence[int],
        structs: list[Any],
        keys: Sequence[str | None],
        places: dict[str, int],
    ) -> None:
        self.numbers = numbers
        self.keys = keys
        self._places = places
        # Takes a third of the time of reading each member of each entry.
        self._members = list(chain.from_iterable(map(astuple, structs)))

    def found(self, pointer: Pointer) -> list[Any]:
        members = self._members[self._places[pointer[0]] :: len(self._places)]
        if len(pointer) == 1:
            return members
        # A missing value is neither an object nor an array, so it has no members.
        return list(map(finder(pointer[1:]), members))

    def values(self) -> Sequence[Any]:
        raise TypeError("these entries were decoded in part")


class Decoder:
    """Decodes stored entries into batches."""

    def __init__(self, pointers: Iterable[Pointer], whole: bool = False) -> None:
        """`pointers` are all requested fields; entries are decoded `whole` for callers that need other fields."""
        names = list(dict.fromkeys(pointer[0] for pointer in pointers if pointer))
        # A pointer to the whole entry, and names that a struct cannot have, need whole entries.
        can_have = not whole and all(pointers) and all(_is_plain(name) for name in names)
        self._places = {name: place for place, name in enumerate(names)}
        self._decode_all: Callable[[bytes], list[Any]] | None = None
        self._decode_extreme: Callable[[bytes], list[Any]] | None = None
        if can_have:
            renamed = {f"member_{place}": name for place, name in enumerate(names)}
            fields: list[Any] = [(attribute, Any, MISSING) for attribute in renamed]
            struct = msgspec.defstruct("Entry", fields, rename=renamed, gc=False)
            self._decode_all = msgspec.json.Decoder(list[struct]).decode  # type: ignore[valid-type]
            extreme = msgspec.json.Decoder(list[struct], float_hook=finite)  # type: ignore[valid-type]
            self._decode_extreme = extreme.decode

    def batch(
        self, numbers: Sequence[int], raws: Sequence[bytes | memoryview], keys: Sequence[str | None]
    ) -> EntryBatch:
        if self._decode_all is not None and self._decode_extreme is not None:
            text = b"[%b]" % b",".join(raws)
            decode_all = self._decode_extreme if has_extreme_numbers(text) else self._decode_all
            try:
                structs = decode_all(text)
                if len(structs) == len(raws):
                    return _StructBatch(numbers, structs, keys, self._places)
            except (ValueError, RecursionError):
                # An entry is not an object, or cannot be decoded.
                pass
        decode_one = decoder_for(raws)
        return PlainBatch(numbers, [read_value(raw, decode_one) for raw in raws], keys)


def read_value(raw: bytes | memoryview, decode: Callable[[bytes | memoryview], Any] = decode) -> Any:
    """Decodes an entry. An entry that is nested too deep to be decoded has no fields."""
    try:
        return decode(raw)
    except (ValueError, RecursionError):
        return None


def _is_plain(name: str) -> bool:
    return name.isprintable() and '"' not in name and "\\" not in name


# Routing keys as a column. A field that equals the key, such as an id, shares this column.

_KEY: Final = Field(kind="keyword", bindings=(Binding(version=1, json_pointer=""),))


class Keys:
    """The column of a field.

    It is shared with the routing keys while both have equal values in every entry, and separate afterwards.
    """

    def __init__(self, alike: list[Filler]) -> None:
        """`alike` are fields whose texts are used unchanged."""
        self._alike = alike
        """The fields that may still equal the keys; at most one after the first entries."""
        self._own: Filler | None = None
        self._shared: Filler | None = None

    @property
    def column(self) -> Keywords:
        filler = self._shared or self._own
        if filler is None:
            filler = self._own = Filler(_KEY)
        assert isinstance(filler.column, Keywords)
        return filler.column

    def compare(self, filler: Filler, found: list[Any], keys: list[Any]) -> None:
        """Inspects the values before a field is filled."""
        if self._shared is filler:
            if found != keys:
                self._own, self._shared = Filler(_KEY, deepcopy(filler.column)), None
        elif self._shared is None and self._own is None and filler in self._alike and keys and found == keys:
            self._shared = filler

    def fill(self, keys: list[Any]) -> None:
        if self._shared is None and (keys or self._own is not None):
            if self._own is None:
                self._own = Filler(_KEY)
            self._own.fill(keys)
