"""Which backup, and how much of the log behind it, is the state that somebody wants back."""

from collections.abc import Iterator
from typing import NamedTuple

from topics.core.backup_errors import BackupTargetError
from topics.formats.backup import KeptFile, Manifest, log_part
from topics.formats.block import decode_block
from topics.formats.carriers import block_in
from topics.formats.forwards import parts_of
from topics.formats.frame import Frame, FrameKind, read_frame
from topics.formats.routing import decode_forward
from topics.storage.backups.place import BackupPlace


class Target(NamedTuple):
    base: Manifest
    log: list[KeptFile]
    """The log behind it, as far as it is wanted at all."""
    until: int | None
    """No frame above this moment counts; None takes all of the log."""


def newest_of(place: BackupPlace, manifests: list[Manifest]) -> Target:
    """The newest backup, and what was shipped of the log behind it."""
    if not manifests:
        raise BackupTargetError("there is no backup")
    return _behind(place, manifests, manifests[-1])


def numbered(manifests: list[Manifest], number: int) -> Target:
    for manifest in manifests:
        if manifest.number == number:
            return Target(manifest, [], None)
    known = ", ".join(str(manifest.number) for manifest in manifests) or "none"
    raise BackupTargetError(f"there is no backup {number}; there are: {known}")


def at_moment(place: BackupPlace, manifests: list[Manifest], moment: int) -> Target:
    """The newest state that has nothing later than a moment."""
    base = next((manifest for manifest in reversed(manifests) if manifest.moment <= moment), None)
    if base is None:
        oldest = manifests[0].moment if manifests else None
        what = "there is no backup" if oldest is None else f"the oldest backup has everything up to {oldest}"
        raise BackupTargetError(f"no backup is as old as {moment}: {what}")
    behind = _behind(place, manifests, base)
    return behind._replace(until=moment if behind.until is None else min(moment, behind.until))


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
    behind = _behind(place, manifests, base)
    for kept in behind.log:
        for frame in frames_of(place.read(kept)):
            if behind.until is not None and frame.moment > behind.until:
                break
            if any(part.topic_id == topic_id and _last_seq(part) > seq for part in parts_of(frame)):
                # Frames of the same millisecond in other shards may follow from this one.
                return behind._replace(until=frame.moment - 1)
    return behind


def _behind(place: BackupPlace, manifests: list[Manifest], base: Manifest) -> Target:
    """A backup with all of the log behind it: what the next one has of it, or what was shipped so far."""
    following = next((manifest for manifest in manifests if manifest.before == base.number), None)
    if following is not None:
        return Target(base, following.log, None)
    shipped = place.shipped() if base is manifests[-1] else None
    if shipped is None or shipped.before != base.number:
        return Target(base, [], None)
    return Target(base, sorted(shipped.parts, key=lambda part: log_part(part.name)), shipped.moment)


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
