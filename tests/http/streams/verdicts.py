"""Checks the content of a stream after its server was killed while clients wrote. Pure, so that a test can show that it
fails.

A batch is in a stream whole or not at all. Its writer determines how often it may be there: a batch of an idempotent
producer exactly once, however often it was repeated; a batch of a plain writer at least once and at most as often as it
was sent; a batch given up without an answer at most as often as it was sent.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from topics.streams.stream_state import decode_offset


@dataclass(frozen=True)
class Batch:
    """One append as its writer knows it."""

    writer: str
    number: int
    values: tuple[str, ...]
    least: int = 1
    most: int = 1
    """How often it must and may be in the stream."""
    end: str = ""
    """The offset behind it, where the answer gave it."""
    floor: str = ""
    """An offset that lies behind it, or further: the offset in the answer to a repetition."""


@dataclass(frozen=True)
class Copy:
    """A batch as the stream has it: its entries, counted from 0, and the place behind them."""

    batch: Batch
    begin: int
    end: int


def broken(entries: Sequence[str], batches: Sequence[Batch], seqs: Sequence[int]) -> Iterator[str]:
    """Returns the broken promises as messages; nothing when all hold. `seqs` are the places of the entries."""
    copies: list[Copy] = []
    yield from _cut(entries, batches, copies)
    found: dict[tuple[str, int], list[Copy]] = {}
    reached: dict[str, int] = {}
    for copy in copies:
        batch = copy.batch
        if batch.number < reached.get(batch.writer, 0):
            yield f"{batch.values} at {copy.begin} stands behind a later batch of its writer"
        reached[batch.writer] = batch.number
        found.setdefault((batch.writer, batch.number), []).append(copy)
    for batch in batches:
        there = found.get((batch.writer, batch.number), [])
        if not batch.least <= len(there) <= batch.most:
            yield f"{batch.values} is there {len(there)} times instead of {batch.least} to {batch.most}"
        elif batch.end and all(entries_before(batch.end, seqs) != copy.end for copy in there):
            reported = entries_before(batch.end, seqs)
            yield f"{batch.values} ends at {[copy.end for copy in there]}, and its offset said {reported}"
        elif batch.floor and all(entries_before(batch.floor, seqs) < copy.end for copy in there):
            reported = entries_before(batch.floor, seqs)
            yield f"{batch.values} ends at {[copy.end for copy in there]}, behind {reported} as was told"


def _cut(entries: Sequence[str], batches: Sequence[Batch], copies: list[Copy]) -> Iterator[str]:
    """Takes a stream apart into batches; reports every part that is none."""
    by_first = {batch.values[0]: batch for batch in batches}
    at = 0
    while at < len(entries):
        batch = by_first.get(entries[at])
        end = at + len(batch.values) if batch is not None else at + 1
        if batch is None or tuple(entries[at:end]) != batch.values:
            yield f"{entries[at:end]} at {at} is no batch that anyone sent"
        else:
            copies.append(Copy(batch, at, end))
        at = end


def entries_before(offset: str, seqs: Sequence[int]) -> int:
    """It counts seqs, and class disk skips some of them after a kill. It counts seqs, of which class disk leaves some
    out after a kill."""
    return bisect_right(seqs, decode_offset(offset)[1])
