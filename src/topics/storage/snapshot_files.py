"""Snapshots opened by their directories: checked whole, a stretch at a time, and kept open to read single topics.

A stretch of about a MiB has one checksum, in the directory behind it, so the file is checked at the speed of the disk
and not of frames. Where one is wrong, the frames are walked through to tell what is damaged. A snapshot without
directories, of few topics or of an older server, is walked through anyway.
"""

from collections.abc import Iterator
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from topics.core.errors import DamageError
from topics.core.findings import Finding
from topics.formats.frame import OVERHEAD_BYTES, Frame, FrameKind, read_frame
from topics.formats.snapshot import (
    Directory,
    SnapshotHead,
    decode_directory,
    decode_end,
    decode_head,
    directory_in_end,
    encode_end,
)
from topics.storage.fs import File, FileSystem
from topics.storage.layout import Layout
from topics.storage.snapshots import read_snapshot

_END_BYTES = OVERHEAD_BYTES + len(encode_end(0, 1))


class StoredTopic(NamedTuple):
    """The frames of one topic."""

    state: Frame
    tail: list[Frame]


class FoundDirectory(NamedTuple):
    at: int
    end: int
    directory: Directory


class SnapshotFile:
    """One snapshot. What is kept open is a mapping, which goes with the last who uses it, as those of segments do."""

    def __init__(self, fs: FileSystem, layout: Layout, number: int) -> None:
        self._fs, self._layout = fs, layout
        self.number = number
        self.path = layout.snapshot(number)
        try:
            file = fs.open(self.path)
        except FileNotFoundError:
            raise DamageError([Finding(self.path, "a snapshot that a newer one builds on is missing")]) from None
        try:
            self.view = file.map()
            """All of it."""
        finally:
            file.close()
        self.size = len(self.view)
        end = self._frame(max(self.size - _END_BYTES, 0), self.size)
        indexed = end is not None and end.kind is FrameKind.SNAPSHOT_END
        self._topics = decode_end(end.body) if end is not None and indexed else 0
        self._last_directory = directory_in_end(end.body) if end is not None and indexed else 0

    def head(self) -> SnapshotHead:
        """What it says of itself; nothing behind it is checked by this."""
        found = self._frame(0, self.size)
        if found is None or found.kind is not FrameKind.SNAPSHOT_HEAD:
            raise self._damaged()
        head = decode_head(found.body)
        if head.number != self.number:
            raise self._damaged()
        return head

    def directories(self) -> list[FoundDirectory]:
        """All of them, in the order of the file, which is found whole by that; none where it has none. DamageError."""
        if not self._last_directory:
            return []
        # Read and not mapped: a page that was only checked should not count as the server's memory from then on.
        file = self._fs.open(self.path)
        try:
            found = self._checked(file)
        finally:
            file.close()
        listed = sum([len(directory.ids) + len(directory.others) for _, _, directory in found])
        if found[0].directory.begin or listed != self._topics:
            raise self._damaged()
        return found

    def _checked(self, file: File) -> list[FoundDirectory]:
        found: list[FoundDirectory] = []
        at, end = self._last_directory, self.size - _END_BYTES
        while at:
            directory = self.directory(at, end)
            begin = directory.begin
            if not directory.previous <= begin < at:
                raise self._damaged()
            if xxh3_64_intdigest(file.read_at(begin, at - begin)) != directory.digest:
                raise self._damaged()
            found.append(FoundDirectory(at, end, directory))
            at, end = directory.previous, begin
        found.reverse()
        return found

    def directory(self, at: int, end: int) -> Directory:
        """One of them. Raises DamageError where it is not what it was."""
        frame = self._frame(at, end)
        if frame is None or frame.kind is not FrameKind.DIRECTORY or frame.end != end:
            raise self._damaged()
        try:
            return decode_directory(frame.body)
        except ValueError:
            raise self._damaged() from None

    def walk(self) -> Iterator[StoredTopic]:
        """Every topic of a snapshot without directories, which is found whole before the first. DamageError."""
        stored: StoredTopic | None = None
        for frame in read_snapshot(self._fs, self._layout, self.number)[1]:
            if frame.kind is FrameKind.TOPIC:
                if stored is not None:
                    yield stored
                stored = StoredTopic(frame, [])
            elif stored is not None:
                stored.tail.append(frame)
        if stored is not None:
            yield stored

    def topic(self, offset: int, size: int) -> StoredTopic:
        """The frames of a topic that a directory names. Raises ValueError where they are not there any more."""
        end = offset + size
        frames = [self.state(offset)]
        while frames[-1].end < end:
            found = read_frame(self.view, frames[-1].end)
            if not isinstance(found, Frame):
                raise ValueError(f"what stands at {frames[-1].end} of {self.path} is no frame")
            frames.append(found)
        return StoredTopic(frames[0], frames[1:])

    def state(self, offset: int) -> Frame:
        """The first of them alone: a topic without its tail."""
        found = read_frame(self.view, offset)
        if not isinstance(found, Frame) or found.kind is not FrameKind.TOPIC:
            raise ValueError(f"there is no topic at {offset} of {self.path}")
        return found

    def _frame(self, offset: int, end: int) -> Frame | None:
        found = read_frame(self.view[:end], offset)
        return found if isinstance(found, Frame) else None

    def _damaged(self) -> DamageError:
        """What is wrong, as a look at every frame tells it."""
        try:
            read_snapshot(self._fs, self._layout, self.number)
        except DamageError as error:
            return error
        return DamageError([Finding(self.path, "the snapshot's directories do not tell what is in it")])
