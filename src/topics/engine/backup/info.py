"""A backup as it is told of."""

from topics.formats.backup import Manifest
from topics.wire.backups import BackupInfo


def info_of(manifest: Manifest) -> BackupInfo:
    return BackupInfo(
        number=manifest.number, made_ms=manifest.made_ms, moment_ms=manifest.moment, topics=manifest.topics,
        bytes=sum(kept.size for kept in manifest.files()), before=manifest.before, release=manifest.release,
    )  # fmt: skip
