"""Backups of a running engine.

A backup is a checkpoint and a copy of what it counts on, in three steps:

1. what the snapshots of now name is copied ahead, while the engine goes on as always: usually nearly everything;
2. a checkpoint is taken, and before any other may begin, what it has beyond that is copied. The checkpoint turns every
   shard and lets no change straddle the turn, so its state is one that the engine was in;
3. the log since the last backup, which checkpoints have kept (`ops.backup.backup_files`), is copied, and the manifest
   is written. Only now the backup is valid, and only now the kept log is removed.

From then on the log behind it is shipped as it is written (`ops.backup.log_shipping`).

A crash or an error at any point leaves earlier backups unchanged.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from topics.engine.background_jobs import Background, InlineRunner, Job, JobRunner, OffLoop, Until
from topics.engine.checkpoint import Checkpointer
from topics.engine.core import EngineCore
from topics.log.fs import FileSystem, WrongChecksumError, read_checked, write_checked
from topics.log.layout import Layout
from topics.model.errors import (
    BackupFailedError,
    BackupRunningError,
    NoBackupPlaceError,
    ShuttingDownError,
    TopicsError,
)
from topics.ops.backup.backup_files import Copier, KeptLog
from topics.ops.backup.backup_store import BackupDamaged, BackupPlace, Manifest, prune
from topics.ops.backup.log_shipping import Shipping
from topics.system.entropy import Entropy
from topics_protocol.v0 import BackupInfo

# The public description of a backup.


def info_of(manifest: Manifest) -> BackupInfo:
    return BackupInfo(
        number=manifest.number, made_ms=manifest.made_ms, moment_ms=manifest.moment, topics=manifest.topics,
        bytes=sum(kept.size for kept in manifest.files()), before=manifest.before, release=manifest.release,
    )  # fmt: skip


# Backup lineage: the small file `backup/lineage` of a data folder.
#
#     LINEAGE LAST NEXT     the folder's name at every place, its newest backup, and the one that is being written,
#                           with a checksum (`log.fs`)
#
# Numbers of snapshots and segments mean something within one history only. A folder that was copied, put back to an
# older state or restored has another future than the one its backups know; built upon them, a backup would mix the two.
# So the file is compared with the place before each backup: unless the newest one there is `LAST` or `NEXT`, the folder
# begins a new lineage. The file is not backed up, so a restored folder has none.

_BYTES = 8


class Lineage(NamedTuple):
    name: str
    last: int
    next: int

    def knows(self, newest: int) -> bool:
        return newest in (self.last, self.next)


def read_lineage(fs: FileSystem, layout: Layout) -> Lineage | None:
    try:
        words = read_checked(fs, layout.backup_lineage).split(" ")
    except WrongChecksumError as error:
        _log.error("backup lineage cannot be read", extra={"error": str(error)})
        return None
    if len(words) != 3 or not (words[1].isdecimal() and words[2].isdecimal()):
        return None
    return Lineage(words[0], int(words[1]), int(words[2]))


def new_lineage(entropy: Entropy) -> str:
    return entropy.token(_BYTES).hex()


def note_lineage(fs: FileSystem, layout: Layout, lineage: Lineage) -> None:
    fs.make_dirs(layout.backup)
    write_checked(fs, layout.backup_lineage, f"{lineage.name} {lineage.last} {lineage.next}")


def forget_lineage(fs: FileSystem, layout: Layout) -> None:
    """Makes the next backup begin a new lineage."""
    if fs.exists(layout.backup_lineage):
        fs.remove(layout.backup_lineage)
        fs.sync_dir(layout.backup)


_log = logging.getLogger(__name__)

_RETRY_MS = 60_000
"""The minimum delay before a failed backup is retried automatically."""
_RETRY_PRIMARY_MS = 1_000
"""The same on a server with a lease that can ship no log yet."""

Taken = Callable[[Manifest | TopicsError], None]


class Listed(NamedTuple):
    """The backups of a data folder, oldest first."""

    lineage: str | None
    backups: list[BackupInfo]


class Backups:
    def __init__(
        self,
        core: EngineCore,
        fs: FileSystem,
        checkpointer: Checkpointer,
        kept_log: KeptLog,
        place_fs: FileSystem | None,
        run_job: Callable[[Job], None],
        background: Background,
    ) -> None:
        """`run_job` runs upkeep, including checkpoints, one job after the other."""
        self.shipping = Shipping(core, fs)
        self._background = background
        self._seen: dict[int, BackupInfo] = {}
        self._core = core
        self._fs = fs
        self._checkpointer = checkpointer
        self._kept_log = kept_log
        self._place_fs = place_fs
        self._run_job = run_job
        self.runner: JobRunner = InlineRunner()
        """Copies files for which no checkpoint has to wait."""
        self.restored_from = ""
        """The lineage that a takeover restored the data folder from: the first backup reuses its files."""
        self.running = False
        self.completed = self.failures = self.copied_bytes = 0
        self.error: str | None = None
        """The reason why the last backup failed."""
        self.last: Manifest | None = None
        """The newest backup of this run."""
        self._last_at: int | None = None
        """The start time of that backup."""
        self._tried_at: int | None = None
        core.second_passed.subscribe(self._when_due)
        self.shipping.backup_needed.subscribe(self._when_due)

    @property
    def root(self) -> str | None:
        """The place for backups, if any."""
        return self._core.options.backup_dir if self._place_fs is not None else None

    def begin(self) -> None:
        """Called after recovery: from here on the log belongs to this run."""
        if self.root is None:
            self._kept_log.drop()
            return
        lineage = read_lineage(self._fs, self._core.layout)
        last, next_ = (lineage.last, lineage.next) if lineage is not None else (0, 0)
        # Also for shards that this run has no more: a later one may have them again, behind another state.
        firsts = {position.shard: position.file for position in self._checkpointer.retired}
        firsts |= {shard.number: shard.writer.next_file for shard in self._core.shards}
        self._kept_log.begin_run(self._checkpointer.number, firsts, last, next_)

    @property
    def lag_ms(self) -> int | None:
        """How long ago the engine was as the newest backup of this run and the log behind it are; None before there is
        one.
        """
        if self._last_at is None:
            return None
        # By the steady clock: one that is set back must not make it look as if there was nothing to lose.
        return self._core.steady() - max(self._last_at, self.shipping.at or 0)

    def list(self, done: Callable[[Listed | TopicsError], None]) -> None:
        """The backups that are there. A manifest that cannot be read is left out; `topics backup verify` names it."""

        def listed(outcome: object) -> None:
            if isinstance(outcome, Listed):
                done(outcome)
            else:
                done(outcome if isinstance(outcome, TopicsError) else BackupFailedError(str(outcome)))

        self._background(self._list, listed, "")

    def _list(self) -> Listed:
        lineage = read_lineage(self._fs, self._core.layout)
        if lineage is None or self._place_fs is None or self.root is None:
            return Listed(None, [])
        place = BackupPlace(self._place_fs, self.root, lineage.name)
        seen: dict[int, BackupInfo] = {}
        for number in place.numbers():
            try:
                seen[number] = self._seen.get(number) or info_of(place.load(number))
            except BackupDamaged:
                continue
        self._seen = seen
        return Listed(lineage.name, [*seen.values()])

    # Taking one

    def take(self, then: Taken) -> None:
        """Takes a backup; `then` hears of it, or why there is none, on the loop."""
        if self._place_fs is None or self.root is None:
            raise NoBackupPlaceError()
        if self._core.closed:
            raise ShuttingDownError()
        if self.running:
            raise BackupRunningError()
        self.running, self._tried_at = True, self._core.steady()
        self.runner.start(self._job(self._place_fs, self.root, then))

    def _job(self, place_fs: FileSystem, root: str, then: Taken) -> Job:
        outcome: Manifest | TopicsError
        copier: object = None
        try:
            copier = yield OffLoop(lambda: self._look(place_fs, root))
            assert isinstance(copier, Copier)
            manifest = yield Until(lambda resume: self._run_job(self._capture(copier, resume)))
            assert isinstance(manifest, Manifest)
            yield Until(self.shipping.ship_rest)
            outcome = yield OffLoop(lambda: self._publish(copier, manifest))  # type: ignore[assignment]
            assert isinstance(outcome, Manifest)
            self.last, self._last_at, self.error = outcome, self._tried_at, None
            self.completed += 1
            self.copied_bytes += copier.place.written_bytes
            # Before the log goes that the backup has: what is on its way to the storage may still name it.
            self.shipping.follow(BackupPlace(place_fs, root, outcome.lineage), outcome)
            yield OffLoop(lambda: self._clean_up(copier, manifest))
        except (OSError, TopicsError, BackupDamaged, ValueError) as error:
            self.failures += 1
            self.error = str(error)
            _log.error("backup failed", extra={"error": str(error)})
            outcome = error if isinstance(error, TopicsError) else BackupFailedError(str(error))
            if isinstance(copier, Copier):
                with contextlib.suppress(OSError):
                    yield OffLoop(copier.give_up)
        finally:
            self.running = False
        then(outcome)

    def _look(self, place_fs: FileSystem, root: str) -> Copier:
        lineage = read_lineage(self._fs, self._core.layout)
        copier: Copier | None = None
        if lineage is not None:
            copier = self._copier(BackupPlace(place_fs, root, lineage.name))
            copier.look()
            newest = max(copier.place.numbers(), default=0)
            if not lineage.knows(newest) and newest:
                _log.warning("backups have another history; starting a new lineage", extra={"place": root})
                copier = None
        if copier is None:
            place = BackupPlace(place_fs, root, new_lineage(self._core.entropy))
            # Noted before anything is copied, so that a first backup that is cut short is resumed.
            note_lineage(self._fs, self._core.layout, Lineage(place.lineage, 0, 0))
            copier = self._copier(place)
            copier.look()
        copier.begin()
        if self._checkpointer.number:
            copier.copy_ahead(self._checkpointer.number)
        return copier

    def _copier(self, place: BackupPlace) -> Copier:
        core = self._core
        origin = None
        if self.restored_from and self._place_fs is not None:
            origin = BackupPlace(self._place_fs, place.root, self.restored_from)
        token = core.entropy.token(_BYTES).hex()
        return Copier(self._fs, core.layout, place, lambda: core.closed, core.wall, token, origin)

    def _capture(self, copier: Copier, resume: Callable[[object], None]) -> Job:
        """Runs as upkeep does: nothing that the checkpoint counts on changes before it is copied."""
        outcome: object
        mark = self.shipping.mark(copier.place.lineage)
        try:
            succeeded: list[bool] = []
            yield from self._checkpointer.job(then=succeeded.append)
            if not succeeded[0]:
                raise BackupFailedError(f"the checkpoint failed: {self._checkpointer.error}")
            number = self._checkpointer.number
            copied = yield OffLoop(lambda: copier.copy(number))
            assert isinstance(copied, Manifest)
            run, first = (number, 1) if mark is None else mark
            outcome = msgspec.structs.replace(copied, run=run, first_shipped=first)
        except Exception as error:
            outcome = error
        resume(outcome)

    def _publish(self, copier: Copier, manifest: Manifest) -> Manifest:
        last = copier.last
        log = copier.copy_log(self._kept_log, manifest)
        if log is not None and last is not None:
            manifest = msgspec.structs.replace(manifest, log=log, before=last.number)
        copier.check_resumed()
        name, before = copier.place.lineage, last.number if last is not None else 0
        note_lineage(self._fs, self._core.layout, Lineage(name, before, manifest.number))
        copier.place.publish(manifest)
        if self._core.path.lease is not None:
            # Before any acknowledgement counts on it: a takeover looks nowhere else.
            self._core.path.lease.announce(name)
        return manifest

    def _clean_up(self, copier: Copier, manifest: Manifest) -> None:
        """Removes what is not needed now that the backup counts."""
        try:
            self._remove_old(copier, manifest)
        except (OSError, BackupDamaged) as error:
            # The remainder is small enough to be left to the next backup, which tries again.
            _log.warning("backup cleanup failed", extra={"error": str(error)})

    def _remove_old(self, copier: Copier, manifest: Manifest) -> None:
        place, number = copier.place, manifest.number
        note_lineage(self._fs, self._core.layout, Lineage(place.lineage, number, number))
        self._kept_log.drop({position.shard: position.file for position in manifest.positions})
        place.end_writing()
        # The log behind the backup before stays: somebody may be restoring with it.
        place.drop_shipped([manifest] if copier.last is None else [copier.last, manifest])
        keep = self._core.options.backup_keep
        # Each of those that stay is read for it: where they are many, that is done for many at once.
        if keep and len(place.numbers()) > keep + keep // 8:
            prune(place, keep, own=True)

    # By itself

    def _when_due(self) -> None:
        interval = self._core.options.backup_interval_ms
        needed = self.shipping.needs_backup
        if self.running or self._core.closed or self.root is None or not (interval or needed):
            return
        # Class `remote` waits for the backup that log shipping begins with.
        retry = _RETRY_PRIMARY_MS if needed and self._core.path.lease is not None else _RETRY_MS
        wait = retry if self.shipping.broken else 0 if needed else interval
        if self.error is not None:
            wait = max(wait, retry)
        if self._tried_at is None or self._core.steady() - self._tried_at >= wait:
            self.take(lambda outcome: None)
