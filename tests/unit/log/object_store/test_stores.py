"""The contract of object stores, checked over HTTP on a real one and on the fake alike; then the details of the real
one."""

import contextlib
import socket
import threading
import urllib.request
from collections.abc import Callable
from itertools import count

import pytest

from tests.s3 import PAGE_NAMES, S3Server
from topics.log.object_store import obstore_client
from topics.log.object_store.obstore_client import RemoteStore
from topics.log.object_store.store import Listing, ObjectStore, StoreUnavailable
from topics.testing import FakeDisk, FolderStore

_buckets = count(1)


def new_bucket(s3: S3Server) -> str:
    return s3.make_bucket(f"bucket-{next(_buckets)}") + "/some/where"


KINDS: dict[str, Callable[[S3Server], ObjectStore]] = {
    "s3": lambda s3: RemoteStore(new_bucket(s3)),
    "folder": lambda s3: FolderStore(FakeDisk(), "store"),
}


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, s3: S3Server, credentials: None) -> ObjectStore:
    return KINDS[request.param](s3)


def test_an_object_is_what_was_put_last(store: ObjectStore) -> None:
    store.put("topics/1/a.data", [b"first, and longer"])
    store.put("topics/1/a.data", [b"01234", memoryview(b"567"), bytearray(b"89")])
    assert bytes(store.get("topics/1/a.data")) == b"0123456789"
    assert store.size("topics/1/a.data") == 10


def test_parts_of_an_object(store: ObjectStore) -> None:
    store.put("a", [b"0123456789"])
    assert store.get_range("a", 3, 4) == b"3456"
    assert store.get_range("a", 8, 40) == b"89"
    assert store.get_range("a", 8, 0) == b""
    assert store.get_tail("a", 3) == b"789"
    assert store.get_tail("a", 30) == b"0123456789"


def test_an_object_that_was_emptied(store: ObjectStore) -> None:
    store.put("a", [])
    assert store.size("a") == 0
    assert bytes(store.get("a")) == b""
    assert store.get_tail("a", 4) == b""


def test_an_object_of_some_megabytes(store: ObjectStore) -> None:
    data = bytes(range(256)) * 50_000
    store.put("large", [data[:7_000_000], data[7_000_000:]])
    assert bytes(store.get("large")) == data


@pytest.mark.parametrize("ask", ["get", "size"])
def test_a_missing_object_is_not_there(store: ObjectStore, ask: str) -> None:
    store.put("topics/1/a.data", [b"1"])
    for name in ("topics/1/b.data", "topics/1", "topics/1/a.data/deeper"):
        with pytest.raises(FileNotFoundError):
            getattr(store, ask)(name)
    with pytest.raises(FileNotFoundError):
        store.get_range("topics/1/b.data", 0, 4)
    with pytest.raises(FileNotFoundError):
        store.get_tail("topics/1/b.data", 4)
    with pytest.raises(FileNotFoundError):
        store.copy("topics/1/b.data", "topics/1/c.data")


def test_a_new_object_is_made_where_none_is_and_never_replaces_one(store: ObjectStore) -> None:
    store.put_new("lease/1", b"first")
    with pytest.raises(FileExistsError):
        store.put_new("lease/1", b"second")
    assert bytes(store.get("lease/1")) == b"first"
    store.remove("lease/1")
    store.put_new("lease/1", b"third")
    assert bytes(store.get("lease/1")) == b"third"


def test_of_several_who_make_one_object_one_succeeds(store: ObjectStore) -> None:
    if isinstance(store, FolderStore):
        pytest.skip("it has one caller")
    made: list[int] = []

    def make(number: int) -> None:
        with contextlib.suppress(FileExistsError, StoreUnavailable):
            store.put_new("lease/1", b"%d" % number)
            made.append(number)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [bytes(store.get("lease/1"))] == [b"%d" % number for number in made]


def test_removing_twice_is_removing(store: ObjectStore) -> None:
    store.put("a", [b"1"])
    store.remove("a")
    store.remove("a")
    with pytest.raises(FileNotFoundError):
        store.get("a")


def test_a_copy_leaves_the_source(store: ObjectStore) -> None:
    store.put("topics/1/a.data", [b"1"])
    store.copy("topics/1/a.data", "damaged-1/topics/1/a.data")
    assert bytes(store.get("topics/1/a.data")) == bytes(store.get("damaged-1/topics/1/a.data")) == b"1"


def test_listing_a_folder(store: ObjectStore) -> None:
    for name in ("topics/10/b.idx", "topics/1/b.idx", "topics/1/a.data", "topics/one", "damaged-1/x", "topics-2/x"):
        store.put(name, [b"1"])
    assert store.list_folder("topics") == Listing(["1", "10"], ["one"])
    assert store.list_folder("topics/1") == Listing([], ["a.data", "b.idx"])
    assert store.list_folder("topics/2") == Listing([], [])
    assert store.list_folder("topics/1/a.data") == Listing([], [])


# Over HTTP


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries again as often as ever, and waits next to nothing in between."""
    monkeypatch.setattr(obstore_client, "BACKOFF_MS", (1, 2))


def every_call(store: ObjectStore) -> dict[str, Callable[[], object]]:
    return {
        "get": lambda: store.get("a"),
        "get_range": lambda: store.get_range("a", 0, 1),
        "get_tail": lambda: store.get_tail("a", 1),
        "size": lambda: store.size("a"),
        "put": lambda: store.put("a", [b"1"]),
        "remove": lambda: store.remove("a"),
        "copy": lambda: store.copy("a", "b"),
        "list_folder": lambda: store.list_folder("a"),
    }


def test_more_names_than_one_answer_lists(s3: S3Server, credentials: None) -> None:
    url = new_bucket(s3)
    store = RemoteStore(url)
    names = [f"{number:04d}" for number in range(PAGE_NAMES + 5)]
    for name in names:
        store.put(f"topics/{name}", [b"1"])
    page = f"{s3.environment['AWS_ENDPOINT_URL']}/{url.split('/')[2]}?list-type=2"
    with urllib.request.urlopen(page) as answer:
        assert b"<IsTruncated>true" in answer.read()
    assert store.list_folder("topics").objects == names


def test_a_store_that_is_gone_states_nothing_about_its_objects(s3: S3Server, credentials: None, hasty: None) -> None:
    store = RemoteStore(new_bucket(s3))
    store.put("a", [b"1"])
    s3.down()
    try:
        for call in every_call(store).values():
            with pytest.raises(StoreUnavailable):
                call()
    finally:
        s3.up()
    assert bytes(store.get("a")) == b"1"


def test_a_missing_bucket_is_no_missing_object(s3: S3Server, credentials: None) -> None:
    store = RemoteStore("s3://nobody-made-this/x")
    calls = every_call(store)
    del calls["remove"]  # Removing a missing file is fine, missing in any place.
    for name, call in calls.items():
        with pytest.raises(StoreUnavailable, match=r"NoSuchBucket|not exist|404"):
            call()
            pytest.fail(name)


def test_errors_do_not_report_secrets(
    s3: S3Server, credentials: None, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for call in every_call(RemoteStore("s3://bucket/x")).values():
        with pytest.raises(StoreUnavailable) as caught:
            call()
        reported = str(caught.value)
        assert "127.0.0.1:1" in reported
        assert len(reported) < 500
        assert not any(word in reported for word in ("a-secret", "someone", "Signature", "Debug", "?"))


def test_what_a_call_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []

    def connect(url: str, call_s: float | None) -> object:
        waits.append(call_s)
        return object()

    monkeypatch.setattr(obstore_client, "_connect", connect)
    store = RemoteStore("s3://bucket/x")
    for size in (0, 1000, 1024 * 1024, 5_000_000, 64 * 1024 * 1024, 65 * 1024 * 1024, 100, None, None):
        store._client(size)
    assert waits == [5, 21, 37, None]


def test_a_store_that_takes_calls_and_never_answers(monkeypatch: pytest.MonkeyPatch, s3: S3Server, hasty: None) -> None:
    """It is given up, by every call: the test would hang otherwise."""
    monkeypatch.setattr(obstore_client, "CALL_S", 0.02)
    monkeypatch.setattr(obstore_client, "BYTES_A_SECOND", 1 << 40)
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        for call in every_call(RemoteStore("s3://bucket/x")).values():
            with pytest.raises(StoreUnavailable):
                call()
