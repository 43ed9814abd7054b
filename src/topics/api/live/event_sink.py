"""A connection of server-sent events, whatever they are about: how it is counted, swept, written to and given up."""

from topics.api.auth import Key
from topics.api.call import Waiting
from topics.api.live.feeds import Live
from topics.api.live.sink import Sink
from topics.http.streaming import Stream

_GATHERED_BYTES_MAX = 64 * 1024
"""A connection that may be full by now is to be told so before it is given much more."""


class EventSink(Sink):
    """Made before the answer begins, as it may be refused; `attach` gives it the stream."""

    __slots__ = ("_gathered", "_gathered_bytes", "_leave", "_live", "_stream", "_unsweep", "_waits", "key")

    def __init__(self, live: Live, key: Key, waits: set[Waiting]) -> None:
        super().__init__(live.run_queue, live.slow_limits)
        self._leave = live.connections.enter(key)
        self.key = key
        self._live = live
        self._waits = waits
        self._stream = Stream.lost()
        self._gathered: list[bytes] = []
        """What this turn of delivery has brought so far, of all topics that the connection follows."""
        self._gathered_bytes = 0
        self._unsweep = live.sweep.add(self)

    def attach(self, stream: Stream, opening: bytes = b"") -> None:
        """The answer begins. It may be over at once, when the client is gone already."""
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
        """Writes an event together with the others of this turn of delivery: a thousand topics may change at once, and
        to write them one by one would cost more than to make them."""
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
        """Writes what was gathered, at the end of a turn or because something else comes behind it."""
        if self._gathered:
            events, self._gathered, self._gathered_bytes = self._gathered, [], 0
            if not self._stream.write_pieces(events):
                self.filled()

    def waiting_bytes(self) -> int:
        return self._stream.buffered_bytes

    def frame_room(self) -> int:
        return self._stream.room(self.key.output_account)

    def end_with(self, text: bytes) -> None:
        """Says a last word and ends the connection too, as its client may not read on."""
        if not self.closed:
            self.flush()
            self._stream.write(text)
            self.over()
            self._stream.close(last=True)

    def over(self) -> None:
        """Nothing more is written. May be called more than once."""
        if not self.closed:
            self.close()
            self.let_go()
            self._waits.discard(self)
            self._unsweep()
            self._leave()

    # What a subclass provides.

    def let_go(self) -> None:
        """Gives back whatever the connection was given out of."""
        raise NotImplementedError

    def end(self) -> None:
        """The server stops."""
        raise NotImplementedError
