"""SSE sink: a connection of server-sent events, and how it is counted, checked, written to and closed."""

from topics.api.auth import Key
from topics.api.call import Waiting
from topics.api.live.feeds import Live
from topics.api.live.sink import Sink
from topics.http.streaming import Stream

_GATHERED_BYTES_MAX = 64 * 1024
"""Flush at this size, so that a connection that is full notices before it gets much more."""


class EventSink(Sink):
    """Created before the response begins, because it may be refused; `attach` sets the response stream."""

    __slots__ = ("_gathered", "_gathered_bytes", "_leave", "_live", "_stream", "_unsweep", "_waits", "key")

    def __init__(self, live: Live, key: Key, waits: set[Waiting]) -> None:
        super().__init__(live.run_queue, live.slow_limits)
        self._leave = live.connections.enter(key)
        self.key = key
        self._live = live
        self._waits = waits
        self._stream = Stream.lost()
        self._gathered: list[bytes] = []
        """Events of this turn of delivery, of all topics that the connection follows."""
        self._gathered_bytes = 0
        self._unsweep = live.sweep.add(self)

    def attach(self, stream: Stream, opening: bytes = b"") -> None:
        """Begin the response. It ends at once if the client is already gone."""
        self._stream = stream
        self._waits.add(self)
        if opening:
            self.write(opening)
        stream.on_drain(self.drained)
        stream.on_gone(self.over)

    def write(self, text: bytes) -> None:
        if self._gathered:
            self.flush()
        if not self._stream.write(text):
            self.filled()

    def gather(self, text: bytes) -> None:
        """Write an event together with the others of this turn of delivery: a thousand topics may change at once, and
        separate writes would cost more than encoding the events."""
        if not self.run_queue.running:
            self.write(text)
            return
        if not self._gathered:
            self.run_queue.at_end.append(self.flush)
        self._gathered.append(text)
        self._gathered_bytes += len(text)
        if self._gathered_bytes > _GATHERED_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write the gathered events, at the end of a turn or before another write."""
        if self._gathered:
            events, self._gathered, self._gathered_bytes = self._gathered, [], 0
            if not self._stream.write_pieces(events):
                self.filled()

    def waiting_bytes(self) -> int:
        return self._stream.buffered_bytes

    def frame_room(self) -> int:
        return self._stream.room(self.key.output_account)

    def end_with(self, text: bytes) -> None:
        """Write a last event and close the connection."""
        if not self.closed:
            self.flush()
            self._stream.write(text)
            self.over()
            self._stream.close(last=True)

    def over(self) -> None:
        """Close the sink and release what it holds. Idempotent."""
        if not self.closed:
            self.close()
            self.let_go()
            self._waits.discard(self)
            self._unsweep()
            self._leave()

    # For subclasses.

    def let_go(self) -> None:
        """Release what the connection holds."""
        raise NotImplementedError

    def end(self) -> None:
        """End the connection because the server stops."""
        raise NotImplementedError
