"""Mending a damaged data folder: look, salvage, and one checkpoint that makes the result count.

Good data is never touched and damaged files are never removed: `storage.damage.staging` explains how the folder goes
from one state to the other in spite of a crash. A repair that was cut short is finished, or begun anew, by running it
again.
"""

from sys import maxsize

import msgspec

from topics.core.errors import TopicsError
from topics.engine.background import Deferral, InlineRunner, Job, JobRunner
from topics.engine.backup.lineage import forget_lineage
from topics.engine.core import EngineCore, EngineOptions
from topics.engine.last_run import read_last_run
from topics.engine.queues.feature import QueueFeature
from topics.engine.repair.folder import check_cold_folder
from topics.engine.repair.report import RepairReport, Report, relative
from topics.engine.repair.salvage import Salvage
from topics.engine.repair.verification import OnBytes, Verification
from topics.engine.routing.registry import Registry
from topics.engine.routing.replaying import RouterFeature
from topics.engine.streams.feature import StreamFeature
from topics.engine.upkeep.checkpoint import Checkpointer
from topics.engine.upkeep.sealing import Sealer
from topics.formats.snapshot import WalPosition
from topics.storage.commit import Shard
from topics.storage.damage.staging import (
    Plan,
    StagedStore,
    carry_out,
    clear,
    evidence_folders,
    read_plan,
    read_report,
    write_plan,
)
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout
from topics.storage.log_writer import Writer
from topics.storage.room import DiskRoom
from topics.storage.segments import SegmentStore
from topics.storage.wal import ShardLog
from topics.system.clock import Clock
from topics.system.dice import Dice


class _Idle:
    """Runs nothing: in a dry run, what would be sealed stays in memory."""

    def start(self, job: Job) -> None:
        job.close()

    def close(self) -> None: ...


class Repair:
    """One repair of a folder whose lock is held."""

    def __init__(self, fs: FileSystem, layout: Layout, clock: Clock, dice: Dice, boot_id: str) -> None:
        self._fs = fs
        self._layout = layout
        self._clock = clock
        self._dice = dice
        self._boot_id = boot_id

    def run(
        self, dry_run: bool = False, on_total: OnBytes = lambda count: None, on_bytes: OnBytes = lambda count: None
    ) -> RepairReport:
        """Mends the folder, or in a dry run says how; the callbacks are told of the progress of the first look."""
        earlier = None if dry_run else self._finish_earlier()
        look = self._look(on_total, on_bytes)
        if earlier is not None and look.report.sound:
            earlier.actions.append("a repair that had been cut short was finished")
            earlier.after = look.report
            return earlier
        report = RepairReport(folder=self._layout.root, dry_run=dry_run, found=look.report)
        if look.report.sound:
            return report
        if dry_run and self._fs.exists(self._layout.repair_plan):
            report.actions = ["an earlier repair was cut short and would be finished"]
            return report
        if self._fs.exists(self._layout.restoring):
            # What is not there was not lost: the backup has it.
            report.actions = ["nothing was changed: the folder has to be restored again"]
            report.after = None if dry_run else look.report
            return report
        core = self._core(look, dry_run)
        runner: JobRunner = _Idle() if dry_run else InlineRunner()
        sealer = Sealer(core, runner)
        core.features.add(RouterFeature(core, Registry(core)))
        salvage = Salvage(core, self._fs, sealer, look, read_last_run(self._fs, self._layout), self._boot_id)
        salvage.run()
        folders = evidence_folders(self._fs, self._layout)
        moves = self._moves(look, salvage, folders)
        report.losses, report.actions = salvage.losses, salvage.actions
        report.moved = [relative(self._layout, source) for source, _ in moves]
        report.moved_to = sorted({folder for folder in folders for _, to in moves if to.startswith(folder + "/")})
        if not dry_run:
            moves.append((f"{self._layout.repair}/report.json", f"{folders[0]}/report.json"))
            # What a repair wrote anew may have the name of a segment that backups have as it was.
            forget_lineage(self._fs, self._layout)
            self._commit(core, sealer, salvage, Plan(look.chain.highest + 1, moves), report)
            report.after = self._look().report
        return report

    def _look(self, on_total: OnBytes = lambda count: None, on_bytes: OnBytes = lambda count: None) -> Verification:
        return _look(self._fs, self._layout, self._boot_id, on_total, on_bytes)

    def _finish_earlier(self) -> RepairReport | None:
        """Finishes a repair that was cut short after it counted, and gives its report; clears one up that did not."""
        plan, report = read_plan(self._fs, self._layout), None
        if plan is not None and self._fs.exists(self._layout.snapshot(plan.snapshot)):
            carry_out(self._fs, self._layout, plan)
            report = msgspec.json.decode(read_report(self._fs, plan), type=RepairReport)
        clear(self._fs, self._layout)
        return report

    def _core(self, look: Verification, dry_run: bool) -> EngineCore:
        newest = look.chain.newest
        options = EngineOptions(
            data_dir=self._layout.root,
            cold_dir=self._layout.cold_root,
            wal_shards=newest.shard_count if newest is not None else max(look.shards(), default=0) + 1,
            # It looks at every topic, before it takes the one checkpoint and behind it.
            awake_topics=maxsize,
        )
        kind = SegmentStore if dry_run else StagedStore
        store = kind(self._fs, self._layout, options.map_cache_bytes)
        room = DiskRoom(self._fs, self._layout.reserve, 0, 0)
        core = EngineCore(options, self._layout, store, self._clock, self._dice, room, Deferral())
        core.features.add(QueueFeature(core))
        StreamFeature(core)
        core.dirty = [set() for _ in range(options.wal_shards)]
        core.dropped = [[] for _ in range(options.wal_shards)]
        core.shards = [self._shard(core, number, 1, 1) for number in range(options.wal_shards)]
        return core

    def _shard(self, core: EngineCore, number: int, next_lsn: int, next_file: int) -> Shard:
        log = ShardLog(self._fs, self._layout.shard(number), next_file, core.options.wal_file_bytes)
        writer = Writer(number, log, next_lsn - 1, self._clock.monotonic)
        return Shard(number, writer, next_lsn, core.options.commit_queue_bytes)

    def _moves(self, look: Verification, salvage: Salvage, folders: list[str]) -> list[tuple[str, str]]:
        """Which files go out of use, and where to."""
        layout = self._layout
        roots = [root for root in (layout.root, layout.cold_root) if root is not None]
        own = (layout.wal + "/", layout.meta + "/")
        paths = {f"{layout.root}/{finding.where}" for finding in look.report.findings}
        paths = {path for path in paths if path.startswith(own)}
        paths |= {layout.segment(*key) + ending for key in salvage.replaced for ending in (".data", ".idx")}
        moves = []
        for path in sorted(paths):
            if self._fs.exists(path):
                root = next(place for place in range(len(roots)) if path.startswith(roots[place] + "/"))
                moves.append((path, folders[root] + path.removeprefix(roots[root])))
        return moves

    def _commit(self, core: EngineCore, sealer: Sealer, salvage: Salvage, plan: Plan, report: RepairReport) -> None:
        fs, layout, store = self._fs, self._layout, core.store
        assert isinstance(store, StagedStore)
        for folder in (layout.meta, layout.topics(), layout.wal):
            fs.make_dirs(folder)
        for number, end in salvage.ends.items():
            fs.make_dirs(layout.shard(number))
            if number < len(core.shards):
                core.shards[number] = self._shard(core, number, end.next_lsn, end.next_number)

        def put_into_place() -> None:
            carry_out(fs, layout, plan)
            store.published()

        checkpointer = Checkpointer(core, sealer, fs, put_into_place)
        checkpointer.number = plan.snapshot - 1
        checkpointer.retired = [
            WalPosition(number, end.next_number, end.next_lsn)
            for number, end in salvage.ends.items()
            if number >= len(core.shards)
        ]

        write_plan(fs, layout, plan, msgspec.json.encode(report))
        outcome: list[bool] = []
        InlineRunner().start(checkpointer.job(full=True, then=outcome.append))
        if not outcome[0] or not checkpointer.completed:
            raise TopicsError("the repaired state could not be made durable; nothing is lost, run the repair again")
        clear(fs, layout)


def verify(
    fs: FileSystem,
    layout: Layout,
    boot_id: str,
    on_total: OnBytes = lambda count: None,
    on_bytes: OnBytes = lambda count: None,
) -> Report:
    """Looks for damage in a folder whose lock is held, or that nobody can write to."""
    return _look(fs, layout, boot_id, on_total, on_bytes).report


def _look(fs: FileSystem, layout: Layout, boot_id: str, on_total: OnBytes, on_bytes: OnBytes) -> Verification:
    look = Verification(fs, layout, read_last_run(fs, layout).same_boot(boot_id), on_bytes)
    look.load()
    check_cold_folder(fs, layout, look)
    on_total(look.total_bytes())
    look.run()
    return look
