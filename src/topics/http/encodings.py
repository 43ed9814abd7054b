"""gzip on answers: who accepts it, and making it."""

import asyncio
import functools
import zlib
from collections.abc import Callable

# The lowest level: on JSON it gives most of the saving for a third of the time of the usual one.
_LEVEL = 1
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


def compress(body: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    return compressor.compress(body) + compressor.flush()


def compress_later(body: bytes, done: Callable[[bytes], None]) -> None:
    """Compresses on a thread and calls `done` on the loop."""

    def compressed(future: asyncio.Future[bytes]) -> None:
        if not future.cancelled():
            # A thread that fails, for want of memory, leaves the body as it is.
            done(body if future.exception() else future.result())

    asyncio.get_running_loop().run_in_executor(None, compress, body).add_done_callback(compressed)


@functools.lru_cache(maxsize=256)
def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding value prefers gzip to the plain body, or likes them alike.

    Cached because a client sends the same value with every request; the cache is small and old values leave it.
    """
    qualities: dict[str, float] = {}
    for item in accept_encoding.lower().split(","):
        coding, _, parameters = item.partition(";")
        qualities[coding.strip()] = _quality(parameters)
    anything = qualities.get("*", 0.0)
    gzip = max(qualities.get("gzip", anything), qualities.get("x-gzip", 0.0))
    return gzip > 0 and gzip >= qualities.get("identity", 0.0)


def _quality(parameters: str) -> float:
    """The weight of a coding: 1 unless it says otherwise, 0 for what is no number from 0 to 1."""
    name, _, value = parameters.partition("=")
    if not name.strip():
        return 1.0
    try:
        quality = float(value)
    except ValueError:
        return 0.0
    return quality if name.strip() == "q" and 0.0 <= quality <= 1.0 else 0.0
