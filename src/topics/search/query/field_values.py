"""Canonical values: what a field of an entry, and a value in a query, is compared as.

    keyword   a text, in the form of its normaliser
    text      its words
    integer   an int of 64 bits, from a whole number or its digits
    float     a finite float, from a number or a text that JSON would read as one; -0 is 0
    date      milliseconds since 1970, from ISO 8601 (UTC where no zone is named), a number or its digits
    bool      True or False, from the value or its name

What is none of these has no canonical value: it counts for `has:` and for nothing else.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import UNSET

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
    # Adding 0 makes 0 of -0; what is subtracted from itself and is not 0 is no number that can be compared.
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


def bool_of(value: object) -> bool | None:
    if type(value) is bool:
        return value
    if type(value) is str:
        return {"true": True, "false": False}.get(value)
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
    """A number as it should be written: a whole one without a point, as long as it is exact that way."""
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
    """A date as ISO 8601, to the millisecond; the nearest there is for one that four digits of a year cannot say."""
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
"""What a query looks at of one entry: its wanted fields, in an order that the query knows."""

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
        wanted = tuple(dict.fromkeys(names))
        self.places = {name: place for place, name in enumerate(wanted)}
        self._extracts = tuple(extractor(config.fields[name], version) for name in wanted)

    def row(self, entry: object) -> Row:
        return [extract(entry) for extract in self._extracts]


def declared_fields(config: SearchConfig, version: int) -> Callable[[object], dict[str, object]]:
    """A function that shows the declared fields of an entry as they stand in it, those that it has."""
    finds = [(name, find_field(field, version)) for name, field in config.fields.items()]
    return lambda entry: {name: found for name, find in finds if (found := find(entry)) is not MISSING}
