"""Input partitions: resolves offsets into seq ranges, and packs ranges into the partitions that tasks read.

A partition of a stream has seq ranges only. The task that reads it finds out where the records are, because sealing
continues meanwhile.
"""

from collections.abc import Mapping

import msgspec

from topics.spark.connector.options import Bound, Losses, Offset, Offsets, OptionError, Point, ReadOptions, offset
from topics.spark.connector.origins import Origin, Position
from topics.spark.segment_reader import SEQ_MAX


class SeqSpan(msgspec.Struct, frozen=True):
    """The records of one topic after `after`, up to and including `to`."""

    topic: str
    epoch: int
    after: int
    to: int


def resolve(bound: Bound, options: ReadOptions, positions: dict[str, Position], origin: Origin, start: bool) -> Offsets:
    """Resolves a bound into the offsets of the existing topics."""
    found: Offsets = {}
    for name, position in positions.items():
        requested = bound.of(name)
        if isinstance(requested, Point):
            if requested.epoch not in (0, position.epoch):
                raise OptionError(
                    f"topic {name} has epoch {position.epoch} now, not {requested.epoch}: it was made again"
                )
            # A batch ends at the current head, whatever is appended before it is read.
            seq = requested.seq if start else min(requested.seq, position.head)
        elif requested == "latest":
            seq = position.head
        else:
            seq = min(position.earliest - 1, position.head)
        if start and requested == "earliest" and options.from_ts:
            seq = max(seq, origin.first_at(position, options.from_ts))
        if not start and requested == "latest" and options.to_ts < SEQ_MAX:
            # Later records would only be filtered out after the read.
            seq = min(seq, origin.last_before(position, options.to_ts))
        found[name] = offset(position.epoch, seq)
    for name in bound.by_topic:
        if name not in positions:
            raise OptionError(f"there is an offset for topic {name}, and no such topic is read")
    return found


def spans(start: Offsets, end: Offsets, losses: Losses) -> list[SeqSpan]:
    """The ranges between two offsets by topic; a recreated topic is read from its beginning."""
    found = []
    for name in sorted(start.keys() - end.keys()):
        losses.record_loss(name, start[name]["seq"] + 1, start[name]["seq"], "the topic was deleted")
    for name in sorted(end):
        to, before = end[name], start.get(name)
        after = before["seq"] if before is not None else 0
        if before is not None and before["epoch"] != to["epoch"]:
            losses.record_loss(name, after + 1, after, "the topic was deleted and made again")
            after = 0
        if after < to["seq"]:
            found.append(SeqSpan(name, to["epoch"], after, to["seq"]))
    return found


class PieceSize(msgspec.Struct, frozen=True):
    """The maximum size of a partition, and the minimum number of partitions."""

    records: int
    bytes: int
    pieces_min: int = 1


def packed(found: list[SeqSpan], size: PieceSize, sizes: Mapping[str, int] | None = None) -> list[list[SeqSpan]]:
    """Packs spans into partitions: long ones are split, short ones share one. Deterministic.

    `sizes` are bytes a record, by topic; a topic of unknown size is measured in records alone.
    """
    known = sizes or {}
    total = sum([span.to - span.after for span in found])
    # Rounded down, so that there are at least `pieces_min` partitions, given enough records.
    most = max(1, min(size.records, total // max(size.pieces_min, 1)))
    pieces: list[list[SeqSpan]] = []
    records_left = bytes_left = 0
    for span in found:
        each, after = known.get(span.topic, 0), span.after
        while after < span.to:
            fits = min(records_left, bytes_left // each if each else records_left)
            if not fits:
                pieces.append([])
                records_left, bytes_left = most, size.bytes
                # A partition has at least one record, however long.
                fits = min(most, max(size.bytes // each, 1) if each else most)
            to = min(after + fits, span.to)
            pieces[-1].append(SeqSpan(span.topic, span.epoch, after, to))
            records_left -= to - after
            bytes_left = max(bytes_left - each * (to - after), 0)
            after = to
    return pieces


def limited(start: Offsets, end: Offsets, limit: int | None) -> Offsets:
    """The end of a micro-batch of at most `limit` seqs, shared fairly among the topics."""
    behind = {name: _distance(start.get(name), to) for name, to in end.items()}
    if limit is None or sum(behind.values()) <= limit:
        return end
    shares = _shares(behind, limit, sum([before["seq"] for before in start.values()]))
    capped: Offsets = {}
    for name, share in shares.items():
        before = start.get(name)
        same = before is not None and before["epoch"] == end[name]["epoch"]
        if share or same:
            capped[name] = offset(end[name]["epoch"], (before["seq"] if before is not None and same else 0) + share)
        elif before is not None:
            capped[name] = before
    return capped


def _shares(behind: Mapping[str, int], limit: int, read_before: int) -> dict[str, int]:
    """The number of seqs for each topic; `read_before` is the number of seqs read so far."""
    waiting = sorted(name for name, size in behind.items() if size)
    if limit < len(waiting):
        # Round robin, one seq each: each batch reads `limit`, so the next batch starts that much further. Any other
        # order could starve topics behind one that always has a few records.
        first = read_before % len(waiting)
        served = set([*waiting[first:], *waiting[:first]][:limit])
        return {name: int(name in served) for name in behind}
    shares: dict[str, int] = {}
    left = limit
    # Topics with the fewest records come first, so that no share is wasted; names make the order deterministic.
    for place, name in enumerate(sorted(behind, key=lambda name: (behind[name], name))):
        shares[name] = min(behind[name], -(-left // (len(behind) - place)))
        left -= shares[name]
    return shares


def _distance(before: Offset | None, to: Offset) -> int:
    after = before["seq"] if before is not None and before["epoch"] == to["epoch"] else 0
    return max(to["seq"] - after, 0)
