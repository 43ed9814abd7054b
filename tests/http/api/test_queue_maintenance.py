"""Maintenance of queues: delayed jobs, dead letters and their redrive, and the holders of leases."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.api.conftest import refused
from tests.http.live import LiveServer

# Only to fail instead of hanging.
PATIENCE_S = 30.0


class Jobs:
    """A queue of this test's own, driven over HTTP."""

    def __init__(self, api: httpx.Client, name: str, **config: object) -> None:
        self.api = api
        self.name = name
        assert api.put(f"/v0/topics/{name}", json={"type": "queue", **config}).is_success

    def append(self, *values: object, **fields: object) -> None:
        records = [value if isinstance(value, dict) else {"data": value} for value in values]
        answer = self.api.post(f"/v0/topics/{self.name}", json={"records": records, **fields})
        assert answer.is_success, answer.text

    def post(self, word: str, **fields: object) -> dict[str, Any]:
        answer = self.api.post(f"/v0/topics/{self.name}/{word}", json=fields)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        del body["performance"]
        return body

    def claim(self, most: int = 1000, node: str = "w") -> list[dict[str, Any]]:
        claimed: list[dict[str, Any]] = self.post("claim", node=node, max=most)["claimed"]
        return claimed

    def fail(self, times: int) -> None:
        """Claims everything and gives it back."""
        for _ in range(times):
            self.post("nack", node="w", seqs=[job["$seq"] for job in self.claim()])

    def bury(self, times: int, letters: int) -> None:
        """Fails everything until it is given up, and waits for the move, for which no client waits."""
        self.fail(times)
        assert self.claim() == []
        give_up = time.monotonic() + PATIENCE_S
        while self.counters["dead_lettered"] < letters:
            assert time.monotonic() < give_up, "the letters were never moved"
            time.sleep(0.01)

    def read(self, topic: str | None = None) -> list[dict[str, Any]]:
        body = {"include_tags": True}
        answer = self.api.post(f"/v0/topics/{topic or self.name}/diff", json=body)
        records: list[dict[str, Any]] = answer.json().get("records", [])
        return records

    @property
    def counters(self) -> dict[str, int]:
        found: dict[str, int] = self.api.get(f"/v0/topics/{self.name}").json()["queue"]
        return found


@pytest.fixture
def jobs(api: httpx.Client, name: str) -> Callable[..., Jobs]:
    return lambda suffix="", **config: Jobs(api, name + suffix, **config)


# Jobs for later


def test_a_delayed_job_is_held_back(jobs: Callable[..., Jobs]) -> None:
    queue = jobs()
    queue.append("later", "later", delay_ms=60_000)
    queue.append("now")
    assert [job["data"] for job in queue.claim()] == ["now"]
    assert queue.counters == {"ready": 0, "in_flight": 1, "delayed": 2, "dead_lettered": 0}
    assert [record["data"] for record in queue.read()] == ["later", "later", "now"]


def test_a_delayed_job_comes(jobs: Callable[..., Jobs]) -> None:
    queue = jobs()
    queue.append("soon", delay_ms=100)
    time.sleep(0.15)
    [job] = queue.claim()
    assert (job["data"], job["deliveries"]) == ("soon", 1)


def test_no_delay_is_no_delay_and_more_than_a_day_is_a_day(jobs: Callable[..., Jobs]) -> None:
    queue = jobs()
    queue.append("now", delay_ms=0)
    queue.append("tomorrow", delay_ms=2**63)
    assert [job["data"] for job in queue.claim()] == ["now"]


def test_only_queues_delay(api: httpx.Client, name: str) -> None:
    api.put(f"/v0/topics/{name}", json={})
    delayed = {"records": [{"data": 1}], "delay_ms": 1}
    assert refused(api.post(f"/v0/topics/{name}", json=delayed), 409, "not_a_queue") == {"topic": name}
    assert api.post(f"/v0/topics/{name}", json={**delayed, "delay_ms": 0}).is_success
    # A topic that the append itself would create is a plain log, unless the request has another type.
    refused(api.post(f"/v0/topics/{name}-new", json=delayed), 409, "not_a_queue")
    refused(api.get(f"/v0/topics/{name}-new"), 404, "topic_not_found")
    assert api.post(f"/v0/topics/{name}-new", json={**delayed, "config": {"type": "queue"}}).status_code == 201


@pytest.mark.parametrize("delay_ms", [-1, "1", 1.5, None], ids=str)
def test_a_job_with_a_wrong_delay_is_refused(jobs: Callable[..., Jobs], delay_ms: object) -> None:
    queue = jobs()
    body = {"records": [{"data": 1}], "delay_ms": delay_ms}
    refused(queue.api.post(f"/v0/topics/{queue.name}", json=body), 400, "invalid_request")
    assert queue.read() == []


def test_run_at_delays_a_job_until_a_time(jobs: Callable[..., Jobs]) -> None:
    queue = jobs()
    now = time.time_ns() // 1_000_000
    queue.append("later", run_at=now + 86_400_000 * 30)
    queue.append("soon", run_at=now + 100)
    queue.append("late", run_at=now - 1)
    assert [job["data"] for job in queue.claim()] == ["late"]
    time.sleep(0.15)
    assert [job["data"] for job in queue.claim()] == ["soon"]


def test_jobs_are_claimed_by_priority(jobs: Callable[..., Jobs]) -> None:
    queue = jobs()
    queue.append("usual")
    queue.append("idle", priority=-1)
    queue.append("urgent", "urgent too", priority=1000)
    listed = queue.api.get(f"/v0/topics/{queue.name}/jobs").json()["jobs"]
    assert [job.get("priority", 0) for job in listed] == [0, -1, 1000, 1000]
    assert [job["data"] for job in queue.claim(3)] == ["urgent", "urgent too", "usual"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("priority", 1001), ("priority", -1001), ("priority", 1.5), ("run_at", -1), ("run_at", 2**60), ("run_at", "now")],
)
def test_a_job_with_a_wrong_order_is_refused(jobs: Callable[..., Jobs], field: str, value: object) -> None:
    queue = jobs()
    body = {"records": [{"data": 1}], field: value}
    answer = queue.api.post(f"/v0/topics/{queue.name}", json=body)
    assert refused(answer, 400, "invalid_request")["field"] == field
    assert queue.read() == []


def test_only_queues_have_priorities(api: httpx.Client, name: str) -> None:
    api.put(f"/v0/topics/{name}", json={})
    for fields in ({"priority": 1}, {"run_at": 1}):
        refused(api.post(f"/v0/topics/{name}", json={"records": [{"data": 1}], **fields}), 409, "not_a_queue")


def test_limits_of_a_queue(jobs: Callable[..., Jobs]) -> None:
    queue = jobs(max_leased=2)
    queue.append(1, 2, 3)
    assert [job["data"] for job in queue.claim()] == [1, 2]
    assert queue.claim(node="other") == []
    assert queue.counters["ready"] == 1
    queue.post("ack", node="w", seqs=[1])
    assert [job["data"] for job in queue.claim()] == [3]


def test_rate_of_a_queue(jobs: Callable[..., Jobs]) -> None:
    queue = jobs(max_per_second=2)
    queue.append(1, 2, 3)
    moments: list[float] = []
    deadline = time.monotonic() + 30
    while len(moments) < 3 and time.monotonic() < deadline:
        began = time.monotonic()
        moments += [began] * len(queue.claim())
    assert len(moments) == 3 and moments[2] - moments[0] > 0.9


# Dead letters


def test_a_job_that_fails_too_often_is_a_dead_letter(jobs: Callable[..., Jobs], name: str) -> None:
    queue = jobs(max_deliveries=2, dead_letter=f"{name}-dead")
    queue.append({"data": {"n": 1}, "tag": "t", "node": "p", "meta": {"k": "v"}}, {"data": 2})
    queue.bury(2, letters=2)
    letters = queue.read(f"{name}-dead")
    assert [record["data"] for record in letters] == [{"n": 1}, 2]
    assert (letters[0]["$tag"], letters[0]["$node"]) == ("t", "p")
    assert letters[0]["meta"] == {
        "k": "v",
        "$dead_letter_from": queue.name,
        "$dead_letter_deliveries": "2",
        "$dead_letter_src_seq": "1",
    }
    assert queue.read() == []
    assert queue.counters == {"ready": 0, "in_flight": 0, "delayed": 0, "dead_lettered": 2}


@pytest.mark.parametrize("config", [{"max_deliveries": 0, "dead_letter": "somewhere"}, {"max_deliveries": 2}], ids=str)
def test_without_a_bound_and_a_place_jobs_come_back_for_ever(
    jobs: Callable[..., Jobs], config: dict[str, object]
) -> None:
    queue = jobs(**config)
    queue.append(1)
    queue.fail(5)
    assert queue.claim()[0]["deliveries"] == 6


def test_letters_come_back_with_the_meta_they_had(jobs: Callable[..., Jobs], name: str) -> None:
    queue = jobs(max_deliveries=1, dead_letter=f"{name}-dead")
    queue.append({"data": 1, "tag": "t", "node": "p", "meta": {"k": "v"}}, {"data": 2}, {"data": 3})
    queue.bury(1, letters=3)
    assert queue.post("redrive", max=2) == {
        "topic": queue.name, "source": f"{name}-dead", "moved": 2, "first_seq": 4, "last_seq": 5, "more": True,
    }  # fmt: skip
    [first, second] = queue.claim()
    assert (first["$seq"], first["data"], first["$tag"], first["$node"], first["meta"]) == (4, 1, "t", "p", {"k": "v"})
    assert "meta" not in second
    assert (first["deliveries"], second["deliveries"]) == (1, 1)
    assert [record["data"] for record in queue.read(f"{name}-dead")] == [3]
    last = queue.post("redrive")
    assert (last["moved"], last["first_seq"], last["more"]) == (1, 6, False)
    nothing = queue.post("redrive", max=5)
    assert (nothing["moved"], nothing["first_seq"], nothing["last_seq"], nothing["more"]) == (0, 0, 0, False)


def test_only_its_own_letters_come_back(jobs: Callable[..., Jobs], name: str) -> None:
    """One topic of dead letters for two queues, with a stranger's record in it."""
    dead = f"{name}-dead"
    one = jobs("-one", max_deliveries=1, dead_letter=dead)
    two = jobs("-two", max_deliveries=1, dead_letter=dead)
    for queue in (one, two):
        queue.append(queue.name)
        queue.bury(1, letters=1)
    one.api.post(f"/v0/topics/{dead}", json={"records": [{"data": "stranger"}]})
    assert one.post("redrive")["moved"] == 1
    assert [job["data"] for job in one.claim()] == [one.name]
    assert [record["data"] for record in one.read(dead)] == [two.name, "stranger"]


def test_letters_may_be_taken_from_any_topic(jobs: Callable[..., Jobs], name: str) -> None:
    queue = jobs(max_deliveries=1, dead_letter=f"{name}-dead")
    queue.append(1)
    queue.bury(1, letters=1)
    queue.api.put(f"/v0/topics/{queue.name}", json={"type": "queue"})
    answer = queue.api.post(f"/v0/topics/{queue.name}/redrive", json={})
    assert refused(answer, 400, "invalid_request") == {"field": "source"}
    assert queue.post("redrive", source=f"{name}-dead")["moved"] == 1


def test_redriving_what_is_not_there(jobs: Callable[..., Jobs], name: str) -> None:
    queue = jobs(dead_letter=f"{name}-dead", max_deliveries=1)
    path = f"/v0/topics/{queue.name}/redrive"
    # Nothing was buried yet, so the topic does not exist.
    assert refused(queue.api.post(path), 404, "topic_not_found") == {"topic": f"{name}-dead"}
    wrongs: list[object] = [{"max": -1}, {"max": "1"}, {"source": 5}, {"source": queue.name}, [1]]
    for wrong in wrongs:
        refused(queue.api.post(path, json=wrong), 400, "invalid_request")


# Holders of leases


def test_leases_are_listed_without_their_secret(jobs: Callable[..., Jobs]) -> None:
    queue = jobs()
    queue.append(1, 2, 3)
    [first] = queue.claim(1, "a")
    [second] = queue.claim(1, "b")
    answer = queue.api.get(f"/v0/topics/{queue.name}/leases").json()
    assert answer["topic"] == queue.name
    assert answer["leases"] == [
        {"$seq": 1, "node": "a", "deadline": first["deadline"], "deliveries": 1},
        {"$seq": 2, "node": "b", "deadline": second["deadline"], "deliveries": 1},
    ]
    assert "next_after" not in answer
    of_b = queue.api.get(f"/v0/topics/{queue.name}/leases", params={"node": "b"}).json()
    assert [lease["$seq"] for lease in of_b["leases"]] == [2]


def test_leases_are_listed_in_pages(jobs: Callable[..., Jobs]) -> None:
    queue = jobs()
    queue.append(*range(7))
    queue.claim()
    path, found, after = f"/v0/topics/{queue.name}/leases", [], 0
    while after is not None:
        page = queue.api.get(path, params={"page_size": 3, "after": after}).json()
        assert len(page["leases"]) <= 3
        found += [lease["$seq"] for lease in page["leases"]]
        after = page.get("next_after")
    assert found == list(range(1, 8))
    assert len(queue.api.get(path, params={"page_size": 0}).json()["leases"]) == 1
    assert len(queue.api.get(path, params={"page_size": 10**30}).json()["leases"]) == 7


def test_a_wrong_page_is_refused(jobs: Callable[..., Jobs]) -> None:
    queue = jobs()
    for query in ("after=x", "after=-1", f"after={2**64}", "page_size=x", "page_size=-1"):
        refused(queue.api.get(f"/v0/topics/{queue.name}/leases?{query}"), 400, "invalid_request")


def test_only_queues_have_leases(api: httpx.Client, name: str) -> None:
    refused(api.get(f"/v0/topics/{name}/leases"), 404, "topic_not_found")
    api.put(f"/v0/topics/{name}", json={})
    refused(api.get(f"/v0/topics/{name}/leases"), 409, "not_a_queue")


def test_metrics_count_leases(jobs: Callable[..., Jobs]) -> None:
    queue = jobs()
    queue.append(1, 2)
    queue.append(3, delay_ms=60_000)
    queue.claim(1)
    found = queue.api.get("/v0/metrics", headers={"accept": "application/json"}).json()
    assert found["topics_queue_leases_in_flight"] >= 1
    assert found["topics_queue_topics"] >= 1
    for word, value in (("ready", 1), ("in_flight", 1), ("delayed", 1), ("dead_lettered", 0)):
        series = found[f"topics_topic_queue_{word}"]
        [sample] = [sample for sample in series if sample["labels"] == {"topic": queue.name}]
        assert sample["value"] == value


# Keys and limits


_KEYS = {
    "all": "all",
    "reader": "reader:read",
    "writer": "writer:write",
    "worker": "worker:read+write",
    "mine": "mine::mine-",
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder: Path = tmp_path_factory.mktemp("guarded")
    with LiveServer(folder, api_keys=",".join(_KEYS.values()), max_claim="3") as live:
        yield live


def client(live: LiveServer, key: str) -> httpx.Client:
    return httpx.Client(base_url=live.url, timeout=30.0, headers={"authorization": f"Bearer {key}"})


@pytest.mark.parametrize(
    ("method", "word", "body", "scopes"),
    [
        ("POST", "claim", {"node": "w"}, "read+write"),
        ("POST", "ack", {"node": "w", "seqs": []}, "write"),
        ("POST", "nack", {"node": "w", "seqs": []}, "write"),
        ("POST", "extend", {"node": "w", "seqs": [], "lease_ms": 1}, "write"),
        ("POST", "redrive", {"source": "guarded-dead"}, "read+write+delete"),
        ("GET", "jobs", None, "read"),
        ("POST", "jobs/1/retry", {}, "read+write+delete"),
        ("POST", "jobs/1/cancel", {}, "delete"),
        ("POST", "jobs/1/promote", {}, "write"),
        ("POST", "jobs/1/release", {}, "write"),
        ("PUT", "queue", {"paused": False}, "admin"),
        ("GET", "leases", None, "read"),
    ],
)
def test_the_scopes_of_each_call(guarded: LiveServer, method: str, word: str, body: object, scopes: str) -> None:
    rights = {
        "all": {"read", "write", "delete", "admin"},
        "reader": {"read"},
        "writer": {"write"},
        "worker": {"read", "write"},
    }
    with client(guarded, "all") as api:
        assert api.put("/v0/topics/guarded", json={"type": "queue"}).is_success
        assert api.put("/v0/topics/guarded-dead", json={}).is_success
    for key, words in rights.items():
        with client(guarded, key) as api:
            answer = api.request(method, f"/v0/topics/guarded/{word}", json=body)
            missing = set(scopes.split("+")) - words
            if missing:
                detail = refused(answer, 403, "forbidden")
                assert set(detail["scope"].split("+")) == missing
            else:
                # The key may ask for a job; there is none.
                assert answer.status_code == (404 if "/" in word else 200), answer.text
    refused(httpx.request(method, f"{guarded.url}/v0/topics/guarded/{word}", json=body), 401, "unauthorized")


def test_a_key_stays_within_its_names(guarded: LiveServer) -> None:
    queue = {"type": "queue", "dead_letter": "theirs-dead", "max_deliveries": 1}
    with client(guarded, "all") as api:
        assert api.put("/v0/topics/mine-jobs", json=queue).is_success
    with client(guarded, "mine") as api:
        refused(api.post("/v0/topics/theirs/claim", json={"node": "w"}), 403, "forbidden")
        refused(api.put("/v0/topics/mine-others", json=queue), 403, "forbidden")
        # Named in the request or in the config: the source of a move must be within the key's names.
        refused(api.post("/v0/topics/mine-jobs/redrive", json={"source": "theirs"}), 403, "forbidden")
        refused(api.post("/v0/topics/mine-jobs/redrive"), 403, "forbidden")
        refused(api.post("/v0/topics/mine-jobs/redrive", json={"source": "mine-dead"}), 404, "topic_not_found")


def test_the_most_of_a_claim_is_a_setting(guarded: LiveServer) -> None:
    with client(guarded, "all") as api:
        api.put("/v0/topics/few", json={"type": "queue"})
        api.post("/v0/topics/few", json={"records": [{"data": n} for n in range(5)]})
        assert api.post("/v0/topics/few/claim", json={"node": "w", "max": 5}).json()["count"] == 3
        answer = api.post("/v0/topics/few/ack", json={"node": "w", "seqs": [1, 2, 3, 4]})
        assert refused(answer, 400, "batch_too_large") == {"seqs": 4, "max": 3}


# Failures


def test_a_dead_letter_tells_why_it_failed(jobs: Callable[..., Jobs], name: str) -> None:
    queue = jobs(max_deliveries=1, dead_letter=f"{name}-dead")
    queue.append("a")
    [job] = queue.claim()
    answer = queue.post("nack", node="w", seqs=[job["$seq"]], reason="ValueError: no such file")
    assert (answer["nacked"], answer.get("dead_lettered")) == (1, None)
    assert queue.claim() == []
    [letter] = queue.read(f"{name}-dead")
    assert letter["meta"]["$dead_letter_reason"] == "ValueError: no such file"
    first_ms = letter["meta"]["$dead_letter_first_failure_ms"]
    assert job["$ts"] <= int(first_ms) <= letter["$ts"]
    assert letter["meta"]["$dead_letter_last_failure_ms"] == first_ms
    assert queue.post("redrive")["moved"] == 1
    assert "meta" not in queue.read()[0]


def test_a_fatal_nack_is_answered_after_the_move(jobs: Callable[..., Jobs], name: str) -> None:
    queue = jobs(dead_letter=f"{name}-dead")
    queue.append("a", "b")
    seqs = [job["$seq"] for job in queue.claim()]
    answer = queue.post("nack", node="w", seqs=seqs, reason="hopeless", fatal=True)
    assert answer == {
        "topic": queue.name, "nacked": 2, "skipped": [], "ready": 0, "in_flight": 0, "dead_lettered": 2
    }  # fmt: skip
    assert [letter["data"] for letter in queue.read(f"{name}-dead")] == ["a", "b"]


def test_a_fatal_nack_of_a_queue_without_a_dead_letter_topic_is_refused(jobs: Callable[..., Jobs]) -> None:
    queue = jobs()
    queue.append("a")
    [job] = queue.claim()
    body = {"node": "w", "seqs": [job["$seq"]], "fatal": True}
    detail = refused(queue.api.post(f"/v0/topics/{queue.name}/nack", json=body), 400, "invalid_request")
    assert detail == {"field": "fatal"}
    assert queue.counters["in_flight"] == 1


@pytest.mark.parametrize(
    "fields", [{"reason": "x" * 1025}, {"reason": 5}, {"reason": None}, {"fatal": 1}, {"fatal": "yes"}], ids=str
)
def test_a_wrong_reason_is_refused_and_changes_nothing(jobs: Callable[..., Jobs], fields: dict[str, object]) -> None:
    queue = jobs(dead_letter="nowhere")
    queue.append("a")
    [job] = queue.claim()
    body = {"node": "w", "seqs": [job["$seq"]], **fields}
    refused(queue.api.post(f"/v0/topics/{queue.name}/nack", json=body), 400, "invalid_request")
    assert queue.counters["in_flight"] == 1


# Jobs that people see and touch


def jobs_in(queue: Jobs, state: str, **query: str) -> list[dict[str, Any]]:
    answer = queue.api.get(f"/v0/topics/{queue.name}/jobs", params={"state": state, **query})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["jobs"]
    return found


def test_jobs_are_listed_by_state_tag_and_page(jobs: Callable[..., Jobs], name: str) -> None:
    queue = jobs(dead_letter=f"{name}-dead")
    queue.append(*[{"data": number, "tag": "odd" if number % 2 else "even"} for number in range(5)])
    queue.append("later", delay_ms=60_000)
    [first, second] = queue.claim(2)
    queue.post("nack", node="w", seqs=[second["$seq"]], reason="no", fatal=True)
    assert [job["data"] for job in jobs_in(queue, "ready")] == [2, 3, 4]
    assert [job["data"] for job in jobs_in(queue, "ready", tag="odd")] == [3]
    [leased] = jobs_in(queue, "leased")
    assert (leased["worker"], leased["deadline"], leased["deliveries"]) == ("w", first["deadline"], 1)
    assert "lease_id" not in leased
    [later] = jobs_in(queue, "delayed")
    assert abs(later["ready_at"] - later["$ts"] - 60_000) < 1_000, "two readings of the clock"
    [dead] = jobs_in(queue, "dead")
    assert (dead["data"], dead["failures"][0]["reason"]) == (1, "no")
    answer = queue.api.get(f"/v0/topics/{queue.name}/jobs?limit=2").json()
    assert [job["data"] for job in answer["jobs"]] == [2, 3]
    assert [job["data"] for job in jobs_in(queue, "ready", cursor=answer["next_cursor"])] == [4]


def test_single_jobs_are_changed(jobs: Callable[..., Jobs], name: str) -> None:
    queue = jobs(dead_letter=f"{name}-dead")
    queue.append("a", "b", delay_ms=60_000)
    assert queue.post("jobs/1/promote") == {"topic": queue.name, "seq": 1, "changed": True, "state": "ready"}
    assert queue.post("jobs/1/promote")["changed"] is False
    assert [job["data"] for job in queue.claim()] == ["a"]
    assert queue.post("jobs/1/release")["state"] == "ready"
    assert queue.post("ack", node="w", seqs=[1])["skipped"] == [1]
    queue.claim()
    queue.post("nack", node="w", seqs=[1], fatal=True)
    assert queue.post("jobs/1/retry") == {"topic": queue.name, "seq": 3, "changed": True, "state": "ready"}
    assert queue.post("jobs/3/cancel") == {"topic": queue.name, "seq": 3, "changed": True, "state": None}
    detail = refused(queue.api.post(f"/v0/topics/{queue.name}/jobs/3/cancel", json={}), 404, "job_not_found")
    assert detail == {"topic": queue.name, "seq": 3}


@pytest.mark.parametrize("path", ["jobs?state=gone", "jobs?cursor=x", "jobs?limit=-1"])
def test_a_wrong_list_of_jobs_is_refused(jobs: Callable[..., Jobs], path: str) -> None:
    queue = jobs()
    refused(queue.api.get(f"/v0/topics/{queue.name}/{path}"), 400, "invalid_request")


@pytest.mark.parametrize("seq", ["x", "-1", "1.5", "99999999999999999999999"])
def test_a_wrong_seq_of_a_job_is_refused(jobs: Callable[..., Jobs], seq: str) -> None:
    queue = jobs()
    refused(queue.api.post(f"/v0/topics/{queue.name}/jobs/{seq}/cancel", json={}), 400, "invalid_request")


def test_a_paused_queue_says_so_and_hands_out_nothing(jobs: Callable[..., Jobs]) -> None:
    queue = jobs()
    queue.append("a")
    path = f"/v0/topics/{queue.name}/queue"
    answer = queue.api.put(path, json={"paused": True})
    assert answer.status_code == 200 and answer.json()["paused"] is True
    assert queue.claim() == [] and queue.counters["paused"] is True
    queue.api.put(f"/v0/topics/{queue.name}", json={"type": "queue"})
    assert queue.claim() == []
    queue.api.put(path, json={"paused": False})
    assert [job["data"] for job in queue.claim()] == ["a"] and "paused" not in queue.counters
    refused(queue.api.put(path, json={}), 400, "invalid_request")
    refused(queue.api.put(path, json={"paused": 1}), 400, "invalid_request")
