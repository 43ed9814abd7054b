"""Walking a shard's log to its end over any damage, for those who look for damage and those who mend it.

The verdicts are those of `storage.replay`; only here the walk goes on behind a damaged place with the next valid frame,
and says how much is missing between the two.
"""

from collections.abc import Callable
from typing import NamedTuple

from topics.core.findings import Finding
from topics.formats.forwards import parts_of
from topics.formats.frame import Frame, find_frames, read_frame
from topics.formats.remains import FrameRemains, read_remains, records_at_most
from topics.storage.layout import wal_file
from topics.storage.replay import LogDamaged, ShardEnd, ShardReader

_BATCH_RECORDS_MAX = 10_000
_FILE_BYTES = 64 * 1024 * 1024
"""What a frame holds at most, and a log file, unless an operator has chosen otherwise."""


class Hole(NamedTuple):
    """A damaged place of a log: what was found, and what can be missing."""

    finding: Finding
    shard: int
    first_lsn: int
    next_lsn: int | None
    """The lsn of the valid frame behind it; None when there is none."""
    records_max: int
    """No more records than this can have been in it."""
    remains: list[FrameRemains]
    """What its frames seem to have been; empty when they cannot be told apart."""

    @property
    def frames(self) -> int | None:
        """How many frames are missing, when that is known."""
        return self.next_lsn - self.first_lsn if self.next_lsn is not None else None


class LogWalker(ShardReader):
    """Reads past damage. Nothing is changed."""

    shard = 0

    def walk(
        self,
        first_number: int,
        first_lsn: int | None,
        apply: Callable[[Frame, int], None],
        damaged: Callable[[Hole], None],
    ) -> ShardEnd:
        """Hands every valid frame with the number of its file to `apply`, and every damaged place to `damaged`.

        Without a `first_lsn` nobody knows where the log should begin, and it begins with the first frame there is.
        """
        numbers = [number for number in self.numbers() if number >= first_number]
        expected, frames = first_lsn or 1, 0
        wanted = first_number if first_lsn is not None or not numbers else numbers[0]
        loose = first_lsn is None
        """Whether any higher lsn will do for the next frame: what is missing before it has been told already."""
        for place, number in enumerate(numbers):
            later = numbers[place + 1 :]
            if number != wanted:
                damaged(self._missing_files(wanted, number, expected, [number, *later]))
                loose = True
            wanted = number + 1
            buffer, offset = self._map(number), 0
            while True:
                found = read_frame(buffer, offset)
                if isinstance(found, Frame) and (found.lsn == expected or (loose and found.lsn > expected)):
                    for part in self._parts(found):
                        apply(part, number)
                    expected, frames, offset, loose = found.lsn + 1, frames + 1, found.end, False
                    self._on_bytes(found.end - found.start)
                    continue
                try:
                    tear = self._judge(found, buffer, number, offset, expected, later)
                except LogDamaged as damage:
                    behind = next((frame for frame in find_frames(buffer, offset) if frame.lsn >= expected), None)
                    damaged(self._hole(damage.finding, buffer, number, offset, behind, expected, later))
                    loose = True
                    if behind is None:
                        break
                    offset = behind.start
                    continue
                if tear is not None:
                    return ShardEnd(expected, numbers[-1] + 1, tear, frames)
                break
        return ShardEnd(expected, wanted, None, frames)

    def _parts(self, frame: Frame) -> list[Frame]:
        try:
            return list(parts_of(frame))
        except ValueError:
            # Whoever it is handed to will find that it makes no sense.
            return [frame]

    def _missing_files(self, wanted: int, number: int, expected: int, later: list[int]) -> Hole:
        which = f"log file {wanted} is" if number == wanted + 1 else f"log files {wanted} to {number - 1} are"
        behind = next((frame for frame in self._first_frames(later) if frame.lsn >= expected), None)
        next_lsn = behind.lsn if behind is not None else None
        finding = Finding(wal_file(self._folder, wanted), f"{which} missing")
        return Hole(finding, self.shard, expected, next_lsn, _records_in_frames(expected, next_lsn), [])

    def _hole(
        self,
        finding: Finding,
        buffer: memoryview,
        number: int,
        offset: int,
        behind: Frame | None,
        expected: int,
        later: list[int],
    ) -> Hole:
        end = behind.start if behind is not None else len(buffer)
        if behind is None:
            behind = next((frame for frame in self._first_frames(later) if frame.lsn >= expected), None)
        next_lsn = behind.lsn if behind is not None else None
        # Where the bytes end with the file, or frames are missing without a byte in their place, some may have been cut
        # off: then only the number of the frames says how much.
        cut = end == len(buffer) or end == offset
        records_max = _records_in_frames(expected, next_lsn) if cut else records_at_most(end - offset)
        finding = Finding(wal_file(self._folder, number), finding.what, byte_range=(offset, end))
        remains = read_remains(buffer, offset, end, expected, next_lsn)
        return Hole(finding, self.shard, expected, next_lsn, records_max, remains)


def _records_in_frames(first_lsn: int, next_lsn: int | None) -> int:
    return (next_lsn - first_lsn) * _BATCH_RECORDS_MAX if next_lsn is not None else records_at_most(_FILE_BYTES)
