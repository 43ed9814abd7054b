from pathlib import Path

import pytest

from tests.s3 import S3Server
from topics.log.layout import Layout
from topics.log.object_store.local_cache import LocalCopies
from topics.log.object_store.store import StoreUnavailable
from topics.log.object_store.tiered_fs import guest_files, server_files, tiered, tiered_for_server
from topics.log.posix import PosixFileSystem
from topics.model.settings import SettingsError
from topics.testing import FakeDisk, FolderStore

ROOT = "s3://bucket/cold"


def test_a_path_goes_where_it_belongs() -> None:
    disk = FakeDisk()
    store = FolderStore(FakeDisk(), "store")
    fs = tiered(disk, ROOT, store, LocalCopies(disk, "data/near", 1000))
    fs.make_dirs("data/topics/1")
    fs.make_dirs(f"{ROOT}/topics/1")
    for folder in ("data", ROOT):
        file = fs.open(f"{folder}/topics/1/a.data", create=True)
        file.write_at(0, folder.encode())
        file.sync()
        file.close()
        fs.sync_dir(f"{folder}/topics/1")
        assert fs.list_dir(f"{folder}/topics/1") == ["a.data"]
        assert fs.exists(f"{folder}/topics/1/a.data")
        assert bytes(fs.open(f"{folder}/topics/1/a.data").map()) == folder.encode()
        fs.rename(f"{folder}/topics/1/a.data", f"{folder}/topics/1/b.data")
    assert bytes(store.get("topics/1/b.data")) == ROOT.encode()
    assert fs.tail(f"{ROOT}/topics/1/b.data", 4) == b"cold"
    assert fs.near(f"{ROOT}/topics/1/b.data") is None
    fs.open(f"{ROOT}/topics/1/b.data").close()
    assert bytes(fs.near(f"{ROOT}/topics/1/b.data") or b"") == ROOT.encode()
    assert fs.drop_copies(f"{ROOT}/topics/1/b.data")
    fs.keep_only(lambda path: path.startswith(ROOT))
    for folder in ("data", ROOT):
        fs.remove(f"{folder}/topics/1/b.data")
        fs.remove_dir(f"{folder}/topics/1")
        assert not fs.exists(f"{folder}/topics/1/b.data")
    fs.lock("data/lock", "me").release()


def test_a_server_counts_what_it_asks_and_leaves_a_store_alone_that_fails() -> None:
    disk, store, now = FakeDisk(), FolderStore(FakeDisk(), "store"), [100.0]
    fs = tiered_for_server(disk, ROOT, store, LocalCopies(disk, "data/near", 1000), lambda: now[0])
    store.put("a.data", [b"12345"])
    for _ in range(2):
        assert bytes(fs.open(f"{ROOT}/a.data").map()) == b"12345"
    with pytest.raises(FileNotFoundError):
        fs.open(f"{ROOT}/b.data")
    store.away = True
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            fs.open(f"{ROOT}/b.data")
    found = fs.stats()
    assert found is not None
    # The last two were refused without asking.
    assert found.requests["get"] == {"ok": 1, "missing": 1, "unavailable": 1}
    assert (found.received_bytes, found.sent_bytes, found.paused) == (5, 0, True)
    assert (found.cache_bytes, found.cache_hits, found.cache_misses) == (5, 1, 5)
    now[0] += 10.0
    later = fs.stats()
    assert later is not None and not later.paused


def test_a_guest_counts_nothing() -> None:
    assert tiered(FakeDisk(), ROOT, FolderStore(FakeDisk(), "store")).stats() is None


@pytest.mark.parametrize("cold_dir", [None, "cold", "/mnt/cold/"])
def test_a_folder_needs_no_object_store(cold_dir: str | None) -> None:
    assert isinstance(guest_files(cold_dir), PosixFileSystem)
    assert isinstance(server_files(cold_dir, "near", 1, lambda: 0.0), PosixFileSystem)


def test_a_place_that_is_none_is_refused() -> None:
    with pytest.raises(SettingsError, match="names no object store"):
        guest_files("ftp://host/x")
    with pytest.raises(SettingsError, match="names no object store"):
        server_files("s3://", "near", 1, lambda: 0.0)


def test_server_and_guest_see_the_same_objects(s3: S3Server, credentials: None, tmp_path: Path) -> None:
    url = s3.make_bucket("tiers") + "/cold"
    path = Layout("data", url).segment(1, 1, cold=True) + ".idx"
    server, guest = server_files(url + "/", str(tmp_path / "near"), 1000, lambda: 0.0), guest_files(url)
    file = server.open(path, create=True)
    file.write_at(0, b"index")
    file.sync()
    assert bytes(guest.open(path).map()) == b"index"
    s3.down()
    try:
        assert bytes(server.open(path).map()) == b"index"
        with pytest.raises(OSError, match="not available"):
            guest.open(path)
    finally:
        s3.up()
