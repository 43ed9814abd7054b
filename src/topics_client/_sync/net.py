"""Connections, locks and tasks on sockets and threads. `topics_client._async.net` has the same names on asyncio."""

import queue
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Lock
from time import sleep
from typing import TYPE_CHECKING, Any, Self

from topics_client.errors import ClientError

if TYPE_CHECKING:
    import ssl
    from concurrent.futures import Future

    from websockets.sync.client import ClientConnection as WebSocket

    from topics_client.transport.dial import DialSettings

Interrupted = KeyboardInterrupt
Task = threading.Thread

__all__ = [
    "Bell", "Condition", "Connection", "Crew", "Flag", "Future", "Interrupted", "Interruption", "Lock",
    "Slots", "Task", "WebSocket", "connect", "dial", "join", "new_future", "outcome_of", "resolve_future", "sleep",
    "spawn", "stopped_by_signal",
]  # fmt: skip

_READ_BYTES = 64 * 1024


class Connection:
    """One connection. Every wait has a time, and raises `TimeoutError` behind it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def write(self, data: bytes, timeout_s: float) -> None:
        self._sock.settimeout(timeout_s)
        self._sock.sendall(data)

    def read(self, timeout_s: float) -> bytes:
        """The received bytes; empty at the end."""
        self._sock.settimeout(timeout_s)
        return self._sock.recv(_READ_BYTES)

    def start_tls(self, context: "ssl.SSLContext", name: str, timeout_s: float) -> None:
        self._poll.unregister(self._sock)
        self._sock.settimeout(timeout_s)
        self._sock = context.wrap_socket(self._sock, server_hostname=name)
        self._poll.register(self._sock, select.POLLIN)

    @property
    def is_usable(self) -> bool:
        """Whether a request may be tried on it: nothing came since the last answer, also no end."""
        return not self._poll.poll(0)

    def close(self) -> None:
        self._sock.close()

    def shutdown(self) -> None:
        """Ends it for another thread that waits on it, whose part it is to close it."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            # It ended by itself.
            pass


def connect(host: str, port: int, timeout_s: float) -> Connection:
    sock = socket.create_connection((host, port), timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(sock)


class Slots:
    """Room for so many at a time."""

    def __init__(self, count: int) -> None:
        self._semaphore = threading.Semaphore(count)
        self.release = self._semaphore.release

    def acquire(self, timeout_s: float) -> None:
        if not self._semaphore.acquire(timeout=timeout_s):
            raise TimeoutError("no connection of the pool became free in time")


class Flag:
    """Something that happens once."""

    def __init__(self) -> None:
        event = threading.Event()
        self.set = event.set
        self.is_set = event.is_set
        self.wait = event.wait


class Bell:
    """Wakes the one who waits. A signal handler may ring it."""

    def __init__(self) -> None:
        # An event would not do: a handler must not touch a lock that the interrupted code could hold.
        self._rung: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ring(self) -> None:
        self._rung.put(None)

    def wait(self) -> None:
        self._rung.get()
        while not self._rung.empty():
            self._rung.get()


class Interruption:
    """A block that another thread would like to end; a thread ends by itself, at the next word from the server."""

    def __init__(self) -> None:
        self._inside = False

    def trigger(self) -> bool:
        """Returns whether anybody is in the block."""
        return self._inside

    def __enter__(self) -> Self:
        self._inside = True
        return self

    def __exit__(self, *_: object) -> None:
        self._inside = False


class Crew:
    """Threads that do jobs."""

    def __init__(self, size: int, name: str) -> None:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - only workers need it

        self._pool: ThreadPoolExecutor = ThreadPoolExecutor(size, thread_name_prefix=name)

    def start(self, do: Callable[..., None], *args: object) -> None:
        self._pool.submit(do, *args)

    def cancel(self) -> None:
        """Nobody can cancel a thread."""

    def join(self) -> None:
        self._pool.shutdown()


@contextmanager
def stopped_by_signal(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C in the block calls `stop`; an exception could hit anything, such as a thread that is being made.

    The second one is raised. A handler of the program's own is left alone.
    """
    default = signal.default_int_handler
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not default:
        yield
        return

    def handle(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, default)
        stop()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, default)


def spawn(do: Callable[..., None], *args: object) -> Task:
    thread = Task(target=do, args=args, name=f"topics{do.__name__}", daemon=True)
    thread.start()
    return thread


def join(task: Task | None) -> None:
    """Waits for the end of a thread, unless that is the one that waits."""
    if task is not None and task is not threading.current_thread():
        task.join()


def new_future() -> "Future[Any]":
    from concurrent.futures import Future  # noqa: PLC0415 - only sockets need it

    return Future()


def resolve_future(future: "Future[Any]", outcome: object) -> None:
    if future.done():
        return
    if isinstance(outcome, ClientError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def outcome_of(future: "Future[Any]", timeout_s: float | None) -> Any:
    """The result, once there is one; raises `TimeoutError` when that takes too long."""
    return future.result(timeout_s)


def dial(settings: "DialSettings") -> "WebSocket":
    from websockets.sync.client import connect  # noqa: PLC0415 - few need it, and it takes long to import

    # Entered at once: some versions return the connection, newer ones a context manager around it.
    return connect(**settings).__enter__()
