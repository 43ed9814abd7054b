"""Server-sent events out of the bytes of a stream, as the HTML standard reads them.

Lines end with CR, LF or both, wherever the bytes are cut. `event`, `data`, `id` and `retry` are fields; an empty line
ends an event; a line that begins with a colon is a comment. An event that is incomplete at the end of the stream is
dropped.
"""

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"


class ServerEvent(NamedTuple):
    name: str
    data: bytes
    id: str
    """The last id that the stream gave, with this event or before it."""


class EventParser:
    """Reads one stream."""

    def __init__(self) -> None:
        self.retry_ms: int | None = None
        """How long the server would like clients to wait before they come back."""
        # The beginning of a line whose end has not come.
        self._parts: list[bytes] = []
        self._skip_lf = False
        self._at_start = True
        self._name = b""
        self._data: list[bytes] = []
        self._id = b""

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that these bytes complete."""
        if self._skip_lf and chunk:
            # The other half of a CR LF that was cut.
            chunk = chunk.removeprefix(b"\n")
            self._skip_lf = False
        if b"\n" not in chunk and b"\r" not in chunk:
            if chunk:
                self._parts.append(chunk)
            return []
        self._skip_lf = chunk.endswith(b"\r")
        text = b"".join((*self._parts, chunk))
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        self._parts = [rest] if rest else []
        events: list[ServerEvent] = []
        for line in lines:
            self._read_line(line, events)
        return events

    def _read_line(self, line: bytes, events: list[ServerEvent]) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                name, data = self._name.decode("utf-8", "replace"), b"\n".join(self._data)
                events.append(ServerEvent(name or "message", data, self._id.decode("utf-8", "replace")))
            self._name, self._data = b"", []
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match field:
            case b"data":
                self._data.append(value)
            case b"event":
                self._name = value
            case b"id" if b"\0" not in value:
                self._id = value
            case b"retry" if value.isdigit():
                self.retry_ms = int(value)
            case _:
                # A comment, or a field of a newer server.
                pass
