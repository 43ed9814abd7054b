"""An idle worker: no job that comes between two looks is missed."""

from typing import Any

import msgspec

from topics.model.topic_config import TopicConfig
from topics_client import Claimed, Diff
from topics_client.answers import TopicState
from topics_client.worker_state import Idling, worker
from topics_protocol.records import Job

EMPTY = Claimed(topic="jobs", claimed=[], count=0, ready=0)
JOB = Job(seq=1, ts=1, payload=msgspec.Raw(b"1"), lease_id="lease_1", deadline=1, deliveries=1)
FULL = Claimed(topic="jobs", claimed=[JOB], count=1, ready=0)


def idling() -> Idling:
    return Idling(worker("jobs", lambda job: None, idle_s=2.0))


def state(head_seq: int) -> TopicState:
    return TopicState(
        topic="jobs", head_seq=head_seq, earliest_seq=1, next_seq=head_seq + 1, count=0, bytes=0, config=TopicConfig(),
        effective_priority=0,
    )  # fmt: skip


def read(head_seq: int) -> Diff:
    return Diff(
        topic="jobs", records=[], next_from_seq=head_seq, head_seq=head_seq, earliest_seq=1, caught_up=True, lag=0
    )


def waits_from(idle: Idling) -> int:
    request = idle.after(EMPTY)
    assert request is not None
    body: dict[str, Any] = msgspec.json.decode(request.body or b"{}")
    assert (body["limit"], body["wait_ms"]) == (1, 2_000)
    seq: int = body["from_seq"]
    return seq


def test_it_looks_where_the_log_ends_and_claims_once_more_before_it_waits() -> None:
    idle = idling()
    request = idle.after(EMPTY)
    assert request is not None
    assert (request.method, request.target) == ("GET", "/v0/topics/jobs?touch=false")
    idle.looked(state(7))
    # The claim between the two is the caller's; only now it waits for what is behind that place.
    assert waits_from(idle) == 7
    idle.looked(read(9))
    assert waits_from(idle) == 9


def test_after_jobs_it_claims_again_at_once_and_later_looks_anew() -> None:
    idle = idling()
    idle.after(EMPTY)
    idle.looked(state(7))
    assert idle.after(FULL) is None
    request = idle.after(EMPTY)
    assert request is not None
    assert request.method == "GET"
