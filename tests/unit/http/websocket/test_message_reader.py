"""Texts that are read without the library equal the texts that the library would have read."""

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from topics.http.messages import HttpError, HttpLimits
from topics.http.request_body import Budget, LargeBody
from topics.http.websocket.message_reader import Message, MessageReader

_MAX_BYTES = 5000


class ByTheLibrary(MessageReader):
    def _read_texts(self, data: bytes) -> int:
        return 0

    def _is_begun(self, data: bytes) -> bool:
        return False


def read(
    kind: type[MessageReader], pieces: list[bytes], *, together: bool = False
) -> tuple[list[Message], State, list[bytes], int]:
    """Returns the messages, and the bytes for the peer."""
    protocol = ServerProtocol(state=State.OPEN)
    budget = Budget(1 << 30)
    limits = HttpLimits(body_bytes=_MAX_BYTES, refused_message_bytes=_MAX_BYTES)
    reader, messages = kind(protocol, budget, b"", limits), []
    for piece in pieces:
        reader.feed(piece)
        while reader.has_more:
            reader.read_on()
            several = reader.texts() if together and reader.together > 1 else ()
            # A caller of `texts` need not take all of them at once.
            reader.took(len(several) - len(several) // 3)
            messages += [Message(text, True) for text in several[: len(several) - len(several) // 3]]
            if not several and (message := reader.next_message()) is not None:
                # An error equals no other one.
                refused = message.error is not None and HttpError(message.error.fault).code
                messages.append(message if not refused else Message(f"{refused}: {message.data!r}".encode(), False))
    state, said = protocol.state, protocol.data_to_send()
    reader.release()
    return messages, state, said, budget.held_bytes


def frame(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin=fin).serialize(mask=True)


def longwinded(data: bytes) -> bytes:
    """A text whose length takes more bytes than it needs."""
    return b"\x81\xff" + struct.pack("!Q", len(data)) + bytes(4) + data


texts = (
    st.text(max_size=300).map(str.encode)
    | st.binary(max_size=3)
    | st.sampled_from([b"x" * n for n in (125, 126, 5001)])
)
frames = st.one_of(
    texts.map(lambda data: frame(Opcode.TEXT, data)),
    texts.map(lambda data: frame(Opcode.BINARY, data)),
    texts.map(lambda data: frame(Opcode.TEXT, data, fin=False)),
    texts.map(lambda data: frame(Opcode.CONT, data)),
    texts.map(lambda data: frame(Opcode.CONT, data, fin=False)),
    st.binary(max_size=100).map(lambda data: frame(Opcode.PING, data)),
    texts.map(longwinded),
    st.just(frame(Opcode.CLOSE, struct.pack("!H", 1000))),
    # Unmasked, reserved bits, unknown, cut off.
    st.sampled_from([b"\x81\x01a", b"\xc1\x81\0\0\0\0a", b"\x83\x80\0\0\0\0", b"\x81", b"\x81\xfe\0"]),
)


@given(st.lists(frames, max_size=12), st.lists(st.integers(0, 4000), max_size=6))
def test_a_peer_is_read_as_the_library_reads_it(sent: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(sent)
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[begin:end] for begin, end in itertools.pairwise(places)]
    expected = read(ByTheLibrary, pieces)
    assert read(MessageReader, pieces) == expected
    assert read(MessageReader, pieces, together=True) == expected


def test_texts_in_one_piece_never_reach_the_library() -> None:
    protocol = ServerProtocol(state=State.OPEN)
    reader = MessageReader(protocol, Budget(1 << 20), b"")
    protocol.receive_data = lambda data: None  # type: ignore[method-assign]
    for data in (b"a", b"b" * 125, b"c" * 126, b"d" * 300, b""):
        reader.feed(frame(Opcode.TEXT, data))
    found = []
    while reader.has_more:
        reader.read_on()
        message = reader.next_message()
        assert message is not None and isinstance(message.data, bytes)
        found.append(len(message.data))
    assert found == [1, 125, 126, 300, 0]


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 6, 7, 8, 100, 16_000, 16_384, 17_000, 40_000])
def test_texts_that_are_cut_off_never_reach_the_library(cut: int) -> None:
    protocol = ServerProtocol(state=State.OPEN)
    reader, found = MessageReader(protocol, Budget(1 << 20), b""), []
    protocol.receive_data = lambda data: pytest.fail("it was asked")  # type: ignore[method-assign]
    texts = [b"%d" % number * (number % 90) for number in range(400)]
    whole = b"".join(frame(Opcode.TEXT, text) for text in texts)
    for begin in range(0, len(whole), cut):
        reader.feed(whole[begin : begin + cut])
        while reader.has_more:
            reader.read_on()
            if (message := reader.next_message()) is not None:
                found.append(message.data)
    assert found == texts


@pytest.mark.parametrize("data", [b"\x81\x01", b"\x81\x7f", b"\x81\xfe\x13\x89\0\0", b"\x01\x85", b"\x89", b"\xc1"])
def test_the_beginning_of_something_else_is_given_to_the_library_at_once(data: bytes) -> None:
    protocol = ServerProtocol(state=State.OPEN)
    reader = MessageReader(protocol, Budget(1 << 20), b"", HttpLimits(body_bytes=_MAX_BYTES))
    asked: list[bytes] = []
    protocol.receive_data = asked.append  # type: ignore[assignment, method-assign]
    reader.feed(frame(Opcode.TEXT, b"x") + data)
    reader.read_on()
    assert asked == [data]


@pytest.mark.parametrize("opcode", [Opcode.CONT, Opcode.PING])
@pytest.mark.parametrize("cut", [7, 5_000, 1_000_000])
def test_a_piece_holds_a_bounded_number_of_frames(opcode: Opcode, cut: int) -> None:
    """The library takes as long for an empty frame as for any other, and cannot be stopped within a piece."""
    protocol = ServerProtocol(state=State.OPEN)
    reader = MessageReader(protocol, Budget(1 << 20), b"", HttpLimits(message_fragments=1 << 20))
    counted: list[int] = []
    received = protocol.recv_frame

    def count(frame: Frame) -> None:
        counted[-1] += 1
        received(frame)

    protocol.recv_frame = count  # type: ignore[method-assign]
    whole = frame(Opcode.TEXT, b"a", fin=False) + frame(opcode, b"", fin=opcode is Opcode.PING) * 5_000
    for begin in range(0, len(whole), cut):
        reader.feed(whole[begin : begin + cut])
        while reader.has_more:
            counted.append(0)
            reader.read_on()
            reader.next_message()
    assert sum(counted) >= 1001
    assert max(counted) <= 33, "one of them may have begun before"


def test_texts_behind_a_length_with_needless_bytes_are_read_without_the_library() -> None:
    protocol = ServerProtocol(state=State.OPEN)
    reader = MessageReader(protocol, Budget(1 << 20), b"")
    reader.feed(longwinded(b"a"))
    reader.read_on()
    assert reader.next_message() == Message(b"a", True)
    protocol.receive_data = lambda data: pytest.fail("it was asked")  # type: ignore[method-assign]
    reader.feed(frame(Opcode.TEXT, b"b"))
    reader.read_on()
    assert reader.next_message() == Message(b"b", True)


def read_all(reader: MessageReader, data: bytes, cut: int) -> list[Message]:
    found = []
    for begin in range(0, len(data), cut):
        reader.feed(data[begin : begin + cut])
        while reader.has_more:
            reader.read_on()
            if (message := reader.next_message()) is not None:
                found.append(message)
    return found


def content(message: Message) -> bytes:
    return bytes(message.data.view) if isinstance(message.data, LargeBody) else message.data


@pytest.mark.parametrize("cut", [999, 16_384, 70_000, 10_000_000])
def test_long_messages_in_any_frames_are_read_whole(cut: int) -> None:
    budget = Budget(1 << 24)
    reader = MessageReader(ServerProtocol(state=State.OPEN), budget, b"")
    long = ("é" * 800_001).encode()
    parts = [frame(Opcode.TEXT, long[:3], fin=False), frame(Opcode.PING, b"between")]
    parts += [frame(Opcode.CONT, long[at : at + 50_001], fin=False) for at in range(3, len(long), 50_001)]
    wire = frame(Opcode.TEXT, long) + b"".join(parts) + frame(Opcode.CONT, b"!") + frame(Opcode.BINARY, b"z" * 20_000)
    found = read_all(reader, wire + frame(Opcode.TEXT, b"end"), cut)
    assert [content(message) for message in found] == [long, long + b"!", b"z" * 20_000, b"end"]
    assert [message.is_text for message in found] == [True, True, False, True]
    for message in found:
        if isinstance(message.data, LargeBody):
            message.data.release()
    assert budget.held_bytes == 0


def test_a_message_announced_too_long_is_refused_before_its_memory_is_taken() -> None:
    budget = Budget(1 << 20)
    limits = HttpLimits(body_bytes=100_000, refused_message_bytes=1_000_000)
    reader = MessageReader(ServerProtocol(state=State.OPEN), budget, b"", limits)
    wire = frame(Opcode.TEXT, b"a" * 500_000)
    reader.feed(wire[:90_000])
    while reader.has_more:
        reader.read_on()
    assert (budget.held_bytes, reader.next_message()) == (0, None)
    (refused, after) = read_all(reader, wire[90_000:] + frame(Opcode.TEXT, b"b"), 16_384)
    assert refused.error is not None and refused.error.code == "body_too_large"
    assert refused.data == b"a" * 4096
    assert after == Message(b"b", True)


def test_a_message_without_progress_is_refused_and_gives_its_memory_back() -> None:
    now, budget = [0.0], Budget(1 << 20)
    protocol = ServerProtocol(state=State.OPEN)
    reader = MessageReader(protocol, budget, b"", HttpLimits(body_idle_timeout_s=10.0), lambda: now[0])
    wire = frame(Opcode.TEXT, b"a" * 200_000)
    assert read_all(reader, wire[:100_000], 16_384) == []
    for seconds, is_read, held in ((5.0, True, True), (12.0, False, True), (21.0, True, True), (23.0, True, False)):
        now[0] = seconds
        reader.refuse_stalled(seconds, is_read)
        assert bool(budget.held_bytes) is held
    (message,) = read_all(reader, wire[100_000:], 16_384)
    assert message.error is not None and message.error.code == "timeout"
