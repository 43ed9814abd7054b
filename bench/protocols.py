"""The requests of the HTTP benchmark for each kind of server: how to create a topic, and the bytes of an append.

Requests are built here as complete bytes and replayed by the load generator, which alone knows how to read answers and
how to follow cursors. Records are 200 bytes of JSON by default; the character `~` stands in each of them once, and
nowhere else in the answers of a server, because the generator counts records by it.
"""

import http.client
import json
import socket
from typing import Protocol

PAYLOAD_BYTES = 200
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_TIMEOUT_S = 60
_KEY_CHARS = 20
"""As the Python client has them."""


def payload(nbytes: int) -> str:
    """A record of this many bytes."""
    text = (_LETTERS * (nbytes // len(_LETTERS) + 1))[: nbytes - len('{"k":"~"}')]
    return '{"k":"' + text + '~"}'


class Speaker(Protocol):
    """The requests of one protocol. A place is the name of a topic, a stream or a key."""

    protocol: str
    """The name of the protocol in the load generator."""

    def make(self, address: str, place: str) -> None:
        """Creates the place; raises `OSError` while the server does not answer yet."""

    def drop(self, address: str, place: str) -> None:
        """Removes the place with all its records."""

    def append(self, place: str, records: int, nbytes: int = PAYLOAD_BYTES) -> str:
        """The bytes of a request that appends this many records of this size."""

    def at_once(self, place: str, count: int) -> str | None:
        """The bytes of this many appends of one record that do not wait for each other; None if the protocol cannot do
        that."""

    def target(self, place: str) -> str:
        """The target that the generator needs for reading the topic."""


class Topics:
    """The /v0 protocol of our server; topics have the given durability class."""

    protocol = "topics"

    def __init__(self, durability: str) -> None:
        self._durability = durability

    def make(self, address: str, place: str) -> None:
        ask_http(address, "PUT", f"/v0/topics/{place}", json.dumps({"durability": self._durability}))

    def drop(self, address: str, place: str) -> None:
        ask_http(address, "DELETE", f"/v0/topics/{place}")

    def append(self, place: str, records: int, nbytes: int = PAYLOAD_BYTES) -> str:
        body = '{"records":[' + ",".join(['{"data":' + payload(nbytes) + "}"] * records) + "]}"
        return post(f"/v0/topics/{place}", body)

    def at_once(self, place: str, count: int) -> str:
        return self.append(place, 1) * count

    def target(self, place: str) -> str:
        return f"/v0/topics/{place}/diff"


class Streams:
    """The Durable Streams protocol in JSON mode, in which an array is one message for each element."""

    protocol = "streams"

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def make(self, address: str, place: str) -> None:
        ask_http(address, "PUT", self.target(place))

    def drop(self, address: str, place: str) -> None:
        ask_http(address, "DELETE", self.target(place))

    def append(self, place: str, records: int, nbytes: int = PAYLOAD_BYTES) -> str:
        body = payload(nbytes) if records == 1 else "[" + ",".join([payload(nbytes)] * records) + "]"
        return post(self.target(place), body)

    def at_once(self, place: str, count: int) -> None:
        # Clients of the protocol send the next append with the answer to the last one.
        return None

    def target(self, place: str) -> str:
        return f"{self._prefix}/{place}"


class Redis:
    """Redis streams. A batch is a pipeline, which is faster than MULTI but, unlike our batches, not atomic."""

    protocol = "redis"

    def make(self, address: str, place: str) -> None:
        with _connected(address) as connection:
            connection.sendall(_resp("PING"))
            answer = connection.recv(64)
            # Redis answers -LOADING while it starts.
            if not answer.startswith(b"+PONG"):
                raise ConnectionError(answer.decode())

    def drop(self, address: str, place: str) -> None:
        with _connected(address) as connection:
            connection.sendall(_resp("DEL", place))
            connection.recv(64)

    def append(self, place: str, records: int, nbytes: int = PAYLOAD_BYTES) -> str:
        return _resp("XADD", place, "*", "d", payload(nbytes)).decode() * records

    def at_once(self, place: str, count: int) -> str:
        return self.append(place, count)

    def target(self, place: str) -> str:
        return place


class Nats:
    """NATS JetStream. A batch is a number of messages sent at once, each of them acknowledged."""

    protocol = "nats"

    def make(self, address: str, place: str) -> None:
        config = {"name": place, "subjects": [place], "storage": "file", "num_replicas": 1}
        self._ask(address, f"$JS.API.STREAM.CREATE.{place}", json.dumps(config))

    def drop(self, address: str, place: str) -> None:
        self._ask(address, f"$JS.API.STREAM.DELETE.{place}", "")

    def append(self, place: str, records: int, nbytes: int = PAYLOAD_BYTES) -> str:
        return f"PUB {place} _INBOX.bench0 {nbytes}\r\n{payload(nbytes)}\r\n" * records

    def at_once(self, place: str, count: int) -> str:
        return self.append(place, count)

    def target(self, place: str) -> str:
        return place

    @staticmethod
    def _ask(address: str, subject: str, body: str) -> None:
        """One request to the JetStream API, on its own connection."""
        with _connected(address) as connection:
            hello = 'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB _INBOX.ask 1\r\n'
            connection.sendall(f"{hello}PUB {subject} _INBOX.ask {len(body)}\r\n{body}\r\n".encode())
            heard = b""
            while b"MSG _INBOX.ask" not in heard or not heard.endswith(b"}\r\n"):
                part = connection.recv(65536)
                # The second is the header of "nobody listens there": JetStream is not up yet.
                if not part or b"NATS/1.0 503" in part:
                    raise ConnectionError(f"nats hung up after {heard[-200:]!r}")
                heard += part
            if b'"error"' in heard:
                raise RuntimeError(f"nats answered {heard[-300:]!r}")


def _connected(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)


def ask_http(address: str, method: str, path: str, body: str | None = None) -> None:
    connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status == 503:
        raise ConnectionError(f"{method} {path} was answered 503")
    if answer.status >= 300:
        raise RuntimeError(f"{method} {path} was answered {answer.status}: {text[:300]!r}")


def post(path: str, body: str) -> str:
    """The bytes of a request."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n{body}"


def publish(place: str) -> str:
    """The message that publishes one record over a WebSocket."""
    return (
        '{"op":"publish","request_id":"p","topic":"' + place + '","records":[{"data":' + payload(PAYLOAD_BYTES) + "}]}"
    )


def with_key(request: str) -> str:
    """An append over /v0 with an idempotency key in its body, which the generator replaces in each request."""
    path = request.split(" ", 2)[1]
    body = request.partition("\r\n\r\n")[2]
    return post(path, '{"idempotency_key":"' + "#" * _KEY_CHARS + '","idempotency_check":true,' + body[1:])


def _resp(*words: str) -> bytes:
    parts = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    return f"*{len(words)}\r\n{parts}".encode()
