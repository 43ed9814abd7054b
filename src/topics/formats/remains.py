"""What damaged frames still tell about themselves, so that a loss can be told with its topic and its seqs.

Nothing here is proven: one byte is wrong and nobody knows which. Two things make a guess worth having. The frames must
fill the damaged place exactly, with consecutive lsns; and what says APPEND or ARRIVAL must have the inner lengths of
one, what says FORWARD those of a forward, and nothing else may have any of them, because one wrong byte can break the
one or the other but never make both agree. Whether the topic and the seqs are believed is decided by who knows the
topics (`engine.repair.lost_records`).
"""

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from topics.core.rows import ROW_BYTES
from topics.formats.block import BLOCK_HEAD, key_places
from topics.formats.carriers import BLOCK_KINDS, block_in
from topics.formats.forwards import decode_forwards
from topics.formats.frame import CHECKSUM_BYTES, HEADER_BYTES, MAGIC, OVERHEAD_BYTES, FrameKind
from topics.formats.routing import decode_forward

_HEADER = Struct("<4sIQQQB7x")
_RECORD_BYTES_MIN = ROW_BYTES + len(b'{"$seq":1,"$ts":1,"data":0}')
_GIVE_OUT_SEQS = (
    FrameKind.APPEND, FrameKind.ARRIVAL, FrameKind.STREAM_APPEND, FrameKind.FORWARD, FrameKind.TXN_STAGE,
    FrameKind.TXN_APPEND,
)  # fmt: skip
_LOGGED = {int(kind): kind for kind in FrameKind if kind < FrameKind.SNAPSHOT_HEAD}


class FrameRemains(NamedTuple):
    """A damaged frame as it seems to have been. The numbers behind the topic are 0 unless it gave out seqs."""

    kind: FrameKind
    topic_id: int
    first_seq: int = 0
    records: int = 0
    base: int = 0
    text_bytes: int = 0

    @property
    def next_base(self) -> int:
        """Where the text of what follows in the same topic begins."""
        return self.base + self.text_bytes + 1 if self.text_bytes else self.base


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
        magic, length, lsn, _, topic_id, kind = _HEADER.unpack_from(buffer, start)
        wrong = magic != MAGIC or lsn != first_lsn + len(found) or kind not in _LOGGED
        if wrong or not OVERHEAD_BYTES <= length <= end - start:
            return []
        body = buffer[start + HEADER_BYTES : start + length - CHECKSUM_BYTES]
        readings = _readings(body, topic_id)
        # A body that holds records for another kind shows that the kind is the damaged byte.
        if readings.keys() - {_LOGGED[kind]} or (kind in _GIVE_OUT_SEQS and not readings) or _has_forwards(body, kind):
            return []
        found.append(readings.get(_LOGGED[kind]) or FrameRemains(_LOGGED[kind], topic_id))
        start += length
    if next_lsn is not None and first_lsn + len(found) != next_lsn:
        return []
    return found


def _has_forwards(body: memoryview, kind: int) -> bool:
    """Whether it forwarded to many topics: of those that stand at the same place nobody could tell which it were."""
    if kind == FrameKind.FORWARDS:
        return True
    try:
        decode_forwards(body)
    except ValueError:
        return False
    return True


def _readings(body: memoryview, topic_id: int) -> dict[FrameKind, FrameRemains]:
    """Every way to find records in a frame's body, by the kind of frame that would have them there."""
    forward = _read_forward(body, topic_id)
    found = {} if forward is None else {FrameKind.FORWARD: forward}
    for kind in BLOCK_KINDS:
        try:
            block = block_in(kind, body)
            remains = _read_block(kind, block, topic_id) if block is not None else None
        except (ValueError, StructError):
            continue
        if remains is not None:
            found[kind] = remains
    return found


def _read_block(kind: FrameKind, body: memoryview, topic_id: int) -> FrameRemains | None:
    if len(body) < BLOCK_HEAD.size:
        return None
    first_seq, _, _, count, base, text, layout, _, key = BLOCK_HEAD.unpack_from(body, 0)
    if not count or key_places(body, layout, key)[1] + count * ROW_BYTES + text != len(body):
        return None
    return FrameRemains(kind, topic_id, first_seq, count, base, text)


def _read_forward(body: memoryview, topic_id: int) -> FrameRemains | None:
    """The body as a forward, when its lengths agree and its ranges add up."""
    try:
        forward = decode_forward(body)
    except ValueError:
        return None
    records = forward.lost + forward.count
    return FrameRemains(FrameKind.FORWARD, topic_id, forward.first_seq, records, forward.base, forward.text_length)
