"""What goes into a backup: the files that a checkpoint counts on, each copied once.

Nothing here touches the engine's state; it reads files that no running checkpoint changes, and runs off the loop.
"""

from collections.abc import Callable

from xxhash import xxh3_64_hexdigest

from topics import __version__
from topics.core.errors import ShuttingDownError
from topics.engine.backup.kept_log import KeptLog
from topics.formats.backup import (
    FORMAT,
    KeptFile,
    KeptSegment,
    Manifest,
    flags_name,
    log_name,
    segment_name,
    snapshot_name,
)
from topics.formats.segment import decode_head
from topics.formats.snapshot import SegmentState, WalPosition
from topics.storage.backups.place import BackupDamaged, BackupPlace
from topics.storage.backups.states import Folded, fold_snapshots
from topics.storage.fs import FileSystem, map_file
from topics.storage.layout import Layout


class Copier:
    """Copies what a place does not have yet. Once `stopped` says so, it copies no more and raises."""

    def __init__(self, fs: FileSystem, layout: Layout, place: BackupPlace, stopped: Callable[[], bool]) -> None:
        self._fs = fs
        self._layout = layout
        self.place = place
        self._stopped = stopped
        self._known: dict[str, KeptFile] = {}
        self.last: Manifest | None = None
        """The newest backup."""

    def look(self) -> None:
        """Finds out what is there. The newest backup says it: what only older ones have will not be needed again. A
        manifest that cannot be read is not built upon, and nothing of it is trusted.
        """
        for number in reversed(self.place.numbers()):
            try:
                self.last = self.place.load(number)
            except BackupDamaged:
                continue
            self._known = {kept.name: kept for kept in self.last.files()}
            return

    def copy_ahead(self, number: int) -> None:
        """Copies the segments that a snapshot names, while the server goes on: those that vanish are not needed."""
        for topic_id, folded in fold_snapshots(self._fs, self._layout, number).topics.items():
            for segment in folded.state.segments:
                try:
                    self._copy_segment(topic_id, segment)
                except FileNotFoundError:
                    continue

    def copy(self, number: int) -> Manifest:
        """Copies everything the snapshot counts on that is not there yet; no checkpoint may run meanwhile."""
        folded = fold_snapshots(self._fs, self._layout, number)
        segments = [
            self._copy_segment(topic_id, segment)
            for topic_id, found in folded.topics.items()
            for segment in found.state.segments
        ]
        head = folded.head
        return Manifest(
            format=FORMAT, lineage=self.place.lineage, number=number, made_ms=head.now_ms, moment=head.moment,
            release=__version__, topics=len(folded.topics), records=_records(folded), positions=head.positions,
            snapshots=[self._copy_snapshot(n) for n in (*head.chain, number)], segments=segments,
        )  # fmt: skip

    def copy_log(self, kept: KeptLog, manifest: Manifest) -> list[KeptFile] | None:
        """The log between the last backup and this one, or the end of its run; None where files of it are missing."""
        last = self.last
        if last is None:
            return None
        ends = {position.shard: position.file for position in manifest.positions}
        run_ends = kept.run_ends(last.number)
        for shard, number in run_ends.items():
            ends[shard] = min(ends.get(shard, number), number)
        copied = []
        for position in last.positions:
            if run_ends and position.shard not in run_ends:
                return None  # Nobody noted where the run ended there: another release began the next one.
            end = ends.get(position.shard, position.file)
            if _reaches(kept.numbers(position.shard), position, end):
                for number in range(position.file, end):
                    name = log_name(position.shard, number)
                    copied.append(self._keep(name, kept.read(position.shard, number)))
            else:
                return None
        return copied

    def _copy_snapshot(self, number: int) -> KeptFile:
        name = snapshot_name(number)
        return self._known.get(name) or self._keep(name, map_file(self._fs, self._layout.snapshot(number)))

    def _copy_segment(self, topic_id: int, segment: SegmentState) -> KeptSegment:
        path = self._layout.segment(topic_id, segment.first_seq, segment.cold)
        name = segment_name(topic_id, segment.first_seq, segment.count)
        data = self._known.get(name + ".data")
        index = self._known.get(name + ".idx")
        if data is None or index is None:
            whole = map_file(self._fs, path + ".data")
            data = self._keep(name + ".data", whole[: decode_head(whole).flags_at])
            index = self._keep(name + ".idx", map_file(self._fs, path + ".idx"))
        return KeptSegment(
            topic_id, segment.first_seq, segment.count, data, index, self._flags(topic_id, segment, path)
        )

    def _flags(self, topic_id: int, segment: SegmentState, path: str) -> KeptFile | None:
        if segment.marked == 0:
            return None
        file = self._fs.open(path + ".data")
        try:
            flags = file.read_at(file.size() - segment.count, segment.count)
        finally:
            file.close()
        if not any(flags):
            return None
        name = flags_name(topic_id, segment.first_seq, xxh3_64_hexdigest(flags))
        return self._known.get(name) or self._keep(name, memoryview(flags))

    def _keep(self, name: str, data: memoryview) -> KeptFile:
        if self._stopped():
            raise ShuttingDownError()
        kept = self._known[name] = self.place.put(name, [data])
        return kept


def _reaches(numbers: list[int], position: WalPosition, end: int) -> bool:
    """Whether the files from a position up to the end are all there."""
    return set(range(position.file, end)) <= set(numbers)


def _records(folded: Folded) -> int:
    states = [topic.state for topic in folded.topics.values()]
    return sum(segment.live for state in states for segment in state.segments)
