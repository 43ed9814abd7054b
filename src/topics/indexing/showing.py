"""Sums as they are answered: JSON of buckets, the oldest first, with the groups of each in order; null is the last.

    [{"start", "end", "groups": [{"key": {dimension: text | null}, "measures": {name: count or summary}}]}]

There may be tens of thousands of groups, so nothing is done for each of them that can be done for all at once, and the
garbage collector does not look at what is made for them: it has no circles.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from topics.indexing.aggregation import Aggregation
from topics.indexing.groups import Groups
from topics.indexing.values import write_date

_encode = msgspec.json.Encoder().encode


class _Group(msgspec.Struct, gc=False):
    key: Any
    measures: Any


class _Bucket(msgspec.Struct, gc=False):
    start: str
    end: str
    groups: list[_Group]


def show(groups: Groups, ask: Aggregation) -> bytes:
    if not len(groups):
        return b"[]"
    chosen = groups.arranged() if ask.top is None else _greatest(groups.arranged(), ask.top)
    names = [[names[code] for code in codes.tolist()] for codes, names in chosen.dimensions]
    keys = _objects(ask.group_by, names, len(chosen))
    measures = _objects(ask.shown_measures, [measure.shown() for measure in chosen.measures], len(chosen))
    shown = list(map(_Group, keys, measures))
    starts, firsts = np.unique(chosen.starts, return_index=True)
    length = ask.interval_ms or ask.to_ms - ask.from_ms
    ends = [*firsts[1:].tolist(), len(chosen)]
    return _encode(
        [
            _Bucket(write_date(start), write_date(start + length), shown[first:end])
            for start, first, end in zip(starts.tolist(), firsts.tolist(), ends, strict=True)
        ]
    )


def _greatest(groups: Groups, top: int) -> Groups:
    """The groups of each bucket with the greatest counts of the first measure, those first."""
    order = np.argsort(-groups.measures[0].counts, kind="stable")
    order = order[np.argsort(groups.starts[order], kind="stable")]
    starts = groups.starts[order]
    places = np.arange(len(order)) - np.searchsorted(starts, starts)
    return groups.take(order[places < top])


def _objects(names: tuple[str, ...], columns: Sequence[Sequence[Any]], count: int) -> list[msgspec.Struct]:
    """An object for each row of some columns."""
    shape = _shape(names)
    return list(map(shape, *columns)) if columns else [shape()] * count


@lru_cache(maxsize=256)
def _shape(names: tuple[str, ...]) -> type[msgspec.Struct]:
    """Objects with these names; a dictionary for each of them would take three times as long."""
    fields = [f"field{place}" for place in range(len(names))]
    return msgspec.defstruct("Shape", fields, rename=dict(zip(fields, names, strict=True)), gc=False)
