"""HTTP/2 streams of a connection: opened by HEADERS, passed to the application when complete, and closed."""

from collections import deque
from collections.abc import Callable
from typing import Any

from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)

from topics.http.h2.frames import RST_STREAM, ConnectionFault, Floods, Frame, Session, StreamFault
from topics.http.h2.stream import Http2Stream, Outbox, Owner, are_trailers, read_head
from topics.http.messages import UNREAD_HEAD, Fault, HttpError, Refusal, RequestHead
from topics.http.output_backpressure import Phase
from topics.http.server_state import ServerState


class Requests:
    """Turns frames into exchanges. The calls may raise `ConnectionFault`, and the library's `ProtocolError`."""

    __slots__ = (
        "_floods", "_handlers", "_outbox", "_owner", "_server_state", "_session", "count", "streams", "waiting",
    )  # fmt: skip

    def __init__(self, owner: Owner, server_state: ServerState, session: Session, outbox: Outbox) -> None:
        self._owner = owner
        self._server_state = server_state
        self._session = session
        self._outbox = outbox
        self._floods = Floods(server_state.limits, server_state.monotonic())
        self.streams: dict[int, Http2Stream] = {}
        # Complete requests that were not passed to the application yet.
        self.waiting: deque[Http2Stream] = deque()
        self.count = 0
        self._handlers: dict[type, Callable[[Any], None]] = {
            RequestReceived: self._on_request,
            DataReceived: self._on_data,
            TrailersReceived: self._on_trailers,
            StreamEnded: self._on_ended,
            StreamReset: self._on_reset,
            WindowUpdated: self._on_window,
            RemoteSettingsChanged: self._on_settings,
        }

    def receive(self, frame: Frame) -> None:
        self._floods.check(frame, self._server_state.monotonic())
        if frame.kind == RST_STREAM and frame.stream_id > self._session.highest_inbound_stream_id:
            # The library accepts it.
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "a stream is reset that never began")
        for event in self._session.receive_data(frame.data):
            handler = self._handlers.get(type(event))
            if handler is not None:
                handler(event)

    def sent(self) -> None:
        """Notes that a frame of an answer was sent, which the client may acknowledge."""
        self._floods.sent()

    def start_next(self) -> bool:
        """Passes a waiting request to the application. Returns whether there was one."""
        while self.waiting:
            stream = self.waiting.popleft()
            if stream.lost:
                continue
            try:
                exchange = stream.complete()
            except HttpError as error:
                self._refuse(stream, error)
            else:
                self._server_state.handle(exchange)
            return True
        return False

    def finished(self, stream: Http2Stream) -> None:
        """Called when the answer was sent."""
        if not stream.receiving:
            self._forget(stream)
        else:
            self._stop_if_long(stream)

    @property
    def uploading(self) -> bool:
        """Whether the body of an admitted request is being received."""
        return any([stream.receiving and not stream.exchange.answered for stream in self.streams.values()])

    def lose_all(self) -> None:
        streams, self.streams = self.streams, {}
        self.waiting.clear()
        for stream in streams.values():
            self._outbox.discard(stream)
            stream.lose()

    def sweep(self, now: float) -> bool:
        """Ends streams without progress for too long. Returns whether there is work to do now."""
        ended = False
        for stream in tuple(self.streams.values()):
            phase = stream.idle_phase(now)
            if phase is Phase.BODY and not stream.exchange.answered:
                self._refuse(stream, HttpError(Fault.TIMEOUT))
            elif phase is not None:
                self._session.reset_stream(stream.stream_id, ErrorCodes.CANCEL)
                self._lose(stream)
                ended = True
        # A request may have waited only for unread output of other clients.
        return ended or bool(self.waiting)

    # Events of the h2 library.

    def _on_request(self, event: RequestReceived) -> None:
        server_state, ended = self._server_state, event.stream_ended is not None
        if len(self.streams) >= server_state.limits.http2_streams:
            self._reset(event.stream_id, ErrorCodes.REFUSED_STREAM)
            return
        try:
            head, length = read_head(event.headers, server_state.limits, ended=ended)
        except StreamFault:
            self._reset(event.stream_id, ErrorCodes.PROTOCOL_ERROR)
        except HttpError as error:
            self._refuse(self._open(event.stream_id, UNREAD_HEAD, 0 if ended else None), error)
        else:
            server_state.counters.requests += 1
            self.count += 1
            self._admit(self._open(event.stream_id, head, length), length)

    def _open(self, stream_id: int, head: RequestHead, length: int | None) -> Http2Stream:
        stream = self.streams[stream_id] = Http2Stream(self._owner, self._server_state, stream_id, head)
        stream.body_bytes = length or 0
        stream.told_bytes = length
        # A body of another length ends its stream. The library would end the connection, and every stream with it.
        self._session.streams[stream_id]._expected_content_length = None
        return stream

    def _admit(self, stream: Http2Stream, length: int | None) -> None:
        exchange = stream.exchange
        try:
            verdict = self._server_state.admit(exchange.head)
            if exchange.head.allow_origin is not None or exchange.head.answer_headers:
                # The answer has more headers, such as the allowed origin, so it is not one of the prepared ones.
                exchange.plain = False
            if not isinstance(verdict, int):
                self._respond_early(stream, verdict)
            elif length != 0:
                stream.expect(length, verdict)
        except HttpError as error:
            self._refuse(stream, error)

    def _on_data(self, event: DataReceived) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            try:
                stream.receive(event.data)
                if stream.told_bytes is not None and stream.received_bytes > stream.told_bytes and not stream.dropping:
                    self._reset_and_lose(stream)
                    return
            except HttpError as error:
                self._refuse(stream, error)
            if stream.dropping and stream.is_sent:
                self._stop_if_long(stream)
        if event.flow_controlled_length:
            # Buffered or dropped, the bytes are processed, so the window is opened again.
            self._session.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def _on_ended(self, event: StreamEnded) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is None:
            return
        if stream.told_bytes not in (None, stream.received_bytes) and not stream.dropping:
            self._reset_and_lose(stream)
            return
        stream.receiving = False
        if not stream.dropping:
            self.waiting.append(stream)
        elif stream.is_sent:
            self._forget(stream)

    def _on_reset(self, event: StreamReset) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            self._lose(stream)

    def _on_window(self, event: WindowUpdated) -> None:
        self._outbox.opened()

    def _on_settings(self, event: RemoteSettingsChanged) -> None:
        self._session.keep_table_small()
        self._outbox.opened()

    # The parts of the above.

    def _refuse(self, stream: Http2Stream, error: HttpError) -> None:
        self._respond_early(stream, self._server_state.refusal(error, stream.exchange.head.path))

    def _respond_early(self, stream: Http2Stream, refusal: Refusal) -> None:
        """Answers a request without a handler."""
        self._server_state.counters.refused += 1
        stream.drop_body()
        stream.exchange.respond(*refusal)

    def _stop_if_long(self, stream: Http2Stream) -> None:
        """Called after the answer of a refused request.

        The rest of its body is skipped, because not every client reads the answer before it has sent everything; if
        that is too much, the stream is reset.
        """
        if max(stream.body_bytes, stream.received_bytes) > self._server_state.limits.linger_bytes:
            self._session.reset_stream(stream.stream_id, ErrorCodes.NO_ERROR)
            self._forget(stream)

    def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        self._server_state.counters.refused += 1
        self._session.reset_stream(stream_id, code)
        self._floods.reset(self._server_state.monotonic())

    def _on_trailers(self, event: TrailersReceived) -> None:
        """Drops trailers. Forbidden ones are an error."""
        stream = self.streams.get(event.stream_id)
        if stream is not None and not stream.dropping and not are_trailers(event.headers):
            self._reset_and_lose(stream)

    def _reset_and_lose(self, stream: Http2Stream) -> None:
        """Resets a stream after a violation of the protocol by the client."""
        self._lose(stream)
        self._reset(stream.stream_id, ErrorCodes.PROTOCOL_ERROR)

    def _lose(self, stream: Http2Stream) -> None:
        stream.lose()
        self._forget(stream)

    def _forget(self, stream: Http2Stream) -> None:
        self._outbox.discard(stream)
        self.streams.pop(stream.stream_id, None)
        if not self.streams:
            self._server_state.changed.set()
