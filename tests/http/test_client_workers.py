"""Workers of both clients against a real server: they finish, fail, hold on, stop, and outlive their server."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.http.live import LiveServer
from topics_client import AsyncClient, Client, FailJob, Job, JobRetry, RetryJob, TopicNotFound

# Only to fail instead of hanging.
PATIENCE_S = 30.0
QUICK = JobRetry(backoff_min_s=0.01, backoff_max_s=0.05)

Handle = Callable[[Job], None]


class Running(Protocol):
    def stop(self) -> None: ...

    def join(self) -> None:
        """Waits for the end of `run`, and raises its error."""
        ...


class Threaded:
    """`Client.worker` in a thread."""

    def __init__(self, url: str, handle: Handle, **options: Any) -> None:
        self._client = Client(url)
        self._worker = self._client.worker("jobs", handle, **options)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._worker.run()
        except BaseException as error:
            self._error = error

    def stop(self) -> None:
        self._worker.stop()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._client.close()
        if self._error is not None:
            raise self._error


class Looped:
    """`AsyncClient.worker` in its own loop; the handler runs in threads, as it may wait."""

    def __init__(self, url: str, handle: Handle, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(url, handle, options), daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)

    def _run(self, url: str, handle: Handle, options: dict[str, Any]) -> None:
        async def main() -> None:
            async with AsyncClient(url) as client:

                async def handle_later(job: Job) -> None:
                    await asyncio.to_thread(handle, job)

                self._worker = client.worker("jobs", handle_later, **options)
                self._ready.set()
                await self._worker.run()

        try:
            self._loop.run_until_complete(main())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._worker.stop)

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


both = pytest.mark.parametrize("kind", [Threaded, Looped])


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path) as server:
        with Client(server.url) as client:
            client.put_topic("jobs", {"type": "queue"})
        yield server


@pytest.fixture
def client(live: LiveServer) -> Iterator[Client]:
    with Client(live.url) as client:
        yield client


def until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def left(client: Client) -> int:
    return client.get_topic("jobs").count


@both
def test_every_job_is_handled_once_and_gone(live: LiveServer, client: Client, kind: Any) -> None:
    seen: list[int] = []
    running: Running = kind(live.url, lambda job: seen.append(job.data), concurrency=4)
    client.append_many("jobs", range(50))
    client.append("jobs", 50)
    until(lambda: left(client) == 0)
    running.stop()
    running.join()
    assert sorted(seen) == list(range(51))


@both
def test_failed_job_is_retried_until_it_succeeds(live: LiveServer, client: Client, kind: Any) -> None:
    seen: list[tuple[str, int]] = []

    def handle(job: Job) -> None:
        seen.append((job.data, job.deliveries))
        if job.data == "fails" and job.deliveries < 3:
            raise ValueError("not yet")
        if job.data == "later" and job.deliveries < 2:
            raise RetryJob(0.01)

    running: Running = kind(live.url, handle, concurrency=2, retry=QUICK, idle_s=0.05)
    client.append_many("jobs", ["fails", "later"])
    until(lambda: left(client) == 0)
    running.stop()
    running.join()
    assert sorted(seen) == [("fails", 1), ("fails", 2), ("fails", 3), ("later", 1), ("later", 2)]


@both
def test_dead_letters_of_a_worker_have_its_exceptions(live: LiveServer, client: Client, kind: Any) -> None:
    client.put_topic("jobs", {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"})

    def handle(job: Job) -> None:
        if job.data == "hopeless":
            raise FailJob("no such customer")
        raise ValueError("no such file")

    running: Running = kind(live.url, handle, retry=QUICK, idle_s=0.05)
    client.append_many("jobs", ["hopeless", "fails"])
    until(lambda: left(client) == 0)
    running.stop()
    running.join()
    letters = client.diff("dead").records
    reasons = {letter.data: letter.meta["$dead_letter_reason"] for letter in letters if letter.meta is not None}
    assert reasons == {"hopeless": "FailJob: no such customer", "fails": "ValueError: no such file"}
    client.delete_topic("dead")


@both
def test_a_failed_job_waits_before_it_comes_again(live: LiveServer, client: Client, kind: Any) -> None:
    def handle(job: Job) -> None:
        raise ValueError("never")

    running: Running = kind(live.url, handle, retry=JobRetry(backoff_min_s=60.0))
    client.append("jobs", 1)

    def delayed() -> int:
        counters = client.get_topic("jobs").queue
        return counters.delayed if counters is not None else 0

    until(lambda: delayed() == 1)
    running.stop()
    running.join()


@both
def test_a_long_job_keeps_its_lease(live: LiveServer, client: Client, kind: Any) -> None:
    """It takes several times its lease, with another worker hungry for it."""
    seen: list[str] = []

    def slow(job: Job) -> None:
        seen.append(f"begun {job.deliveries}")
        time.sleep(3.0)
        seen.append("done")

    running: Running = kind(live.url, slow, lease_ms=1_000)
    client.append("jobs", 1)
    until(lambda: bool(seen))
    while len(seen) < 2:
        assert client.claim("jobs", "thief", max=5).claimed == []
        time.sleep(0.02)
    until(lambda: left(client) == 0)
    running.stop()
    running.join()
    assert seen == ["begun 1", "done"]


@both
def test_a_stop_finishes_what_was_begun(live: LiveServer, client: Client, kind: Any) -> None:
    begun, go = threading.Event(), threading.Event()
    done: list[int] = []

    def handle(job: Job) -> None:
        begun.set()
        assert go.wait(PATIENCE_S)
        done.append(job.data)

    running: Running = kind(live.url, handle, concurrency=1)
    client.append_many("jobs", [1, 2, 3])
    assert begun.wait(PATIENCE_S)
    running.stop()
    go.set()
    running.join()
    assert done == [1]
    counters = client.get_topic("jobs").queue
    assert counters is not None
    assert (counters.ready, counters.in_flight) == (2, 0)


@both
def test_no_more_at_once_than_reported(live: LiveServer, client: Client, kind: Any) -> None:
    lock = threading.Lock()
    now, most = 0, 0

    def handle(job: Job) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        with lock:
            now -= 1

    running: Running = kind(live.url, handle, concurrency=3)
    client.append_many("jobs", range(12))
    until(lambda: left(client) == 0)
    running.stop()
    running.join()
    assert most == 3


@both
def test_a_worker_outlives_its_server(live: LiveServer, client: Client, kind: Any) -> None:
    seen: list[int] = []
    running: Running = kind(live.url, lambda job: seen.append(job.data))
    client.append("jobs", 1)
    until(lambda: left(client) == 0)
    live.kill()
    live.start()
    client.append("jobs", 2)
    until(lambda: left(client) == 0)
    running.stop()
    running.join()
    assert set(seen) == {1, 2}


@both
def test_a_queue_that_is_gone_ends_the_worker(live: LiveServer, client: Client, kind: Any) -> None:
    running: Running = kind(live.url, lambda job: None, idle_s=0.05)
    client.delete_topic("jobs")
    with pytest.raises(TopicNotFound):
        running.join()


def test_a_cancelled_worker_gives_its_jobs_back(live: LiveServer, client: Client) -> None:
    client.append("jobs", 1)

    async def main() -> None:
        async with AsyncClient(live.url) as patient:
            begun = asyncio.Event()

            async def handle(job: Job) -> None:
                begun.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(patient.worker("jobs", handle).run())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert [job.deliveries for job in client.claim("jobs", "next").claimed] == [2]


def test_jobs_with_priorities_and_start_times(client: Client) -> None:
    client.put_topic("jobs", {"type": "queue"})
    later = datetime.now(UTC) + timedelta(days=40)
    client.append("jobs", "usual")
    client.append("jobs", "urgent", priority=5)
    client.append_many("jobs", ["later", "later"], run_at=later, priority=9)
    client.append("jobs", "now", run_at=0)
    assert [job.data for job in client.claim("jobs", "w", max=9).claimed] == ["urgent", "usual", "now"]
    found = client.list_jobs("jobs", "delayed").jobs
    expected = later.timestamp() * 1000
    assert [job.priority for job in found] == [9, 9]
    assert all(job.ready_at is not None and abs(job.ready_at - expected) < 10_000 for job in found)


def test_the_calls_of_queues(client: Client) -> None:
    client.put_topic("jobs", {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"})
    client.append_many("jobs", [1, 2, 3])
    client.append("jobs", 4, delay_ms=60_000)
    one, two, three = client.claim("jobs", "w", max=10, lease_ms=60_000).claimed
    assert (one.seq, one.data, one.deliveries) == (1, 1, 1)
    assert client.extend("jobs", "w", [1], 90_000, lease_ids=[one.lease_id]).deadlines[1] > one.deadline
    leases = client.list_leases("jobs", page_size=2)
    assert [(lease.seq, lease.node) for lease in leases.leases] == [(1, "w"), (2, "w")]
    assert [lease.seq for lease in client.list_leases("jobs", after=leases.next_after or 0).leases] == [3]
    assert client.list_leases("jobs", node="nobody").leases == []
    assert client.ack("jobs", "w", [1, 99], lease_ids=[one.lease_id, ""]).skipped == [99]
    assert client.nack("jobs", "w", [2]).nacked == 1
    assert client.nack("jobs", "w", [3], delay_ms=60_000, lease_ids=[three.lease_id]).nacked == 1
    assert client.claim("jobs", "w").claimed == []

    def buried() -> int:
        counters = client.get_topic("jobs").queue
        return counters.dead_lettered if counters is not None else 0

    until(lambda: buried() == 1)
    moved = client.redrive("jobs", max=5)
    assert (moved.moved, moved.source, moved.more) == (1, "dead", False)
    assert client.claim("jobs", "w").claimed[0].data == two.data


def test_jobs_are_pushed_over_a_work_stream(live: LiveServer, client: Client) -> None:
    client.append_many("jobs", [1, 2, 3])
    seen = []
    with client.work("jobs", "pushed", max=2) as stream:
        for job in stream:
            seen.append(job.data)
            assert client.ack("jobs", "pushed", [job.seq], lease_ids=[job.lease_id]).acked == 1
            if len(seen) == 3:
                # It goes on by itself when its server comes back.
                live.kill()
                live.start()
                client.append("jobs", 4)
            if len(seen) == 4:
                break
        client.append("jobs", 5)
        until(lambda: client.list_leases("jobs").leases != [])
    assert seen == [1, 2, 3, 4]
    # Leaving the block closed the connection, and the jobs pushed over it are free.
    until(lambda: client.list_leases("jobs").leases == [])
    assert [job.data for job in client.claim("jobs", "next").claimed] == [5]


def test_jobs_are_pushed_over_a_work_stream_of_asyncio(live: LiveServer, client: Client) -> None:
    client.append_many("jobs", [1, 2])

    async def main() -> list[int]:
        async with AsyncClient(live.url) as patient:
            seen: list[int] = []
            async with patient.work("jobs", "pushed") as stream:
                async for job in stream:
                    seen.append(job.data)
                    await patient.ack("jobs", "pushed", [job.seq])
                    if len(seen) == 2:
                        break
            return seen

    assert asyncio.run(main()) == [1, 2]


def test_a_work_stream_ends_with_its_queue(client: Client) -> None:
    with client.work("jobs", "pushed") as stream:
        deleting = threading.Timer(0.2, lambda: client.delete_topic("jobs"))
        deleting.start()
        with pytest.raises(TopicNotFound):
            next(stream)
        # The stream may hear of it before the answer is there, and the client is closed behind the test.
        deleting.join()


WORKER = """
import sys, time
from topics_client import Client

def handle(job):
    print("begun", flush=True)
    time.sleep(1.0)
    print("done", flush=True)

with Client(sys.argv[1]) as client:
    client.worker("jobs", handle, node="interrupted").run()
print("after", flush=True)
"""


def test_ctrl_c_ends_a_worker_as_a_stop_does(live: LiveServer, client: Client) -> None:
    client.append_many("jobs", [1, 2])
    child = subprocess.Popen(
        [sys.executable, "-c", WORKER, live.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        child.send_signal(signal.SIGINT)
        out, complaints = child.communicate(timeout=PATIENCE_S)
    finally:
        child.kill()
        child.wait()
    assert (child.returncode, out, complaints) == (0, "done\nafter\n", "")
    # The job in progress is done and acknowledged, the other is free.
    assert left(client) == 1
    assert client.list_leases("jobs").leases == []


def test_ctrl_c_ends_an_idle_worker(live: LiveServer) -> None:
    script = WORKER.replace("with Client", "print('ready', flush=True)\nwith Client")
    child = subprocess.Popen(
        [sys.executable, "-c", script, live.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        # Some moment of its waiting for jobs: which one makes no difference.
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        out, complaints = child.communicate(timeout=PATIENCE_S)
    finally:
        child.kill()
        child.wait()
    assert (child.returncode, out, complaints) == (0, "after\n", "")
