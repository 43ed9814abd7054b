"""Streamed answers by themselves: pieces are sent like a whole."""

import pytest

from topics.http.output_backpressure import Account
from topics.http.streaming import Stream


class FakeChannel:
    """Implements `StreamChannel`."""

    write_paused = False
    buffered_bytes = 0

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def write(self, data: bytes) -> bool:
        self.sent.append(data)
        return True

    def end_stream(self, *, last: bool) -> None: ...

    def room(self, account: Account) -> int:
        return 0


@pytest.mark.parametrize("chunked", [True, False])
def test_pieces_are_sent_as_one(chunked: bool) -> None:
    whole, pieces = FakeChannel(), FakeChannel()
    one, other = Stream(chunked=chunked, muted=False), Stream(chunked=chunked, muted=False)
    assert not one.write(b"held") and not other.write_pieces([b"he", b"ld"])
    one.begin(whole)
    other.begin(pieces)
    assert one.write(b"abcdefghijklmnopq") and other.write_pieces([b"abcdefgh", b"", b"ijklmnopq"])
    assert pieces.sent == whole.sent and len(whole.sent) == 2
    assert other.write_pieces([]) and pieces.sent == whole.sent


def test_pieces_for_nobody_are_dropped() -> None:
    assert not Stream.lost().write_pieces([b"a"])
    muted, channel = Stream(chunked=True, muted=True), FakeChannel()
    muted.begin(channel)
    assert muted.write_pieces([b"a"]) and not channel.sent
