"""The state of a worker: its messages about ended jobs, and the delays of failed ones."""

from typing import Any

import msgspec
import pytest

from topics.testing import SeededEntropy
from topics_client import Acked, Claimed, ConnectionFailed, FailJob, Job, JobRetry, Nacked, RetryJob
from topics_client.requests import Request
from topics_client.worker_state import WorkerPlan, WorkerState, worker


def plan(**options: Any) -> WorkerPlan:
    return worker("jobs", lambda job: None, **{"node": "w", "concurrency": 4, **options})


def job(seq: int, deliveries: int = 1, lease: str = "") -> Job:
    return Job(
        seq=seq, ts=1, payload=msgspec.Raw(b"1"), lease_id=lease or f"lease_{seq}", deadline=2, deliveries=deliveries
    )


def claimed(*jobs: Job) -> Claimed:
    return Claimed(topic="jobs", claimed=list(jobs), count=len(jobs), ready=0)


def acked(*skipped: int) -> Acked:
    return Acked(topic="jobs", acked=1, skipped=list(skipped), ready=0, in_flight=0)


def body(request: Request[Any]) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(request.body or b"")
    return decoded


@pytest.fixture
def state() -> WorkerState:
    return WorkerState(plan(), SeededEntropy(1))


def test_a_claim_asks_for_what_fits_in(state: WorkerState) -> None:
    assert body(state.claim()) == {"node": "w", "max": 4, "lease_ms": 30_000}
    assert [one.seq for one in state.take(claimed(job(1), job(2)))] == [1, 2]
    assert state.free == 2
    assert body(state.claim())["max"] == 2


def test_what_ended_well_is_acknowledged_in_one_request(state: WorkerState) -> None:
    one, two = state.take(claimed(job(1), job(2)))
    state.succeeded(two)
    state.succeeded(one)
    [(request, jobs)] = state.settlement()
    assert request.target == "/v0/topics/jobs/ack"
    assert body(request) == {"node": "w", "seqs": [2, 1], "lease_ids": ["lease_2", "lease_1"]}
    # Its place is free when the server has confirmed, not before.
    assert state.free == 2
    state.settled(jobs, acked())
    assert state.free == 4
    assert state.settlement() == []


def test_what_failed_is_given_back_by_its_delay(state: WorkerState) -> None:
    one, two, three = state.take(claimed(job(1), job(2), job(3)))
    state.failed(one, RetryJob(2.5))
    state.failed(two, RetryJob())
    state.failed(three, RetryJob(-1.0))
    bodies = [body(request) for request, _ in state.settlement()]
    assert bodies == [
        {"node": "w", "seqs": [1], "delay_ms": 2500, "lease_ids": ["lease_1"]},
        {"node": "w", "seqs": [2, 3], "lease_ids": ["lease_2", "lease_3"]},
    ]


def failed_with(error: BaseException) -> dict[str, Any]:
    state = WorkerState(plan(), SeededEntropy(1))
    [one] = state.take(claimed(job(1)))
    state.failed(one, error)
    [(request, _)] = state.settlement()
    return body(request)


def test_a_failure_is_reported_with_the_type_and_message_of_the_exception() -> None:
    assert failed_with(ValueError("no such file"))["reason"] == "ValueError: no such file"
    assert failed_with(KeyError())["reason"] == "KeyError"


def test_a_reason_is_cut_to_what_the_server_takes() -> None:
    reason = failed_with(ValueError("é" * 1000))["reason"]
    assert len(reason.encode()) == 1024 and reason.startswith("ValueError: éé")
    assert failed_with(ValueError("\ud800"))["reason"] == "ValueError: ?"


def test_an_exception_whose_text_fails_is_reported_by_its_type() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert failed_with(Broken())["reason"] == "Broken"


def test_a_job_that_must_not_be_tried_again_is_fatal() -> None:
    given = failed_with(FailJob("no such customer"))
    assert (given["fatal"], given["reason"], given.get("delay_ms")) == (True, "FailJob: no such customer", None)


def test_the_cause_of_a_wish_is_the_reason() -> None:
    wish = RetryJob(1.0)
    wish.__cause__ = TimeoutError("no answer")
    assert failed_with(wish)["reason"] == "TimeoutError: no answer"
    assert "reason" not in failed_with(RetryJob(1.0))


def test_a_failure_waits_longer_every_time() -> None:
    retry = JobRetry(backoff_min_s=1.0, backoff_max_s=10.0)
    assert [retry.delay_ms(deliveries, 0.0) for deliveries in (1, 2, 3, 4, 5, 1_000)] == [
        1_000, 2_000, 4_000, 8_000, 10_000, 10_000,
    ]  # fmt: skip
    assert retry.delay_ms(1, 1.0) == 500


def test_the_wait_depends_on_the_deliveries_and_on_luck(state: WorkerState) -> None:
    [one] = state.take(claimed(job(1, deliveries=3)))
    state.failed(one, ValueError())
    [(request, _)] = state.settlement()
    assert 2_000 <= body(request)["delay_ms"] <= 4_000


def test_everything_that_is_held_is_extended(state: WorkerState) -> None:
    assert state.extension() is None
    one, _ = state.take(claimed(job(1), job(2)))
    request = state.extension()
    assert request is not None
    assert body(request) == {"node": "w", "seqs": [1, 2], "lease_ms": 30_000, "lease_ids": ["lease_1", "lease_2"]}
    state.succeeded(one)
    [(_, jobs)] = state.settlement()
    state.settled(jobs, acked())
    request = state.extension()
    assert request is not None
    assert body(request)["seqs"] == [2]


def test_a_job_that_comes_back_while_it_is_handled_is_not_begun_twice(state: WorkerState) -> None:
    """Its lease ran out and the same worker claimed it again: the run goes on, under the new lease."""
    [first] = state.take(claimed(job(1)))
    assert state.take(claimed(job(1, 2, "lease_new"))) == []
    assert state.free == 3
    state.succeeded(first)
    [(request, _)] = state.settlement()
    assert body(request)["lease_ids"] == ["lease_new"]


def test_what_cannot_be_reported_is_left_to_its_lease(state: WorkerState, caplog: pytest.LogCaptureFixture) -> None:
    [one] = state.take(claimed(job(1)))
    state.succeeded(one)
    [(_, jobs)] = state.settlement()
    state.settled(jobs, ConnectionFailed("gone", maybe_done=True))
    assert state.free == 4
    assert "reporting the end of jobs" in caplog.text


def test_a_job_that_ended_too_late_is_reported_to_the_log(state: WorkerState, caplog: pytest.LogCaptureFixture) -> None:
    [one] = state.take(claimed(job(1)))
    state.settled([one], Nacked(topic="jobs", nacked=0, skipped=[1], ready=0, in_flight=0))
    assert "after their leases" in caplog.text


def test_two_workers_have_two_names() -> None:
    entropy = SeededEntropy(1)
    nameless = plan(node=None)
    assert WorkerState(nameless, entropy).node != WorkerState(nameless, entropy).node


def test_a_worker_needs_a_hand() -> None:
    with pytest.raises(ValueError, match="at least one"):
        plan(concurrency=0)


def test_leases_are_extended_early_enough_to_fail_twice() -> None:
    assert plan(lease_ms=30_000).extend_every_s == 10.0


@pytest.mark.parametrize("delay_s", [float("inf"), float("-inf"), float("nan")])
def test_a_delay_that_is_none_fails_in_the_handler(delay_s: float) -> None:
    with pytest.raises(ValueError, match="cannot be tried again"):
        RetryJob(delay_s)


def test_a_job_is_held_back_for_a_finite_time(state: WorkerState) -> None:
    forever = float("inf")
    assert JobRetry(backoff_min_s=forever, backoff_max_s=forever).delay_ms(1, 0.0) == 86_400_000
