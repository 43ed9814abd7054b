"""The headers of a request, as they came."""

import functools
from collections.abc import Iterator, Sequence
from typing import overload

import msgspec


@functools.lru_cache(maxsize=256)
def _key(name: str) -> bytes:
    # The names asked for are literals of the program, so the cache holds all of them.
    return name.lower().encode("latin-1")


class Headers(msgspec.Struct, eq=False, gc=False):
    """Pairs in the order of arrival, duplicates included; names compare without case.

    Made with `Headers.of`. Values stay bytes until somebody asks for one: most headers of most requests are never
    looked at. `first` maps the lower-case name to the first value of that name.
    """

    pairs: Sequence[tuple[bytes, bytes]]
    first: dict[bytes, bytes]

    @staticmethod
    def of(pairs: Sequence[tuple[bytes, bytes]]) -> "Headers":
        first = {}
        for name, value in pairs:
            first[name.lower()] = value
        if len(first) != len(pairs):
            first = {name.lower(): value for name, value in reversed(pairs)}
        return Headers(pairs, first)

    @overload
    def get(self, name: str) -> str | None: ...
    @overload
    def get(self, name: str, default: str) -> str: ...
    def get(self, name: str, default: str | None = None) -> str | None:
        """The first value of `name`, without the blanks around it."""
        value = self.first.get(_key(name))
        return default if value is None else _text(value)

    def get_all(self, name: str) -> list[str]:
        """Every value of `name`, in order."""
        key = _key(name)
        if key not in self.first:
            return []
        return [_text(value) for given, value in self.pairs if given.lower() == key]

    def get_list(self, name: str) -> str:
        """All values of a header that is a list, as the one value they mean; empty when there is none."""
        return ", ".join(self.get_all(name))

    def __contains__(self, name: str) -> bool:
        return _key(name) in self.first

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((name.decode("latin-1"), _text(value)) for name, value in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)


def _text(value: bytes) -> str:
    # The parser cuts blanks before a value and leaves those after it.
    return value.decode("latin-1").rstrip(" \t")
