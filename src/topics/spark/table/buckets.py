"""Which partition of the table a record belongs to: the day of its time, and a bucket of its topic's name.

Both are Iceberg's own transforms, so that every engine that is asked for one topic, or for some days, opens only the
files that may have them. Tasks sort what they write into files by these numbers. Nothing is imported for it, because it
runs on every executor.
"""

from functools import lru_cache

BUCKETS = 16
"""Enough that a look for one topic skips nearly everything, few enough that a day of a small log is a few files."""
DAY_MS = 86_400_000

_MASK = 0xFFFFFFFF


@lru_cache(maxsize=65_536)
def bucket_of(topic: str) -> int:
    """The bucket of a topic: `bucket[16]` of Iceberg, a 32-bit Murmur3 hash of the name in UTF-8."""
    return (_murmur3(topic.encode()) & 0x7FFFFFFF) % BUCKETS


def day_of(ts_ms: int) -> int:
    """The day of a moment in UTC: `day` of Iceberg, counted from 1970-01-01."""
    return ts_ms // DAY_MS


def _murmur3(data: bytes) -> int:
    """Murmur3 for 32 bits with a seed of 0, as the Iceberg specification names it for buckets."""
    value = 0
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        value ^= _mixed(int.from_bytes(data[at : at + 4], "little"))
        value = (_rotated(value, 13) * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        value ^= _mixed(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & _MASK
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & _MASK
    return value ^ (value >> 16)


def _mixed(word: int) -> int:
    return (_rotated((word * 0xCC9E2D51) & _MASK, 15) * 0x1B873593) & _MASK


def _rotated(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (32 - bits))) & _MASK
