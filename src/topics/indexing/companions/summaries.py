"""Sums in a companion: those of rollups that were added up when it was made, and entries that are summaries already.

A state is JSON: of a count the number, of a summary `[count, sum, least, greatest, histogram | null]`. Integers have no
end in Python and none in JSON, so they come back as they were; a sum that is no number is not stored at all.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from typing import NamedTuple

import msgspec
import numpy as np

from topics.indexing.columns import Mask, Numbers
from topics.indexing.companions.files import SectionFile, SectionWriter, bytes_of
from topics.indexing.companions.stored import Array
from topics.indexing.companions.texts import pack_texts
from topics.indexing.measures import Counted, State, Summed
from topics.indexing.rollups import Group

_encode = msgspec.json.Encoder().encode
_decode_summary = msgspec.json.Decoder(Summed).decode
_decode_groups = msgspec.json.Decoder(list[tuple[tuple[str | None, ...], tuple[int | Summed, ...]]]).decode
_AT_ONCE = 512


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


def write_summaries(writer: SectionWriter, prefix: str, states: Iterable[bytes]) -> None:
    raw, ends = pack_texts(states)
    writer.add(f"{prefix}/states", raw)
    writer.add(f"{prefix}/ends", ends)


def pack_summary(state: Summed | None) -> bytes:
    return b"" if state is None else _encode(pack_state(state))


class StoredGroup(NamedTuple):
    """One group of a rollup: its bucket, the values of its dimensions, and what was added up."""

    start_ms: int
    group: Group
    states: tuple[State, ...]


class PackedRollup(NamedTuple):
    starts: Numbers
    states: Array
    ends: Array


def pack_rollup(groups: Iterable[StoredGroup]) -> PackedRollup:
    """Groups in the order of their buckets, one at a time. Raises NotStorableError."""
    starts = array("q")

    def packed() -> Iterator[bytes]:
        for group in groups:
            starts.append(group.start_ms)
            yield _encode([group.group, [pack_state(state) for state in group.states]])

    try:
        states, ends = pack_texts(packed())
    except ValueError as error:
        # An integer with more digits than Python writes.
        raise NotStorableError from error
    return PackedRollup(np.array(starts, np.int64), states, ends)


def write_rollup(writer: SectionWriter, prefix: str, packed: PackedRollup) -> None:
    for name, section in zip(PackedRollup._fields, packed, strict=True):
        writer.add(f"{prefix}/{name}", section)


class StoredRollup:
    """The groups of a rollup at one interval."""

    def __init__(self, file: SectionFile, prefix: str) -> None:
        self.starts: Numbers = file.array(f"{prefix}/starts")
        self._ends = file.array(f"{prefix}/ends")
        states = file.array(f"{prefix}/states")
        self._raw = bytes_of(states)

    def between(self, first_ms: int, end_ms: int) -> tuple[int, int]:
        """The groups whose buckets begin from `first_ms` on and before `end_ms`."""
        lo, hi = np.searchsorted(self.starts, (first_ms, end_ms))
        return int(lo), int(hi)

    def groups(self, places: Numbers) -> Iterator[StoredGroup]:
        """Those at some places, read some at a time."""
        for begin in range(0, len(places), _AT_ONCE):
            some = places[begin : begin + _AT_ONCE]
            found = _decode_groups(b"[%b]" % b",".join(_texts_at(self._raw, self._ends, some)))
            for start, (group, states) in zip(self.starts[some].tolist(), found, strict=True):
                yield StoredGroup(
                    start, group, tuple([state if isinstance(state, Summed) else Counted(state) for state in states])
                )


def _texts_at(raw: memoryview, ends: Array, places: Numbers) -> list[memoryview]:
    """The texts at some places, of many that stand one behind the other."""
    until = ends[places]
    since = np.where(places > 0, ends[places - 1], 0)
    return [raw[begin:end] for begin, end in zip(since.tolist(), until.tolist(), strict=True)]
