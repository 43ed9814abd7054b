"""Housekeeping: periodic maintenance, a bounded amount each second.

Old tails are sealed, memory is kept within its bound, checkpoints are taken when the log has grown or aged, expired
records and idempotency keys of quiet topics are let go, old segments move to the cold tier. Nothing here is needed for
correctness, and everything here may be late.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from itertools import islice

from topics.engine.apply import forget_old_keys
from topics.engine.background_jobs import Job, OffLoop
from topics.engine.checkpoint import Checkpointer
from topics.engine.cold_tier import Sweeper
from topics.engine.core import EngineCore
from topics.engine.record_runs import Segment
from topics.engine.sealing import Sealer
from topics.engine.topic import Topic
from topics.log.object_store.store import StoreUnavailable
from topics.log.segment_files import SegmentDamaged, SegmentKey
from topics.model.errors import TopicsError
from topics.model.names import is_server_name

_TICK_S = 1.0
_TOPICS_A_TICK = 2000
_MOVES_A_JOB = 16
_COLD_RETRY_MS = 5_000
_UNUSED_MS = 60_000
"""How long a topic that was paged in must be unused before it is paged out again."""
_NEW_TOPICS_MAX = 40_000
"""After so many new topics a checkpoint is due: a start needs ten times as long to replay a topic as to leave it in a
snapshot, and new topics have few bytes in the log, so its size alone does not demand a checkpoint."""
_OVERDUE_A_TICK = 500
_PRESSED_MAX = 4

_log = logging.getLogger(__name__)


class Housekeeper:
    def __init__(
        self,
        core: EngineCore,
        sealer: Sealer,
        checkpointer: Checkpointer,
        sweeper: Sweeper,
        run_job: Callable[[Job], None],
        retry: Callable[[], None] = lambda: None,
    ) -> None:
        self._core = core
        self._sealer = sealer
        self._checkpointer = checkpointer
        self._sweeper = sweeper
        self._run_job = run_job
        self._retry = retry
        """Lets routers try again that are held up by something that says nothing when it is over."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last_checkpoint = core.steady()
        self._place = 0
        self._moving = self._regaining = False
        self._pressed = False
        """Whether a checkpoint was taken because of what tails hold, which is still too much."""
        self._cold_after = 0
        """When the cold tier is tried again that failed; milliseconds."""

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
        """One round."""
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
        # One that the checkpoint has taken is no longer as its place has it, and has its new one when that is through.
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
            # Usually it ends here, and that must not cost a look at each of a million topics every second.
            self._pressed = False
            return
        if core.pager.needed and held < _PRESSED_MAX * core.options.tail_memory_bytes:
            # Small tails by the hundred thousand: as segments they would be as many files. A checkpoint takes them into
            # one, where they can be left.
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
        """Looks whether a shortage has passed."""
        for shard in self._core.shards:
            shard.heal()
        if self._core.room.short is not None and not self._regaining:
            self._regaining = True
            self._run_job(self._regain())

    def _regain(self) -> Job:
        try:
            yield OffLoop(self._core.room.regain)
        except OSError as error:
            _log.error("the reserve for a full disk cannot be made", extra={"error": str(error)})
        finally:
            self._regaining = False

    def _checkpoint_when_due(self) -> None:
        core = self._core
        logged = sum([shard.logged_bytes for shard in core.shards])
        now = core.steady()
        # On a full disk every delete waits for the checkpoint that removes files.
        interval_ms = core.options.snapshot_interval_ms if core.room.short is None else 0
        # Sealing and moves to the cold tier log nothing, but whoever reads the files waits for a catalog that tells.
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
        # From now on, and not only once the job begins: it may have to wait for its turn, and one is enough.
        self._checkpointer.running = True
        self._run_job(self._checkpointer.job())

    def movable(self, topic: Topic) -> list[Segment]:
        """The sealed segments beyond what the hot folder should keep, oldest first."""
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
        """Moves segments to the cold tier: copied and synced, then named there by a snapshot, then removed here."""
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
                # A store that is away is not asked every second, and not complained about every second.
                self._cold_after = core.steady() + _COLD_RETRY_MS
            _log.error("a segment could not be moved to the cold tier", extra={"error": str(error)})
        finally:
            self._moving = False
