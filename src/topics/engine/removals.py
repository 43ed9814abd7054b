"""Remembers deletes out of sealed segments until the archive has heard of them.

A delete marks a record in its segment's flags, which whoever reads the segment later sees. But a segment whose last
record was deleted is removed, and one that a delete by seq passed over has no flags for it: an archive that copied the
records before would keep them for ever. So where there is an archive, each topic keeps the ranges that were deleted
on purpose, the catalog tells them, and they are forgotten once the archive has said, in a file of its own, that it has
applied every catalog up to theirs. What a cap or time takes is not kept here: the archive may outlive the log.

While no pipeline runs nothing is forgotten. What is kept is then bounded by the deletes themselves: a range for each
run of neighbouring records that were deleted, however long, in at most `TOLD_MAX` lists a topic, because the two oldest
lists are joined when there is one more.
"""

import logging

from topics.core.ranges import Ranges, union
from topics.engine.checkpoint import Checkpointer
from topics.engine.core import EngineCore
from topics.engine.topic import Topic
from topics.formats.frame import Frame, FrameKind
from topics.formats.removals import REMOVALS_PART, Removal, decode_removals, encode_removals
from topics.storage.fs import FileSystem
from topics.storage.replaced import read_whole

TOLD_MAX = 16

_log = logging.getLogger(__name__)


class TopicRemovals:
    """A topic's part: what catalogs have told, and what the next one will."""

    __slots__ = ("fresh", "told")

    def __init__(self, told: list[Removal]) -> None:
        self.told = told
        self.fresh: Ranges = []


class Removals:
    """Implements `engine.features.Feature`; it has no frames of its own, because the log's DELETE says it all."""

    name = REMOVALS_PART
    kinds: frozenset[FrameKind] = frozenset()

    def __init__(self, core: EngineCore, fs: FileSystem, checkpointer: Checkpointer) -> None:
        self._fs = fs
        self._layout = core.layout
        self._checkpointer = checkpointer
        self._wanted = core.options.track_removals
        self.on = self._wanted or fs.exists(core.layout.pipeline)
        """Also where an archive was kept once: what it holds must not outlive a delete."""
        self.confirmed = self._read_confirmed()
        core.features.add(self)
        core.applier.removed = self._removed
        checkpointer.catalog.published = self._published
        checkpointer.catalog.tracked = self.on

    def replay(self, topic: Topic, frame: Frame) -> None:
        raise AssertionError("removals have no frames")

    def save(self, topic: Topic) -> bytes:
        part = (topic.parts or {})[self.name]
        assert isinstance(part, TopicRemovals)
        part.told = [removal for removal in part.told if removal[0] > self.confirmed]
        if part.fresh:
            # Saving is being captured for the checkpoint on its way, whose catalog is the first to tell it.
            part.told.append((self._checkpointer.number + 1, part.fresh))
            part.fresh = []
            _join_oldest(part.told)
        return encode_removals(part.told)

    def load(self, topic: Topic, part: bytes) -> None:
        if not self.on:
            return  # There is no archive any more, so nobody will ever ask.
        topic.parts = {**(topic.parts or {}), self.name: TopicRemovals(decode_removals(part))}

    def settle(self) -> None:
        if self.on and not self._wanted:
            _log.warning("deletes are kept for an archive that is turned off", extra={"folder": self._layout.pipeline})

    def _removed(self, topic: Topic, first: int, last: int) -> None:
        sealed_to = topic.tail[0].first_seq - 1 if topic.tail else topic.head
        last = min(last, sealed_to)
        if not self.on or first > last:
            return
        if topic.parts is None:
            topic.parts = {}
        part = topic.parts.setdefault(self.name, TopicRemovals([]))
        assert isinstance(part, TopicRemovals)
        if part.fresh and part.fresh[-1][1] < first:
            # The common case, deletes that go forward, needs no sorting.
            touching = part.fresh[-1][1] + 1 == first
            part.fresh[-1:] = [(part.fresh[-1][0], last)] if touching else [part.fresh[-1], (first, last)]
        else:
            part.fresh = union(part.fresh, [(first, last)])

    def _published(self) -> None:
        """Runs off the loop behind each checkpoint: one small read."""
        self.confirmed = max(self.confirmed, self._read_confirmed())

    def _read_confirmed(self) -> int:
        data = read_whole(self._fs, self._layout.pipeline_seen) or b""
        return int(data) if data.isdigit() else 0


def _join_oldest(told: list[Removal]) -> None:
    """Joined deletes are told again to an archive that has heard of the older ones, which changes nothing there."""
    while len(told) > TOLD_MAX:
        (_, older), (number, ranges) = told[:2]
        told[:2] = [(number, union(older, ranges))]
