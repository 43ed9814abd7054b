"""Clients of a server under pressure: less important work is delayed, nothing is lost, and it ends.

The pressure is decided by the tests; nothing here depends on how fast the machine is.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.api.conftest import refused
from tests.http.api.events import EventStream, watch
from tests.http.api.sockets import open_socket
from tests.http.pressed import PressedServer
from topics.engine.backpressure import Sample

CALM = Sample()
COALESCING = Sample(queue_part=0.30)
DEFERRING = Sample(queue_part=0.90)
OVERLOAD = Sample(loop_lag_ms=60_000.0)
PATIENCE_S = 60.0


@pytest.fixture
def pressed(tmp_path: Path) -> Iterator[PressedServer]:
    with PressedServer(tmp_path) as server:
        yield server


@pytest.fixture
def api(pressed: PressedServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=pressed.url, timeout=PATIENCE_S) as client:
        yield client


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def metrics(api: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = api.get("/v0/metrics", headers={"accept": "application/json"}).json()
    return found


def wait_for(api: httpx.Client, name: str, reached: Callable[[float], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not reached(metrics(api)[name]):
        assert time.monotonic() < give_up, name
        time.sleep(0.002)


def post(api: httpx.Client, topic: str, *values: object, **fields: object) -> httpx.Response:
    return api.post(f"/v0/topics/{topic}", json={"records": [{"data": value} for value in values], **fields})


def long_poll(pressed: PressedServer, pool: ThreadPoolExecutor, topic: str, from_seq: int = 0) -> Future[Any]:
    """A reader that waits on its own connection."""
    body = {"from_seq": from_seq, "wait_ms": 30_000}
    asked = pool.submit(httpx.post, f"{pressed.url}/v0/topics/{topic}/diff", json=body, timeout=PATIENCE_S)
    while not pressed.on_loop(lambda: pressed.engine.core.directory.load(topic).waiters):
        assert not asked.done(), asked.result().text
        time.sleep(0.002)
    return asked


def test_deferring_keeps_low_priorities_waiting_and_high_ones_not(
    pressed: PressedServer, api: httpx.Client, pool: ThreadPoolExecutor
) -> None:
    api.put("/v0/topics/high", json={"priority": 900})
    api.put("/v0/topics/low", json={"priority": -500})
    high, low = long_poll(pressed, pool, "high"), long_poll(pressed, pool, "low")
    pressed.press(DEFERRING)
    for number in range(3):
        assert post(api, "low", number).is_success
    assert post(api, "high", "now").is_success
    assert [record["data"] for record in high.result(PATIENCE_S).json()["records"]] == ["now"]

    shown = metrics(api)
    assert (shown["topics_throttle_level"], shown["topics_scheduler_deferred"]) == (3.0, 1.0)
    assert shown["topics_scheduler_deferrals_total"] == 1.0
    assert shown["topics_scheduler_coalesced_total"] >= 2.0
    assert shown["topics_pressure"] == pytest.approx(0.9, abs=0.01)
    assert not low.done()
    # The records are there for a caller that asks; only the telling waits.
    assert api.post("/v0/topics/low/diff", json={}).json()["head_seq"] == 3
    time.sleep(0.01)
    assert api.get("/v0/topics/low").json()["effective_priority"] > -500

    pressed.press(CALM)
    answer = low.result(PATIENCE_S).json()
    assert [record["data"] for record in answer["records"]] == [0, 1, 2]
    assert answer["performance"]["throttle_wait_ms"] > 0
    assert metrics(api)["topics_scheduler_deferred"] == 0.0


@pytest.mark.parametrize(
    ("sample", "level", "coalesces", "widens"),
    [
        (CALM, 0.0, False, False),
        (COALESCING, 1.0, True, False),
        (Sample(queue_part=0.60), 2.0, True, True),
        (DEFERRING, 3.0, True, True),
        (OVERLOAD, 4.0, True, True),
    ],
)
def test_every_step_is_seen_in_the_metrics(
    pressed: PressedServer, api: httpx.Client, sample: Sample, level: float, coalesces: bool, widens: bool
) -> None:
    pressed.press(sample)
    shown = metrics(api)
    assert shown["topics_throttle_level"] == level
    assert (shown["topics_coalesce_window_ms"] > 0, shown["topics_commit_window_ms"] > 0) == (coalesces, widens)
    assert (shown["topics_pressure"] > 0) == (level > 0)
    pressed.press(CALM)
    assert metrics(api)["topics_throttle_level"] == 0.0


def test_an_event_stream_learns_that_pressure_makes_it_wait(pressed: PressedServer, api: httpx.Client) -> None:
    api.put("/v0/topics/low", json={"priority": -500})
    api.put("/v0/topics/plain", json={})
    with watch(pressed.url, "low", "plain").open() as stream:
        assert {event.name for event in stream.events(2)} == {"caught-up"}
        pressed.press(DEFERRING)
        post(api, "low", 1)
        event = stream.event()
        assert (event.name, event.id) == ("error", None)
        assert (event.data["code"], event.data["topics"]) == (429, ["low"])
        assert 0 < event.data["retry_after_ms"] <= 5000
        post(api, "plain", 1)
        assert stream.event().data["topic"] == "plain"
        pressed.press(CALM)
        last = stream.event()
        assert (last.data["topic"], last.seqs) == ("low", [1])


def test_a_work_stream_learns_that_pressure_makes_jobs_late(pressed: PressedServer, api: httpx.Client) -> None:
    api.put("/v0/topics/jobs", json={"type": "queue", "priority": -500})
    with EventStream(pressed.url, "/v0/topics/jobs/work?node=w&max=2") as stream:
        while not pressed.on_loop(lambda: pressed.engine.core.directory.load("jobs").waiters):
            time.sleep(0.002)
        pressed.press(DEFERRING)
        post(api, "jobs", 1)
        event = stream.event()
        assert (event.name, event.id) == ("error", None)
        assert (event.data["code"], event.data["topics"]) == (429, ["jobs"])
        assert 0 < event.data["retry_after_ms"] <= 5000
        pressed.press(CALM)
        job = stream.event()
        assert (job.name, job.data["$seq"], job.data["data"]) == ("job", 1, 1)
    while pressed.on_loop(lambda: pressed.live.paced):
        time.sleep(0.002)


def test_a_socket_waits_without_a_word_and_loses_nothing(pressed: PressedServer, api: httpx.Client) -> None:
    api.put("/v0/topics/low", json={"priority": -500})
    with open_socket(pressed.url) as socket:
        socket.send({"op": "subscribe", "request_id": "s", "topic": "low"})
        assert [socket.frame()["op"] for _ in range(2)] == ["subscribed", "caught_up"]
        pressed.press(DEFERRING)
        post(api, "low", 1)
        post(api, "low", 2)
        wait_for(api, "topics_scheduler_deferred", lambda deferred: deferred == 1.0)
        pressed.press(CALM)
        frame = socket.frame()
        assert (frame["op"], [record["$seq"] for record in frame["records"]]) == ("record", [1, 2])


def test_publishing_on_a_socket_is_refused_or_waits_as_appending_is(pressed: PressedServer, api: httpx.Client) -> None:
    post(api, "t", 1)
    pressed.press(OVERLOAD)
    with open_socket(pressed.url) as socket:
        publish = {"op": "publish", "topic": "t", "records": [{"data": 2}]}
        socket.send({**publish, "request_id": "refused"})
        frame = socket.frame()
        assert (frame["op"], frame["request_id"], frame["code"]) == ("error", "refused", "throttled")
        assert frame["detail"]["retry_after_ms"] > 0
        socket.send({**publish, "request_id": "patient", "disable_backpressure": True})
        wait_for(api, "topics_throttle_parked", lambda parked: parked == 1.0)
        pressed.press(CALM)
        frame = socket.frame()
        assert (frame["op"], frame["request_id"], frame["last_seq"]) == ("ack", "patient", 2)
        assert frame["performance"]["throttle_wait_ms"] > 0


def test_under_overload_appends_are_refused_with_the_time_to_wait(pressed: PressedServer, api: httpx.Client) -> None:
    assert "throttle_wait_ms" not in post(api, "t", 1).json()["performance"]
    pressed.press(OVERLOAD)
    answer = post(api, "t", 2)
    detail = refused(answer, 429, "throttled")
    assert set(detail) == {"retry_after_ms"}
    assert detail["retry_after_ms"] > 0
    assert int(answer.headers["retry-after"]) * 1000 >= detail["retry_after_ms"]
    refused(post(api, "new", 1), 429, "throttled")
    # Reads continue, and so do operations that free space.
    assert api.post("/v0/topics/t/diff", json={}).json()["head_seq"] == 1
    assert api.post("/v0/topics/t/delete", json={"before_seq": 1}).is_success
    assert metrics(api)["topics_throttle_refused_total"] == 2.0

    pressed.press(CALM)
    assert post(api, "t", 3).json()["last_seq"] == 2
    assert api.get("/v0/topics/new").status_code == 404


def test_the_highest_priorities_are_let_in(pressed: PressedServer, api: httpx.Client) -> None:
    api.put("/v0/topics/vital", json={"priority": 1000})
    pressed.press(OVERLOAD)
    assert post(api, "vital", 1).status_code == 200


def test_append_with_disabled_backpressure_waits_and_returns_the_delay(
    pressed: PressedServer, api: httpx.Client, pool: ThreadPoolExecutor
) -> None:
    post(api, "t", "first")
    pressed.press(OVERLOAD)
    body = {"records": [{"data": "patient"}], "disable_backpressure": True}
    waiting = pool.submit(httpx.post, f"{pressed.url}/v0/topics/t", json=body, timeout=PATIENCE_S)
    wait_for(api, "topics_throttle_parked", lambda parked: parked == 1.0)
    time.sleep(0.01)
    assert not waiting.done()
    pressed.press(CALM)
    answer = waiting.result(PATIENCE_S)
    assert (answer.status_code, answer.json()["last_seq"]) == (200, 2)
    assert answer.json()["performance"]["throttle_wait_ms"] >= 10.0
    shown = metrics(api)
    assert (shown["topics_throttle_parked"], shown["topics_throttle_waits_total"]) == (0.0, 1.0)
    assert shown["topics_throttle_wait_ms_total"] >= 10.0


def test_a_full_log_refuses_or_lets_wait_and_loses_nothing(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with (
        PressedServer(tmp_path, commit_queue_bytes=10_000) as pressed,
        httpx.Client(base_url=pressed.url, timeout=PATIENCE_S) as api,
    ):
        post(api, "t", "first")
        pressed.stall(True)
        large, patient = "x" * 20_000, {"disable_backpressure": True}
        stuck = pool.submit(httpx.post, f"{pressed.url}/v0/topics/t", json=_body(large), timeout=PATIENCE_S)
        wait_for(api, "topics_wal_queue_depth", lambda depth: depth >= 1.0)
        detail = refused(post(api, "t", "refused"), 429, "throttled")
        assert detail == {"retry_after_ms": 100}
        waiting = pool.submit(
            httpx.post, f"{pressed.url}/v0/topics/t", json={**_body("waited"), **patient}, timeout=PATIENCE_S
        )
        wait_for(api, "topics_throttle_parked", lambda parked: parked == 1.0)
        pressed.stall(False)
        assert stuck.result(PATIENCE_S).json()["last_seq"] == 2
        assert waiting.result(PATIENCE_S).json()["last_seq"] == 3
        records = api.post("/v0/topics/t/diff", json={}).json()["records"]
        assert [record["data"] for record in records] == ["first", large, "waited"]


def _body(*values: object) -> dict[str, Any]:
    return {"records": [{"data": value} for value in values]}


PRIORITIES = {"high": 900, "plain": 0, "low": -800}


def test_pressure_that_comes_and_goes_loses_nothing(
    pressed: PressedServer, api: httpx.Client, pool: ThreadPoolExecutor
) -> None:
    """Writers that try again when refused, followers that wait, and pressure of every height in between."""
    per_topic = 60
    for name, priority in PRIORITIES.items():
        api.put(f"/v0/topics/{name}", json={"priority": priority})
    over = threading.Event()

    def write(name: str) -> int:
        refusals = 0
        with httpx.Client(base_url=pressed.url, timeout=PATIENCE_S) as client:
            for number in range(per_topic):
                while (answer := post(client, name, number)).status_code == 429:
                    refusals += 1
                    time.sleep(0.005)
                assert answer.is_success, answer.text
        return refusals

    def follow(name: str) -> list[int]:
        seen: list[int] = []
        with httpx.Client(base_url=pressed.url, timeout=PATIENCE_S) as client:
            from_seq = 0
            while from_seq < per_topic:
                body = {"from_seq": from_seq, "wait_ms": 30_000}
                answer = client.post(f"/v0/topics/{name}/diff", json=body).json()
                assert answer["tombstone"] is None
                seen += [record["data"] for record in answer["records"]]
                from_seq = answer["next_from_seq"]
        return seen

    def weather() -> None:
        for sample in [COALESCING, DEFERRING, OVERLOAD, CALM] * 200:
            pressed.press(sample)
            if over.wait(0.01):
                break
        pressed.press(CALM)

    sky = pool.submit(weather)
    followers = {name: pool.submit(follow, name) for name in PRIORITIES}
    writers = {name: pool.submit(write, name) for name in PRIORITIES}
    assert writers["high"].result(PATIENCE_S) == 0
    assert all(writer.result(PATIENCE_S) >= 0 for writer in writers.values())
    over.set()
    sky.result(PATIENCE_S)
    for name, follower in followers.items():
        assert follower.result(PATIENCE_S) == list(range(per_topic)), name
