"""WebSocket message reading: frames, fragmentation, limits, and rules that the library does not check.

Bytes are given to the library in pieces, because it cannot be stopped within what it was given. A piece ends behind a
number of frames: the library takes 11 microseconds for each of them, however short it is, so a piece of the smallest
ones would block the loop. It also bounds how far the reader is ahead of its receiver.

A message may consist of so many frames, and so many pings and pongs may come in a second; a peer that sends more is
closed with 1008.

Most messages are a short text in one frame. Those at the beginning of a piece, while the library stands between two
frames, are read here in a thirtieth of the time that the library takes (0.3 against 11 microseconds). Several of them
may be taken together, and one that is cut off waits here for its rest. Everything else, and everything invalid, is left
to the library.

WebSocket handshake, and frames that are encoded once for all clients.

The library checks the request and computes the response. No extension is ever negotiated, above all not compression of
messages (permessage-deflate): it costs a connection a third of a megabyte and every message its CPU twice, it makes the
bytes of a message differ from client to client, so that one encoded frame could no longer be shared by all of them, and
compressing text of others together with secrets leaks them through the length.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from http import HTTPStatus
from itertools import islice
from typing import NamedTuple, cast

from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake, InvalidHeader, InvalidUpgrade
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from topics.http.messages import KIB, HttpError, HttpLimits, RequestHead, Tokens
from topics.http.request_body import Budget

try:
    from websockets.speedups import apply_mask
except ImportError:
    # Where it could not be compiled.
    from websockets.utils import apply_mask


_VERSION = "sec-websocket-version"
# The library tells of the connections it closes, which would be a line for every client that leaves.
_quiet = logging.getLogger(f"{__name__}.library")
_quiet.setLevel(logging.WARNING)


class HandshakeError(Exception):
    """The request cannot become a WebSocket."""

    def __init__(self, status: int, message: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


class Handshake(NamedTuple):
    """A request that may become a WebSocket, and what is needed for it."""

    protocol: ServerProtocol
    answer: bytes
    """The head of the answer that makes it one."""


def read_handshake(head: RequestHead) -> Handshake:
    """Raises `HandshakeError` for what is no handshake, or one that this server does not understand."""
    protocol = ServerProtocol(state=State.OPEN, logger=_quiet)
    request = Request(head.target.decode("latin-1"), _headers(head), head.method, f"HTTP/{head.http_version}")
    if head.http_version not in ("1.1", "1.0"):
        raise _not_a_websocket("the handshake must be an HTTP/1.1 request")
    if not head.upgrade:
        raise _not_a_websocket("the request does not ask for one")
    try:
        accept, _, _ = protocol.process_request(request)
    except InvalidUpgrade as error:
        raise _not_a_websocket(str(error)) from error
    except InvalidHandshake as error:
        if isinstance(error, InvalidHeader) and error.name.lower() == _VERSION:
            raise HandshakeError(HTTPStatus.UPGRADE_REQUIRED, str(error), ((_VERSION, "13"),)) from error
        raise HandshakeError(HTTPStatus.BAD_REQUEST, f"not a valid WebSocket handshake: {error}") from error
    return Handshake(protocol, _answer(accept))


def _headers(head: RequestHead) -> Headers:
    headers = Headers()
    for name, value in head.headers:
        headers[name] = value
    return headers


def _answer(accept: str) -> bytes:
    lines = (
        "HTTP/1.1 101 Switching Protocols",
        "upgrade: websocket",
        "connection: Upgrade",
        f"sec-websocket-accept: {accept}",
    )
    return "\r\n".join((*lines, "", "")).encode("ascii")


def _not_a_websocket(why: str) -> HandshakeError:
    message = f"this path speaks WebSocket only: {why}"
    return HandshakeError(HTTPStatus.UPGRADE_REQUIRED, message, (("upgrade", "websocket"), ("connection", "Upgrade")))


# Text frames, encoded without the library.
#
# A frame of a server is not masked, so the bytes of a message are the same for every client that gets it: they are made
# once and written to as many transports as there are. A frame with a text is its header in front of the text:
#
#     81            the only frame of a message, text
#     00..7d        the length, if it is below 126
#     7e nnnn       the length in two bytes, if it fits
#     7f nnnnnnnnnnnnnnnn                      otherwise in eight
#
# `Frame.serialize` of the library gives the same bytes in five times the time (1.1 against 0.2 microseconds), which
# every answer to every command would pay.

_TEXT = 0x81
_SHORT_MAX = 125
_TWO_BYTES_MAX = 0xFFFF


def text_frame(text: bytes) -> bytes:
    """A whole message as one frame. `text` has to be UTF-8; what makes it is trusted with that."""
    return _head(len(text)) + text


def text_frames(texts: Sequence[bytes]) -> bytes:
    """Several of them, one behind the other."""
    if len(texts) == 1:
        return text_frame(texts[0])
    sizes = set(map(len, texts))
    if len(sizes) == 1:
        # As most are that are said at once.
        head = _head(sizes.pop())
        return head + head.join(texts)
    return b"".join(map(text_frame, texts))


def _head(nbytes: int) -> bytes:
    if nbytes <= _SHORT_MAX:
        return bytes((_TEXT, nbytes))
    if nbytes <= _TWO_BYTES_MAX:
        return b"\x81\x7e" + nbytes.to_bytes(2, "big")
    return b"\x81\x7f" + nbytes.to_bytes(8, "big")


_PIECE_BYTES = 16 * KIB
_LIBRARY_FRAMES_MAX = 32
"""Frames that the library is given at a time: a third of a millisecond of work."""
# Unfinished messages up to this size are not counted in the budget: the number of connections bounds them well enough.
_UNCOUNTED_BYTES = 64 * KIB
_WHOLE_TEXT = 0x81
_MASKED = 0x80
_IN_TWO_BYTES = 126
_IN_EIGHT_BYTES = 127
_MASK_BYTES = 4
_HEAD_BYTES_MIN = 2 + _MASK_BYTES
_LIMITS = HttpLimits()
_BEGUN_BYTES_MAX = _PIECE_BYTES - _HEAD_BYTES_MIN - 2


class Message(NamedTuple):
    data: bytes
    is_text: bool
    """Then it is valid UTF-8."""


class MessageReader:
    """Reads the messages of one connection. Everything a peer sent before it broke a rule counts, nothing after it."""

    __slots__ = (
        "_ahead_bytes", "_begun", "_budget", "_control", "_fragments", "_fragments_max", "_frames", "_head",
        "_monotonic", "_parts", "_parts_are_text", "_taken_bytes", "_unread", "protocol", "together",
    )  # fmt: skip

    def __init__(
        self, protocol: ServerProtocol, budget: Budget, unread: bytes, limits: HttpLimits = _LIMITS,
        monotonic: Callable[[], float] = float,
    ) -> None:  # fmt: skip
        """Without a clock, time stands still."""
        self.protocol = protocol
        self._monotonic = monotonic
        self._control = Tokens(limits.websocket_control_frames, limits.websocket_control_frames_per_s, monotonic())
        self._fragments_max = limits.message_fragments
        # Frames of the unfinished message.
        self._fragments = 0
        self._budget = budget
        self._unread: bytes | memoryview = unread
        # The beginning of a text that will be read here once the rest of it has come.
        self._begun = b""
        # Frames that are read and not yet given out; bytes are a text that is a frame by itself.
        self._frames: deque[Frame | bytes] = deque()
        self.together = 0
        """How many of the next are such texts and may be taken together."""
        # Where the library stands: the beginning of a frame's head that it was given, or how many bytes of its frame
        # are still to come. It stands between two frames when there is neither.
        self._head = b""
        self._ahead_bytes = 0
        # The received part of a message in several frames.
        self._parts = bytearray()
        self._parts_are_text = False
        # Bytes of the budget held by unfinished messages.
        self._taken_bytes = 0

    def feed(self, data: bytes) -> None:
        if self._begun or self._unread:
            data = self._begun + bytes(self._unread) + data
            self._begun = b""
        self._unread = data

    def read_on(self) -> bool:
        """Reads a piece, unless something waits to be given out. Returns whether it did; what the library has to say
        to it can then be sent before the next."""
        return not self._frames and self._read_piece()

    def texts(self) -> Sequence[bytes]:
        """Messages that may be taken together, each valid UTF-8; empty where one is not. Call `took` with the number
        taken."""
        count, self.together = self.together, 0
        texts = cast("list[bytes]", list(islice(self._frames, count)))
        try:
            for text in texts:
                if not text.isascii():
                    text.decode()
        except UnicodeDecodeError:
            # Messages before it count. A receiver that takes them one by one finds the invalid one. A receiver that
            # takes them one by one finds the invalid one.
            return ()
        self.together = count
        return texts

    def took(self, count: int) -> None:
        """So many of the `texts` are taken. Where it is none, they are to be taken one by one."""
        frames = self._frames
        self.together = self.together - count if count else 0
        if count >= len(frames):
            # More, where they were dropped meanwhile.
            frames.clear()
        else:
            for _ in range(count):
                frames.popleft()

    def next_message(self) -> Message | None:
        """The next one of what was read, or None. Ask after `read_on`, while anything is there."""
        self.together = 0
        while self._frames:
            frame = self._frames.popleft()
            message = self._checked(frame, True) if isinstance(frame, bytes) else self._assemble(frame)
            if message is not None:
                return message
        return None

    def skip(self) -> bool:
        """Reads a piece without giving anything out, for the peer's last word. Returns whether there was one."""
        self._frames.clear()
        return self._read_piece()

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
        self.together = 0
        self._parts = bytearray()
        self._charge_budget()

    def drop(self) -> None:
        """Forgets everything; nothing more is read."""
        self._unread = self._begun = b""
        self.protocol.reader.discard()
        self.drop_messages()

    def release(self) -> None:
        """The connection is lost."""
        self.drop()
        # The parser is a generator that holds the protocol that holds it: this should not wait for a collection.
        self.protocol.parser.close()

    def _read_piece(self) -> bool:
        """Reads some of the bytes that came. Returns whether there were any."""
        rest = self._unread
        if not rest:
            return False
        data, read = bytes(rest[:_PIECE_BYTES]), 0
        protocol = self.protocol
        between = not self._ahead_bytes and not self._head
        if between and protocol.current_size is None and protocol.state is State.OPEN:
            read = self._read_texts(data)
            data = data[read:]
            if data and self._is_begun(data):
                # Once the library has a part of a frame it reads all there is until a piece ends where a frame does.
                if len(rest) <= _PIECE_BYTES:
                    self._begun, read = data, len(rest)
                data = b""
        if data:
            given = data[: self._span(data)]
            read += len(given)
            protocol.receive_data(given)
            self._frames.extend([event for event in protocol.events_received() if isinstance(event, Frame)])
            self._charge_budget()
        self._unread = memoryview(rest)[read:] if read < len(rest) else b""
        return True

    def _span(self, data: bytes) -> int:
        """How many of these bytes to give to the library: up to the end of so many frames. Remembers where it will
        stand then. Wherever it finds a fault, it reads no further."""
        given = len(self._head)
        seen = self._head + data if given else data
        at, end, frames = self._ahead_bytes, len(seen), 0
        self._head, self._ahead_bytes = b"", 0
        while at < end and frames < _LIBRARY_FRAMES_MAX:
            length = seen[at + 1] & ~_MASKED if at + 1 < end else _IN_EIGHT_BYTES
            head = 10 if length == _IN_EIGHT_BYTES else 4 if length == _IN_TWO_BYTES else 2
            if at + head > end:
                self._head = seen[at:]
                return len(data)
            if head > 2:
                length = int.from_bytes(seen[at + 2 : at + head], "big")
            at += head + _MASK_BYTES + length
            frames += 1
        self._ahead_bytes = max(0, at - end)
        return min(at, end) - given

    def _read_texts(self, data: bytes) -> int:
        """Reads texts that are frames by themselves, as far as there is nothing else; where they end."""
        at, end, most = 0, len(data), self.protocol.max_message_size
        texts: list[bytes] = []
        while end - at >= _HEAD_BYTES_MIN and data[at] == _WHOLE_TEXT:
            begin, length = at + _HEAD_BYTES_MIN, data[at + 1] - _MASKED
            if length == _IN_TWO_BYTES:
                begin, length = begin + 2, data[at + 2] << 8 | data[at + 3]
            elif not 0 <= length < _IN_TWO_BYTES:
                break
            if begin + length > end or (most is not None and length > most):
                break
            texts.append(apply_mask(data[begin : begin + length], data[begin - _MASK_BYTES : begin]))
            before, at = at, begin + length
            if at == end:
                break
            # Most are as long as the one before, and begin with the same bytes.
            head, begins, nbytes = data[before : begin - _MASK_BYTES], begin - before, at - before
            while at + nbytes <= end and data.startswith(head, at):
                begin, at = at + begins, at + nbytes
                texts.append(apply_mask(data[begin:at], data[begin - _MASK_BYTES : begin]))
        self._frames.extend(texts)
        self.together = len(texts)
        return at

    def _is_begun(self, data: bytes) -> bool:
        """Whether it is the beginning of a text that is a frame by itself and fits into a piece."""
        most, nbytes = self.protocol.max_message_size, len(data)
        if data[0] != _WHOLE_TEXT or nbytes == 1:
            return data[0] == _WHOLE_TEXT
        length = data[1] - _MASKED
        if length == _IN_TWO_BYTES and nbytes >= _HEAD_BYTES_MIN:
            length = data[2] << 8 | data[3]
        elif not 0 <= length <= _IN_TWO_BYTES:
            return False
        return length <= _BEGUN_BYTES_MAX and (most is None or length <= most)

    def _assemble(self, frame: Frame) -> Message | None:
        """The message that a frame completes, if it does."""
        if frame.opcode is Opcode.CONT:
            self._fragments += 1
            if self._fragments > self._fragments_max:
                self._fail(CloseCode.POLICY_VIOLATION, f"a message of more than {self._fragments_max} frames")
                return None
            self._parts += frame.data
        elif frame.opcode is Opcode.TEXT or frame.opcode is Opcode.BINARY:
            is_text = frame.opcode is Opcode.TEXT
            if frame.fin:
                return self._checked(bytes(frame.data), is_text)
            self._parts_are_text = is_text
            self._fragments = 1
            self._parts += frame.data
        else:
            # The library answers pings and closes; that the peer lives is known from its bytes.
            if frame.opcode is not Opcode.CLOSE and not self._control.take(self._monotonic()):
                self._fail(CloseCode.POLICY_VIOLATION, "too many pings and pongs")
            return None
        whole = bytes(self._parts) if frame.fin else None
        if whole is not None:
            self._parts = bytearray()
        self._charge_budget()
        return None if whole is None else self._checked(whole, self._parts_are_text)

    def _checked(self, data: bytes, is_text: bool) -> Message | None:
        try:
            if is_text and not data.isascii():
                data.decode()
        except UnicodeDecodeError:
            self._fail(CloseCode.INVALID_DATA, "a text message is not valid UTF-8")
            return None
        return Message(data, is_text)

    def _charge_budget(self) -> None:
        """Charge the memory budget for the bytes of incomplete messages, or give back what is no longer held."""
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
