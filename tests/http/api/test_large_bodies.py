"""Long bodies, which are read in portions, mean the same as short ones; unnecessary ones are refused."""

import gzip
import json
import random
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.api.conftest import refused
from tests.http.api.sockets import open_socket
from tests.http.live import LiveServer, wait_until_ready

JSON = {"content-type": "application/json"}
MIB = 1024 * 1024


def read_all(api: httpx.Client, name: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    while True:
        page = api.post(
            f"/v0/topics/{name}/diff", json={"from_seq": len(records), "limit": 1000, "include_tags": True}
        ).json()
        if not page["records"]:
            return records
        records += page["records"]


def awkward(number: int) -> dict[str, Any]:
    """A record whose text holds everything that could be taken for the end of one."""
    return {
        "data": {"n": number, "text": '"},{"data":[' * 20, "list": [{"a": [[], {}]}, "]}", {}], "pad": "x" * 700},
        "tag": f"t}},{{{number}",
        "meta": {"k": number},
    }


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), ("\n,\n", " :")])
def test_a_long_batch_is_stored_as_it_was_sent(api: httpx.Client, name: str, separators: tuple[str, str]) -> None:
    records = [awkward(number) for number in range(1500)]
    body = json.dumps({"node": "n", "records": records, "idempotency_key": "k"}, separators=separators)
    assert len(body) > MIB
    for _ in range(2):
        answer = api.post(f"/v0/topics/{name}", content=body, headers=JSON)
        assert answer.is_success, answer.text
        assert (answer.json()["first_seq"], answer.json()["last_seq"]) == (1, 1500)
    assert answer.json()["deduped"] is True
    stored = read_all(api, name)
    assert [(r["data"], r["$tag"], r["meta"], r["$node"]) for r in stored] == [
        (r["data"], r["tag"], r["meta"], "n") for r in records
    ]


def test_a_compressed_batch_and_one_of_large_records(api: httpx.Client, name: str) -> None:
    rng = random.Random(1)
    texts = ["".join(rng.choices("éa}],{", k=400_000)) for _ in range(3)]
    records = [{"data": text} for text in texts] + [{"data": [[number] * 300 for number in range(500)]}] * 3
    body = gzip.compress(json.dumps({"records": records}).encode())
    answer = api.post(f"/v0/topics/{name}", content=body, headers={**JSON, "content-encoding": "gzip"})
    assert answer.is_success, answer.text
    assert [r["data"] for r in read_all(api, name)] == [r["data"] for r in records]


def test_a_long_part_of_a_transaction(api: httpx.Client, name: str) -> None:
    begun = api.post("/v0/transactions", json={"id": name, "sequence": 1}).json()
    stage = {"sequence": 1, "attempt": begun["attempt"], "part": "p", "topic": name}
    records = [awkward(number) for number in range(1200)]
    answer = api.post(f"/v0/transactions/{name}/stage", json={**stage, "records": records})
    assert answer.status_code == 200, answer.text
    assert answer.json()["count"] == 1200
    api.post(f"/v0/transactions/{name}/commit", json={"sequence": 1, "attempt": begun["attempt"]}).raise_for_status()
    assert [r["data"]["n"] for r in read_all(api, name)] == list(range(1200))


@pytest.mark.parametrize("many", [False, True])
def test_a_long_array_for_a_stream(api: httpx.Client, name: str, many: bool) -> None:
    values: list[Any] = list(range(100_000)) if many else [awkward(number) for number in range(1500)]
    url = f"/v1/stream/{name}"
    api.put(url, headers=JSON).raise_for_status()
    answer = api.post(url, content=json.dumps(values), headers={**JSON, "stream-key": "all"})
    assert answer.status_code == 204, answer.text
    stored: list[Any] = []
    offset = "-1"
    while len(stored) < len(values):
        page = api.get(url, params={"offset": offset})
        stored += page.json()
        offset = page.headers["stream-next-offset"]
    assert stored == values
    made = api.put(url + "-made", content=json.dumps(values), headers=JSON)
    assert made.status_code == 201 and made.headers["stream-next-offset"][8:] == offset[8:]


def long_body(last: str) -> bytes:
    """A batch that is right up to its last record."""
    text = json.dumps({"records": [{"data": "x" * 1000}] * 1500})
    return (text[:-2] + "," + last + "]}").encode()


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (long_body("{}"), "invalid_request", "records[1500]"),
        (long_body('{"data":1,"tag":5}'), "invalid_request", "records[1500]"),
        (long_body('{"data":1,}'), "invalid_request", "malformed"),
        (long_body('{"data":"%s"}' % ("x" * MIB)), "record_too_large", "records[1500]"),
        (long_body('{"data":1}')[:-1], "invalid_request", "truncated"),
        (long_body('{"data":1}') + b"x", "invalid_request", "malformed"),
        (long_body('{"data":1}')[:-1] + b',"records":[]}', "invalid_request", "twice"),
        (long_body('{"data":1}')[:-1] + b',"x":"%b"}' % (b"x" * MIB), "invalid_request", "follow the records"),
        (b'{"x":"%b","records":[{"data":1}]}' % (b"x" * MIB), "invalid_request", "within"),
        (b'{"records":{"a":"%b"}}' % (b"x" * MIB), "invalid_request", "within"),
        (b" " * (2 * MIB), "invalid_request", "within"),
        (b'{"records":[' + b'{"data":1},' * 100_001 + b'{"data":1}]}', "batch_too_large", "at most"),
        (b'{"records":[' + b"[" * MIB, "invalid_request", ""),
        (long_body('{"data":1}').replace(b"xx", b"\xff\xff", 1), "invalid_request", "UTF-8"),
    ],
)
def test_invalid_long_body_is_refused_without_effect(
    api: httpx.Client, name: str, body: bytes, code: str, said: str
) -> None:
    answer = api.post(f"/v0/topics/{name}", content=body, headers=JSON)
    refused(answer, 400, code)
    assert said in answer.json()["error"]["message"], answer.text
    assert api.get(f"/v0/topics/{name}").status_code == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[" + b'"' + b"x" * 1000 + b'",' * 1 + b"1" * (2 * MIB) + b"]", 413),
        (b"[" + b"1," * MIB + b"1]", 413),
        (b'"' + b"x" * (2 * MIB) + b'"', 413),
        (b"[" + b"1," * 60_000 + b"?]", 400),
        (b"[" + b"1," * 60_000 + b"1] 1", 400),
        (b"[" + b'{"a":1},' * 300_000, 413),
        (b"[" + b" " * (2 * MIB) + b"]", 413),
    ],
)
def test_invalid_long_array_is_refused(api: httpx.Client, name: str, body: bytes, status: int) -> None:
    url = f"/v1/stream/{name}"
    api.put(url, headers=JSON).raise_for_status()
    answer = api.post(url, content=body, headers=JSON)
    assert answer.status_code == status, answer.text
    assert api.head(url).headers["stream-next-offset"] == api.put(url, headers=JSON).headers["stream-next-offset"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v0/topics/t/diff"), ("POST", "/v0/watch"), ("PUT", "/v0/topics/t"), ("POST", "/v0/topics/t/claim"),
        ("POST", "/v1/stream/t/_search"), ("POST", "/v1/stream/t/_schema"), ("POST", "/v0/transactions"),
        ("PUT", "/v1/stream/__ds/subscriptions/t"),
    ],
)  # fmt: skip
def test_bodies_that_are_read_in_one_go_are_short(api: httpx.Client, method: str, path: str) -> None:
    answer = api.request(method, path, content=b'{"x":"%b"}' % (b"x" * 2 * MIB), headers=JSON)
    assert answer.status_code == 413, answer.text
    assert str(MIB) in answer.json()["error"]["message"]


def test_long_batch_is_read_by_every_interface(tmp_path: Path) -> None:
    """They are kept as a view of memory and not as bytes until they are sealed, and again after a restart."""
    records = [{**awkward(number), "tag": f"t{number % 3}", "node": f"n{number % 2}"} for number in range(1200)]
    with (
        LiveServer(tmp_path, pipeline="off", snapshot_interval_ms="200") as live,
        httpx.Client(base_url=live.url, timeout=60.0) as api,
    ):
        api.put("/v0/topics/copy", json={}).raise_for_status()
        api.put("/v0/routers/r", json={"source": "long", "dest": "copy"}).raise_for_status()
        api.put("/v0/topics/jobs", json={"type": "queue"}).raise_for_status()
        for name in ("long", "jobs"):
            api.post(f"/v0/topics/{name}", json={"records": records}).raise_for_status()
        wid = api.post("/v0/watch", json={"topics": {"long": {"from_seq": 1190}}}).json()["wid"]
        with api.stream("GET", f"/v0/watch/{wid}") as events:
            seen = next(json.loads(line[6:]) for line in events.iter_lines() if line.startswith("data: {"))
        assert [record["data"]["n"] for record in seen["records"]] == list(range(1190, 1200))
        jobs = api.post("/v0/topics/jobs/claim", json={"node": "w", "max": 500}).json()["claimed"]
        assert [job["data"]["n"] for job in jobs] == list(range(500))
        done = api.post("/v0/topics/jobs/ack", json={"node": "w", "seqs": [job["$seq"] for job in jobs]}).json()
        assert done["acked"] == [job["$seq"] for job in jobs] or done["acked"] == 500
        other = api.post("/v0/topics/long/diff", json={"node": "n0", "limit": 1000}).json()["records"]
        assert {record["$node"] for record in other} == {"n1"}
        keyed = api.get("/v1/stream/long/pk/t1", params={"offset": "-1"}).json()
        assert keyed and all(value["n"] % 3 == 1 for value in keyed)
        deleted = api.post("/v0/topics/long/delete", json={"match": ["tag", "Eq", "t2"]})
        assert deleted.status_code == 200 and deleted.json()["deleted"] == 400, deleted.text
        left = [record["data"]["n"] for record in read_all_from(api, "long")]
        assert left == [number for number in range(1200) if number % 3 != 2]
        live.kill()
        live.start()
        wait_until_ready(live.url)
        assert [record["data"]["n"] for record in read_all_from(api, "long")] == left
        copied = [record["data"]["n"] for record in read_all_from(api, "copy")]
        assert copied == sorted(set(copied)) and set(copied) >= set(left)
        live.stop()


def read_all_from(api: httpx.Client, name: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    cursor = 0
    while True:
        page = api.post(f"/v0/topics/{name}/diff", json={"from_seq": cursor, "limit": 1000}).json()
        records += page["records"]
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            return records


def test_a_long_array_for_a_stream_with_a_schema(api: httpx.Client, name: str) -> None:
    url = f"/v1/stream/{name}"
    api.put(url, headers=JSON).raise_for_status()
    schema = {"type": "object", "required": ["n", "k"], "properties": {"n": {"type": "integer"}}}
    update = {"schema": schema, "routingKey": {"jsonPointer": "/k", "required": True}}
    api.post(f"{url}/_schema", json=update).raise_for_status()
    values = [{"n": number, "k": f"k{number % 7}"} for number in range(9_000)]
    assert api.post(url, json=values).status_code == 204
    assert api.post(url, json=[*values, {"n": "no number", "k": "x"}]).status_code == 400
    assert len(api.get(f"{url}/pk/k3", params={"offset": "-1"}).json()) > 100
    stored: list[Any] = []
    offset = "-1"
    while len(stored) < len(values):
        page = api.get(url, params={"offset": offset})
        stored += page.json()
        offset = page.headers["stream-next-offset"]
    assert stored == values


def test_long_bodies_that_wait_for_segments_keep_their_order(tmp_path: Path) -> None:
    """Each of them has a segment cut, and comes when the one before it is written; short ones do not wait with them."""
    bodies = [random.Random(number).randbytes(3 * MIB if number % 3 else 100) for number in range(9)]
    said = [
        b"POST /v1/stream/long HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/png\r\ncontent-length: %d\r\n\r\n%b"
        % (len(body), body)
        for body in bodies
    ]
    with (
        LiveServer(tmp_path, pipeline="off", segment_max_bytes=str(2 * MIB)) as live,
        httpx.Client(base_url=live.url, timeout=60.0) as api,
    ):
        api.put("/v1/stream/long", headers={"content-type": "image/png"}).raise_for_status()
        host, port = live.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(b"".join(said))
            heard = b""
            while heard.count(b"HTTP/1.1 204") < len(bodies):
                part = connection.recv(65536)
                assert part, heard
                heard += part
        for _ in range(2):
            held, offset = b"", "-1"
            while True:
                page = api.get("/v1/stream/long", params={"offset": offset})
                held, offset = held + page.content, page.headers["stream-next-offset"]
                if "stream-up-to-date" in page.headers:
                    break
            assert held == b"".join(bodies)
            live.kill()
            live.start()
            wait_until_ready(live.url)
        live.stop()


def test_a_schema_of_thousands_of_members_is_installed_or_refused_as_a_short_one(api: httpx.Client, name: str) -> None:
    url = f"/v1/stream/{name}"
    api.put(url, headers=JSON).raise_for_status()
    schema: dict[str, Any] = {"properties": {f"name{number}": {"type": "string"} for number in range(5000)}}
    wrong = {"properties": {**schema["properties"], "last": {"type": "nothing"}}}
    answer = api.post(f"{url}/_schema", json={"schema": wrong})
    assert answer.status_code == 400 and "properties/last/type" in answer.json()["error"]["message"], answer.text
    api.post(f"{url}/_schema", json={"schema": schema}).raise_for_status()
    assert api.get(f"{url}/_schema").json()["schemas"]["1"] == schema
    assert api.post(url, json=[{"name4999": "x"}]).is_success
    assert api.post(url, json=[{"name4999": 7}]).status_code == 400


@pytest.mark.parametrize("mebibytes", [5, 40])
def test_a_publish_takes_as_much_as_a_post_and_keeps_the_subscriptions(
    server: LiveServer, api: httpx.Client, name: str, mebibytes: int
) -> None:
    records = [{"data": "é" * (MIB // 4), "tag": str(number)} for number in range(2 * mebibytes)]
    command = {"op": "publish", "topic": name, "records": records, "idempotency_key": "k", "request_id": "long"}
    api.put(f"/v0/topics/{name}").raise_for_status()
    api.put(f"/v0/topics/{name}-other").raise_for_status()
    text = json.dumps(command, ensure_ascii=False)
    assert len(text.encode()) > mebibytes * MIB
    with open_socket(server.url) as socket:
        assert socket.ask({"op": "subscribe", "topic": f"{name}-other", "request_id": "s"})["op"] == "subscribed"
        assert socket.frame()["op"] == "caught_up"
        for sent in (text, [text[at : at + 100_000] for at in range(0, len(text), 100_000)]):
            socket.connection.send(sent)
            ack = socket.frame()
            assert (ack["op"], ack["request_id"], ack["last_seq"]) == ("ack", "long", len(records)), ack
        assert ack["deduped"] is True
        api.post(f"/v0/topics/{name}-other", json={"records": [{"data": "still here"}]}).raise_for_status()
        assert socket.records(1)[0]["data"] == "still here"
    assert [record["$tag"] for record in read_all(api, name)] == [record["tag"] for record in records]


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (long_body('{"data":1,"tag":5}'), "invalid_request", "records[1500]"),
        (long_body('{"data":1}')[:-1] + b',"request_id":"p","x":"%b"}' % (b"x" * MIB), "invalid_request", "follow"),
        (b'{"op":"publish","x":"%b","records":[{"data":1}]}' % (b"x" * 4 * MIB), "invalid_request", "within"),
        (long_body('{"data":1}')[:-1] + b',"op":"subscribe"}', "invalid_request", ""),
        (long_body('{"data":1}'), "invalid_json", "op"),
    ],
)
def test_a_long_publish_that_is_refused_names_its_request_and_the_socket_lives(
    server: LiveServer, name: str, body: bytes, code: str, said: str
) -> None:
    if b'"op"' not in body and code != "invalid_json":
        body = body[:-1] + b',"op":"publish","topic":"%b","request_id":"p"}' % name.encode()
    with open_socket(server.url) as socket:
        socket.connection.send(body.decode())
        error = socket.frame()
        assert (error["op"], error["code"]) == ("error", code), error
        assert error.get("request_id") == ("p" if b"request_id" in body else None)
        assert said in error["message"]
        socket.quiet()
