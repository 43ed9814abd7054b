"""Independent readers, at a table whose writer was killed at any step of a commit.

The content that they find is a whole version: before the round or after it, or between two commits of it; no row twice,
none that never existed, and none missing that both versions have. After the next round it equals the result of diff.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.http.live import LiveServer
from tests.readers import Row, read_by_all
from tests.spark.iceberg_runtime import read_by_spark
from tests.spark.test_table_readers import archive, fill, of, sealed
from tests.spark.waiting_for import checkpointed
from topics.log.fs import FileSystem
from topics.model.settings import Settings
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.pipeline_settings import files_of
from topics.spark.pipeline.pipeline_worker import make_pipeline
from topics.system.clock import SystemClock
from topics.testing import FaultyFileSystem, ManualClock, PowerCut
from topics_client import Client

Read = Callable[[str], list[Row]]


class KilledFileSystem(FaultyFileSystem):
    """Its process is killed at a call, counted among the calls that change anything: completed calls stay, and neither
    this call nor any later one happens, because no process is left to tidy up."""

    def __init__(self, inner: FileSystem, last: int) -> None:
        super().__init__(inner)
        self._last = last

    def _verdict(self, operation: str, path: str) -> OSError | None:
        if self.calls >= self._last:
            raise PowerCut
        return super()._verdict(operation, path)


class World:
    """An archive before a round that adds files, hides rows and drops others, and its earlier content."""

    def __init__(self, server: LiveServer, folder: Path) -> None:
        data = self._data = folder / "data"
        self._before = folder / "before"
        self._settings = Settings(data_dir=str(data), archive="1")
        with Client(server.url) as client:
            fill(server, client)
            checkpointed(client, data)
            archive(self._settings)
            self.before = of(sealed(client, data))
            client.delete("orders", match="t1")
            client.delete("events", before_seq=60)
            client.append_many("events", [{"later": n} for n in range(100)])
            checkpointed(client, data)
            self.requested = of(sealed(client, data))

    def keep(self) -> None:
        """Remembers it in its current state; no other process writes to the folder any more."""
        shutil.copytree(self._data, self._before, ignore=shutil.ignore_patterns("wal"))
        self._restore()

    @property
    def root(self) -> str:
        return str(self._data / "archive")

    def calls(self) -> int:
        """The number of calls with changes in a round."""
        files = FaultyFileSystem(files_of(self._settings))
        self._round(files)
        self._restore()
        return files.calls

    def kill(self, at: int) -> None:
        """The archive as a process leaves it that is killed at a call of the round."""
        self._restore()
        with pytest.raises(PowerCut):
            self._round(KilledFileSystem(files_of(self._settings), at))

    def go_on(self) -> None:
        archive(self._settings)

    def _round(self, fs: FileSystem) -> None:
        made = make_pipeline(self._settings, fs, InlineExecutor(fs), ManualClock(SystemClock().now_ms()))
        while made.round():
            pass

    def _restore(self) -> None:
        shutil.rmtree(self._data)
        shutil.copytree(self._before, self._data)


@pytest.fixture
def world(tmp_path: Path) -> World:
    options = {"segment_max_events": "50", "snapshot_interval_ms": "200", "pipeline": "off", "archive": "1"}
    with LiveServer(tmp_path, **options) as server:
        made = World(server, tmp_path)
    made.keep()
    return made


def sweep(world: World, read: Read, begin: float, step: int, heals: int) -> None:
    """`begin` is a share of the calls: where the first kill is. After some of the kills the following rounds are
    checked."""
    calls, seen = world.calls(), set()
    assert calls > 40 and world.before != world.requested
    kills = range(round(calls * begin), calls, step)
    for number, call in enumerate(kills):
        world.kill(call)
        found = read(world.root)
        check(world, found, f"after a kill at call {call} of {calls}")
        seen.add(len(found))
        if number % heals == 0 or call == kills[-1]:
            world.go_on()
            assert of(read(world.root)) == world.requested, f"a round after a kill at call {call} of {calls}"
    assert len(seen) > 1, "every kill came before the commit, or behind it"


def check(world: World, found: list[Row], when: str) -> None:
    """It is a whole version: all deletes of a topic are there, or none."""
    before, requested, rows = set(world.before), set(world.requested), set(of(found))
    assert len(found) == len(set(found)), f"a row is there twice {when}"
    assert before & requested <= rows <= before | requested, when
    for topic in {row[0] for row in before - requested}:
        deleted = {row for row in before - requested if row[0] == topic}
        assert deleted <= rows or not deleted & rows, f"half of what is deleted of {topic} is there {when}"


def test_readers_of_others_find_a_whole_table_after_a_kill(world: World, tmp_path: Path) -> None:
    sweep(world, lambda root: read_by_all(root, tmp_path), 0.4, world.calls() // 5, 10)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_readers_of_others_find_a_whole_table_after_a_kill_at_any_call(world: World, tmp_path: Path, part: int) -> None:
    sweep(world, lambda root: read_by_all(root, tmp_path), part / world.calls(), 4, 3)


@pytest.mark.slow
def test_spark_with_the_runtime_of_iceberg_finds_a_whole_table_after_a_kill(
    world: World, tmp_path: Path, spark_home: Path
) -> None:
    sweep(world, lambda root: read_by_spark(root, tmp_path, spark_home), 0.3, world.calls() // 8, 10)
