"""Work streams among claims, acknowledgements, nacks, delays and connections that break, all at random.

Nothing may be lost: not a job, and not the moment at which one becomes free while a stream waits for it. A wake-up that
gets lost leaves a job in the queue with idle workers around it, and the test waiting until its patience ends. Leases
last a day, so that nothing but a wake-up can free a job.
"""

import random
import threading
import time
from typing import Any

import httpx
import pytest

from tests.http.api.events import PATIENCE_S, EventStream
from tests.http.live import LiveServer

STREAMS = 6
CLAIMERS = 2
JOBS = 250


class Crowd:
    """All workers of one queue."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.seed = seed
        self.over = threading.Event()
        self.acked: list[int] = []
        self.troubles: list[BaseException] = []
        self._lock = threading.Lock()

    def start(self) -> list[threading.Thread]:
        bodies = [self._stream] * STREAMS + [self._claim] * CLAIMERS + [self._produce]
        threads = [
            threading.Thread(target=self._guarded, args=(body, number), daemon=True)
            for number, body in enumerate(bodies)
        ]
        for thread in threads:
            thread.start()
        return threads

    def _guarded(self, body: Any, number: int) -> None:
        try:
            with httpx.Client(base_url=self.url, timeout=PATIENCE_S) as api:
                body(api, f"w{number}", random.Random(self.seed * 100 + number))
        except BaseException as error:
            if not self.over.is_set():
                self.troubles.append(error)
                self.over.set()

    def _produce(self, api: httpx.Client, node: str, luck: random.Random) -> None:
        left = JOBS
        while left:
            count = min(luck.randint(1, 20), left)
            left -= count
            delay_ms = luck.choice([0, 0, 0, luck.randint(1, 60)])
            body = {"records": [{"data": node}] * count, "delay_ms": delay_ms}
            api.post("/v0/topics/jobs", json=body).raise_for_status()
            time.sleep(luck.choice([0, 0.002, 0.02]))

    def _stream(self, api: httpx.Client, node: str, luck: random.Random) -> None:
        while not self.over.is_set():
            with EventStream(self.url, f"/v0/topics/jobs/work?node={node}&max={luck.randint(1, 5)}") as stream:
                for _ in range(luck.randint(1, 40)):
                    event = stream.event()
                    if event.name != "job":
                        return
                    self._settle(api, node, luck, [event.data["$seq"]])
                # The connection breaks, with the jobs pushed over it meanwhile

    def _claim(self, api: httpx.Client, node: str, luck: random.Random) -> None:
        while not self.over.is_set():
            body = {"node": node, "max": luck.randint(1, 4)}
            answer = api.post("/v0/topics/jobs/claim", json=body)
            if answer.status_code == 404:
                return
            self._settle(api, node, luck, [job["$seq"] for job in answer.json()["claimed"]])
            time.sleep(luck.choice([0.001, 0.05]))

    def _settle(self, api: httpx.Client, node: str, luck: random.Random, seqs: list[int]) -> None:
        """Acknowledges, or gives back at once or after a while; a part may stay for the end of the connection."""
        for seq in seqs:
            word = luck.choice(["ack", "ack", "ack", "nack", "later"])
            if word == "ack":
                answer = api.post("/v0/topics/jobs/ack", json={"node": node, "seqs": [seq]}).json()
                if answer.get("acked"):
                    with self._lock:
                        self.acked.append(seq)
            else:
                delay_ms = luck.randint(1, 80) if word == "later" else 0
                api.post("/v0/topics/jobs/nack", json={"node": node, "seqs": [seq], "delay_ms": delay_ms})


def run_crowd(url: str, seed: int, **config: object) -> None:
    print(f"seed {seed}")
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as api:
        api.put("/v0/topics/jobs", json={"type": "queue", "lease_ms": 86_400_000, **config}).raise_for_status()
        crowd = Crowd(url, seed)
        threads = crowd.start()
        give_up = time.monotonic() + 2 * PATIENCE_S
        while len(crowd.acked) < JOBS and not crowd.over.is_set():
            state = api.get("/v0/topics/jobs").json()
            assert time.monotonic() < give_up, (seed, len(crowd.acked), state)
            time.sleep(0.01)
        assert not crowd.troubles, (seed, crowd.troubles)
        crowd.over.set()
        state = api.get("/v0/topics/jobs").json()
        # Ends the streams, which wait for more.
        api.delete("/v0/topics/jobs").raise_for_status()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads), seed
        assert sorted(crowd.acked) == list(range(1, JOBS + 1)), seed
        assert (state["count"], state["queue"]["ready"], state["queue"]["in_flight"]) == (0, 0, 0), seed


@pytest.mark.parametrize("config", [{}, {"leases_durable": True}, {"claim_jitter_ms": 20}], ids=str)
def test_no_job_and_no_wake_up_is_lost(tmp_path: Any, config: dict[str, object], seed: int) -> None:
    with LiveServer(tmp_path) as live:
        run_crowd(live.url, seed, **config)


@pytest.mark.slow
def test_no_job_and_no_wake_up_is_lost_for_long(tmp_path: Any, seed: int) -> None:
    with LiveServer(tmp_path) as live:
        for number in range(seed, seed + 30):
            luck = random.Random(number)
            run_crowd(live.url, number, leases_durable=luck.random() < 0.3, claim_jitter_ms=luck.choice([0, 0, 5, 50]))
