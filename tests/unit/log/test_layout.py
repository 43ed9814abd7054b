import pytest

from topics.log.layout import Layout, number_in, wal_file

LAYOUT = Layout("data", "cold")


def test_every_path_is_below_the_root() -> None:
    assert LAYOUT.lock == "data/.topics.lock"
    assert LAYOUT.machine == "data/machine"
    assert LAYOUT.wal == "data/wal"
    assert LAYOUT.shard(3) == "data/wal/shard-03"
    assert LAYOUT.meta == "data/meta"
    assert LAYOUT.snapshot(7) == "data/meta/snapshot-0000000000000007.bin"
    assert LAYOUT.topics() == "data/topics"
    assert LAYOUT.topic(255) == "data/topics/00000000000000ff"
    assert LAYOUT.segment(255, 7) == "data/topics/00000000000000ff/seg-00000000000000000007"


def test_the_cold_tier_has_the_same_names_below_its_own_root() -> None:
    assert LAYOUT.topics(cold=True) == "cold/topics"
    assert LAYOUT.segment(255, 7, cold=True) == "cold/topics/00000000000000ff/seg-00000000000000000007"


def test_log_files_are_numbered() -> None:
    assert wal_file("data/wal/shard-00", 12) == "data/wal/shard-00/0000000000000012.wal"


def test_names_sort_as_their_numbers_do() -> None:
    numbers = [1, 9, 10, 99, 2**53]
    assert sorted(wal_file("f", n) for n in numbers) == [wal_file("f", n) for n in numbers]
    assert sorted(LAYOUT.segment(1, n) for n in (1, 9, 10, 2**64 - 1)) == [
        LAYOUT.segment(1, n) for n in (1, 9, 10, 2**64 - 1)
    ]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("snapshot-0000000000000007.bin", 7),
        ("snapshot-123456789012345678.bin", 123456789012345678),
        ("snapshot-0000000000000007.bin.tmp", None),
        ("snapshot-.bin", None),
        ("snapshot-7", None),
        ("7.bin", None),
        ("snapshot--7.bin", None),
        ("snapshot-7a.bin", None),
        ("snapshot-٧.bin", None),
        ("", None),
    ],
)
def test_only_our_own_names_have_a_number(name: str, number: int | None) -> None:
    assert number_in(name, "snapshot-", ".bin") == number


def test_the_number_of_a_log_file_is_read_back() -> None:
    assert number_in(wal_file("", 41).removeprefix("/"), "", ".wal") == 41
