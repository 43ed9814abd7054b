"""An exchange that remembers its answer, for handlers without a connection."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from topics.http.exchange import Exchange
from topics.http.messages import Headers, RequestHead


class FakeExchange:
    def __init__(self, headers: Mapping[str, str] | None = None, path: str = "/") -> None:
        first = {name.encode(): value.encode() for name, value in (headers or {}).items()}
        self.head = RequestHead("GET", path.encode(), path, "", Headers(first, []), "1.1", True)
        self.status = 0
        self.gone = False
        self.started = 0.0
        self.peer = "127.0.0.1:1"
        self.body = b""
        self.headers: dict[str, str] = {}

    def respond(
        self,
        status: int,
        body: bytes = b"",
        content_type: str = "application/json",
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.status, self.body = status, body
        self.headers = {"content-type": content_type, **dict(headers)}

    def asked(self, site: Any, path: str) -> "FakeExchange":
        """The answer of a site for one of its files."""
        site.answer(cast(Exchange, self), path)
        return self
