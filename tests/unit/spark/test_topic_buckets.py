"""Buckets of topics equal the buckets of Apache Iceberg."""

import pytest

from topics.spark.segment_reader import BUCKETS, bucket_of, murmur3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The first is in the specification of Iceberg; the others were computed with another implementation (mmh3).
        ("iceberg", 1210000089),
        ("", 0),
        ("a", 0x3C2569B2),
        ("ab", 0x9BBFD75F),
        ("abc", 0xB3DD93FA),
        ("abcd", 0x43ED676A),
        ("hello", 0x248BFA47),
    ],
)
def test_the_hash_is_murmur3(text: str, expected: int) -> None:
    assert murmur3(text.encode()) == expected


def test_topics_spread_over_the_buckets() -> None:
    counts = [0] * BUCKETS
    for number in range(16_000):
        counts[bucket_of(f"orders.{number}")] += 1
    assert min(counts) > 800
    assert bucket_of("iceberg", 16) == 1210000089 % 16
