"""Backups over HTTP: take one, and see which there are. Restoring is done offline, by `topics backup restore`."""

import msgspec

from topics.api.app import Route
from topics.api.auth import Key, Scope
from topics.api.calls import Call
from topics.api.errors import ForbiddenError
from topics.api.openapi_operation import Operation
from topics.core.errors import NoBackupPlaceError, TopicsError
from topics.engine.backup.backups import Listed
from topics.formats.backup import Manifest
from topics.wire.backups import BackupAnswer, BackupInfo, BackupsAnswer

_encode = msgspec.json.Encoder().encode


def create_backup(call: Call) -> None:
    """Takes a backup, and answers when it counts. It goes on when the client does not wait."""
    _check_whole(call.key)

    def taken(outcome: Manifest | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            call.refuse(outcome)
        else:
            call.reply(201, _encode(BackupAnswer(backup=info_of(outcome))))

    call.engine.backups.take(taken)


def list_backups(call: Call) -> None:
    _check_whole(call.key)
    backups = call.engine.backups
    place = backups.root
    if place is None:
        raise NoBackupPlaceError()

    def listed(outcome: Listed | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            call.refuse(outcome)
            return
        answer = BackupsAnswer(
            place=place, lineage=outcome.lineage, running=backups.running, lag_ms=backups.lag_ms,
            interval_ms=call.engine.core.options.backup_interval_ms, completed=backups.completed,
            failures=backups.failures, error=backups.error, backups=[info_of(found) for found in outcome.manifests],
        )  # fmt: skip
        call.reply(200, _encode(answer))

    backups.list(listed)


def info_of(manifest: Manifest) -> BackupInfo:
    return BackupInfo(
        number=manifest.number, made_ms=manifest.made_ms, moment_ms=manifest.moment, topics=manifest.topics,
        bytes=sum(kept.size for kept in manifest.files()), before=manifest.before, release=manifest.release,
    )  # fmt: skip


def _check_whole(key: Key) -> None:
    """A backup has everybody's records."""
    if key.prefixes:
        raise ForbiddenError("backups hold all topics, and this key is for some of them", name=None)


BACKUP_ROUTES = (
    Route(
        "POST", "/v0/backups", create_backup, Scope.ADMIN,
        operation=Operation(
            "createBackup", "Take a backup of everything; answered when it counts.", {201: BackupAnswer},
            ("no_backup_place", "backup_running", "backup_failed", "shutting_down"),
        ),
    ),
    Route(
        "GET", "/v0/backups", list_backups, Scope.ADMIN,
        operation=Operation(
            "listBackups", "Where backups go, how they are doing, and which there are.", {200: BackupsAnswer},
            ("no_backup_place", "backup_failed"),
        ),
    ),
)  # fmt: skip
