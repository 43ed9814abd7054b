"""Frames that make work and get nobody anywhere, and how many of them a client may send.

Each kind has tokens: so many at once, so many more a second, and more for whatever the client earns them by. One
without a token left is told to calm down, and its connection ends.

| frames | tokens | earned by |
|---|---|---|
| RST_STREAM, and what is reset for the client's fault | `http2_resets` | nothing: it was work for nothing |
| PING, SETTINGS, PRIORITY, unknown ones, CONTINUATION, DATA without a byte | `http2_idle_frames` | requests, bodies |
| WINDOW_UPDATE | as many | what it is sent: a frame may be acknowledged on its stream and on the connection |

HEADERS are requests, and cost their client its turns like those of HTTP/1.1 do.
"""

from h2.errors import ErrorCodes

from topics.http.h2.errors import ConnectionFault
from topics.http.h2.frames import DATA, END_STREAM, HEADERS, RST_STREAM, WINDOW_UPDATE, Frame
from topics.http.limits import HttpLimits

_EARNED_BY_REQUEST = 4
_EARNED_BY_FRAME_SENT = 2


class _Tokens:
    """Those of one kind of frame."""

    __slots__ = ("_left", "_max", "_per_s", "_since")

    def __init__(self, tokens_max: int, per_s: int, now: float) -> None:
        self._max = tokens_max
        self._per_s = per_s
        self._left = float(tokens_max)
        self._since = now

    def take(self, now: float) -> bool:
        if self._left < 1.0:
            self.earn((now - self._since) * self._per_s)
            self._since = now
        self._left -= 1.0
        return self._left >= 0.0

    def earn(self, tokens: float) -> None:
        self._left = min(self._left + tokens, self._max)


class Floods:
    """What the client of one connection has sent of them."""

    __slots__ = ("_idle", "_resets", "_updates")

    def __init__(self, limits: HttpLimits, now: float) -> None:
        self._resets = _Tokens(limits.http2_resets, limits.http2_resets_per_s, now)
        self._idle = _Tokens(limits.http2_idle_frames, limits.http2_idle_frames_per_s, now)
        self._updates = _Tokens(limits.http2_idle_frames, limits.http2_idle_frames_per_s, now)

    def check(self, frame: Frame, now: float) -> None:
        """Counts a frame that came. Raises `ConnectionFault` for one too many."""
        if frame.kind == HEADERS:
            self._idle.earn(_EARNED_BY_REQUEST)
        elif frame.kind == DATA and frame.length:
            self._idle.earn(1)
        elif frame.kind == RST_STREAM:
            self.reset(now)
        elif frame.kind == WINDOW_UPDATE:
            _spend(self._updates, "WINDOW_UPDATE", now)
        elif frame.kind != DATA or not frame.flags & END_STREAM:
            _spend(self._idle, "frames that say nothing", now)

    def reset(self, now: float) -> None:
        """A stream ends by the client's doing before it is answered."""
        _spend(self._resets, "resets", now)

    def sent(self) -> None:
        """The client was sent a part of an answer."""
        self._updates.earn(_EARNED_BY_FRAME_SENT)


def _spend(tokens: _Tokens, what: str, now: float) -> None:
    if not tokens.take(now):
        raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, f"too many {what}")
