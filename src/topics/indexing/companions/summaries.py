"""States in a companion: entries that are summaries already, and what groups came to that is no number of 64 bits.

A state is JSON: of a count the number, of a summary `[count, sum, least, greatest, histogram | null]`. Integers have no
end in Python and none in JSON, so they come back as they were; a sum that is no number is not stored at all.
"""

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import overload

import msgspec
import numpy as np

from topics.indexing.columns import Mask, Numbers
from topics.indexing.companions.files import SectionFile, SectionWriter, bytes_of
from topics.indexing.companions.stored import Array
from topics.indexing.companions.texts import pack_texts
from topics.indexing.measures import Counted, State, Summed

_encode = msgspec.json.Encoder().encode
_decode_summary = msgspec.json.Decoder(Summed).decode
_decode_state = msgspec.json.Decoder(int | Summed).decode


class NotStorableError(Exception):
    """A sum that is no number."""


def pack_state(state: State) -> int | Summed:
    """What is written of a state. Raises NotStorableError."""
    if isinstance(state, Counted):
        return state.count
    assert isinstance(state, Summed)
    numbers = (state.count, state.sum, state.min, state.max, *(state.histogram or {}).values())
    if not all(number is None or isinstance(number, int) or isfinite(number) for number in numbers):
        raise NotStorableError
    return state


class StoredSummaries:
    """Entries that are summaries already."""

    def __init__(self, file: SectionFile) -> None:
        self._file = file

    def known(self, rollup: str, measure: str, lo: int, hi: int, picked: Numbers | None) -> Mask:
        ends = self._file.array(f"sums/{rollup}/{measure}/ends")
        rows = np.arange(lo, hi) if picked is None else picked
        begins = np.where(rows > 0, ends[rows - 1], 0)
        return np.asarray(ends[rows] > begins)

    def at(self, rollup: str, measure: str, rows: Numbers) -> Sequence[Summed]:
        prefix = f"sums/{rollup}/{measure}"
        ends, states = self._file.array(f"{prefix}/ends"), self._file.array(f"{prefix}/states")
        return [_decode_summary(text) for text in _texts_at(bytes_of(states), ends, rows)]

    def texts(self, rollup: str, measure: str) -> tuple[Array, Array]:
        """All of them, and where each ends."""
        prefix = f"sums/{rollup}/{measure}"
        return self._file.array(f"{prefix}/states"), self._file.array(f"{prefix}/ends")


def write_summaries(writer: SectionWriter, prefix: str, raw: Array, ends: Array) -> None:
    writer.add(f"{prefix}/states", raw)
    writer.add(f"{prefix}/ends", ends)


def pack_summary(state: Summed | None) -> bytes:
    return b"" if state is None else _encode(pack_state(state))


def pack_states(states: Iterable[State]) -> tuple[Array, Array]:
    """States as their bytes and ends. Raises NotStorableError."""
    try:
        return pack_texts([_encode(pack_state(state)) for state in states])
    except ValueError as error:
        # An integer with more digits than Python writes.
        raise NotStorableError from error


class StoredStates(Sequence[State]):
    """States that were stored; each is read when it is asked for."""

    def __init__(self, raw: Array, ends: Array) -> None:
        self._raw = bytes_of(raw)
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, place: int) -> State: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[State]: ...
    def __getitem__(self, place: int | slice) -> State | Sequence[State]:
        if isinstance(place, slice):
            return [self[index] for index in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        begin = int(self._ends[place - 1]) if place else 0
        found = _decode_state(self._raw[begin : int(self._ends[place])])
        return found if isinstance(found, Summed) else Counted(found)


def _texts_at(raw: memoryview, ends: Array, places: Numbers) -> list[memoryview]:
    """The texts at some places, of many that stand one behind the other."""
    until = ends[places]
    since = np.where(places > 0, ends[places - 1], 0)
    return [raw[begin:end] for begin, end in zip(since.tolist(), until.tolist(), strict=True)]
