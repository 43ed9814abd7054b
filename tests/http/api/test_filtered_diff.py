"""Reads that filter records, and reads that begin at a time or with the last records."""

import threading
from typing import Any

import httpx
import pytest

from tests.http.api.conftest import Append, refused


def seqs(read: dict[str, Any]) -> list[int]:
    return [record["$seq"] for record in read["records"]]


def tagged(number: int) -> dict[str, str]:
    return {"tag": f"order-{number}"} if number % 2 else {}


@pytest.fixture
def orders(api: httpx.Client, name: str) -> str:
    """Twelve records of two nodes, each second one tagged."""
    for begin in range(0, 12, 3):
        records = [
            {"data": {"n": n, "user": {"name": f"u{n % 3}"}}, "meta": {"m": n}, **tagged(n)}
            for n in range(begin, begin + 3)
        ]
        body = {"records": records, "node": "shop" if begin % 2 else "web"}
        assert api.post(f"/v0/topics/{name}", json=body).is_success
    return name


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/n:>=9", [10, 11, 12]), ("tag:order-*", [2, 4, 6, 8, 10, 12]), ("tag:order-3", [4]),
        ("-has:tag /n:<5", [1, 3, 5]),
        ("/user/name:u1", [2, 5, 8, 11]), ("node:shop", [4, 5, 6, 10, 11, 12]), ("seq:>10 OR seq:1", [1, 11, 12]),
        ("/n:77", []), ('/user/name:"u1" tag:order-7', [8]), ("ts:>0", list(range(1, 13))), ("ts:<1000", []),
    ],
)  # fmt: skip
def test_a_filter_gives_what_matches(orders: str, diff: Append, text: str, found: list[int]) -> None:
    read = diff(filter=text)
    assert seqs(read) == found
    assert (read["next_from_seq"], read["caught_up"], read["lag"]) == (12, True, 0)
    assert read["performance"]["records_scanned"] == 12


def test_a_filtered_record_is_shown_as_any_other(orders: str, diff: Append) -> None:
    (plain,) = (record for record in diff(include_tags=True)["records"] if record["$seq"] == 4)
    assert diff(filter="tag:order-3", include_tags=True)["records"] == [plain]
    (bare,) = diff(filter="tag:order-3", include_meta=False)["records"]
    assert "meta" not in bare and "$tag" not in bare


def test_pages_of_a_filter_join(orders: str, diff: Append) -> None:
    found, cursor, pages = [], 0, 0
    while True:
        read = diff(filter="has:tag", limit=2, from_seq=cursor)
        assert len(read["records"]) <= 2
        found += seqs(read)
        assert read["next_from_seq"] > cursor or read["caught_up"]
        cursor, pages = read["next_from_seq"], pages + 1
        if read["caught_up"]:
            break
    assert found == [2, 4, 6, 8, 10, 12] and pages >= 3
    small = diff(filter="has:tag", max_batch_bytes=10)
    assert seqs(small) == [2] and not small["caught_up"]


def test_a_filter_and_ones_own_node(api: httpx.Client, name: str, orders: str, diff: Append) -> None:
    api.put(f"/v0/topics/{name}", json={"dedupe_node": True})
    assert seqs(diff(filter="has:tag", node="web")) == [4, 6, 10, 12]
    assert seqs(diff(filter="has:tag", node=["web", "shop"])) == []
    assert diff(filter="has:tag", node="web")["caught_up"]


def test_a_loss_is_reported_to_a_filtered_read(api: httpx.Client, name: str, append: Append, diff: Append) -> None:
    api.put(f"/v0/topics/{name}", json={"cap_records": 3})
    append(*({"n": n} for n in range(10)))
    plain, filtered = diff(), diff(filter="/n:9")
    assert plain["tombstone"] == filtered["tombstone"] is not None
    assert seqs(filtered) == [10]
    # A cursor from another topic is reported, and begins anew.
    beyond, plain = diff(from_seq=99, filter="/n:9"), diff(from_seq=99)
    assert beyond["tombstone"]["reason"] == plain["tombstone"]["reason"] == "recreated"
    assert (seqs(beyond), beyond["next_from_seq"]) == ([10], 10)


def test_a_wait_ends_with_a_record_that_matches(api: httpx.Client, name: str, append: Append, diff: Append) -> None:
    append({"n": 0})

    def later() -> None:
        append({"n": 1})
        append({"n": 2})

    thread = threading.Timer(0.2, later)
    thread.start()
    read = diff(from_seq=1, filter="/n:2", wait_ms=20_000)
    thread.join()
    assert seqs(read) == [3]
    read = diff(from_seq=3, filter="/n:2", wait_ms=50)
    assert (seqs(read), read["caught_up"]) == ([], True)


@pytest.mark.parametrize(
    "text", ["", "word", "data:5", "ts:never", "/n:", "(/n:5", "/a~5:1", " ".join(["/a:1"] * 257), "-" * 99 + "/a:1"]
)
def test_a_filter_that_states_nothing_is_refused(api: httpx.Client, orders: str, text: str) -> None:
    answer = api.post(f"/v0/topics/{orders}/diff", json={"filter": text})
    assert refused(answer, 400, "invalid_request")["field"] == "filter"


def test_the_last_records(orders: str, diff: Append) -> None:
    assert seqs(diff(last=3)) == [10, 11, 12]
    assert seqs(diff(last=3, limit=1)) == [10]
    assert seqs(diff(last=99)) == list(range(1, 13))
    assert seqs(diff(last=6, filter="has:tag")) == [8, 10, 12]
    read = diff(last=0)
    assert (seqs(read), read["caught_up"]) == ([], True)


def test_the_last_records_are_live_ones(api: httpx.Client, orders: str, diff: Append) -> None:
    assert api.post(f"/v0/topics/{orders}/delete", json={"match": ["tag", "Glob", "order-*"]}).is_success
    assert seqs(diff(last=2)) == [9, 11]
    assert seqs(diff(last=600)) == [1, 3, 5, 7, 9, 11]


def test_the_last_of_fewer_reports_what_is_lost(api: httpx.Client, name: str, append: Append, diff: Append) -> None:
    api.put(f"/v0/topics/{name}", json={"cap_records": 3})
    append(*range(10))
    read = diff(last=3)
    assert read["tombstone"] is None and seqs(read)[-1] == 10
    read = diff(last=500)
    assert read["tombstone"]["gap_from"] == 1


def test_a_time_to_begin_at(api: httpx.Client, name: str, append: Append, diff: Append) -> None:
    times = []
    for number in range(4):
        append(number)
        times.append(diff(from_seq=number)["records"][0]["$ts"])
        while append(number)["last_seq"] and diff(last=1)["records"][0]["$ts"] == times[-1]:
            pass
        api.post(f"/v0/topics/{name}/delete", json={"before_seq": 0})
    records = diff(limit=1000)["records"]
    for moment in sorted({record["$ts"] for record in records}):
        expected = [record["$seq"] for record in records if record["$ts"] >= moment]
        assert seqs(diff(since_ts=moment, limit=1000)) == expected
        assert seqs(diff(since_ts=moment, limit=1000, filter="seq:>0")) == expected
    assert seqs(diff(since_ts=0, limit=1000)) == [record["$seq"] for record in records]
    assert seqs(diff(since_ts="2001-01-01T00:00:00Z", limit=1)) == [1]
    late = diff(since_ts=records[-1]["$ts"] + 3_600_000)
    assert (seqs(late), late["caught_up"]) == ([], True)


def test_a_time_before_what_was_lost_reports_of_it(api: httpx.Client, name: str, append: Append, diff: Append) -> None:
    api.put(f"/v0/topics/{name}", json={"cap_records": 3})
    append(*range(10))
    read = diff(since_ts=0)
    assert read["tombstone"]["gap_from"] == 1 and seqs(read)[-1] == 10


@pytest.mark.parametrize(
    "body",
    [{"last": 1, "from_seq": 2}, {"last": 1, "since_ts": 5}, {"since_ts": 5, "from_seq": 1}, {"last": -1},
     {"since_ts": "soon"}, {"since_ts": 10**30}],
)  # fmt: skip
def test_exclusive_parameters_are_refused(api: httpx.Client, orders: str, body: dict[str, Any]) -> None:
    refused(api.post(f"/v0/topics/{orders}/diff", json=body), 400, "invalid_request")


def test_a_topic_that_is_not_there(api: httpx.Client, name: str) -> None:
    for body in ({"last": 1}, {"since_ts": 1}, {"filter": "/a:1"}, {"filter": "/a:1", "wait_ms": 5}):
        refused(api.post(f"/v0/topics/{name}/diff", json=body), 404, "topic_not_found")
