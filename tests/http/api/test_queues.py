"""Queues over HTTP: claim, ack, nack, extend. Every field, clamp, refusal and case that is skipped."""

import concurrent.futures
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.http.api.conftest import Append, refused

Post = Callable[..., dict[str, Any]]
APART_MS = 5
"""A timestamp of a server may differ so much from the wall clock (`engine.core`)."""
DAY_MS = 86_400_000
U64_MAX = 2**64 - 1


@pytest.fixture
def queue(api: httpx.Client, name: str) -> Callable[..., str]:
    """Makes the test's topic a queue, with this config."""

    def making(topic: str = name, **config: object) -> str:
        answer = api.put(f"/v0/topics/{topic}", json={"type": "queue", **config})
        assert answer.is_success, answer.text
        return topic

    return making


@pytest.fixture
def post(api: httpx.Client, name: str) -> Post:
    """Calls an endpoint of the test's queue, which must work; gives the answer without its performance block."""

    def posting(word: str, topic: str = name, **fields: object) -> dict[str, Any]:
        answer = api.post(f"/v0/topics/{topic}/{word}", json=fields)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        assert body.pop("performance")["server_total_ms"] >= 0
        return body

    return posting


def now_ms() -> int:
    return int(time.time() * 1000)


def counters(api: httpx.Client, topic: str) -> dict[str, int]:
    found: dict[str, int] = api.get(f"/v0/topics/{topic}").json()["queue"]
    return found


def seqs_of(answer: dict[str, Any]) -> list[int]:
    return [job["$seq"] for job in answer["claimed"]]


# Claiming


def test_the_answer_to_a_claim(api: httpx.Client, name: str, queue: Callable[..., str], post: Post) -> None:
    queue()
    job = {"data": {"n": [1, 2.50]}, "tag": "t", "node": "producer", "meta": {"k": "v"}}
    api.post(f"/v0/topics/{name}", json={"records": [job, {"data": None}, {"data": 3}]})
    before = now_ms()
    answer = post("claim", node="w", max=2, lease_ms=60_000)
    after = now_ms()
    first, second = answer.pop("claimed")
    assert answer == {"topic": name, "count": 2, "ready": 1}
    assert before + 60_000 - APART_MS <= first["deadline"] <= after + 60_000 + APART_MS
    assert first["deadline"] == second["deadline"]
    assert first["$ts"] <= after
    for job in (first, second):
        assert job["lease_id"].startswith("lease_")
        assert int(job["lease_id"][6:], 16) > 0
    assert first["lease_id"] != second["lease_id"]
    plain = {field: value for field, value in first.items() if field not in ("$ts", "lease_id", "deadline")}
    assert plain == {
        "$seq": 1, "$node": "producer", "$tag": "t", "data": {"n": [1, 2.5]}, "meta": {"k": "v"}, "deliveries": 1,
    }  # fmt: skip
    assert set(second) == {"$seq", "$ts", "data", "lease_id", "deadline", "deliveries"}
    assert second["data"] is None


def test_a_claim_without_max_gets_one_job(queue: Callable[..., str], append: Append, post: Post) -> None:
    queue()
    append(1, 2)
    assert seqs_of(post("claim", node="w")) == [1]
    assert seqs_of(post("claim", node="w", max=0)) == [2]


def test_an_empty_queue_is_an_ordinary_answer(name: str, queue: Callable[..., str], post: Post) -> None:
    queue()
    assert post("claim", node="w", max=5) == {"topic": name, "claimed": [], "count": 0, "ready": 0}


@pytest.mark.parametrize("most", [2**32 - 1, 2**32, 10**30])
def test_more_than_the_most_is_cut(queue: Callable[..., str], append: Append, post: Post, most: int) -> None:
    queue()
    append(*range(1_001))
    answer = post("claim", node="w", max=most)
    assert (answer["count"], answer["ready"]) == (1_000, 1)


@pytest.mark.parametrize(
    ("asked", "granted"), [(0, 100), (99, 100), (100, 100), (DAY_MS + 1, DAY_MS), (U64_MAX, DAY_MS), (10**30, DAY_MS)]
)
def test_leases_are_bent_into_their_range(
    queue: Callable[..., str], append: Append, post: Post, asked: int, granted: int
) -> None:
    queue()
    append(1)
    before = now_ms()
    [job] = post("claim", node="w", lease_ms=asked)["claimed"]
    assert before + granted - APART_MS <= job["deadline"] <= now_ms() + granted + APART_MS


def test_without_a_wish_the_lease_is_that_of_the_config(queue: Callable[..., str], append: Append, post: Post) -> None:
    queue(lease_ms=12_345)
    append(1, 2)
    before = now_ms()
    jobs = [*post("claim", node="w")["claimed"], *post("claim", node="w", lease_ms=None)["claimed"]]
    assert all(abs(job["deadline"] - before - 12_345) <= now_ms() - before + APART_MS for job in jobs)


def test_leased_job_is_refused_to_other_workers(queue: Callable[..., str], append: Append, post: Post) -> None:
    queue()
    append(1, 2, 3)
    assert seqs_of(post("claim", node="a", max=2)) == [1, 2]
    assert seqs_of(post("claim", node="b", max=2)) == [3]
    assert seqs_of(post("claim", node="a", max=2)) == []


def test_a_lease_that_has_expired_comes_first(queue: Callable[..., str], append: Append, post: Post) -> None:
    queue()
    append(1, 2, 3)
    post("claim", node="slow", max=2, lease_ms=100)
    time.sleep(0.15)
    answer = post("claim", node="quick", max=2)
    assert [(job["$seq"], job["deliveries"]) for job in answer["claimed"]] == [(1, 2), (2, 2)]
    assert post("ack", node="slow", seqs=[1, 2])["skipped"] == [1, 2]


def test_a_cohort_is_served_evenly(name: str, queue: Callable[..., str], append: Append, api: httpx.Client) -> None:
    """Ten claims of ten within one window, over fifty jobs: five for each, not ten for the first five."""
    queue(claim_jitter_ms=2_500)
    append(*range(50))
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        calls = [
            pool.submit(api.post, f"/v0/topics/{name}/claim", json={"node": f"w{number}", "max": 10})
            for number in range(10)
        ]
        answers = [call.result().json() for call in calls]
    assert [answer["count"] for answer in answers] == [5] * 10
    assert sorted(seq for answer in answers for seq in seqs_of(answer)) == list(range(1, 51))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"max": 1},
        {"node": None},
        {"node": 5},
        {"node": ""},
        {"node": "x" * 129},
        {"node": "é" * 65},
        {"node": "w", "max": -1},
        {"node": "w", "max": "1"},
        {"node": "w", "max": 1.5},
        {"node": "w", "max": None},
        {"node": "w", "lease_ms": -1},
        {"node": "w", "lease_ms": "long"},
        [1],
        "node",
    ],
    ids=str,
)
def test_a_claim_that_is_wrong_is_refused_and_leases_nothing(
    api: httpx.Client, name: str, queue: Callable[..., str], append: Append, body: object
) -> None:
    queue()
    append(1)
    refused(api.post(f"/v0/topics/{name}/claim", json=body), 400, "invalid_request")
    assert counters(api, name) == {"ready": 1, "in_flight": 0, "delayed": 0, "dead_lettered": 0}


@pytest.mark.parametrize("word", ["claim", "ack", "nack", "extend"])
def test_a_body_is_needed(api: httpx.Client, name: str, queue: Callable[..., str], word: str) -> None:
    queue()
    refused(api.post(f"/v0/topics/{name}/{word}"), 400, "invalid_request")
    refused(api.post(f"/v0/topics/{name}/{word}", content="{"), 415, "unsupported_media_type")
    json = {"content-type": "application/json"}
    refused(api.post(f"/v0/topics/{name}/{word}", content="{", headers=json), 400, "invalid_request")
    bad_text = b'{"node":"\xff","seqs":[],"lease_ms":1}'
    refused(api.post(f"/v0/topics/{name}/{word}", content=bad_text, headers=json), 400, "invalid_request")


_ASKED = [
    ("claim", {"node": "w"}),
    ("ack", {"node": "w", "seqs": [1]}),
    ("nack", {"node": "w", "seqs": [1]}),
    ("extend", {"node": "w", "seqs": [1], "lease_ms": 1000}),
    ("redrive", {}),
]


@pytest.mark.parametrize(("word", "body"), _ASKED, ids=[word for word, _ in _ASKED])
def test_only_queues_have_jobs(
    api: httpx.Client, name: str, append: Append, word: str, body: dict[str, object]
) -> None:
    assert refused(api.post(f"/v0/topics/{name}/{word}", json=body), 404, "topic_not_found") == {"topic": name}
    append(1)
    assert refused(api.post(f"/v0/topics/{name}/{word}", json=body), 409, "not_a_queue") == {"topic": name}


def test_which_refusal_comes_first(api: httpx.Client, name: str, append: Append) -> None:
    """A claim looks at the topic first, all others at the request."""
    append(1)
    refused(api.post(f"/v0/topics/{name}/claim", json={"node": ""}), 409, "not_a_queue")
    for word in ("ack", "nack", "extend"):
        body = {"node": "", "seqs": [1], "lease_ms": 1000}
        refused(api.post(f"/v0/topics/{name}/{word}", json=body), 400, "invalid_request")
        many = {"node": "w", "seqs": [1] * 1_001, "lease_ids": [], "lease_ms": 1000}
        detail = refused(api.post(f"/v0/topics/{name}/{word}", json=many), 400, "batch_too_large")
        assert detail == {"seqs": 1_001, "max": 1_000}


# Acknowledging


def test_an_ack_deletes(api: httpx.Client, name: str, queue: Callable[..., str], append: Append, post: Post) -> None:
    queue()
    append(1, 2, 3)
    post("claim", node="w", max=2)
    assert post("ack", node="w", seqs=[1, 2]) == {
        "topic": name, "acked": 2, "skipped": [], "ready": 1, "in_flight": 0,
    }  # fmt: skip
    left = api.post(f"/v0/topics/{name}/diff", json={}).json()["records"]
    assert [record["$seq"] for record in left] == [3]
    assert counters(api, name) == {"ready": 1, "in_flight": 0, "delayed": 0, "dead_lettered": 0}


def test_an_ack_of_what_is_not_held_is_skipped(queue: Callable[..., str], append: Append, post: Post) -> None:
    queue()
    append(*range(5))
    post("claim", node="a", max=2)
    post("claim", node="b", max=1)
    # Of another node, never claimed, unknown, twice in one request, and done already.
    answer = post("ack", node="a", seqs=[3, 1, 4, 99, 1, 0, U64_MAX])
    assert (answer["acked"], answer["skipped"]) == (1, [3, 4, 99, 1, 0, U64_MAX])
    assert (answer["ready"], answer["in_flight"]) == (2, 2)
    assert post("ack", node="a", seqs=[1])["skipped"] == [1]


def test_nothing_to_acknowledge_is_nothing_done(queue: Callable[..., str], append: Append, post: Post) -> None:
    queue()
    append(1)
    assert post("ack", node="w", seqs=[])["acked"] == 0
    assert post("nack", node="w", seqs=[])["nacked"] == 0
    assert post("extend", node="w", seqs=[], lease_ms=1000)["extended"] == 0


def test_an_ack_of_a_durable_queue_is_synced(
    api: httpx.Client, name: str, queue: Callable[..., str], append: Append
) -> None:
    queue(durable=True)
    append(1)
    api.post(f"/v0/topics/{name}/claim", json={"node": "w"})
    answer = api.post(f"/v0/topics/{name}/ack", json={"node": "w", "seqs": [1]}).json()
    assert answer["performance"]["fsync_ms"] > 0
    again = api.post(f"/v0/topics/{name}/ack", json={"node": "w", "seqs": [1]}).json()
    assert again["performance"]["fsync_ms"] == 0


@pytest.mark.parametrize(
    "body",
    [
        {"node": "w"},
        {"seqs": [1]},
        {"node": "w", "seqs": None},
        {"node": "w", "seqs": 1},
        {"node": "w", "seqs": ["1"]},
        {"node": "w", "seqs": [-1]},
        {"node": "w", "seqs": [2**64]},
        {"node": "w", "seqs": [1.5]},
        {"node": "w", "seqs": [1], "lease_ids": []},
        {"node": "w", "seqs": [1], "lease_ids": ["lease_1", "lease_2"]},
        {"node": "w", "seqs": [1], "lease_ids": ["1"]},
        {"node": "w", "seqs": [1], "lease_ids": ["lease_"]},
        {"node": "w", "seqs": [1], "lease_ids": ["lease_xyz"]},
        {"node": "w", "seqs": [1], "lease_ids": [5]},
        {"node": "w", "seqs": [1], "lease_ids": "lease_1"},
        {"node": "", "seqs": [1]},
        {"node": "x" * 129, "seqs": [1]},
    ],
    ids=str,
)
@pytest.mark.parametrize("word", ["ack", "nack", "extend"])
def test_a_wrong_word_of_jobs_is_refused_and_changes_nothing(
    api: httpx.Client, name: str, queue: Callable[..., str], append: Append, post: Post, word: str, body: Any
) -> None:
    queue()
    append(1)
    post("claim", node="w")
    asked = {"lease_ms": 1000, **body} if word == "extend" else body
    refused(api.post(f"/v0/topics/{name}/{word}", json=asked), 400, "invalid_request")
    assert counters(api, name)["in_flight"] == 1


# Fencing


@pytest.mark.parametrize("word", ["ack", "nack", "extend"])
def test_a_stale_lease_id_is_skipped(queue: Callable[..., str], append: Append, post: Post, word: str) -> None:
    """The same node holds the job again: only the lease id distinguishes its two deliveries."""
    queue()
    append(1, 2)
    fields = {"lease_ms": 1000} if word == "extend" else {}
    old = {job["$seq"]: job["lease_id"] for job in post("claim", node="w", max=2)["claimed"]}
    post("nack", node="w", seqs=[1])
    [new] = post("claim", node="w")["claimed"]
    stale = post(word, node="w", seqs=[1, 2], lease_ids=[old[1], old[2]], **fields)
    assert (stale[f"{word}ed"], stale["skipped"]) == (1, [1])
    assert post(word, node="w", seqs=[1], lease_ids=[new["lease_id"]], **fields)["skipped"] == []


def test_an_empty_lease_id_fences_nothing(queue: Callable[..., str], append: Append, post: Post) -> None:
    queue()
    append(1, 2)
    post("claim", node="w", max=2)
    answer = post("ack", node="w", seqs=[1, 2], lease_ids=["", "lease_1"])
    assert (answer["acked"], answer["skipped"]) == (1, [2])


def test_no_lease_ids_is_the_same_as_none(queue: Callable[..., str], append: Append, post: Post) -> None:
    queue()
    append(1)
    post("claim", node="w")
    assert post("ack", node="w", seqs=[1], lease_ids=None)["acked"] == 1


# Giving back


def test_a_nack_frees_at_once(name: str, queue: Callable[..., str], append: Append, post: Post) -> None:
    queue()
    append(1, 2)
    post("claim", node="w", max=1)
    assert post("nack", node="w", seqs=[1, 2]) == {
        "topic": name, "nacked": 1, "skipped": [2], "ready": 2, "in_flight": 0,
    }  # fmt: skip
    [job] = post("claim", node="other")["claimed"]
    assert (job["$seq"], job["deliveries"]) == (1, 2)


def test_a_delayed_nack_holds_back(
    api: httpx.Client, name: str, queue: Callable[..., str], append: Append, post: Post
) -> None:
    queue()
    append(1)
    post("claim", node="w")
    answer = post("nack", node="w", seqs=[1], delay_ms=60_000)
    assert (answer["ready"], answer["in_flight"]) == (0, 0)
    assert post("claim", node="w")["count"] == 0
    assert counters(api, name) == {"ready": 0, "in_flight": 0, "delayed": 1, "dead_lettered": 0}


def test_a_delay_ends(queue: Callable[..., str], append: Append, post: Post) -> None:
    queue()
    append(1)
    post("claim", node="w")
    post("nack", node="w", seqs=[1], delay_ms=100)
    time.sleep(0.15)
    assert seqs_of(post("claim", node="w")) == [1]


def test_a_delay_of_more_than_a_day_is_a_day(
    api: httpx.Client, name: str, queue: Callable[..., str], append: Append, post: Post
) -> None:
    queue()
    append(1)
    post("claim", node="w")
    assert post("nack", node="w", seqs=[1], delay_ms=U64_MAX)["nacked"] == 1
    assert counters(api, name)["delayed"] == 1


@pytest.mark.parametrize("delay_ms", [-1, "1", 1.5, None], ids=str)
def test_a_wrong_delay_is_refused(
    api: httpx.Client, name: str, queue: Callable[..., str], append: Append, post: Post, delay_ms: object
) -> None:
    queue()
    append(1)
    post("claim", node="w")
    body = {"node": "w", "seqs": [1], "delay_ms": delay_ms}
    refused(api.post(f"/v0/topics/{name}/nack", json=body), 400, "invalid_request")
    assert counters(api, name)["in_flight"] == 1


# Holding on


def test_an_extension_sets_the_deadline(queue: Callable[..., str], append: Append, post: Post, name: str) -> None:
    queue()
    append(1, 2)
    post("claim", node="w", max=1, lease_ms=DAY_MS)
    before = now_ms()
    answer = post("extend", node="w", seqs=[1, 2], lease_ms=1_000)
    deadline = answer.pop("deadlines")["1"]
    assert answer == {"topic": name, "extended": 1, "skipped": [2]}
    assert before + 1_000 - APART_MS <= deadline <= now_ms() + 1_000 + APART_MS


@pytest.mark.parametrize(("asked", "granted"), [(0, 100), (U64_MAX, DAY_MS)])
def test_an_extension_is_bent_into_its_range(
    queue: Callable[..., str], append: Append, post: Post, asked: int, granted: int
) -> None:
    queue()
    append(1)
    post("claim", node="w")
    before = now_ms()
    deadline = post("extend", node="w", seqs=[1], lease_ms=asked)["deadlines"]["1"]
    assert before + granted - APART_MS <= deadline <= now_ms() + granted + APART_MS


def test_an_expired_lease_cannot_be_extended(queue: Callable[..., str], append: Append, post: Post) -> None:
    queue()
    append(1)
    post("claim", node="w", lease_ms=100)
    time.sleep(0.15)
    answer = post("extend", node="w", seqs=[1], lease_ms=1_000)
    assert (answer["extended"], answer["skipped"], answer["deadlines"]) == (0, [1], {})


def test_an_extension_does_not_count_as_a_delivery(queue: Callable[..., str], append: Append, post: Post) -> None:
    queue()
    append(1)
    post("claim", node="w")
    post("extend", node="w", seqs=[1], lease_ms=1_000)
    post("nack", node="w", seqs=[1])
    assert post("claim", node="w")["claimed"][0]["deliveries"] == 2


@pytest.mark.parametrize("lease_ms", [-1, "1", 1.5, None], ids=str)
def test_a_wrong_extension_is_refused(
    api: httpx.Client, name: str, queue: Callable[..., str], lease_ms: object
) -> None:
    queue()
    body = {"node": "w", "seqs": [1], "lease_ms": lease_ms}
    refused(api.post(f"/v0/topics/{name}/extend", json=body), 400, "invalid_request")
    refused(api.post(f"/v0/topics/{name}/extend", json={"node": "w", "seqs": [1]}), 400, "invalid_request")


# A queue is a topic


def test_a_queue_can_be_read_and_reading_leases_nothing(
    api: httpx.Client, name: str, queue: Callable[..., str], append: Append, post: Post
) -> None:
    queue()
    append("a", "b")
    post("claim", node="w")
    read = api.post(f"/v0/topics/{name}/diff", json={}).json()["records"]
    assert [record["data"] for record in read] == ["a", "b"]
    state = api.get(f"/v0/topics/{name}").json()
    assert state["type"] == "queue"
    assert state["queue"] == {"ready": 1, "in_flight": 1, "delayed": 0, "dead_lettered": 0}


def test_a_plain_log_has_no_counters(api: httpx.Client, name: str, append: Append) -> None:
    append(1)
    assert "queue" not in api.get(f"/v0/topics/{name}").json()


def test_leases_that_are_durable_work_the_same(queue: Callable[..., str], append: Append, post: Post) -> None:
    queue(leases_durable=True, durable=True)
    append(1, 2)
    [first, second] = post("claim", node="w", max=2)["claimed"]
    assert post("extend", node="w", seqs=[1], lease_ms=5_000)["extended"] == 1
    assert post("nack", node="w", seqs=[2], lease_ids=[second["lease_id"]])["nacked"] == 1
    assert post("ack", node="w", seqs=[1], lease_ids=[first["lease_id"]])["acked"] == 1
    assert post("claim", node="w")["claimed"][0]["deliveries"] == 2
