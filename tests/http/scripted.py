"""A scripted server on loopback: it answers, dies, drips, sends wrong lengths and resets."""

import contextlib
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Sequence

import msgspec

# Only to fail instead of hanging.
PATIENCE_S = 30.0

Act = Callable[["Peer"], None]
"""The steps on one connection."""


class Asked(msgspec.Struct):
    """A request as it came."""

    first: str
    headers: dict[str, str]
    body: bytes


class Peer:
    """The server's end of a connection."""

    def __init__(self, sock: socket.socket, server: "ScriptedServer") -> None:
        self.sock = sock
        self.server = server
        self._buffer = b""

    def ask(self) -> Asked | None:
        """The next request, which is also remembered; None at the end of the connection."""
        head = self.ask_head()
        if head is None:
            return None
        length = int(head.headers.get("content-length", "0"))
        while len(self._buffer) < length:
            data = self.sock.recv(65536)
            if not data:
                return None
            self._buffer += data
        head.body, self._buffer = self._buffer[:length], self._buffer[length:]
        self.server.asked.append(head)
        return head

    def ask_head(self) -> Asked | None:
        while b"\r\n\r\n" not in self._buffer:
            data = self.sock.recv(65536)
            if not data:
                return None
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = text.decode().split("\r\n")
        return Asked(first, dict(re.split(r": ?", line, maxsplit=1) for line in lines), b"")

    def reset(self) -> None:
        """Leaves without a goodbye."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class ScriptedServer:
    """Plays one act for each connection that is made, and then refuses; leaving the `with` block ends everything."""

    def __init__(self, acts: Sequence[Act], context: ssl.SSLContext | None = None) -> None:
        self.asked: list[Asked] = []
        self.over = threading.Event()
        self.connections = 0
        self._acts = list(acts)
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._socks: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"{'http' if self._context is None else 'https'}://127.0.0.1:{self.port}"

    def __enter__(self) -> "ScriptedServer":
        if self._acts:
            self._spawn(self._accept)
        else:
            # At once, so that no connection reaches the system's queue.
            self._listener.close()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def _spawn(self, run: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        for act in self._acts:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._socks.append(sock)
            self._spawn(self._play, act, sock)
        self._listener.close()

    def _play(self, act: Act, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self._context is not None:
                sock = self._context.wrap_socket(sock, server_side=True)
            with sock:
                act(Peer(sock, self))


def http(body: object = None, *, status: str = "200 OK", raw: bytes | None = None, **headers: str) -> bytes:
    """A correct answer."""
    content = msgspec.json.encode(body) if raw is None else raw
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def answers(*texts: bytes, each: int | None = None) -> Act:
    """Answers requests one after the other with these bytes, so many at a time, and leaves."""

    def act(peer: Peer) -> None:
        for text in texts:
            if peer.ask() is None:
                return
            for start in range(0, len(text), each or len(text)):
                peer.sock.sendall(text[start : start + (each or len(text))])

    return act


def then(first: Act, second: Act) -> Act:
    def act(peer: Peer) -> None:
        first(peer)
        second(peer)

    return act


def dies(peer: Peer) -> None:
    """Takes a request and leaves."""
    peer.ask()


def resets(peer: Peer) -> None:
    peer.ask()
    peer.reset()


def hangs(peer: Peer) -> None:
    """Reads a request and does not answer."""
    peer.ask()
    peer.server.over.wait(4 * PATIENCE_S)


def stays(peer: Peer) -> None:
    """Keeps the connection open."""
    peer.server.over.wait(4 * PATIENCE_S)


@contextlib.contextmanager
def running(acts: Sequence[Act], context: ssl.SSLContext | None = None) -> Iterator[ScriptedServer]:
    with ScriptedServer(acts, context) as server:
        yield server
