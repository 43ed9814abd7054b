"""Canonical values: the form in which a field of an entry and a value in a query are compared.

    keyword   a text, in the form of its normaliser
    text      its words
    integer   an int of 64 bits, from a whole number or its digits
    float     a finite float, from a number or a text that JSON would read as one; -0 is 0
    date      milliseconds since 1970, from ISO 8601 (UTC where no zone is named), a number or its digits
    bool      True or False, from the value or its name in any case

Any other value has no canonical value: it matches `has:` only.

Columns: one field of many entries, with one interface for all storage.

A column has the values of its field in the order of the entries, and for each value its row. Most fields have exactly
one value in each entry; then the values are the rows. Texts are codes of a dictionary. A column of words has the words
of its texts, with a gap behind each text, so that no phrase spans two texts.

There are two implementations: columns that grow as entries arrive (`topics.search.memory_index`) and columns mapped
from a file (`topics.search.file_index`). Filters, sorts and aggregations use the same interface for both, and so get
the same answers.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from topics.schema.documents import MISSING, finder, parse_pointer
from topics.schema.search_fields import Field, SearchConfig

# Words of texts and forms of keywords. Each has a name with a version, because what is indexed outlives the code.

# Letters and digits of any script: exactly the characters of the Unicode categories L and N.
_find_words = re.compile(r"[^\W_]+").findall


def unicode_word_v1(text: str) -> list[str]:
    """Returns the words of a text: maximal runs of letters and digits, in lower case."""
    return _find_words(text.lower())


_BLANKS: Final = {code: " " for code in range(128) if chr(code) != "\n" and not chr(code).isalnum()}


def words_by_line(text: str) -> list[list[str]]:
    """Returns the words of each line. Tokenizing many texts as lines of one costs a fraction of tokenizing each.

    Lower-casing gives the same result: the only letter with a special form at the end of a word also has it before a
    line break.
    """
    small = text.lower()
    if small.isascii():
        return _words_of_ascii(small)
    # One line in another script must not slow down the others.
    lines = small.split("\n")
    plain = iter(_words_of_ascii("\n".join(filter(str.isascii, lines))))
    return [next(plain) if line.isascii() else _find_words(line) for line in lines]


def _words_of_ascii(text: str) -> list[list[str]]:
    return list(map(str.split, text.translate(_BLANKS).split("\n")))


def lowercase_v1(text: str) -> str:
    return text.lower()


def identity_v1(text: str) -> str:
    return text


NORMALIZERS: dict[str, Callable[[str], str]] = {"identity_v1": identity_v1, "lowercase_v1": lowercase_v1}


Value = str | int | float | bool
"""For a text field one of its values as stored; `topics.search.query.field_values` splits it into words."""

_WHOLE = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
_NUMBER_CHARS_MAX = 400
_INT64: Final = 1 << 63
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_LAST_MS: Final = 253_402_300_799_999


def integer_of(value: object) -> int | None:
    if type(value) is int:
        number = value
    elif type(value) is float:
        if not value.is_integer():
            return None
        number = int(value)
    elif type(value) is str and _WHOLE.fullmatch(value) is not None:
        number = int(value)
    else:
        return None
    return number if -_INT64 <= number < _INT64 else None


def float_of(value: object) -> float | None:
    if type(value) is str:
        if len(value) > _NUMBER_CHARS_MAX or _NUMBER.fullmatch(value) is None:
            return None
    elif type(value) is not float and type(value) is not int:
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    # Adding 0 turns -0 into 0. A value whose difference with itself is not 0 is infinite or not a number.
    return number + 0.0 if number - number == 0.0 else None


def date_of(value: object) -> int | None:
    if type(value) is str:
        if value[4:5] == "-" and value[7:8] == "-":
            return _calendar_ms(value)
        if _WHOLE.fullmatch(value) is None:
            return None
        number = int(value)
    elif type(value) is int:
        number = value
    elif type(value) is float and value - value == 0.0:
        number = int(value // 1)
    else:
        return None
    return number if -_INT64 <= number < _INT64 else None


def _calendar_ms(text: str) -> int | None:
    """Cached, because consecutive entries have timestamps of the same minutes: it takes a third of the time."""
    if len(text) == 24 and text[16] == ":" and text[19] == "." and text[23] == "Z":
        second, fraction = text[17:19], text[20:23]
        if second.isdecimal() and fraction.isdecimal() and text.isascii() and second < "60":
            minute = _minute_ms(text[:16])
            return None if minute is None else minute + int(second) * 1000 + int(fraction)
    return _moment_ms(text)


@lru_cache(maxsize=4096)
def _minute_ms(text: str) -> int | None:
    return _moment_ms(text + "Z")


def _moment_ms(text: str) -> int | None:
    if text[10:11] not in ("", "T", "t", " "):
        return None
    try:
        # Python accepts an upper-case Z only.
        moment = datetime.fromisoformat(text if text[-1] != "z" else text[:-1] + "Z")
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // _MS
    except (ValueError, OverflowError):
        return None


_BOOLEANS: Final = {"true": True, "false": False}


def bool_of(value: object) -> bool | None:
    if type(value) is bool:
        return value
    if type(value) is str:
        return _BOOLEANS.get(value.lower())
    return None


def text_of(value: object) -> str | None:
    return value if type(value) is str else None


def canonical(field: Field) -> Callable[[object], Value | None]:
    """Returns a function that converts values of this field to canonical values."""
    if field.kind == "keyword":
        if field.normalizer is UNSET or field.normalizer == "identity_v1":
            return text_of
        normalise = NORMALIZERS[field.normalizer]
        return lambda value: normalise(value) if type(value) is str else None
    return _BY_KIND[field.kind]


_BY_KIND: Final[dict[str, Callable[[object], Value | None]]] = {
    "text": text_of,
    "integer": integer_of,
    "float": float_of,
    "date": date_of,
    "bool": bool_of,
}

_encode = msgspec.json.Encoder().encode


def number_json(number: int | float) -> int | float:
    """Returns a number in canonical form: without a decimal point if it is whole and exact."""
    if type(number) is int:
        return number
    return int(number) if type(number) is float and number.is_integer() and abs(number) < 1 << 53 else number


def shown(value: Value) -> str:
    """Returns a canonical value as a text, as groups are named."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return _encode(number_json(value)).decode()


@lru_cache(maxsize=4096)
def write_date(millis: int) -> str:
    """A date as ISO 8601, to the millisecond; clamped to years of four digits."""
    shifted = min(max(millis, -62_135_596_800_000), _LAST_MS)
    return (_EPOCH + timedelta(milliseconds=shifted)).isoformat(timespec="milliseconds")[:23] + "Z"


# Extraction of fields from entries, by the pointers of a search registry.
#
# A query reads the promoted entry with the binding of the newest version, whatever version the entry was written in. So
# a field has one pointer, and an entry is found under the new name of a member that a lens has renamed.

Words = tuple[str, ...]
FieldValues = tuple[Any, ...] | None
"""The canonical values of a field of an entry, in its order; `Words` of a text field. None if the field is absent, and
empty if it has no comparable value, such as null."""
Row = Sequence[FieldValues]
"""The values of the fields that a query needs of one entry, in the query's order."""

Extract = Callable[[object], FieldValues]


def find_field(field: Field, version: int) -> Callable[[object], object]:
    """Returns a function that returns the member of a field in an entry, or `MISSING`."""
    pointer = pointer_of(field, version)
    return (lambda _: MISSING) if pointer is None else finder(pointer)


def pointer_of(field: Field, version: int) -> tuple[str, ...] | None:
    """Returns the pointer of a field; None if the version does not have it."""
    pointer = field.pointer_for(version)
    return None if pointer is None else parse_pointer(pointer, "jsonPointer")


def extractor(field: Field, version: int) -> Extract:
    """Returns a function that returns the values of one field of an entry."""
    find, read = find_field(field, version), reader(field)
    return lambda entry: read(find(entry))


def reader(field: Field) -> Extract:
    """Returns a function that returns the values of a field from its member, or from `MISSING`."""
    if field.kind == "text":
        return _words
    canon = canonical(field)

    def read(found: object) -> FieldValues:
        if type(found) is not list:
            if found is MISSING:
                return None
            value = canon(found)
            return () if value is None else (value,)
        flat = flattened(found)
        return tuple(value for raw in flat if (value := canon(raw)) is not None) if flat else None

    return read


def _words(found: object) -> FieldValues:
    if type(found) is str:
        return (tuple(unicode_word_v1(found)),)
    if found is MISSING:
        return None
    flat = flattened(found) if type(found) is list else [found]
    return tuple(tuple(unicode_word_v1(raw)) for raw in flat if type(raw) is str) if flat else None


def flattened(found: list[Any]) -> list[object]:
    """Returns the elements of an array and of its nested arrays. Iterative, because the writer decides how deep an
    entry is nested."""
    flat: list[object] = []
    stack = [iter(found)]
    while stack:
        for element in stack[-1]:
            if type(element) is list:
                stack.append(iter(element))
                break
            flat.append(element)
        else:
            stack.pop()
    return flat


class Extractor:
    """Extracts the requested fields of entries, and has the place of each in a row."""

    def __init__(self, config: SearchConfig, version: int, names: Iterable[str]) -> None:
        requested = tuple(dict.fromkeys(names))
        self.places = {name: place for place, name in enumerate(requested)}
        self._extracts = tuple(extractor(config.fields[name], version) for name in requested)

    def row(self, entry: object) -> Row:
        return [extract(entry) for extract in self._extracts]


def declared_fields(config: SearchConfig, version: int) -> Callable[[object], dict[str, object]]:
    """Returns a function that returns the declared fields that an entry has."""
    finds = [(name, find_field(field, version)) for name, field in config.fields.items()]
    return lambda entry: {name: found for name, find in finds if (found := find(entry)) is not MISSING}


Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
Codes = NDArray[np.int32]

GAP = "\n"
"""Follows each text in a column of words. It is not a word."""


FEW = 16
"""If less than one of this many is requested they are looked up one by one, otherwise all are read."""


class Snapshot:
    """The values of the first rows of a column."""

    __slots__ = ("_rows", "count", "values")

    def __init__(self, values: NDArray[Any], rows: NDArray[Any] | None, count: int) -> None:
        self.values = values
        self._rows = rows
        self.count = count

    @property
    def rows(self) -> NDArray[Any] | None:
        """The row of each value; None if the values are the rows."""
        return self._rows

    @property
    def is_single(self) -> bool:
        """Whether the values are the rows."""
        return self._rows is None

    def rows_where(self, chosen: Mask) -> Mask:
        """Returns the rows that have a chosen value."""
        rows = self.rows
        if rows is None:
            return chosen
        mask = np.zeros(self.count, np.bool_)
        mask[rows[chosen]] = True
        return mask

    def rows_at(self, places: NDArray[Any]) -> Mask:
        """Returns the rows of the values at some places."""
        rows = self.rows
        mask = np.zeros(self.count, np.bool_)
        mask[places if rows is None else rows[places]] = True
        return mask

    def rows_of(self, places: NDArray[Any]) -> NDArray[Any]:
        """Returns the row of each of some values."""
        rows = self.rows
        return places if rows is None else rows[places]

    def counts_at(self, places: NDArray[Any]) -> Numbers:
        """Returns the number of the given places in each row."""
        rows = self.rows
        return np.bincount(places if rows is None else rows[places], minlength=self.count)

    def has_value(self) -> Mask:
        """Returns the rows with a value."""
        rows = self.rows
        mask = np.full(self.count, rows is None)
        if rows is not None:
            mask[rows] = True
        return mask

    def single(self) -> tuple[NDArray[Any], Mask, Mask]:
        """Returns one value for each row, whether the row has a value, and whether it has several."""
        rows = self.rows
        if rows is None:
            return self.values, np.ones(self.count, np.bool_), np.zeros(self.count, np.bool_)
        counts = np.bincount(rows, minlength=self.count)
        values = np.zeros(self.count, self.values.dtype)
        values[rows] = self.values
        return values, counts > 0, counts > 1

    def bounds_of(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """Returns the begin and end of the values of some rows."""
        owners = self.rows
        if owners is None:
            return rows, rows + 1
        if len(rows) * FEW > len(owners):
            counts = np.bincount(owners, minlength=self.count)
            ends = np.cumsum(counts)
            return (ends - counts)[rows], ends[rows]
        # Converted to the type of `owners`; otherwise all owners would be converted.
        requested = rows.astype(owners.dtype)
        return owners.searchsorted(requested), owners.searchsorted(requested, "right")

    def extreme(
        self, rows: Numbers, rank: Callable[[NDArray[Any]], NDArray[Any]], least: bool
    ) -> tuple[NDArray[Any], Mask]:
        """Returns the minimum or maximum ranked value of some rows, and which of them have one."""
        if self.is_single:
            return rank(self.values[rows]), np.ones(len(rows), np.bool_)
        begins, ends = self.bounds_of(rows)
        lengths = ends - begins
        has = lengths > 0
        if not len(rows) or lengths.max() <= 1:
            ranked = rank(self.values[begins[has]])
        else:
            every = rank(self.values[ranges(begins, lengths)])
            ranked = (np.minimum if least else np.maximum).reduceat(every, (np.cumsum(lengths) - lengths)[has])
        found = np.zeros(len(rows), ranked.dtype)
        found[has] = ranked
        return found, has


class Texts(Protocol):
    """A dictionary: the codes of the distinct texts of a column."""

    @property
    def texts(self) -> Sequence[str]:
        """The text of each code."""
        ...

    def __len__(self) -> int: ...

    def code(self, text: str) -> int | None: ...

    @property
    def is_ranked(self) -> bool:
        """Whether the ranks of all codes are available without sorting."""
        ...

    def rank(self, text: str) -> int:
        """Returns the rank of a text; a value between two ranks if it has no code."""
        ...

    def ranked(self, codes: NDArray[Any]) -> Numbers:
        """Returns the ranks of the texts of some codes; a smaller one sorts first."""
        ...

    def come_behind(self, text: str, codes: NDArray[Any]) -> Mask:
        """Returns which codes have a text that sorts behind this one."""
        ...

    def first_among(self, codes: NDArray[Any], size: int, ascending: bool) -> NDArray[Any]:
        """Returns the distinct codes with the first texts among some codes, in ascending or descending order."""
        ...

    def begin_with(self, prefix: str, codes: NDArray[Any]) -> Mask:
        """Returns which codes have a text with this prefix."""
        ...

    def contain(self, part: str, codes: NDArray[Any]) -> Mask:
        """Returns which codes have a text that contains this one."""
        ...


class Repeats(NamedTuple):
    """The rows in which a word occurs more than once, ascending, and the number of further occurrences."""

    rows: Numbers
    more: Numbers


def repeats_in(rows: NDArray[Any]) -> Repeats:
    """`rows` are ascending, with a row for each occurrence of the word."""
    again = rows[1:][rows[1:] == rows[:-1]].astype(np.int64)
    first = np.flatnonzero(np.append(True, again[1:] != again[:-1])) if len(again) else np.zeros(0, np.int64)
    return Repeats(again[first], np.diff(np.append(first, len(again))))


class Column(ABC):
    """The values of one field as numbers: typed values as themselves, texts as codes."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]: ...

    @abstractmethod
    def snapshot(self, count: int) -> Snapshot:
        """Returns the values of the first rows."""

    @abstractmethod
    def has_field(self, count: int) -> Mask:
        """Returns which of the first rows have the field, possibly as null."""


class TextColumn(Column):
    """A column of texts."""

    dictionary: Texts


class WordsColumn(TextColumn):
    """A column of the words of texts."""

    @property
    @abstractmethod
    def has_several(self) -> bool:
        """Whether a row may have several texts."""

    @abstractmethod
    def places(self, code: int) -> NDArray[Any]:
        """Returns the places of a word among all words, ascending."""

    def repeats(self, code: int, count: int) -> Repeats:
        """Returns the rows, among the first ones, in which a word occurs more than once."""
        return repeats_in(self.snapshot(count).rows_of(self.places(code)))

    @abstractmethod
    def beginning(self, prefix: str) -> NDArray[Any]:
        """Returns the places of the words with a prefix, in any order."""

    @abstractmethod
    def lengths(self, count: int) -> NDArray[Any]:
        """Returns the number of words in each of the first rows."""


def ranges(begins: NDArray[Any], lengths: NDArray[Any]) -> Numbers:
    """Returns the concatenated ranges that start at `begins` with these lengths."""
    before = np.cumsum(lengths, dtype=np.int64) - lengths
    places: Numbers = np.arange(int(lengths.sum())) + np.repeat(begins - before, lengths)
    return places


# Rows in pieces, a few first and then more: a caller that needs the newest or oldest matches often finds them in the
# first rows.

FIRST_ROWS: Final = 4096
"""The number of rows in the first piece: a step has a fixed cost, however few rows it has."""
_GROWTH: Final = 4


class Pieces:
    """The pieces of one search. Their size keeps growing from one range of rows to the next."""

    def __init__(self, ascending: bool) -> None:
        self._ascending = ascending
        self._size = FIRST_ROWS

    def of(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        """Yields all rows from `lo` up to `hi`, in the direction of the search."""
        while hi - lo > self._size:
            size = self._size
            self._size *= _GROWTH
            if self._ascending:
                yield lo, lo + size
                lo += size
            else:
                yield hi - size, hi
                hi -= size
        if lo < hi:
            yield lo, hi
