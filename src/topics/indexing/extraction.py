"""The fields of an entry, by the pointers of a search registry.

A query judges the promoted entry by the binding of the newest version, whatever version the entry was written under. So
there is one pointer a field, and an entry that a lens has renamed a member of is found under its new name.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from topics.indexing.values import canonical
from topics.indexing.words import unicode_word_v1
from topics.schema.pointers import MISSING, finder, parse_pointer
from topics.schema.search import Field, SearchConfig

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
