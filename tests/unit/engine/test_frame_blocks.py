import pytest

from topics.engine.features import BLOCK_KINDS, block_in
from topics.log.frame import FrameKind


def test_the_body_of_an_append_is_its_block() -> None:
    assert bytes(block_in(FrameKind.APPEND, memoryview(b"block")) or b"") == b"block"


@pytest.mark.parametrize("kind", [kind for kind in FrameKind if kind not in BLOCK_KINDS])
def test_other_frames_carry_none(kind: FrameKind) -> None:
    assert block_in(kind, memoryview(b"anything")) is None
