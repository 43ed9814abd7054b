"""Failovers of real servers under faults and a mixed load: class remote loses nothing, writes nothing twice, and gives
no seq two meanings; every loss of another class is in a range that readers are told."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.failover_faults import FaultyServer, Load, wait_for_primary
from tests.s3 import S3Server

LEASE_MS = 1000
MANY = int(os.environ.get("TOPICS_FAILOVERS", "200"))
SEED = int(os.environ.get("TOPICS_TEST_SEED", "20261119"))


class Trial:
    """Two servers and a load."""

    def __init__(self, folder: Path, store: S3Server) -> None:
        self.place = store.make_bucket() + "/place"
        self._environment = store.environment
        self.servers = [
            FaultyServer(folder / "first", store, self.place, primary_lease_ms=str(LEASE_MS)),
            FaultyServer(folder / "second", store, self.place, clock_off_s=-300, primary_lease_ms=str(LEASE_MS)),
        ]
        self.took_s: list[float] = []
        for server in self.servers:
            server.start()
            if server is self.servers[0]:
                wait_for_primary([server])
        self.load = Load([server.url for server in self.servers])
        self.load.set_up()
        self.load.start()

    def close(self) -> None:
        for server in self.servers:
            server.end()
            server.proxy.close()

    def fail_over(self, kind: str) -> None:
        self.load.wait_for(10)
        primary, term = wait_for_primary(self.servers)
        other = next(server for server in self.servers if server is not primary)
        if not other.runs:
            other.start()
        began = time.monotonic()
        getattr(self, f"_{kind}")(primary, other, term)
        self.took_s.append(time.monotonic() - began)
        for server in self.servers:
            server.proxy.heal()
            if not server.runs:
                server.start()
        assert self.load.wrong == [], (kind, self.load.wrong[:5])

    def finish(self) -> dict[str, int]:
        self.load.wait_for(10)
        self.load.stop()
        return self.load.check(wait_for_primary(self.servers)[0].url)

    # The kinds of faults

    def _killed(self, primary: FaultyServer, other: FaultyServer, term: int) -> None:
        primary.kill()
        wait_for_primary([other], term)

    def _killed_and_first_again(self, primary: FaultyServer, other: FaultyServer, term: int) -> None:
        primary.kill()
        primary.start()
        wait_for_primary(self.servers, term)

    def _paused(self, primary: FaultyServer, other: FaultyServer, term: int) -> None:
        primary.signal(signal.SIGSTOP)
        wait_for_primary([other], term)
        self.load.wait_for(3)
        primary.signal(signal.SIGCONT)
        primary.wait_for_end()

    def _cut_off(self, primary: FaultyServer, other: FaultyServer, term: int) -> None:
        primary.proxy.cut()
        wait_for_primary([other], term)
        primary.proxy.heal()
        primary.wait_for_end()

    def _killed_with_a_slow_store(self, primary: FaultyServer, other: FaultyServer, term: int) -> None:
        for server in self.servers:
            server.proxy.delay_s = 0.02
        self.load.wait_for(3)
        self._killed(primary, other, term)

    def _without_answers(self, primary: FaultyServer, other: FaultyServer, term: int) -> None:
        primary.proxy.loses_answers = True
        wait_for_primary([other], term)
        primary.proxy.heal()
        primary.wait_for_end()

    def _promoted(self, primary: FaultyServer, other: FaultyServer, term: int) -> None:
        command = [sys.executable, "-m", "topics", "promote", "--at", self.place, "--yes"]
        environment = {**os.environ, **self._environment}
        while subprocess.run(command, capture_output=True, timeout=60, check=False, env=environment).returncode:
            time.sleep(0.05)  # The primary renewed its lease meanwhile, or has no backup yet.
        wait_for_primary(self.servers, term)
        primary.wait_for_end()

    def _stopped(self, primary: FaultyServer, other: FaultyServer, term: int) -> None:
        primary.signal(signal.SIGTERM)
        wait_for_primary([other], term)
        primary.wait_for_end()


KINDS = [
    "killed", "killed_and_first_again", "paused", "cut_off", "killed_with_a_slow_store", "without_answers", "promoted",
    "stopped",
]  # fmt: skip


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    with S3Server() as store:
        made = Trial(tmp_path, store)
        try:
            yield made
        finally:
            made.close()


def test_failovers_of_several_kinds_lose_nothing_of_class_remote(trial: Trial) -> None:
    for kind in ("killed", "paused"):
        trial.fail_over(kind)
    counts = trial.finish()
    assert counts["orders"] >= 20


@pytest.mark.slow
def test_many_failovers_lose_nothing_of_class_remote(trial: Trial) -> None:
    """TOPICS_FAILOVERS sets how many."""
    print(f"seed {SEED}")
    chosen, kinds = random.Random(SEED), Counter[str]()
    for number in range(MANY):
        kind = KINDS[number] if number < len(KINDS) else chosen.choice(KINDS)
        kinds[kind] += 1
        trial.fail_over(kind)
        print(f"{number + 1} {kind} {trial.took_s[-1]:.1f} s", flush=True)
    print(f"{dict(kinds)} {trial.finish()}")
