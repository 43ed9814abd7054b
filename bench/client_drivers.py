"""The clients of the client benchmark: each opens its connections, and returns a function that appends one record.

Run as a program, it makes calls with one of them and prints their cost.
"""

import asyncio
import contextlib
import http.client
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

RECORD = {"id": 1234567, "total": 9.5}
TEXT = json.dumps(RECORD, separators=(",", ":"))
BODY = json.dumps({"records": [{"data": RECORD}]}, separators=(",", ":")).encode()
PATH = "/v0/topics/client"

Call = Callable[[], object]
AsyncCall = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Driver:
    key: str
    title: str
    server: str
    sync: Callable[[str], Call] | None = None
    asynchronous: Callable[[str], AbstractAsyncContextManager[AsyncCall]] | None = None


def ours(address: str) -> Call:
    from topics_client import Client

    client = Client(f"http://{address}")
    return lambda: client.append("client", RECORD)


@contextlib.asynccontextmanager
async def ours_async(address: str) -> AsyncIterator[AsyncCall]:
    from topics_client import AsyncClient

    async with AsyncClient(f"http://{address}") as client:
        yield lambda: client.append("client", RECORD)


def raw_socket(address: str) -> Call:
    """The lower bound for any client: two system calls, and the answer is not parsed."""
    host, port = address.split(":")
    sock = socket.create_connection((host, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: [::1]\r\ncontent-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n"
    )
    request = head.encode() + BODY

    def call() -> None:
        sock.sendall(request)
        assert sock.recv(65536).startswith(b"HTTP/1.1 20")

    return call


def http_client(address: str) -> Call:
    connection = http.client.HTTPConnection(address)

    def call() -> object:
        connection.request("POST", PATH, BODY, {"content-type": "application/json"})
        return json.loads(connection.getresponse().read())

    return call


def httpx_sync(address: str) -> Call:
    import httpx

    client = httpx.Client(base_url=f"http://{address}")
    return lambda: client.post(PATH, json={"records": [{"data": RECORD}]}).json()


@contextlib.asynccontextmanager
async def httpx_async(address: str) -> AsyncIterator[AsyncCall]:
    import httpx

    async with httpx.AsyncClient(base_url=f"http://{address}") as client:

        async def call() -> object:
            return (await client.post(PATH, json={"records": [{"data": RECORD}]})).json()

        yield call


def redis_sync(address: str) -> Call:
    redis: Any = __import__("redis")
    host, port = address.split(":")
    client = redis.Redis(host=host, port=int(port))
    return lambda: client.xadd("client", {"data": TEXT})


@contextlib.asynccontextmanager
async def redis_async(address: str) -> AsyncIterator[AsyncCall]:
    redis: Any = __import__("redis.asyncio").asyncio
    host, port = address.split(":")
    client = redis.Redis(host=host, port=int(port))
    try:
        yield lambda: client.xadd("client", {"data": TEXT})
    finally:
        await client.aclose()


@contextlib.asynccontextmanager
async def nats_async(address: str) -> AsyncIterator[AsyncCall]:
    nats: Any = __import__("nats")
    client = await nats.connect(f"nats://{address}")
    stream = client.jetstream()
    try:
        await stream.add_stream(name="client", subjects=["client"])
        yield lambda: stream.publish("client", TEXT.encode())
    finally:
        await client.close()


DRIVERS = (
    Driver("raw", "a socket and nothing else", "topics", sync=raw_socket),
    Driver("ours", "`topics_client.Client`", "topics", sync=ours),
    Driver("http.client", "http.client", "topics", sync=http_client),
    Driver("httpx", "httpx", "topics", sync=httpx_sync),
    Driver("redis", "redis-py, `XADD`", "redis", sync=redis_sync),
    Driver("ours-async", "`topics_client.AsyncClient`", "topics", asynchronous=ours_async),
    Driver("httpx-async", "httpx, asyncio", "topics", asynchronous=httpx_async),
    Driver("redis-async", "redis-py, asyncio, `XADD`", "redis", asynchronous=redis_async),
    Driver("nats", "nats-py, asyncio, JetStream", "nats", asynchronous=nats_async),
)


def drive(key: str, address: str, at_once: int, calls: int) -> None:
    """The measured process: some calls to warm up, then the counted ones."""
    driver = next(driver for driver in DRIVERS if driver.key == key)

    def report(made: int, cpu: float, wall: float) -> None:
        print(json.dumps({"cpu_us": cpu / made * 1e6, "rate": made / wall}))

    if driver.sync is not None:
        call = driver.sync(address)
        for _ in range(calls // 10):
            call()
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(calls):
            call()
        report(calls, time.process_time() - cpu, time.perf_counter() - wall)
        return

    async def main() -> None:
        assert driver.asynchronous is not None
        async with driver.asynchronous(address) as call:
            await _together(call, at_once, calls // 10)
            cpu, wall = time.process_time(), time.perf_counter()
            made = await _together(call, at_once, calls)
            report(made, time.process_time() - cpu, time.perf_counter() - wall)

    asyncio.run(main())


async def _together(call: Callable[[], Awaitable[object]], at_once: int, calls: int) -> int:
    each = max(calls // at_once, 1)

    async def some() -> None:
        for _ in range(each):
            await call()

    await asyncio.gather(*[some() for _ in range(at_once)])
    return each * at_once


if __name__ == "__main__":
    drive(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
