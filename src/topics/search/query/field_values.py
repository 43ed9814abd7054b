"""Canonical values: what a field of an entry, and a value in a query, is compared as.

    keyword   a text, in the form of its normaliser
    text      its words
    integer   an int of 64 bits, from a whole number or its digits
    float     a finite float, from a number or a text that JSON would read as one; -0 is 0
    date      milliseconds since 1970, from ISO 8601 (UTC where no zone is named), a number or its digits
    bool      True or False, from the value or its name in any case

Any other value has no canonical value: it counts for `has:` and for nothing else.

Columns: one field of many entries, as a query asks for it, wherever its arrays are.

A column has the values of its field in the order of the entries, and for each value the row it belongs to. Most fields
have exactly one value an entry; then the values are the rows and nothing has to be spread. Texts are codes of a
dictionary. A column of words has the words of its texts, with a gap behind each text, so that no phrase reaches into
the next.

There are two kinds of them: columns that grow as entries come (`topics.search.memory_index`) and columns that are
mapped from a file (`topics.search.file_index`). Filters, sorts and sums ask both the same questions, and so get
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
    """The words of a text: maximal runs of letters and digits, in small letters."""
    return _find_words(text.lower())


_BLANKS: Final = {code: " " for code in range(128) if chr(code) != "\n" and not chr(code).isalnum()}


def words_by_line(text: str) -> list[list[str]]:
    """The words of each line. Texts that are lines of one cost a fraction of what each would cost by itself.

    Small letters are the same that way: the only letter that becomes another one at the end of a word is at its end
    before a new line as well.
    """
    small = text.lower()
    if small.isascii():
        return _words_of_ascii(small)
    # One line in another script must not cost the others their quick way.
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
"""Of a text field it is one of its values as it stands; `topics.search.query.field_values` makes words of it."""

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
    # Adding 0 makes 0 of -0; what is subtracted from itself and is not 0 is not a number that can be compared.
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
    """Entries that come together are of the same few minutes, so those are remembered: it takes a third of the time."""
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
        # Python takes a large Z alone.
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
    """The function that makes canonical values of this field."""
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
    """A number in canonical form: whole numbers without a point, as long as that is exact."""
    if type(number) is int:
        return number
    return int(number) if type(number) is float and number.is_integer() and abs(number) < 1 << 53 else number


def shown(value: Value) -> str:
    """A canonical value as a text, which is how groups are named."""
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


# The fields of an entry, by the pointers of a search registry.
#
# A query judges the promoted entry by the binding of the newest version, whatever version the entry was written under.
# So there is one pointer a field, and an entry that a lens has renamed a member of is found under its new name.

Words = tuple[str, ...]
FieldValues = tuple[Any, ...] | None
"""The canonical values of a field of an entry, in its order; `Words` of a text field. None where the field is absent,
and empty where it is there with nothing that can be compared, as null."""
Row = Sequence[FieldValues]
"""The values of the fields that a query needs of one entry, in the query's order."""

Extract = Callable[[object], FieldValues]


def find_field(field: Field, version: int) -> Callable[[object], object]:
    """A function that finds the member of a field in an entry, or `MISSING`."""
    pointer = pointer_of(field, version)
    return (lambda _: MISSING) if pointer is None else finder(pointer)


def pointer_of(field: Field, version: int) -> tuple[str, ...] | None:
    """Where a field stands in an entry; None where it stands nowhere."""
    pointer = field.pointer_for(version)
    return None if pointer is None else parse_pointer(pointer, "jsonPointer")


def extractor(field: Field, version: int) -> Extract:
    """A function that gives the values of one field of an entry."""
    find, read = find_field(field, version), reader(field)
    return lambda entry: read(find(entry))


def reader(field: Field) -> Extract:
    """A function that gives the values of a field from its member, or from `MISSING`."""
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
    """The elements of an array and of the arrays in it. It keeps its own stack, because how deep an entry is nested is
    its writer's choice."""
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
    """Rows of the fields that are wanted, and where each stands in a row."""

    def __init__(self, config: SearchConfig, version: int, names: Iterable[str]) -> None:
        requested = tuple(dict.fromkeys(names))
        self.places = {name: place for place, name in enumerate(requested)}
        self._extracts = tuple(extractor(config.fields[name], version) for name in requested)

    def row(self, entry: object) -> Row:
        return [extract(entry) for extract in self._extracts]


def declared_fields(config: SearchConfig, version: int) -> Callable[[object], dict[str, object]]:
    """A function that shows the declared fields of an entry as they stand in it, those that it has."""
    finds = [(name, find_field(field, version)) for name, field in config.fields.items()]
    return lambda entry: {name: found for name, find in finds if (found := find(entry)) is not MISSING}


Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
Codes = NDArray[np.int32]

GAP = "\n"
"""Stands behind each text of a column of words. No word is one."""


FEW = 16
"""One in so many is looked up; more of them are looked at all together."""


class Snapshot:
    """The values of the first rows of a column."""

    __slots__ = ("_rows", "count", "values")

    def __init__(self, values: NDArray[Any], rows: NDArray[Any] | None, count: int) -> None:
        self.values = values
        self._rows = rows
        self.count = count

    @property
    def rows(self) -> NDArray[Any] | None:
        """The row of each value; None where the values are the rows."""
        return self._rows

    @property
    def is_single(self) -> bool:
        """Whether the values are the rows."""
        return self._rows is None

    def rows_where(self, chosen: Mask) -> Mask:
        """The rows of which some value is chosen."""
        rows = self.rows
        if rows is None:
            return chosen
        mask = np.zeros(self.count, np.bool_)
        mask[rows[chosen]] = True
        return mask

    def rows_at(self, places: NDArray[Any]) -> Mask:
        """The rows of the values at some places."""
        rows = self.rows
        mask = np.zeros(self.count, np.bool_)
        mask[places if rows is None else rows[places]] = True
        return mask

    def rows_of(self, places: NDArray[Any]) -> NDArray[Any]:
        """The row of each of some values."""
        rows = self.rows
        return places if rows is None else rows[places]

    def counts_at(self, places: NDArray[Any]) -> Numbers:
        """How many of some places each row has."""
        rows = self.rows
        return np.bincount(places if rows is None else rows[places], minlength=self.count)

    def has_value(self) -> Mask:
        """The rows with a value."""
        rows = self.rows
        mask = np.full(self.count, rows is None)
        if rows is not None:
            mask[rows] = True
        return mask

    def single(self) -> tuple[NDArray[Any], Mask, Mask]:
        """One value for each row, whether it has one at all, and whether it has several."""
        rows = self.rows
        if rows is None:
            return self.values, np.ones(self.count, np.bool_), np.zeros(self.count, np.bool_)
        counts = np.bincount(rows, minlength=self.count)
        values = np.zeros(self.count, self.values.dtype)
        values[rows] = self.values
        return values, counts > 0, counts > 1

    def bounds_of(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """Where the values of some rows begin, and where they end."""
        owners = self.rows
        if owners is None:
            return rows, rows + 1
        if len(rows) * FEW > len(owners):
            counts = np.bincount(owners, minlength=self.count)
            ends = np.cumsum(counts)
            return (ends - counts)[rows], ends[rows]
        # In their type, because otherwise all of them would be turned into that of the rows.
        requested = rows.astype(owners.dtype)
        return owners.searchsorted(requested), owners.searchsorted(requested, "right")

    def extreme(
        self, rows: Numbers, rank: Callable[[NDArray[Any]], NDArray[Any]], least: bool
    ) -> tuple[NDArray[Any], Mask]:
        """The least or greatest ranked value of some rows, and which of them have one."""
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
        """Whether it takes no time to speak of to know the ranks of all."""
        ...

    def rank(self, text: str) -> int:
        """The rank of a text; one between two others if it has no code."""
        ...

    def ranked(self, codes: NDArray[Any]) -> Numbers:
        """The ranks of the texts of some codes: a smaller one comes first."""
        ...

    def come_behind(self, text: str, codes: NDArray[Any]) -> Mask:
        """Of which codes the text comes behind this one."""
        ...

    def first_among(self, codes: NDArray[Any], size: int, ascending: bool) -> NDArray[Any]:
        """The distinct codes of the first texts among those of some codes, in their order or against it."""
        ...

    def begin_with(self, prefix: str, codes: NDArray[Any]) -> Mask:
        """Of which codes the text begins so."""
        ...

    def contain(self, part: str, codes: NDArray[Any]) -> Mask:
        """Of which codes the text has this one in it."""
        ...


class Repeats(NamedTuple):
    """The rows in which a word stands more than once, ascending, and how much more often."""

    rows: Numbers
    more: Numbers


def repeats_in(rows: NDArray[Any]) -> Repeats:
    """`rows` ascend and have a row as often as it has the word."""
    again = rows[1:][rows[1:] == rows[:-1]].astype(np.int64)
    first = np.flatnonzero(np.append(True, again[1:] != again[:-1])) if len(again) else np.zeros(0, np.int64)
    return Repeats(again[first], np.diff(np.append(first, len(again))))


class Column(ABC):
    """The values of one field as numbers: typed ones as themselves, texts as codes."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]: ...

    @abstractmethod
    def snapshot(self, count: int) -> Snapshot:
        """The values of the first rows."""

    @abstractmethod
    def has_field(self, count: int) -> Mask:
        """Which of the first rows have the field at all, as null perhaps."""


class TextColumn(Column):
    """A column of texts."""

    dictionary: Texts


class WordsColumn(TextColumn):
    """A column of the words of texts."""

    @property
    @abstractmethod
    def has_several(self) -> bool:
        """Whether some row may have several texts."""

    @abstractmethod
    def places(self, code: int) -> NDArray[Any]:
        """Where a word stands among all words, ascending."""

    def repeats(self, code: int, count: int) -> Repeats:
        """Of the first rows those in which a word stands more than once."""
        return repeats_in(self.snapshot(count).rows_of(self.places(code)))

    @abstractmethod
    def beginning(self, prefix: str) -> NDArray[Any]:
        """Where words stand that begin so, in any order."""

    @abstractmethod
    def lengths(self, count: int) -> NDArray[Any]:
        """How many words each of the first rows has."""


def ranges(begins: NDArray[Any], lengths: NDArray[Any]) -> Numbers:
    """The numbers from each beginning on, as many as its length, concatenated."""
    before = np.cumsum(lengths, dtype=np.int64) - lengths
    places: Numbers = np.arange(int(lengths.sum())) + np.repeat(begins - before, lengths)
    return places


# Rows by their offsets, a few first and then more: a caller that wants the newest entries that match, or the oldest,
# often has them after a look at the first of them.

FIRST_ROWS: Final = 4096
"""So many rows are looked at first: a step has its cost however few rows it has."""
_GROWTH: Final = 4


class Pieces:
    """The pieces of one search. They go on growing from one range of rows to the next."""

    def __init__(self, ascending: bool) -> None:
        self._ascending = ascending
        self._size = FIRST_ROWS

    def of(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        """All rows from `lo` up to `hi`, those that are wanted first in the first piece."""
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
