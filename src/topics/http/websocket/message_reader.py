"""WebSocket message reading: frames, fragmentation, limits, and rules that the library does not check.

Bytes are passed to the library in pieces, because it cannot be stopped within its input. A piece has a maximum number
of frames: the library takes 11 microseconds for each, however short, so a piece of the smallest ones would block the
loop. It also bounds how far the reader is ahead of its receiver.

The number of frames in a message, and of pings and pongs in a second, has a limit. A peer that exceeds it is closed
with 1008.

The library keeps a frame in memory until it is complete, so data frames longer than a piece are read here as well: a
message has the limits of a request body, is collected in the same way, and counts in the same budget before its bytes
are buffered. A message over the limit, without room in the budget, or without progress, is refused: its first bytes are
delivered with the error after its end, and the connection continues. Only a message that is longer by
`refused_message_bytes` closes the connection (1009).

Most messages are a short text in one frame. Such frames at the beginning of a piece, while the library is between two
frames, are read here in a thirtieth of the time that the library takes (0.3 against 11 microseconds). Several of them
may be delivered together, and an incomplete one waits here for its rest. Everything else, and everything invalid, is
passed to the library.

WebSocket handshake, and frames that are encoded once for all clients.

The library checks the request and computes the response. No extension is negotiated, in particular no compression of
messages (permessage-deflate): it costs a third of a megabyte for each connection and processor time for each message,
the bytes of a message would differ by client, so one encoded frame could not be shared, and compressing secrets
together with text of others leaks them through the length.
"""

import codecs
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

from topics.http.messages import KIB, Fault, HttpError, HttpLimits, RequestHead, Tokens
from topics.http.request_body import UNCOUNTED_BYTES, Budget, LargeBody, PlainBody

try:
    from websockets.speedups import apply_mask
except ImportError:
    # If the extension could not be compiled.
    from websockets.utils import apply_mask


_VERSION = "sec-websocket-version"
# The library logs each connection that it closes, which would be a line for every client.
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
    """A request that may become a WebSocket, with the values of its handshake."""

    protocol: ServerProtocol
    answer: bytes
    """The head of the answer that accepts it."""


def read_handshake(head: RequestHead) -> Handshake:
    """Raises `HandshakeError` for an invalid or unsupported handshake."""
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
# A frame of a server is not masked, so the bytes of a message are the same for every client: they are encoded once and
# written to all transports. A frame with a text is its header followed by the text:
#
#     81            the only frame of a message, text
#     00..7d        the length, if it is below 126
#     7e nnnn       the length in two bytes, if it fits
#     7f nnnnnnnnnnnnnnnn                      otherwise in eight
#
# `Frame.serialize` of the library returns the same bytes in five times the time (1.1 against 0.2 microseconds), which
# every answer to a command would cost.

_TEXT = 0x81
_SHORT_MAX = 125
_TWO_BYTES_MAX = 0xFFFF


def text_frame(text: bytes) -> bytes:
    """Returns a whole message as one frame. `text` must be UTF-8; callers ensure that."""
    return _head(len(text)) + text


def text_frames(texts: Sequence[bytes]) -> bytes:
    """Returns several frames, concatenated."""
    if len(texts) == 1:
        return text_frame(texts[0])
    sizes = set(map(len, texts))
    if len(sizes) == 1:
        # Most messages that are sent together have one length.
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
"""Frames passed to the library at a time: a third of a millisecond of work."""
_WHOLE_TEXT = 0x81
_MASKED = 0x80
_IN_TWO_BYTES = 126
_IN_EIGHT_BYTES = 127
_MASK_BYTES = 4
_HEAD_BYTES_MIN = 2 + _MASK_BYTES
_LIMITS = HttpLimits()
_BEGUN_BYTES_MAX = _PIECE_BYTES - _HEAD_BYTES_MIN - 2
"""The longest payload that fits into a piece with its head. Longer data frames are read here."""
_RESERVED = 0x70
_OPCODE = 0x0F
_FIN = 0x80
_REFUSED_PREFIX_BYTES = 4 * KIB
"""The bytes of a refused message that are delivered, to identify it."""


class Message(NamedTuple):
    data: bytes | LargeBody
    is_text: bool
    """Whether it is text; then it is valid UTF-8."""
    error: HttpError | None = None
    """The reason why the message is refused. `data` has its first bytes."""


class UnfinishedMessage:
    """The received part of a message of several frames, or of a frame longer than a piece."""

    __slots__ = (
        "_body", "_decoder", "_error", "_is_cut", "_limit", "_prefix", "_step_at", "_step_bytes", "fragments",
        "is_text", "nbytes",
    )  # fmt: skip

    def __init__(self, is_text: bool, limit: int, large_size: int, budget: Budget, now: float) -> None:
        self.is_text = is_text
        self.fragments = 1
        self.nbytes = 0
        self._limit = limit
        # None after the message was refused.
        self._body: PlainBody | None = PlainBody(limit, budget, min(large_size, limit))
        self._error: HttpError | None = None
        self._prefix = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_cut = False
        self._step_at, self._step_bytes = now, 0

    def announce(self, nbytes: int) -> None:
        """Announces further bytes. Refuses the message before its memory is used."""
        if self.nbytes + nbytes > self._limit:
            self.refuse(HttpError(Fault.BODY_TOO_LARGE, f"the message exceeds {self._limit} bytes"))

    def add(self, data: bytes) -> None:
        """Raises UnicodeDecodeError for invalid text."""
        self.nbytes += len(data)
        if len(self._prefix) < _REFUSED_PREFIX_BYTES:
            self._prefix += data[: _REFUSED_PREFIX_BYTES - len(self._prefix)]
        if self._body is None:
            return
        if self.is_text and (self._is_cut or not data.isascii()):
            self._decoder.decode(data)
            self._is_cut = bool(self._decoder.getstate()[0])
        try:
            self._body.add(data)
        except HttpError as error:
            self.refuse(error)

    def refuse(self, error: HttpError) -> None:
        """Refuses the message. The rest is read and dropped."""
        if self._body is not None:
            self._error = error
            self.release()

    def refuse_if_stalled(self, now: float, limits: HttpLimits, is_read: bool) -> None:
        """Refuses a message that uses the budget without progress while the connection is read."""
        if self.nbytes <= UNCOUNTED_BYTES:
            return
        if not is_read or self.nbytes - self._step_bytes >= limits.body_step_bytes:
            self._step_at, self._step_bytes = now, self.nbytes
        elif now - self._step_at >= limits.body_idle_timeout_s:
            self.refuse(HttpError(Fault.TIMEOUT, "the message did not arrive in time"))

    def finish(self) -> Message:
        """Returns the message. Raises UnicodeDecodeError for a text that ends within a character."""
        if self._body is None:
            return Message(self._prefix, self.is_text, self._error)
        if self._is_cut:
            self._decoder.decode(b"", True)
        return Message(self._body.finish(), self.is_text)

    def release(self) -> None:
        """Releases the memory."""
        if self._body is not None:
            self._body.release()
            self._body = None


class MessageReader:
    """Reads the messages of one connection.

    Messages before a violation of the protocol are delivered, later ones are not.
    """

    __slots__ = (
        "_ahead_bytes", "_begun", "_budget", "_control", "_frames", "_head", "_limits", "_long_fin", "_long_left",
        "_long_mask", "_monotonic", "_unfinished", "_unread", "protocol", "together",
    )  # fmt: skip

    def __init__(
        self, protocol: ServerProtocol, budget: Budget, unread: bytes, limits: HttpLimits = _LIMITS,
        monotonic: Callable[[], float] = float,
    ) -> None:  # fmt: skip
        """Without a clock, no time passes."""
        self.protocol = protocol
        protocol.max_message_size, protocol.max_fragment_size = None, _BEGUN_BYTES_MAX
        self._limits = limits
        self._monotonic = monotonic
        self._control = Tokens(limits.websocket_control_frames, limits.websocket_control_frames_per_s, monotonic())
        self._budget = budget
        self._unread: bytes | memoryview = unread
        # The beginning of a text that will be read here after its rest has arrived.
        self._begun = b""
        # Frames that are read and not yet delivered; bytes are a text in one frame.
        self._frames: deque[Frame | bytes | Message] = deque()
        self.together = 0
        """The number of next frames that are such texts and may be delivered together."""
        # The library's state: the beginning of a frame's head that it has received, or the remaining bytes of its
        # frame. It is between two frames if there is neither.
        self._head = b""
        self._ahead_bytes = 0
        # A frame longer than a piece: its remaining bytes, their mask, and whether it ends the message.
        self._long_left = 0
        self._long_mask = b""
        self._long_fin = False
        self._unfinished: UnfinishedMessage | None = None

    def feed(self, data: bytes) -> None:
        if self._begun or self._unread:
            data = self._begun + bytes(self._unread) + data
            self._begun = b""
        self._unread = data

    def read_on(self) -> bool:
        """Reads a piece, unless frames wait for delivery.

        Returns whether it did; output of the library can then be sent before the next piece.
        """
        return not self._frames and self._read_piece()

    def texts(self) -> Sequence[bytes]:
        """Returns messages that may be delivered together, each valid UTF-8; empty if one is not.

        Call `took` with the number delivered.
        """
        count, self.together = self.together, 0
        texts = cast("list[bytes]", list(islice(self._frames, count)))
        try:
            for text in texts:
                if not text.isascii():
                    text.decode()
        except UnicodeDecodeError:
            # Earlier messages are valid. Delivery one by one finds the invalid one.
            return ()
        self.together = count
        return texts

    def took(self, count: int) -> None:
        """Notes that this many of the `texts` were delivered. With 0 they are delivered one by one."""
        frames = self._frames
        self.together = self.together - count if count else 0
        if count >= len(frames):
            # More, if they were dropped meanwhile.
            frames.clear()
        else:
            for _ in range(count):
                frames.popleft()

    def next_message(self) -> Message | None:
        """Returns the next message that was read, or None. Call it after `read_on`, until it returns None."""
        self.together = 0
        while self._frames:
            frame = self._frames.popleft()
            if isinstance(frame, Message):
                return frame
            message = self._checked(frame, True) if isinstance(frame, bytes) else self._assemble(frame)
            if message is not None:
                return message
        return None

    def skip(self) -> bool:
        """Reads a piece without delivery, to find the peer's close frame. Returns whether there was a piece."""
        self._frames.clear()
        return self._read_piece()

    @property
    def has_more(self) -> bool:
        """Whether any input waits to be read or delivered."""
        return bool(self._unread or self._frames)

    @property
    def is_over(self) -> bool:
        """Whether no further message will come: the peer has closed or violated the protocol."""
        return not self._frames and self.protocol.state is not State.OPEN

    def drop_messages(self) -> None:
        """Drops undelivered messages. Bytes stay: they may begin in the middle of a frame."""
        self._frames.clear()
        self.together = 0
        if self._unfinished is not None:
            self._unfinished.release()

    def refuse_stalled(self, now: float, is_read: bool) -> None:
        """Refuses the unfinished message if it makes no progress. `is_read` states whether the connection is read."""
        if self._unfinished is not None:
            self._unfinished.refuse_if_stalled(now, self._limits, is_read)

    def drop(self) -> None:
        """Drops all state; no more input is read."""
        self._unread = self._begun = b""
        self._long_left = 0
        self.protocol.reader.discard()
        self.drop_messages()
        self._unfinished = None

    def release(self) -> None:
        """Called when the connection is lost."""
        self.drop()
        # The parser is a generator in a reference cycle with the protocol: the cycle is broken, so that it need not
        # wait for the garbage collector.
        self.protocol.parser.close()

    def _read_piece(self) -> bool:
        """Reads some of the received bytes. Returns whether there were any."""
        rest = self._unread
        if not rest:
            return False
        data = bytes(rest[:_PIECE_BYTES])
        read = self._read_long(data) if self._long_left else self._read_frames(data, len(rest))
        self._unread = memoryview(rest)[read:] if read < len(rest) else b""
        return True

    def _read_frames(self, data: bytes, available: int) -> int:
        """Reads the frames at the beginning of a piece of the `available` bytes. Returns how many bytes it read."""
        protocol, read = self.protocol, 0
        if not self._ahead_bytes and not self._head and not protocol.eof_sent:
            if protocol.current_size is None and protocol.state is State.OPEN:
                read = self._read_texts(data)
                data = data[read:]
                if data and self._is_begun(data):
                    # While the library has a part of a frame it reads all input until a piece ends with a frame.
                    return read if available > _PIECE_BYTES else self._begin(data, read)
            if data and (is_long := _is_long(data, 0)) is not False:
                if read:
                    # Data read so far is delivered first.
                    return read
                return self._begin(data, 0) if is_long is None else self._begin_long(data)
        if data:
            given = data[: self._span(data)]
            read += len(given)
            protocol.receive_data(given)
            self._frames.extend([event for event in protocol.events_received() if isinstance(event, Frame)])
        return read

    def _begin(self, data: bytes, read: int) -> int:
        """Keeps the beginning of a frame until more of it has arrived."""
        self._begun = data
        return read + len(data)

    def _begin_long(self, data: bytes) -> int:
        """Reads the head of a data frame that is longer than a piece, and its available bytes."""
        protocol, limits = self.protocol, self._limits
        opcode, fin = data[0] & _OPCODE, bool(data[0] & _FIN)
        begin = 4 if data[1] & ~_MASKED == _IN_TWO_BYTES else 10
        length = int.from_bytes(data[2:begin], "big")
        if (opcode == Opcode.CONT) is (protocol.current_size is None):
            expected = "unexpected continuation frame" if opcode == Opcode.CONT else "expected a continuation frame"
            self._fail(CloseCode.PROTOCOL_ERROR, expected)
            return len(data)
        before = protocol.current_size or 0
        if before + length > limits.body_bytes + limits.refused_message_bytes:
            self._fail(CloseCode.MESSAGE_TOO_BIG, f"the message exceeds {limits.body_bytes} bytes")
            return len(data)
        protocol.current_size = None if fin else before + length
        if protocol.state is not State.OPEN:
            # The server has closed: further input is dropped.
            self._unfinished = None
        elif opcode == Opcode.CONT:
            self._count_fragment()
        else:
            self._begin_message(opcode == Opcode.TEXT, length if fin else limits.body_bytes)
        if protocol.eof_sent:
            return len(data)
        if self._unfinished is not None:
            self._unfinished.announce(length)
        self._long_left, self._long_fin = length, fin
        self._long_mask = data[begin : begin + _MASK_BYTES]
        return begin + _MASK_BYTES + self._read_long(data[begin + _MASK_BYTES :])

    def _read_long(self, data: bytes) -> int:
        """Reads bytes of a frame that is longer than a piece. Returns their number."""
        data = data[: self._long_left]
        self._long_left -= len(data)
        mask, turn = self._long_mask, len(data) % _MASK_BYTES
        self._long_mask = mask[turn:] + mask[:turn]
        message = self._add(apply_mask(data, mask), self._long_fin and not self._long_left)
        if message is not None:
            self._frames.append(message)
        return len(data)

    def _begin_message(self, is_text: bool, large_size: int) -> None:
        self._unfinished = UnfinishedMessage(
            is_text, self._limits.body_bytes, large_size, self._budget, self._monotonic()
        )

    def _count_fragment(self) -> None:
        unfinished = self._unfinished
        assert unfinished is not None, "the library refuses the continuation of nothing"
        unfinished.fragments += 1
        most = self._limits.message_fragments
        if unfinished.fragments > most + unfinished.nbytes // KIB:
            self._fail(CloseCode.POLICY_VIOLATION, f"a message of more than {most} frames")

    def _add(self, data: bytes, ends: bool) -> Message | None:
        """Adds bytes to the unfinished message. Returns the message if it `ends` with them."""
        unfinished, limits = self._unfinished, self._limits
        if unfinished is None:
            return None
        try:
            unfinished.add(data)
            if unfinished.nbytes > limits.body_bytes + limits.refused_message_bytes:
                self._fail(CloseCode.MESSAGE_TOO_BIG, f"the message exceeds {limits.body_bytes} bytes")
            elif ends:
                self._unfinished = None
                return unfinished.finish()
        except UnicodeDecodeError:
            self._fail(CloseCode.INVALID_DATA, "a text message is not valid UTF-8")
        return None

    def _span(self, data: bytes) -> int:
        """Returns how many of these bytes to pass to the library: up to the end of a maximum number of frames.

        Stores the library's state after that. It stops at an invalid frame.
        """
        given = len(self._head)
        seen = self._head + data if given else data
        at, end, frames = self._ahead_bytes, len(seen), 0
        self._head, self._ahead_bytes = b"", 0
        while at < end and frames < _LIBRARY_FRAMES_MAX:
            if at and _is_long(seen, at) is not False:
                return at - given
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
        """Reads consecutive texts of one frame each. Returns their end."""
        at, end, most = 0, len(data), self._limits.body_bytes
        texts: list[bytes] = []
        while end - at >= _HEAD_BYTES_MIN and data[at] == _WHOLE_TEXT:
            begin, length = at + _HEAD_BYTES_MIN, data[at + 1] - _MASKED
            if length == _IN_TWO_BYTES:
                begin, length = begin + 2, data[at + 2] << 8 | data[at + 3]
            elif not 0 <= length < _IN_TWO_BYTES:
                break
            if begin + length > end or length > most:
                break
            texts.append(apply_mask(data[begin : begin + length], data[begin - _MASK_BYTES : begin]))
            before, at = at, begin + length
            if at == end:
                break
            # Most have the length and the first bytes of the previous one.
            head, begins, nbytes = data[before : begin - _MASK_BYTES], begin - before, at - before
            while at + nbytes <= end and data.startswith(head, at):
                begin, at = at + begins, at + nbytes
                texts.append(apply_mask(data[begin:at], data[begin - _MASK_BYTES : begin]))
        self._frames.extend(texts)
        self.together = len(texts)
        return at

    def _is_begun(self, data: bytes) -> bool:
        """Returns whether it is the beginning of a text in one frame that fits into a piece."""
        nbytes = len(data)
        if data[0] != _WHOLE_TEXT or nbytes == 1:
            return data[0] == _WHOLE_TEXT
        length = data[1] - _MASKED
        if length == _IN_TWO_BYTES and nbytes >= _HEAD_BYTES_MIN:
            length = data[2] << 8 | data[3]
        elif not 0 <= length <= _IN_TWO_BYTES:
            return False
        return length <= min(_BEGUN_BYTES_MAX, self._limits.body_bytes)

    def _assemble(self, frame: Frame) -> Message | None:
        """Returns the message that a frame completes, if any."""
        if frame.opcode is Opcode.CONT:
            self._count_fragment()
        elif frame.opcode is Opcode.TEXT or frame.opcode is Opcode.BINARY:
            is_text = frame.opcode is Opcode.TEXT
            if frame.fin and len(frame.data) <= self._limits.body_bytes:
                return self._checked(bytes(frame.data), is_text)
            self._begin_message(is_text, self._limits.body_bytes)
        else:
            # The library answers pings and closes; any input shows that the peer is alive.
            if frame.opcode is not Opcode.CLOSE and not self._control.take(self._monotonic()):
                self._fail(CloseCode.POLICY_VIOLATION, "too many pings and pongs")
            return None
        return self._add(bytes(frame.data), frame.fin)

    def _checked(self, data: bytes, is_text: bool) -> Message | None:
        try:
            if is_text and not data.isascii():
                data.decode()
        except UnicodeDecodeError:
            self._fail(CloseCode.INVALID_DATA, "a text message is not valid UTF-8")
            return None
        return Message(data, is_text)

    def _fail(self, code: CloseCode, reason: str) -> None:
        self.drop()
        # If the server has closed already, or the peer did after this, only the end of the output is left to send.
        if self.protocol.state is State.OPEN or not self.protocol.eof_sent:
            self.protocol.fail(code, reason)


def _is_long(data: bytes, at: int) -> bool | None:
    """Returns whether a data frame longer than a piece begins there, with its whole head.

    None if the head is incomplete.
    """
    end = len(data)
    if data[at] & _RESERVED or data[at] & _OPCODE > Opcode.BINARY:
        return False
    if at + 1 == end:
        return None
    length = data[at + 1] - _MASKED
    if length not in (_IN_TWO_BYTES, _IN_EIGHT_BYTES):
        return False
    begin = at + (4 if length == _IN_TWO_BYTES else 10)
    if begin > end:
        return None
    if int.from_bytes(data[at + 2 : begin], "big") <= _BEGUN_BYTES_MAX:
        return False
    return True if begin + _MASK_BYTES <= end else None
