"""A server that reads requests and answers them and does nothing else: the cost of the loop in Python alone.

It is a lower bound, not an alternative: nothing is parsed, decided, logged or counted, and every answer is the same few
bytes.
"""

import asyncio
import sys
from typing import cast

import uvloop

_BODY = b'{"topic":"bench","seq":123456,"head_seq":123456,"performance":{"total_ms":0.123,"wal_append_ms":0.045}}'
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
_METHODS = (b"POST /", b"PUT /", b"GET /")


class Floor(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast(asyncio.Transport, transport).write

    def data_received(self, data: bytes) -> None:
        # Requests that come together are answered together; one is most often alone.
        count = data.count(_METHODS[0]) or any(method in data for method in _METHODS)
        self._write(_ANSWER if count == 1 else _ANSWER * count)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Floor, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
