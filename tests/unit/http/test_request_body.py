"""Bodies: the memory they hold, and its release."""

import gzip
import tracemalloc
import zlib
from typing import Any

import pytest

from topics.http import Fault, HttpError, HttpLimits
from topics.http.exchange import accepts_gzip, compress
from topics.http.request_body import Body, Budget, open_body


def opened(encoding: str, limit: int, budget: Budget, length: int | None = None, **limits: Any) -> Body:
    return open_body(encoding, length, limit, HttpLimits(**limits), budget)


def test_a_body_of_tiny_parts() -> None:
    budget = Budget(1_000_000)
    body = opened("", 200_000, budget)
    for _ in range(100_000):
        body.add(b"ab")
    assert budget.held_bytes == 200_000
    assert body.finish() == b"ab" * 100_000
    assert budget.held_bytes == 0


def test_one_part_is_not_copied() -> None:
    part = b"x" * 1000
    body = opened("", 1000, Budget(0))
    body.add(part)
    assert body.finish() is part


@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_a_body_is_released_once(encoding: str) -> None:
    budget = Budget(1_000_000)
    body = opened(encoding, 500_000, budget)
    whole = bytes(400_000)
    body.add(gzip.compress(whole) if encoding else whole)
    assert budget.held_bytes == 400_000
    body.release()
    body.release()
    assert budget.held_bytes == 0


def test_a_part_over_the_budget_is_not_kept() -> None:
    budget = Budget(100_000)
    body = opened("", 500_000, budget)
    body.add(bytes(90_000))
    with pytest.raises(HttpError) as refused:
        body.add(bytes(20_000))
    assert refused.value.fault is Fault.TOO_MANY_BODIES
    assert budget.held_bytes == 90_000
    body.release()
    assert budget.held_bytes == 0


def test_a_known_length_is_refused_before_any_byte() -> None:
    with pytest.raises(HttpError) as refused:
        opened("", 100, Budget(1000), length=101)
    assert (refused.value.status, refused.value.code) == (413, "body_too_large")


def test_a_bomb_is_stopped_at_its_limit() -> None:
    bomb = zlib.compress(bytes(50_000_000), wbits=31)
    budget = Budget(10_000_000)
    body = opened("gzip", 2_000_000, budget)
    tracemalloc.start()
    try:
        with pytest.raises(HttpError) as refused:
            body.add(bomb)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.status == 413
    assert peak_bytes < 10_000_000
    # The part beyond the limit was never taken over: only the part before is held.
    assert budget.held_bytes == 0


def test_a_stream_out_of_which_nothing_comes_is_stopped() -> None:
    body = opened("gzip", 10_000, Budget(0))
    compressor = zlib.compressobj(wbits=31)
    body.add(compressor.compress(b"x") + compressor.flush(zlib.Z_FULL_FLUSH))
    empty_block = b"\0\0\0\xff\xff"
    with pytest.raises(HttpError) as refused:
        for _ in range(3000):
            body.add(empty_block)
    assert refused.value.status == 413


def test_a_bomb_is_stopped_by_its_ratio() -> None:
    body = opened("gzip", 50_000_000, Budget(50_000_000), inflate_ratio=10, inflate_free_bytes=1000)
    with pytest.raises(HttpError) as refused:
        body.add(gzip.compress(bytes(100_000)))
    assert refused.value.status == 413


def test_gzip_in_parts_of_one_byte() -> None:
    body = opened("gzip", 10_000, Budget(10_000))
    for byte in gzip.compress(b"hello" * 1000) + gzip.compress(b"more"):
        body.add(bytes([byte]))
    assert body.finish() == b"hello" * 1000 + b"more"


def test_no_bytes_are_no_body_in_any_encoding() -> None:
    assert opened("gzip", 10, Budget(0)).finish() == opened("", 10, Budget(0)).finish() == b""


def test_what_we_compress_can_be_decompressed() -> None:
    for body in (b"", b"x", b"hello" * 100_000):
        assert gzip.decompress(compress(body)) == body


def test_the_cache_of_accepted_encodings_is_bounded() -> None:
    for number in range(1000):
        assert accepts_gzip(f"gzip, x{number}")
    assert accepts_gzip.cache_info().currsize <= 256
