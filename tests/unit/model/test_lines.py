"""JSON text as one line."""

import json

import pytest

from topics.model.records import in_one_line


@pytest.mark.parametrize("text", ["1", '{"a":\n 1}', '[\r\n"x\\n\u2028",\r2]', ' "\\r\\n" '])
def test_it_has_no_breaks_and_states_the_same(text: str) -> None:
    found = in_one_line(text.encode())
    assert b"\n" not in found and b"\r" not in found
    assert json.loads(found) == json.loads(text)
    assert len(found) == len(text.encode())
