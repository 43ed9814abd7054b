"""Reading from a cursor, waiting for more, and deleting."""

import threading
from typing import Any

import httpx
import pytest

from tests.http.api.conftest import Append, refused


def seqs(read: dict[str, Any]) -> list[int]:
    return [record["$seq"] for record in read["records"]]


def test_the_answer_to_a_diff(append: Append, diff: Append, name: str) -> None:
    append("a", "b", "c")
    read = diff(from_seq=1, limit=1)
    performance = read.pop("performance")
    assert isinstance(read.pop("epoch"), int)
    record = read["records"].pop()
    assert read == {
        "topic": name, "records": [], "next_from_seq": 2, "head_seq": 3, "earliest_seq": 1, "caught_up": False,
        "tombstone": None, "lag": 1,
    }  # fmt: skip
    assert (record["$seq"], record["data"], set(record)) == (2, "b", {"$seq", "$ts", "data"})
    assert performance["records_scanned"] == 1


def test_an_empty_body_reads_from_the_beginning(api: httpx.Client, name: str, append: Append) -> None:
    append(1)
    assert seqs(api.post(f"/v0/topics/{name}/diff").json()) == [1]


def test_caught_up_at_the_head(append: Append, diff: Append) -> None:
    append(1, 2)
    read = diff(from_seq=2)
    assert (seqs(read), read["caught_up"], read["next_from_seq"], read["lag"]) == ([], True, 2, 0)


@pytest.mark.parametrize(
    ("limit", "count"), [(0, 256), (1, 1), (1000, 1000), (1001, 1000), (2**32, 1000), (2**64, 1000), (10**30, 1000)]
)
def test_the_limit_is_clamped(append: Append, diff: Append, limit: int, count: int) -> None:
    append(*range(1100))
    assert len(diff(limit=limit)["records"]) == count


@pytest.mark.parametrize("much", [2**32, 2**64, 10**30])
def test_a_wait_and_a_byte_budget_are_clamped(append: Append, diff: Append, much: int) -> None:
    append(1)
    assert len(diff(wait_ms=much, max_batch_bytes=much)["records"]) == 1


def test_the_byte_budget_gives_at_least_one_record(append: Append, diff: Append) -> None:
    append("x" * 5000, "y" * 5000)
    read = diff(max_batch_bytes=10)
    assert (seqs(read), read["next_from_seq"]) == ([1], 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field in ("from_seq", "limit", "wait_ms") for value in (-1, "1", 1.5, None, True)),
        ("max_batch_bytes", -1),
        *(("epoch", value) for value in (-1, 2**64, "1", True)),
        ("from_seq", 2**64),
        ("node", 5),
        ("node", [5]),
        ("node", {}),
        ("include_tags", 1),
        ("include_meta", "no"),
    ],
)
def test_a_bad_field_is_refused(api: httpx.Client, name: str, append: Append, field: str, value: object) -> None:
    append(1)
    refused(api.post(f"/v0/topics/{name}/diff", json={field: value}), 400, "invalid_request")


def test_reading_never_creates(api: httpx.Client, name: str) -> None:
    assert refused(api.post(f"/v0/topics/{name}/diff", json={}), 404, "topic_not_found") == {"topic": name}


def test_tags_and_meta_only_when_asked_for(api: httpx.Client, name: str, diff: Append) -> None:
    api.post(f"/v0/topics/{name}", json={"records": [{"data": 1, "tag": "t", "meta": {"k": "v"}}]})
    assert set(diff()["records"][0]) == {"$seq", "$ts", "data", "meta"}
    assert set(diff(include_tags=True)["records"][0]) == {"$seq", "$ts", "$tag", "data", "meta"}
    assert set(diff(include_meta=False)["records"][0]) == {"$seq", "$ts", "data"}
    assert set(diff(include_meta=False, include_tags=True)["records"][0]) == {"$seq", "$ts", "$tag", "data"}


def test_a_node_does_not_read_its_own(api: httpx.Client, name: str, append: Append, diff: Append) -> None:
    append(1, node="a")
    append(2, node="b")
    append(3)
    assert seqs(diff(node="a")) == [2, 3]
    assert seqs(diff(node=["a", "b"])) == [3]
    only_own = diff(from_seq=0, limit=1, node="a")
    assert (seqs(only_own), only_own["next_from_seq"], only_own["caught_up"]) == ([], 1, False)
    api.put(f"/v0/topics/{name}", json={"dedupe_node": False})
    assert seqs(diff(node="a")) == [1, 2, 3]


def test_a_cursor_from_another_life_gets_a_tombstone(append: Append, diff: Append) -> None:
    append(1, 2)
    read = diff(from_seq=50)
    assert read["tombstone"]["reason"] == "recreated"
    assert (read["tombstone"]["gap_from"], read["tombstone"]["gap_to"], seqs(read)) == (1, 2, [1, 2])
    assert diff(from_seq=2)["tombstone"] is None


def test_a_diff_with_an_epoch_is_never_taken_for_one_of_another_topic(
    api: httpx.Client, append: Append, diff: Append, name: str
) -> None:
    append(1, 2)
    epoch = api.get(f"/v0/topics/{name}").json()["epoch"]
    read = diff(from_seq=1, epoch=epoch)
    assert (seqs(read), read["tombstone"], read["epoch"]) == ([2], None, epoch)
    api.delete(f"/v0/topics/{name}")
    append(*range(5))
    for cursor in (0, 1, 5, 2**64 - 1):
        read = diff(from_seq=cursor, epoch=epoch, limit=3)
        reported = read["tombstone"]
        assert (reported["reason"], reported["gap_from"], reported["gap_to"], reported["head_seq"]) == (
            "recreated",
            1,
            5,
            5,
        )
        assert (seqs(read), read["next_from_seq"]) == ([1, 2, 3], 3)
        assert read["epoch"] != epoch
    # Without its epoch the cursor fits the new topic as well as the old one.
    assert seqs(diff(from_seq=1)) == [2, 3, 4, 5]
    # A client that goes on with the cursor of the answer gets no second notice.
    assert diff(from_seq=3, epoch=read["epoch"])["tombstone"] is None


def test_a_waiting_reader_is_notified_at_once_that_its_topic_is_another_one(
    api: httpx.Client, append: Append, diff: Append, name: str
) -> None:
    append(1, 2)
    epoch = api.get(f"/v0/topics/{name}").json()["epoch"]
    api.delete(f"/v0/topics/{name}")
    append(3, 4)
    read = diff(from_seq=2, epoch=epoch, wait_ms=30_000)
    assert (read["tombstone"]["reason"], seqs(read)) == ("recreated", [1, 2])


def test_expired_records_are_reported_by_a_tombstone(append: Append, diff: Append) -> None:
    append(1, config={"ttl_ms": 1})
    for _ in range(10_000):
        read = diff()
        if read["tombstone"] is not None:
            break
    assert (read["tombstone"]["reason"], read["tombstone"]["gap_from"], read["tombstone"]["gap_to"]) == ("ttl", 1, 1)


def test_a_waiting_reader_gets_the_next_append(server: object, api: httpx.Client, name: str, append: Append) -> None:
    append("first")
    answers: list[dict[str, Any]] = []

    def wait() -> None:
        with httpx.Client(base_url=api.base_url, timeout=40.0) as other:
            answers.append(other.post(f"/v0/topics/{name}/diff", json={"from_seq": 1, "wait_ms": 30_000}).json())

    waiting = threading.Thread(target=wait)
    waiting.start()
    append("second")
    waiting.join(35.0)
    assert seqs(answers[0]) == [2]


def test_a_waiting_reader_learns_when_nothing_came(append: Append, diff: Append) -> None:
    append(1)
    read = diff(from_seq=1, wait_ms=20)
    assert (seqs(read), read["caught_up"]) == ([], True)


def test_a_waiting_reader_passes_its_own_records(api: httpx.Client, name: str, append: Append) -> None:
    append(*range(3000), node="me")
    read = api.post(f"/v0/topics/{name}/diff", json={"node": "me", "wait_ms": 20, "limit": 100}).json()
    assert (seqs(read), read["next_from_seq"], read["caught_up"]) == ([], 3000, True)


def test_a_waiting_reader_learns_that_its_topic_is_gone(api: httpx.Client, name: str, append: Append) -> None:
    append(1)
    answers: list[httpx.Response] = []

    def wait() -> None:
        with httpx.Client(base_url=api.base_url, timeout=40.0) as other:
            answers.append(other.post(f"/v0/topics/{name}/diff", json={"from_seq": 1, "wait_ms": 30_000}))

    waiting = threading.Thread(target=wait)
    waiting.start()
    api.delete(f"/v0/topics/{name}")
    waiting.join(35.0)
    refused(answers[0], 404, "topic_not_found")


def delete(api: httpx.Client, name: str, **body: object) -> httpx.Response:
    return api.post(f"/v0/topics/{name}/delete", json=body)


@pytest.fixture
def tagged(api: httpx.Client, name: str) -> str:
    tags = ("a:1", "a:2", "b", None)
    records = [{"data": tag, **({} if tag is None else {"tag": tag})} for tag in tags]
    api.post(f"/v0/topics/{name}", json={"records": records})
    return name


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ({"before_seq": 3}, [3, 4]),
        ({"before_seq": 0}, [1, 2, 3, 4]),
        ({"before_seq": 99}, []),
        ({"match": "b"}, [1, 2, 4]),
        ({"match": ["tag", "Eq", "a:1"]}, [2, 3, 4]),
        ({"match": ["tag", "Glob", "a:*"]}, [3, 4]),
        ({"match": ["tag", "Glob", "*"]}, [4]),
        ({"match": "a:*"}, [1, 2, 3, 4]),
        ({"match": ["tag", "Glob", "a:*"], "before_seq": 2}, [2, 3, 4]),
        ({"match": "nobody"}, [1, 2, 3, 4]),
    ],
)
def test_delete_keeps_records_that_do_not_match(
    api: httpx.Client, tagged: str, diff: Append, body: dict[str, Any], left: list[int]
) -> None:
    answer = delete(api, tagged, **body).json()
    read = diff()
    assert (seqs(read), read["tombstone"], read["next_from_seq"]) == (left, None, 4)
    assert (answer["topic"], answer["deleted"], answer["head_seq"], answer["count"]) == (
        tagged,
        4 - len(left),
        4,
        len(left),
    )
    assert answer["earliest_seq"] == (left[0] if left else 5)
    assert answer["bytes"] == sum(len(f'"{r["data"]}"') if r["data"] else 4 for r in read["records"])


def test_a_delete_leaves_what_comes_later(api: httpx.Client, tagged: str, append: Append, diff: Append) -> None:
    delete(api, tagged, match="b", before_seq=1000)
    api.post(f"/v0/topics/{tagged}", json={"records": [{"data": 1, "tag": "b"}]})
    assert seqs(diff()) == [1, 2, 4, 5]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"before_seq": None, "match": None},
        {"before_seq": -1},
        {"before_seq": "1"},
        {"before_seq": 1.5},
        {"before_seq": True},
        {"before_seq": 2**64},
        {"match": 5},
        {"match": []},
        {"match": ["tag", "Eq"]},
        {"match": ["tag", "Eq", "x", "y"]},
        {"match": ["node", "Eq", "x"]},
        {"match": ["tag", "Regex", "x"]},
        {"match": ["tag", "Glob", "x"]},
        {"match": ["tag", "Glob", "x*y*"]},
        {"match": ["tag", "Eq", 5]},
        {"match": {"tag": "x"}},
    ],
)
def test_a_bad_delete_is_refused(api: httpx.Client, name: str, body: dict[str, Any]) -> None:
    # Also for a topic that does not exist: the request is invalid in any case.
    refused(delete(api, name, **body), 400, "invalid_request")


def test_deleting_from_no_topic(api: httpx.Client, name: str) -> None:
    refused(delete(api, name, before_seq=1), 404, "topic_not_found")
