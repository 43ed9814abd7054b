"""A server that stops refuses new requests on every connection alike, also on one whose heads it knows."""

import json
from typing import Any

import pytest

from tests.http.protocol.support import App, Client, Loops, Site, get, post
from tests.unit.conftest import open_engine
from topics.api.app import Api, Routes
from topics.api.auth import KeyRing
from topics.api.v0.routes import V0_ROUTES
from topics.http import Exchange, HttpError, Refusal, RequestHead
from topics.http.exchange import BatchHandler
from topics.system.clock import SystemClock


class Product(App):
    """The API itself, as it is while `Api.drain` has been called and the HTTP server still serves."""

    def __init__(self) -> None:
        super().__init__()
        clock = SystemClock()
        self.api = Api(Routes(V0_ROUTES), KeyRing.parse(""), clock, 10**6, 0)
        self.api.engine = open_engine()

    def admit(self, head: RequestHead) -> int | Refusal:
        return self.api.admit(head)

    def batch_handler(self, head: RequestHead) -> BatchHandler | None:
        return self.api.batch_handler(head)

    def handle(self, exchange: Exchange) -> None:
        self.api.handle(exchange)

    def refuse(self, error: HttpError, path: str) -> Refusal:
        return self.api.refuse(error, path)


JSON = "content-type: application/json"
APPEND = post("/v0/topics/a", b'{"records":[{"data":1}]}', JSON)


async def ask(client: Client, request: bytes) -> tuple[int, dict[str, Any]]:
    client.send(request)
    head = await client.reader.readuntil(b"\r\n\r\n")
    body = await client.reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize(
    "request_", [APPEND, post("/v0/topics/a/diff", b"{}", JSON), get("/v0/topics/a")], ids=["append", "diff", "state"]
)
def test_a_known_head_is_refused_while_the_server_drains(loops: Loops, request_: bytes) -> None:
    product = Product()

    async def scene(site: Site) -> None:
        client, other = await site.connect(), await site.connect()
        await ask(client, APPEND)
        before = [(await ask(client, request_))[0] for _ in range(3)]
        product.api.drain()
        known, new = await ask(client, request_), await ask(other, request_)
        assert before == [200, 200, 200]
        assert known == new
        assert (known[0], known[1]["error"]["code"]) == (503, "shutting_down")

    loops.run(scene, product)
