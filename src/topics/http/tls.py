"""TLS: the server's certificate, and the handshake of a connection.

A connection counts from the moment it is accepted, not only when its handshake is done: clients that open connections
and send nothing use up descriptors all the same. After the handshake it is a connection like any other, on another
transport.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

from topics.http.server_state import ServerState

_ACCEPT_AGAIN_S = 0.1

_logger = logging.getLogger(__name__)


class Certificate:
    """A certificate with its key, from files that can be read again."""

    def __init__(self, cert_file: str, key_file: str, *, http2: bool = True) -> None:
        """Raises `OSError`, which `ssl.SSLError` is as well, for files that make no sense. `http2` is whether clients
        are told that the server speaks it."""
        self._files = cert_file, key_file
        self._protocols = ["h2", "http/1.1"] if http2 else ["http/1.1"]
        self.context = self._load()

    def reload(self) -> None:
        """Reads the files again, for connections that begin from now on. Raises `OSError`, and nothing has changed."""
        # In a context of its own first: one that took a certificate without its key would serve nobody.
        self._load()
        self.context.load_cert_chain(*self._files)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A client that wants to begin anew in the middle of a connection only wants the server to compute.
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        # A client that wants none of them gets HTTP/1.1; what it speaks then shows in its first bytes.
        context.set_alpn_protocols(self._protocols)
        # No question at a terminal that nobody looks at: a key with a password is refused.
        context.load_cert_chain(*self._files, password=_no_password)
        return context


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted; a server needs one that is not")


class Handshaking:
    """A connection before its handshake is through (`server_state.Served`)."""

    owes = False
    buffered_bytes = 0

    def __init__(self, server_state: ServerState, task: asyncio.Task[None]) -> None:
        self._server_state = server_state
        self._task = task
        server_state.adopt(self)
        server_state.silent[self] = None
        task.add_done_callback(self._leave)

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._server_state.abandon(self)

    # Called by the server.

    def sweep(self, now: float) -> None:
        """The handshake has a timeout of its own."""

    def expect_end(self) -> None:
        self.abort()

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        # What it waits for ends, and its socket is closed.
        self._server_state.silent.pop(self, None)
        self._task.cancel()


class TlsListener:
    """Takes connections itself, as those of the loop are not to be seen before their handshake is through."""

    def __init__(
        self, server_state: ServerState, certificate: Certificate, make: Callable[[], asyncio.Protocol]
    ) -> None:
        self._server_state = server_state
        self._certificate = certificate
        self._make = make
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []

    async def start(self, host: str, port: int, backlog: int) -> list[tuple[str, int]]:
        """Listens, and returns the addresses bound. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                self._sockets.append(_listen(socket.socket(family, kind, protocol), address, backlog))
        except OSError:
            self.close()
            raise
        self._accepting = [loop.create_task(self._accept(listening)) for listening in self._sockets]
        return [listening.getsockname()[:2] for listening in self._sockets]

    def close(self) -> None:
        for task in self._accepting:
            task.cancel()
        for listening in self._sockets:
            listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop, server_state = asyncio.get_running_loop(), self._server_state
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                # No descriptor is free, or the client is gone already.
                _logger.debug("a connection was not taken", extra={"error": str(error)})
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            if len(server_state.connections) >= server_state.limits.connections_max and not server_state.make_room():
                accepted.close()
                continue
            Handshaking(server_state, loop.create_task(self._shake_hands(accepted)))

    async def _shake_hands(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.connect_accepted_socket(
                self._make, accepted, ssl=self._certificate.context,
                ssl_handshake_timeout=self._server_state.limits.handshake_timeout_s,
            )  # fmt: skip
        except (OSError, TimeoutError) as error:
            # A port that is open meets much that is no TLS; it is no news.
            _logger.debug("a handshake failed", extra={"error": str(error)})
            accepted.close()


def _listen(listening: socket.socket, address: Any, backlog: int) -> socket.socket:
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listening.family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(backlog)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def end_sending(transport: asyncio.Transport) -> None:
    """Says that nothing more is sent, and reads on for a while; over TLS both ends of a connection end together."""
    if not transport.can_write_eof():
        transport.close()
        return
    try:
        transport.write_eof()
    except OSError:
        transport.abort()
