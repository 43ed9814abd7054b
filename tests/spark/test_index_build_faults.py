"""After every failure of a family build, appends are acknowledged and searches find the same as a plain filter.

Each test is a server with its own pipeline in its own processes: killed, out of memory, and without room.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.live import LiveServer
from tests.http.searched import UNPRESSED, Searched
from tests.spark.planted_faults import Planted, is_gone
from tests.spark.test_pipeline import processes_of
from tests.spark.waiting_for import sealed_to, wait_until
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.search.file_index.manifest import IndexStore
from topics.search.file_index.reader import IndexFile
from topics.spark.pipeline.supervisor import FAILING

_SETTINGS = {
    **UNPRESSED,
    "segment_max_events": "50",
    "snapshot_interval_ms": "200",
    "pipeline_poll_ms": "200",
    "pipeline_priority": "normal",
    "spark_memory": "512m",
    "search_families": "auto",
    "search_stream_bytes": "65536",
}


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    return Planted(tmp_path / "planted", monkeypatch)


@pytest.fixture
def server(planted: Planted, tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path, **_SETTINGS) as live:
        yield live
        live.stop()
    wait_until(lambda: not processes_of(tmp_path), "nothing is left of the pipeline")


def reported(server: LiveServer) -> dict[str, Any]:
    return dict(httpx.get(server.url + "/v0/pipeline").json())


def metric(server: LiveServer, name: str) -> float:
    lines = httpx.get(server.url + "/v0/metrics").text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " "))


def work_on(stream: Searched) -> None:
    """The server's work that must go on in every state of the pipeline."""
    stream.append(30)
    stream.check()


def fill(data: Path, stream: Searched) -> None:
    stream.append(110)
    wait_until(lambda: sealed_to(data, stream.name) >= 100, "it is sealed")
    stream.check()


def indexed(data: Path) -> dict[str, int] | None:
    """How many entries the companions of each stream hold, all of them whole; None while there are other files."""
    store = IndexStore(PosixFileSystem(), Layout(str(data)))
    rows = {}
    for topic_id in store.topic_ids():
        manifest = store.load(topic_id)
        if set(store.files(topic_id)) - (set() if manifest is None else manifest.named()):
            return None
        for file in () if manifest is None else manifest.files:
            IndexFile(store.map(topic_id, file.name)).check()
        if manifest is not None:
            rows[manifest.topic] = sum(file.rows for file in manifest.files)
    return rows


def java_of(worker: int) -> int:
    """The Java that a pipeline has started."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            command, _, rest = stat.rpartition(")")
            if command.endswith("(java") and int(rest.split()[1]) == worker:
                return int(name)
    raise AssertionError("there is no Java")


def test_a_build_that_is_killed_comes_back_and_finishes(server: LiveServer, planted: Planted, tmp_path: Path) -> None:
    """First Java alone is killed in the middle of a build, then the process that runs the pipeline."""
    data = tmp_path / "data"
    planted.plant("hold")
    with Searched(server.url, "logs") as stream:
        fill(data, stream)
        for restarts, whom in ((1, "java"), (2, "worker")):
            wait_until(planted.is_held, "a build is on its way")
            assert stream.indexed_segments() == 0
            [worker] = processes_of(tmp_path)
            java = java_of(worker)
            os.kill(java if whom == "java" else worker, signal.SIGKILL)
            wait_until(lambda restarts=restarts: reported(server)["restarts"] >= restarts, "it is noticed")  # type: ignore[misc]
            work_on(stream)
            wait_until(lambda java=java: is_gone(java), "nothing is left of its Java")  # type: ignore[misc]
            wait_until(lambda: not planted.is_held(), "nothing is left of its tasks")
            assert reported(server)["failures"] >= restarts
            assert reported(server)["error"] is not None
            assert stream.held_up()["reason"] == FAILING
            assert stream.held_up()["attempts"] >= restarts
        assert "SIGKILL" in reported(server)["error"]
        planted.lift("hold")
        wait_until(lambda: stream.indexed_segments() >= 1, "it comes back and finishes")
        work_on(stream)
        wait_until(lambda: reported(server)["error"] is None, "all is well")
        assert (reported(server)["failures"], stream.held_up()) == (0, {})
        wait_until(lambda: indexed(data) == {"logs": sealed_to(data, "logs")}, "all is indexed")
        stream.check()


def test_streams_whose_tasks_run_out_of_memory_are_quarantined(
    server: LiveServer, planted: Planted, tmp_path: Path
) -> None:
    """One task is refused memory, another is killed for having taken too much. Once there is enough they are built."""
    data = tmp_path / "data"
    planted.plant("greedy", "deadly", "hold")
    with ExitStack() as stack:
        streams = [stack.enter_context(Searched(server.url, name)) for name in ("greedy", "good", "deadly")]
        greedy, good, deadly = streams
        for stream in streams:
            fill(data, stream)
        planted.lift("hold")
        wait_until(lambda: good.indexed_segments() >= 1, "the others are built")
        # The status of a product is counted at the end of the round in which they are found.
        wait_until(lambda: [one["quarantined"] for one in reported(server)["products"]] == [2], "two are left out")
        for stream in streams:
            work_on(stream)
        quarantined = {one["topic"]: one for one in reported(server)["quarantined"]}
        assert quarantined.keys() == {"greedy", "deadly"}
        assert quarantined["greedy"]["reason"].startswith("MemoryError")
        for stream in (greedy, deadly):
            held = stream.held_up()
            assert held["attempts"] >= 1 and held["retry_at"] is not None
            assert stream.indexed_segments() == 0
        assert good.held_up() == {}
        [families] = reported(server)["products"]
        assert (families["product"], families["quarantined"]) == ("families", 2)
        assert families["failures"] >= 2
        assert metric(server, "topics_pipeline_quarantined_topics") == 2
        assert metric(server, 'topics_pipeline_product_quarantined{product="families"}') == 2
        assert metric(server, 'topics_pipeline_product_failures_total{product="families"}') >= 2
        planted.lift("greedy", "deadly")
        for stream in (greedy, deadly):
            wait_until(lambda stream=stream: stream.indexed_segments() >= 1, "it is built")  # type: ignore[misc]
            work_on(stream)
        wait_until(lambda: not reported(server)["quarantined"], "nobody is left out any more")
        assert greedy.held_up() == deadly.held_up() == {}


_PAGE_BYTES = 4096
_ON_A_SMALL_DISK = """
import os, sys
serve = "import sys; from topics.cli import main; sys.exit(main(['serve']))"
mount = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3"'
families = os.environ["TOPICS_DATA_DIR"] + "/families"
os.makedirs(families)
os.execvp("unshare", ["unshare", "-rm", "sh", "-c", mount, "sh", families, sys.executable, serve])
"""


_MOUNT_ANYTHING = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/tmp"]


def may_mount() -> bool:
    try:
        return subprocess.run(_MOUNT_ANYTHING, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not may_mount(), reason="nobody may mount a disk of its own here")
def test_a_build_without_room_publishes_nothing_and_is_done_when_there_is_some(tmp_path: Path) -> None:
    """The families are on their own disk, with room for a part of a companion."""
    data = tmp_path / "data"
    with LiveServer(tmp_path, ("-c", _ON_A_SMALL_DISK), **_SETTINGS) as server:
        seen = Path(f"/proc/{server.pid}/root{data}")
        balloon = seen / "families" / "balloon"
        balloon.write_bytes(bytes((1 << 20) - _PAGE_BYTES))
        with Searched(server.url, "logs") as stream:
            fill(data, stream)
            wait_until(lambda: reported(server)["error"] is not None, "a round has failed")
            work_on(stream)
            assert "No space left" in reported(server)["error"]
            assert reported(server)["quarantined"] == []
            assert stream.held_up()["reason"] == FAILING
            assert metric(server, "topics_pipeline_failures") >= 1
            assert stream.indexed_segments() == 0
            # The part that was written is gone at once, and not when the next process begins.
            wait_until(lambda: indexed(seen) == {}, "nothing is left of it")
            balloon.unlink()
            wait_until(lambda: stream.indexed_segments() >= 1, "it is built")
            wait_until(lambda: reported(server)["error"] is None, "all is well")
            work_on(stream)
            assert stream.held_up() == {}
            wait_until(lambda: indexed(seen) == {"logs": sealed_to(data, "logs")}, "all is indexed")
            stream.check()
        server.stop()
