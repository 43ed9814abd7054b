import pytest

from topics.log.object_store.store import GuardedStore, StoreUnavailable
from topics.testing import FakeDisk, FolderStore


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def seconds(self) -> float:
        return self.now


def test_after_a_failure_callers_are_refused_without_asking() -> None:
    inner, clock = FolderStore(FakeDisk(), "store"), Clock()
    store = GuardedStore(inner, clock.seconds, pause_s=2.0)
    store.put("a", [b"1"])
    assert not store.paused
    inner.away = True
    with pytest.raises(StoreUnavailable, match="sent away"):
        store.get("a")
    assert store.paused
    asked = len(inner.trace)
    for _ in range(5):
        with pytest.raises(StoreUnavailable, match="sent away"):
            store.get_tail("a", 1)
    assert len(inner.trace) == asked
    inner.away = False
    clock.now += 1.9
    with pytest.raises(StoreUnavailable):
        store.size("a")
    clock.now += 0.1
    assert not store.paused
    assert store.size("a") == 1
    assert bytes(store.get("a")) == b"1"


def test_a_failed_attempt_begins_the_pause_again() -> None:
    inner, clock = FolderStore(FakeDisk(), "store"), Clock()
    store = GuardedStore(inner, clock.seconds, pause_s=2.0)
    inner.away = True
    for _ in range(3):
        clock.now += 2.0
        with pytest.raises(StoreUnavailable):
            store.list_folder("a")
        with pytest.raises(StoreUnavailable):
            store.remove("a")
    assert len(inner.trace) == 3


def test_a_missing_object_is_an_answer() -> None:
    store = GuardedStore(FolderStore(FakeDisk(), "store"), Clock().seconds)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            store.get("a")
    store.put("a", [b"1"])
    store.copy("a", "b")
    assert store.get_range("b", 0, 1) == b"1"
