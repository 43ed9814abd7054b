"""Memory of a server whose keys create everything they can until they are refused, with the default limits.

The resident memory of the server and of each of its processes stays under 1 GB, for one key and for ten. `kinds` lists
the created resources. The cost of each step is printed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.http.hostile.kinds import KEPT, KINDS, Filled, Held, fill
from tests.http.live import LiveServer
from topics.model.limits import MIB, Limits

MOST_MIB = 1000
LIMITED = {
    "topics": "max_topics_per_key", "routers": "max_routers_per_key", "consumers": "max_consumers_per_key",
    "subscriptions": "max_subscriptions_per_key", "watch sessions": "max_watch_sessions_per_key",
    "open transactions": "max_transactions", "versions of schemas": "max_memory_bytes_per_key",
    "leased jobs": "max_memory_bytes_per_key", "delayed jobs": "max_memory_bytes_per_key",
    "idempotency keys": "max_memory_bytes_per_key", "ephemeral records": "max_memory_bytes_per_key",
}  # fmt: skip
"""The limit that refuses each kind. Tokens are not kept, and caches, files and counters bound the others."""


@contextmanager
def served(folder: Path, keys: int = 1) -> Iterator[tuple[LiveServer, list[tuple[str, str]]]]:
    """A server with its default limits, and its keys with their prefixes. Its streams are not synced, to save time."""
    owners = [(f"secret-of-the-key-{number}", f"k{number}-") for number in range(keys)]
    listed = ",".join([f"{key}::{prefix}" for key, prefix in owners])
    with LiveServer(folder, api_keys=listed, pipeline="off", streams_durability="memory") as live:
        yield live, owners


def peaks_mib(pid: int) -> list[int]:
    """The most resident memory that a process had, and each process that it started."""
    fields = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = [next(int(line.split()[1]) for line in fields if line.startswith("VmHWM")) // 1024]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += peaks_mib(int(child))
    return found


def report(server: LiveServer, title: str, filled: Filled) -> list[int]:
    found = peaks_mib(server.pid)
    print(f"{title:<28} {filled.requests:>7} requests, {filled.refusal or 'no refusal':<28} peak {found} MiB")
    return found


def test_memory_stays_bounded_when_three_keys_create_what_is_quickly_created(tmp_path: Path) -> None:
    quick = ["subscriptions", "watch sessions", "open transactions", "ephemeral records"]
    with served(tmp_path, 3) as (server, owners):
        for kind, (key, own) in [*((kind, owners[0]) for kind in quick), ("delayed jobs", owners[1])]:
            filled = fill(server.url, key, own, kind)
            assert filled.refusal.startswith(LIMITED[kind].removesuffix("_per_key"))
            assert max(report(server, kind, filled)) < MOST_MIB
        # Two keys have used up the budget of all.
        filled = fill(server.url, *owners[2], "ephemeral records")
        assert filled.refusal == "max_memory_bytes"
        held = Held(server.url, *owners[0], each=50)
        assert max(report(server, "connections", filled)) < MOST_MIB
        held.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KEPT)
def test_estimate_of_kept_memory_covers_what_a_kind_takes(tmp_path: Path, kind: str) -> None:
    with served(tmp_path) as (server, [(key, own)]):
        begun = max(peaks_mib(server.pid))
        filled = fill(server.url, key, own, kind)
        assert filled.refusal == LIMITED.get(kind, "")
        # Requests in flight take some as well.
        assert max(report(server, kind, filled)) - begun < 1.5 * Limits().max_memory_bytes_per_key / MIB


@pytest.mark.slow
def test_memory_stays_bounded_when_one_key_creates_everything(tmp_path: Path) -> None:
    with served(tmp_path) as (server, [(key, own)]):
        for kind in KINDS:
            filled = fill(server.url, key, own, kind)
            assert max(report(server, kind, filled)) < MOST_MIB
            assert filled.refusal in (LIMITED.get(kind, ""), "max_memory_bytes_per_key"), filled
        held = Held(server.url, key, own, each=300)
        assert max(report(server, "connections", filled)) < MOST_MIB
        held.close()


@pytest.mark.slow
def test_memory_stays_bounded_when_ten_keys_create_everything(tmp_path: Path) -> None:
    """Each key begins with another kind, so that the limits of the server meet every kind."""
    kinds = list(KINDS)
    with served(tmp_path, 10) as (server, owners):
        for number, (key, own) in enumerate(owners):
            for kind in kinds[number:] + kinds[:number]:
                filled = fill(server.url, key, own, kind, most=KINDS[kind][1] // 10)
                assert max(report(server, f"{own} {kind}", filled)) < MOST_MIB
                assert not filled.refusal or filled.refusal.startswith("max_"), (kind, filled)
            held = Held(server.url, key, own, each=50)
            assert max(report(server, f"{own} connections", filled)) < MOST_MIB
            held.close()
