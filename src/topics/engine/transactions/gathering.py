"""Staged records as copies for their topics: cut out of the text they are staged in, never parsed."""

from collections.abc import Iterator, Sequence

from topics.core.errors import CorruptSegmentError
from topics.core.records import Record
from topics.engine.core import EngineCore
from topics.engine.state.runs import Block
from topics.engine.topic import Topic
from topics.formats.block import BASE_MAX
from topics.formats.transaction import PartState
from topics.storage.segments import SegmentDamaged
from topics.wire.copies import Copies, Stretch, cut_copies, render
from topics.wire.fragments import encode_fragments

_BLOCK_RECORDS = 4096
"""Small parts become one block, up to so many records."""


def gather(core: EngineCore, books: Topic, parts: Sequence[PartState]) -> Iterator[Copies]:
    """The records of some parts, in their order."""
    stretches: list[Stretch] = []
    count = 0
    for part in parts:
        if count and count + part.count > _BLOCK_RECORDS:
            yield cut_copies(stretches)
            stretches, count = [], 0
        stretches += _stretches(core, books, part)
        count += part.count
    if stretches:
        yield cut_copies(stretches)


def _stretches(core: EngineCore, books: Topic, part: PartState) -> list[Stretch]:
    found: list[Stretch] = []
    last = part.first_seq + part.count - 1
    count = 0
    try:
        for run in books.runs_from(part.first_seq):
            if run.first_seq > last:
                break
            lo, hi = max(part.first_seq - run.first_seq, 0), min(last + 1 - run.first_seq, run.count)
            for view, view_lo, view_hi, offset in core.reader.views(books.id, run, lo, hi):
                found.append(Stretch(view, view_lo, view_hi, run.first_seq + offset))
                count += view_hi - view_lo
    except SegmentDamaged as damage:
        raise CorruptSegmentError(books.name, part.first_seq, last) from damage
    if count != part.count:
        raise CorruptSegmentError(books.name, part.first_seq, last)
    return found


def stage_copies(core: EngineCore, topic: Topic, copies: Copies | list[Record]) -> Block:
    """Gives out seqs for copies, or for what the topic made of them, that are counted as on their way already.

    From here on nothing may fail until their frame is submitted.
    """
    first = topic.staged_head + 1
    written = core.wall()
    ts = topic.staged_ts = max(written, topic.staged_ts)
    base = topic.next_base if topic.next_base < BASE_MAX else 0
    if isinstance(copies, list):
        text, rows, payload_bytes, traits = encode_fragments(copies, first, ts, None, base)
    else:
        text, rows, payload_bytes, traits = render(copies, first, ts, base)
    block = Block(first, ts, payload_bytes, base, traits, None, rows, text, written)
    topic.staged_head += block.count
    topic.next_base = block.next_base
    return block
