"""The headers of a request, as they came."""

import functools
from collections.abc import Iterable, Iterator
from typing import overload

import msgspec


@functools.lru_cache(maxsize=256)
def _key(name: str) -> bytes:
    # The names asked for are literals of the program, so the cache holds all of them.
    return name.lower().encode("latin-1")


class Headers(msgspec.Struct, eq=False, gc=False):
    """Names, which have no case and are kept in small letters, with their values; duplicates are kept too.

    Values stay bytes until somebody asks for one: most headers of most requests are never looked at. Nearly every name
    comes once, so a mapping holds the first value of each, and a list the few that repeat a name.
    """

    first: dict[bytes, bytes]
    repeated: list[tuple[bytes, bytes]]

    @staticmethod
    def of(pairs: Iterable[tuple[bytes, bytes]]) -> "Headers":
        headers = Headers({}, [])
        for name, value in pairs:
            headers.add(name, value)
        return headers

    def add(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in self.first:
            self.repeated.append((name, value))
        else:
            self.first[name] = value

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
        return [_text(self.first[key]), *(_text(value) for given, value in self.repeated if given == key)]

    def get_list(self, name: str) -> str:
        """All values of a header that is a list, as the one value they mean; empty when there is none."""
        return ", ".join(self.get_all(name))

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """All of them, as bytes: in the order in which each name first came, those that repeat one at the end."""
        yield from self.first.items()
        yield from self.repeated

    def __contains__(self, name: str) -> bool:
        return _key(name) in self.first

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((name.decode("latin-1"), _text(value)) for name, value in self.pairs())

    def __len__(self) -> int:
        return len(self.first) + len(self.repeated)


def _text(value: bytes) -> str:
    # The parser cuts blanks before a value and leaves those after it.
    return value.decode("latin-1").rstrip(" \t")
