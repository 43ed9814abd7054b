"""What damaged frames still tell about themselves, so that a loss can be told with its topic and its seqs.

Nothing here is proven: one byte is wrong and nobody knows which. Two things make a guess worth having. The frames must
fill the damaged place exactly, with consecutive lsns; and what says APPEND must have the inner lengths of a block, and
only that, because one wrong byte can break the one or the other but never make both agree. Whether the topic and the
seqs are believed is decided by who knows the topics (`engine.casualties`).
"""

from struct import Struct
from typing import NamedTuple

from topics.formats.block import BLOCK_HEAD, LAYOUT_JSON, ROW_BYTES
from topics.formats.frame import CHECKSUM_BYTES, HEADER_BYTES, MAGIC, OVERHEAD_BYTES, FrameKind
from topics.formats.stream import block_in

_HEADER = Struct("<4sIQQQB7s")
_RECORD_BYTES_MIN = ROW_BYTES + len(b'{"$seq":1,"$ts":1,"data":0}')
_LOGGED = {int(kind): kind for kind in FrameKind if kind < FrameKind.SNAPSHOT_HEAD}
_APPENDS = (FrameKind.APPEND, FrameKind.STREAM_APPEND)
_CARRIERS = (*_APPENDS, FrameKind.STREAM_CREATE)


class FrameRemains(NamedTuple):
    """A damaged frame as it seems to have been. The numbers behind the topic are 0 unless it carries a block."""

    kind: FrameKind
    topic_id: int
    first_seq: int = 0
    records: int = 0
    base: int = 0
    text_bytes: int = 0


def records_at_most(size: int) -> int:
    """How many records fit into so many bytes of log: an upper bound on what a damaged place can have held."""
    return max(size // _RECORD_BYTES_MIN, 1)


def read_remains(buffer: memoryview, start: int, end: int, first_lsn: int, next_lsn: int | None) -> list[FrameRemains]:
    """The frames that seem to stand between two offsets; empty when they cannot be told apart.

    `next_lsn` is the lsn of the valid frame behind them, None when there is none in this file.
    """
    found: list[FrameRemains] = []
    while start < end and any(buffer[start : min(start + HEADER_BYTES, end)]):
        if end - start < OVERHEAD_BYTES:
            return []
        magic, length, lsn, _, topic_id, kind, zeros = _HEADER.unpack_from(buffer, start)
        wrong = magic != MAGIC or lsn != first_lsn + len(found) or kind not in _LOGGED or any(zeros)
        if wrong or not OVERHEAD_BYTES <= length <= end - start:
            return []
        body = buffer[start + HEADER_BYTES : start + length - CHECKSUM_BYTES]
        blocks = _blocks(body, topic_id)
        # A body that holds a block for another kind shows that the kind is the damaged byte.
        if blocks.keys() - {_LOGGED[kind]} or (kind in _APPENDS and not blocks):
            return []
        found.append(blocks.get(_LOGGED[kind]) or FrameRemains(_LOGGED[kind], topic_id))
        start += length
    if next_lsn is not None and first_lsn + len(found) != next_lsn:
        return []
    return found


def _blocks(body: memoryview, topic_id: int) -> dict[FrameKind, FrameRemains]:
    """Every way to read a block in a frame's body, by the kind of frame that would have it there."""
    found = {}
    for kind in _CARRIERS:
        try:
            block = block_in(kind, body)
        except ValueError:
            continue
        remains = _read_block(kind, block, topic_id) if block is not None else None
        if remains is not None:
            found[kind] = remains
    return found


def _read_block(kind: FrameKind, body: memoryview, topic_id: int) -> FrameRemains | None:
    if len(body) < BLOCK_HEAD.size:
        return None
    first_seq, _, _, count, base, text, layout, _, key = BLOCK_HEAD.unpack_from(body, 0)
    if layout != LAYOUT_JSON or not count or BLOCK_HEAD.size + key + count * ROW_BYTES + text != len(body):
        return None
    return FrameRemains(kind, topic_id, first_seq, count, base, text)
