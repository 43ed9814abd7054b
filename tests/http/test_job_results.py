"""Results of jobs over HTTP, with a client that waits for one."""

import threading
import time
from pathlib import Path

import pytest

from tests.http.live import LiveServer
from topics_client import Client, InvalidRequest, JobNotFound


def test_a_client_waits_for_the_result_of_its_job(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url) as client, Client(live.url) as worker:
        client.put_topic("jobs", {"type": "queue", "result_retention_ms": 60_000})
        seq = client.append("jobs", 3).first_seq

        def work() -> None:
            time.sleep(0.2)
            (job,) = worker.claim("jobs", "w").claimed
            worker.ack("jobs", "w", [job.seq], lease_ids=[job.lease_id], result={"square": job.data**2})

        thread = threading.Thread(target=work)
        thread.start()
        assert client.get_result("jobs", seq).state == "ready"
        found = client.get_result("jobs", seq, wait_ms=20_000)
        thread.join()
        assert (found.state, found.result, found.node) == ("done", {"square": 9}, "w")
        live.stop()
        live.start()
        assert client.get_result("jobs", seq).result == {"square": 9}


def test_a_wait_ends_with_its_time_and_with_the_job(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url) as client, Client(live.url) as other:
        client.put_topic("jobs", {"type": "queue", "result_retention_ms": 60_000})
        client.append_many("jobs", [1, 2])
        assert client.get_result("jobs", 1, wait_ms=50).state == "ready"
        timer = threading.Timer(0.2, lambda: other.cancel_job("jobs", 2))
        timer.start()
        with pytest.raises(JobNotFound):
            client.get_result("jobs", 2, wait_ms=20_000)
        timer.join()


def test_a_queue_that_keeps_no_results_refuses_one(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url) as client:
        client.put_topic("jobs", {"type": "queue"})
        client.append("jobs", 1)
        (job,) = client.claim("jobs", "w").claimed
        with pytest.raises(InvalidRequest):
            client.ack("jobs", "w", [job.seq], result=1)
        assert client.ack("jobs", "w", [job.seq]).acked == 1
        with pytest.raises(JobNotFound):
            client.get_result("jobs", job.seq)
