"""Making a companion out of the columns of an index that was filled with the entries of a range."""

from collections.abc import Iterable, Sequence

import numpy as np

from topics.indexing.columns import GAP
from topics.indexing.companions.files import SectionWriter, Write
from topics.indexing.companions.identity import Plan, plan_of
from topics.indexing.companions.mapped import BLOCK_ROWS, KEY, CompanionHead
from topics.indexing.companions.rolling import add_up, write_rollups
from topics.indexing.companions.stored import Array, StoredColumn, code_places, write_column
from topics.indexing.companions.summaries import pack_summary, write_summaries
from topics.indexing.companions.texts import MappedTexts, narrow, pack_strings, pack_texts
from topics.indexing.fresh.columns import GrowingColumn, Keywords, WordColumn
from topics.indexing.fresh.index import FreshIndex
from topics.indexing.parts import Entry
from topics.schema.registry import Registry


def build(
    registry: Registry,
    batches: Iterable[Sequence[Entry]],
    epoch: int,
    first: int,
    last: int,
    write: Write,
    block_rows: int = BLOCK_ROWS,
) -> CompanionHead:
    """Writes the companion of the entries from `first` to `last`, which come in the order of their numbers; those that
    are missing are not live."""
    index = unasked_index(registry)
    for entries in batches:
        index.add(entries)
    return freeze(index, registry, epoch, first, last, write, block_rows)


def unasked_index(registry: Registry) -> FreshIndex:
    """An index that is filled to be written down."""
    index = FreshIndex(registry.search_config, registry.current_version)
    for column in index.columns.values():
        if isinstance(column, WordColumn):
            column.has_postings = False
    return index


def freeze(
    index: FreshIndex,
    registry: Registry,
    epoch: int,
    first: int,
    last: int,
    write: Write,
    block_rows: int = BLOCK_ROWS,
) -> CompanionHead:
    """Writes the companion of all that an index has."""
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
            if write_rollups(writer, name, add_up(index, config, registry.current_version, name)):
                stored[name] = plan.rollups[name]
    head = CompanionHead(
        epoch=epoch, generation=plan.generation, first=first, last=last, rows=rows, block_rows=block_rows,
        plan=Plan(plan.fields, stored, plan.sums), fields=fields, key=key,
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
