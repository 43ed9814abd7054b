"""A dictionary in a file: texts in the order of their bytes, which is the order of their characters, too.

So the code of a text is its rank, texts with a common beginning are a range of codes, and both are found by halving.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence, Sized
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from topics.core.memo import Memo
from topics.indexing.columns import Mask, Numbers
from topics.indexing.companions.files import bytes_of

_PARTS_KEPT: Final = 8
_FOUND_KEPT: Final = 16
"""Texts whose places are remembered: a query asks for one several times, and the next one for the same."""
_LONGEST: Final = 128
"""Longer texts are looked for each time."""


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
        """How many texts come before this one."""
        return self._find(encode_text(text))[0]

    def _find(self, wanted: bytes) -> tuple[int, bool]:
        """How many texts come before this one, and whether it is one of them."""
        return self._found.get(wanted, lambda: self._halve(wanted)) if len(wanted) <= _LONGEST else self._halve(wanted)

    def _halve(self, wanted: bytes) -> tuple[int, bool]:
        place = bisect_left(self._bytes, wanted)
        return place, place < len(self) and self._bytes[place] == wanted

    def code(self, text: str) -> int | None:
        place, is_there = self._find(encode_text(text))
        return place if is_there else None

    def span(self, prefix: str) -> tuple[int, int]:
        """The codes of the texts that begin so: from the first one up to the second."""
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
        """For each code, whether its text has this one in it. It is asked block by block, so the last few are kept."""
        known = self._having.get(part)
        if known is None:
            wanted = encode_text(part)
            # Looked for ahead of itself, because what is found across two texts may hide what is in the second.
            begins = [found.start() for found in re.finditer(b"(?=%b)" % re.escape(wanted), bytes_of(self.raw))]
            places = np.array(begins, np.int64)
            owners = np.searchsorted(self.ends, places, "right")
            inside = owners[places + len(wanted) <= self.ends[owners]]
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
    """Sorted texts as their bytes and ends."""
    joined = "".join(texts)
    # What is ASCII has as many bytes as characters: then no text is looked at by itself.
    return _packed(joined.encode(), texts) if joined.isascii() else pack_texts(map(encode_text, texts))


def pack_texts(texts: Iterable[bytes]) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    encoded = texts if isinstance(texts, list) else list(texts)
    return _packed(b"".join(encoded), encoded)


def _packed(raw: bytes, texts: Sequence[Sized]) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    return np.frombuffer(raw, np.uint8), narrow(ends)


def narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers from 0 on, in as few bytes as they fit into."""
    return values.astype(narrowest(int(values.max(initial=0))), copy=False)


def narrowest(most: int) -> type[np.unsignedinteger[Any]]:
    """The numbers in which everything up to this one fits."""
    return np.uint8 if most < 1 << 8 else np.uint16 if most < 1 << 16 else np.uint32 if most < 1 << 32 else np.uint64
