"""Backup format: a JSON manifest that names every file with size and checksum, and is written last.

A place holds the backups of any number of data folders, each below a folder of its own, its lineage:

    LINEAGE/snapshots/<16 digits>.bin                                a snapshot file, as it is
    LINEAGE/segments/<16 hex digits>/<20 digits>-<count>.data        a segment's data without its delete flags
    LINEAGE/segments/<16 hex digits>/<20 digits>-<count>.idx         a segment's index, as it is
    LINEAGE/flags/<16 hex digits>/<20 digits>-<16 hex digits>        a segment's delete flags, unless none is set
    LINEAGE/log/shard-NN/<16 digits>.wal                             a log file, up to its last valid frame
    LINEAGE/backups/<16 digits>.json                                 a manifest, numbered as its newest snapshot
    LINEAGE/log/shard-NN/<16 digits>.<from>-<to>.part                a span of a log file, from frame to frame
    LINEAGE/shipped.json                                             which of these count, behind the newest backup
    LINEAGE/writing                                                  there while a backup is being taken

A file counts when a manifest names it. Files are never changed, so backups share what they have in common: a segment is
copied once, and a delete in it costs its flags alone. What a crash leaves without a manifest is written over by the
next attempt, or removed when old backups are.

The log of a manifest is what was logged between the backup `before` it and itself. With it the state at any moment in
between can be built: from that backup's files and the frames up to the moment. The log behind the newest backup is
shipped while it is being written, in parts that `shipped.json` names; it is replaced by a longer one again and again.
"""

import re
from typing import NamedTuple, TypeVar

import msgspec

from topics.log.snapshot import WalPosition

FORMAT = 1
SHIPPED = "shipped.json"
_LOG_NAME = re.compile(r"log/shard-(\d+)/(\d+)\.(?:wal|(\d+)-\d+\.part)")


class KeptFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a backup; its name is below the lineage's folder."""

    name: str
    size: int
    checksum: str
    """XXH3-64 of its bytes, as 16 hexadecimal digits."""


class KeptSegment(msgspec.Struct, frozen=True, array_like=True):
    topic_id: int
    first_seq: int
    count: int
    data: KeptFile
    index: KeptFile
    flags: KeptFile | None
    """None where nothing in it is deleted."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    lineage: str
    number: int
    made_ms: int
    moment: int
    """Everything logged up to this moment is in it (`Frame.moment`)."""
    release: str
    """The version of the server that made it."""
    topics: int
    records: int
    positions: list[WalPosition]
    """Where the log went on behind it."""
    snapshots: list[KeptFile]
    """The full one first; the last has the manifest's number."""
    segments: list[KeptSegment]
    before: int | None = None
    """The backup whose log this one has; None where it has none."""
    log: list[KeptFile] = []

    def files(self) -> list[KeptFile]:
        """Every file that must be there for the backup to be whole."""
        parts = [part for s in self.segments for part in (s.data, s.index, s.flags) if part is not None]
        return [*self.snapshots, *parts, *self.log]


class ShippedLog(msgspec.Struct, frozen=True, kw_only=True):
    """The log behind a backup, as far as it was shipped."""

    format: int
    lineage: str
    before: int
    """The backup that it goes on from."""
    moment: int
    """Everything logged up to this moment is in it. Frames above it may be there as well, but not all of them."""
    parts: list[KeptFile]


class LogPart(NamedTuple):
    """Which bytes of which log file a file of a backup has."""

    shard: int
    number: int
    start: int


_Note = TypeVar("_Note", Manifest, ShippedLog)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Manifest)
_shipped_decoder = msgspec.json.Decoder(ShippedLog)


def encode_manifest(manifest: Manifest | ShippedLog) -> bytes:
    return _encoder.encode(manifest)


def decode_manifest(data: bytes) -> Manifest:
    """Raises ValueError for what is no manifest, or one of a format that is not known here."""
    return _decode(_decoder, data)


def decode_shipped(data: bytes) -> ShippedLog:
    """Raises ValueError as for a manifest."""
    return _decode(_shipped_decoder, data)


def _decode(decoder: msgspec.json.Decoder[_Note], data: bytes) -> _Note:
    try:
        found = decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    if found.format != FORMAT:
        raise ValueError(f"it has format {found.format}, and format {FORMAT} is known here")
    return found


def manifest_name(number: int) -> str:
    return f"backups/{number:016d}.json"


def snapshot_name(number: int) -> str:
    return f"snapshots/{number:016d}.bin"


def segment_name(topic_id: int, first_seq: int, count: int) -> str:
    """The name of a segment's two files without their endings."""
    return f"segments/{topic_id:016x}/{first_seq:020d}-{count}"


def flags_name(topic_id: int, first_seq: int, checksum: str) -> str:
    return f"flags/{topic_id:016x}/{first_seq:020d}-{checksum}"


def log_name(shard: int, number: int) -> str:
    return f"log/shard-{shard:02d}/{number:016d}.wal"


def part_name(part: LogPart, end: int) -> str:
    return f"log/shard-{part.shard:02d}/{part.number:016d}.{part.start}-{end}.part"


def log_part(name: str) -> LogPart:
    """What a file of the log holds, whole or in parts."""
    found = _LOG_NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name} is no name of a log file")
    return LogPart(int(found[1]), int(found[2]), int(found[3] or 0))
