"""The sweeps can fail: each of these mistakes, planted into the engine or under it, breaks a promise they see.

A sync that is left out is planted under the engine, as a disk on which that one call does nothing. A step that comes
too early or too late is planted into the engine itself.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.crash import scenarios
from tests.crash.harness import SMALL
from tests.crash.sweeps import Scenario, count_calls, sweep_faults, sweep_stops
from topics.consumers.consumer_state import ConsumerFeature
from topics.engine import checkpoint, recovery
from topics.engine.apply import Applier
from topics.engine.checkpoint import Checkpointer
from topics.engine.conditional_append import FenceFeature
from topics.engine.engine import Engine
from topics.engine.recovery import Recovery
from topics.engine.topic import Topic
from topics.log.frame import FrameKind
from topics.log.group_commit import Shard
from topics.log.snapshot_files import SnapshotHead, SnapshotWriter
from topics.log.wal import ShardLog, Submission, Writer
from topics.model.seq_ranges import LossReason
from topics.testing import FakeDisk
from topics.testing.fake_disk import FakeFile

Sweep = Callable[[Scenario], Iterator[str]]
Plant = Callable[[pytest.MonkeyPatch], None]


def no_folder_sync(part: str) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        whole = FakeDisk.sync_dir
        patch.setattr(FakeDisk, "sync_dir", lambda disk, path: None if part in path else whole(disk, path))

    return plant


def no_file_sync(part: str) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        whole = FakeFile.sync
        patch.setattr(FakeFile, "sync", lambda file: None if part in file._path else whole(file))

    return plant


def acknowledged_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    def commit(writer: Writer, batch: list[Submission], answer: Any) -> None:
        writer._write(batch, 0.0)
        answer(batch, (0.0, 0.0), None)
        writer._sync()

    patch.setattr(Writer, "commit", commit)


def snapshot_renamed_before_its_sync(patch: pytest.MonkeyPatch) -> None:
    whole = SnapshotWriter.finish

    def finish(writer: SnapshotWriter) -> int:
        file, writer._file = writer._file, _Unsyncable(writer._file)
        size = whole(writer)
        file.sync()
        return size

    patch.setattr(SnapshotWriter, "finish", finish)


class _Unsyncable:
    """A file that is not synced by this hand."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def sync(self) -> None:
        """Later."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def log_removed_before_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    whole = Checkpointer._write

    def write(checkpointer: Checkpointer, head: SnapshotHead) -> SnapshotWriter:
        for position in head.positions:
            folder = checkpointer._core.layout.shard(position.shard)
            checkpoint.remove_wal_files(checkpointer._fs, folder, position.file)
        return whole(checkpointer, head)

    patch.setattr(Checkpointer, "_write", write)


def flags_flipped_before_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    whole = Checkpointer._write

    def write(checkpointer: Checkpointer, head: SnapshotHead) -> SnapshotWriter:
        checkpointer._flip()
        return whole(checkpointer, head)

    patch.setattr(Checkpointer, "_write", write)


def keys_left_out_of_snapshots(patch: pytest.MonkeyPatch) -> None:
    whole = checkpoint.topic_state

    def topic_state(topic: Topic, ceiling: int, tail: Any, parts: Any) -> Any:
        keys, topic.keys = topic.keys, None
        state = whole(topic, ceiling, tail, parts)
        topic.keys = keys
        return state

    patch.setattr(checkpoint, "topic_state", topic_state)


def no_ceiling(patch: pytest.MonkeyPatch) -> None:
    """A caller that recovers loses reservations beyond those on the disk."""
    patch.setattr(recovery, "grant", lambda topic, reserve: None)
    patch.setitem(recovery._APPLY, FrameKind.CEILING, lambda recovery, topic, frame: None)


def losses_not_told(patch: pytest.MonkeyPatch) -> None:
    whole = Applier.gap

    def gap(applier: Applier, topic: Topic, first: int, last: int, reason: LossReason | None) -> None:
        whole(applier, topic, first, last, None)

    patch.setattr(Applier, "gap", gap)


def segments_removed_before_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    whole = Checkpointer._write

    def write(checkpointer: Checkpointer, head: SnapshotHead) -> SnapshotWriter:
        for topic_id in head.dropped:
            checkpointer._core.store.remove_topic(topic_id)
        return whole(checkpointer, head)

    patch.setattr(Checkpointer, "_write", write)


def recovery_without_a_checkpoint(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "_checkpoint_now", lambda engine: None)


def ephemeral_records_forgotten_silently(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recovery, "_lose_unlogged", lambda recovery, topic, last: None)


def next_log_file_without_a_sync_of_the_last(patch: pytest.MonkeyPatch) -> None:
    def rotate(log: ShardLog) -> None:
        log.close()
        log._offset = log._synced = 0

    patch.setattr(ShardLog, "rotate", rotate)


def failures_published(patch: pytest.MonkeyPatch) -> None:
    whole = Shard.finalize
    patch.setattr(Shard, "finalize", lambda shard, group, timing, error: whole(shard, group, timing, None))


def no_poison(patch: pytest.MonkeyPatch) -> None:
    whole = Writer._poison

    def poison(writer: Writer, *arguments: Any) -> Any:
        error = whole(writer, *arguments)
        writer.poison = None
        return error

    patch.setattr(Writer, "_poison", poison)


def consumers_left_out_of_snapshots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerFeature, "save", lambda feature, topic: b"")


def commits_not_replayed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerFeature, "replay", lambda feature, topic, frame, rebuild: None)


def fences_left_out_of_snapshots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FenceFeature, "save", lambda feature, topic: b"")


def fences_not_replayed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FenceFeature, "replay", lambda feature, topic, frame, rebuild: None)


STOPS: list[tuple[str, Plant, Scenario]] = [
    ("the log is never synced", no_file_sync(".wal"), scenarios.appending),
    ("answers come before the sync", acknowledged_before_the_sync, scenarios.appending),
    ("a log file's name is not synced", no_folder_sync("/wal/shard"), scenarios.appending),
    ("a shard's folder is not synced", no_folder_sync("data/wal"), scenarios.appending),
    ("no ceiling is reserved", no_ceiling, scenarios.appending),
    ("a loss is not told", losses_not_told, scenarios.appending),
    ("recovery makes nothing durable", recovery_without_a_checkpoint, scenarios.appending),
    ("a log file is not synced when it is full", next_log_file_without_a_sync_of_the_last, scenarios.turning_log_files),
    ("a snapshot is not synced", no_file_sync(".bin"), scenarios.checkpointing),
    ("a snapshot's name is not synced", no_folder_sync("/meta"), scenarios.checkpointing),
    ("a snapshot is renamed before it is synced", snapshot_renamed_before_its_sync, scenarios.checkpointing),
    ("the log goes before the snapshot is there", log_removed_before_the_snapshot, scenarios.checkpointing),
    ("a snapshot forgets keys", keys_left_out_of_snapshots, scenarios.checkpointing),
    ("a segment is not synced", no_file_sync(".data"), scenarios.checkpointing),
    ("a segment's index is not synced", no_file_sync(".idx"), scenarios.checkpointing),
    ("a segment's name is not synced", no_folder_sync("data/topics/0"), scenarios.checkpointing),
    ("a topic's folder is not synced", no_folder_sync("data/topics"), scenarios.checkpointing),
    ("flags are flipped before the snapshot is there", flags_flipped_before_the_snapshot, scenarios.capping),
    ("a moved segment is not synced", no_file_sync("cold/"), scenarios.relocating),
    ("a moved segment's name is not synced", no_folder_sync("cold"), scenarios.relocating),
    ("segments go before the snapshot is there", segments_removed_before_the_snapshot, scenarios.dropping),
    ("consumers are not in snapshots", consumers_left_out_of_snapshots, scenarios.consuming),
    ("commits are not replayed", commits_not_replayed, scenarios.consuming),
    ("fences are not in snapshots", fences_left_out_of_snapshots, scenarios.fencing),
    ("fences are not replayed", fences_not_replayed, scenarios.fencing),
    ("unlogged records vanish silently", ephemeral_records_forgotten_silently, scenarios.forgetting),
]
FAULTS: list[tuple[str, Plant]] = [
    ("a failed commit is published", failures_published),
    ("a failed shard takes more writes", no_poison),
]


@pytest.mark.parametrize(("plant", "scenario"), [mistake[1:] for mistake in STOPS], ids=[m[0] for m in STOPS])
def test_stopping_at_every_call_finds_out_that(
    plant: Plant, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    # From the end, where most has happened that can go wrong.
    calls = range(count_calls(scenario, SMALL) + 1, 0, -1)
    assert next(sweep_stops(scenario, calls=calls), None) is not None, "the sweep did not notice"


@pytest.mark.parametrize("plant", [mistake[1] for mistake in FAULTS], ids=[mistake[0] for mistake in FAULTS])
def test_failing_every_call_finds_out_that(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert next(sweep_faults(scenarios.living), None) is not None, "the sweep did not notice"
