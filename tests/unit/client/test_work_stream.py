"""A work stream in the client: its requests, the jobs it hands out, and the final ends."""

import pytest

from topics_client import ConnectionFailed, NotAQueue, ShuttingDown, TopicNotFound
from topics_client.work_stream import work

JOB = (
    b'id: 7\nevent: job\ndata: {"topic":"jobs","$seq":7,"$ts":1,"data":{"a":1},"lease_id":"lease_7","deadline":2,'
    b'"deliveries":3}\n\n'
)


def test_what_it_asks() -> None:
    target, headers, quiet_s = work("a b", "w 1", max=8, lease_ms=500, heartbeat_ms=2_000).open()
    assert target == "/v0/topics/a%20b/work?node=w+1&max=8&lease_ms=500&heartbeat_ms=2000"
    assert headers == {}
    # A line that is silent for two heartbeats and a little more is taken for dead.
    assert quiet_s == 9.0
    assert "lease_ms" not in work("jobs", "w").open()[0]


def test_jobs_are_handed_out_in_their_order() -> None:
    state = work("jobs", "w")
    assert state.next_item() is None
    assert not state.feed(b"retry: 2000\n\n: hb 1\n\n")
    assert state.feed(JOB + JOB.replace(b"7", b"8")[:-1])
    job = state.next_item()
    assert job is not None
    assert (job.seq, job.data, job.lease_id, job.deliveries) == (7, {"a": 1}, "lease_7", 3)
    # The second one is complete with its last byte, and not before.
    assert state.next_item() is None
    assert state.feed(b"\n")
    assert state.next_item() is not None


def test_a_break_drops_what_was_not_handed_out() -> None:
    """The server has freed it by then."""
    state = work("jobs", "w")
    state.feed(JOB)
    error = ConnectionFailed("gone", maybe_done=False)
    assert state.broke(error) is error
    assert state.next_item() is None


@pytest.mark.parametrize(
    ("code", "raised"),
    [(404, TopicNotFound), (409, NotAQueue), (503, ShuttingDown), (408, ConnectionFailed)],
)
def test_how_a_server_ends_a_stream(code: int, raised: type[Exception]) -> None:
    state = work("jobs", "w")
    with pytest.raises(raised):
        state.feed(b'event: error\ndata: {"code":%d,"error":"why","retry_after_ms":1500}\n\n' % code)


@pytest.mark.parametrize("data", [b"{", b"{}", b'{"$seq":"x"}'])
def test_what_cannot_be_understood_is_a_broken_line(data: bytes) -> None:
    with pytest.raises(ConnectionFailed):
        work("jobs", "w").feed(b"event: job\ndata: %b\n\n" % data)


def test_that_the_server_paces_it_is_no_end() -> None:
    state = work("jobs", "w")
    state.feed(b'event: error\ndata: {"code":429,"error":"late","retry_after_ms":500,"topics":["jobs"]}\n\n')
    assert state.next_item() is None
    state.feed(JOB)
    assert state.next_item() is not None


def test_events_of_a_newer_server_are_passed_over() -> None:
    state = work("jobs", "w")
    state.feed(b"event: news\ndata: {}\n\n")
    assert state.next_item() is None
