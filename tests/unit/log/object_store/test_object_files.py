from collections.abc import Callable

import pytest

from topics.log.object_store.local_cache import LocalCopies
from topics.log.object_store.store import StoreUnavailable
from topics.log.object_store.tiered_fs import ObjectFileSystem
from topics.testing import FakeDisk, FolderStore

DATA = "topics/1/a.data"


@pytest.fixture
def store() -> FolderStore:
    return FolderStore(FakeDisk(), "store")


@pytest.fixture
def near(store: FolderStore) -> ObjectFileSystem:
    return ObjectFileSystem(store, LocalCopies(FakeDisk(), "near", 1000))


@pytest.fixture
def plain(store: FolderStore) -> ObjectFileSystem:
    return ObjectFileSystem(store)


def test_a_file_is_put_when_it_is_synced(plain: ObjectFileSystem, store: FolderStore) -> None:
    file = plain.open(DATA, create=True)
    file.truncate(0)
    file.write_at(0, b"0123")
    file.write_at(4, memoryview(b"4567"))
    assert not plain.exists(DATA)
    file.sync()
    file.close()
    assert bytes(store.get(DATA)) == b"01234567"
    assert [call for call in store.trace if call[0] == "put"] == [("put", DATA)]


def test_what_is_not_synced_was_never_there(plain: ObjectFileSystem, store: FolderStore) -> None:
    store.put(DATA, [b"whole"])
    file = plain.open(DATA, create=True)
    file.truncate(0)
    file.write_at(0, b"hal")
    file.close()
    assert bytes(store.get(DATA)) == b"whole"


def test_a_change_starts_from_what_the_store_has(near: ObjectFileSystem, store: FolderStore) -> None:
    store.put(DATA, [b"0123456789"])
    assert near.tail(DATA, 3) == b"789"
    assert bytes(near.open(DATA).map()) == b"0123456789"
    store.put(DATA, [b"abcdefghij"])  # No other code does this; a damaged copy looks the same.
    file = near.open(DATA, write=True)
    assert file.size() == 10
    assert file.read_at(7, 3) == b"hij"
    file.write_at(8, b"X")
    file.sync()
    file.close()
    assert bytes(store.get(DATA)) == b"abcdefghXj"
    assert near.tail(DATA, 3) == b"hXj"
    assert bytes(near.open(DATA).map()) == b"abcdefghXj"


def test_a_sync_without_a_change_brings_the_copies_up_to_date(near: ObjectFileSystem, store: FolderStore) -> None:
    store.put(DATA, [b"0123"])
    assert near.tail(DATA, 2) == b"23"
    store.put(DATA, [b"01XY"])
    file = near.open(DATA, write=True)
    file.sync()
    assert near.tail(DATA, 2) == b"XY"
    assert [call for call in store.trace if call[0] == "put"] == [("put", DATA)] * 2


def test_writes_anywhere(plain: ObjectFileSystem) -> None:
    file = plain.open(DATA, create=True)
    file.write_at(2, b"ab")
    file.write_at(0, b"x")
    file.write_at(9, b"")
    assert file.read_at(0, 10) == b"x\0ab"
    file.allocate(6)
    file.allocate(2)
    assert file.size() == 6
    file.truncate(3)
    assert bytes(file.map()) == b"x\0a"
    file.write_whole([b"new", b"er"])
    assert file.read_at(1, 3) == b"ewe"


def test_a_file_opened_for_reading_takes_no_writes(plain: ObjectFileSystem, store: FolderStore) -> None:
    store.put(DATA, [b"0123"])
    file = plain.open(DATA)
    changes: list[Callable[[], None]] = [
        lambda: file.write_at(0, b"1"),
        lambda: file.write_whole([b""]),
        lambda: file.truncate(0),
        lambda: file.allocate(9),
    ]
    for change in changes:
        with pytest.raises(OSError, match="opened for reading"):
            change()
    file.sync()
    file.close()
    assert file.read_at(1, 2) == b"12"
    assert file.size() == 4


def test_what_was_read_once_needs_no_store(near: ObjectFileSystem, store: FolderStore) -> None:
    store.put(DATA, [b"0123"])
    store.put("topics/1/a.idx", [b"index"])
    near.open(DATA).close()
    near.open("topics/1/a.idx").close()
    assert near.tail(DATA, 2) == b"23"
    store.away = True
    assert bytes(near.open(DATA).map()) == b"0123"
    assert bytes(near.open("topics/1/a.idx").map()) == b"index"
    assert near.tail(DATA, 2) == b"23"
    assert near.is_near("topics/1/a")
    assert near.drop_copies(DATA)
    with pytest.raises(StoreUnavailable):
        near.open(DATA)


def test_looks_for_whole_objects_are_counted_where_room_is_at_stake(near: ObjectFileSystem, store: FolderStore) -> None:
    copies = near.copies
    assert copies is not None
    for name in (DATA, "topics/1/a.idx"):
        store.put(name, [b"12345"])
    for _ in range(3):
        assert bytes(near.open(DATA).map()) == b"12345"
        assert bytes(near.open("topics/1/a.idx").map()) == b"12345"
    assert (copies.hits, copies.misses, copies.held_bytes) == (2, 1, 5)
    near.open(DATA, write=True)
    near.open("topics/1/new.data", create=True)
    assert (copies.hits, copies.misses) == (2, 1)
    store.away = True
    with pytest.raises(StoreUnavailable):
        near.open("topics/1/b.data")
    assert (copies.hits, copies.misses) == (2, 2)


def test_without_copies_every_read_asks(plain: ObjectFileSystem, store: FolderStore) -> None:
    store.put(DATA, [b"0123"])
    assert bytes(plain.open(DATA).map()) == b"0123"
    assert plain.tail(DATA, 2) == b"23"
    assert not plain.is_near("topics/1/a")
    assert not plain.drop_copies(DATA)
    plain.keep_only(lambda name: False)
    store.away = True
    for ask in (lambda: plain.open(DATA), lambda: plain.tail(DATA, 2), lambda: plain.exists(DATA)):
        with pytest.raises(StoreUnavailable):
            ask()


def test_names(plain: ObjectFileSystem, store: FolderStore) -> None:
    plain.make_dirs("topics/1")
    plain.sync_dir("topics/1")
    assert not plain.exists("topics")
    store.put(DATA, [b"1"])
    store.put("topics/one", [b"1"])
    assert plain.exists("topics")
    assert plain.exists(DATA)
    assert plain.list_dir("topics") == ["1", "one"]
    for missing in ("topics/2", DATA):
        with pytest.raises(FileNotFoundError):
            plain.list_dir(missing)
    with pytest.raises(FileNotFoundError):
        plain.open("topics/1/b.data")
    with pytest.raises(FileNotFoundError):
        plain.open("topics/1/b.data", write=True)
    plain.rename(DATA, "damaged-1/topics/1/a.data")
    assert not plain.exists(DATA)
    assert bytes(store.get("damaged-1/topics/1/a.data")) == b"1"
    plain.remove_dir("topics/1")
    with pytest.raises(OSError, match="no locks"):
        plain.lock("x", "me")


def test_a_removed_object_leaves_no_copies(near: ObjectFileSystem, store: FolderStore) -> None:
    store.put(DATA, [b"0123"])
    near.open(DATA)
    near.tail(DATA, 2)
    near.remove(DATA)
    with pytest.raises(FileNotFoundError):
        near.open(DATA)
    with pytest.raises(FileNotFoundError):
        near.tail(DATA, 2)
