"""Watches under limits: keys, caps, slow readers, idle sessions, and servers that stop or restart."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.http.api.conftest import refused
from tests.http.api.events import PATIENCE_S, Event, EventStream, Watch, watch
from tests.http.live import LiveServer, wait_until_ready
from topics.api.v0.watch import encode_map

KEYS = "full,reader:read,writer:w,tenant:r:acme:"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    settings = {"api_keys": KEYS, "max_watch_sessions": "30", "max_sse_connections_per_key": "2"}
    with LiveServer(tmp_path_factory.mktemp("guarded"), **settings) as live:
        for topic in ("acme:a", "other"):
            append(live, topic, 1, key="full")
        yield live


def append(live: LiveServer, topic: str, *values: object, key: str | None = None) -> None:
    body = {"records": [{"data": value} for value in values]}
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    answer = httpx.post(f"{live.url}/v0/topics/{topic}", json=body, headers=headers, timeout=PATIENCE_S)
    assert answer.is_success, answer.text


# Keys


def test_a_session_belongs_to_the_key_that_made_it(guarded: LiveServer) -> None:
    session = watch(guarded.url, "other", key="reader")
    path = session.made["stream_url"]
    strangers: list[dict[str, str]] = [
        {}, {"authorization": "Bearer full"}, {"authorization": "Bearer nobody"}, {"authorization": "x"},
    ]  # fmt: skip
    for headers in strangers:
        with EventStream(guarded.url, path, headers) as stream:
            refused(stream.refusal, 401, "unauthorized")
    with session.open() as stream:
        assert stream.event().seqs == [1]


def test_the_key_may_stand_in_the_address_of_the_stream_only(guarded: LiveServer) -> None:
    session = watch(guarded.url, "other", key="full")
    path = session.made["stream_url"]
    for query, status in (("?token=full", 200), ("?token=f%75ll&token=x", 200), ("?token=reader", 401), ("", 401)):
        with EventStream(guarded.url, path + query) as stream:
            assert stream.status == status, query
    with EventStream(guarded.url, path + "?token=full", {"authorization": "Bearer reader"}) as stream:
        assert stream.status == 401
    refused(httpx.get(f"{guarded.url}/v0/topics?token=full"), 401, "unauthorized")
    refused(httpx.post(f"{guarded.url}/v0/watch?token=full", json={"topics": {"other": {}}}), 401, "unauthorized")
    assert "token" not in guarded.log()


def test_watching_needs_the_scope_and_every_name(guarded: LiveServer) -> None:
    assert refused(watch(guarded.url, "other", key="writer").answer, 403, "forbidden") == {"scope": "read"}
    both = watch(guarded.url, "acme:a", "other", key="tenant")
    assert refused(both.answer, 403, "forbidden") == {"name": "other"}
    # The existence of a name is not revealed to a key without permission.
    hidden = Watch(guarded.url, {"topics": {"nothing": {}}}, key="tenant", query="?lenient=true")
    refused(hidden.answer, 403, "forbidden")
    assert watch(guarded.url, "acme:a", key="tenant").made["topics"].keys() == {"acme:a"}


def test_an_unknown_session_is_not_found_before_any_key(guarded: LiveServer) -> None:
    with EventStream(guarded.url, "/v0/watch/wid_AAAAAAAAAAAAAAAAAAAAAA") as stream:
        refused(stream.refusal, 404, "not_found")
    with EventStream(guarded.url, "/v0/watch/wid_AAAAAAAAAAAAAAAAAAAAAA", {"accept": "text/html"}) as stream:
        refused(stream.refusal, 406, "not_acceptable")


# Caps


def test_the_connections_of_a_key_are_counted_until_they_close(guarded: LiveServer) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(watch(guarded.url, "other", key="reader").open())
        session = watch(guarded.url, "other", key="reader")
        with EventStream(guarded.url, session.made["stream_url"], {"authorization": "Bearer reader"}) as third:
            detail = refused(third.refusal, 429, "throttled")
            assert detail == {"limit": "max_sse_connections_per_key", "max": 2}
            assert third.headers["retry-after"] == "1"
        with watch(guarded.url, "other", key="full").open() as another:
            assert another.event().seqs == [1]
    until(lambda: metrics(guarded)["topics_sse_connections"] == 0)
    with session.open() as stream:
        assert stream.event().seqs == [1]


def test_a_stream_is_not_a_request_under_way(tmp_path: Path) -> None:
    with LiveServer(tmp_path, api_keys="k", max_inflight_per_key="1") as live:
        append(live, "t", 1, key="k")
        with watch(live.url, "t", key="k").open() as stream:
            stream.events(2)
            append(live, "t", 2, key="k")
            assert stream.event().seqs == [2]


def test_connections_and_sessions_have_a_limit_and_are_reported_by_metrics(tmp_path: Path) -> None:
    with LiveServer(tmp_path, max_sse_connections="2", max_watch_sessions="3", max_watch_topics="2") as live:
        for topic in ("a", "b", "c"):
            append(live, topic, 1)
        detail = refused(watch(live.url, "a", "b", "c").answer, 400, "invalid_request")
        assert (detail["field"], detail["max"]) == ("topics", 2)
        sessions = [watch(live.url, "a") for _ in range(3)]
        refused_one = watch(live.url, "a").answer
        assert refused(refused_one, 429, "throttled") == {"limit": "max_watch_sessions", "max": 3}
        assert refused_one.headers["retry-after"] == "1"
        with sessions[0].open() as one, sessions[1].open():
            assert one.event().seqs == [1]
            reported = metrics(live)
            assert (reported["topics_sse_connections"], reported["topics_watch_sessions"]) == (2, 3)
            with EventStream(live.url, sessions[2].made["stream_url"]) as third:
                assert refused(third.refusal, 429, "throttled") == {"limit": "max_sse_connections", "max": 2}
            # Coming back to a session that has a stream takes the place of that stream.
            with sessions[0].open() as again:
                assert again.event().name == "caught-up"
        until(lambda: metrics(live)["topics_sse_connections"] == 0)


def test_an_idle_session_ends_and_one_with_a_stream_does_not(tmp_path: Path) -> None:
    with LiveServer(tmp_path, watch_session_ttl_ms="300") as live:
        append(live, "t", 1)
        idle, busy = watch(live.url, "t"), watch(live.url, "t")
        assert idle.made["session_ttl_ms"] == 300
        with busy.open() as stream:
            stream.events(2)
            until(lambda: metrics(live)["topics_watch_sessions"] >= 1 and gone(live, idle))
            append(live, "t", 2)
            assert stream.event().seqs == [2]
        with busy.open() as stream:
            assert stream.event().name == "caught-up"


def gone(live: LiveServer, session: Watch) -> bool:
    time.sleep(0.05)
    # Asked by HEAD, as a GET would be an access.
    return httpx.head(live.url + session.made["stream_url"]).status_code == 404


# Slow readers


def test_a_reader_that_takes_nothing_is_cut_off_and_its_session_stays(tmp_path: Path) -> None:
    with LiveServer(tmp_path, slow_consumer_timeout_ms="700") as live:
        append(live, "t", 1)
        session = watch(live.url, "t")
        with session.open(buffer_bytes=4096) as slow, watch(live.url, "t").open() as quick:
            slow.events(2)
            quick.events(2)
            for number in range(60):
                append(live, "t", str(number) * 100_000)
                assert quick.records(1)[0]["$seq"] == number + 2
            until(lambda: metrics(live)["topics_sse_connections"] == 1)
            seen, reported = read_to_end(slow)
        assert reported is None or reported.data["code"] == 408
        assert seen == list(range(2, len(seen) + 2))
        assert len(seen) < 60
        last = len(seen) + 1
        with session.open(encode_map({"t": last}).decode()) as stream:
            assert [record["$seq"] for record in stream.records(61 - last)] == list(range(last + 1, 62))


def test_a_client_that_reads_slowly_is_not_cut_off_in_the_middle_of_a_large_frame(tmp_path: Path) -> None:
    """It would come back for the same frame and be cut off again, for ever."""
    with LiveServer(tmp_path, slow_consumer_timeout_ms="2000") as live:
        for _ in range(40):
            append(live, "t", "x" * 200_000)
        with watch(live.url, "t", max_batch_bytes=8 * 1024 * 1024).open(buffer_bytes=65536) as slow:
            # Several times as long as the timeout, and something all the while.
            taken = b""
            while len(taken) < 7_800_000:
                taken += slow.take(120_000)
                time.sleep(0.1)
            assert b"event: error" not in taken
            assert b'"$seq":39' in taken


def test_a_slow_reader_of_a_lossy_topic_gets_a_tombstone(tmp_path: Path) -> None:
    with LiveServer(tmp_path, buffer_grace_ms="300") as live:
        httpx.put(f"{live.url}/v0/topics/t", json={"cap_records": 3})
        with watch(live.url, "t").open(buffer_bytes=4096) as slow:
            slow.events(1)
            for number in range(60):
                append(live, "t", str(number) * 100_000)
            time.sleep(0.6)
            seen = 0
            reasons = []
            while seen < 60:
                event = slow.event()
                if event.name == "tombstone":
                    assert event.data["gap_from"] == seen + 1
                    reasons.append(event.data["reason"])
                    seen = event.data["gap_to"]
                elif event.name == "record":
                    assert event.seqs[0] == seen + 1
                    seen = event.seqs[-1]
        assert reasons[-1] == "from_seq_too_old"


def test_memory_does_not_grow_with_what_a_slow_reader_has_not_read(tmp_path: Path) -> None:
    with LiveServer(tmp_path, tail_memory_bytes="1000000", segment_max_bytes="500000") as live:
        append(live, "t", 1)
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context(watch(live.url, "t").open(buffer_bytes=4096)) for _ in range(30)]
            before = resident_bytes(live)
            for _ in range(60):
                append(live, "t", "x" * 500_000)
            grown = resident_bytes(live) - before
            # A frame each besides the full buffer; queues would hold 30 times 30 MB.
            assert grown < 30 * 2_000_000 + 60_000_000, grown
            assert streams[0].event().seqs == [1]


# Stopping and starting


def test_a_stopping_server_reports_it_and_ends_the_streams(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live:
        append(live, "a", 1)
        append(live, "b", 1)
        with watch(live.url, "a").open() as solo, watch(live.url, "a", "b").open() as several:
            solo.events(2)
            several.events(4)
            live.stop()
            for stream in (solo, several):
                reported = stream.event()
                assert (reported.name, reported.id, reported.data["code"]) == ("error", None, 503)
                assert reported.data["retry_after_ms"] == 2000
                stream.ended()


@pytest.mark.parametrize("kill", [False, True])
def test_after_a_restart_an_id_resumes_without_loss_or_repeat(tmp_path: Path, kill: bool) -> None:
    with LiveServer(tmp_path) as live:
        append(live, "t", *range(10))
        session = watch(live.url, "t", limit=4)
        with session.open() as stream:
            seen = stream.event()
            assert seen.seqs == [1, 2, 3, 4]
            live.kill() if kill else live.stop()
        live.start()
        wait_until_ready(live.url)
        with EventStream(live.url, session.made["stream_url"]) as stream:
            refused(stream.refusal, 404, "not_found")
        resumed = Watch(live.url, {"topics": {"t": {}}, "cursor": seen.id})
        with resumed.open() as stream:
            assert [record["$seq"] for record in stream.records(6)] == [5, 6, 7, 8, 9, 10]


def test_a_server_that_replays_makes_no_sessions(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live:
        live.kill()
        live.start()
        answers = [watch(live.url, "t").answer.status_code for _ in range(3)]
        assert set(answers) <= {404, 503}


# Helpers


def read_to_end(stream: EventStream) -> tuple[list[int], Event | None]:
    """The seqs a cut-off reader still finds, and the last error if it got through."""
    seen: list[int] = []
    try:
        while True:
            event = stream.event()
            if event.name == "error":
                return seen, event
            seen += event.seqs if event.name == "record" else []
    except (EOFError, OSError, AssertionError, ValueError):
        return seen, None


def metrics(live: LiveServer) -> dict[str, float]:
    headers = {"accept": "application/json", "authorization": "Bearer full"}
    decoded: dict[str, float] = httpx.get(f"{live.url}/v0/metrics", headers=headers, timeout=PATIENCE_S).json()
    return decoded


def resident_bytes(live: LiveServer) -> int:
    assert live._process is not None
    for line in Path(f"/proc/{live._process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def until(condition: Callable[[], bool]) -> None:
    """Waits for something that must become true."""
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)
