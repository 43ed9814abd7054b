"""Connections, locks and tasks on asyncio. `topics_client._sync.net` has the same names on sockets and threads."""

import asyncio
import ssl
from asyncio import CancelledError as Interrupted
from asyncio import Condition, Future, Lock, sleep
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Self, cast

from topics_client.errors import ClientError

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection as WebSocket

    from topics_client.transport.dial import DialSettings

Task = asyncio.Task[None]

__all__ = [
    "Bell", "Condition", "Connection", "Crew", "Flag", "Future", "Interrupted", "Interruption", "Lock",
    "Slots", "Task", "WebSocket", "connect", "dial", "join", "new_future", "outcome_of", "resolve_future", "sleep",
    "spawn", "stopped_by_signal",
]  # fmt: skip

_BUFFER_BYTES_MAX = 1024 * 1024


class Connection(asyncio.Protocol):
    """One connection. Every wait has a time, and raises `TimeoutError` behind it.

    No call is made on a transport that has reported its end: `connection_lost` drops it. In CPython 3.11 `abort` and
    `write` of a transport that flushed its last bytes after `close` raise AttributeError, and uvloop raises
    RuntimeError for `write` to any ended transport.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        """None before the connection is made and after it is lost."""
        self._received: list[bytes] = []
        self._received_bytes = 0
        self._ended = False
        self._lost = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._is_full = False

    async def write(self, data: bytes, timeout_s: float) -> None:
        self._living().write(data)
        if self._is_full and not self._ended:
            self._writer = self._loop.create_future()
            await self._wait(self._writer, timeout_s)

    async def read(self, timeout_s: float) -> bytes:
        """The received bytes; empty at the end."""
        if not self._received and not self._ended:
            self._reader = self._loop.create_future()
            await self._wait(self._reader, timeout_s)
        if not self._received:
            if self._error is not None:
                raise self._error
            return b""
        data = self._received[0] if len(self._received) == 1 else b"".join(self._received)
        self._received.clear()
        if self._received_bytes > _BUFFER_BYTES_MAX and self._transport is not None:
            self._transport.resume_reading()
        self._received_bytes = 0
        return data

    async def start_tls(self, context: ssl.SSLContext, name: str, timeout_s: float) -> None:
        # From here on the transport is the loop's, which closes it when the handshake fails.
        transport, self._transport = self._living(), None
        secured = await self._loop.start_tls(
            transport, self, context, server_hostname=name, ssl_handshake_timeout=timeout_s
        )
        if not self._lost:
            self._transport = secured

    def _living(self) -> asyncio.Transport:
        if self._transport is None:
            raise self._error or ConnectionResetError("the connection has ended")
        return self._transport

    @property
    def is_usable(self) -> bool:
        """Whether a request may be tried on it: nothing came since the last answer, also no end."""
        return not (self._ended or self._received) and self._loop is asyncio.get_running_loop()

    def close(self) -> None:
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()

    # Ends it for a caller that waits on it.
    shutdown = close

    async def _wait(self, future: "asyncio.Future[None]", timeout_s: float) -> None:
        timer = self._loop.call_later(timeout_s, _time_out, future)
        try:
            await future
        finally:
            timer.cancel()

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked: uvloop's transports do not derive from asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received.append(data)
        self._received_bytes += len(data)
        if self._received_bytes > _BUFFER_BYTES_MAX and self._transport is not None:
            self._transport.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> None:
        self._ended = True
        _wake(self._reader)

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = self._lost = True
        self._error = error
        self._transport = None
        _wake(self._reader)
        _wake(self._writer)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        _wake(self._writer)


def _wake(future: "asyncio.Future[None] | None") -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _time_out(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_exception(TimeoutError("no word came in time"))


async def connect(host: str, port: int, timeout_s: float) -> Connection:
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await asyncio.get_running_loop().create_connection(Connection, host, port)
    except TimeoutError:
        raise TimeoutError("no connection came in time") from None
    return connection


class Slots:
    """A semaphore for `count` holders."""

    def __init__(self, count: int) -> None:
        self._semaphore = asyncio.Semaphore(count)
        self.release = self._semaphore.release

    async def acquire(self, timeout_s: float) -> None:
        if not self._semaphore.locked():
            # Does not wait, and so needs no time.
            await self._semaphore.acquire()
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._semaphore.acquire()
        except TimeoutError:
            raise TimeoutError("no connection of the pool became free in time") from None


class Flag:
    """Something that happens once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.set = self._event.set
        self.is_set = self._event.is_set

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the event, at most this long; returns whether it happened."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            pass
        return self._event.is_set()


class Bell:
    """Wakes the waiter. A signal handler may call it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.ring = self._event.set

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()


class Interruption:
    """A block that another task can end, without cancelling the task that is in it."""

    def __init__(self) -> None:
        self._timeout: asyncio.Timeout | None = None
        self._received = False

    def trigger(self) -> bool:
        """Ends the block, and returns whether it was running."""
        self._received = True
        if self._timeout is None:
            return False
        if not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())
        return True

    async def __aenter__(self) -> Self:
        # Without a time: it is here to be rescheduled.
        self._timeout = asyncio.timeout(None)
        await self._timeout.__aenter__()
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> bool:
        assert self._timeout is not None
        timeout, self._timeout = self._timeout, None
        try:
            await timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            return self._received
        return False


class Crew:
    """Tasks that run jobs, as many at a time as the source of jobs allows."""

    def __init__(self, size: int, name: str) -> None:
        self._tasks: set[Task] = set()

    def start(self, do: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        task = asyncio.create_task(do(*args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def join(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)


def stopped_by_signal(stop: Callable[[], None]) -> AbstractContextManager[None]:
    """Ctrl-C is handled by the runner of the loop: `asyncio.run` cancels the task."""
    return nullcontext()


def spawn(do: Callable[..., Coroutine[Any, Any, None]], *args: object) -> Task:
    return asyncio.create_task(do(*args))


async def join(task: Task | None) -> None:
    """Waits for the end of a task, unless it is the current one."""
    if task is not None and task is not asyncio.current_task():
        await asyncio.wait((task,))


def new_future() -> "Future[Any]":
    return asyncio.get_running_loop().create_future()


def resolve_future(future: "Future[Any]", outcome: object) -> None:
    if future.done():
        return
    if isinstance(outcome, ClientError):
        future.set_exception(outcome)
        # Retrieves the exception, so that asyncio does not log it again.
        future.exception()
    else:
        future.set_result(outcome)


async def outcome_of(future: "Future[Any]", timeout_s: float | None) -> Any:
    """The result, once there is one; raises `TimeoutError` when that takes too long."""
    async with asyncio.timeout(timeout_s):
        return await future


async def dial(settings: "DialSettings") -> "WebSocket":
    from websockets.asyncio.client import connect  # noqa: PLC0415 - few need it, and it takes long to import

    # No `async for` over it, nor `async with`: trying again is ours to decide.
    return await connect(**settings)
