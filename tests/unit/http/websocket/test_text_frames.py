"""Frames made by hand equal the library's."""

import pytest
from websockets.frames import Frame, Opcode

from topics.http import text_frame
from topics.http.websocket.message_reader import text_frames


@pytest.mark.parametrize("nbytes", [0, 1, 125, 126, 127, 65535, 65536, 70000])
def test_a_text_frame_is_what_the_library_makes(nbytes: int) -> None:
    text = b"x" * nbytes
    assert text_frame(text) == Frame(Opcode.TEXT, text).serialize(mask=False)


def test_several_are_one_behind_the_other() -> None:
    texts = [b"x" * nbytes for nbytes in (3, 3, 125, 126, 126, 0, 65536)]
    assert text_frames(texts) == b"".join(map(text_frame, texts))
