"""What a worker has in hand: what it sends about jobs that ended, and how long failed ones wait."""

from typing import Any

import msgspec
import pytest

from topics.client import Acked, Claimed, ConnectionFailed, Job, JobRetry, Nacked, RetryJob
from topics.client.hands import Hands, Plan, worker
from topics.client.requests import Request
from topics.testing import SeededDice


def plan(**options: Any) -> Plan:
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
def hands() -> Hands:
    return Hands(plan(), SeededDice(1))


def test_a_claim_asks_for_what_fits_in(hands: Hands) -> None:
    assert body(hands.claim()) == {"node": "w", "max": 4, "lease_ms": 30_000}
    assert [one.seq for one in hands.take(claimed(job(1), job(2)))] == [1, 2]
    assert hands.free == 2
    assert body(hands.claim())["max"] == 2


def test_what_ended_well_is_acknowledged_in_one_request(hands: Hands) -> None:
    one, two = hands.take(claimed(job(1), job(2)))
    hands.succeeded(two)
    hands.succeeded(one)
    [(request, jobs)] = hands.settlement()
    assert request.target == "/v0/topics/jobs/ack"
    assert body(request) == {"node": "w", "seqs": [2, 1], "lease_ids": ["lease_2", "lease_1"]}
    # Its place is free when the server was told, not before.
    assert hands.free == 2
    hands.settled(jobs, acked())
    assert hands.free == 4
    assert hands.settlement() == []


def test_what_failed_is_given_back_by_its_delay(hands: Hands) -> None:
    one, two, three = hands.take(claimed(job(1), job(2), job(3)))
    hands.failed(one, RetryJob(2.5))
    hands.failed(two, RetryJob())
    hands.failed(three, RetryJob(-1.0))
    bodies = [body(request) for request, _ in hands.settlement()]
    assert bodies == [
        {"node": "w", "seqs": [1], "delay_ms": 2500, "lease_ids": ["lease_1"]},
        {"node": "w", "seqs": [2, 3], "lease_ids": ["lease_2", "lease_3"]},
    ]


def test_a_failure_waits_longer_every_time() -> None:
    retry = JobRetry(backoff_min_s=1.0, backoff_max_s=10.0)
    assert [retry.delay_ms(deliveries, 0.0) for deliveries in (1, 2, 3, 4, 5, 1_000)] == [
        1_000, 2_000, 4_000, 8_000, 10_000, 10_000,
    ]  # fmt: skip
    assert retry.delay_ms(1, 1.0) == 500


def test_the_wait_depends_on_the_deliveries_and_on_luck(hands: Hands) -> None:
    [one] = hands.take(claimed(job(1, deliveries=3)))
    hands.failed(one, ValueError())
    [(request, _)] = hands.settlement()
    assert 2_000 <= body(request)["delay_ms"] <= 4_000


def test_everything_that_is_held_is_extended(hands: Hands) -> None:
    assert hands.extension() is None
    one, _ = hands.take(claimed(job(1), job(2)))
    request = hands.extension()
    assert request is not None
    assert body(request) == {"node": "w", "seqs": [1, 2], "lease_ms": 30_000, "lease_ids": ["lease_1", "lease_2"]}
    hands.succeeded(one)
    [(_, jobs)] = hands.settlement()
    hands.settled(jobs, acked())
    request = hands.extension()
    assert request is not None
    assert body(request)["seqs"] == [2]


def test_a_job_that_comes_back_while_it_is_handled_is_not_begun_twice(hands: Hands) -> None:
    """Its lease ran out and the same worker claimed it again: the run goes on, under the new lease."""
    [first] = hands.take(claimed(job(1)))
    assert hands.take(claimed(job(1, 2, "lease_new"))) == []
    assert hands.free == 3
    hands.succeeded(first)
    [(request, _)] = hands.settlement()
    assert body(request)["lease_ids"] == ["lease_new"]


def test_what_cannot_be_told_is_left_to_its_lease(hands: Hands, caplog: pytest.LogCaptureFixture) -> None:
    [one] = hands.take(claimed(job(1)))
    hands.succeeded(one)
    [(_, jobs)] = hands.settlement()
    hands.settled(jobs, ConnectionFailed("gone", maybe_done=True))
    assert hands.free == 4
    assert "could not be told" in caplog.text


def test_a_job_that_ended_too_late_is_told_to_the_log(hands: Hands, caplog: pytest.LogCaptureFixture) -> None:
    [one] = hands.take(claimed(job(1)))
    hands.settled([one], Nacked(topic="jobs", nacked=0, skipped=[1], ready=0, in_flight=0))
    assert "after their leases" in caplog.text


def test_two_workers_have_two_names() -> None:
    dice = SeededDice(1)
    nameless = plan(node=None)
    assert Hands(nameless, dice).node != Hands(nameless, dice).node


def test_a_worker_needs_a_hand() -> None:
    with pytest.raises(ValueError, match="at least one"):
        plan(concurrency=0)


def test_leases_are_extended_early_enough_to_fail_twice() -> None:
    assert plan(lease_ms=30_000).extend_every_s == 10.0
