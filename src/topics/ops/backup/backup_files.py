"""Backup files: copies the files of a checkpoint, each once.

This module does not use the engine's state; it reads files that no running checkpoint changes, and runs off the loop.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping
from sys import maxsize
from typing import NamedTuple

from xxhash import xxh3_64_hexdigest

from topics.log.frame import Frame, read_frame
from topics.log.fs import FileSystem, WrongChecksumError, map_file, read_checked, write_checked
from topics.log.layout import Layout, number_in, wal_file, wal_numbers
from topics.log.segment import decode_head
from topics.log.snapshot_files import SegmentState, WalPosition
from topics.model.errors import BackupFailedError, ShuttingDownError
from topics.ops.backup.backup_store import (
    FORMAT,
    BackupDamaged,
    BackupPlace,
    Folded,
    KeptFile,
    KeptSegment,
    Manifest,
    Writing,
    flags_name,
    fold_snapshots,
    log_name,
    segment_name,
    snapshot_name,
)
from topics_protocol import __version__

# Log files that a checkpoint has absorbed and the next backup wants: moved aside instead of removed.
#
#     backup/log/shard-NN/<16 digits>.wal     as they were in `wal/`, until a backup has them
#     backup/log/run                          where the run ended that the last backup is of: a line of `NUMBER
#                                             SHARD:FILE SHARD:FILE ...`, with the number of the newest checkpoint at
#                                             that start; the file has a checksum (`log.fs`)
#
# What a recovery decides stands in no frame, so the log of a later run does not continue the state of an earlier one.
# The first start after a backup therefore notes with which files its own log begins; there the log of that backup ends.
# Whether a backup counts is known for sure at its place only, so there may be two lines: the first start after the last
# one that counts, and the first one after the one that was being taken.
#
# They are held only so long as they are not too many: an unreachable place of backups must not fill the disk. The log
# between two backups is given up then, never a backup; the moments in between cannot be restored exactly.

_log = logging.getLogger(__name__)


class _Start(NamedTuple):
    """A line of the file `run`."""

    checkpoint: int
    first_files: Mapping[int, int]

    def __str__(self) -> str:
        return " ".join([str(self.checkpoint), *(f"{shard}:{number}" for shard, number in self.first_files.items())])


def _start_of(line: str) -> _Start:
    words = [word.partition(":") for word in line.split()]
    # Earlier releases wrote no number, and one line.
    checkpoint = next((int(word) for word, colon, _ in words if not colon), maxsize)
    return _Start(checkpoint, {int(shard): int(number) for shard, colon, number in words if colon})


class KeptLog:
    def __init__(self, fs: FileSystem, layout: Layout, bytes_max: int) -> None:
        self._fs = fs
        self._layout = layout
        self._bytes_max = bytes_max

    def retire(self, shard: int, before: int) -> None:
        """Moves a shard's files with lower numbers out of the log, the oldest first."""
        source, target = self._layout.shard(shard), self._layout.kept_log(shard)
        retired = [number for number in self._numbers(source) if number < before]
        if not retired:
            return
        self._fs.make_dirs(target)
        for number in retired:
            self._fs.rename(wal_file(source, number), wal_file(target, number))
        # Not synced: after a power cut a file is in one of the two folders.
        if self.size() > self._bytes_max:
            _log.warning(
                "log for the next backup dropped: too large",
                extra={"bytes_max": self._bytes_max},
            )
            self._drop_files({})

    def size(self) -> int:
        return sum(len(map_file(self._fs, path)) for shard in self._shards() for path in self._paths(shard))

    def numbers(self, shard: int) -> list[int]:
        """Returns the kept files of a shard."""
        return self._numbers(self._layout.kept_log(shard))

    def read(self, shard: int, number: int) -> memoryview:
        """Returns a file up to its last valid frame; the rest was reserved, or torn by a crash."""
        data, end = map_file(self._fs, wal_file(self._layout.kept_log(shard), number)), 0
        while isinstance(found := read_frame(data, end), Frame):
            end = found.end
        return data[:end]

    # Runs

    def begin_run(self, checkpoint: int, first_files: Mapping[int, int], last: int, next_: int) -> None:
        """Notes a start at a checkpoint, whose log continues with these files.

        `last` is the newest complete backup, and `next_` the one that may be complete. Only the first start after a
        backup ends that backup's log.
        """
        try:
            noted = [start for start in self._starts() if start.checkpoint >= last][:1]
        except WrongChecksumError as error:
            # The end of the last backup's log is lost, so this log is dropped, like one that grew too large.
            _log.error("log for the next backup dropped: damaged note", extra={"error": str(error)})
            self._drop_files({})
            noted = []
        if noted and noted[0].checkpoint >= next_:
            return
        self._fs.make_dirs(self._layout.kept_logs)
        text = "\n".join(str(start) for start in (*noted, _Start(checkpoint, first_files)))
        write_checked(self._fs, self._layout.kept_run, text)

    def run_ends(self, backup: int) -> Mapping[int, int]:
        """Returns the first files of the run after a backup's run, by shard; empty while that run continues.

        Raises WrongChecksumError.
        """
        return next((start.first_files for start in self._starts() if start.checkpoint >= backup), {})

    def _starts(self) -> "list[_Start]":
        """Raises WrongChecksumError, also for the text of another file."""
        text = read_checked(self._fs, self._layout.kept_run)
        try:
            return [_start_of(line) for line in text.splitlines()]
        except ValueError as error:
            raise WrongChecksumError(f"{self._layout.kept_run} is another file: {error}") from error

    # The end

    def drop(self, upto: Mapping[int, int] | None = None) -> None:
        """Removes the files with lower numbers of each shard, which a backup has; its run is the current one.

        Without numbers everything is removed.
        """
        self._drop_files(upto or {})
        if self._fs.exists(self._layout.kept_run):
            self._fs.remove(self._layout.kept_run)
            self._fs.sync_dir(self._layout.kept_logs)

    def _drop_files(self, upto: Mapping[int, int]) -> None:
        for shard in self._shards():
            for number in self.numbers(shard):
                if not upto or number < upto.get(shard, 0):
                    self._fs.remove(wal_file(self._layout.kept_log(shard), number))

    def _shards(self) -> list[int]:
        names = self._list(self._layout.kept_logs)
        return [number for name in names if (number := number_in(name, "shard-", "")) is not None]

    def _paths(self, shard: int) -> list[str]:
        folder = self._layout.kept_log(shard)
        return [wal_file(folder, number) for number in self._numbers(folder)]

    def _numbers(self, folder: str) -> list[int]:
        return wal_numbers(self._list(folder))

    def _list(self, folder: str) -> list[str]:
        try:
            return self._fs.list_dir(folder)
        except FileNotFoundError:
            return []


_NOTE_FILES = 64
_NOTE_BYTES = 256 * 1024 * 1024
"""The number of files or bytes after which the progress of a backup is noted; less often while the list is long."""


class OtherWriterError(BackupFailedError):
    """Another server writes to the same lineage, or a prune has removed what was copied."""

    def __init__(self, place: str) -> None:
        super().__init__(f"the files of the backup at {place} were removed, or another server writes there; try again")


class Copier:
    """Copies missing files to a place. If `stopped` returns true, it stops and raises."""

    def __init__(
        self,
        fs: FileSystem,
        layout: Layout,
        place: BackupPlace,
        stopped: Callable[[], bool],
        now_ms: Callable[[], int],
        writer: str,
        origin: BackupPlace | None = None,
    ) -> None:
        """`writer` identifies this attempt. `origin` are the backups that the data folder was restored from."""
        self._fs = fs
        self._layout = layout
        self.place = place
        self._stopped = stopped
        self._now_ms = now_ms
        self._writer = writer
        self._known: dict[str, KeptFile] = {}
        self._begun: dict[str, KeptFile] = {}
        """Files that an interrupted attempt has copied. Their bytes are compared before they are used."""
        self._resumed: list[KeptFile] = []
        self._put: list[KeptFile] = []
        """Files that this backup adds to the last one, up to the last note and since."""
        self._unnoted = self._unnoted_bytes = 0
        self.last: Manifest | None = None
        """The newest backup."""
        self._origin = origin
        self._adoptable: dict[KeptFile, KeptFile] = {}
        """Files of the newest backup of `origin`."""

    def begin(self) -> None:
        """Notes that a backup is being taken, and resumes an interrupted one."""
        found = self.place.writing()
        self._put = list(found.files) if found is not None else []
        self._begun = {kept.name: kept for kept in self._put}
        self._note()

    def check_writer(self) -> None:
        """Raises OtherWriterError if another writer uses the place."""
        found = self.place.writing()
        if found is None or found.writer != self._writer:
            raise OtherWriterError(self.place.root)

    def check_resumed(self) -> None:
        """Also checks the files that an earlier attempt has copied: a prune may have removed them."""
        self.check_writer()
        for kept in self._resumed:
            if not self.place.has(kept):
                raise OtherWriterError(self.place.root)

    def give_up(self) -> None:
        """Notes a failed attempt. The next one resumes it, unless the place is full or pruned."""
        try:
            self.check_writer()
            self._note(idle=True)
        except OtherWriterError:
            return
        except OSError:
            self.place.end_writing()

    def _note(self, idle: bool = False) -> None:
        self.place.note_writing(Writing(writer=self._writer, at_ms=self._now_ms(), files=self._put, idle=idle))
        self._unnoted = self._unnoted_bytes = 0

    def look(self) -> None:
        """Finds existing files by the newest backup; files of older backups only are not reused.

        An unreadable manifest is ignored, with its files.
        """
        for number in reversed(self.place.numbers()):
            try:
                self.last = self.place.load(number)
            except BackupDamaged:
                continue
            self._known = {kept.name: kept for kept in self.last.files()}
            return
        if self._origin is not None:
            with contextlib.suppress(BackupDamaged, OSError):
                newest = self._origin.load(self._origin.numbers()[-1])
                self._adoptable = {kept: kept for kept in newest.files()}

    def copy_ahead(self, number: int) -> None:
        """Copies the segments that a snapshot names, while the server runs; segments that vanish meanwhile are not
        needed."""
        for topic_id, folded in fold_snapshots(self._fs, self._layout, number).topics.items():
            for segment in folded.state.segments:
                try:
                    self._copy_segment(topic_id, segment)
                except FileNotFoundError:
                    continue

    def copy(self, number: int) -> Manifest:
        """Copies all missing files of the snapshot; no checkpoint may run meanwhile."""
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
        """Returns the log between the last backup and this one, or the end of its run; None if files of it are
        missing."""
        last = self.last
        if last is None:
            return None
        ends = {position.shard: position.file for position in manifest.positions}
        try:
            run_ends = kept.run_ends(last.number)
        except WrongChecksumError as error:
            _log.error("log for the next backup dropped: damaged note", extra={"error": str(error)})
            return None
        for shard, number in run_ends.items():
            ends[shard] = min(ends.get(shard, number), number)
        copied = []
        for position in last.positions:
            if run_ends and position.shard not in run_ends:
                return None  # The end of that run was not noted, because another release began the next one.
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
            head = decode_head(whole)
            if (head.topic_id, head.first_seq, head.count) != (topic_id, segment.first_seq, segment.count):
                raise ValueError(f"{path}.data is the file of another segment")
            data = self._keep(name + ".data", whole[: head.flags_at])
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
        begun = self._begun.get(name)
        if begun == KeptFile(name, len(data), xxh3_64_hexdigest(data)) and self.place.has(begun):
            self._known[name] = begun
            self._resumed.append(begun)
            return begun
        kept = self._known[name] = self._adopt(name, data) or self.place.put(name, [data])
        self._put.append(kept)
        self._unnoted += 1
        self._unnoted_bytes += kept.size
        if self._unnoted >= max(_NOTE_FILES, len(self._put) // 4) or self._unnoted_bytes >= _NOTE_BYTES:
            self.check_writer()
            self._note()
        return kept

    def _adopt(self, name: str, data: memoryview) -> KeptFile | None:
        """Takes a file over from the backups that the data folder was restored from, if they have the same bytes."""
        origin = self._origin
        if origin is None or not self._adoptable:
            return None
        kept = self._adoptable.get(KeptFile(name, len(data), xxh3_64_hexdigest(data)))
        if kept is None:
            return None
        try:
            self.place.adopt(origin, kept)
        except OSError as error:
            _log.info("file of the earlier backup not reused", extra={"name": name, "error": str(error)})
            return None
        return kept


def _reaches(numbers: list[int], position: WalPosition, end: int) -> bool:
    """Returns whether all files from a position to the end exist."""
    return set(range(position.file, end)) <= set(numbers)


def _records(folded: Folded) -> int:
    states = [topic.state for topic in folded.topics.values()]
    return sum(segment.live for state in states for segment in state.segments)
