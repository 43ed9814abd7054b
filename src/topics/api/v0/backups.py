"""Backups over HTTP: take a backup, and list backups. A restore is done offline by `topics backup restore`."""

import msgspec

from topics.api.app import Call, Operation, Route
from topics.api.auth import Key, Scope
from topics.api.error_responses import ForbiddenError
from topics.api.v0.request_parsing import decode_body
from topics.model.errors import InvalidRequestError, NoBackupPlaceError, TopicsError
from topics.ops.backup.backups import Listed
from topics_protocol.v0 import BackupsAnswer, BackupStarted, TokenAnswer, TokenBody

_encode = msgspec.json.Encoder().encode


def create_backup(call: Call) -> None:
    """Starts a backup and answers immediately; the list of backups shows the outcome."""
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
            interval_ms=call.engine.options.backup_interval_ms, completed=backups.completed,
            ship_ms=call.engine.options.backup_ship_ms, shipped_moment_ms=backups.shipping.moment,
            ship_error=backups.shipping.error, failures=backups.failures, error=backups.error, backups=outcome.backups,
        )  # fmt: skip
        call.reply(200, _encode(answer))

    backups.list(listed)


def _check_whole(key: Key) -> None:
    """A backup contains the records of all tenants."""
    if key.prefixes:
        raise ForbiddenError("backups hold all topics, and this key is for some of them", name=None)


BACKUP_ROUTES = (
    Route(
        "POST", "/v0/backups", create_backup, Scope.ADMIN,
        operation=Operation(
            "createBackup", "Start a backup of everything; the list shows when it is complete.", {202: BackupStarted},
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


# Short-lived tokens for browsers, whose event streams and WebSockets can only send a URL.

TTL_MS_MAX = 3_600_000

_decode = msgspec.json.Decoder(TokenBody).decode


def create_token(call: Call) -> None:
    """Creates a token with the rights and limits of the requesting key; its use counts for the key."""
    body = call.exchange.body
    asked = decode_body("token", _decode, body) if body else TokenBody()
    if not 1 <= asked.ttl_ms <= TTL_MS_MAX:
        raise InvalidRequestError(f"token field ttl_ms: must be from 1 to {TTL_MS_MAX}", field="ttl_ms")
    tokens = call.live.keys.tokens
    if tokens is None:
        raise TopicsError("this server was made without tokens")
    token, expires_ms = tokens.issue(call.key, asked.ttl_ms)
    answer = TokenAnswer(token=token, expires_ms=expires_ms)
    call.reply(200, _encode(answer), headers=(("cache-control", "no-store"),))
