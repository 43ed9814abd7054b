"""One log, two protocols: writes, changes and deletes of one are visible in the other."""

import base64
import threading
from typing import Any

import httpx
import pytest

from tests.http.api.events import watch
from tests.http.live import LiveServer
from tests.http.streams.conftest import append, create, offset_of, reason_of


def diff(http: httpx.Client, name: str, **body: object) -> dict[str, Any]:
    answer = http.post(f"/v0/topics/{name}/diff", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def write(http: httpx.Client, name: str, *records: dict[str, Any], **body: object) -> httpx.Response:
    return http.post(f"/v0/topics/{name}", json={"records": list(records), **body})


def test_entries_of_a_stream_are_records_of_the_topic(http: httpx.Client, name: str, path: str) -> None:
    create(http, path, "application/json", b'[{"n":1},2]')
    append(http, path, b"3", "application/json", stream_key="k")
    found = diff(http, name, include_tags=True)
    assert [record["data"] for record in found["records"]] == [{"n": 1}, 2, 3]
    assert [record.get("$tag") for record in found["records"]] == [None, None, "k"]
    config = http.get(f"/v0/topics/{name}").json()["config"]
    assert config["durability"] == "fsync"


def test_records_of_a_topic_are_entries_of_the_stream(http: httpx.Client, name: str, path: str) -> None:
    write(http, name, {"data": {"a": [1, 2.50]}}, {"data": "x", "tag": "k", "node": "n", "meta": {"m": 1}})
    answer = http.get(path)
    assert answer.json() == [{"a": [1, 2.5]}, "x"]
    assert answer.headers["content-type"] == "application/json"
    assert http.get(path, params={"key": "k"}).json() == ["x"]
    assert append(http, path, b"3", "application/json").status_code == 204
    assert [record["data"] for record in diff(http, name)["records"]] == [{"a": [1, 2.5]}, "x", 3]
    assert create(http, path, "application/json").status_code == 200
    assert create(http, path, "text/plain").status_code == 409


def test_bytes_are_base64_with_their_type_in_the_topic(http: httpx.Client, name: str, path: str) -> None:
    every = bytes(range(256))
    create(http, path, "image/png", every)
    (record,) = diff(http, name)["records"]
    assert base64.b64decode(record["data"]) == every
    assert record["meta"] == {"content-type": "image/png"}


def test_a_topic_writes_bytes_into_a_stream_the_same_way(http: httpx.Client, name: str, path: str) -> None:
    create(http, path, "image/png")
    write(http, name, {"data": base64.b64encode(b"\x00\xff").decode(), "meta": {"content-type": "image/png"}})
    write(http, name, {"data": {"plain": "json"}})
    assert http.get(path).content == b'\x00\xff{"plain":"json"}'


def test_a_write_of_one_wakes_a_reader_of_the_other(http: httpx.Client, name: str, path: str) -> None:
    create(http, path, "application/json")
    with http.stream("GET", path, params={"offset": "now", "live": "sse"}) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: control"
        write(http, name, {"data": 7})
        assert "data:[7]" in (next(lines) for _ in range(6))


def test_deleted_records_are_deleted_in_the_stream(http: httpx.Client, name: str, path: str) -> None:
    create(http, path, "application/json")
    for number in range(6):
        append(http, path, b"%d" % number, "application/json", stream_key="odd" if number % 2 else "even")
    http.post(f"/v0/topics/{name}/delete", json={"match": "odd"})
    assert http.get(path).json() == [0, 2, 4]
    http.post(f"/v0/topics/{name}/delete", json={"before_seq": 3})
    answer = http.get(path)
    assert answer.json() == [2, 4]
    assert "stream-gap" not in answer.headers, "what somebody asked to delete is not lost"


def test_a_cap_takes_records_and_the_loss_is_reported(http: httpx.Client, name: str, path: str) -> None:
    create(http, path, "application/json")
    first = offset_of(append(http, path, b"0", "application/json"))
    http.put(f"/v0/topics/{name}", json={"cap_records": 3, "durability": "fsync"})
    for number in range(1, 8):
        append(http, path, b"%d" % number, "application/json")
    stale = http.get(path, params={"offset": first})
    assert (stale.status_code, reason_of(stale)) == (410, "offset_gone")
    assert http.get(path, params={"offset": first, "live": "sse"}).status_code == 410
    assert http.get(path, params={"offset": first, "live": "long-poll"}).status_code == 410
    answer = http.get(path, params={"offset": "-1"})
    assert (answer.json(), answer.headers["stream-gap"]) == ([5, 6, 7], "1-5; reason=cap")


@pytest.mark.parametrize(
    ("given", "durability"),
    [({}, "fsync"), ({"durability": "disk"}, "disk"), ({"durable": False}, "disk"), ({"durable": True}, "fsync")],
)
def test_a_stream_keeps_its_class_unless_a_config_names_one(
    http: httpx.Client, name: str, path: str, given: dict[str, object], durability: str
) -> None:
    create(http, path, "application/json")
    answer = http.put(f"/v0/topics/{name}", json={"cap_records": 9, **given})
    assert (answer.status_code, answer.json()["config"]["durability"]) == (200, durability)
    config = http.get(f"/v0/topics/{name}").json()["config"]
    assert (config["cap_records"], config["durability"]) == (9, durability)


def test_a_topic_that_is_not_a_stream_loses_its_class_with_the_rest_of_its_config(
    http: httpx.Client, name: str
) -> None:
    http.put(f"/v0/topics/{name}", json={"durability": "fsync"})
    assert http.put(f"/v0/topics/{name}", json={}).json()["config"]["durability"] == "disk"


def test_a_topic_that_rejects_rejects_a_stream_too(http: httpx.Client, name: str, path: str) -> None:
    create(http, path, "application/json", b"[1,2]")
    http.put(f"/v0/topics/{name}", json={"cap_records": 2, "discard": "reject"})
    answer = append(http, path, b"3", "application/json")
    assert (answer.status_code, reason_of(answer)) == (422, "topic_full")


def test_a_closed_stream_takes_nothing_through_the_other_door(http: httpx.Client, name: str, path: str) -> None:
    create(http, path, "application/json", stream_closed="true")
    answer = write(http, name, {"data": 1})
    assert (answer.status_code, reason_of(answer)) == (409, "stream_closed")


def test_deleting_the_topic_deletes_the_stream_and_the_reverse(http: httpx.Client, name: str, path: str) -> None:
    create(http, path)
    assert http.delete(f"/v0/topics/{name}").json()["deleted"] is True
    assert http.head(path).status_code == 404
    create(http, path)
    http.delete(path)
    assert http.get(f"/v0/topics/{name}").status_code == 404


def test_source_of_forks_is_kept_after_a_delete_by_either_protocol(http: httpx.Client, name: str, path: str) -> None:
    create(http, path, "application/json", b"[1,2]")
    http.put(f"{path}-f", headers={"stream-forked-from": path})
    assert http.delete(f"/v0/topics/{name}").json()["deleted"] is True
    assert http.get(f"/v0/topics/{name}").status_code == 404
    assert http.delete(f"/v0/topics/{name}").json()["deleted"] is False
    assert write(http, name, {"data": 1}).status_code == 410
    assert http.get(f"{path}-f").json() == [1, 2]


def test_a_fork_is_a_topic_with_everything_it_inherits(http: httpx.Client, name: str, path: str) -> None:
    create(http, path, "application/json", b"[1,2,3]")
    http.put(f"{path}-f", headers={"stream-forked-from": path})
    append(http, f"{path}-f", b"4", "application/json")
    found, cursor = [], 0
    while True:
        page = diff(http, f"{name}-f", from_seq=cursor)
        found += [(record["$seq"], record["data"]) for record in page["records"]]
        assert page["tombstone"] is None
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            break
    assert found == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert http.get(f"/v0/topics/{name}-f").json()["earliest_seq"] == page["earliest_seq"] == 1
    http.post(f"/v0/topics/{name}-f/delete", json={"before_seq": 3})
    assert http.get(f"/v0/topics/{name}-f").json()["earliest_seq"] == 3
    assert http.get(f"{path}-f").json() == [3, 4]
    assert http.get(path).json() == [1, 2, 3]


@pytest.mark.parametrize("foreign", ["a/b", "_x", "with space", "ünï"])
def test_names_that_topics_cannot_have_are_streams_only(http: httpx.Client, name: str, foreign: str) -> None:
    raw = httpx.URL("http://x/").copy_with(path="/" + foreign + name).raw_path.decode()[1:]
    encoded = raw.replace("/", "%2F")
    assert http.put(f"/v1/stream/{raw}", content=b"1", headers={"content-type": "application/json"}).status_code == 201
    assert http.get(f"/v0/topics/{encoded}").status_code == 404
    assert http.post(f"/v0/topics/{encoded}/diff", json={}).status_code == 404
    assert http.post(f"/v0/topics/{encoded}", json={"records": [{"data": 1}]}).status_code == 404
    # A reader that requests streams finds it.
    assert http.get(f"/v0/topics/{encoded}?streams=true").json()["head_seq"] == 1
    for body in ({}, {"wait_ms": 1000}):
        found = http.post(f"/v0/topics/{encoded}/diff?streams=true", json=body).json()
        assert [record["$seq"] for record in found["records"]] == [1]
    waited = http.post(f"/v0/topics/{encoded}/diff?streams=true", json={"from_seq": 1, "wait_ms": 20}).json()
    assert waited["caught_up"]
    for requested in (True, False):
        listed = http.get("/v0/topics", params={"streams": requested, "page_size": 1000}).json()["topics"]
        assert (foreign + name in {one["topic"] for one in listed}) is requested
    assert http.delete(f"/v0/topics/{encoded}").json()["deleted"] is False
    listed = http.get("/v0/topics", params={"page_size": "1000"}).json()["topics"]
    assert foreign + name not in [topic["topic"] for topic in listed]
    assert http.get(f"/v1/stream/{raw}").json() == [1]


def test_a_copy_of_a_router_is_in_the_stream_of_its_destination(http: httpx.Client, name: str, path: str) -> None:
    create(http, path, "application/json")
    made = http.put(f"/v0/routers/{name}", json={"source": name, "dest": f"{name}-copy", "create_dest": True})
    assert made.status_code in (200, 201), made.text
    for number in range(120):
        append(http, path, b"%d" % number, "application/json", stream_key="k" if number % 50 == 7 else "other")
    found: list[int] = []
    offset = "-1"
    while len(found) < 120:
        answer = http.get(f"{path}-copy", params={"offset": offset, "live": "long-poll"})
        found += answer.json() if answer.status_code == 200 else []
        offset = offset_of(answer)
    assert found == list(range(120))
    assert http.get(f"{path}-copy", params={"key": "k"}).json() == [7, 57, 107]


def test_a_queue_is_a_stream_of_its_jobs(http: httpx.Client, name: str, path: str) -> None:
    http.put(f"/v0/topics/{name}", json={"type": "queue"})
    assert append(http, path, b"[1,2]", "application/json").status_code == 204
    assert http.get(path).json() == [1, 2]
    jobs = http.post(f"/v0/topics/{name}/claim", json={"node": "w", "max": 10}).json()
    assert [job["data"] for job in jobs["claimed"]] == [1, 2], jobs


def test_a_router_writes_nothing_into_a_closed_stream(http: httpx.Client, name: str, path: str) -> None:
    create(http, path, "application/json")
    create(http, f"{path}-closed", "application/json", b"[0]", stream_closed="true")
    wish = {"source": name, "dest": f"{name}-closed"}
    refused = http.put(f"/v0/routers/{name}", json=wish)
    assert (refused.status_code, reason_of(refused)) == (409, "stream_closed")
    create(http, f"{path}-copy", "application/json", b"[0]")
    assert http.put(f"/v0/routers/{name}", json={"source": name, "dest": f"{name}-copy"}).status_code == 201
    append(http, f"{path}-copy", b"1", "application/json", stream_closed="true")
    append(http, path, b"2", "application/json")
    while not (state := http.get(f"/v0/routers/{name}").json())["blocked"]:
        assert state["lag"] == 1 and "blocked_by" not in state
    assert (state["blocked_by"], state["lag"]) == ("stream_closed", 1)
    assert http.get(f"{path}-copy").json() == [0, 1]
    assert http.get(path).json() == [2]


def test_a_router_copies_bytes_as_bytes_and_json_as_its_text(http: httpx.Client, name: str, path: str) -> None:
    every = bytes(range(256))
    create(http, path, "image/png")
    create(http, f"{path}-bytes", "application/octet-stream")
    create(http, f"{path}-json", "application/json")
    for dest in ("bytes", "json"):
        http.put(f"/v0/routers/{name}-{dest}", json={"source": name, "dest": f"{name}-{dest}"})
    append(http, path, every, "image/png")
    write(http, name, {"data": {"plain": "json"}})
    found = b""
    while len(found) < 256 + 16:
        found = http.get(f"{path}-bytes").content
    assert found == every + b'{"plain":"json"}'
    while len(values := http.get(f"{path}-json").json()) < 2:
        pass
    assert values == [base64.b64encode(every).decode(), {"plain": "json"}]


def test_watch_reports_the_deletion_of_a_stream_with_forks(
    server: LiveServer, http: httpx.Client, name: str, path: str
) -> None:
    create(http, path, "application/json", b"[1]")
    http.put(f"{path}-fork", headers={"stream-forked-from": path})
    with watch(server.url, name, heartbeat_ms=1_000).open() as stream:
        assert [stream.event().name for _ in range(2)] == ["record", "caught-up"]
        assert http.delete(path).status_code == 204
        # A heartbeat or two may come first, and nothing else.
        assert any(stream.next().name == "topic-deleted" for _ in range(4))


@pytest.mark.parametrize("live", ["sse", "long-poll"])
@pytest.mark.parametrize("slash", ["", "/below"])
def test_live_read_ends_with_the_deletion_of_a_stream_with_forks(
    server: LiveServer, http: httpx.Client, path: str, live: str, slash: str
) -> None:
    path += slash
    create(http, path, "application/json", b"[1]")
    http.put(f"{path}-fork", headers={"stream-forked-from": path})
    offset = offset_of(http.head(path))
    with httpx.Client(base_url=server.url, timeout=30.0) as other:
        query = {"offset": offset, "live": live, "timeout": "20s"}
        if live == "sse":
            with other.stream("GET", path, params=query) as answer:
                lines = answer.iter_lines()
                assert next(lines) == "event: control"
                assert http.delete(path).status_code == 204
                assert "event: data" not in list(lines), "it ended without more"
        else:
            deleting = threading.Timer(0.3, lambda: http.delete(path))
            deleting.start()
            assert other.get(path, params=query).status_code == 410
            # The follower may receive the notice before the deleting client gets its answer.
            deleting.join()
