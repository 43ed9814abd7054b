"""Damage anywhere is found and repaired, and a caller that reads afterwards gets every record or its loss reported.

A folder with a bit of everything is damaged in one place. Then verify must find it, repair must mend it, verify must be
content, an engine must start, and every record that can no longer be read must lie in a range that the repair reported
and that readers receive as lost, while every other record is unchanged, byte by byte.

These bytes are covered by no checksum, and damage to them goes unnoticed because it changes nothing:

* the unused rest of a log file, but for the 40 bytes behind the last frame, where the next header would stand;
* a segment's delete flag that the topic's state has as set: the state counts, the file only follows it;
* files that no snapshot names, the lock, and the note about the machine's boot.

One kind of damage cannot be told from the end of an unfinished write, which is not damage: a broken last frame of a
shard's log, or the same of the newest log file as a whole. It is noted, and nothing states what was in it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import pytest

from tests.crash.wreckage import (
    LAYOUT,
    Builder,
    Shown,
    build,
    content,
    cut,
    files,
    flip,
    look,
    mend,
    overwrite,
    settled,
    show,
)
from topics.log.frame import HEADER_BYTES, find_frames
from topics.log.layout import number_in
from topics.log.segment import DELETED, decode_head
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record
from topics.model.seq_ranges import LossReason
from topics.ops.repair.repair import Repair
from topics.ops.verify.verification import RepairReport, Verification, key_of
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, ManualClock, PowerCut, SeededEntropy, Survival

STEP = 37
"""One byte in so many is damaged; a seed chooses which."""


@dataclass(frozen=True)
class Folder:
    disk: FakeDisk
    before: dict[int, Shown]
    written: dict[int, dict[int, str]]
    harmless: dict[str, list[tuple[int, int]]]
    """For each file, the stretches of bytes that nothing covers because nothing depends on them."""
    last_frames: dict[str, tuple[int, int]]
    """For the newest log file of each shard, its last frame and the header that could follow it."""


@cache
def folder() -> Folder:
    disk, written = build()
    harmless: dict[str, list[tuple[int, int]]] = {}
    last_frames: dict[str, tuple[int, int]] = {}
    newest = {path.rsplit("/", 1)[0]: path for path in sorted(files(disk)) if path.endswith(".wal")}
    named = _named_flags(disk)
    for path in files(disk):
        data = content(disk, path)
        if path.endswith(".wal"):
            last = list(find_frames(memoryview(data), 0))[-1]
            harmless[path] = [(last.end + HEADER_BYTES, len(data))]
            if path in newest.values():
                last_frames[path] = (last.start, last.end + HEADER_BYTES)
        elif path == f"/{LAYOUT.catalog}":
            # It repeats the content of the snapshots for external readers, has checksums, and is written anew.
            harmless[path] = [(0, len(data))]
        elif path.endswith((".data", ".idx")):
            flags = named.get(path.rsplit(".", 1)[0])
            if flags is None:
                harmless[path] = [(0, len(data))]
            elif path.endswith(".data"):
                at = decode_head(memoryview(data)).flags_at
                harmless[path] = [(at + i, at + i + 1) for i, flag in enumerate(flags) if flag == DELETED]
    return Folder(disk, show(disk), written, harmless, last_frames)


def _named_flags(disk: FakeDisk) -> dict[str, bytes]:
    """The segments that the state names, with the delete flags it knows itself."""
    seen = Verification(disk, LAYOUT, True)
    seen.load()
    return {"/" + LAYOUT.segment(*key_of(state, s)): s.flags for state, s in seen.segments()}


def check(disk: FakeDisk, report: RepairReport, may_bring_back: bool) -> None:
    """Everything that a repaired folder owes its readers."""
    assert report.after is not None
    assert report.after.sound, report.after.findings
    after = show(disk)
    for topic_id, before in folder().before.items():
        now = after.get(topic_id)
        if now is None:
            assert not before.records, f"topic {before.name} is gone"
            continue
        losses = [loss for loss in report.losses if loss.topic == now.name]
        for seq, text in before.records.items():
            if seq in now.records:
                assert now.records[seq] == text
            else:
                assert any(loss.from_seq <= seq <= loss.to_seq for loss in losses), (
                    f"{before.name}/{seq} is not reported"
                )
                assert now.reported(seq, LossReason.CORRUPT), f"{before.name}/{seq} is not told"
        if not losses and not may_bring_back:
            assert gaps(now) == gaps(before)
        back = now.records.keys() - before.records.keys()
        assert may_bring_back or not back, f"{before.name}: {sorted(back)} came back"
        for seq in back:
            # Deleted or evicted records may come back when the frame of the delete is lost, and only unchanged.
            assert folder().written[topic_id][seq].encode() in now.records[seq]


def gaps(shown: Shown) -> list[tuple[int, int, LossReason]]:
    return [(t.gap_from, t.gap_to, t.reason) for t in shown.tombstones]


def check_harmless(disk: FakeDisk) -> None:
    after = show(disk)
    assert {i: shown.records for i, shown in after.items()} == {
        i: shown.records for i, shown in folder().before.items()
    }


def kind_of(path: str) -> str:
    return next(kind for kind in ("meta", "wal", "topics", "other") if f"/{kind}/" in path or kind == "other")


def flips(kind: str, step: int, seed: int) -> Iterator[tuple[str, int, int]]:
    entropy = SeededEntropy(seed)
    masks = (0xFF, 0x01, DELETED)
    for path in files(folder().disk):
        if kind_of(path) == kind:
            for offset in range(entropy.below(step), len(content(folder().disk, path)), step):
                yield path, offset, masks[entropy.below(len(masks))]


def damage_and_mend(path: str, offset: int, mask: int) -> None:
    disk = folder().disk.clone()
    flip(disk, path, offset, mask)
    found = look(disk)
    if any(begin <= offset < end for begin, end in folder().harmless.get(path, ())):
        assert found.sound, found.findings
        check_harmless(disk)
        return
    if path in folder().last_frames and folder().last_frames[path][0] <= offset:
        assert found.sound, found.findings
        assert any("unfinished write" in note.what and path.endswith(note.where) for note in found.notes)
        assert mend(disk).after is None
        return
    assert not found.sound
    assert any(path.endswith(finding.where) for finding in found.findings)
    before = {path: content(disk, path) for path in files(disk)}
    report = mend(disk)
    check(disk, report, may_bring_back=kind_of(path) != "topics")
    kept = report.moved_to[0].removeprefix("/").split("/")
    assert kept in (["data", "damaged-1"], ["cold", "damaged-1"])
    root = path.split("/")[1]
    assert content(disk, path.replace(f"/{root}/", f"/{root}/damaged-1/", 1)) == before[path]


@pytest.mark.parametrize("kind", ["meta", "wal", "topics"])
def test_a_flipped_byte_anywhere(kind: str, seed: int) -> None:
    for path, offset, mask in flips(kind, STEP, seed):
        print(f"byte {offset} of {path} xor {mask:#x}")
        damage_and_mend(path, offset, mask)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["meta", "wal", "topics"])
def test_every_single_byte(kind: str, seed: int) -> None:
    for path, offset, mask in flips(kind, 1, seed):
        print(f"byte {offset} of {path} xor {mask:#x}")
        damage_and_mend(path, offset, mask)


def larger_damage(seed: int) -> Iterator[tuple[str, str, Callable[[FakeDisk], None]]]:
    entropy = SeededEntropy(seed)
    for path in files(folder().disk):
        if kind_of(path) == "other" or path in folder().last_frames:
            continue
        size = len(content(folder().disk, path))
        yield path, "removed", lambda disk, path=path: disk.remove(path)  # type: ignore[misc]
        for _ in range(2):
            length = entropy.below(size)
            yield path, f"cut to {length}", lambda disk, path=path, length=length: cut(disk, path, length)  # type: ignore[misc]
        for width in (64, 512):
            at = entropy.below(size)
            hole = entropy.token(min(width, size - at))
            yield (
                path,
                f"garbage from {at} to {at + len(hole)}",
                lambda disk, path=path, at=at, hole=hole: overwrite(disk, path, at, hole),  # type: ignore[misc]
            )


def test_files_removed_cut_or_overwritten(seed: int) -> None:
    for path, what, damage in larger_damage(seed):
        print(f"{path} {what}")
        disk = folder().disk.clone()
        damage(disk)
        found = look(disk)
        if found.sound:
            # An unreferenced file, or only the unused rest of one.
            check_harmless(disk)
        else:
            check(disk, mend(disk), may_bring_back=kind_of(path) != "topics")


def test_text_and_flags_overwritten_together_are_reported_of_once() -> None:
    """Flags that turn into deletes by chance, of records whose text is gone as well."""
    for path in files(folder().disk):
        if kind_of(path) != "topics" or not path.endswith(".data"):
            continue
        size = len(content(folder().disk, path))
        for at in range(size // 2, size, 16):
            for sign in (DELETED, 0xFF):
                disk = folder().disk.clone()
                overwrite(disk, path, at, bytes([sign]) * (size - at))
                print(f"{path}: {sign:#x} from {at} on")
                if not look(disk).sound:
                    check(disk, mend(disk), may_bring_back=False)


@pytest.mark.parametrize(
    "lost",
    [("/snapshot-",), ("/meta/",), ("/wal/",), ("/meta/", "/wal/"), (".idx",), (".data",)],
)
def test_a_whole_kind_of_file_removed(lost: tuple[str, ...]) -> None:
    disk = folder().disk.clone()
    for path in list(files(disk)):
        if any(part in path for part in lost):
            disk.remove(path)
    assert not look(disk).sound
    check(disk, mend(disk), may_bring_back=True)


def test_other_damage_after_the_machine_restarted(seed: int) -> None:
    """Then an unsynced end of the log may be torn, and only a frame that records the sync makes it damage."""
    for path, offset, mask in flips("wal", 4 * STEP, seed):
        print(f"byte {offset} of {path} xor {mask:#x}")
        disk = folder().disk.clone()
        flip(disk, path, offset, mask)
        if not look(disk, "another boot").sound:
            check(disk, mend(disk, "another boot"), may_bring_back=True)


# A repair that is cut short


def wrecked() -> FakeDisk:
    """Damage in every kind of file at once."""
    disk = folder().disk.clone()
    segments = [path for path in folder().harmless if path.endswith(".data") and path.startswith("/data")]
    named = [path for path in segments if folder().harmless[path] != [(0, len(content(disk, path)))]]
    flip(disk, named[0], 100)
    flip(disk, named[-1].replace(".data", ".idx"), 50)
    flip(disk, "/data/meta/snapshot-0000000000000002.bin", 300)
    flip(disk, min(path for path in folder().harmless if path.endswith(".wal")), 700)
    return disk


def reported(disk: FakeDisk) -> dict[int, list[tuple[int, int, LossReason]]]:
    return {i: gaps(shown) for i, shown in show(disk).items()}


def kept_aside(disk: FakeDisk) -> dict[str, bytes]:
    return {path: content(disk, path) for path in files(disk) if "/damaged-" in path and "report" not in path}


def same_outcome(disk: FakeDisk, expected: FakeDisk) -> None:
    assert not any(path.startswith("/data/repair") for path in files(disk))
    now, then = show(disk), show(expected)
    assert {i: shown.records for i, shown in now.items()} == {i: shown.records for i, shown in then.items()}
    assert reported(disk) == reported(expected)
    assert kept_aside(disk) == kept_aside(expected)


@pytest.mark.parametrize("survival", list(Survival))
def test_a_crash_after_any_call_leaves_a_folder_that_can_be_repaired(survival: Survival, seed: int) -> None:
    expected = wrecked()
    losses = mend(expected).losses
    for call in range(1, 1000):
        print(f"power cut after call {call}")
        disk = wrecked()
        disk.stop_after = call
        try:
            mend(disk)
        except PowerCut:
            pass
        if not disk.stopped:
            return
        disk.stop_after = None
        disk = disk.crash(survival, seed + call)
        report = mend(disk)
        assert report.sound
        # Once nothing is left to do, the report of the run that was cut short is with the files it took out of use.
        assert report.losses == losses or b'"losses":[{' in content(disk, "/data/damaged-1/report.json")
        same_outcome(disk, expected)
    raise AssertionError("the repair never came to its end")


@pytest.mark.parametrize("fault", list(Fault))
def test_a_failing_call_leaves_a_folder_that_can_be_repaired(fault: Fault) -> None:
    expected = wrecked()
    mend(expected)
    for call in range(1, 1000, 2):
        print(f"call {call} fails: {fault}")
        disk = wrecked()
        faulty = FaultyFileSystem(disk, FaultPlan(call=call, fault=fault))
        try:
            Repair(faulty, LAYOUT, ManualClock(), SeededEntropy(3), "this boot").run()
        except (OSError, TopicsError):
            pass
        if not faulty.failed:
            return
        # A failed removal of unneeded files is not a failure of the repair; everything else is tried again.
        assert mend(settled(disk)).sound
        mend(disk)
        same_outcome(disk, expected)
    raise AssertionError("the repair never came to its end")


def test_the_number_of_a_folder_for_damaged_files_is_never_used_twice() -> None:
    disk = folder().disk.clone()
    for turn in (1, 2):
        snapshot = max(path for path in files(disk) if path.startswith("/data/meta/snapshot-"))
        flip(disk, snapshot, 60)
        mend(disk)
        numbers = [number_in(name, "damaged-", "") for name in disk.list_dir("data") if name.startswith("damaged-")]
        assert numbers == list(range(1, turn + 1))


@pytest.mark.parametrize(("sizes", "gone"), [((5, 6, 7, 8, 9, 10), {2}), ((5, 6, 6, 8, 9, 10), {2, 3})])
def test_a_delete_whose_flag_was_erased_stays_and_what_may_be_meant_is_reported(
    sizes: tuple[int, ...], gone: set[int]
) -> None:
    """An erased flag looks like one that was never set: only the size of the live records distinguishes them."""
    disk = FakeDisk()
    builder = Builder(disk)
    builder.put("orders")
    records = [Record.of("x" * size, tag=f"t{seq}") for seq, size in enumerate(sizes, 1)]
    builder.engine.append("orders", Batch(records=records), lambda outcome: None)
    builder.delete("orders", tag="t2")
    builder.checkpoint(full=True)
    # Until another snapshot is taken the state has the flags itself, and would restore them.
    builder.write("orders", 1)
    builder.engine.close_inline()
    (path,) = (path for path in files(disk) if path.endswith(".data"))
    flags_at = decode_head(memoryview(content(disk, path))).flags_at
    assert content(disk, path)[flags_at + 1] == DELETED
    overwrite(disk, path, flags_at + 1, b"\0")
    report = mend(disk)
    assert report.after is not None and report.after.sound
    (shown,) = show(disk).values()
    assert shown.records.keys() == {1, 2, 3, 4, 5, 6, 7} - gone
    reported = {seq for loss in report.losses for seq in range(loss.from_seq, loss.to_seq + 1)}
    assert reported == (gone if len(gone) > 1 else set())
