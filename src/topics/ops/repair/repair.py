"""Repair of a damaged data folder: verify, salvage, and one checkpoint that makes the result durable.

Intact data is never changed and damaged files are never removed. The comment below describes the steps and their
behaviour in a crash. An interrupted repair is finished, or restarted, by running it again.
"""

from sys import maxsize

import msgspec

from topics.engine.background_jobs import Deferral, InlineRunner, Job, JobRunner
from topics.engine.checkpoint import Checkpointer
from topics.engine.core import EngineCore, EngineOptions
from topics.engine.recovery import read_last_run
from topics.engine.sealing import Sealer
from topics.log.fs import FileSystem, add_checksum, check_json
from topics.log.group_commit import Shard
from topics.log.layout import Layout
from topics.log.segment_files import SegmentDraft, SegmentKey, SegmentStore
from topics.log.snapshot_files import WalPosition
from topics.log.wal import DiskRoom, ShardLog, Writer
from topics.model.errors import DamageError, Finding, TopicsError
from topics.ops.backup.backups import forget_lineage
from topics.ops.repair.salvage import Salvage
from topics.ops.verify.verification import OnBytes, RepairReport, Report, Verification, check_cold_folder, relative
from topics.queues.queue_state import QueueFeature
from topics.routers.registry import Registry
from topics.routers.replaying import RouterFeature
from topics.streams.stream_state import StreamFeature
from topics.system.clock import Clock
from topics.system.entropy import Entropy

# A repair has two phases, so that a crash cannot leave a mixed state: new files are prepared aside, then moved into
# place.
#
# Before the repaired state takes effect, no file of the folder is changed: new segments are written below `repair/`. A
# plan beside them names the snapshot that makes the repair effective and the files that become unused then. Once that
# snapshot exists, only renames remain, and after a crash the next run finishes them from the plan:
#
# 1. the files that were damaged move to `damaged-<number>/`, which keeps them for ever, and with them `report.json`;
# 2. the prepared segments take their places;
# 3. the plan is removed.
#
# A plan whose snapshot is not there counts for nothing: the folder is as it was, and the repair starts again. While
# there is a plan no server starts, so nobody ever sees the folder in between.


class Plan(msgspec.Struct, frozen=True):
    snapshot: int
    """The number of the snapshot that makes the repair effective."""
    moves: list[tuple[str, str]]
    """Files that become unused, each with its new path; the last one is the report of the repair."""


class StagedStore(SegmentStore):
    """A segment store that does not change the folder: it writes below `repair/` until `publish`."""

    def __init__(self, fs: FileSystem, layout: Layout, cache_bytes: int) -> None:
        super().__init__(fs, layout, cache_bytes)
        self._aside = SegmentStore(fs, Layout(layout.repair), cache_bytes)
        self._staged: set[SegmentKey] = set()

    def path(self, key: SegmentKey) -> str:
        return self._aside.path(key) if key in self._staged else super().path(key)

    def write(self, draft: SegmentDraft) -> None:
        self._aside.write(draft)
        self._staged.add(SegmentKey(draft.head.topic_id, draft.head.first_seq))

    def sync_folder(self, topic_id: int, cold: bool = False) -> None:
        self._aside.sync_folder(topic_id, cold)

    def published(self) -> None:
        """Notes that the prepared segments were moved into place."""
        for key in list(self._staged):
            self.forget(key)
        self._staged.clear()


def write_plan(fs: FileSystem, layout: Layout, plan: Plan, report: bytes) -> None:
    fs.make_dirs(layout.repair)
    _put(fs, plan.moves[-1][0], report)
    _put(fs, layout.repair_plan + ".tmp", add_checksum(msgspec.json.encode(plan)))
    fs.rename(layout.repair_plan + ".tmp", layout.repair_plan)
    fs.sync_dir(layout.repair)


def read_plan(fs: FileSystem, layout: Layout) -> Plan | None:
    try:
        file = fs.open(layout.repair_plan)
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(check_json(file.read_at(0, file.size())), type=Plan)
    except ValueError as error:
        what = f"the plan of an unfinished repair cannot be read: {error}"
        raise DamageError([Finding(layout.repair_plan, what)]) from error
    finally:
        file.close()


def carry_out(fs: FileSystem, layout: Layout, plan: Plan) -> None:
    """Steps 1 and 2; idempotent."""
    # The snapshot may have been renamed by a process that was killed before it could make the name durable.
    fs.sync_dir(layout.meta)
    touched: set[str] = set()
    for source, target in plan.moves:
        if fs.exists(source) and not fs.exists(target):
            fs.make_dirs(_folder(target))
            fs.rename(source, target)
        touched |= {folder for folder in (_folder(source), _folder(target)) if fs.exists(folder)}
    for folder in sorted(touched):
        # The next steps create new files under the old names, so the old files must be durable elsewhere before.
        fs.sync_dir(folder)
    staged = Layout(layout.repair)
    for name in _names(fs, staged.topics()):
        source, target = f"{staged.topics()}/{name}", f"{layout.topics()}/{name}"
        fs.make_dirs(target)
        for file in _names(fs, source):
            fs.rename(f"{source}/{file}", f"{target}/{file}")
        fs.sync_dir(target)


def clear(fs: FileSystem, layout: Layout) -> None:
    """Removes the plan and everything prepared, in that order."""
    if not fs.exists(layout.repair):
        return
    for name in ("plan", "plan.tmp", "report.json"):
        if fs.exists(f"{layout.repair}/{name}"):
            fs.remove(f"{layout.repair}/{name}")
    fs.sync_dir(layout.repair)
    staged = Layout(layout.repair)
    for name in _names(fs, staged.topics()):
        for file in _names(fs, f"{staged.topics()}/{name}"):
            fs.remove(f"{staged.topics()}/{name}/{file}")
        fs.remove_dir(f"{staged.topics()}/{name}")
    if fs.exists(staged.topics()):
        fs.remove_dir(staged.topics())
    fs.remove_dir(layout.repair)
    fs.sync_dir(layout.root)


def evidence_folders(fs: FileSystem, layout: Layout) -> list[str]:
    """Returns the folders for the files of the next repair: a new number in each tier."""
    roots = [root for root in (layout.root, layout.cold_root) if root is not None]
    number = 1
    while any(fs.exists(f"{root}/damaged-{number}") for root in roots):
        number += 1
    return [f"{root}/damaged-{number}" for root in roots]


def read_report(fs: FileSystem, plan: Plan) -> bytes:
    """Reads the report of a completed repair."""
    file = fs.open(plan.moves[-1][1])
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def _put(fs: FileSystem, path: str, data: bytes) -> None:
    file = fs.open(path, create=True)
    try:
        file.truncate(0)
        file.write_at(0, data)
        file.sync()
    finally:
        file.close()


def _folder(path: str) -> str:
    return path.rsplit("/", 1)[0]


def _names(fs: FileSystem, folder: str) -> list[str]:
    try:
        return fs.list_dir(folder)
    except FileNotFoundError:
        return []


class _Idle:
    """Discards jobs: in a dry run, tails to be sealed stay in memory."""

    def start(self, job: Job) -> None:
        job.close()

    def close(self) -> None: ...


class Repair:
    """A repair of a folder whose lock is held."""

    def __init__(self, fs: FileSystem, layout: Layout, clock: Clock, entropy: Entropy, boot_id: str) -> None:
        self._fs = fs
        self._layout = layout
        self._clock = clock
        self._entropy = entropy
        self._boot_id = boot_id

    def run(
        self, dry_run: bool = False, on_total: OnBytes = lambda count: None, on_bytes: OnBytes = lambda count: None
    ) -> RepairReport:
        """Repairs the folder, or in a dry run only reports the repairs; the callbacks receive the progress of the first
        check.
        """
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
            # Missing files are not lost: the backup has them.
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
            # A file written by a repair may have the name of a segment that backups hold in its old state.
            forget_lineage(self._fs, self._layout)
            self._commit(core, sealer, salvage, Plan(look.chain.highest + 1, moves), report)
            report.after = self._look().report
        return report

    def _look(self, on_total: OnBytes = lambda count: None, on_bytes: OnBytes = lambda count: None) -> Verification:
        return _look(self._fs, self._layout, self._boot_id, on_total, on_bytes)

    def _finish_earlier(self) -> RepairReport | None:
        """Finishes a repair that was interrupted after it took effect, and returns its report.

        Removes the files of one interrupted before.
        """
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
            # It reads every topic, before and after its checkpoint.
            awake_topics=maxsize,
        )
        kind = SegmentStore if dry_run else StagedStore
        store = kind(self._fs, self._layout, options.map_cache_bytes)
        room = DiskRoom(self._fs, self._layout.reserve, 0, 0)
        core = EngineCore(options, self._layout, store, self._clock, self._entropy, room, Deferral())
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
        """Returns the files that become unused, with their new paths."""
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
    """Looks for damage in a folder whose lock is held, or that is read-only."""
    return _look(fs, layout, boot_id, on_total, on_bytes).report


def _look(fs: FileSystem, layout: Layout, boot_id: str, on_total: OnBytes, on_bytes: OnBytes) -> Verification:
    look = Verification(fs, layout, read_last_run(fs, layout).same_boot(boot_id), on_bytes)
    look.load()
    check_cold_folder(fs, layout, look)
    on_total(look.total_bytes())
    look.run()
    return look
