"""A WebSocket gives out the same messages for every division of its bytes, and survives all input.

It runs without a network, because only there can a test choose where the bytes are cut.
"""

import struct
from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from tests.http.protocol.memory import Memory, cut
from tests.http.protocol.websockets import (
    BINARY,
    CLOSE,
    CONT,
    HANDSHAKE,
    PING,
    PONG,
    TEXT,
    Heard,
    Recorder,
    SocketApp,
    closing,
    frame,
    split_frames,
)
from tests.property.effort import effort

_LIMIT = 40_000


@dataclass
class Said:
    """The input of a peer, and the expected result."""

    wire: bytes = b""
    texts: list[bytes] = field(default_factory=list)
    binaries: list[bytes] = field(default_factory=list)
    pongs: list[bytes] = field(default_factory=list)


@st.composite
def conversations(draw: st.DrawFn) -> Said:
    said = Said()
    texts = st.text(max_size=40).map(str.encode) | st.integers(15_000, 20_000).map(lambda n: b"long " * (n // 5))
    for _ in range(draw(st.integers(1, 6))):
        is_text = draw(st.booleans())
        payload = draw(texts if is_text else st.binary(max_size=40))
        (said.texts if is_text else said.binaries).append(payload)
        parts = cut(payload, draw(st.lists(st.integers(0, 20_000), max_size=3)))
        for index, part in enumerate(parts):
            if draw(st.booleans()):
                ping = draw(st.binary(max_size=8))
                said.wire += frame(PING, ping)
                said.pongs.append(ping)
            opcode = CONT if index else TEXT if is_text else BINARY
            said.wire += frame(opcode, part, fin=index == len(parts) - 1)
    return said


def _open(wire: list[bytes], **limits: int) -> tuple[Memory, Recorder]:
    memory = Memory(SocketApp(), body_bytes=_LIMIT, **limits)
    memory.send(HANDSHAKE)
    app = memory.app
    assert isinstance(app, SocketApp)
    [recorder] = app.recorders
    memory.send(*wire)
    return memory, recorder


def _frames(memory: Memory) -> list[Heard]:
    head, _, stream = memory.answered.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    return split_frames(stream)


@effort(100)
@given(conversations(), st.lists(st.integers(0, 60_000), max_size=12))
def test_messages_are_the_same_however_they_are_cut(said: Said, places: list[int]) -> None:
    memory, recorder = _open(cut(said.wire + closing(), places))
    assert (recorder.texts, recorder.binaries) == (said.texts, said.binaries)
    heard = _frames(memory)
    assert [one.data for one in heard if one.opcode == TEXT] == said.texts
    assert [one.data for one in heard if one.opcode == PONG] == said.pongs
    assert heard[-1] == Heard(CLOSE, struct.pack("!H", 1000))
    assert memory.wire.ended
    memory.leave()
    assert (recorder.closings, recorder.gone) == (1, 1)


@effort(40)
@given(conversations())
def test_messages_are_the_same_byte_by_byte(said: Said) -> None:
    wire = said.wire[:3000]
    whole, first = _open([wire])
    bytewise, second = _open([wire[at : at + 1] for at in range(len(wire))])
    assert (first.texts, first.binaries) == (second.texts, second.binaries)
    # Pongs overtake answers within a piece, so their order among each other is all that can be compared.
    for opcode in (TEXT, PONG):
        assert [one for one in _frames(whole) if one.opcode == opcode] == [
            one for one in _frames(bytewise) if one.opcode == opcode
        ]
    for memory in (whole, bytewise):
        memory.leave()


scraps = st.one_of(
    st.binary(max_size=30),
    st.builds(
        frame,
        st.integers(0, 15),
        st.binary(max_size=200),
        fin=st.booleans(),
        masked=st.booleans(),
        rsv=st.integers(0, 7),
    ),
    st.sampled_from(
        [
            closing(),
            closing(1005),
            frame(CLOSE),
            frame(TEXT, b"\xff\xfe"),
            frame(TEXT, b"x" * 30_000, fin=False),
            frame(CONT, b"x" * 30_000, fin=False),
            frame(CONT, b""),
            b"\x81\xff" + b"\xff" * 8 + b"mask",
            b"\x81\xfe\x00\x05mask",
            b"GET / HTTP/1.1\r\n\r\n",
        ]
    ),
)


@effort(200)
@given(st.lists(scraps, max_size=10), st.lists(st.integers(0, 60_000), max_size=6), st.booleans())
@example([frame(TEXT, b"x" * 30_000, fin=False), frame(CONT, b"x" * 10_001)], [], False)
@example([closing(), closing()], [3], True)
def test_whatever_comes_the_connection_ends_and_lets_go(parts: list[bytes], places: list[int], close: bool) -> None:
    memory, recorder = _open(cut(b"".join(parts), places), bodies_bytes=100_000)
    if close:
        recorder.socket.close()
        memory.send(closing())
    heard = _frames(memory)
    assert all(len(text) <= _LIMIT for text in recorder.texts + recorder.binaries)
    assert all(text.decode() is not None for text in recorder.texts)
    closes = [one for one in heard if one.opcode == CLOSE]
    assert len(closes) <= 1 and (not closes or heard[-1] is closes[0])
    if memory.wire.ended:
        assert closes or recorder.closings
    memory.leave()
    assert recorder.gone == 1 and recorder.closings <= 1


@effort(60)
@given(conversations(), st.lists(st.integers(0, 60_000), max_size=6), st.data())
def test_pauses_of_the_receiver_change_nothing(said: Said, places: list[int], data: st.DataObject) -> None:
    memory, recorder = _open([])

    def pause(text: bytes) -> None:
        recorder.echo(text)
        if data.draw(st.booleans()):
            recorder.socket.hold()

    recorder.answer = pause
    memory.send(*cut(said.wire + closing(), places))
    for _ in range(20):
        recorder.socket.release()
        memory.deliver()
    assert (recorder.texts, recorder.binaries) == (said.texts, said.binaries)
    assert [one.data for one in _frames(memory) if one.opcode == TEXT] == said.texts
    assert _frames(memory)[-1].opcode == CLOSE
    memory.leave()
