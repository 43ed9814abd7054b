"""A WebSocket for tests: sends commands as they are, and gives frames as plain values."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import msgspec
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from topics_protocol.websocket_frames import ServerFrame

# Only to fail instead of hanging.
_PATIENCE_S = 30.0

Frame = dict[str, Any]
_check = msgspec.json.Decoder(ServerFrame, strict=True).decode


class Socket:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def send(self, *commands: object) -> None:
        for command in commands:
            self.connection.send(command if isinstance(command, str) else json.dumps(command))

    def frame(self) -> Frame:
        """The next frame, which must be one of the protocol's."""
        text = self.connection.recv(_PATIENCE_S)
        assert isinstance(text, str)
        _check(text)
        decoded: Frame = json.loads(text)
        return decoded

    def ask(self, command: object) -> Frame:
        self.send(command)
        return self.frame()

    def refused(self, command: object, code: str) -> Frame:
        """Sends a command that must be refused, and gives the detail."""
        frame = self.ask(command)
        assert (frame["op"], frame["code"]) == ("error", code), frame
        assert frame["message"]
        detail: Frame = frame.get("detail", {})
        return detail

    def frames(self, count: int) -> list[Frame]:
        return [self.frame() for _ in range(count)]

    def records(self, count: int) -> list[Frame]:
        """The records of the next frames, until there are so many."""
        found: list[Frame] = []
        while len(found) < count:
            frame = self.frame()
            assert frame["op"] in ("record", "caught_up"), frame
            found += frame.get("records", [])
        assert len(found) == count
        return found

    def closed(self) -> int:
        """Waits for the end and gives its code."""
        try:
            while True:
                self.connection.recv(_PATIENCE_S)
        except ConnectionClosed as closed:
            return 1006 if closed.rcvd is None else closed.rcvd.code

    def quiet(self) -> None:
        """Nothing was sent before the answer to this ping."""
        assert self.ask({"op": "ping", "request_id": "quiet?"}) == {"op": "pong", "request_id": "quiet?"}


@contextlib.contextmanager
def open_socket(url: str, key: str | None = None, **options: Any) -> Iterator[Socket]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    target = url.replace("http:", "ws:", 1) + "/v0/ws" + options.pop("query", "")
    with connect(
        target, additional_headers={**headers, **options.pop("headers", {})}, compression=None, proxy=None,
        max_size=2**27, open_timeout=_PATIENCE_S, **options,
    ) as connection:  # fmt: skip
        yield Socket(connection)
