"""From the bytes of a WebSocket to its messages: fragments, limits, and the rules that the library does not check.

Bytes are given to the library in pieces, because it cannot be stopped within what it was given: a piece holds some
thousand of the smallest frames, and that is the most that is ever read ahead of whoever takes the messages.
"""

from collections import deque
from typing import NamedTuple

from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from topics.http.bodies import Budget
from topics.http.errors import HttpError
from topics.http.limits import KIB

_PIECE_BYTES = 16 * KIB
# Unfinished messages up to this size are not counted in the budget: the number of connections bounds them well enough.
_UNCOUNTED_BYTES = 64 * KIB


class Message(NamedTuple):
    data: bytes
    is_text: bool
    """Then it is valid UTF-8."""


class MessageReader:
    """Reads the messages of one connection. Everything a peer sent before it broke a rule counts, nothing after it."""

    __slots__ = ("_budget", "_frames", "_parts", "_parts_are_text", "_taken_bytes", "_unread", "protocol")

    def __init__(self, protocol: ServerProtocol, budget: Budget, unread: bytes) -> None:
        self.protocol = protocol
        self._budget = budget
        self._unread: bytes | memoryview = unread
        # Frames that are read and not yet given out.
        self._frames: deque[Frame] = deque()
        # What came so far of a message in several frames.
        self._parts = bytearray()
        self._parts_are_text = False
        # What unfinished messages hold of the budget.
        self._taken_bytes = 0

    def feed(self, data: bytes) -> None:
        self._unread = bytes(self._unread) + data if self._unread else data

    def next_message(self) -> Message | None:
        """The next one, or None: ask again while `has_more`. A call reads one piece at most, so that what the library
        has to say to it can be sent before the next."""
        if not self._frames:
            self._read_piece()
        while self._frames:
            message = self._assemble(self._frames.popleft())
            if message is not None:
                return message
        return None

    def skip(self) -> None:
        """Reads on without giving anything out, for the peer's last word."""
        while self._read_piece():
            self._frames.clear()

    @property
    def has_more(self) -> bool:
        """Whether anything waits to be read or given out."""
        return bool(self._unread or self._frames)

    @property
    def is_over(self) -> bool:
        """Whether no message will come after those that are here: the peer closed, or broke a rule."""
        return not self._frames and self.protocol.state is not State.OPEN

    def drop_messages(self) -> None:
        """Forgets what is not given out. Bytes stay: they may begin in the middle of a frame."""
        self._frames.clear()
        self._parts = bytearray()
        self._settle()

    def drop(self) -> None:
        """Forgets everything; nothing more is read."""
        self._unread = b""
        self.protocol.reader.discard()
        self.drop_messages()

    def release(self) -> None:
        """The connection is lost."""
        self.drop()
        # The parser is a generator that holds the protocol that holds it: this should not wait for a collection.
        self.protocol.parser.close()

    def _read_piece(self) -> bool:
        """Reads some of the bytes that came. Returns whether there were any."""
        piece = self._unread
        if not piece:
            return False
        if len(piece) > _PIECE_BYTES:
            rest = memoryview(piece)
            piece, self._unread = rest[:_PIECE_BYTES], rest[_PIECE_BYTES:]
        else:
            self._unread = b""
        self.protocol.receive_data(bytes(piece))
        self._frames.extend(event for event in self.protocol.events_received() if isinstance(event, Frame))
        self._settle()
        return True

    def _assemble(self, frame: Frame) -> Message | None:
        """The message that a frame completes, if it does."""
        if frame.opcode is Opcode.CONT:
            self._parts += frame.data
        elif frame.opcode is Opcode.TEXT or frame.opcode is Opcode.BINARY:
            is_text = frame.opcode is Opcode.TEXT
            if frame.fin:
                return self._checked(bytes(frame.data), is_text)
            self._parts_are_text = is_text
            self._parts += frame.data
        else:
            # The library answers pings and closes; that the peer lives is known from its bytes.
            return None
        whole = bytes(self._parts) if frame.fin else None
        if whole is not None:
            self._parts = bytearray()
        self._settle()
        return None if whole is None else self._checked(whole, self._parts_are_text)

    def _checked(self, data: bytes, is_text: bool) -> Message | None:
        try:
            if is_text and not data.isascii():
                data.decode()
        except UnicodeDecodeError:
            self._fail(CloseCode.INVALID_DATA, "a text message is not valid UTF-8")
            return None
        return Message(data, is_text)

    def _settle(self) -> None:
        """Settles with the budget what is held of messages that are not complete."""
        nbytes = len(self.protocol.reader.buffer) + len(self._parts)
        if nbytes <= _UNCOUNTED_BYTES:
            nbytes = 0
        if nbytes == self._taken_bytes:
            return
        try:
            if nbytes > self._taken_bytes:
                self._budget.take(nbytes - self._taken_bytes)
            else:
                self._budget.held_bytes -= self._taken_bytes - nbytes
            self._taken_bytes = nbytes
        except HttpError as error:
            self._fail(CloseCode.TRY_AGAIN_LATER, error.message)

    def _fail(self, code: CloseCode, reason: str) -> None:
        self.drop()
        # When we closed already, or the peer did behind this, there is nothing left to say but the end of the bytes.
        if self.protocol.state is State.OPEN or not self.protocol.eof_sent:
            self.protocol.fail(code, reason)
