"""The block inside a frame of any kind that carries one.

    APPEND                         the body is the block
    ARRIVAL                        the block stands behind where its records came from (`queues.queue_frames`)
    STREAM_APPEND, STREAM_CREATE   the block stands behind what it changes in its stream (`streams.stream_frames`)
    TXN_STAGE, TXN_APPEND          the block stands behind what says of which transaction it is
    (`transactions.transaction_frames`)

A FORWARD carries no block: its records are those of another topic's frames (`routers.router_frames`).
"""

from topics.log.frame import FrameKind
from topics.queues.queue_frames import decode_arrival
from topics.streams.stream_frames import stream_block_in
from topics.transactions.transaction_frames import decode_append, staged_block

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
