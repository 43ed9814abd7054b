"""Where records of a topic go in files that topics share: a bucket, by a hash of the topic's name.

The hash is the one that Apache Iceberg uses for its transform `bucket`: Murmur3 of 32 bits with seed 0 over the UTF-8
bytes of the name, its sign bit cleared, modulo the number of buckets. So the files can be parts of such a table as they
are, and any engine that knows the transform finds the bucket of a topic.
"""

from functools import lru_cache

BUCKETS = 16

_MASK = 0xFFFFFFFF


@lru_cache(maxsize=65_536)
def bucket_of(topic: str, buckets: int = BUCKETS) -> int:
    return (murmur3(topic.encode()) & 0x7FFFFFFF) % buckets


def murmur3(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0, unsigned."""
    length = len(data)
    whole = length & ~3
    state = 0
    for place in range(0, whole, 4):
        state ^= _mixed(int.from_bytes(data[place : place + 4], "little"))
        state = ((state << 13 | state >> 19) * 5 + 0xE6546B64) & _MASK
    if whole < length:
        state ^= _mixed(int.from_bytes(data[whole:], "little"))
    state ^= length
    state = ((state ^ state >> 16) * 0x85EBCA6B) & _MASK
    state = ((state ^ state >> 13) * 0xC2B2AE35) & _MASK
    return state ^ state >> 16


def _mixed(word: int) -> int:
    word = word * 0xCC9E2D51 & _MASK
    return (word << 15 | word >> 17) * 0x1B873593 & _MASK
