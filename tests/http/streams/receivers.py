"""Receivers of webhooks: real HTTP servers on this machine, over TLS when they have a certificate."""

import json
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

PATIENCE_S = 20.0


class Receiver:
    """Receives webhooks and answers each with the given status."""

    def __init__(self, certificate: Path | None = None, address: str = "127.0.0.1") -> None:
        self.calls: Queue[tuple[dict[str, Any], str]] = Queue()
        self.answers: list[tuple[int, bytes]] = []
        self.sent_headers: list[tuple[str, str]] = []
        """Headers of every answer besides the length."""
        self.received_headers: list[dict[str, str]] = []
        self.address = address
        self._server = _Server((address, 0), self._handler())
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            # The handshake waits for the first read, in a thread of the connection's own.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._scheme = "http" if certificate is None else "https"
        self.url = self.url_by(address)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def url_by(self, host: str) -> str:
        """Its address by another name."""
        shown = f"[{host}]" if ":" in host else host
        return f"{self._scheme}://{shown}:{self._server.server_port}/hook"

    def call(self) -> dict[str, Any]:
        return self.calls.get(timeout=PATIENCE_S)[0]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status, answer = receiver.answers.pop(0) if receiver.answers else (200, b"{}")
                self.send_response(status)
                for name, value in receiver.sent_headers:
                    self.send_header(name, value)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                receiver.received_headers.append({name.lower(): value for name, value in self.headers.items()})
                receiver.calls.put((json.loads(body), self.headers["webhook-signature"]))

            def log_message(self, *_: object) -> None: ...

        return Handler


class _Server(ThreadingHTTPServer):
    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that does not believe the certificate goes in the middle of a handshake."""
