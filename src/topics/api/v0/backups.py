"""Backups over HTTP: take one, and see which there are. Restoring is done offline, by `topics backup restore`."""

import msgspec

from topics.api.app import Route
from topics.api.auth import Key, Scope
from topics.api.calls import Call
from topics.api.errors import ForbiddenError
from topics.api.openapi_operation import Operation
from topics.core.backup_errors import NoBackupPlaceError
from topics.core.errors import TopicsError
from topics.engine.backup.backups import Listed
from topics.wire.backups import BackupsAnswer, BackupStarted

_encode = msgspec.json.Encoder().encode


def create_backup(call: Call) -> None:
    """Begins a backup. It may take long, so nobody is made to wait for it: the list tells what became of it."""
    _check_whole(call.key)
    backups = call.engine.backups
    backups.take(lambda outcome: None)
    assert backups.root is not None
    call.reply(202, _encode(BackupStarted(place=backups.root, running=True)))


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
            ship_ms=call.engine.core.options.backup_ship_ms, shipped_moment_ms=backups.shipping.moment,
            ship_error=backups.shipping.error, failures=backups.failures, error=backups.error, backups=outcome.backups,
        )  # fmt: skip
        call.reply(200, _encode(answer))

    backups.list(listed)


def _check_whole(key: Key) -> None:
    """A backup has everybody's records."""
    if key.prefixes:
        raise ForbiddenError("backups hold all topics, and this key is for some of them", name=None)


BACKUP_ROUTES = (
    Route(
        "POST", "/v0/backups", create_backup, Scope.ADMIN,
        operation=Operation(
            "createBackup", "Begin a backup of everything; the list tells when it is there.", {202: BackupStarted},
            ("no_backup_place", "backup_running", "shutting_down"),
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
