"""Unique jobs over HTTP and WebSocket, also with many producers at once and over a restart."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.http.live import LiveServer
from topics_client import Client, InvalidRequest, NotAQueue


def test_producers_of_one_key_get_one_job(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url) as client:
        client.put_topic("jobs", {"type": "queue"})

        def produce(_: int) -> int:
            return client.append("jobs", "refresh", unique_key="page-1").first_seq

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(produce, range(40))) == {1}
        live.stop()
        live.start()
        again = client.append("jobs", "refresh", unique_key="page-1", priority=5)
        assert again.deduped and again.first_seq == 1
        assert client.get_topic("jobs").count == 1
        (job,) = client.claim("jobs", "w").claimed
        client.ack("jobs", "w", [job.seq])
        assert not client.append("jobs", "refresh", unique_key="page-1").deduped


def test_a_key_needs_one_record_and_a_queue(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url) as client:
        client.put_topic("jobs", {"type": "queue"})
        with pytest.raises(InvalidRequest):
            client.append_many("jobs", [1, 2], unique_key="k")
        with pytest.raises(InvalidRequest):
            client.append("jobs", 1, unique_key="")
        client.append("log", 1)
        with pytest.raises(NotAQueue):
            client.append("log", 1, unique_key="k")


def test_a_publish_over_a_websocket_may_have_a_key(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url) as client:
        client.put_topic("jobs", {"type": "queue"})
        first = client.append("jobs", 1, unique_key="k")
        with client.ws() as socket:
            answer = socket.publish("jobs", [1], unique_key="k")
        assert (answer.first_seq, answer.deduped) == (first.first_seq, True)
