"""`python -m bench.standby`: how long after its acknowledgement a record is visible on a standby that serves reads.

Two servers share a folder as backup storage. One client appends batches to the primary at a fixed rate; another one
appends single records that carry the time, and a long poll at the standby notes when each becomes visible.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx

_PATIENCE_S = 120.0
_PROBE_S = 0.02


def start(folder: Path, place: Path, ship_ms: int, durability: str) -> tuple[subprocess.Popen[bytes], str]:
    folder.mkdir()
    settings = {
        "PORT": "0", "PORT_FILE": str(folder / "port"), "DATA_DIR": str(folder / "data"), "BACKUP_DIR": str(place),
        "PRIMARY_LEASE_MS": "5000", "STANDBY": "1", "STANDBY_READS": "1", "STANDBY_POLL_MS": "50", "WAL_SHARDS": "2",
        "BACKUP_SHIP_MS": str(ship_ms), "SEARCH_FAMILIES": "off", "STREAMS_DURABILITY": durability,
    }  # fmt: skip
    env = {**os.environ, **{f"TOPICS_{name}": value for name, value in settings.items()}}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "topics", "serve"], env=env, stdout=log, stderr=log)
    while not (folder / "port").exists():
        time.sleep(0.05)
    return process, "http://127.0.0.1:" + (folder / "port").read_text().rpartition(":")[2]


def wait_for(client: httpx.Client, url: str, role: str) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while client.get(f"{url}/v0/ready?role={role}").status_code != 200:
        if time.monotonic() > give_up:
            raise SystemExit(f"{url} does not become the {role}")
        time.sleep(0.05)


class Run:
    def __init__(self, primary: str, standby: str, rate: int, batch: int, seconds: float) -> None:
        self.primary, self.standby = primary, standby
        self.rate, self.batch = rate, batch
        self.ends = time.monotonic() + seconds
        self.appended = 0
        self.took: list[float] = []

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.ends

    def load(self) -> None:
        records = [{"data": {"n": number, "text": "x" * 180}} for number in range(self.batch)]
        with httpx.Client(base_url=self.primary, trust_env=False, timeout=_PATIENCE_S) as client:
            began = time.monotonic()
            while self.goes_on:
                client.post("/v0/topics/load", json={"records": records}).raise_for_status()
                self.appended += self.batch
                ahead = began + self.appended / self.rate - time.monotonic()
                if ahead > 0:
                    time.sleep(ahead)

    def probe(self) -> None:
        with httpx.Client(base_url=self.primary, trust_env=False, timeout=_PATIENCE_S) as client:
            while self.goes_on:
                body = {"records": [{"data": time.monotonic()}]}
                client.post("/v0/topics/probe", json=body).raise_for_status()
                time.sleep(_PROBE_S)

    def watch(self) -> None:
        seq = 0
        with httpx.Client(base_url=self.standby, trust_env=False, timeout=_PATIENCE_S) as client:
            while self.goes_on:
                body = {"from_seq": seq, "wait_ms": 1000, "limit": 1000}
                answer = client.post("/v0/topics/probe/diff", json=body)
                now = time.monotonic()
                if answer.status_code == httpx.codes.OK:
                    page = answer.json()
                    self.took += [now - record["data"] for record in page["records"]]
                    seq = page["next_from_seq"]


def measure(rate: int, batch: int, seconds: float, ship_ms: int, durability: str) -> str:
    with tempfile.TemporaryDirectory() as folder, httpx.Client(trust_env=False, timeout=_PATIENCE_S) as client:
        root = Path(folder)
        servers: list[subprocess.Popen[bytes]] = []
        try:
            process, primary = start(root / "primary", root / "place", ship_ms, durability)
            servers.append(process)
            wait_for(client, primary, "primary")
            process, standby = start(root / "standby", root / "place", ship_ms, durability)
            servers.append(process)
            wait_for(client, standby, "standby")
            for name in ("load", "probe"):
                client.put(f"{primary}/v0/topics/{name}", json={"durability": durability}).raise_for_status()
            run = Run(primary, standby, rate, batch, seconds)
            threads = [threading.Thread(target=work, daemon=True) for work in (run.load, run.probe, run.watch)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            took = sorted(run.took)
            p50, p99 = (took[int(len(took) * part)] if took else float("nan") for part in (0.5, 0.99))
            reached = run.appended / seconds
            return (
                f"class {durability}, ship {ship_ms} ms: {reached:,.0f} records/s of {rate:,}, {len(took)} probes: "
                f"p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, longest {took[-1] * 1000 if took else 0:.0f} ms"
            )
        finally:
            for process in servers:
                process.kill()
                process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--ship-ms", type=int, default=200)
    parser.add_argument("--durability", default="disk")
    chosen = parser.parse_args()
    print(measure(chosen.rate, chosen.batch, chosen.seconds, chosen.ship_ms, chosen.durability))


if __name__ == "__main__":
    main()
