"""A server that is killed again and again under 16 workers: acknowledged jobs stay gone, all others come again."""

import itertools
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.live import LiveServer, wait_until_ready

WORKERS = 16
LEASE_MS = 700
BACKLOG_MAX = 300
# Only to fail instead of hanging.
PATIENCE_S = 60.0


class Work:
    """The observations of 16 workers of a queue whose server is killed under them."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._seed = seed
        self._moments: Iterator[int] = itertools.count()
        self.over = threading.Event()
        self.produced: set[int] = set()
        self.delivered: set[int] = set()
        self.acked: dict[int, int] = {}
        """By seq, the moment at which the answer had come. Acknowledged records only."""
        self.doubtful: set[int] = set()
        """Acknowledged without an answer: done or not, both are right."""
        self.returned: list[int] = []
        """Jobs that were handed out after their acknowledgement was answered. There must be none."""

    def run(self) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._work, args=(number,), daemon=True) for number in range(WORKERS)]
        threads.append(threading.Thread(target=self._produce, daemon=True))
        for thread in threads:
            thread.start()
        return threads

    def _produce(self) -> None:
        luck = random.Random(self._seed)
        with httpx.Client(base_url=self._url, timeout=PATIENCE_S) as api:
            while not self.over.is_set():
                if len(self.produced) - len(self.acked) > BACKLOG_MAX:
                    time.sleep(0.02)
                    continue
                body = {"records": [{"data": 1}] * luck.randint(1, 30)}
                try:
                    answer = api.post("/v0/topics/jobs", json=body)
                except httpx.TransportError:
                    time.sleep(0.02)
                    continue
                if answer.is_success:
                    self.produced.update(answer.json()["seqs"])
                time.sleep(0.005)

    def _work(self, number: int) -> None:
        luck = random.Random(self._seed * 100 + number)
        with httpx.Client(base_url=self._url, timeout=PATIENCE_S) as api:
            while not self.over.is_set():
                try:
                    self.round(api, f"w{number}", luck.choice([1, 8]), luck.random() < 0.8)
                except httpx.TransportError:
                    time.sleep(0.02)

    def round(self, api: httpx.Client, node: str, most: int, finishes: bool) -> int:
        """Claims, and acknowledges or leaves the jobs to the end of their leases. Gives how many there were."""
        sent = next(self._moments)
        body = {"node": node, "max": most, "lease_ms": LEASE_MS}
        answer = api.post("/v0/topics/jobs/claim", json=body)
        if not answer.is_success:
            time.sleep(0.02)
            return 0
        jobs = answer.json()["claimed"]
        seqs = [job["$seq"] for job in jobs]
        self.delivered.update(seqs)
        self.returned += [seq for seq in seqs if self.acked.get(seq, sent) < sent]
        if not jobs:
            time.sleep(0.01)
        elif finishes:
            self._ack(api, node, seqs, [job["lease_id"] for job in jobs])
        return len(jobs)

    def _ack(self, api: httpx.Client, node: str, seqs: list[int], lease_ids: list[str]) -> None:
        try:
            answer = api.post("/v0/topics/jobs/ack", json={"node": node, "seqs": seqs, "lease_ids": lease_ids})
        except httpx.TransportError:
            self.doubtful.update(seqs)
            raise
        if not answer.is_success:
            self.doubtful.update(seqs)
            return
        heard, skipped = next(self._moments), set(answer.json()["skipped"])
        self.acked.update({seq: heard for seq in seqs if seq not in skipped})


def kill_again_and_again(folder: Path, seed: int, kills: int, config: dict[str, object]) -> None:
    print(f"seed {seed}")
    luck = random.Random(seed)
    with LiveServer(folder) as live:
        httpx.put(f"{live.url}/v0/topics/jobs", json={"type": "queue", **config}).raise_for_status()
        work = Work(live.url, seed)
        threads = work.run()
        for _ in range(kills):
            time.sleep(luck.uniform(0.2, 0.8))
            live.kill()
            live.start()
            wait_until_ready(live.url)
        time.sleep(0.3)
        work.over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads), seed
        _drain(live.url, work)
    assert not work.returned, seed
    assert work.produced <= work.delivered, seed
    assert work.produced <= work.acked.keys() | work.doubtful, seed
    assert work.acked, seed


def _drain(url: str, work: Work) -> None:
    """Finishes the remaining jobs, which are free at the latest when the last lease has ended."""
    give_up = time.monotonic() + PATIENCE_S
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as api:
        while api.get("/v0/topics/jobs").json()["count"]:
            assert time.monotonic() < give_up, api.get("/v0/topics/jobs").json()
            work.round(api, "last", 1_000, finishes=True)


_CONFIGS = [{"durability": "disk"}, {"durability": "fsync", "leases_durable": True}]


@pytest.mark.parametrize("config", _CONFIGS, ids=str)
def test_acknowledged_jobs_stay_gone_and_all_others_come_again(
    tmp_path: Any, config: dict[str, object], seed: int
) -> None:
    kill_again_and_again(tmp_path, seed, 3, config)


@pytest.mark.slow
@pytest.mark.parametrize("config", _CONFIGS, ids=str)
def test_acknowledged_jobs_stay_gone_for_long(tmp_path: Any, config: dict[str, object], seed: int) -> None:
    kill_again_and_again(tmp_path, seed, 30, config)
