"""What goes wrong with backups; `topics.core.errors` has the tree that these are in."""

from collections.abc import Sequence

from topics.core.errors import OperatorError, RetryLaterError, TopicsError


class BackupRunningError(RetryLaterError):
    """Backups are taken one after the other."""

    code = "backup_running"

    def __init__(self) -> None:
        super().__init__("a backup is being taken; the next one can begin when it is done")


class BackupFailedError(RetryLaterError):
    """The checkpoint failed, or the place could not be written to. Earlier backups are as they were."""

    code = "backup_failed"

    def __init__(self, why: str) -> None:
        super().__init__(f"the backup failed, and the earlier ones are as they were: {why}")


class BackupTargetError(TopicsError):
    """The backups do not have the state that was asked for, or there is no room for it where it should go."""

    code = "backup_target"


class NoBackupPlaceError(OperatorError):
    """The server was not told where backups go."""

    code = "no_backup_place"

    def __init__(self) -> None:
        super().__init__("this server has no place for backups; start it with TOPICS_BACKUP_DIR")


class DamagedBackupError(OperatorError):
    """Files of a backup are missing or are not what was written. Nothing was restored."""

    code = "damaged_backup"

    def __init__(self, files: Sequence[tuple[str, str]]) -> None:
        shown = "; ".join(f"{name}: {why}" for name, why in files[:3]) + ("; …" if len(files) > 3 else "")
        super().__init__(
            f"the backup is damaged in {len(files)} file(s), and nothing was restored: {shown}",
            files=[{"name": name, "why": why} for name, why in files],
        )
