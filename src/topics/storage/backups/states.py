"""What a chain of snapshots amounts to, topic by topic."""

from collections.abc import Iterable
from typing import NamedTuple

from topics.formats.backup import snapshot_name
from topics.formats.frame import Frame, FrameKind
from topics.formats.snapshot import SnapshotHead, TopicState, decode_topic
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout
from topics.storage.snapshots import read_snapshot


class PlaceLayout(Layout):
    """Where the snapshots of a lineage are at its place."""

    def snapshot(self, number: int) -> str:
        return f"{self.root}/{snapshot_name(number)}"


class FoldedTopic(NamedTuple):
    state: TopicState
    tail: list[memoryview]
    """The bodies of its tail's blocks."""


class Folded(NamedTuple):
    head: SnapshotHead
    """That of the newest snapshot."""
    topics: dict[int, FoldedTopic]


def fold_snapshots(fs: FileSystem, layout: Layout, number: int) -> Folded:
    """The state as the snapshot of that number has it, with those it adds to."""
    newest, frames = read_snapshot(fs, layout, number)
    topics: dict[int, FoldedTopic] = {}
    for earlier in newest.chain:
        _put_over(topics, *read_snapshot(fs, layout, earlier))
    _put_over(topics, newest, frames)
    return Folded(newest, topics)


def _put_over(topics: dict[int, FoldedTopic], head: SnapshotHead, frames: Iterable[Frame]) -> None:
    for topic_id in head.dropped:
        topics.pop(topic_id, None)
    tail: list[memoryview] = []
    for frame in frames:
        if frame.kind is FrameKind.TOPIC:
            tail = []
            topics[frame.topic_id] = FoldedTopic(decode_topic(frame.body), tail)
        else:
            tail.append(frame.body)
