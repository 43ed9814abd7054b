"""The access log: one line for each answer, if enabled.

Asynchronous line writer for the audit log: a thread appends lines to a file, so that callers neither wait nor fail.

The buffer is bounded. Lines beyond it are dropped, and the next written line has their number.
"""

import ipaddress
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from topics.api.auth import ANYONE, Key, Scope
from topics.api.tracing import trace_of
from topics.http.exchange import Exchange
from topics.http.messages import Headers, RequestCounter, RequestHead, ResponseListener

WAITING_MAX = 10_000
_MODE = 0o600
_RETRY_S = 1.0
_END_S = 5.0

_logger = logging.getLogger(__name__)


class LineFile:
    """Appends lines to a file. Call `reopen` after log rotation."""

    def __init__(self, path: str, lost: Callable[[int], bytes]) -> None:
        """`lost` formats the line with the number of dropped lines. Raises `OSError` if the file cannot be opened."""
        self._path = path
        self._lost_line = lost
        self._fd = self._open()
        self._waiting: deque[bytes] = deque()
        self._lost = 0
        self._failing = False
        self._again = self._over = False
        self._news = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topics-audit", daemon=True)
        self._thread.start()

    def add(self, line: bytes) -> None:
        """Adds a line, which ends with its line end."""
        if len(self._waiting) >= WAITING_MAX:
            self._lost += 1
        else:
            self._waiting.append(line)
        self._news.set()

    def reopen(self) -> None:
        """Opens the path again, after the file was renamed."""
        self._again = True
        self._news.set()

    def close(self) -> None:
        """Writes the buffered lines within a time limit, and closes the file."""
        self._over = True
        self._news.set()
        self._thread.join(_END_S)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)

    def _run(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            over = self._over
            try:
                self._catch_up()
            except OSError as error:
                self._fail(error)
                if not over:
                    time.sleep(_RETRY_S)
                    self._news.set()
            else:
                self._failing = False
            if over:
                os.close(self._fd)
                return

    def _catch_up(self) -> None:
        if self._again:
            self._again = False
            new = self._open()
            os.close(self._fd)
            self._fd = new
        while self._waiting:
            some = [self._waiting.popleft() for _ in range(min(len(self._waiting), 1_000))]
            lost, self._lost = self._lost, 0
            if lost:
                some.append(self._lost_line(lost))
            try:
                self._write(b"".join(some))
            except OSError:
                self._lost += lost + len(some) - bool(lost)
                raise

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fd, data) :]

    def _fail(self, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            _logger.error("audit log write failed", extra={"path": self._path, "error": str(error)})


def write_whole(path: str, text: str) -> None:
    """Writes a file atomically: a reader sees all of it or none."""
    # The process id keeps two servers with the same target from writing into one temporary file.
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


# The client address of a request behind proxies.
#
#     X-Forwarded-For: 198.51.100.7, 203.0.113.9
#
# A proxy appends the address of its client. Any client can send such a header, so only the entries of trusted proxies
# count: the client is the first address from the end that is not a trusted proxy.

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class BadProxyError(ValueError):
    """An entry of the settings is neither an address nor a network."""


class TrustedProxies:
    def __init__(self, listed: str | None = None) -> None:
        """Parses addresses and networks, separated by commas. Raises `BadProxyError`."""
        entries = [entry.strip() for entry in (listed or "").split(",") if entry.strip()]
        try:
            self._networks = [ipaddress.ip_network(entry) for entry in entries]
        except ValueError as error:
            raise BadProxyError(str(error)) from error

    def client(self, peer: str, headers: Headers) -> str:
        """Returns the address of the client; `peer`, host:port, is the other end of the connection."""
        host = peer.rpartition(":")[0].strip("[]")
        if not self._networks or not self._trusts(_address(host)):
            return peer
        client = peer
        for said in reversed(headers.get_list("x-forwarded-for").split(",")):
            address = _address(said.strip())
            if address is None:
                return client
            client = str(address)
            if not self._trusts(address):
                return client
        return client

    def _trusts(self, address: _Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def _address(text: str) -> _Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    # A dual-stack socket shows IPv4 addresses as mapped IPv6 addresses.
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


_access = logging.getLogger("topics.access")


class AccessLog:
    def __init__(self, proxies: TrustedProxies) -> None:
        self._proxies = proxies

    def answered(self, exchange: Exchange, status: int, spent_s: float) -> None:
        head = exchange.head
        key = getattr(head.context, "key", None)
        line: dict[str, object] = {
            "method": head.method,
            # Without the query, which may contain a token.
            "path": head.path,
            "status": status,
            "took_ms": round(spent_s * 1000, 3),
            "peer": self._proxies.client(exchange.peer, head.headers),
        }
        if key is not None and key.name:
            line["key"] = key.name
        trace = trace_of(head)
        if trace is not None:
            line["trace_id"], line["span_id"] = trace
        _access.info("answered", extra=line)


# The audit log: a line of JSON for every call that was refused, or that removes or changes data.
#
# | field | content |
# |---|---|
# | `ts` | when it was answered, in milliseconds |
# | `event` | `refused`: access denied; `called`: access granted, result in `status`; `lost`: events are missing
# |
# | `status` | of the answer |
# | `code` | of the error, if it is known here |
# | `method`, `path` | of the request, without the query; the name of a watch, which is a secret, is omitted |
# | `key` | the name of the key, or its stand-in in the log; empty without a key |
# | `peer` | address and port of the client, or its address alone behind a trusted proxy |
#
# No field contains a secret: paths have neither keys nor tokens, and headers and bodies are not read.

_REFUSED = (401, 403)
_REMOVING = Scope.DELETE | Scope.ADMIN
_PATH_CHARS_MAX = 512
_WATCH = "/v0/watch/"
_encode = msgspec.json.Encoder().encode


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    ts: int
    event: str
    status: int = 0
    code: str = ""
    method: str = ""
    path: str = ""
    key: str = ""
    peer: str = ""
    count: int = 0


class Audit:
    def __init__(self, path: str, now_ms: Callable[[], int], proxies: TrustedProxies | None = None) -> None:
        """Raises `OSError` if the file cannot be opened."""
        self._now_ms = now_ms
        self._proxies = TrustedProxies() if proxies is None else proxies
        self._file = LineFile(path, lambda count: _line(Entry(ts=now_ms(), event="lost", count=count)))
        self.reopen = self._file.reopen
        self.close = self._file.close

    def refused(self, head: RequestHead, status: int, code: str, key: Key) -> None:
        """Records a refused call if the refusal depends on the client's rights."""
        if status in _REFUSED:
            self._note("refused", head, status, code, key)

    def answered(self, head: RequestHead, scopes: Scope, key: Key, status: int, overrides: bool = False) -> None:
        """Records an answered call if it was refused, is destructive or a change, or requested an entry."""
        if status in _REFUSED:
            self._note("refused", head, status, "", key)
        elif overrides or scopes & _REMOVING:
            self._note("called", head, status, "", key)

    def _note(self, event: str, head: RequestHead, status: int, code: str, key: Key) -> None:
        path = f"{_WATCH}..." if head.path.startswith(_WATCH) else head.path[:_PATH_CHARS_MAX]
        name = "" if key is ANYONE else key.name or key.owner
        entry = Entry(
            ts=self._now_ms(), event=event, status=status, code=code, method=head.method[:16], path=path, key=name,
            peer=self._proxies.client(head.peer, head.headers),
        )  # fmt: skip
        self._file.add(_line(entry))


def _line(entry: Entry) -> bytes:
    return _encode(entry) + b"\n"


# Response counters by route, and subscribers that are called for each response.

_NOWHERE = ("", "")
"""Requests that were refused before routing, or have no route."""


class RouteCounters:
    """Created at the first request of a route, so there are at most as many as routes."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._listener: ResponseListener | None = None
        self._by_route: dict[tuple[str, str], RequestCounter] = {}

    def subscribe(self, listener: ResponseListener) -> None:
        """Adds a listener that is called for every answer, after earlier listeners. Call it before the first
        request."""
        before = self._listener
        if before is None:
            self._listener = listener
            return

        def both(exchange: Exchange, status: int, spent_s: float) -> None:
            before(exchange, status, spent_s)
            listener(exchange, status, spent_s)

        self._listener = both

    def of(self, method: str, path: str) -> RequestCounter:
        known = self._by_route.get((method, path))
        if known is None:
            known = self._by_route[method, path] = RequestCounter(self._seconds, self._listener)
        return known

    @property
    def nowhere(self) -> RequestCounter:
        return self.of(*_NOWHERE)

    def __iter__(self) -> Iterator[tuple[str, str, RequestCounter]]:
        """Method, path and counter of each requested route, sorted by path."""
        for (method, path), counter in sorted(self._by_route.items(), key=lambda one: (one[0][1], one[0][0])):
            yield method, path, counter
