"""The engine: everything behind one object, for servers, tools and tests.

All methods are called on one thread, the event loop's once `start` was called. Logged operations take `done`, which is
called with the outcome; refusals before logging are raised immediately and have no effect.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TypeVar, cast

import msgspec

from topics.consumers.consumers import Consumers
from topics.engine.append import Appender, FrameExtension, creation_body, make_topic
from topics.engine.background_jobs import Deferral, FairBackground, InlineRunner, Job, JobRunner
from topics.engine.backpressure import Admission, Throttle
from topics.engine.checkpoint import Checkpointer
from topics.engine.conditional_append import Fences
from topics.engine.core import EngineCore, EngineOptions
from topics.engine.delete import Deleter
from topics.engine.delete_export import DeleteExport
from topics.engine.disk_threads import READERS, ThreadWorkers, Workers, outcome_of
from topics.engine.housekeeping import Housekeeper, Sweeper, folder_in_place
from topics.engine.read import ReadPlan, ReadRequest, ReadResult, execute_read, first_readable, plan_read
from topics.engine.recovery import (
    LastRun,
    Recovery,
    note_distrust,
    note_running,
    note_stopped,
    read_last_run,
    remove_orphans,
)
from topics.engine.results import AppendDone, DeleteDone, DropDone, PutDone
from topics.engine.sealing import Sealer
from topics.engine.stats import EngineStats, collect_stats
from topics.engine.topic import RunReader, Segment, Topic
from topics.engine.topic_admin import Controller, Put, wait_for_drop
from topics.engine.write_path import Gate, PrimaryLease
from topics.log.frame import FrameKind, encode_config_change
from topics.log.fs import KEEPS_DELETES, FileSystem, FolderLock, is_full
from topics.log.group_commit import Shard
from topics.log.layout import Layout
from topics.log.segment_files import SegmentStore
from topics.log.snapshot_files import TopicPeek, WalPosition
from topics.log.wal import DiskRoom, ShardLog, Writer
from topics.model.errors import CorruptSegmentError, FolderBusyError, TopicNotFoundError, TopicsError
from topics.model.records import Batch
from topics.model.router_rules import DeleteSelector, RouterWish
from topics.model.topic_config import (
    SYSTEM_STREAMS,
    Durability,
    TopicConfig,
    TopicConfigPatch,
    TopicType,
    encode_config,
)
from topics.ops.backup.backup_files import KeptLog
from topics.ops.backup.backups import Backups
from topics.ops.backup.log_shipping import IN_FLIGHT_MAX
from topics.queues.leases import QueueCounters
from topics.queues.queues import Queues
from topics.queues.unique_jobs import UniqueAppends
from topics.routers.routers import PutDone as RouterPutDone
from topics.routers.routers import RemoveDone as RouterRemoveDone
from topics.routers.routers import RouterInfo, Routing
from topics.schedules.schedules import Schedules
from topics.streams.entry_encoding import content_size_of
from topics.streams.stream_state import StreamFeature
from topics.system.clock import Clock
from topics.system.entropy import Entropy
from topics.system.fair_scheduler import Task, in_slices
from topics.transactions.transactions import Transactions

# The public state of a topic.


class TopicInfo(msgspec.Struct, frozen=True):
    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    config: TopicConfig
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    queue: QueueCounters | None = None
    """Job counters; None for a topic that is not a queue."""
    content_type: str | None = None
    """The content type of a topic that was used as a stream."""

    @property
    def next_seq(self) -> int:
        return self.head_seq + 1


def describe(core: EngineCore, queues: Queues, topic: Topic) -> TopicInfo:
    return TopicInfo(
        topic.name, topic.epoch, topic.visible_head, first_readable(topic), topic.live_count, topic.live_bytes,
        topic.config, core.scheduler.priority(topic), topic.last_write_ts or None, topic.last_read_ts or None,
        queues.counters_of(topic) if topic.config.type is TopicType.QUEUE else None,
        None if topic.guard is None else topic.guard.content_type(topic),
    )  # fmt: skip


T = TypeVar("T")


class EngineView:
    """The read-only state of the engine for the API, streams and search, which do not depend on its core.

    Methods of the core are bound as attributes: hot paths call them directly.
    """

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.options, self.limits = core.options, core.limits
        self.wall, self.steady = core.wall, core.steady
        """The two clocks in milliseconds (`EngineTime`): wall time, and a clock that never jumps."""
        self.entropy, self.defer = core.entropy, core.defer
        self.find, self.load = core.directory.find, core.directory.load
        """The topic of a name, paged in if necessary, including one whose creation is in flight. Without such a topic
        `find` returns None and `load` raises KeyError."""
        self.existing, self.readable = core.existing, core.readable
        """The published topic of a name, for topics and streams; raises TopicNotFoundError if it does not exist."""
        self.peek, self.peek_at = core.peek, core.peek_at
        """The topic of a name or an id, read-only: a paged-out topic stays paged out."""
        self.names_from = core.names_from
        """The sorted names with a prefix, behind a name."""
        self.expire = core.expire
        """Removes the expired records of a topic before a read."""
        self.reader, self.write_path, self.totals = core.reader, core.path, core.totals
        self.scheduler = core.scheduler
        """Wakes waiters for changes of topics, by priority."""
        self.next_numbers, self.next_base = core.next_numbers, core.next_base
        """The seq, ts and text position that the next batch of a topic would get, to preencode it."""
        self.preencoding = core.preencoding
        """Names of the topics for which a batch is being preencoded."""
        self.check_accepting = core.check_accepting
        """Raises ShuttingDownError once the engine is being closed."""
        self.set_tenants = core.quotas.set_tenants
        self.topic_added, self.topic_removed = core.topic_added, core.topic_removed
        self.appended, self.second_passed = core.applier.appended, core.second_passed

    @property
    def is_closed(self) -> bool:
        """Whether the engine is being closed or was."""
        return self.core.closed

    @property
    def shards(self) -> list[Shard]:
        return self.core.shards

    @property
    def layout(self) -> Layout:
        """The layout of the data folder."""
        return self.core.layout

    @property
    def segments(self) -> SegmentStore:
        """The files of sealed records."""
        return self.core.store

    @property
    def topic_count(self) -> int:
        """The number of topics without system topics."""
        return self.core.topic_count

    @property
    def next_topic_id(self) -> int:
        return self.core.next_topic_id

    @property
    def stored_bytes(self) -> int:
        """The live payload bytes of all topics."""
        return self.core.total_bytes

    @property
    def tail_bytes(self) -> int:
        """The payload bytes that are in memory because they are not sealed yet."""
        return self.core.retention.tail_bytes

    @property
    def trash_count(self) -> int:
        """Segments without a live record whose files are still there."""
        return len(self.core.trash)

    @property
    def read_only_shards(self) -> list[int]:
        """The shards that refuse writes because their disk failed."""
        return [shard.number for shard in self.core.shards if shard.writer.poison is not None]

    @property
    def disk_full(self) -> bool:
        return self.core.room.short is not None

    def exists(self, topic: Topic) -> bool:
        """Returns whether a held topic exists and is in memory; False for a deleted one."""
        return self.core.exists(topic)

    def has_id(self, topic_id: int) -> bool:
        """Whether there is a topic of that id, in memory or paged out."""
        return topic_id in self.core.topics or self.core.pager.is_paged_out(topic_id)

    def names_at(self, skip: int) -> Iterator[str]:
        """All names in order, after the first `skip` of them."""
        return self.core.names.at(skip)

    def peek_existing(self, name: str) -> Topic:
        """The existing topic of a name, read-only: a paged-out topic stays paged out."""
        return self.core.pager.peek(name)

    def peek_many(self, names: Iterable[str]) -> list[TopicPeek | None]:
        """The summary of each named topic that is paged out; None for those in memory."""
        return self.core.pager.peek_many(names)


class Engine(EngineView):
    def __init__(
        self, core: EngineCore, fs: FileSystem, lock: FolderLock, clock: Clock, backup_fs: FileSystem | None = None
    ) -> None:
        super().__init__(core)
        self._fs = fs
        self._lock = lock
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers: Workers | None = None
        self._snapshot_has_all = False
        """Whether the last checkpoint of a clean stop was taken."""
        self._runner: JobRunner = InlineRunner()
        self._seal_runner: JobRunner = InlineRunner()
        self.sealer = Sealer(core, self._seal_runner)
        kept_log = KeptLog(fs, core.layout, core.options.backup_log_bytes)
        keeps = backup_fs is not None and core.options.backup_log_bytes
        self.checkpointer = Checkpointer(core, self.sealer, fs, retire_log=kept_log.retire if keeps else None)
        self.backups = Backups(core, fs, self.checkpointer, kept_log, backup_fs, self.run_job, self._background)
        self.removals = DeleteExport(core, fs, self.checkpointer)
        self.admission = Admission(core, clock.monotonic, self._append_admitted)
        self._appender = Appender(core, self.sealer, self.admission)
        self.append_requests = self._appender.append_requests
        """Accepts undecoded network requests; the requests of one tick are logged together."""
        self.throttle = Throttle(core, self.admission, clock)
        self._controller = Controller(core)
        self._deleter = Deleter(core, self._background)
        self.routing = Routing(core, self._controller, self._background)
        self._destinations = self.routing.registry.into
        self.queues = Queues(core, self._background, self.put_topic)
        """Claims, acknowledgements and all other operations on jobs."""
        self._unique_appends = UniqueAppends(core)
        self.consumers = Consumers(core)
        """Cursors of readers that the server stores."""
        self.fences = Fences(core)
        """Fence tokens of topics."""
        self.streams = StreamFeature(core)
        self.sealer.content_size = content_size_of
        self.transactions = Transactions(core, self.write, self.put_topic)
        """Records for several topics, staged and committed at once."""
        self.schedules = Schedules(core, self.write)
        """Jobs that the server appends at due times."""
        self.housekeeper = Housekeeper(
            core, self.sealer, self.checkpointer, Sweeper(core, fs), self.run_job, self.routing.pump.retry,
            partial(folder_in_place, fs, core.layout, lock),
        )  # fmt: skip

    # Lifecycle

    @classmethod
    def recover(
        cls,
        fs: FileSystem,
        options: EngineOptions,
        clock: Clock,
        entropy: Entropy,
        *,
        boot_id: str = "",
        progress: Callable[[float], None] = lambda done: None,
        backup_fs: FileSystem | None = None,
    ) -> "Engine":
        """Opens a data folder and rebuilds its state; blocks until that is done.

        Raises DamageError when the folder has damage that no crash explains, FolderBusyError when another process
        has it. In both cases nothing was changed.
        """
        layout = Layout(options.data_dir, options.cold_dir)
        fs.make_dirs(layout.root)
        try:
            # Read before the lock is taken: an acknowledgement that is written later counts from the next start.
            tracked = options.track_removals or fs.exists(layout.pipeline_seen)
            lock = fs.lock(layout.lock, f"a running topics server{f' {KEEPS_DELETES}' if tracked else ''}")
        except BlockingIOError as error:
            raise FolderBusyError(layout.root, str(error)) from error
        try:
            room = DiskRoom(fs, layout.reserve, options.full_disk_reserve_bytes, options.wal_file_bytes)

            def rebuilt() -> Engine:
                store = SegmentStore(fs, layout, options.map_cache_bytes)
                engine = cls(
                    EngineCore(options, layout, store, clock, entropy, room, Deferral()), fs, lock, clock, backup_fs
                )
                engine._rebuild(boot_id, progress)
                return engine

            try:
                return rebuilt()
            except OSError as error:
                if not is_full(error):
                    raise
                # The disk reserve is enough for most starts.
                room.ran_out()
                return rebuilt()
        except BaseException:
            lock.release()
            raise

    def _rebuild(self, boot_id: str, progress: Callable[[float], None]) -> None:
        core, fs, layout = self.core, self._fs, self.core.layout
        for folder in (layout.meta, layout.topics(), layout.wal):
            fs.make_dirs(folder)
        # A snapshot whose writer was killed between its rename and the folder's sync is there, and a power cut could
        # still take its name away: before anything is built on it, or removed because of it, it has to be durable.
        fs.sync_dir(layout.meta)
        last = read_last_run(fs, layout)
        shard_count = core.options.wal_shards
        core.dirty = [set() for _ in range(shard_count)]
        core.dropped = [[] for _ in range(shard_count)]
        core.shards = [self._shard(number, 1, 1) for number in range(shard_count)]
        recovery = Recovery(core, fs, last, boot_id, progress)
        core.run_begins.subscribe(partial(self._note_running, boot_id))
        recovery.run()
        for number in range(shard_count):
            fs.make_dirs(layout.shard(number))
            end = recovery.ends.get(number)
            if end is not None:
                core.shards[number] = self._shard(number, end.next_lsn, end.next_number)
        self.checkpointer.chain = recovery.chain
        self.checkpointer.number = recovery.chain[-1] if recovery.chain else 0
        self.checkpointer.dropped = recovery.dropped
        self.checkpointer.first_new = core.next_topic_id
        self.checkpointer.weight = recovery.weight
        self.checkpointer.retired = [
            WalPosition(number, end.next_number, end.next_lsn)
            for number, end in recovery.ends.items()
            if number >= shard_count
        ]
        # A catalog that is behind its snapshot was lost to a crash; guests must not be left with it.
        if not self.checkpointer.catalog.load(self.checkpointer.number) or recovery.changed:
            self._checkpoint_now()
        # Only now: until here the old snapshot counted, and it may name segments that the log did away with.
        remove_orphans(core, fs)
        self.backups.begin()
        core.room.begin()
        core.store.serving = True
        progress(1.0)

    def _checkpoint_now(self) -> None:
        """A checkpoint on the caller's stack, which must succeed."""
        outcome: list[bool] = []
        InlineRunner().start(self.checkpointer.job(full=True, then=outcome.append))
        if not outcome[0]:
            cause = self.checkpointer.error
            if isinstance(cause, OSError):
                raise cause
            raise OSError(f"the recovered state could not be made durable: {cause}")

    def _shard(self, number: int, next_lsn: int, next_file: int) -> Shard:
        options = self.core.options
        folder = self.core.layout.shard(number)
        log = ShardLog(self._fs, folder, next_file, options.wal_file_bytes, self.core.room.ran_out)
        distrust = partial(note_distrust, self._fs, self.core.layout)
        writer = Writer(number, log, next_lsn - 1, self._clock.monotonic, on_poison=distrust)
        shard = Shard(number, writer, next_lsn, options.commit_queue_bytes, self.core.room, self.core.time.moment)
        shard.committed.subscribe(self.admission.let_in)
        return shard

    def _note_running(self, boot_id: str) -> None:
        note_running(self._fs, self.core.layout, LastRun(boot_id, self.core.reserve, self.checkpointer.number))

    def start(self, loop: asyncio.AbstractEventLoop, workers: Workers | None = None) -> None:
        """Hands the disk work over to threads; from now on only the loop's thread may call the engine."""
        self.core.note_run()
        workers = self._workers = ThreadWorkers(loop) if workers is None else workers
        self._fair_background = FairBackground(workers.background, READERS)
        self._loop = loop
        self.core.defer.use(loop.call_soon)
        self.core.scheduler.later = loop.call_later
        self._runner = workers.runner("upkeep")
        self._seal_runner = workers.runner("sealer")
        self.backups.runner = workers.runner("backup")
        if self.backups.root is not None:
            self.backups.shipping.start([workers.runner(f"ship-{n}") for n in range(IN_FLIGHT_MAX)], loop.call_later)
        self.sealer.use(self._seal_runner)
        for shard in self.core.shards:
            shard.committer = workers.committer(shard, self.core.options)
        self.sealer.backlog_changed.subscribe(workers.hold_back)
        self.housekeeper.start(loop)
        self.throttle.start(loop)
        self.routing.pump.use_ticks()
        self.routing.kick()
        self.queues.start(loop)
        self.schedules.start(loop)

    async def close(self) -> None:
        """Finishes accepted operations, takes a last checkpoint and releases the folder."""
        loop = self._loop
        assert loop is not None, "an engine that was never started is closed with close_inline"
        self.core.closed = self.core.quiet = True
        self.housekeeper.stop()
        self.admission.close()
        self.throttle.stop()
        self.queues.stop()
        self.schedules.stop()
        finished: asyncio.Future[bool] = loop.create_future()
        self._runner.start(self.checkpointer.job(then=finished.set_result))
        self._snapshot_has_all = await finished
        self._shut()

    def close_inline(self) -> None:
        """Finishes, takes a last checkpoint and releases the folder, without a loop and on the caller's stack."""
        self.core.closed = self.core.quiet = True
        self.admission.close()
        self.queues.stop()
        self.schedules.stop()
        outcome: list[bool] = []
        self._runner.start(self.checkpointer.job(then=outcome.append))
        self._snapshot_has_all = outcome == [True]
        self._shut()

    def _shut(self) -> None:
        for shard in self.core.shards:
            shard.committer.close()
        if not self._snapshot_has_all and all(shard.writer.all_synced for shard in self.core.shards):
            note_stopped(self._fs, self.core.layout)
        self._seal_runner.close()
        self.backups.runner.close()
        self.backups.shipping.close()
        self._runner.close()
        if self._workers is not None:
            self._fair_background.flush()
            self._workers.close()
        self._lock.release()

    def run_task(self, task: Task, owner: Hashable, short_units: bool = False) -> None:
        """Runs long work on the loop in units, in turns with other owners (`system.fair_scheduler`). Short units are
        joined to slices."""
        scheduler = self.core.fair_scheduler
        scheduler.run(in_slices(task, scheduler.monotonic) if short_units else task, owner)

    def run_job(self, job: Job) -> None:
        """Runs upkeep in the background, one job after the other."""
        self._runner.start(job)

    # Operations

    def hold_lease(self, lease: PrimaryLease, restored_from: str = "") -> None:
        """Allows acknowledgements of writes only while the lease is held. Called before `start`. `restored_from` are
        the backups that a takeover restored the data folder from."""
        self.core.path.lease = lease
        self.backups.restored_from = restored_from

    def ship_rest(self, done: Callable[[object], None]) -> None:
        """Ships the log so far; `done` is called when it is in the backup storage."""
        self.core.path.remote.hold(done, None)

    @property
    def committing(self) -> bool:
        """Returns whether a thread has writes with waiting callers."""
        return any([shard.committer.outstanding for shard in self.core.shards])

    def append(self, name: str, batch: Batch, done: AppendDone) -> None:
        """Appends a batch atomically; creates the topic if allowed."""
        if batch.unique_key is None:
            self._append(name, batch, done)
        else:
            self._unique_appends.append(name, batch, done, self._append)

    def _append(self, name: str, batch: Batch, done: AppendDone) -> None:
        topic = self.core.directory.find(name)
        if topic is not None and not topic.rules.usual:
            if wait_for_drop(self.core, name, lambda: self._append(name, batch, done), done):
                return
            topic = self.core.directory.find(name)
        if self.sealer.failures:
            self.sealer.check_room()
        hard_pressed = self.admission.refusing or batch.disable_backpressure
        if hard_pressed and self.admission.keeps_waiting(name, batch, done):
            return
        self._appender.append(topic, name, batch, done)

    def _append_admitted(self, name: str, batch: Batch, done: AppendDone) -> None:
        """Appends a batch that waited for admission."""
        if not wait_for_drop(self.core, name, lambda: self._append_admitted(name, batch, done), done):
            self._appender.append(self.core.directory.find(name), name, batch, done)

    def write(
        self,
        topic: Topic,
        batch: Batch,
        done: AppendDone,
        extension: FrameExtension | None = None,
        ts: int | None = None,
    ) -> None:
        """Appends to a resolved topic, for features that have checked the batch and the topic by their own rules."""
        self.core.check_accepting()
        if self.sealer.failures:
            self.sealer.check_room()
        if self.admission.refusing:
            # Such a caller cannot wait: it is admitted or refused.
            self.admission.keeps_waiting(topic.name, batch, done)
        self._appender.write(topic, batch, done, extension, ts)

    def put_topic(self, name: str, patch: TopicConfigPatch, done: PutDone) -> None:
        """Creates a topic, or replaces its config."""
        if not wait_for_drop(self.core, name, lambda: self.put_topic(name, patch, done), done):
            self._controller.put(name, patch, done)

    def drop_topic(self, name: str, if_empty: bool, done: DropDone) -> None:
        """Deletes a topic with everything in it."""
        if not wait_for_drop(self.core, name, lambda: self.drop_topic(name, if_empty, done), done):
            self._controller.drop(name, if_empty, done)

    def new_topic(self, name: str, config: TopicConfig, above: int = 0) -> Topic:
        """A topic with an id, a shard and an epoch higher than `above` that does not exist yet, for features that log
        its creation themselves."""
        return make_topic(self.core, name, config, above)

    def creation_body(self, topic: Topic) -> bytes:
        """Registers the name and the id of a new topic; a frame with the result must be logged."""
        return creation_body(self.core, topic)

    def release_name(self, topic: Topic) -> None:
        """Frees the name of a new topic whose creation failed."""
        self.core.directory.discard(topic)

    def add_topic(self, topic: Topic) -> None:
        """Publishes a new topic after its creation is durable."""
        self.core.add_topic(topic)

    def put_config(self, topic: Topic, config: TopicConfig, done: PutDone) -> None:
        """Replaces the config of a resolved topic, without the checks of `put_topic`."""
        path = self.core.path
        path.check(topic)
        if config.durability is Durability.REMOTE:
            path.remote.check()
        topic.staged_config = config
        body = encode_config_change(topic.staged_head, encode_config(config))
        path.log(Put(self.core, topic, (FrameKind.CONFIG, body, b""), config, done), Gate.SYNC)

    def when_free(self, name: str, retry: Callable[[], None], done: Callable[[TopicsError], None]) -> bool:
        """Whether the name is being freed just now: `retry` is then called once it is. Its error is passed to
        `done`."""
        return wait_for_drop(self.core, name, retry, done)

    def delete_records(self, name: str, selector: DeleteSelector, done: DeleteDone) -> None:
        """Deletes records for good."""
        if not wait_for_drop(self.core, name, lambda: self.delete_records(name, selector, done), done):
            self._deleter.delete(name, selector, done)

    def put_router(self, name: str, wish: RouterWish, done: RouterPutDone) -> None:
        """Creates or changes a router; creates missing source and destination topics."""
        self.routing.put(name, wish, done)

    def remove_router(self, name: str, done: RouterRemoveDone) -> None:
        """Deletes a router; its copies stay."""
        self.routing.remove(name, done)

    def router(self, name: str) -> RouterInfo:
        """The config and the position of a router."""
        return self.routing.info(name)

    def list_routers(
        self,
        prefix: str = "",
        after: str = "",
        limit: int = 100,
        requested: Callable[[RouterInfo], bool] = lambda info: True,
    ) -> list[RouterInfo]:
        """Routers in the order of their names, beginning after `after`."""
        return self.routing.listed(prefix, after, limit, requested)

    def read(self, name: str, request: ReadRequest, done: Callable[[ReadResult | TopicsError], None]) -> None:
        """Reads from a cursor; answers immediately unless the cold tier must be read."""
        self.read_as(self.core.existing(name), request, execute_read, done)

    def read_as(
        self,
        topic: Topic,
        request: ReadRequest,
        execute: Callable[[ReadPlan, RunReader], T],
        done: Callable[[T | TopicsError], None],
        aside: bool = False,
        elsewhere: bool = False,
    ) -> None:
        """Reads from a cursor in any form: `execute` extracts the records, on any thread. `aside` is for large reads
        that can wait: the loop then reads no file. With `elsewhere` a thread does all work."""
        self._begin_read(topic, request)
        plan = plan_read(topic, request, self.core.reader)
        if not (elsewhere or plan.cold or (aside and plan.sealed)) or self._workers is None:
            done(execute(plan, self.core.reader))
            return

        def finished(outcome: object) -> None:
            if not isinstance(outcome, CorruptSegmentError) or not self._outdated(plan):
                done(_as_error(outcome) if isinstance(outcome, Exception) else cast(T, outcome))
                return
            # Files are gone that the plan still named: retention or a deletion was faster, and nothing is corrupt.
            if self.core.exists(topic):
                self.read_as(topic, request, execute, done, aside, elsewhere)
            else:
                done(TopicNotFoundError(topic.name))

        self._background(lambda: execute(plan, self.core.reader), finished, topic.name)

    def read_now(self, name: str, request: ReadRequest) -> ReadResult:
        """Reads from a cursor on the caller's stack, including the cold tier."""
        topic = self.core.existing(name)
        self._begin_read(topic, request)
        return execute_read(plan_read(topic, request, self.core.reader), self.core.reader)

    def watch(self, name: str, woken: Callable[[], None]) -> Callable[[], None]:
        """Calls back once after the topic's next change; returns a function that cancels it.

        Nothing is lost between a read that found nothing and this call when both happen in the same tick.
        """
        return self.watch_topic(self.core.existing(name), woken)

    def watch_topic(self, topic: Topic, woken: Callable[[], None]) -> Callable[[], None]:
        """Calls back once after the next change of a resolved topic; returns a function that cancels it."""
        topic.notify_on_change(woken)
        return lambda: topic.cancel_notify(woken)

    def when_durable(self, topic: Topic, done: Callable[[int], None]) -> None:
        """Reports the topic's current head once everything up to it is on the disk; it may do so before it returns.

        A class that is never written has nothing to wait for. Where the disk fails, `done` is never called: nothing
        becomes durable any more.
        """
        head, path = topic.visible_head, self.core.path
        durability = topic.config.durability
        nothing_to_wait_for = durability.acks_after_sync or not durability.logged
        if nothing_to_wait_for or path.is_synced(topic.shard):
            done(head)
        elif path.takes_notes(topic):
            path.after_sync(topic.shard, lambda: done(head))

    def info(self, name: str, touch: bool = True, streams: bool = False) -> TopicInfo:
        """A topic's state; `touch` counts as consuming it. With `streams` its name may be any stream's."""
        topic = self.core.readable(name) if streams else self.core.existing(name)
        self.catch_up(topic)
        self.core.expire(topic)
        if touch:
            self.consumed(topic)
        return describe(self.core, self.queues, topic)

    def list_topics(
        self, prefix: str = "", after: str = "", limit: int = 100, touch: bool = False, streams: bool = False
    ) -> list[TopicInfo]:
        """Topics in the order of their names, beginning after `after`; with `streams` including names of streams.
        System streams are omitted unless the prefix matches them."""
        system = prefix.startswith("_")
        listed = (self.listed_topic(name, streams, system) for name in self.core.names_from(prefix, after))
        return self.describe_listed(islice((topic for topic in listed if topic is not None), limit), touch)

    def listed_topic(self, name: str, streams: bool, system: bool) -> Topic | None:
        """The topic of a name, read-only; None if a list omits it: a name reserved for streams without `streams`, and a
        system stream without `system`."""
        if name in SYSTEM_STREAMS and not system:
            return None
        topic = self.core.peek(name)
        if topic is None:
            return None
        guard = topic.guard
        hidden = guard is not None and (guard.over(topic) if streams else guard.hides(topic))
        return None if hidden else topic

    def describe_listed(self, found: Iterable[Topic], touch: bool) -> list[TopicInfo]:
        """The state of topics that a list shows."""
        topics: list[Topic] = []
        for topic in found:
            self.core.expire(topic)
            if touch:
                self.consumed(topic)
            topics.append(topic)
        destinations = [topic for topic in topics if topic.id in self._destinations]
        if destinations:
            self.routing.pump.catch_up(destinations)
        return [describe(self.core, self.queues, topic) for topic in topics]

    def catch_up(self, topic: Topic) -> None:
        """Forwards pending records into a topic before a read, unless its router is blocked."""
        if topic.id in self._destinations:
            self.routing.pump.catch_up([topic])

    def stats(self) -> EngineStats:
        """Counters and gauges for monitoring."""
        return collect_stats(
            self.core, self.sealer, self.checkpointer, self.throttle, self.routing, self.transactions, self.backups,
            self.schedules,
        )  # fmt: skip

    # Helper methods

    def _begin_read(self, topic: Topic, request: ReadRequest) -> None:
        """Prepares a read: removes expired records, also in the topics from which this one inherits."""
        self.core.totals.reads += 1
        self.consumed(topic)
        if request.up_to is None:
            # A watcher reads up to the head that it was notified of, and needs no catching up.
            self.catch_up(topic)
        self.core.expire(topic)
        origin = topic.origin
        if origin is not None and request.from_seq < origin.upto:
            begin = max(request.from_seq + 1, origin.hidden_below())
            if begin <= origin.upto:
                self.core.expire(origin.holder(begin)[0])

    def _outdated(self, plan: ReadPlan) -> bool:
        """Whether a plan names segments that are no longer part of the topic."""
        topic = self.core.topic_at(plan.topic_id)
        return topic is None or any(isinstance(run, Segment) and not topic.has_segment(run) for run in plan.runs)

    def consumed(self, topic: Topic) -> None:
        """Notes a read or a watch of the topic, which raises its priority."""
        self.core.consumed(topic)

    def in_background(self, work: Callable[[], object], then: Callable[[object], None], name: str = "") -> None:
        """Do work for a topic that touches nothing of the engine on a thread; calls back with its result, or its
        exception."""
        self._background(work, then, name)

    def read_folder_file(self, path: str, offset: int, length: int, then: Callable[[object], None]) -> None:
        """Reads a part of a file of the data folder on a thread; calls back with the bytes and the length of the file,
        or an exception."""
        self._background(partial(_part_of, self._fs, f"{self.layout.root}/{path}", offset, length), then, "")

    def _background(self, work: Callable[[], object], then: Callable[[object], None], name: str) -> None:
        if self._workers is None:
            then(outcome_of(work))
        else:
            owners = [tenant.prefixes for tenant in self.core.quotas.tenants_of(name)]
            self._fair_background.add(owners[0] if owners else (), work, then)


def _part_of(fs: FileSystem, path: str, offset: int, length: int) -> tuple[bytes, int]:
    file = fs.open(path)
    try:
        return file.read_at(offset, length), file.size()
    finally:
        file.close()


def _as_error(outcome: object) -> TopicsError:
    return outcome if isinstance(outcome, TopicsError) else TopicsError(f"a read failed: {outcome}")
