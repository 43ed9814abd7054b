"""Rollups in a companion: groups as arrays, which are taken as they are. `files` tells what the sections are."""

from collections.abc import Iterator, Sequence

import numpy as np

from topics.indexing.columns import Numbers
from topics.indexing.companions.files import SectionFile
from topics.indexing.companions.stored import Array
from topics.indexing.companions.summaries import NotStorableError, StoredStates, pack_states
from topics.indexing.companions.texts import MappedTexts, narrow, pack_strings
from topics.indexing.groups import Dimension, Groups
from topics.indexing.histograms import Buckets
from topics.indexing.measured import Counts, Measured, States, Sums
from topics.indexing.numbering import compacted

Sections = list[tuple[str, Array]]


def pack_groups(groups: Groups) -> Sections:
    """The sections of groups that are in order. Raises NotStorableError."""
    sections: Sections = [("starts", groups.starts)]
    for place, (codes, names) in enumerate(groups.dimensions):
        # Names in order have null at their end, if at all.
        raw, ends = pack_strings([name for name in names if name is not None])
        sections += [(f"by/{place}/codes", narrow(codes)), (f"by/{place}/texts", raw), (f"by/{place}/ends", ends)]
    for place, measured in enumerate(groups.measures):
        sections += [(f"of/{place}/{name}", array) for name, array in _pack_measured(measured)]
    return sections


def _pack_measured(measured: Measured) -> Iterator[tuple[str, Array]]:
    if isinstance(measured, States):
        yield from zip(("states", "ends"), pack_states(measured.states()), strict=True)
    elif isinstance(measured, Counts):
        yield "counts", narrow(measured.numbers)
    else:
        if not np.isfinite(measured.sums).all():
            raise NotStorableError
        yield "counts", narrow(measured.counts)
        yield "sums", measured.sums
        yield "least", measured.least
        yield "most", measured.most
        if measured.buckets is not None:
            yield "stops", narrow(measured.buckets.ends)
            yield "powers", narrow(measured.buckets.exponents)
            yield "times", narrow(measured.buckets.counts)


class StoredRollup:
    """The groups of a rollup at one interval."""

    def __init__(self, file: SectionFile, prefix: str) -> None:
        self._file = file
        self._prefix = prefix
        self.starts: Numbers = file.array(f"{prefix}/starts")

    @property
    def dimensions(self) -> int:
        return self._count("by", "codes")

    @property
    def _measures(self) -> int:
        return self._count("of", "counts", "states")

    def _count(self, what: str, *names: str) -> int:
        """How many there are of something, each of which has one of some sections."""
        count = 0
        while any(f"{self._prefix}/{what}/{count}/{name}" in self._file for name in names):
            count += 1
        return count

    def between(self, first_ms: int, end_ms: int) -> tuple[int, int]:
        """The groups whose buckets begin from `first_ms` on and before `end_ms`."""
        lo, hi = np.searchsorted(self.starts, (first_ms, end_ms))
        return int(lo), int(hi)

    def all(self) -> Groups:
        return self.at(np.arange(len(self.starts)), range(self._measures))

    def at(self, places: Numbers, measures: Sequence[int], fixed: Sequence[tuple[int, str]] = ()) -> Groups:
        """The groups at some places, as far as their dimensions are those that are fixed, with some measures."""
        for place, name in fixed:
            code = self._texts(place).code(name)
            places = places[self._array(f"by/{place}/codes")[places] == (-1 if code is None else code)]
        return Groups(
            self.starts[places],
            [self._dimension(place, places) for place in range(self.dimensions)],
            [self._measured(measure).take(places) for measure in measures],
        )

    def _texts(self, place: int) -> MappedTexts:
        return MappedTexts(self._array(f"by/{place}/texts"), self._array(f"by/{place}/ends"))

    def _dimension(self, place: int, places: Numbers) -> Dimension:
        """That of some groups, with the names that they have."""
        texts, codes = self._texts(place), self._array(f"by/{place}/codes")[places]
        numbers, present = compacted(codes, len(texts) + 1)
        return Dimension(numbers, [texts[code] if code < len(texts) else None for code in present.tolist()])

    def _measured(self, place: int) -> Measured:
        if f"{self._prefix}/of/{place}/states" in self._file:
            return States(StoredStates(self._array(f"of/{place}/states"), self._array(f"of/{place}/ends")))
        counts = self._array(f"of/{place}/counts")
        if f"{self._prefix}/of/{place}/sums" not in self._file:
            return Counts(counts)
        sums, least, most = (self._array(f"of/{place}/{name}") for name in ("sums", "least", "most"))
        return Sums(counts, sums, least, most, self._buckets(place))

    def _buckets(self, place: int) -> Buckets | None:
        if f"{self._prefix}/of/{place}/stops" not in self._file:
            return None
        stops, times = self._array(f"of/{place}/stops"), self._array(f"of/{place}/times")
        return Buckets(stops, self._array(f"of/{place}/powers"), times)

    def _array(self, name: str) -> Array:
        return self._file.array(f"{self._prefix}/{name}")
