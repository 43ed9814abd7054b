"""Many followers for a long time: each sees every record of its topics once and in order, or receives the gap.

A thousand event streams and two hundred WebSockets follow fifty topics. They come and go, some read slowly or not at
all for a while, some topics keep only their newest records, and some are deleted and made anew. `soak` describes how
each follower checks its records. A shorter round of the same goes first, so that what is loaded or kept once for so
many is not counted as growth; after the long one the server must be what it was: no object of live delivery more, no
file, and no memory to speak of.

TOPICS_SOAK_S sets the seconds of it, TOPICS_SOAK_SHARE the part of the followers. It ends in bounded time in every
case, and the second test shows that it notices mistakes.
"""

import asyncio
import os
import resource
import signal
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.http import counted_server
from tests.http.live import LiveServer
from tests.http.soak import Plan, soak, until_nobody_is_left

SECONDS = float(os.environ.get("TOPICS_SOAK_S", "120"))
SHARE = float(os.environ.get("TOPICS_SOAK_SHARE", "1"))
SESSION_TTL_S = 20.0
WHOLE = Plan(SECONDS, int(1000 * SHARE), int(200 * SHARE), guard_s=120.0, session_ttl_s=SESSION_TTL_S)
SMALL = Plan(4.0, 100, 20, guard_s=30.0, session_ttl_s=SESSION_TTL_S)
GROWTH_BYTES_MAX = 24 * 1024 * 1024
# The log may be in the middle of turning to another file.
FILES_MAX = 4
_SETTINGS = {
    "tail_memory_bytes": "2000000", "segment_max_events": "500", "map_cache_bytes": "4000000",
    "slow_consumer_timeout_ms": "4000", "buffer_grace_ms": "1000",
    "watch_session_ttl_ms": str(int(SESSION_TTL_S * 1000)),
}  # fmt: skip


class Weight(NamedTuple):
    """The resources of a server process."""

    resident_bytes: int
    files: list[str]
    objects: Counter[str]


class Soaked:
    """A server that is soaked, and weighed."""

    def __init__(self, folder: Path, mistake: str | None = None) -> None:
        self._census = folder / "census"
        program = [counted_server.__file__, str(self._census), *([mistake] if mistake else [])]
        self.live = LiveServer(folder, program=program, **_SETTINGS)

    def soak(self, seed: int, plan: Plan) -> Counter[str]:
        """One round, which ends in bounded time."""
        happened = asyncio.run(soak(self.live.url, seed, plan))
        asyncio.run(until_nobody_is_left(self.live.url, plan.guard_s + SESSION_TTL_S))
        return happened

    def weigh(self, guard_s: float = 30.0) -> Weight:
        objects = counted_server.ask_census(self.live.pid, self._census, signal.SIGUSR1, guard_s)
        process = Path(f"/proc/{self.live.pid}")
        [resident] = [
            line.split()[1] for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS:")
        ]
        files = [os.readlink(link) for link in (process / "fd").iterdir()]
        # Mapped segments are kept, within `map_cache_bytes`, until a checkpoint takes the files away.
        files = [file for file in files if "/data/topics/" not in file]
        return Weight(int(resident) * 1024, files, objects)


def grown(before: Weight, after: Weight) -> dict[str, str]:
    return {
        kind: f"{before.objects[kind]} before, {count} after"
        for kind, count in after.objects.items()
        if count > before.objects[kind]
    }


@pytest.mark.slow
def test_everyone_sees_everything_once_and_memory_comes_back(tmp_path: Path, seed: int) -> None:
    # A file for every connection, here and in the server, which inherits it.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    soaked = Soaked(tmp_path)
    with soaked.live as live:
        soaked.soak(seed + 1_000_000, WHOLE._replace(seconds=SECONDS / 6))
        before = soaked.weigh()
        happened = soaked.soak(seed, WHOLE)
        after = soaked.weigh()
        print(dict(happened))
        print(f"memory {before.resident_bytes / 1e6:.0f} MB before, {after.resident_bytes / 1e6:.0f} MB after")
        print(f"files {len(before.files)} before, {len(after.files)} after")
        assert not grown(before, after)
        assert len(after.files) <= len(before.files) + FILES_MAX, after.files
        assert after.resident_bytes - before.resident_bytes < GROWTH_BYTES_MAX
        assert "Traceback" not in live.log(), live.log()
    assert happened["records"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("mistake", [*counted_server.MISTAKES])
def test_the_soak_notices(tmp_path: Path, mistake: str) -> None:
    soaked = Soaked(tmp_path, mistake)
    with soaked.live, pytest.raises(AssertionError) as noticed:
        before = soaked.weigh()
        soaked.soak(1, SMALL)
        assert not grown(before, soaked.weigh())
    print(repr(noticed.value)[:500])
