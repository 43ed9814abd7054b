"""Replay of a shard's log, which tells a torn tail from damage.

A crash may leave the end of the newest file in any shape: a frame cut short, zeros, garbage, or, where the machine
itself went down, holes with later frames behind them, because unsynced writes reach the disk in any order. All of that
is not read: nothing in it was promised to survive, and the checkpoint that ends a recovery removes it. Everything else
is damage, and damage is never silent:

| at the place where the next frame should be | what it is |
|---|---|
| zeros or garbage, no valid frame behind | the end of the log, or a torn tail: not read |
| valid frames behind, one of which says this place was synced | damage |
| valid frames behind, and the machine did not restart since | damage: the page cache cannot lose a write |
| valid frames behind, none says it was synced, the machine restarted | an unsynced tail torn by a power cut: not read |
| anything but the next frame or the file's unused rest, while a later file is there | damage: a file is synced before |
| a file missing from the row of numbers, or a valid frame with another lsn | damage |
| a frame of an unknown kind or version whose checksum is right | a newer release wrote it: NewerFormatError |
"""

from collections.abc import Callable
from typing import NamedTuple

from topics.log.forward_frames import parts_of
from topics.log.frame import BadFrame, Frame, FrameKind, find_frames, named, read_frame
from topics.log.fs import FileSystem
from topics.log.layout import wal_file, wal_numbers
from topics.model.errors import Finding


class Tear(NamedTuple):
    """Where the log was cut: everything from `offset` of file `number` on, and all later files, is not part of it."""

    number: int
    offset: int
    reason: str
    frames_behind: int


class ShardEnd(NamedTuple):
    """How far a shard's log reaches."""

    next_lsn: int
    next_number: int
    """A file number that no file has, not even one behind a tear."""
    tear: Tear | None
    frames: int


class LogDamaged(Exception):
    """The log has damage that no crash explains; `finding` names the place."""

    def __init__(self, finding: Finding, resume: tuple[int, int] | None) -> None:
        super().__init__(finding.what)
        self.finding = finding
        self.resume = resume
        """(file number, offset) of the first valid frame behind the damage, for whoever salvages the rest."""


class ShardReader:
    """Walks a shard's frames from a position on; `on_bytes` is told how many bytes of log were read, for progress."""

    def __init__(
        self, fs: FileSystem, folder: str, same_boot: bool, on_bytes: Callable[[int], None] = lambda count: None
    ) -> None:
        self._fs = fs
        self._folder = folder
        self._same_boot = same_boot
        self._on_bytes = on_bytes

    def numbers(self) -> list[int]:
        try:
            names = self._fs.list_dir(self._folder)
        except FileNotFoundError:
            return []
        return wal_numbers(names)

    def secure(self) -> None:
        """Makes durable what was written to the newest file; every other one was synced before the next was begun."""
        for number in self.numbers()[-1:]:
            file = self._fs.open(wal_file(self._folder, number))
            try:
                file.sync()
            finally:
                file.close()

    def size_from(self, first_number: int) -> int:
        """How many bytes of log there are at most, for progress."""
        total = 0
        for number in self.numbers():
            if number >= first_number:
                file = self._fs.open(wal_file(self._folder, number))
                total += file.size()
                file.close()
        return total

    def replay(self, first_number: int, first_lsn: int, apply: Callable[[Frame], None]) -> ShardEnd:
        """Hands every frame from `first_lsn` on to `apply`, in order."""
        expected, frames = first_lsn, 0
        numbers = [number for number in self.numbers() if number >= first_number]
        for place, number in enumerate(numbers):
            if number != first_number + place:
                finding = Finding(self._folder, f"log file {first_number + place} is missing")
                raise LogDamaged(finding, (number, 0))
            buffer = self._map(number)
            offset = 0
            with named(wal_file(self._folder, number)):
                while isinstance(found := read_frame(buffer, offset), Frame) and found.lsn == expected:
                    if found.kind is FrameKind.FORWARDS:
                        for part in parts_of(found):
                            apply(part)
                    else:
                        apply(found)
                    expected, frames, offset = expected + 1, frames + 1, found.end
                    self._on_bytes(found.end - found.start)
                tear = self._judge(found, buffer, number, offset, expected, numbers[place + 1 :])
            if tear is not None:
                return ShardEnd(expected, numbers[-1] + 1, tear, frames)
        return ShardEnd(expected, first_number + len(numbers), None, frames)

    def _judge(
        self,
        found: Frame | BadFrame | None,
        buffer: memoryview,
        number: int,
        offset: int,
        expected: int,
        later: list[int],
    ) -> Tear | None:
        """Decides what stands where frame `expected` should: None when the log goes on in the next file."""
        behind = list(find_frames(buffer, offset))
        if not behind and found is None and later and self._begins_with(later[0], expected):
            # The common case; looking through all later files for each file would take for ever in a long log.
            return None
        if not behind and later:
            behind = self._first_frames(later)
            # A hole where the next file begins is judged there: a power cut may tear that file's first write.
            if found is None and (not behind or behind[0].start > 0 or behind[0].lsn == expected):
                return None
        if not behind and not later:
            if found is None and not any(bytes(buffer[offset : offset + 64])):
                return None
            reason = found.reason if isinstance(found, BadFrame) else "bytes that are no frame"
            return Tear(number, offset, reason, 0)
        what = _describe(found, expected)
        # No crash puts a valid frame into another's place, nor harms a file that was synced before the next was made.
        unexplained = self._same_boot or bool(later) or isinstance(found, Frame)
        if unexplained or max(frame.synced for frame in behind) >= expected:
            end = behind[0].start if behind and behind[0].start > offset else len(buffer)
            reported = "with valid frames behind it" if behind else "in a file that was finished"
            finding = Finding(wal_file(self._folder, number), f"{what}, {reported}", byte_range=(offset, end))
            resume = self._place_of(behind[0], buffer, number, later) if behind else (later[0], 0)
            raise LogDamaged(finding, resume)
        return Tear(number, offset, what, len(behind))

    def _begins_with(self, number: int, lsn: int) -> bool:
        with named(wal_file(self._folder, number)):
            first = read_frame(self._map(number), 0)
        return isinstance(first, Frame) and first.lsn == lsn

    def _first_frames(self, numbers: list[int]) -> list[Frame]:
        found: list[Frame] = []
        for number in numbers:
            with named(wal_file(self._folder, number)):
                found.extend(find_frames(self._map(number), 0))
        return found

    def _place_of(self, frame: Frame, buffer: memoryview, number: int, later: list[int]) -> tuple[int, int]:
        if any(frame is other or frame.lsn == other.lsn for other in find_frames(buffer, 0)):
            return number, frame.start
        return (later[0] if later else number), frame.start

    def _map(self, number: int) -> memoryview:
        file = self._fs.open(wal_file(self._folder, number))
        try:
            return file.map()
        finally:
            file.close()


def _describe(found: Frame | BadFrame | None, expected: int) -> str:
    if isinstance(found, BadFrame):
        return f"{found.reason} where frame {expected} should be"
    if isinstance(found, Frame):
        return f"frame {found.lsn} where frame {expected} should be"
    return f"zeros where frame {expected} should be"
