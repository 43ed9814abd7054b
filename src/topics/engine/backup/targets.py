"""Which backup, and how much of the log behind it, is the state that somebody wants back."""

from collections.abc import Iterator
from typing import NamedTuple

from topics.core.backup_errors import BackupTargetError
from topics.formats.backup import KeptFile, Manifest
from topics.formats.block import decode_block
from topics.formats.carriers import block_in
from topics.formats.frame import Frame, FrameKind, read_frame
from topics.formats.routing import decode_forward
from topics.storage.backups.place import BackupPlace


class Target(NamedTuple):
    base: Manifest
    log: list[KeptFile]
    """The log behind it, as far as it is wanted at all."""
    until: int | None
    """No frame above this moment counts; None takes all of the log."""


def newest_of(manifests: list[Manifest]) -> Target:
    if not manifests:
        raise BackupTargetError("there is no backup")
    return Target(manifests[-1], [], None)


def numbered(manifests: list[Manifest], number: int) -> Target:
    for manifest in manifests:
        if manifest.number == number:
            return Target(manifest, [], None)
    known = ", ".join(str(manifest.number) for manifest in manifests) or "none"
    raise BackupTargetError(f"there is no backup {number}; there are: {known}")


def at_moment(manifests: list[Manifest], moment: int) -> Target:
    """The newest state that has nothing later than a moment."""
    base = next((manifest for manifest in reversed(manifests) if manifest.moment <= moment), None)
    if base is None:
        oldest = manifests[0].moment if manifests else None
        what = "there is no backup" if oldest is None else f"the oldest backup has everything up to {oldest}"
        raise BackupTargetError(f"no backup is as old as {moment}: {what}")
    behind = next((manifest for manifest in manifests if manifest.before == base.number), None)
    return Target(base, behind.log if behind is not None else [], moment)


def at_seq_of(place: BackupPlace, manifests: list[Manifest], name: str, seq: int) -> Target:
    """The newest state in which a topic has no seq above one."""
    topic_id: int | None = None
    oldest = 0
    for manifest in reversed(manifests):
        # One of the name that was deleted before is another topic.
        states = [s for s in place.states(manifest) if s.name == name and topic_id in (None, s.topic_id)]
        found = states[0] if states else None
        if found is not None:
            topic_id, oldest = found.topic_id, found.head
        if topic_id is not None and (found is None or found.head <= seq):
            return _before_seq(place, manifests, manifest, topic_id, seq)
    if topic_id is None:
        raise BackupTargetError(f"no backup has a topic {name}")
    raise BackupTargetError(f"every backup has {name} beyond seq {seq}; the oldest up to {oldest}")


def _before_seq(place: BackupPlace, manifests: list[Manifest], base: Manifest, topic_id: int, seq: int) -> Target:
    behind = next((manifest for manifest in manifests if manifest.before == base.number), None)
    if behind is None:
        return Target(base, [], None)
    for kept in behind.log:
        for frame in frames_of(place.read(kept)):
            if frame.topic_id == topic_id and _last_seq(frame) > seq:
                # Frames of the same millisecond in other shards may follow from this one.
                return Target(base, behind.log, frame.moment - 1)
    return Target(base, behind.log, None)


def frames_of(data: memoryview) -> Iterator[Frame]:
    """The frames of a log file as backups have it."""
    end = 0
    while isinstance(found := read_frame(data, end), Frame):
        yield found
        end = found.end


def _last_seq(frame: Frame) -> int:
    if frame.kind is FrameKind.FORWARD:
        return decode_forward(frame.body).last_seq
    body = block_in(frame.kind, frame.body)
    if body is None:
        return 0
    block = decode_block(body)
    return block.first_seq + block.count - 1
