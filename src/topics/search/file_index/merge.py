"""Merge (compaction) of consecutive index files into one, without reading any entry again, and the build of an index
file from a memory index.

Columns are concatenated. Dictionaries are merged in sorted order and positions are computed by counting, so nothing is
sorted and at most one column is in memory. Deleted entries can be left out; texts that only they had are then left out
as well.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from topics.model.seq_ranges import SeqRange
from topics.schema.registry import Registry
from topics.search.file_index.file_format import (
    Array,
    FieldHead,
    IndexPlan,
    MappedTexts,
    SectionWriter,
    StoredColumn,
    Write,
    code_places,
    is_same,
    narrow,
    narrowest,
    pack_strings,
    pack_texts,
    plan_of,
    write_column,
)
from topics.search.file_index.reader import (
    BLOCK_ROWS,
    KEY,
    IndexFile,
    IndexFileHead,
    join_texts,
    pack_summary,
    texts_at,
    texts_behind,
    write_summaries,
)
from topics.search.file_index.rollups import Rolled, build_rollup, merge_groups, most_groups, read_rollup, write_rollups
from topics.search.memory_index.column_store import GrowingColumn, Keywords, WordColumn
from topics.search.memory_index.memory_index import MemoryIndex
from topics.search.query.field_values import GAP, Mask, Numbers
from topics.search.query.plan import Entry


def merge(index_files: Sequence[IndexFile], write: Write, removed: Sequence[SeqRange] = ()) -> IndexFileHead:
    """Writes one index file for the entries of several of one generation, in order and without removed entries."""
    first, last = index_files[0].head, index_files[-1].head
    sources = [_Source(index_file, removed) for index_file in index_files]
    rows = sum(source.rows for source in sources)
    writer = SectionWriter(write)
    if rows != last.last - first.first + 1:
        writer.add("numbers", np.concatenate([source.numbers() for source in sources]))
    fields: dict[str, FieldHead] = {}
    key_head: FieldHead | None = None
    for name in first.fields:
        column = _join([source.column(index_file.column(name)) for source, index_file in _pairs(sources, index_files)])
        fields[name] = write_column(writer, f"field/{name}", column, first.block_rows)
        if key_head is None and all(is_same(index_file.column(name), index_file.key) for index_file in index_files):
            # An id field has the values of the keys, so its merged column is used for the keys, too.
            key_head = write_column(writer, KEY, column, first.block_rows)
    if key_head is None:
        key = _join([source.column(index_file.key) for source, index_file in _pairs(sources, index_files)])
        key_head = write_column(writer, KEY, key, first.block_rows)
    for name in first.plan.sums:
        write_summaries(writer, f"sums/{name}", *texts_behind([source.states(name) for source in sources]))
    whole = all(source.keep is None for source in sources)
    rollups = _merge_rollups(writer, index_files, rows) if whole else {}
    head = IndexFileHead(
        epoch=first.epoch, generation=first.generation, first=first.first, last=last.last, rows=rows,
        block_rows=first.block_rows, level=max(index_file.head.level for index_file in index_files) + 1,
        plan=IndexPlan(first.plan.fields, rollups, first.plan.sums), fields=fields, key=key_head,
    )  # fmt: skip
    writer.finish(head)
    return head


def _pairs(sources: Sequence["_Source"], index_files: Sequence[IndexFile]) -> Iterator[tuple["_Source", IndexFile]]:
    return zip(sources, index_files, strict=True)


class _Source:
    """An index file and the rows of it that are kept."""

    def __init__(self, index_file: IndexFile, removed: Sequence[SeqRange]) -> None:
        self.index_file = index_file
        keep = np.ones(index_file.head.rows, np.bool_)
        for first, last in removed:
            lo, hi = index_file.row_range(first, last)
            keep[lo:hi] = False
        self.keep: Mask | None = None if bool(keep.all()) else keep
        """None if all rows are kept."""
        self.rows = int(np.count_nonzero(keep))

    def numbers(self) -> Array:
        numbers = self.index_file.numbers_of(0, self.index_file.head.rows)
        return numbers if self.keep is None else numbers[self.keep]

    def column(self, stored: StoredColumn) -> StoredColumn:
        return stored if self.keep is None else _kept(stored, self.keep)

    def states(self, name: str) -> tuple[Array, Array]:
        """Returns the bytes and ends of the rows that are summaries."""
        rollup, _, measure = name.partition("/")
        raw, ends = self.index_file.summaries.texts(rollup, measure)
        return (raw, ends) if self.keep is None else texts_at(raw, ends, np.flatnonzero(self.keep))


def _kept(stored: StoredColumn, keep: Mask) -> StoredColumn:
    """Returns a column without the removed rows, and without texts that only they had."""
    counts = stored.counts()
    values = stored.values[np.repeat(keep, counts)]
    left = counts[keep]
    rows = len(left)
    starts = None if bool((left == 1).all()) else narrow(np.append(0, np.cumsum(left)))
    present = None if stored.present is None else stored.present[keep]
    if present is not None and bool(present.all()):
        present = None
    if not stored.is_text:
        return StoredColumn(stored.kind, rows, values, starts, present)
    used, codes = np.unique(values, return_inverse=True)
    texts = MappedTexts(*texts_at(stored.texts.raw, stored.texts.ends, used))
    return _with_places(stored.kind, rows, narrow(codes), starts, present, texts)


def _with_places(
    kind: str, rows: int, codes: Array, starts: Array | None, present: Array | None, texts: MappedTexts
) -> StoredColumn:
    gap = texts.code(GAP) if kind == "text" else None
    return StoredColumn(kind, rows, codes, starts, present, texts, *code_places(codes, len(texts), gap))


def _join(columns: Sequence[StoredColumn]) -> StoredColumn:
    kind, rows = columns[0].kind, sum(column.rows for column in columns)
    starts = None
    if any(column.starts is not None for column in columns):
        counts = np.concatenate([column.counts() for column in columns])
        starts = narrow(np.append(0, np.cumsum(counts)))
    present = None
    if any(column.present is not None for column in columns):
        present = np.concatenate([np.ones(c.rows, np.bool_) if c.present is None else c.present for c in columns])
    if not columns[0].is_text:
        return StoredColumn(kind, rows, np.concatenate([c.values for c in columns]), starts, present)
    texts, codes_of = join_texts([column.texts for column in columns])
    # In the narrow type from the start: there may be hundreds of millions of words.
    small = [codes.astype(narrowest(len(texts))) for codes in codes_of]
    values = narrow(np.concatenate([codes[column.values] for codes, column in zip(small, columns, strict=True)]))
    return StoredColumn(kind, rows, values, starts, present, texts, *_join_places(columns, codes_of, len(texts)))


def _join_places(columns: Sequence[StoredColumn], codes_of: Sequence[Array], size: int) -> tuple[Array, Array]:
    """Returns the positions of each code in all columns, those of earlier columns first."""
    counts_of: list[Numbers] = [np.diff(np.append(0, column.stops.astype(np.int64))) for column in columns]
    totals = np.zeros(size, np.int64)
    for codes, counts in zip(codes_of, counts_of, strict=True):
        totals[codes] += counts
    stops = np.cumsum(totals)
    nexts = stops - totals
    kind = narrowest(sum(len(column.values) for column in columns))
    places = np.zeros(int(stops[-1]) if size else 0, kind)
    behind = 0
    for column, codes, counts in zip(columns, codes_of, counts_of, strict=True):
        begins = np.cumsum(counts) - counts
        targets = np.arange(len(column.places)) + np.repeat(nexts[codes] - begins, counts)
        places[targets] = column.places.astype(kind) + kind(behind)
        nexts[codes] += counts
        behind += len(column.values)
    return narrow(places), narrow(stops)


def _merge_rollups(writer: SectionWriter, index_files: Sequence[IndexFile], rows: int) -> dict[str, str]:
    """Merges the rollups that all files have in the same form. Returns these rollups."""
    merged: dict[str, str] = {}
    for name, digest in index_files[0].head.plan.rollups.items():
        if any(index_file.head.plan.rollups.get(name) != digest for index_file in index_files):
            continue
        rolled: Rolled = {}
        for interval, level in _levels(index_files[0], name):
            sources = [read_rollup(index_file.file, name, interval, level) for index_file in index_files]
            known = [source for source in sources if source is not None]
            groups = merge_groups(known, interval, most_groups(rows)) if len(known) == len(sources) else None
            if groups is not None:
                rolled[interval, level] = groups
        if write_rollups(writer, name, rolled):
            merged[name] = digest
    return merged


def _levels(index_file: IndexFile, name: str) -> list[tuple[int, str]]:
    found = []
    for section in index_file.file.names():
        kind, _, rest = section.partition("/")
        if kind == "rollup" and rest.endswith("/starts"):
            rollup, interval, level, *_ = rest.split("/")
            if rollup == name:
                found.append((int(interval), level))
    return found


# Build of an index file from a memory index that was filled with the entries of a range.


def build(
    registry: Registry,
    batches: Iterable[Sequence[Entry]],
    epoch: int,
    first: int,
    last: int,
    write: Write,
    block_rows: int = BLOCK_ROWS,
) -> IndexFileHead:
    """Writes the index file of the entries from `first` to `last`, given in the order of their seqs.

    Missing entries are not live.
    """
    index = unasked_index(registry)
    for entries in batches:
        index.add(entries)
    return freeze(index, registry, epoch, first, last, write, block_rows)


def unasked_index(registry: Registry) -> MemoryIndex:
    """A memory index that is filled to be written to a file."""
    index = MemoryIndex(registry.search_config, registry.current_version)
    for column in index.columns.values():
        if isinstance(column, WordColumn):
            column.has_postings = False
    return index


def freeze(
    index: MemoryIndex,
    registry: Registry,
    epoch: int,
    first: int,
    last: int,
    write: Write,
    block_rows: int = BLOCK_ROWS,
) -> IndexFileHead:
    """Writes the index file of all entries of an index."""
    plan, numbers = plan_of(registry), index.numbers
    rows = len(numbers)
    writer = SectionWriter(write)
    if rows != last - first + 1:
        writer.add("numbers", numbers)
    columns = {name: freeze_column(column, _kind(registry, name), rows) for name, column in index.columns.items()}
    fields = {name: write_column(writer, f"field/{name}", column, block_rows) for name, column in columns.items()}
    same = [columns[name] for name, column in index.columns.items() if column is index.keys]
    key = write_column(writer, KEY, same[0] if same else freeze_column(index.keys, "keyword", rows), block_rows)
    for (rollup, measure), states in index.sheet.states.items():
        write_summaries(writer, f"sums/{rollup}/{measure}", *pack_texts(map(pack_summary, states)))
    config = registry.search_config
    stored: dict[str, str] = {}
    if config is not None:
        for name in config.rollups:
            if write_rollups(writer, name, build_rollup(index, config, registry.current_version, name)):
                stored[name] = plan.rollups[name]
    head = IndexFileHead(
        epoch=epoch, generation=plan.generation, first=first, last=last, rows=rows, block_rows=block_rows,
        plan=IndexPlan(plan.fields, stored, plan.sums), fields=fields, key=key,
    )  # fmt: skip
    writer.finish(head)
    return head


def _kind(registry: Registry, name: str) -> str:
    config = registry.search_config
    assert config is not None
    return config.fields[name].kind


def freeze_column(column: GrowingColumn, kind: str, rows: int) -> StoredColumn:
    values, present = column.values.filled, column.present.filled
    starts: Array | None = None
    if not column.is_single:
        starts = narrow(np.searchsorted(column.rows, np.arange(rows + 1)))
    here = None if bool(present.all()) else present
    if not isinstance(column, Keywords):
        return StoredColumn(kind, rows, values, starts, here)
    # A code becomes the rank of its text.
    ranks = column.dictionary.ranks() // 2
    codes = narrow(ranks[values] if len(values) else np.zeros(0, np.int64))
    texts = MappedTexts(*pack_strings(column.dictionary.ordered()))
    gap = texts.code(GAP) if isinstance(column, WordColumn) else None
    return StoredColumn(kind, rows, codes, starts, here, texts, *code_places(codes, len(texts), gap))
