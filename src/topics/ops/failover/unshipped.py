"""Unshipped log: the frames that a data folder has behind the log that it shipped.

A server that starts again with its own folder ships them first, in the fence that begins its term, so that a takeover
has everything this server can show (`ship_tail`). A server whose folder belongs to an earlier primary must not add them
to the history: they are kept in a file beside the folder (`keep_tail`), as an object of shipped log
(`ops.backup.shipped_log`), and nothing reads it by itself.
"""

from collections.abc import Mapping
from typing import NamedTuple

from topics.log.frame import Frame, FrameKind, decode_block, read_frame
from topics.log.fs import FileSystem, WrongChecksumError, map_file, replace_file
from topics.log.layout import Layout, number_in, wal_file, wal_numbers
from topics.ops.backup.backup_files import KeptLog
from topics.ops.backup.backup_store import BackupDamaged, BackupPlace, Manifest
from topics.ops.backup.backups import read_lineage
from topics.ops.backup.shipped_log import LogSpan, ShippedHead, encode_shipped

_ATTEMPTS = 10


class UnknownTailError(Exception):
    """It cannot be proved which log was shipped, or log is missing."""


class Tail(NamedTuple):
    """The log of a folder behind its shipped log, in the order of shards and files."""

    source: BackupPlace
    manifest: Manifest
    spans: list[LogSpan]
    pieces: list[memoryview]
    moment: int
    number: int
    """The number of the next object of shipped log."""
    frames: int
    whole: bool
    """Whether all of it continues the shipped log. The log of a later run does not: recovery decides without frames
    (`ops.backup.backup_files`)."""

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


def read_tail(place_fs: FileSystem, root: str, fs: FileSystem, layout: Layout, own_run: bool) -> Tail:
    """The unshipped log of a folder; with `own_run` only that of the run that took the newest backup. Raises
    UnknownTailError."""
    try:
        lineage = read_lineage(fs, layout)
        if lineage is None:
            raise UnknownTailError("the folder has no backups")
        source = BackupPlace(place_fs, root, lineage.name)
        numbers = source.numbers()
        if not numbers or not lineage.knows(numbers[-1]):
            raise UnknownTailError("its backups have another history")
        manifest = source.load(numbers[-1])
        later = KeptLog(fs, layout, 0).run_ends(manifest.number)
        number = source.next_shipped(manifest)
        ends, moment = _shipped_ends(source, manifest)
        tail = Tail(source, manifest, [], [], moment, number, 0, True)
        files = _log_files(fs, layout)
        for shard, paths in sorted(files.items()):
            begin = ends.get(shard, (min(paths, default=1), 0))
            tail = _add_shard(tail, fs, shard, paths, begin, later if own_run else {})
        # Its files are there from its start on, with frames in them or not.
        whole = not later
        return tail._replace(whole=whole)
    except (BackupDamaged, WrongChecksumError) as error:
        raise UnknownTailError(str(error)) from error


def ship_tail(place_fs: FileSystem, root: str, fs: FileSystem, layout: Layout, term: int) -> bool:
    """Ends the shipped log of the own folder with the rest of it; whether that is all log of the folder. Raises
    UnknownTailError, and FencedError where a takeover was faster."""
    for _ in range(_ATTEMPTS):
        tail = read_tail(place_fs, root, fs, layout, own_run=True)
        try:
            tail.source.fence(
                tail.manifest, term, f"fence-{term}", tail.spans, tail.pieces, tail.moment, tail.number
            )  # fmt: skip
        except FileExistsError:
            continue  # The last process of this server had an object on its way.
        return tail.whole
    raise UnknownTailError("the shipped log does not come to rest")


def keep_tail(tail: Tail, fs: FileSystem, path: str, term: int) -> None:
    """Writes the tail to a file, durably."""
    head = ShippedHead(
        lineage=tail.source.lineage, run=tail.manifest.run, number=0, confirmed=0, moment=tail.moment,
        spans=tail.spans, fence=term,
    )  # fmt: skip
    replace_file(fs, path, b"".join(encode_shipped(head, tail.pieces)))


def seqs_of(tail: Tail) -> dict[int, tuple[int, int]]:
    """The first and the last seq that the tail has of each topic, by the id of the topic."""
    found: dict[int, tuple[int, int]] = {}
    for piece in tail.pieces:
        end = 0
        while isinstance(frame := read_frame(piece, end), Frame):
            end = frame.end
            if frame.kind is FrameKind.APPEND:
                block = decode_block(frame.body)
                last = block.first_seq + block.count - 1
                first = found.get(frame.topic_id, (block.first_seq, 0))[0]
                found[frame.topic_id] = (first, last)
    return found


def _shipped_ends(source: BackupPlace, manifest: Manifest) -> tuple[dict[int, tuple[int, int]], int]:
    """Where the shipped log ends in each shard, as file and offset, and its moment."""
    ends = {position.shard: (position.file, 0) for position in manifest.positions}
    shipped = source.shipped(manifest)
    if shipped is None:
        return ends, manifest.moment
    if shipped.damaged:
        raise UnknownTailError(str(shipped.damaged[0]))
    for part in shipped.parts:
        ends[part.shard] = (part.number, part.start + part.size)
    return ends, shipped.moment


def _log_files(fs: FileSystem, layout: Layout) -> dict[int, dict[int, str]]:
    """The paths of all log files of a folder, by shard and number."""
    found: dict[int, dict[int, str]] = {}
    for root in (layout.kept_logs, layout.wal):
        if not fs.exists(root):
            continue
        for name in fs.list_dir(root):
            shard = number_in(name, "shard-", "")
            if shard is not None:
                folder = f"{root}/{name}"
                files = {number: wal_file(folder, number) for number in wal_numbers(fs.list_dir(folder))}
                found.setdefault(shard, {}).update(files)
    return found


def _add_shard(
    tail: Tail, fs: FileSystem, shard: int, files: Mapping[int, str], begin: tuple[int, int], later: Mapping[int, int]
) -> Tail:
    number, offset = begin
    end = later.get(shard, max(files, default=0) + 1)
    for at in range(number, end):
        if at not in files:
            # A file that nothing was logged to after the shipped log need not be there any more.
            raise UnknownTailError(f"log file {at} of shard {shard} is gone")
        data, moment, frames = map_file(fs, files[at]), tail.moment, 0
        stop = start = offset if at == number else 0
        while isinstance(frame := read_frame(data, stop), Frame):
            stop, moment, frames = frame.end, max(moment, frame.moment), frames + 1
        if stop > start:
            tail.spans.append(LogSpan(shard, at, start, stop - start))
            tail.pieces.append(data[start:stop])
            tail = tail._replace(moment=moment, frames=tail.frames + frames)
    return tail
