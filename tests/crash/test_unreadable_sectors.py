"""Sectors that the disk cannot read, one at a time, in every file: readable records are served, and unreadable ones are
reported.

A sector that fails while the engine runs costs the records in it and no others. A sector that fails before a start
stops the start where the log or a snapshot is in it, and a repair restores the folder with every loss reported.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec
import pytest

from tests.crash.harness import SMALL, World
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.log.fs import BytesLike, File, FileSystem, UnreadableError
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.log.segment import CHUNK_BYTES
from topics.model.errors import CorruptSegmentError, DamageError
from topics.model.seq_ranges import LossReason
from topics.ops.repair.repair import Repair
from topics.testing import FakeDisk, SeededEntropy, Survival
from topics.testing.fake_disk import FakeFile

SECTOR = 4096
OPTIONS = msgspec.structs.replace(SMALL, wal_file_bytes=1 << 20, snapshot_inline_bytes=1024)
RECORDS = 12


class BadSector:
    """A file system on which one sector of one file cannot be read."""

    def __init__(self, inner: FakeDisk) -> None:
        self.inner = inner
        self.bad: tuple[object, int] | None = None
        """The file, under any later name, and the offset of the sector."""

    def fail(self, path: str, at: int) -> None:
        self.bad = self.inner.open(path)._inode, at

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        return cast(File, BadSectorFile(self, self.inner.open(path, write=write, create=create)))

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


class BadSectorFile:
    def __init__(self, outer: BadSector, inner: FakeFile) -> None:
        self._outer, self._inner = outer, inner

    def read_at(self, offset: int, length: int) -> bytes:
        self._check(offset, length)
        return self._inner.read_at(offset, length)

    def map(self) -> memoryview:
        self._check(0, self._inner.size())
        return self._inner.map()

    def write_whole(self, pieces: Sequence[BytesLike]) -> None:
        # A disk remaps a sector that is written again.
        if self._outer.bad is not None and self._outer.bad[0] is self._inner._inode:
            self._outer.bad = None
        self._inner.write_whole(pieces)

    def _check(self, offset: int, length: int) -> None:
        bad = self._outer.bad
        if bad is not None and bad[0] is self._inner._inode and offset < bad[1] + SECTOR and bad[1] < offset + length:
            raise UnreadableError(OSError(errno.EIO, os.strerror(errno.EIO)), bad[1], bad[1] + SECTOR)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def stored() -> World:
    """Records in segments, in the log and in a snapshot."""
    world = World(FakeDisk(), OPTIONS)
    world.start()
    for number in range(RECORDS):
        world.append("sure", 1, tag="even" if number % 2 else "odd", size=CHUNK_BYTES // 2, durability="fsync")
    world.append("other", 3, durability="fsync")
    assert world.checkpoint()
    world.append("other", 3, durability="fsync")
    return world


def killed(world: World) -> FakeDisk:
    assert isinstance(world.fs, FakeDisk)
    return world.fs.clone().crash(Survival.EVERYTHING)


def start(world: World, fs: FileSystem) -> Engine:
    after = World(fs, world.options, world.clock)
    after.start(restarted=False)
    return after.engine


def sectors(disk: FakeDisk) -> list[tuple[str, int]]:
    """Every sector of every file of the folder that has anything in it."""
    found = []
    folders = ["data"]
    for folder in folders:
        for name in disk.list_dir(folder):
            path = f"{folder}/{name}"
            try:
                file = disk.open(path)
            except IsADirectoryError:
                folders.append(path)
                continue
            data = file.read_at(0, file.size())
            found += [(path, at) for at in range(0, len(data), SECTOR) if any(data[at : at + SECTOR])]
    return found


def read_around(engine: Engine, name: str) -> tuple[list[int], set[int]]:
    """The served seqs, and the seqs that are reported as corrupt."""
    served: list[int] = []
    lost: set[int] = set()
    cursor, head = 0, engine.info(name).head_seq
    while cursor < head:
        try:
            found = engine.read_now(name, ReadRequest(from_seq=cursor, limit=100))
        except CorruptSegmentError as error:
            first, last = error.detail["from_seq"], error.detail["to_seq"]
            assert isinstance(first, int) and isinstance(last, int) and cursor < last
            lost |= set(range(max(first, cursor + 1), last + 1))
            cursor = last
            continue
        served += [record["$seq"] for record in found.records()]  # type: ignore[misc]
        cursor = found.next_from_seq
    return served, lost


def test_sector_that_fails_while_the_engine_runs_costs_only_its_records() -> None:
    world = stored()
    disk = killed(world)
    hit = 0
    for place in sectors(disk):
        for warm in (False, True):
            fs = BadSector(disk.clone())
            engine = start(world, fs)  # type: ignore[arg-type]
            if warm:
                assert read_around(engine, "sure") == (list(range(1, RECORDS + 1)), set())
            if not fs.inner.exists(place[0]):
                continue  # The start has replaced it.
            fs.fail(*place)
            served, lost = read_around(engine, "sure")
            assert sorted({*served, *lost}) == list(range(1, RECORDS + 1)) and not lost & set(served), place
            others, others_lost = read_around(engine, "other")
            assert sorted({*others, *others_lost}) == [1, 2, 3, 4, 5, 6], place
            assert not others_lost or "/0000000000000002/" in place[0]
            assert not lost or "/0000000000000001/" in place[0]
            if place[0].endswith(".data") and warm:
                # Only the records in the chunks of the sector; the head and the index are in memory.
                assert len(lost) <= 5, place
            hit += bool(lost)
            # It passes: nothing was given up permanently.
            fs.bad = None
            assert read_around(engine, "sure") == (list(range(1, RECORDS + 1)), set()), place
    assert hit > 20


def test_sector_that_fails_before_the_start_is_named_and_mended() -> None:
    world = stored()
    disk = killed(world)
    refused = 0
    for place in sectors(disk):
        fs = BadSector(disk.clone())
        fs.fail(*place)
        try:
            engine = start(world, fs)  # type: ignore[arg-type]
        except DamageError as error:
            refused += 1
            assert place[0] in {finding.where for finding in error.findings}, place
        except OSError:
            # The small files beside the log: a start states which error the disk gave.
            assert "/wal/" not in place[0] and "/topics/" not in place[0], place
            continue
        else:
            for name, count in (("sure", RECORDS), ("other", 6)):
                served, lost = read_around(engine, name)
                assert sorted({*served, *lost}) == list(range(1, count + 1)), place
            engine.close_inline()
        mended = BadSector(disk.clone())
        mended.fail(*place)
        report = Repair(mended, Layout("data"), world.clock, SeededEntropy(1), "boot-1").run()  # type: ignore[arg-type]
        assert report.sound, place
        again = start(world, mended)  # type: ignore[arg-type]
        for name, count in (("sure", RECORDS), ("other", 6)):
            if name not in {topic.name for topic in again.core.topics.values()}:
                # Only its frames recorded it, and they are gone: the report includes it.
                assert report.actions, place
                continue
            assert not read_around(again, name)[1], (place, report)
            told = again.read_now(name, ReadRequest(limit=100)).tombstone
            assert told is None or told.reason is LossReason.CORRUPT
            assert again.info(name).head_seq >= count
    assert refused >= 2


@pytest.mark.parametrize("keep", [0, 1, 100, CHUNK_BYTES, 3 * CHUNK_BYTES, 3 * CHUNK_BYTES + 10])
def test_file_cut_under_a_live_reader_is_corrupt_and_not_the_end(tmp_path: Path, keep: int) -> None:
    options = msgspec.structs.replace(OPTIONS, data_dir=str(tmp_path / "data"))
    world = World(PosixFileSystem(), options)
    world.start()
    for _ in range(RECORDS):
        world.append("sure", 1, size=CHUNK_BYTES // 2, durability="fsync")
    world.append("other", 3, durability="fsync")
    assert world.checkpoint()
    engine = world.engine
    assert read_around(engine, "sure") == (list(range(1, RECORDS + 1)), set())
    first, *_ = sorted((tmp_path / "data" / "topics").glob("*/*.data"))
    os.truncate(first, keep)
    served, lost = read_around(engine, "sure")
    assert lost and sorted({*served, *lost}) == list(range(1, RECORDS + 1))
    assert len(served) >= 6 + max(keep // CHUNK_BYTES - 1, 0)
    assert read_around(engine, "other") == ([1, 2, 3], set())
