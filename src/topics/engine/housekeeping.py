"""Housekeeping: periodic maintenance, a bounded amount each second.

Old tails are sealed, memory is bounded, checkpoints are taken when the log has grown or aged, expired records and
idempotency keys of idle topics are removed, old segments move to the cold tier. Correctness does not depend on this
work, so all of it may be late.

The cold tier in an object store: the checks at a start, and the removal of leftover objects.

A store may be unavailable for a while, and a server must start and serve without it. So no decision is made from a
failed request:

* A start fetches only missing copies of what it needs: the indexes and the flags of cold segments. A missing data file
  is found when it is read, or by `topics verify`.
* An empty data folder does not start until the store has confirmed that it is empty as well. Otherwise new topics would
  get the numbers of topics in the store and overwrite their segments.
* Unreferenced objects are removed while the server runs, after the store was listed, and not by the start.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

from topics.engine.apply import forget_old_keys
from topics.engine.background_jobs import Job, OffLoop
from topics.engine.checkpoint import Checkpointer
from topics.engine.core import EngineCore
from topics.engine.sealing import Sealer
from topics.engine.topic import Segment, Topic
from topics.log.fs import FileSystem, FolderLock
from topics.log.layout import Layout, number_in
from topics.log.object_store.store import StoreUnavailable
from topics.log.replay import topic_id_of
from topics.log.segment_files import SegmentDamaged, SegmentKey
from topics.model.errors import ColdStoreUnavailableError, Finding, ReadOnlyError, TopicsError
from topics.model.topic_config import is_server_name

_RETRY_MS = 30_000

_log = logging.getLogger(__name__)


def missing_near(core: EngineCore) -> list[Finding]:
    """Copies the indexes and flags of cold segments to the local disk; returns the segments that the store has lost.

    Raises ColdStoreUnavailableError if something is needed and the store is unavailable.
    """
    far, lost = core.store.far, []
    if far is None:
        return []
    for topic in core.topics.values():
        for segment in topic.segments:
            key = SegmentKey(topic.id, segment.first_seq, segment.cold)
            if not segment.cold or far.is_near(core.store.path(key)):
                continue
            try:
                core.store.bring_near(key, segment.count)
            except SegmentDamaged as damage:
                seqs = (segment.first_seq, segment.last_seq)
                lost.append(Finding(damage.path, damage.reason, seq_range=seqs, topic=topic.name))
    return lost


def topics_in_store(core: EngineCore, fs: FileSystem) -> list[str]:
    """Returns the folders of topics in the store; none if it is unavailable and the server has topics."""
    try:
        return [name for name in fs.list_dir(core.layout.topics(cold=True)) if topic_id_of(name) is not None]
    except FileNotFoundError:
        return []
    except StoreUnavailable as error:
        if core.next_topic_id == 1:
            raise ColdStoreUnavailableError(error.why) from error
        _log.warning("object store unavailable at start", extra={"why": error.why})
        return []


def folder_in_place(fs: FileSystem, layout: Layout, lock: FolderLock) -> bool:
    """Returns whether the data folder still has its path.

    After its removal the log could still be written, but would be lost with the process.
    """
    try:
        return lock.in_place() and fs.exists(layout.wal) and fs.exists(layout.meta)
    except OSError:
        # A read error of the disk proves nothing about the folder.
        return True


class Sweeper:
    """Removes unreferenced objects from the store, which a crash left behind. Runs once after each start."""

    def __init__(self, core: EngineCore, fs: FileSystem) -> None:
        self._core = core
        self._fs = fs
        self.due_at: int | None = 0 if core.store.far is not None else None
        """The time at which it is due, in milliseconds; None if it was done or is not needed."""
        self.removed = 0

    def job(self) -> Job:
        """Lists on its thread, decides on the loop, removes on its thread.

        The same runner does all work that moves or removes segments, so nothing else moves or removes any meanwhile.
        """
        core, root = self._core, self._core.layout.topics(cold=True)
        try:
            folders = yield OffLoop(partial(self._names, root))
            assert isinstance(folders, list)
            for folder in folders:
                names = yield OffLoop(partial(self._names, f"{root}/{folder}"))
                assert isinstance(names, list)
                paths = list(self._unwanted(folder, names))
                if paths:
                    yield OffLoop(partial(self._remove, paths))
                    self.removed += len(paths)
        except StoreUnavailable as error:
            self.due_at = core.steady() + _RETRY_MS
            _log.info("object store cleanup failed", extra={"why": error.why})
        if self.removed:
            _log.info("object store cleaned up", extra={"objects": self.removed})

    def _unwanted(self, folder: str, names: list[str]) -> Iterator[str]:
        core = self._core
        topic_id = topic_id_of(folder)
        if topic_id is None:
            return
        if topic_id >= core.next_topic_id:
            _log.error("unknown topic in the object store", extra={"folder": folder})
            return
        topic = core.topics.get(topic_id)
        # A snapshot may still name segments that wait for removal.
        kept = {key.first_seq for key in core.trash if key.cold and key.topic_id == topic_id}
        kept |= {segment.first_seq for segment in topic.segments if segment.cold} if topic is not None else set()
        if topic is None and topic_id in {dropped for shard in core.dropped for dropped in shard}:
            return
        for name in names:
            first = number_in(name.rsplit(".", 1)[0], "seg-", "")
            if first is not None and first not in kept:
                yield f"{core.layout.topics(cold=True)}/{folder}/{name}"

    def _names(self, folder: str) -> list[str]:
        try:
            return self._fs.list_dir(folder)
        except FileNotFoundError:
            return []

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            self._fs.remove(path)


def drop_stale_copies(core: EngineCore) -> None:
    """Removes the copies of segments that are no longer in the store or unreferenced."""
    far = core.store.far
    if far is not None:
        named = {
            core.store.path(SegmentKey(topic.id, segment.first_seq, True)) + ending
            for topic in core.topics.values()
            for segment in topic.segments
            if segment.cold
            for ending in (".data", ".idx")
        }
        far.keep_only(named.__contains__)


_TICK_S = 1.0
_TOPICS_A_TICK = 2000
_MOVES_A_JOB = 16
_COLD_RETRY_MS = 5_000
_UNUSED_MS = 60_000
"""How long a topic that was paged in must be unused before it is paged out again."""
_NEW_TOPICS_MAX = 40_000
"""The number of new topics after which a checkpoint is due: replaying a topic takes ten times as long as leaving it in
a snapshot, and new topics have few bytes in the log, so its size alone does not trigger a checkpoint."""
_OVERDUE_A_TICK = 500
_PRESSED_MAX = 4


class Housekeeper:
    def __init__(
        self,
        core: EngineCore,
        sealer: Sealer,
        checkpointer: Checkpointer,
        sweeper: Sweeper,
        run_job: Callable[[Job], None],
        retry: Callable[[], None] = lambda: None,
        in_place: Callable[[], bool] = lambda: True,
    ) -> None:
        """`in_place` returns whether the data folder still has its path."""
        self._in_place = in_place
        self._core = core
        self._sealer = sealer
        self._checkpointer = checkpointer
        self._sweeper = sweeper
        self._run_job = run_job
        self._retry = retry
        """Retries blocked routers whose obstacle has no event for its end."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last_checkpoint = core.steady()
        self._place = 0
        self._moving = self._regaining = self._vanished = False
        self._pressed = False
        """Whether a checkpoint was taken because of the size of tails, which is still too large."""
        self._cold_after = 0
        """The time of the next attempt after a failure of the cold tier, in milliseconds."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(_TICK_S, self._tick_and_go_on)

    def _tick_and_go_on(self) -> None:
        try:
            self.tick()
        except Exception:
            _log.exception("housekeeping failed")
        self._schedule()

    def tick(self) -> None:
        """Runs one round."""
        self._check_folder()
        self._sealer.resume()
        self._retry()
        self._look_at_some_topics()
        if self._sweeper.due_at is not None and self._core.steady() >= self._sweeper.due_at:
            self._sweeper.due_at = None
            self._run_job(self._sweeper.job())
        self._core.second_passed.emit()
        self.bound_memory()
        self._heal()
        self._checkpoint_when_due()

    def _check_folder(self) -> None:
        """Refuses writes once the data folder has vanished: three name lookups, which need no disk access."""
        if self._vanished or self._in_place():
            return
        self._vanished = True
        root = self._core.layout.root
        _log.error("data folder vanished", extra={"folder": root})
        for shard in self._core.shards:
            cause = f"the data folder {root} was removed or replaced"
            shard.writer.refuse(ReadOnlyError(shard.number, cause, vanished=True))

    def _look_at_some_topics(self) -> None:
        core, options = self._core, self._core.options
        now = core.wall()
        oldest = now - options.segment_max_age_ms
        moving = core.layout.cold_root is not None and core.steady() >= self._cold_after
        topics = list(islice(core.topics.values(), self._place, self._place + _TOPICS_A_TICK))
        self._place = self._place + len(topics) if len(topics) == _TOPICS_A_TICK else 0
        topic: Topic | None = None
        for topic in topics:
            core.expire(topic)
            forget_old_keys(topic, now)
            core.memory.note(topic)
            old = options.segment_max_age_ms and topic.tail and topic.tail[0].written < oldest
            if old and topic.config.durability.logged:
                core.before_change(topic)
                self._sealer.cut(topic)
            if moving and not self._moving and self.movable(topic):
                self._moving = True
                self._run_job(self.relocate(topic))
        if core.pager.needed:
            self._page_out_unused(topics, now)

    def _page_out_unused(self, resident: list[Topic], now: int) -> None:
        """Pages out topics that were not used for a while, and seals old tails of those that are paged out."""
        core, options = self._core, self._core.options
        quiet = [t.id for t in resident if max(t.last_read_ts, t.last_write_ts) < now - _UNUSED_MS]
        # A topic captured by the checkpoint differs from its stored place, and gets a new one when the checkpoint ends.
        for topic_id in quiet if not self._checkpointer.running else ():
            if not core.pager.over_limit:
                break
            core.pager.page_out(topic_id)
        if options.segment_max_age_ms:
            overdue = core.pager.overdue(now - options.segment_max_age_ms)
            for topic_id in list(islice(overdue, _OVERDUE_A_TICK)):
                topic = core.topic_at(topic_id)
                if topic is not None:
                    core.before_change(topic)
                    self._sealer.cut(topic)

    def bound_memory(self) -> None:
        """Seals the largest tails early when all tails together hold too much."""
        core = self._core
        held = core.retention.tail_bytes
        if held <= core.options.tail_memory_bytes:
            # Usually it ends here, without examining a million topics every second.
            self._pressed = False
            return
        if core.pager.needed and held < _PRESSED_MAX * core.options.tail_memory_bytes:
            # Hundreds of thousands of small tails would become as many files. A checkpoint writes them into one
            # snapshot, where they can stay.
            if self._checkpointer.running:
                return
            if not self._pressed and any(core.dirty):
                self._pressed = True
                self._checkpoint()
                return
        tails = [t for t in core.topics.values() if t.tail_bytes and t.config.durability.logged]
        excess = sum([topic.tail_bytes for topic in tails]) - core.options.tail_memory_bytes
        if excess <= 0:
            return
        for topic in sorted(tails, key=lambda topic: topic.tail_bytes, reverse=True):
            if excess <= 0:
                return
            excess -= topic.tail_bytes
            core.before_change(topic)
            self._sealer.cut(topic)

    def _heal(self) -> None:
        """Checks whether a shortage has ended."""
        for shard in self._core.shards:
            shard.heal()
        if self._core.room.short is not None and not self._regaining:
            self._regaining = True
            self._run_job(self._regain())

    def _regain(self) -> Job:
        try:
            yield OffLoop(self._core.room.regain)
        except OSError as error:
            _log.error("disk reserve failed", extra={"error": str(error)})
        finally:
            self._regaining = False

    def _checkpoint_when_due(self) -> None:
        core = self._core
        logged = sum([shard.logged_bytes for shard in core.shards])
        now = core.steady()
        # On a full disk every delete waits for the checkpoint that removes files.
        interval_ms = core.options.snapshot_interval_ms if core.room.short is None else 0
        # Sealing and moves to the cold tier log nothing, but readers of the files wait for a catalog that reports them.
        changed = logged > 0 or any(core.dirty)
        old = changed and now - self._last_checkpoint >= interval_ms
        many = logged >= core.options.snapshot_wal_bytes or (
            core.next_topic_id - self._checkpointer.first_new >= _NEW_TOPICS_MAX
        )
        if self._checkpointer.running or not (old or many):
            return
        self._checkpoint()

    def _checkpoint(self) -> None:
        if any(shard.writer.poison is not None for shard in self._core.shards):
            return
        self._last_checkpoint = self._core.steady()
        # Set now and not when the job begins: it may have to wait for its turn, and one job is enough.
        self._checkpointer.running = True
        self._run_job(self._checkpointer.job())

    def movable(self, topic: Topic) -> list[Segment]:
        """Returns the sealed segments that exceed the limit of the hot folder, oldest first."""
        options = self._core.options
        if is_server_name(topic.name):
            return []  # The loop reads the server's own records, and must not wait for the cold tier.
        hot = [segment for segment in topic.segments if not segment.cold and segment.blocks is None]
        keep, kept = 0, 0
        for segment in reversed(hot):
            kept += segment.text_bytes
            too_large = options.hot_retain_bytes and kept > options.hot_retain_bytes
            if keep == options.hot_retain_segments or too_large:
                break
            keep += 1
        return [segment for segment in hot[: len(hot) - keep] if segment.synced][:_MOVES_A_JOB]

    def relocate(self, topic: Topic) -> Job:
        """Moves segments to the cold tier: copies and syncs them, has a snapshot name them there, then removes the
        originals."""
        core = self._core
        try:
            for segment in self.movable(topic):
                key = SegmentKey(topic.id, segment.first_seq)
                yield OffLoop(partial(core.store.relocate, key))
                if not core.exists(topic) or segment not in topic.segments:
                    core.trash.append(SegmentKey(topic.id, segment.first_seq, cold=True))
                    continue
                core.before_change(topic)
                segment.cold = True
                core.store.forget(key)
                core.trash.append(key)
                core.wake(topic)
        except (OSError, TopicsError, SegmentDamaged) as error:
            if isinstance(error, StoreUnavailable | TopicsError):
                # An unavailable store is neither contacted nor logged every second.
                self._cold_after = core.steady() + _COLD_RETRY_MS
            _log.error("move to the cold tier failed", extra={"error": str(error)})
        finally:
            self._moving = False
