import threading

import pytest

from topics.log.object_store.store import KINDS, OUTCOMES, MeteredStore, StoreStats, StoreUnavailable
from topics.testing import FakeDisk, FolderStore


def stats(store: MeteredStore) -> StoreStats:
    return store.stats(paused=False, cache_bytes=0, cache_hits=0, cache_misses=0)


def counted(store: MeteredStore) -> dict[str, int]:
    """The counts that are not zero, as `kind outcome`."""
    return {
        f"{kind} {outcome}": count
        for kind, outcomes in stats(store).requests.items()
        for outcome, count in outcomes.items()
        if count
    }


def test_every_count_is_there_from_the_start() -> None:
    empty = stats(MeteredStore(FolderStore(FakeDisk(), "store")))
    assert empty.requests == {kind: dict.fromkeys(OUTCOMES, 0) for kind in KINDS}
    assert (empty.received_bytes, empty.sent_bytes) == (0, 0)


def test_calls_are_passed_on_and_counted_by_kind() -> None:
    store = MeteredStore(FolderStore(FakeDisk(), "store"))
    store.put("f/a", [b"123", memoryview(b"45")])
    assert counted(store) == {"put ok": 1}
    assert bytes(store.get("f/a")) == b"12345"
    assert store.get_range("f/a", 1, 2) == b"23"
    assert store.get_tail("f/a", 1) == b"5"
    assert (stats(store).received_bytes, stats(store).sent_bytes) == (8, 5)
    assert store.size("f/a") == 5
    assert counted(store) == {"put ok": 1, "get ok": 4}
    store.copy("f/a", "f/b")
    assert store.list_folder("f").objects == ["a", "b"]
    store.remove("f/a")
    store.remove("f/a")
    assert counted(store) == {"put ok": 2, "get ok": 4, "list ok": 1, "delete ok": 2}
    assert (stats(store).received_bytes, stats(store).sent_bytes) == (8, 5)


def test_what_is_missing_is_an_answer_and_what_is_away_gives_none() -> None:
    inner = FolderStore(FakeDisk(), "store")
    store = MeteredStore(inner)
    with pytest.raises(FileNotFoundError):
        store.get("a")
    inner.away = True
    with pytest.raises(StoreUnavailable):
        store.get("a")
    with pytest.raises(StoreUnavailable):
        store.put("a", [b"123"])
    with pytest.raises(StoreUnavailable):
        store.list_folder("a")
    assert counted(store) == {"get missing": 1, "get unavailable": 1, "put unavailable": 1, "list unavailable": 1}
    assert (stats(store).received_bytes, stats(store).sent_bytes) == (0, 0)


def test_a_snapshot_stays_as_it_is() -> None:
    store = MeteredStore(FolderStore(FakeDisk(), "store"))
    before = stats(store)
    store.put("a", [b"1"])
    assert before.requests["put"]["ok"] == 0


class Constant(FolderStore):
    """Answers without a disk, so that threads can ask at the same time."""

    def get(self, name: str) -> memoryview:
        return memoryview(b"12")


def test_threads_lose_no_count() -> None:
    store = MeteredStore(Constant(FakeDisk(), "store"))

    def ask() -> None:
        for _ in range(2000):
            store.get("a")

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted(store) == {"get ok": 8000}
    assert stats(store).received_bytes == 16_000
