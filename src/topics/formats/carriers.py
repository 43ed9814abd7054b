"""The block inside a frame, whichever kind of frame carries it.

    APPEND                         the body is the block
    ARRIVAL                        the block stands behind where its records came from (`formats.queue`)
    STREAM_APPEND, STREAM_CREATE   the block stands behind what it changes in its stream (`formats.stream`)
    TXN_STAGE, TXN_APPEND          the block stands behind what says of which transaction it is (`formats.transaction`)

A FORWARD carries no block: its records are those of another topic's frames (`formats.routing`).
"""

from topics.formats.frame import FrameKind
from topics.formats.queue import decode_arrival
from topics.formats.stream import stream_block_in
from topics.formats.transaction import decode_append, staged_block

BLOCK_KINDS = frozenset(
    (
        FrameKind.APPEND, FrameKind.ARRIVAL, FrameKind.STREAM_APPEND, FrameKind.STREAM_CREATE, FrameKind.TXN_STAGE,
        FrameKind.TXN_APPEND,
    )
)  # fmt: skip
"""The frames that may carry a block; a stream may be created without one."""


def block_in(kind: FrameKind, body: memoryview) -> memoryview | None:
    """The block that a frame carries, whatever else it says; None when it carries none."""
    if kind is FrameKind.APPEND:
        return body
    if kind is FrameKind.ARRIVAL:
        return decode_arrival(body)[1]
    if kind is FrameKind.TXN_APPEND:
        return decode_append(body)[1]
    if kind is FrameKind.TXN_STAGE:
        return staged_block(body)
    return stream_block_in(kind, body) if kind in BLOCK_KINDS else None
