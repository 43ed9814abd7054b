"""Searching over the wire: hits and their time, refusals, and the coverage of an answer."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.live import LiveServer, wait_until_ready
from tests.http.streams.conftest import append, code_of, create, offset_of
from tests.unit.search.helpers import LOGS
from tests.unit.streams.describing import JSON, lens, rename

ROLLUPS = {
    "load": {
        "dimensions": ["service"],
        "intervals": ["1m"],
        "measures": {"n": {"kind": "count"}, "ms": {"kind": "summary", "field": "duration"}},
    }
}


@pytest.fixture
def logs(http: httpx.Client, path: str) -> str:
    """A stream of logs that can be searched."""
    return described(http, path)


def described(http: httpx.Client, path: str) -> str:
    create(http, path, JSON)
    body = {"schema": {"type": "object"}, "search": {**LOGS, "rollups": ROLLUPS}}
    assert http.post(f"{path}/_schema", json=body).status_code == 200
    return path


def put(http: httpx.Client, path: str, *values: Any, **headers: str) -> httpx.Response:
    answer = append(http, path, json.dumps(values).encode(), JSON, **headers)
    assert answer.status_code == 204, answer.text
    return answer


def find(http: httpx.Client, path: str, q: str, **more: Any) -> dict[str, Any]:
    """The answer of a search. On a machine that is busy it may take more than its time, which is then said."""
    while (answer := http.post(f"{path}/_search", json={"q": q, **more})).status_code == 408:
        assert answer.json().get("coverage", {}).get("complete") is not True
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def sources(answer: dict[str, Any]) -> list[Any]:
    return [hit["source"] for hit in answer["hits"]]


def test_an_entry_is_found_by_the_first_search_after_its_append(http: httpx.Client, logs: str) -> None:
    for number in range(120):
        put(http, logs, {"requestId": f"r{number}", "eventTime": number})
        answer = find(http, logs, f"requestId:r{number}")
        assert sources(answer) == [{"requestId": f"r{number}", "eventTime": number}]
        assert answer["coverage"]["complete"] is True
        assert answer["coverage"]["possible_missing_events_upper_bound"] == 0


@pytest.mark.parametrize("score", ["1" + "0" * 400, "-1" + "0" * 400, "true", '"1"', "[1]", "null"])
def test_a_score_that_is_none_is_refused_as_a_place(http: httpx.Client, logs: str, score: str) -> None:
    """An integer too large for any float was a mistake of the server."""
    put(http, logs, {"message": "card", "eventTime": 1})
    (hit,) = find(http, logs, "message:card")["hits"]
    body = json.dumps({"q": "message:card", "search_after": ["SCORE", 1, hit["offset"]]}).replace('"SCORE"', score)
    answer = http.post(f"{logs}/_search", content=body.encode(), headers={"content-type": JSON})
    assert (answer.status_code, code_of(answer)) == (400, "bad_request")


def test_entries_are_found_while_others_are_appended(server: LiveServer, http: httpx.Client, logs: str) -> None:
    stop = threading.Event()

    def ingest() -> None:
        with httpx.Client(base_url=server.url) as own:
            while not stop.is_set():
                put(own, logs, *({"service": "noise", "status": number} for number in range(200)))

    thread = threading.Thread(target=ingest)
    thread.start()
    try:
        for number in range(30):
            put(http, logs, {"requestId": f"r{number}"})
            assert len(find(http, logs, f"requestId:r{number}")["hits"]) == 1
    finally:
        stop.set()
        thread.join()


def test_entries_from_before_an_evolution_are_found_by_the_new_name(http: httpx.Client, path: str, name: str) -> None:
    create(http, path, JSON)
    fields = {
        "t": {"kind": "date", "column": True, "bindings": [{"version": 1, "jsonPointer": "/t"}]},
        "id": {
            "kind": "keyword",
            "exact": True,
            "bindings": [{"version": 1, "jsonPointer": "/id"}, {"version": 2, "jsonPointer": "/key"}],
        },
    }
    old = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}
    new = {"type": "object", "required": ["key"], "properties": {"key": {"type": "string"}}}
    search = {"primaryTimestampField": "t", "fields": fields}
    assert http.post(f"{path}/_schema", json={"schema": old, "search": search}).status_code == 200
    put(http, path, {"id": "a"})
    assert sources(find(http, path, "id:a")) == [{"id": "a"}]
    body = {"schema": new, "lens": lens(name, 1, rename("/id", "/key"))}
    assert http.post(f"{path}/_schema", json=body).status_code == 200
    put(http, path, {"key": "a"})
    assert sources(find(http, path, "id:a")) == [{"key": "a"}, {"key": "a"}]
    assert http.get(path, params={"offset": "-1", "filter": "id:a"}).json() == [{"key": "a"}, {"key": "a"}]


def test_deleted_entries_are_not_found(http: httpx.Client, logs: str, name: str) -> None:
    for number in range(6):
        put(http, logs, {"status": number}, Stream_Key="odd" if number % 2 else "even")
    assert len(find(http, logs, "has:status")["hits"]) == 6
    assert http.post(f"/v0/topics/{name}/delete", json={"match": "odd"}).status_code == 200
    assert [entry["status"] for entry in sources(find(http, logs, "has:status"))] == [4, 2, 0]
    assert http.post(f"/v0/topics/{name}/delete", json={"before_seq": 3}).status_code == 200
    assert [entry["status"] for entry in sources(find(http, logs, "has:status"))] == [4, 2]
    assert http.get(logs, params={"offset": "-1", "filter": "status:>=0"}).json() == [{"status": 2}, {"status": 4}]


def test_a_fork_finds_what_it_inherited(http: httpx.Client, logs: str, name: str) -> None:
    put(http, logs, {"status": 1}, {"status": 2})
    forked = f"{logs}-fork"
    assert create(http, forked, JSON, Stream_Forked_From=logs).status_code == 201
    put(http, logs, {"status": 3})
    put(http, forked, {"status": 4})
    assert [entry["status"] for entry in sources(find(http, forked, "has:status"))] == [4, 2, 1]
    assert [entry["status"] for entry in sources(find(http, logs, "has:status"))] == [3, 2, 1]


def test_a_stream_of_the_same_name_has_nothing_of_the_one_before(http: httpx.Client, logs: str) -> None:
    put(http, logs, {"status": 1})
    assert len(find(http, logs, "status:1")["hits"]) == 1
    assert http.delete(logs).status_code in (200, 204)
    described(http, logs)
    assert find(http, logs, "status:1")["hits"] == []


def test_another_description_is_another_index(http: httpx.Client, logs: str) -> None:
    put(http, logs, {"status": 1, "service": "a"})
    assert len(find(http, logs, "service:a")["hits"]) == 1
    fields = {name: LOGS["fields"][name] for name in ("eventTime", "status", "message", "why")}
    search = {**LOGS, "aliases": {}, "fields": fields}
    assert http.post(f"{logs}/_schema", json={"search": search}).status_code == 200
    refused = http.post(f"{logs}/_search", json={"q": "service:a"})
    assert (refused.status_code, code_of(refused)) == (400, "bad_request")
    assert len(find(http, logs, "status:1")["hits"]) == 1


def test_pages_join_while_entries_are_appended(http: httpx.Client, logs: str) -> None:
    put(http, logs, *({"eventTime": number % 3, "status": number} for number in range(20)))
    seen: list[int] = []
    after: list[Any] | None = None
    while True:
        more: dict[str, Any] = {} if after is None else {"search_after": after}
        answer = find(http, logs, "status:<20", sort=["eventTime:asc"], size=7, **more)
        seen += [entry["status"] for entry in sources(answer)]
        put(http, logs, {"eventTime": 0, "status": 99})
        after = answer["next_search_after"]
        if after is None:
            break
    assert seen == sorted(range(20), key=lambda number: (number % 3, -number))


def test_search_returns_requested_fields_and_totals(http: httpx.Client, logs: str) -> None:
    put(http, logs, *({"status": number, "service": "a"} for number in range(9)))
    answer = find(http, logs, "service:a", size=2, track_total=True, _source=False, fields=["status"])
    assert answer["total"] == {"value": 9, "relation": "eq"}
    assert [set(hit) for hit in answer["hits"]] == [{"offset", "score", "sort", "fields"}] * 2
    assert [hit["fields"] for hit in answer["hits"]] == [{"status": 8}, {"status": 7}]
    assert find(http, logs, "service:a", size=2)["total"] == {"value": 2, "relation": "gte"}
    got = http.get(f"{logs}/_search", params={"q": "service:a", "size": "3", "sort": "status:asc,offset:asc"}).json()
    assert [entry["status"] for entry in sources(got)] == [0, 1, 2]
    after = {"q": "service:a", "sort": "status:asc,offset:asc", "search_after": json.dumps(got["next_search_after"])}
    assert sources(http.get(f"{logs}/_search", params=after).json())[0]["status"] == 3


def test_a_search_explains_itself(http: httpx.Client, logs: str) -> None:
    last = offset_of(put(http, logs, *({"status": number} for number in range(5))))
    answer = find(http, logs, "status:>=1 and ( -status:3)", explain=True)
    assert answer["explain"]["query"] == "status:>=1 NOT status:3"
    assert answer["explain"]["sort"] == ["offset:desc"]
    (part,) = answer["explain"]["parts"]
    assert (part["part"], part["entries"], part["last_offset"]) == ("fresh", 5, last)
    assert answer["explain"]["matched"] == 3
    assert "explain" not in find(http, logs, "status:1")
    late = http.post(f"{logs}/_search", json={"q": "status:1", "explain": True, "timeout_ms": 0}).json()
    assert late["explain"]["parts"][1] == {"part": "omitted", "entries_at_most": 5, "spent": "time"}


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"[]", b"5", b'{"q":5}', b'{"q":"nosuch:1"}', b'{"q":"a:"}', b'{"q":"service:x","size":0}',
        b'{"size":501}', b'{"size":"5"}', b'{"sort":["nosuch"]}', b'{"sort":["message"]}', b'{"sort":[5]}',
        b'{"sort":"status"}', b'{"search_after":[]}', b'{"search_after":["x"]}', b'{"timeout_ms":-1}', b'{"more":1}',
        b'{"track_total_hits":false}', b'{"fields":["nosuch"]}', b'{"q":"contains:x"}', b'{"q":"service:>a"}',
    ],
)  # fmt: skip
def test_invalid_searches_are_refused(http: httpx.Client, logs: str, body: bytes) -> None:
    answer = http.post(f"{logs}/_search", content=body)
    assert (answer.status_code, code_of(answer)) == (400, "bad_request")
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "q", ["(" * 4000, "-" * 4000 + "a", "a " * 2000, "x" * 5000, '"' + "a " * 1000 + '"', "((((a OR b) c) d)" * 200]
)
def test_hostile_queries_are_refused(http: httpx.Client, logs: str, q: str) -> None:
    assert http.post(f"{logs}/_search", json={"q": q}).status_code == 400


@pytest.mark.parametrize(
    "query", ["size=x", "size=-1", "track_total=1", "search_after=x", "track_total_hits=1", "sort=", "timeout_ms="]
)
def test_invalid_searches_by_get_are_refused(http: httpx.Client, logs: str, query: str) -> None:
    assert http.get(f"{logs}/_search?q=status:1&{query}").status_code == 400


def test_parameters_that_a_search_does_not_know_are_ignored(http: httpx.Client, logs: str) -> None:
    put(http, logs, {"requestId": "r1", "eventTime": 1})
    while (answer := http.get(f"{logs}/_search?pretty=1&q=requestId:r1&x&size=1&size=y")).status_code == 408:
        pass
    assert sources(answer.json()) == [{"requestId": "r1", "eventTime": 1}]


def test_a_stream_without_a_description_cannot_be_searched(http: httpx.Client, path: str) -> None:
    assert http.get(f"{path}/_search?q=a").status_code == 404
    create(http, path, JSON)
    assert http.get(f"{path}/_search?q=a").status_code == 400
    assert http.post(f"{path}/_aggregate", json={}).status_code == 400
    assert http.get(f"{path}/_routing_keys").status_code == 400
    assert http.get(path, params={"offset": "-1", "filter": "a:1"}).status_code == 400
    assert http.put(f"{path}/_search").status_code == 405


def test_small_weaknesses_of_others(http: httpx.Client, logs: str) -> None:
    put(http, logs, {"status": -5, "message": "a b"}, {"status": 5})
    assert sources(find(http, logs, "status:-5")) == [{"status": -5, "message": "a b"}]
    filtered = http.get(logs, params={"offset": "-1", "filter": "has:message status:<-1"})
    assert filtered.json() == [{"status": -5, "message": "a b"}]
    assert (
        http.post(f"{logs}/_schema", json={"routingKey": {"jsonPointer": "/k", "required": False}}).status_code == 200
    )
    assert http.get(f"{logs}/_routing_keys?limit=x").status_code == 400


def test_a_filter_goes_with_a_key_a_place_and_raw(http: httpx.Client, logs: str) -> None:
    first = offset_of(put(http, logs, {"status": 1}, Stream_Key="a"))
    put(http, logs, {"status": 2}, Stream_Key="a")
    put(http, logs, {"status": 2, "ok": True}, Stream_Key="b")
    given = {"offset": first, "filter": "status:2"}
    assert http.get(logs, params=given).json() == [{"status": 2}, {"status": 2, "ok": True}]
    assert http.get(logs, params={**given, "key": "b"}).json() == [{"status": 2, "ok": True}]
    assert http.get(logs, params={**given, "format": "raw", "key": "a"}).content == b'{"status": 2}'
    answer = http.get(logs, params=given)
    again = http.get(logs, params=given, headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304
    assert "immutable" not in answer.headers["cache-control"]
    assert http.get(logs, params={**given, "live": "sse"}).status_code == 400


def test_a_filtered_long_poll_waits_for_what_matches(server: LiveServer, http: httpx.Client, logs: str) -> None:
    place = offset_of(put(http, logs, {"status": 1}))
    answers: list[httpx.Response] = []

    def wait() -> None:
        given = {"offset": place, "filter": "status:7", "live": "long-poll", "timeout": "4s"}
        answers.append(httpx.get(server.url + logs, params=given, timeout=30))

    waiting = threading.Thread(target=wait)
    waiting.start()
    for number in range(2, 8):
        put(http, logs, {"status": number})
    waiting.join()
    assert (answers[0].status_code, answers[0].json()) == (200, [{"status": 7}])
    empty = http.get(logs, params={"offset": place, "filter": "status:99", "live": "long-poll", "timeout": "0ms"})
    assert empty.status_code == 204
    assert offset_of(empty) > place, "the cursor moves past what does not match"


def test_routing_keys_are_those_of_live_entries(http: httpx.Client, path: str, name: str) -> None:
    create(http, path, JSON)
    assert (
        http.post(f"{path}/_schema", json={"routingKey": {"jsonPointer": "/k", "required": False}}).status_code == 200
    )
    put(http, path, *({"k": f"k{number:03}"} for number in range(120)), {"none": 1})
    page = http.get(f"{path}/_routing_keys").json()
    assert (page["keys"][0], len(page["keys"]), page["next_after"]) == ("k000", 100, "k099")
    rest = http.get(f"{path}/_routing_keys", params={"after": "k099"}).json()
    assert (rest["keys"], rest["next_after"]) == ([f"k{number}" for number in range(100, 120)], None)
    assert rest["coverage"]["complete"] is True
    assert http.post(f"/v0/topics/{name}/delete", json={"match": "k000"}).status_code == 200
    assert http.get(f"{path}/_routing_keys?limit=1").json()["keys"] == ["k001"]


def test_an_aggregation_of_fresh_entries(http: httpx.Client, logs: str) -> None:
    put(http, logs, *({"eventTime": 60_000 * (n // 2), "service": "a", "duration": n} for n in range(6)))
    asked = {"rollup": "load", "from": 0, "to": 120_000, "interval": "1m", "measures": ["ms"]}
    answer = http.post(f"{logs}/_aggregate", json=asked).json()
    assert [bucket["groups"][0]["measures"]["ms"]["sum"] for bucket in answer["buckets"]] == [1, 5]
    assert answer["coverage"]["complete"] is True
    assert http.post(f"{logs}/_aggregate", json={**asked, "interval": "2m"}).status_code == 400


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_process_that_died_is_begun_again(server: LiveServer, http: httpx.Client, logs: str) -> None:
    put(http, logs, {"status": 1})
    assert len(find(http, logs, "status:1")["hits"]) == 1
    (before,) = children(server.pid)
    os.kill(before, signal.SIGKILL)
    while True:
        answer = http.post(f"{logs}/_search", json={"q": "status:1"})
        if answer.status_code == 200:
            break
        if answer.status_code == 408:
            continue
        assert (answer.status_code, answer.json()["error"]["detail"]["reason"]) == (503, "search_unavailable")
    assert len(answer.json()["hits"]) == 1
    assert before not in children(server.pid)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[tuple[LiveServer, httpx.Client]]:
    """A server that keeps little in memory for searches, and looks at little besides."""
    settings = {"search_stream_bytes": "65536", "search_memory_bytes": "65536", "segment_max_events": "100"}
    with LiveServer(tmp_path, **settings) as live, httpx.Client(base_url=live.url, timeout=30) as client:
        yield live, client


def test_full_memory_index_evicts_unused_streams_and_scans_the_rest(
    small: tuple[LiveServer, httpx.Client],
) -> None:
    _, http = small
    one, other = described(http, "/v1/stream/one"), described(http, "/v1/stream/other")
    for path in (one, other):
        for begin in range(0, 1000, 100):
            put(http, path, *({"status": n, "message": "x" * 100} for n in range(begin, begin + 100)))
    for path in (one, other, one, other):
        answer = find(http, path, "status:>=0", track_total=True)
        coverage = answer["coverage"]
        assert sources(answer)[0]["status"] == 999
        assert answer["total"] == {"value": 1000, "relation": "eq"}
        assert (coverage["complete"], coverage["mode"]) == (True, "complete")
        assert 0 < coverage["scanned_tail_docs"] < 1000
        assert coverage["scanned_segments"] > 3
    for body in ({"q": "status:7"}, {"sort": ["offset:asc"], "size": 3}, {"sort": ["status:asc"], "size": 2}):
        answer = http.post(f"{one}/_search", json=body).json()
        assert answer["coverage"]["complete"] is True
        assert sources(answer)[0]["status"] == (7 if "q" in body else 0)
    for begin in range(1000, 4000, 100):
        put(http, one, *({"status": n, "message": "x" * 100} for n in range(begin, begin + 100)))
        assert len(find(http, one, f"status:{begin + 99}")["hits"]) == 1


def test_searching_survives_a_restart_and_ends_with_the_server(small: tuple[LiveServer, httpx.Client]) -> None:
    live, http = small
    path = described(http, "/v1/stream/kept")
    put(http, path, {"status": 1})
    assert len(find(http, path, "status:1")["hits"]) == 1
    (child,) = children(live.pid)
    live.stop()
    assert not Path(f"/proc/{child}").exists()
    live.start()
    wait_until_ready(live.url)
    assert len(find(http, path, "status:1")["hits"]) == 1
    (child,) = children(live.pid)
    live.kill()
    while Path(f"/proc/{child}/cmdline").exists() and Path(f"/proc/{child}/cmdline").read_bytes():
        time.sleep(0.01)


def test_searching_needs_the_scope_to_read(tmp_path: Path) -> None:
    with LiveServer(tmp_path, api_keys="all,reader:read,writer:write,mine:rw:mine/") as live:
        with httpx.Client(base_url=live.url, headers={"authorization": "Bearer all"}) as http:
            path = described(http, "/v1/stream/theirs")
            put(http, path, {"status": 1})
        for key, status in (("", 401), ("reader", 200), ("writer", 403), ("mine", 403)):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            asked = {"rollup": "load", "from": 0, "to": 1, "interval": "1m"}
            with httpx.Client(base_url=live.url, headers=headers) as http:
                assert http.get(f"{path}/_search?q=status:1").status_code == status
                assert http.post(f"{path}/_search", json={}).status_code == status
                assert http.post(f"{path}/_aggregate", json=asked).status_code == status
                assert http.get(f"{path}/_routing_keys").status_code == (400 if status == 200 else status)
                assert http.get(path, params={"offset": "-1", "filter": "status:1"}).status_code == status


def test_search_reports_entries_skipped_by_the_budget(tmp_path: Path) -> None:
    settings = {"search_stream_bytes": "65536", "search_scan_bytes": "65536", "segment_max_events": "100"}
    with LiveServer(tmp_path, **settings) as live, httpx.Client(base_url=live.url, timeout=30) as http:
        path = described(http, "/v1/stream/one")
        for begin in range(0, 3000, 100):
            put(http, path, *({"status": n, "message": "x" * 100} for n in range(begin, begin + 100)))
        answer = find(http, path, "status:>=0", track_total=True)
        coverage = answer["coverage"]
        assert sources(answer)[0]["status"] == 2999, "the newest are looked at first"
        assert (coverage["complete"], coverage["mode"]) == (False, "published")
        missed = coverage["possible_missing_events_upper_bound"]
        assert answer["total"] == {"value": 3000 - missed, "relation": "gte"}
        assert missed == coverage["possible_missing_sealed_rows"] > 1000
        assert coverage["possible_missing_uploaded_segments"] > 10
        assert coverage["oldest_omitted_append_at"] is not None
        assert coverage["segment_payload_bytes_fetched"] <= 65536
        # A page that is full misses nothing.
        assert find(http, path, "status:>=0", size=10)["coverage"]["complete"] is True
        metrics = http.get("/v0/metrics").text
        assert 'topics_search_budgets_spent_total{budget="bytes"} 1.0' in metrics


def test_aggregation_without_a_rollup(http: httpx.Client, logs: str) -> None:
    values = [{"eventTime": 60_000 * (n // 4), "service": "ab"[n % 2], "status": n, "duration": n} for n in range(8)]
    put(http, logs, *values)
    body: dict[str, Any] = {"group_by": ["service"], "measures": {"n": {"kind": "count"}}}
    whole = http.post(f"{logs}/_aggregate", json=body).json()
    assert (whole["rollup"], whole["interval"], whole["coverage"]["complete"]) == (None, None, True)
    (bucket,) = whole["buckets"]
    counted = [(group["key"]["service"], group["measures"]["n"]["count"]) for group in bucket["groups"]]
    assert counted == [("a", 4), ("b", 4)]
    body = {
        "interval": "1m", "q": "status:>0", "top": 1, "group_by": ["service"],
        "measures": {"n": {"kind": "count"}, "ms": {"kind": "summary", "field": "duration", "histogram": "log2_v1"}},
    }  # fmt: skip
    first, second = http.post(f"{logs}/_aggregate", json=body).json()["buckets"]
    assert [group["key"] for group in first["groups"]] == [{"service": "b"}]
    assert first["groups"][0]["measures"]["ms"] == {
        "count": 2, "sum": 4, "min": 1, "max": 3, "avg": 2, "p50": 1, "p95": 2, "p99": 2, "histogram": {"1": 1, "2": 1},
    }  # fmt: skip
    assert (second["start"], len(second["groups"])) == ("1970-01-01T00:01:00.000Z", 1)
    refused: list[dict[str, Any]] = [
        {"group_by": ["message"]}, {"group_by": ["none"]}, {"interval": "soon"}, {"measures": ["n"]}, {"top": 0},
        {"measures": {"x": {"kind": "summary", "field": "service"}}}, {"timestamp_field": "service"},
        {"from": 5, "to": 5}, {"rollup": "load", "from": 0, "to": 1, "interval": "1m", "top": 3}, {"more": 1},
    ]  # fmt: skip
    for wrong in refused:
        assert http.post(f"{logs}/_aggregate", json=wrong).status_code == 400, wrong


def test_hits_report_where_words_stand(http: httpx.Client, logs: str) -> None:
    put(http, logs, {"message": "The card was declined"})
    (hit,) = find(http, logs, "message:card", highlight=True)["hits"]
    assert hit["highlights"] == {"message": [{"text": "The card was declined", "spans": [[4, 8]]}]}
    (hit,) = http.get(f"{logs}/_search", params={"q": "message:card", "highlight": "why"}).json()["hits"]
    assert hit["highlights"] == {}
    assert "highlights" not in find(http, logs, "message:card")["hits"][0]
    assert http.post(f"{logs}/_search", json={"highlight": ["none"]}).status_code == 400
