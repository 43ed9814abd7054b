"""Pages for people: where they are, and who is sent there.

What the pages consist of is not known here. They are files for everybody, without a key and also while the log is
replayed: who looks at them is told by the API what there is.
"""

from collections.abc import Iterator
from typing import Protocol

from topics.api.app import SECURE, Route
from topics.api.errors import MethodNotAllowedError, NotFoundError, render_error
from topics.core.errors import quoted
from topics.http.exchange import Exchange

CONSOLE = "/console"
REFERENCE = "/docs"


class Files(Protocol):
    """The files of a page by their path below it; the page itself has the empty one."""

    def __contains__(self, path: str) -> bool: ...

    def answer(self, exchange: Exchange, path: str) -> None: ...


class Pages:
    """A family of routes: one page and the files below it."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.files: Files | None = None
        """Given by whoever puts the server together."""
        self._page = Route("GET", prefix, self._answer, ops=True, open=True)
        self._file = Route("GET", f"{prefix}/{{file}}", self._answer, ops=True, open=True)

    def listed(self) -> Iterator[tuple[str, str]]:
        yield from ((route.method, route.path) for route in (self._page, self._file))

    def find(self, method: str, path: str) -> tuple[Route, str]:
        if path != self.prefix and not path.startswith(f"{self.prefix}/"):
            raise _nothing_at(path)
        if method not in ("GET", "HEAD"):
            raise MethodNotAllowedError(method, ("GET", "HEAD"))
        return self._page if path == self.prefix else self._file, ""

    def _answer(self, exchange: Exchange) -> None:
        path = exchange.head.path
        file = path[len(self.prefix) + 1 :]
        if path == f"{self.prefix}/":
            # Everything on the page is relative to where it is, so that it can be served below any path.
            exchange.respond(308, b"", "", (("location", f"..{self.prefix}"),))
        elif self.files is not None and file in self.files:
            self.files.answer(exchange, file)
        else:
            _turn_away(exchange)


def front_door(exchange: Exchange) -> None:
    """Sends people to the console. A program that asks for nothing in particular is told that there is nothing."""
    if "text/html" in (exchange.head.headers.get("accept") or ""):
        exchange.respond(303, b"", "", (("location", CONSOLE[1:]), ("vary", "accept")))
    else:
        _turn_away(exchange)


def _nothing_at(path: str) -> NotFoundError:
    return NotFoundError(f"there is nothing at {quoted(path)}")


def _turn_away(exchange: Exchange) -> None:
    exchange.respond(404, render_error(_nothing_at(exchange.head.path)), "application/json", SECURE)
