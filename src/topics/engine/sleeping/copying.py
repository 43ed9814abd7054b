"""Copies topics that sleep from older snapshots into a new one; runs off the loop.

The loop goes on meanwhile, and changes no place until the checkpoint is through (`Sleepers.hold`): whatever happens to
a topic now happens behind the turn, and its frames are what it was then.
"""

from collections.abc import Collection

from topics.engine.sleeping.places import Places
from topics.formats.snapshot import CLASSES
from topics.storage.snapshots import SnapshotWriter, TopicEntry


def copy_topics(places: Places, writer: SnapshotWriter, captured: Collection[int], replaced: Collection[int]) -> None:
    """Copies what has its place in a snapshot that is replaced, but for what was captured."""
    for stretch in list(places.stretches):
        if stretch.number not in replaced:
            continue
        for one in places.listed(stretch):
            if one.topic_id in captured:
                continue
            stored = places.stored(one.place)
            entry = TopicEntry(one.name, CLASSES[one.durability], one.live, one.live_bytes, one.written)
            tail = [(bytes(frame.body), b"") for frame in stored.tail]
            writer.add_topic(one.topic_id, bytes(stored.state.body), tail, entry)
