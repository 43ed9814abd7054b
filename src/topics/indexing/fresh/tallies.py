"""Statistics over columns: in how many rows terms stand, and how many words fields have."""

from collections.abc import Mapping

import numpy as np

from topics.indexing.columns import Column, Mask, WordsColumn
from topics.indexing.fresh.masks import Judge
from topics.indexing.parts import Count
from topics.indexing.ranking import Statistics


def count_rows(columns: Mapping[str, Column], judge: Judge, alive: Mask, ask: Count) -> list[int]:
    """What the rows that are alive add to statistics. Raises `Late`."""
    statistics = Statistics(ask.terms)
    for place, name in enumerate(statistics.fields):
        statistics.entries[place], statistics.words[place] = count_field(columns[name], alive)
    for place, term in enumerate(ask.terms):
        statistics.found[place] = int(np.count_nonzero(judge.look(term) & alive))
    return statistics.numbers


def count_field(column: Column, alive: Mask) -> tuple[int, int]:
    """The rows with a word, and their words; of a column that has none, the rows with a value, and 0."""
    if not isinstance(column, WordsColumn):
        return int(np.count_nonzero(column.snapshot(len(alive)).has_value() & alive)), 0
    lengths = column.lengths(len(alive))[alive]
    return int(np.count_nonzero(lengths)), int(lengths.sum(dtype=np.int64))
