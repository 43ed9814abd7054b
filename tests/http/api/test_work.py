"""`GET /v0/topics/:q/work` over real sockets: push, backpressure, failover, and everything that is refused."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from tests.http.api.conftest import refused
from tests.http.api.events import PATIENCE_S, Event, EventStream
from tests.http.live import LiveServer, wait_until_ready

Stream = Callable[..., EventStream]


class Jobs:
    """A queue of this test's own."""

    def __init__(self, api: httpx.Client, name: str, **config: object) -> None:
        self.api = api
        self.name = name
        self.make(**config)

    def make(self, **config: object) -> None:
        assert self.api.put(f"/v0/topics/{self.name}", json={"type": "queue", **config}).is_success

    def append(self, *values: object, **fields: object) -> None:
        body = {"records": [{"data": value} for value in values], **fields}
        assert self.api.post(f"/v0/topics/{self.name}", json=body).is_success

    def post(self, word: str, node: str = "w", **fields: object) -> dict[str, Any]:
        answer = self.api.post(f"/v0/topics/{self.name}/{word}", json={"node": node, **fields})
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    @property
    def counters(self) -> dict[str, int]:
        found: dict[str, int] = self.api.get(f"/v0/topics/{self.name}").json()["queue"]
        return found

    def until(self, **requested: int) -> None:
        """Waits until the counters are so. Only a failure takes long."""
        give_up = time.monotonic() + PATIENCE_S
        while not requested.items() <= (found := self.counters).items():
            assert time.monotonic() < give_up, found
            time.sleep(0.005)


@pytest.fixture
def jobs(api: httpx.Client, name: str) -> Callable[..., Jobs]:
    return lambda **config: Jobs(api, name, **config)


@pytest.fixture
def work(server: LiveServer, name: str) -> Iterator[Stream]:
    """Opens streams of the test's queue, which must succeed, and reads the first event of each."""
    opened: list[EventStream] = []

    def opening(
        node: str = "w", url: str = server.url, buffer_bytes: int | None = None, **query: object
    ) -> EventStream:
        path = f"/v0/topics/{name}/work?{urlencode({'node': node, **query})}"
        stream = EventStream(url, path, {"accept": "text/event-stream"}, buffer_bytes=buffer_bytes)
        opened.append(stream)
        assert stream.status == 200
        assert stream.next() == Event("retry", 2000)
        first = stream.next()
        assert first.name == "comment"
        assert first.data.startswith("hb ")
        return stream

    yield opening
    for stream in opened:
        stream.close()


def seq_of(event: Event) -> int:
    assert event.name == "job", event
    assert event.id == str(event.data["$seq"])
    seq: int = event.data["$seq"]
    return seq


# Delivery


def test_working_on_a_queue_consumes_it(jobs: Callable[..., Jobs], work: Stream, name: str) -> None:
    queue = jobs()
    assert queue.api.get(f"/v0/topics/{name}?touch=false").json()["last_read_ts"] is None
    work()
    state = queue.api.get(f"/v0/topics/{name}?touch=false").json()
    assert state["last_read_ts"] is not None
    assert state["effective_priority"] > 0


def test_a_job_is_pushed(jobs: Callable[..., Jobs], work: Stream, name: str) -> None:
    queue = jobs(lease_ms=60_000)
    stream = work()
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers["cache-control"] == "no-store"
    assert stream.headers["x-accel-buffering"] == "no"
    record = {"data": {"n": 1}, "tag": "t", "node": "p", "meta": {"k": "v"}}
    queue.api.post(f"/v0/topics/{name}", json={"records": [record]})
    event = stream.event()
    assert event.id == "1"
    job = dict(event.data)
    # The two values come from two clocks, which may be some milliseconds apart.
    assert job.pop("deadline") - job.pop("$ts") >= 60_000 - 5
    assert job.pop("lease_id").startswith("lease_")
    assert job == {
        "topic": name, "$seq": 1, "$node": "p", "$tag": "t", "data": {"n": 1}, "meta": {"k": "v"}, "deliveries": 1,
    }  # fmt: skip


def test_ready_jobs_are_pushed_up_to_max(jobs: Callable[..., Jobs], work: Stream) -> None:
    queue = jobs()
    queue.append(*range(10))
    stream = work(max=3)
    assert [seq_of(event) for event in stream.events(3)] == [1, 2, 3]
    assert queue.counters == {"ready": 7, "in_flight": 3, "delayed": 0, "dead_lettered": 0}
    # One is done, one is given back for later, and each makes room for another.
    queue.post("ack", seqs=[2])
    assert seq_of(stream.event()) == 4
    queue.post("nack", seqs=[1], delay_ms=60_000)
    assert seq_of(stream.event()) == 5
    assert queue.counters["in_flight"] == 3


def test_without_max_there_is_one_at_a_time(jobs: Callable[..., Jobs], work: Stream) -> None:
    queue = jobs()
    queue.append(*range(3))
    stream = work()
    for seq in (1, 2, 3):
        assert seq_of(stream.event()) == seq
        assert queue.counters["in_flight"] == 1
        queue.post("ack", seqs=[seq])


@pytest.mark.parametrize(("asked", "most"), [("0", 1), ("5000000", 1_000), ("", 1)])
def test_max_is_bent_into_its_range(jobs: Callable[..., Jobs], work: Stream, asked: str, most: int) -> None:
    queue = jobs()
    queue.append(*range(1_001))
    stream = work(max=asked)
    assert len({seq_of(event) for event in stream.events(most)}) == most
    assert queue.counters["in_flight"] == most


def test_the_lease_of_a_stream(jobs: Callable[..., Jobs], work: Stream) -> None:
    queue = jobs(lease_ms=1_000)
    queue.append(1, 2, 3)
    deadlines = [work(node, lease_ms=asked).event().data for node, asked in (("a", 0), ("b", "9" * 5000), ("c", ""))]
    lasting = [job["deadline"] - job["$ts"] for job in deadlines]
    assert 100 <= lasting[0] < 30_000
    assert lasting[1] >= 86_400_000
    assert 1_000 <= lasting[2] < 60_000


def test_a_lease_that_has_expired_makes_room_for_the_same_job(jobs: Callable[..., Jobs], work: Stream) -> None:
    queue = jobs()
    queue.append(1)
    stream = work(lease_ms=100)
    deliveries = [event.data["deliveries"] for event in stream.events(3)]
    assert deliveries == [1, 2, 3]


def test_a_stream_sees_a_delay_end(jobs: Callable[..., Jobs], work: Stream) -> None:
    queue = jobs()
    stream = work()
    queue.append("later", delay_ms=200)
    assert seq_of(stream.event()) == 1


def test_a_claim_of_the_same_node_does_not_count_against_max(jobs: Callable[..., Jobs], work: Stream) -> None:
    queue = jobs()
    queue.append(1, 2)
    assert queue.post("claim")["claimed"][0]["$seq"] == 1
    stream = work()
    assert seq_of(stream.event()) == 2


def test_an_extended_job_stays(jobs: Callable[..., Jobs], work: Stream) -> None:
    queue = jobs()
    queue.append(1, 2)
    stream = work(lease_ms=60_000)
    job = stream.event().data
    extended = queue.post("extend", seqs=[1], lease_ids=[job["lease_id"]], lease_ms=86_400_000)
    assert extended["deadlines"]["1"] > job["deadline"]
    assert queue.post("ack", seqs=[1], lease_ids=[job["lease_id"]])["acked"] == 1
    assert seq_of(stream.event()) == 2


def test_lines_in_a_payload_are_lines_of_an_event(jobs: Callable[..., Jobs], work: Stream, name: str) -> None:
    queue = jobs()
    stream = work()
    body = b'{"records":[{"data":{\r\n "a":\n [1,\r2]}}]}'
    queue.api.post(f"/v0/topics/{name}", content=body, headers={"content-type": "application/json"})
    assert stream.event().data["data"] == {"a": [1, 2]}


# Backpressure


def test_a_client_that_does_not_read_is_given_no_more(jobs: Callable[..., Jobs], work: Stream) -> None:
    """Its share goes to others while it is behind, and it goes on when it reads again."""
    queue = jobs()
    text = "x" * 100_000
    for _ in range(20):
        queue.append(*[text] * 10)
    slow = work("slow", max=200, buffer_bytes=4_096)
    time.sleep(0.2)
    held = queue.counters["in_flight"]
    assert held < 200
    quick = work("quick", max=200)
    got = [seq_of(event) for event in quick.events(200 - held)]
    queue.post("ack", "quick", seqs=got)
    mine = [seq_of(event) for event in slow.events(held)]
    assert len({*got, *mine}) == 200
    queue.post("ack", "slow", seqs=mine)
    queue.append("one more")
    quick.close()
    assert slow.event().data["data"] == "one more"


def test_a_client_that_never_reads_is_cut_off_and_its_jobs_are_free(tmp_path: Any, name: str) -> None:
    with (
        LiveServer(tmp_path, slow_consumer_timeout_ms="300") as live,
        httpx.Client(base_url=live.url, timeout=PATIENCE_S) as api,
    ):
        queue = Jobs(api, name)
        for _ in range(20):
            queue.append(*["x" * 100_000] * 10)
        stream = EventStream(live.url, f"/v0/topics/{name}/work?node=w&max=200", buffer_bytes=4_096)
        queue.until(in_flight=0, ready=200)
        stream.close()


# Failover


def test_a_closed_connection_frees_its_jobs_at_once(jobs: Callable[..., Jobs], work: Stream) -> None:
    """Long leases: only the end of the connection can have freed them. Jobs that the node claimed itself stay
    claimed."""
    queue = jobs(lease_ms=86_400_000)
    queue.append(*range(4))
    assert queue.post("claim")["claimed"][0]["$seq"] == 1
    stream = work(max=2)
    assert [seq_of(event) for event in stream.events(2)] == [2, 3]
    second = work("other", max=4)
    assert seq_of(second.event()) == 4
    stream.close()
    freed = second.events(2)
    assert [seq_of(event) for event in freed] == [2, 3]
    assert [event.data["deliveries"] for event in freed] == [2, 2]
    assert queue.counters["in_flight"] == 4


def test_a_connection_that_is_reset_frees_its_jobs_at_once(jobs: Callable[..., Jobs], work: Stream) -> None:
    queue = jobs(lease_ms=86_400_000, leases_durable=True)
    queue.append(1)
    stream = work()
    assert seq_of(stream.event()) == 1
    # Closes with a reset instead of an orderly end, as when a process dies.
    stream._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()
    queue.until(ready=1, in_flight=0)


def test_acknowledged_job_is_not_pushed_again(jobs: Callable[..., Jobs], work: Stream) -> None:
    queue = jobs(lease_ms=86_400_000)
    queue.append(1, 2)
    stream = work(max=2)
    stream.events(2)
    queue.post("ack", seqs=[1])
    stream.close()
    assert seq_of(work("other", max=2).event()) == 2
    assert queue.counters == {"ready": 0, "in_flight": 1, "delayed": 0, "dead_lettered": 0}


# Fairness


def test_streams_and_claims_share_a_window(jobs: Callable[..., Jobs], work: Stream, api: httpx.Client) -> None:
    """Two streams that want 10 and 20, and a claim of 10, over 20 jobs: 5, 10 and 5."""
    queue = jobs(claim_jitter_ms=2_500)
    small, large = work("small", max=10), work("large", max=20)
    answers: list[dict[str, Any]] = []
    claiming = threading.Thread(target=lambda: answers.append(queue.post("claim", "poll", max=10)))
    claiming.start()
    queue.append(*range(20))
    got = {"small": small.events(5), "large": large.events(10)}
    claiming.join()
    assert answers[0]["count"] == 5
    seqs = [seq_of(event) for events in got.values() for event in events]
    assert sorted([*seqs, *(job["$seq"] for job in answers[0]["claimed"])]) == list(range(1, 21))
    assert queue.counters["ready"] == 0


def test_streams_take_turns(jobs: Callable[..., Jobs], work: Stream) -> None:
    """One job at a time for three streams: none gets a second one before each had one."""
    queue = jobs()
    streams = {node: work(node, max=10) for node in ("a", "b", "c")}
    for _ in range(3):
        queue.append(1)
        queue.until(ready=0)
    leases = queue.api.get(f"/v0/topics/{queue.name}/leases").json()["leases"]
    assert sorted(lease["node"] for lease in leases) == sorted(streams)


# Ends


def test_heartbeats_come_while_nothing_else_does(tmp_path: Any) -> None:
    with LiveServer(tmp_path, test_min_heartbeat_ms="20") as live, httpx.Client(base_url=live.url) as api:
        Jobs(api, "jobs")
        with EventStream(live.url, "/v0/topics/jobs/work?node=w&heartbeat_ms=1") as stream:
            beats = [stream.next() for _ in range(4)][1:]
            assert all(beat.name == "comment" and int(beat.data.removeprefix("hb ")) > 0 for beat in beats)


def test_a_deleted_queue_ends_its_streams(jobs: Callable[..., Jobs], work: Stream) -> None:
    """The idle stream and a stream with as many jobs as it may hold."""
    queue = jobs()
    busy = work("busy")
    queue.append(1)
    assert seq_of(busy.event()) == 1
    idle = work("idle")
    assert queue.api.delete(f"/v0/topics/{queue.name}").is_success
    for stream in (busy, idle):
        event = stream.event()
        assert (event.name, event.data["code"]) == ("error", 404)
        stream.ended()


def test_a_queue_that_became_a_log_ends_its_streams(jobs: Callable[..., Jobs], work: Stream) -> None:
    queue = jobs()
    stream = work()
    assert queue.api.delete(f"/v0/topics/{queue.name}").is_success
    queue.api.put(f"/v0/topics/{queue.name}", json={})
    event = stream.event()
    # It depends on whether the new topic existed when the stream was notified.
    assert (event.name, event.data["code"]) in (("error", 404), ("error", 409))
    stream.ended()
    path = f"/v0/topics/{queue.name}/work?node=w"
    with EventStream(str(queue.api.base_url).rstrip("/"), path) as again:
        refused(again.refusal, 409, "not_a_queue")


@pytest.mark.parametrize("durable", [False, True])
def test_a_stop_reports_and_a_start_has_the_jobs_again(tmp_path: Any, durable: bool) -> None:
    with LiveServer(tmp_path) as live, httpx.Client(base_url=live.url, timeout=PATIENCE_S) as api:
        queue = Jobs(api, "jobs", lease_ms=86_400_000, leases_durable=durable)
        queue.append(1)
        with EventStream(live.url, "/v0/topics/jobs/work?node=w") as stream:
            assert seq_of(stream.event()) == 1
            live.stop()
            event = stream.event()
            assert (event.name, event.data["code"]) == ("error", 503)
            assert event.data["retry_after_ms"] > 0
            stream.ended()
        live.start()
        wait_until_ready(live.url)
        queue.until(ready=1, in_flight=0)


# Refusals


@pytest.mark.parametrize(
    "query",
    ["", "node=", "max=1", f"node={'x' * 129}", "node=w&max=x", "node=w&max=-1", "node=w&max=1.5",
     "node=w&lease_ms=x", "node=w&lease_ms=-1", "node=w&heartbeat_ms=x"],
)  # fmt: skip
def test_a_stream_that_is_asked_for_wrongly(jobs: Callable[..., Jobs], server: LiveServer, query: str) -> None:
    queue = jobs()
    with EventStream(server.url, f"/v0/topics/{queue.name}/work?{query}") as stream:
        refused(stream.refusal, 400, "invalid_request")


def test_only_queues_have_work(api: httpx.Client, name: str) -> None:
    path = f"/v0/topics/{name}/work?node=w"
    refused(api.get(path), 404, "topic_not_found")
    api.put(f"/v0/topics/{name}", json={})
    refused(api.get(path), 409, "not_a_queue")


def test_work_stream_requires_an_accepted_content_type(jobs: Callable[..., Jobs], server: LiveServer) -> None:
    queue = jobs()
    path = f"/v0/topics/{queue.name}/work?node=w"
    refused(queue.api.get(path, headers={"accept": "application/json"}), 406, "not_acceptable")
    refused(queue.api.get(path, headers={"accept": "*/*"}), 406, "not_acceptable")
    for accept in ("text/event-stream", "text/event-stream, */*", "application/json, text/event-stream;q=0.5"):
        with EventStream(server.url, path, {"accept": accept}) as stream:
            assert stream.status == 200


def test_a_head_opens_nothing(jobs: Callable[..., Jobs]) -> None:
    queue = jobs()
    queue.append(1)
    answer = queue.api.head(f"/v0/topics/{queue.name}/work?node=w")
    assert (answer.status_code, answer.content) == (200, b"")
    assert queue.counters["in_flight"] == 0


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    keys = "all,reader:read,writer:write,worker:rw"
    with LiveServer(
        tmp_path_factory.mktemp("guarded"), api_keys=keys, max_sse_connections="3", max_sse_connections_per_key="2"
    ) as live:
        httpx.put(
            f"{live.url}/v0/topics/jobs", json={"type": "queue"}, headers={"authorization": "Bearer all"}
        ).raise_for_status()
        yield live


PATH = "/v0/topics/jobs/work?node=w"


def test_a_stream_needs_to_read_and_to_write(guarded: LiveServer) -> None:
    for key, missing in (("reader", "write"), ("writer", "read")):
        with EventStream(guarded.url, PATH, {"authorization": f"Bearer {key}"}) as stream:
            assert refused(stream.refusal, 403, "forbidden") == {"scope": missing}
    with EventStream(guarded.url, PATH) as stream:
        refused(stream.refusal, 401, "unauthorized")
    with EventStream(guarded.url, PATH, {"authorization": "Bearer worker"}) as stream:
        assert stream.status == 200


def test_the_key_of_a_stream_may_be_in_its_query(guarded: LiveServer) -> None:
    with EventStream(guarded.url, f"{PATH}&token=worker") as stream:
        assert stream.status == 200
    with EventStream(guarded.url, f"{PATH}&token=nobody") as stream:
        refused(stream.refusal, 401, "unauthorized")


def test_connections_are_counted_with_the_other_streams(guarded: LiveServer) -> None:
    opened: list[EventStream] = []

    def open_one(key: str) -> EventStream:
        opened.append(EventStream(guarded.url, PATH, {"authorization": f"Bearer {key}"}))
        return opened[-1]

    def until_empty() -> None:
        give_up = time.monotonic() + PATIENCE_S
        headers = {"authorization": "Bearer all", "accept": "application/json"}
        while httpx.get(f"{guarded.url}/v0/metrics", headers=headers).json()["topics_sse_connections"]:
            assert time.monotonic() < give_up
            time.sleep(0.01)

    until_empty()
    assert [open_one("worker").status for _ in range(2)] == [200, 200]
    limit = refused(open_one("worker").refusal, 429, "throttled")
    assert limit == {"limit": "max_sse_connections_per_key", "max": 2}
    assert open_one("all").status == 200
    refusal = open_one("all").refusal
    assert refused(refusal, 429, "throttled") == {"limit": "max_sse_connections", "max": 3}
    assert int(refusal.headers["retry-after"]) >= 1
    for stream in opened:
        stream.close()
    until_empty()
    with open_one("worker") as stream:
        assert stream.status == 200
