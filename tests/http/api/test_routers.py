"""PUT, GET, list and DELETE of routers: each field, default, status and refusal, and the records in a destination."""

import base64
import http.client
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.api.conftest import refused
from tests.http.live import LiveServer, wait_until_ready

DEFAULTS: dict[str, Any] = {
    "preserve_node": True, "preserve_tag": True, "filter": None, "allow_cycle": False, "guarantee": "at_least_once",
}  # fmt: skip


def put(api: httpx.Client, source: str, dest: str, name: str = "", **fields: object) -> httpx.Response:
    return api.put(f"/v0/routers/{name or f'{source}->{dest}'}", json={"source": source, "dest": dest, **fields})


def append(api: httpx.Client, topic: str, *values: object, **fields: object) -> None:
    records = [value if isinstance(value, dict) else {"data": value} for value in values]
    answer = api.post(f"/v0/topics/{topic}", json={"records": records, **fields})
    assert answer.is_success, answer.text


def arrived(api: httpx.Client, topic: str, count: int) -> list[dict[str, Any]]:
    """The records of a destination, waiting for as many as there should be."""
    found: list[dict[str, Any]] = []
    cursor = 0
    for _ in range(100):
        body = {"from_seq": cursor, "wait_ms": 2000, "include_tags": True}
        answer = api.post(f"/v0/topics/{topic}/diff", json=body).json()
        found += answer["records"]
        cursor = answer["next_from_seq"]
        if len(found) >= count:
            return found
    raise AssertionError(f"only {found} arrived")


def values(records: list[dict[str, Any]]) -> list[object]:
    return [record["data"] for record in records]


def test_a_new_router_with_every_default_and_the_topics_it_needs(api: httpx.Client, name: str) -> None:
    source, dest = f"{name}.a", f"{name}.b"
    answer = put(api, source, dest)
    body = answer.json()
    assert answer.status_code == 201
    performance = body.pop("performance")
    assert performance["server_total_ms"] >= 0
    assert body == {"router": f"{source}->{dest}", "created": True, "source": source, "dest": dest, **DEFAULTS}
    assert api.get(f"/v0/topics/{source}").json()["head_seq"] == 0
    assert api.get(f"/v0/topics/{dest}").json()["config"]["durability"] == "disk"


def test_the_same_put_again_changes_nothing_and_another_one_changes_it(api: httpx.Client, name: str) -> None:
    source, dest = f"{name}.a", f"{name}.b"
    put(api, source, dest)
    append(api, source, 1)
    arrived(api, dest, 1)
    again = put(api, source, dest)
    assert (again.status_code, again.json()["created"]) == (200, False)
    changed = put(api, source, dest, filter=["tag", "Glob", "x*"], preserve_tag=False, from_seq=0)
    assert (changed.status_code, changed.json()["created"]) == (200, False)
    assert changed.json()["filter"] == ["tag", "Glob", "x*"]
    state = api.get(f"/v0/routers/{source}->{dest}").json()
    assert (state["filter"], state["preserve_tag"], state["forwarded_total"]) == (["tag", "Glob", "x*"], False, 1)
    append(api, source, {"data": 2, "tag": "y"}, {"data": 3, "tag": "xy"})
    assert [(r["$seq"], r["data"], r.get("$tag")) for r in arrived(api, dest, 2)] == [(1, 1, None), (2, 3, None)]


def test_get_reports_what_it_does_and_how_far_it_got(api: httpx.Client, name: str) -> None:
    source, dest = f"{name}.a", f"{name}.b"
    put(api, source, dest, guarantee="exactly_once", preserve_node=False)
    append(api, source, 1, 2, 3)
    arrived(api, dest, 3)
    state = api.get(f"/v0/routers/{source}->{dest}").json()
    state.pop("performance")
    assert state == {
        "router": f"{source}->{dest}", "source": source, "dest": dest, **DEFAULTS, "guarantee": "exactly_once",
        "preserve_node": False, "forwarded_total": 3, "lag": 0, "blocked": False,
    }  # fmt: skip


def test_copies_carry_node_tag_meta_and_data(api: httpx.Client, name: str) -> None:
    source, dest = f"{name}.a", f"{name}.b"
    put(api, source, dest)
    record = {"data": {"x": 1.0}, "tag": "t", "node": "n", "meta": {"k": "v"}}
    append(api, source, record)
    (copy,) = arrived(api, dest, 1)
    assert {key: copy[key] for key in ("data", "$tag", "$node", "meta")} == {
        "data": {"x": 1.0}, "$tag": "t", "$node": "n", "meta": {"k": "v"},
    }  # fmt: skip


def test_provenance_of_exactly_once(api: httpx.Client, name: str) -> None:
    source, dest = f"{name}.a", f"{name}.b"
    put(api, source, dest, guarantee="exactly_once")
    append(api, source, {"data": 1, "meta": {"k": "v"}})
    (copy,) = arrived(api, dest, 1)
    stamp = copy["meta"]["_topics_router"]
    assert copy["meta"]["k"] == "v"
    assert set(stamp) == {
        "idempotency_key", "router", "source_topic", "source_topic_id", "source_epoch", "source_seq",
    }  # fmt: skip
    assert (stamp["router"], stamp["source_topic"], stamp["source_seq"]) == (f"{source}->{dest}", source, 1)


def test_from_seq_copies_what_is_there(api: httpx.Client, name: str) -> None:
    source = f"{name}.a"
    append(api, source, 1, 2, 3)
    put(api, source, f"{name}.b", from_seq=0)
    put(api, source, f"{name}.c", from_seq=2)
    put(api, source, f"{name}.d")
    append(api, source, 4)
    assert values(arrived(api, f"{name}.b", 4)) == [1, 2, 3, 4]
    assert values(arrived(api, f"{name}.c", 2)) == [3, 4]
    assert values(arrived(api, f"{name}.d", 1)) == [4]


def test_a_full_destination_holds_a_router_up(api: httpx.Client, name: str) -> None:
    source, dest = f"{name}.a", f"{name}.b"
    api.put(f"/v0/topics/{dest}", json={"cap_records": 2, "discard": "reject"})
    put(api, source, dest)
    append(api, source, 1, 2, 3)
    assert values(arrived(api, dest, 2)) == [1, 2]
    state = api.get(f"/v0/routers/{source}->{dest}").json()
    for _ in range(200):
        if state["blocked"]:
            break
        state = api.get(f"/v0/routers/{source}->{dest}").json()
    assert (state["blocked"], state["lag"]) == (True, 1)
    api.post(f"/v0/topics/{dest}/delete", json={"before_seq": 2})
    assert values(arrived(api, dest, 2)) == [2, 3]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"source": None}, None),
        ({"dest": None}, None),
        ({"source": "no/name"}, None),
        ({"dest": ""}, None),
        ({"filter": ["tag", "Glob", "x"]}, "filter"),
        ({"filter": ["node", "Eq", "x"]}, "filter"),
        ({"filter": {"tag": "x"}}, "filter"),
        ({"guarantee": "twice"}, "guarantee"),
        ({"preserve_node": "yes"}, "preserve_node"),
        ({"allow_cycle": 1}, "allow_cycle"),
        ({"from_seq": -1}, "from_seq"),
        ({"from_seq": 1}, "from_seq"),
    ],
)
def test_invalid_routers_are_refused(
    api: httpx.Client, name: str, change: dict[str, object], field: str | None
) -> None:
    body = {"source": f"{name}.a", "dest": f"{name}.b", **change}
    body = {key: value for key, value in body.items() if value is not None}
    detail = refused(api.put(f"/v0/routers/{name}", json=body), 400, "invalid_request")
    assert field is None or detail["field"] == field
    refused(api.get(f"/v0/topics/{name}.b"), 404, "topic_not_found")
    refused(api.get(f"/v0/routers/{name}"), 404, "router_not_found")


def test_a_body_is_needed_and_is_json(api: httpx.Client, name: str) -> None:
    refused(api.put(f"/v0/routers/{name}"), 400, "invalid_request")
    refused(api.put(f"/v0/routers/{name}", content=b"{}"), 415, "unsupported_media_type")
    refused(api.post(f"/v0/routers/{name}", json={}), 405, "method_not_allowed")


def test_names_of_routers(api: httpx.Client, name: str) -> None:
    refused(put(api, f"{name}.a", f"{name}.b", "-x"), 400, "invalid_request")
    refused(put(api, f"{name}.a", f"{name}.b", "x%20y"), 400, "invalid_request")
    assert put(api, f"{name}.a", f"{name}.b", f"{name}:%3E.x").json()["router"] == f"{name}:>.x"


def test_source_and_dest_differ(api: httpx.Client, name: str) -> None:
    assert refused(put(api, name, name, name), 400, "invalid_request")["field"] == "dest"


def test_a_dest_that_must_exist(api: httpx.Client, name: str) -> None:
    answer = put(api, f"{name}.a", f"{name}.b", create_dest=False)
    assert refused(answer, 404, "topic_not_found") == {"topic": f"{name}.b"}
    refused(api.get(f"/v0/topics/{name}.a"), 404, "topic_not_found")
    api.put(f"/v0/topics/{name}.b")
    assert put(api, f"{name}.a", f"{name}.b", create_dest=False).status_code == 201


def test_a_cycle_is_named_and_may_be_allowed(api: httpx.Client, name: str) -> None:
    a, b, c = (f"{name}.{letter}" for letter in "abc")
    put(api, a, b)
    put(api, b, c)
    assert refused(put(api, c, a), 409, "router_cycle") == {"cycle": [c, a, b, c]}
    assert put(api, c, a, allow_cycle=True).status_code == 201
    refused(put(api, c, a), 409, "router_cycle")
    append(api, a, "round")
    assert len(arrived(api, a, 3)) == 3


def test_a_destination_has_one_source(api: httpx.Client, name: str) -> None:
    put(api, f"{name}.a", f"{name}.b")
    detail = refused(put(api, f"{name}.c", f"{name}.b"), 409, "topic_exists_incompatible")
    assert detail == {"reason": "router_dest_fan_in", "dest": f"{name}.b", "source": f"{name}.a"}
    refused(api.get(f"/v0/topics/{name}.c"), 404, "topic_not_found")
    assert put(api, f"{name}.a", f"{name}.b", f"{name}.second").status_code == 201


@pytest.mark.parametrize(("source", "dest"), [("c", "b"), ("a", "c")])
def test_a_router_never_goes_elsewhere(api: httpx.Client, name: str, source: str, dest: str) -> None:
    put(api, f"{name}.a", f"{name}.b", name)
    answer = put(api, f"{name}.{source}", f"{name}.{dest}", name)
    detail = refused(answer, 409, "topic_exists_incompatible")
    assert detail["reason"] == "router_repoint_forbidden"
    refused(api.get(f"/v0/topics/{name}.c"), 404, "topic_not_found")


def test_deleting_a_router_leaves_what_it_forwarded(api: httpx.Client, name: str) -> None:
    source, dest = f"{name}.a", f"{name}.b"
    put(api, source, dest)
    append(api, source, 1)
    arrived(api, dest, 1)
    answer = api.delete(f"/v0/routers/{source}->{dest}").json()
    assert (answer["router"], answer["deleted"]) == (f"{source}->{dest}", True)
    append(api, source, 2)
    assert values(arrived(api, dest, 1)) == [1]
    assert api.delete(f"/v0/routers/{source}->{dest}").json()["deleted"] is False
    refused(api.get(f"/v0/routers/{source}->{dest}"), 404, "router_not_found")


def test_deleting_a_topic_takes_its_routers_along(api: httpx.Client, name: str) -> None:
    put(api, f"{name}.a", f"{name}.b")
    put(api, f"{name}.b", f"{name}.d")
    put(api, f"{name}.b", f"{name}.c")
    answer = api.delete(f"/v0/topics/{name}.b").json()
    removed = [f"{name}.a->{name}.b", f"{name}.b->{name}.c", f"{name}.b->{name}.d"]
    assert (answer["deleted"], answer["routers_removed"]) == (True, removed)
    assert api.delete(f"/v0/topics/{name}.b").json()["routers_removed"] == []
    for router in removed:
        refused(api.get(f"/v0/routers/{router}"), 404, "router_not_found")
    append(api, f"{name}.a", 1)


def listed(api: httpx.Client, **query: object) -> dict[str, Any]:
    answer = api.get("/v0/routers", params=query)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_the_list(api: httpx.Client, name: str) -> None:
    for dest in "bcd":
        put(api, f"{name}.a", f"{name}.{dest}")
    put(api, f"{name}.b", f"{name}.e", guarantee="exactly_once")
    page = listed(api, prefix=name, page_size=3)
    assert [router["router"] for router in page["routers"]] == [f"{name}.a->{name}.{dest}" for dest in "bcd"]
    rest = listed(api, prefix=name, page_size=3, cursor=page["next_cursor"])
    assert rest["routers"] == [
        {
            "router": f"{name}.b->{name}.e", "source": f"{name}.b", "dest": f"{name}.e", "guarantee": "exactly_once",
            "forwarded_total": 0,
        }
    ]  # fmt: skip
    assert "next_cursor" not in rest
    assert len(listed(api, prefix=name, source=f"{name}.a")["routers"]) == 3
    (into,) = listed(api, dest=f"{name}.c")["routers"]
    assert into["router"] == f"{name}.a->{name}.c"
    assert listed(api, prefix=name, dest=f"{name}.a")["routers"] == []


@pytest.mark.parametrize("cursor", ["x", base64.b64encode(b'{"before":"a"}').decode()])
def test_invalid_cursor_is_refused(api: httpx.Client, cursor: str) -> None:
    refused(api.get("/v0/routers", params={"cursor": cursor}), 400, "invalid_request")


def test_caps(tmp_path: Path) -> None:
    with (
        LiveServer(tmp_path, max_routers="1", max_topics="3") as server,
        httpx.Client(base_url=server.url, timeout=30.0) as api,
    ):
        assert put(api, "a", "b").status_code == 201
        answer = put(api, "c", "d")
        assert refused(answer, 429, "throttled") == {"limit": "max_routers", "max": 1}
        assert answer.headers["retry-after"] == "1"
        assert put(api, "a", "b", preserve_tag=False).status_code == 200
        api.delete("/v0/routers/a->b")
        assert refused(put(api, "c", "d"), 429, "throttled") == {"limit": "max_topics", "max": 3}
        assert [topic["topic"] for topic in api.get("/v0/topics").json()["topics"]] == ["a", "b"]
        assert api.get("/v0/metrics", headers={"accept": "application/json"}).json()["topics_routers"] == 0


def test_keys(tmp_path: Path) -> None:
    keys = "root,reader:read,mine::m.,writer:write"
    with LiveServer(tmp_path, api_keys=keys) as server:

        def client(key: str) -> httpx.Client:
            return httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key}"}, timeout=30.0)

        with client("root") as root, client("reader") as reader, client("mine") as mine, client("writer") as writer:
            assert put(root, "m.a", "x.b", "m.out").status_code == 201
            assert put(mine, "m.a", "m.b", "m.in").status_code == 201
            refused(put(mine, "m.a", "m.b", "in"), 403, "forbidden")
            refused(put(mine, "m.a", "x.c", "m.x"), 403, "forbidden")
            refused(put(mine, "x.a", "m.c", "m.x"), 403, "forbidden")
            refused(put(reader, "m.a", "m.b", "m.in"), 403, "forbidden")
            refused(writer.get("/v0/routers"), 403, "forbidden")
            refused(mine.get("/v0/routers/m.out"), 403, "forbidden")
            refused(mine.delete("/v0/routers/m.out"), 403, "forbidden")
            refused(reader.delete("/v0/routers/m.in"), 403, "forbidden")
            assert [router["router"] for router in listed(mine)["routers"]] == ["m.in"]
            assert [router["router"] for router in listed(reader)["routers"]] == ["m.in", "m.out"]
            assert mine.get("/v0/routers/m.in").status_code == 200
            assert put(root, "m.a", "m.d", "hidden").status_code == 201
            assert mine.delete("/v0/topics/m.a").json()["routers_removed"] == ["m.in", "m.out"]


@pytest.mark.parametrize("stop", ["stop", "kill"])
def test_routers_and_copies_are_there_after_a_restart(tmp_path: Path, stop: str) -> None:
    with LiveServer(tmp_path, wal_shards="3") as server:
        with httpx.Client(base_url=server.url, timeout=30.0) as api:
            put(api, "a", "b", filter=["tag", "Eq", "x"], guarantee="exactly_once")
            put(api, "b", "c")
            append(api, "a", *[{"data": i, "tag": "x" if i % 2 else "y"} for i in range(10)])
            append(api, "b", "direct")
            before = arrived(api, "c", 6)
            totals = api.get("/v0/routers/a->b").json()["forwarded_total"]
        getattr(server, stop)()
        server.start()
        wait_until_ready(server.url)
        with httpx.Client(base_url=server.url, timeout=30.0) as api:
            assert arrived(api, "c", 6) == before
            state = api.get("/v0/routers/a->b").json()
            assert (state["forwarded_total"], state["filter"]) == (totals, ["tag", "Eq", "x"])
            append(api, "a", {"data": 11, "tag": "x"})
            assert values(arrived(api, "c", 7))[-1] == 11


READS: dict[str, Callable[[str], tuple[str, str, str]]] = {
    "diff": lambda dest: ("POST", f"/v0/topics/{dest}/diff", "head_seq"),
    "topic": lambda dest: ("GET", f"/v0/topics/{dest}", "head_seq"),
    "router": lambda dest: ("GET", f"/v0/routers/{dest}", "forwarded_total"),
}


@pytest.mark.parametrize("read", READS)
def test_a_reader_of_a_destination_sees_what_was_just_appended_to_its_source(
    server: LiveServer, api: httpx.Client, name: str, read: str
) -> None:
    source, dest = f"{name}.a", f"{name}.b"
    put(api, source, dest, name=dest)
    # No faster client than this could ask: without the forward before the read hardly any answer would be up to date.
    # Neither is every one with it, because a reader never waits where the log waits for the disk.
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30.0)

    def ask(method: str, path: str, body: object) -> dict[str, Any]:
        connection.request(method, path, json.dumps(body), {"content-type": "application/json"})
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer

    method, path, field = READS[read](dest)
    fresh = 0
    for number in range(1, 401):
        ask("POST", f"/v0/topics/{source}", {"records": [{"data": number}]})
        fresh += ask(method, path, {"from_seq": number})[field] == number
    connection.close()
    assert fresh > 300
