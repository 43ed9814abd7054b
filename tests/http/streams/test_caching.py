"""Cache headers: an ETag that changes whenever its range does, and `immutable` only for ranges that stay."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.http.live import LiveServer, wait_until_ready
from tests.http.streams.conftest import append, create, create_with, offset_of

JSON = "application/json"
PLAIN = re.compile(r'W/"slice:[0-9A-Z]{26}:[0-9A-Z]{26}:key=\w*:fmt=json:filter=(:c)?"')
AFTER = re.compile(r'W/"slice:[0-9A-Z]{26}:[0-9A-Z]{26}:key=\w*:fmt=json:filter=:r=[0-9a-f]{16}(:c)?"')
IMMUTABLE = "public, max-age=31536000, immutable"
REVALIDATED = "public, max-age=60, stale-while-revalidate=300"
# Only to fail instead of hanging.
LOOKS_MAX = 10_000


class Reader:
    """A cache in front of one address: it revalidates its copies."""

    def __init__(self, http: httpx.Client, address: str) -> None:
        self._http = http
        self._address = address
        self.values: list[object] = []
        self.etag = ""
        self.look()

    def look(self) -> int:
        """Revalidates its copy; returns the status."""
        answer = self._http.get(self._address, headers={"if-none-match": self.etag} if self.etag else {})
        if answer.status_code == 200:
            self.values, self.etag = answer.json(), answer.headers["etag"]
        else:
            assert (answer.content, answer.headers.get("etag")) == (b"", self.etag)
        return answer.status_code


def fill(http: httpx.Client, path: str, count: int = 6) -> None:
    """Entries 0, 1, 2, ... of which every other has the key `odd`."""
    create(http, path, JSON)
    for number in range(count):
        append(http, path, b"%d" % number, JSON, stream_key="odd" if number % 2 else "even")


def drop(http: httpx.Client, name: str, **selector: object) -> None:
    assert http.post(f"/v0/topics/{name}/delete", json=selector).json()["deleted"] > 0


def configure(http: httpx.Client, name: str, **config: object) -> None:
    assert http.put(f"/v0/topics/{name}", json=config).status_code == 200


Removal = Callable[[httpx.Client, str], None]
REMOVALS: dict[str, tuple[Removal, list[object]]] = {
    "a delete by tag": (lambda http, name: drop(http, name, match="odd"), [0, 2, 4]),
    "a delete by seq": (lambda http, name: drop(http, name, before_seq=3), [2, 3, 4, 5]),
    "a cap of records": (lambda http, name: configure(http, name, cap_records=2), [4, 5]),
    "a cap of bytes": (lambda http, name: configure(http, name, cap_bytes=1), [5]),
    "an age": (lambda http, name: configure(http, name, ttl_ms=1), []),
}


@pytest.mark.parametrize("removal", REMOVALS)
@pytest.mark.parametrize("closed", [False, True])
def test_a_tag_does_not_outlive_what_it_stands_for(
    http: httpx.Client, name: str, path: str, removal: str, closed: bool
) -> None:
    remove, left = REMOVALS[removal]
    fill(http, path)
    if closed:
        append(http, path, b"", stream_closed="true")
    reader = Reader(http, path)
    assert PLAIN.fullmatch(reader.etag)
    assert reader.look() == 304
    before = reader.etag
    remove(http, name)
    for _ in range(LOOKS_MAX):
        reader.look()
        if reader.values == left:
            break
    assert reader.values == left
    assert AFTER.fullmatch(reader.etag)
    assert reader.etag.endswith(':c"') is closed
    assert reader.look() == 304
    assert http.get(path, headers={"if-none-match": before}).json() == left


def test_each_removal_has_a_tag_of_its_own(http: httpx.Client, name: str, path: str) -> None:
    fill(http, path, 8)
    reader = Reader(http, path)
    tags = {reader.etag}
    for before in (2, 3, 6):
        drop(http, name, before_seq=before)
        assert reader.look() == 200
        assert reader.look() == 304
        tags.add(reader.etag)
    assert len(tags) == 4


def test_an_acknowledged_job_changes_the_tag(http: httpx.Client, name: str, path: str) -> None:
    http.put(f"/v0/topics/{name}", json={"type": "queue"})
    http.post(f"/v0/topics/{name}", json={"records": [{"data": number} for number in range(3)]})
    reader = Reader(http, path)
    assert PLAIN.fullmatch(reader.etag)
    job = http.post(f"/v0/topics/{name}/claim", json={"node": "w"}).json()["claimed"][0]
    assert http.post(f"/v0/topics/{name}/ack", json={"node": "w", "seqs": [job["$seq"]]}).status_code == 200
    assert (reader.look(), reader.values) == (200, [1, 2])
    assert AFTER.fullmatch(reader.etag)
    assert reader.look() == 304


def test_a_delete_in_the_source_changes_the_tag_of_a_fork(http: httpx.Client, name: str, path: str) -> None:
    fill(http, path)
    http.put(f"{path}-f", headers={"stream-forked-from": path})
    http.put(f"{path}-g", headers={"stream-forked-from": f"{path}-f"})
    append(http, f"{path}-g", b"6", JSON)
    readers = [Reader(http, f"{path}-f"), Reader(http, f"{path}-g"), Reader(http, f"{path}-g/pk/odd")]
    assert all(PLAIN.fullmatch(reader.etag) for reader in readers)
    drop(http, name, before_seq=3)
    assert [reader.look() for reader in readers] == [200] * 3
    assert [reader.values for reader in readers] == [[2, 3, 4, 5], [2, 3, 4, 5, 6], [3, 5]]
    assert all(AFTER.fullmatch(reader.etag) for reader in readers)
    assert [reader.look() for reader in readers] == [304] * 3


def test_a_tag_keeps_its_form_where_nothing_was_removed(http: httpx.Client, name: str, path: str) -> None:
    """Entries before or behind its range do not affect it; entries of the same key neither."""
    fill(http, path, 8)
    middle = offset_of(http.get(path, params={"offset": "-1", "key": "odd"}))
    append(http, path, b"8", JSON, stream_key="late")
    readers = [Reader(http, f"{path}?offset={middle}"), Reader(http, f"{path}?offset={middle}&key=late")]
    drop(http, name, before_seq=5)
    assert [reader.look() for reader in readers] == [304, 304]
    assert all(PLAIN.fullmatch(reader.etag) for reader in readers)


def test_a_key_that_lost_an_entry_has_another_tag(http: httpx.Client, name: str, path: str) -> None:
    fill(http, path)
    reader = Reader(http, f"{path}?key=odd")
    assert PLAIN.fullmatch(reader.etag)
    drop(http, name, before_seq=3)
    assert (reader.look(), reader.values) == (200, [3, 5])
    assert AFTER.fullmatch(reader.etag)
    assert reader.look() == 304


@pytest.mark.parametrize("clean", [True, False])
def test_tags_hold_across_a_restart(tmp_path: Path, clean: bool) -> None:
    with LiveServer(tmp_path, segment_max_events="2") as server:
        with httpx.Client(base_url=server.url) as http:
            for name in ("whole", "less", "key"):
                fill(http, f"/v1/stream/{name}")
            old = Reader(http, "/v1/stream/less").etag
            drop(http, "less", match="odd")
            drop(http, "key", before_seq=2)
            readers = [Reader(http, f"/v1/stream/{address}") for address in ("whole", "less", "key", "key?key=odd")]
            tags = [reader.etag for reader in readers]
        server.stop() if clean else server.kill()
        server.start()
        wait_until_ready(server.url)
        with httpx.Client(base_url=server.url) as http:
            again = [Reader(http, f"/v1/stream/{address}") for address in ("whole", "less", "key", "key?key=odd")]
            assert [reader.etag for reader in again] == tags
            assert http.get("/v1/stream/less", headers={"if-none-match": old}).json() == [0, 2, 4]


@pytest.mark.parametrize("form", ["{}", '"x", {}', '{}, "x"', '{},W/"x"', "*"])
def test_every_way_to_name_a_tag(http: httpx.Client, path: str, form: str) -> None:
    fill(http, path)
    etag = Reader(http, path).etag
    for tag in (etag, etag.removeprefix("W/")):
        answer = http.get(path, headers={"if-none-match": form.format(tag)})
        assert answer.status_code == 304
    assert http.get(path, headers={"if-none-match": '"x", W/"y"'}).status_code == 200


# How long caches may keep it


def chunk(http: httpx.Client, path: str) -> httpx.Response:
    """A full chunk in the middle of a stream, asked for by an offset."""
    answer = http.get(path, params={"offset": offset_of(http.get(path))})
    assert len(answer.json()) == 1000
    return answer


def fill_chunks(http: httpx.Client, path: str, **headers: str) -> None:
    create_with(http, path, JSON, headers)
    append(http, path, b"[%b]" % b",".join(b"%d" % number for number in range(2500)), JSON)


def test_a_full_chunk_of_a_stream_that_only_grows_may_be_kept_for_good(http: httpx.Client, path: str) -> None:
    fill_chunks(http, path)
    assert chunk(http, path).headers["cache-control"] == IMMUTABLE


@pytest.mark.parametrize(
    "config",
    [
        {"cap_records": 1_000_000}, {"cap_bytes": 1_000_000_000}, {"ttl_ms": 1_000_000_000},
        {"cap_records": 9_000, "discard": "reject"},
    ],
    ids=str,
)  # fmt: skip
def test_stream_with_retention_is_revalidated(
    http: httpx.Client, name: str, path: str, config: dict[str, object]
) -> None:
    fill_chunks(http, path)
    configure(http, name, **config)
    assert chunk(http, path).headers["cache-control"] == REVALIDATED
    http.put(f"{path}-f", headers={"stream-forked-from": path})
    assert chunk(http, f"{path}-f").headers["cache-control"] == REVALIDATED, "a fork reads them where they are"


@pytest.mark.parametrize("headers", [{"stream_ttl": "1h"}, {"stream_expires_at": "2099-01-01T00:00:00Z"}], ids=str)
def test_so_is_one_that_ends(http: httpx.Client, path: str, headers: dict[str, str]) -> None:
    fill_chunks(http, path, **headers)
    assert chunk(http, path).headers["cache-control"] == REVALIDATED


def test_so_is_one_that_lost_something_anywhere(http: httpx.Client, name: str, path: str) -> None:
    fill_chunks(http, path)
    http.put(f"{path}-f", headers={"stream-forked-from": path})
    assert chunk(http, f"{path}-f").headers["cache-control"] == IMMUTABLE
    drop(http, name, before_seq=2)
    answer = chunk(http, path)
    assert answer.headers["cache-control"] == REVALIDATED
    assert PLAIN.fullmatch(answer.headers["etag"]), "of the chunk itself nothing is gone"
    assert chunk(http, f"{path}-f").headers["cache-control"] == REVALIDATED


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server with `streams_immutable` turned off."""
    with (
        LiveServer(tmp_path_factory.mktemp("forgetful"), streams_immutable="0") as server,
        httpx.Client(base_url=server.url, timeout=30.0) as http,
    ):
        yield http


def test_a_setting_keeps_caches_from_keeping_anything_for_good(forgetful: httpx.Client, path: str) -> None:
    fill_chunks(forgetful, path)
    assert chunk(forgetful, path).headers["cache-control"] == REVALIDATED


# Caches in the server for the next reader


def test_a_live_reader_of_a_fork_gets_nothing_that_is_gone_in_the_source(
    http: httpx.Client, name: str, path: str
) -> None:
    """Frames are kept for later readers with the same cursor: a delete in the source must end that in the fork."""
    create(http, path, JSON)
    for first in range(0, 3000, 500):
        body = b"[%b]" % b",".join(b"%d" % number for number in range(first, first + 500))
        append(http, path, body, JSON, stream_key="gone" if first == 2000 else "kept")
    http.put(f"{path}-f", headers={"stream-forked-from": path})
    with http.stream("GET", f"{path}-f", params={"offset": "-1", "live": "sse"}) as first_reader:
        lines = first_reader.iter_lines()
        assert len(followed(lines)) == 3000
        drop(http, name, match="gone")
        with http.stream("GET", f"{path}-f", params={"offset": "-1", "live": "sse"}) as second_reader:
            found = followed(second_reader.iter_lines())
    assert found == [*range(2000), *range(2500, 3000)]


def followed(lines: Iterator[str]) -> list[int]:
    """Every entry up to the end."""
    found: list[int] = []
    for line in lines:
        if line.startswith("data:["):
            found += json.loads(line.removeprefix("data:"))
        elif '"upToDate":true' in line:
            break
    return found


def test_a_tag_of_a_filtered_read_does_not_outlive_the_description(http: httpx.Client, path: str) -> None:
    def described(pointer: str) -> dict[str, object]:
        fields = {
            "time": {"kind": "date", "column": True, "bindings": [{"version": 1, "jsonPointer": "/time"}]},
            "n": {"kind": "integer", "exact": True, "bindings": [{"version": 1, "jsonPointer": pointer}]},
        }
        return {"search": {"primaryTimestampField": "time", "fields": fields}}

    create(http, path, JSON)
    assert http.post(f"{path}/_schema", json={"schema": {}, **described("/a")}).status_code == 200
    append(http, path, b'[{"a":1,"b":2},{"a":2,"b":1}]', JSON)
    reader = Reader(http, f"{path}?offset=-1&filter=n:1")
    assert reader.values == [{"a": 1, "b": 2}]
    assert reader.look() == 304
    assert http.post(f"{path}/_schema", json=described("/b")).status_code == 200
    assert reader.look() == 200
    assert reader.values == [{"a": 2, "b": 1}]
    assert reader.look() == 304


def test_an_empty_key_and_no_key_are_distinguished(http: httpx.Client, path: str) -> None:
    create(http, path, JSON)
    append(http, path, b"1", JSON, stream_key="")
    append(http, path, b"2", JSON)
    both, keyed = http.get(path), http.get(f"{path}?key=")
    assert (both.json(), keyed.json()) == ([1, 2], [1])
    assert both.headers["etag"] != keyed.headers["etag"]
