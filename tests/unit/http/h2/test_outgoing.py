"""Queued output comes out whole and in order, in any portions, and streams take turns."""

import random

from topics.http.h2.frames import Session
from topics.http.h2.stream import Outbox, Outgoing
from topics.http.messages import HttpLimits


def test_bytes_come_out_as_they_went_in(seed: int) -> None:
    rng = random.Random(seed)
    out = Outgoing()
    given, taken = b"", b""
    for _ in range(500):
        part = rng.randbytes(rng.choice([0, 1, 10, 5000]))
        given += part
        out.add(part)
        taken += bytes(out.take(rng.randrange(3000)))
        assert out.nbytes == len(given) - len(taken)
    assert taken + bytes(out.take(10**9)) == given
    assert (out.nbytes, bytes(out.take(5))) == (0, b"")


class FakeSession(Session):
    """Windows and sent frames, without the rest of the protocol."""

    def __init__(self) -> None:
        super().__init__(HttpLimits())
        self.windows: dict[int, int] = {}
        self.sent: list[tuple[int, int, bool]] = []

    def local_flow_control_window(self, stream_id: int) -> int:
        return self.windows[stream_id]

    def send_data(
        self, stream_id: int, data: bytes | memoryview, end_stream: bool = False, pad_length: object = None
    ) -> None:
        self.windows[stream_id] -= len(data)
        self.sent.append((stream_id, len(data), end_stream))


class FakeStream:
    def __init__(self, stream_id: int, *parts: bytes, ended: bool = True) -> None:
        self.stream_id = stream_id
        self.out = Outgoing()
        for part in parts:
            self.out.add(part)
        self.out.ended = ended
        self.reported: list[int] = []

    def sent(self, nbytes: int) -> None:
        self.reported.append(nbytes)


def test_streams_take_turns_by_frames_and_wait_aside_for_their_windows() -> None:
    session = FakeSession()
    session.windows = {1: 20_000, 3: 100_000, 5: 0, 7: 0}
    outbox = Outbox(session)
    streams = [FakeStream(1, b"x" * 40_000), FakeStream(3, b"x" * 20_000), FakeStream(5, b"x"), FakeStream(7)]
    for stream in streams:
        outbox.add(stream)
    while outbox.step():
        pass
    assert session.sent == [(1, 16_384, False), (3, 16_384, False), (7, 0, True), (1, 3616, False), (3, 3616, True)]
    session.windows.update({1: 50_000, 5: 1})
    outbox.add(streams[0])
    assert not outbox.step(), "a stream that waits aside is not ready because somebody writes to it"
    outbox.opened()
    while outbox.step():
        pass
    assert session.sent[5:] == [(5, 1, True), (1, 16_384, False), (1, 3616, True)]
    assert [sum(stream.reported) for stream in streams] == [40_000, 20_000, 1, 0]


def test_a_stream_that_left_sends_nothing() -> None:
    session = FakeSession()
    session.windows = {1: 10, 3: 0}
    outbox = Outbox(session)
    gone = [FakeStream(1, b"x"), FakeStream(3, b"x")]
    for stream in gone:
        outbox.add(stream)
    outbox.discard(gone[0])
    assert not outbox.step()
    outbox.discard(gone[1])
    outbox.opened()
    assert not outbox.step()
    assert session.sent == []
