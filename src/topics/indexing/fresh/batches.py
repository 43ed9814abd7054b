"""Entries that are added together, seen member by member instead of entry by entry.

Where a description needs nothing but members of objects, entries are decoded into structs that have these members and
no others: what is not asked for is passed over by the decoder and never becomes a value.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Protocol

import msgspec
from msgspec.structs import astuple

from topics.schema.pointers import MISSING, finder

Pointer = tuple[str, ...]
"""The tokens of a JSON pointer."""
_decode = msgspec.json.Decoder().decode


class Batch(Protocol):
    numbers: Sequence[int]
    keys: Sequence[str | None]

    def found(self, pointer: Pointer) -> list[Any]:
        """What a pointer finds in each of the entries; `MISSING` where it finds nothing."""
        ...

    def values(self) -> Sequence[Any]:
        """The entries themselves. Raises TypeError where they were decoded in part."""
        ...


class PlainBatch:
    """Entries that are values already."""

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
        # A third of what it takes to ask each of them for each member.
        self._members = list(chain.from_iterable(map(astuple, structs)))

    def found(self, pointer: Pointer) -> list[Any]:
        members = self._members[self._places[pointer[0]] :: len(self._places)]
        if len(pointer) == 1:
            return members
        # What is missing is neither an object nor an array, so nothing is found in it.
        return list(map(finder(pointer[1:]), members))

    def values(self) -> Sequence[Any]:
        raise TypeError("these entries were decoded in part")


class Decoder:
    """Makes batches of entries as they are stored."""

    def __init__(self, pointers: Iterable[Pointer], whole: bool = False) -> None:
        """`pointers` are all that will be looked for; entries are decoded `whole` for those who look further."""
        names = list(dict.fromkeys(pointer[0] for pointer in pointers if pointer))
        # A pointer to the whole entry, and names that a struct cannot have, need entries as they are.
        can_have = not whole and all(pointers) and all(_is_plain(name) for name in names)
        self._places = {name: place for place, name in enumerate(names)}
        self._decode_all: Callable[[bytes], list[Any]] | None = None
        if can_have:
            renamed = {f"member_{place}": name for place, name in enumerate(names)}
            fields: list[Any] = [(attribute, Any, MISSING) for attribute in renamed]
            struct = msgspec.defstruct("Entry", fields, rename=renamed, gc=False)
            self._decode_all = msgspec.json.Decoder(list[struct]).decode  # type: ignore[valid-type]

    def batch(self, numbers: Sequence[int], raws: Sequence[bytes | memoryview], keys: Sequence[str | None]) -> Batch:
        if self._decode_all is not None:
            try:
                structs = self._decode_all(b"[%b]" % b",".join(raws))
                if len(structs) == len(raws):
                    return _StructBatch(numbers, structs, keys, self._places)
            except (ValueError, RecursionError):
                # One of them is no object, or cannot be read at all.
                pass
        return PlainBatch(numbers, [read_value(raw) for raw in raws], keys)


def read_value(raw: bytes | memoryview) -> Any:
    """An entry as a value; one that cannot be read, because it is nested too deep, has no fields."""
    try:
        return _decode(raw)
    except (ValueError, RecursionError):
        return None


def _is_plain(name: str) -> bool:
    return name.isprintable() and '"' not in name and "\\" not in name
