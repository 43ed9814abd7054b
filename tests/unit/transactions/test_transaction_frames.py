"""The frames of transactions: they come back as they were written, and are taken for no others."""

from struct import error as StructError

import pytest

from topics.engine.features import BLOCK_KINDS, block_in
from topics.log.frame import FrameKind, encode_block_head
from topics.queues.queue_frames import JobTerms
from topics.transactions.transaction_frames import (
    Begun,
    Committed,
    Ended,
    KnownState,
    OpenState,
    PartState,
    Placed,
    Staged,
    TransactionsPart,
    decode_append,
    decode_begun,
    decode_committed,
    decode_ended,
    decode_part,
    decode_stage,
    encode_append_head,
    encode_mark,
    encode_stage_head,
)

TEXT = b'{"$seq":1,"$ts":1,"data":0}'
BLOCK = encode_block_head(1, 1, 1, 0, 0, b"", bytes(12), len(TEXT)) + TEXT
STAGED = Staged("t", 7, "a", "p", "topic", 5, None, b'{"cap_records":1}')


def test_marks_come_back() -> None:
    begun = Begun("t", 7, "a", "owner", 1000, 5)
    ended = Ended("t", 7, "a")
    committed = Committed(2**64 - 1, "t", 7, 5, [Placed("x", 1, 2, 2)])
    part = TransactionsPart(
        [OpenState("t", 7, "a", "owner", 1000, 5, [PartState("p", "x", 1, 2, 3, True, None, JobTerms(1, None, 2))])],
        [KnownState("u", 1, 5, [Placed("x", 1, 2, 2)])],
    )
    assert decode_begun(encode_mark(begun)) == begun
    assert decode_ended(encode_mark(ended)) == ended
    assert decode_committed(encode_mark(committed)) == committed
    assert decode_part(encode_mark(part)) == part


def test_blocks_come_back() -> None:
    staged, block = decode_stage(memoryview(encode_stage_head(STAGED) + BLOCK))
    assert (staged, bytes(block)) == (STAGED, BLOCK)
    number, block = decode_append(memoryview(encode_append_head(9) + BLOCK))
    assert (number, bytes(block)) == (9, BLOCK)


@pytest.mark.parametrize(
    ("kind", "head"),
    [(FrameKind.TXN_STAGE, encode_stage_head(STAGED)), (FrameKind.TXN_APPEND, encode_append_head(9))],
)
def test_no_other_kind_finds_a_block_in_it(kind: FrameKind, head: bytes) -> None:
    """A frame whose kind is damaged must not be read as another kind."""
    body = memoryview(head + BLOCK)
    for other in BLOCK_KINDS:
        try:
            found = block_in(other, body)
        except ValueError:
            continue
        assert (found is not None and bytes(found) == BLOCK) == (other is kind)


@pytest.mark.parametrize("body", [b"", b"TXS1", b"TXS1" + b"\xff" * 4, b"XXXX" + bytes(20)])
def test_invalid_frames_are_refused(body: bytes) -> None:
    with pytest.raises((ValueError, StructError)):
        decode_stage(memoryview(body))
    with pytest.raises((ValueError, StructError)):
        decode_append(memoryview(body[:4]))
