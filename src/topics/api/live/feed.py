"""Live feed: one topic, read and encoded once for all subscriptions with the same source (also known as: fan-out).

The feed has a position. It makes a frame from there and delivers it to all live subscriptions, as many per tick as the
allowance permits; it makes the next frame when all of them have the last one. Subscriptions that fall behind or are new
read for themselves up to the position and never past it, so none is ahead of the feed except after a gap.

A feed has about as many followers as one tick serves. Further followers get further feeds, which share frames while
they are at the same position. Under load their positions differ: each feed reads all records at its turn, so that a
record waits for one round of the feeds and not for two.
"""

import logging
from typing import TYPE_CHECKING

from topics.api.live.frames import Cursor, Done, Found, Frame, FrameKind, Kin, Source
from topics.api.live.run_queue import ALLOWANCE, READ_COST, RunQueue
from topics.api.live.sink import Sink
from topics.engine.topic import Topic
from topics.model.errors import TopicNotFoundError, TopicsError

if TYPE_CHECKING:
    from topics.api.live.feeds import TopicFeeds


# Subscription states:
#
# behind ── cursor reaches the feed's position ──▶ live ── its transport is full ──▶ lagging ── drained ──▶ behind
#    │                                               │                                  │
#    └──────────── the topic is deleted or unreadable: last frame, then over ───────────┘

_logger = logging.getLogger(__name__)


class Subscription:
    """One follower of a topic. `owner` belongs to the subscriber. Implements `run_queue.Worker` while it is behind."""

    __slots__ = ("_reading", "cursor", "feed", "live", "over", "owner", "queued", "sink", "too_old")

    pauses = False

    def __init__(self, feed: "Feed", sink: Sink, cursor: Cursor, owner: object = None) -> None:
        self.feed = feed
        self.sink = sink
        self.cursor = cursor
        """The last seq handed to the transport, or skipped because the reader filters it out."""
        self.owner = owner
        self.live = False
        """Whether it is at its feed's position and gets the feed's frames."""
        self.over = False
        self.queued = False
        self.too_old = True
        """Whether a gap found now is from before the subscription, or from a time when it did not read."""
        self._reading = False

    @property
    def topic(self) -> str:
        return self.feed.topic.name

    def cancel(self) -> None:
        """Ends the subscription without a notice. Idempotent; may be called from within a delivery."""
        if not self.over:
            self.over = True
            self.live = False
            self.feed.remove(self)

    def work(self, run_queue: RunQueue) -> None:
        """One step of catching up."""
        if self.over or self.live or self._reading:
            return
        feed = self.feed
        if feed.deleted:
            self._finish(feed.deleted_frame(self.cursor))
        elif self.cursor == feed.position:
            if feed.in_backlog:
                # It is not at the head yet: the notice follows the frame that ends the backlog.
                feed.join(self)
            elif self.deliver(feed.caught_up_frame()):
                feed.join(self)
        elif feed.position < self.cursor and (not self._is_beyond_end() or feed.source.waits_beyond_end):
            if self._is_beyond_end() and feed.source.has_ended(feed.topic):
                # It will never be reached; a connection that waits for the end must be notified.
                self.deliver(feed.caught_up_frame(self.cursor))
            feed.await_position(self)
        else:
            frame = feed.shared_frame(self.cursor, feed.position)
            if frame is not None:
                run_queue.left -= run_queue.cost(len(frame.data))
                self.too_old = False
                if self.deliver(frame):
                    run_queue.add(self)
                return
            self._reading = True
            feed.read(self.cursor, feed.position, self._got, self.sink.frame_room())

    def _is_beyond_end(self) -> bool:
        feed = self.feed
        return bool(self.cursor > feed.source.place(feed.topic.visible_head))

    def deliver(self, frame: Frame) -> bool:
        """Passes a frame to the connection. Returns False if it is full; the frame is then read again later."""
        sink = self.sink
        if sink.full:
            sink.lagging.append(self)
            return False
        self.cursor = frame.cursor
        if frame.data:
            sink.sent = True
            sink.transmit(self, frame)
        return True

    def _got(self, outcome: Found | TopicsError) -> None:
        self._reading = False
        feed, run_queue = self.feed, self.sink.run_queue
        if self.over or feed.check_deleted():
            # The next turn delivers the notice of the topic's deletion.
            run_queue.add(self)
            return
        if isinstance(outcome, TopicsError):
            self._finish(feed.error_frame(self.cursor, outcome))
            return
        run_queue.spend(len(outcome.body))
        frames = feed.frames(outcome, self.cursor, self.too_old)
        self.too_old = False
        for frame in frames:
            if not self.deliver(frame) or self.over:
                return
        run_queue.add(self)

    def _finish(self, frame: Frame) -> None:
        if frame.kind is FrameKind.ERROR:
            _logger.error("topic delivery failed", extra={"topic": self.topic, "cursor": self.cursor})
        if self.deliver(frame):
            self.cancel()
            self.sink.end_subscription(self)


FOLLOWERS_MAX = ALLOWANCE - READ_COST
"""The number of followers that get a frame in the tick that makes it."""
_UNKNOWN = -1


class Feed:
    """A topic read by one source, at one position. Created by `Feeds.subscribe`. Implements `run_queue.Worker`."""

    # Slots: when a thousand topics change at once, none is in the CPU cache, and one object loads faster than two.
    __slots__ = (
        "_ahead", "_asking", "_backlog", "_frame", "_frames", "_joined", "_live", "_members", "_reading", "_receivers",
        "_target", "deleted", "kin", "position", "queued", "source", "topic", "topics",
    )  # fmt: skip

    pauses = True

    def __init__(self, topics: "TopicFeeds", source: Source, kin: Kin) -> None:
        self.topics = topics
        self.topic: Topic = topics.topic
        self.source = source
        self.kin = kin
        self.queued = False
        self.deleted = False
        self.position: Cursor = _UNKNOWN if source.strong else source.place(self.topic.visible_head)
        """The cursor up to which live subscriptions have everything."""
        self._target = self.position
        self._live: dict[Subscription, None] = {}
        self._members: set[Subscription] = set()
        # Usually empty, so no list is allocated until it is needed.
        self._ahead: list[Subscription] | None = None
        self._frames: tuple[Frame, ...] = ()
        self._frame: Frame | None = None
        self._backlog = False
        # Live subscriptions that were caught up while frames were being delivered, so that a notice comes once.
        self._joined: list[Subscription] | None = None
        self._receivers: list[Subscription] = []
        self._reading = False
        self._asking = False

    # Followers.

    @property
    def has_room(self) -> bool:
        return len(self._members) < FOLLOWERS_MAX

    def add(self, subscription: Subscription) -> None:
        self._members.add(subscription)

    def remove(self, subscription: Subscription) -> None:
        self._members.discard(subscription)
        self._live.pop(subscription, None)
        if not self._members:
            self.topics.forget(self)

    def join(self, subscription: Subscription) -> None:
        """Makes a subscription that has reached the position live."""
        if not subscription.over:
            subscription.live = True
            subscription.too_old = False
            self._live[subscription] = None
            if self._frames and not self.in_backlog:
                self._joined = [*(self._joined or ()), subscription]

    @property
    def in_backlog(self) -> bool:
        """Whether the last frame ended before the head, so that followers are notified when they reach it."""
        return self._backlog and self.source.reports_drains

    def await_position(self, subscription: Subscription) -> None:
        """Queues a subscription that is ahead of the position until the position reaches it."""
        if self._ahead is None:
            self._ahead = []
        self._ahead.append(subscription)

    # Progress.

    def changed(self) -> None:
        """Schedules a read: the topic changed and is not deleted, or the feed is new."""
        if self.deleted:
            return
        source, topic = self.source, self.topic
        if not topic.rules.usual and not source.sees(topic):
            self.end()
        elif source.strong:
            self._ask_for_durable()
        else:
            self._target = source.place(topic.visible_head)
            self.topics.run_queue.add(self)

    def end(self) -> None:
        """Notifies every subscription, each in its turn, that the topic is deleted."""
        self.deleted = True
        self._frames = ()
        self._frame, self._receivers = None, []
        self._backlog, self._joined = False, None
        self._live.clear()
        self._ahead = None
        for subscription in self._members:
            subscription.live = False
            if subscription not in subscription.sink.lagging:
                self.topics.run_queue.add(subscription)

    def pace(self, retry_after_ms: int) -> None:
        """Notifies live subscriptions that backpressure delays their records."""
        data = self.source.framing.paced(self.topic.name, retry_after_ms)
        if not data:
            return
        for subscription in list(self._live):
            sink, cursor = subscription.sink, subscription.cursor
            if not sink.full:
                sink.sent = True
                sink.transmit(subscription, Frame(FrameKind.PACED, data, cursor, cursor))

    def check_deleted(self) -> bool:
        """Whether the topic is deleted, or hidden from this feed's source."""
        # Called for each frame of each topic. `usual` means: not deleted, and no guard that could hide it.
        if self.topic.rules.usual or self.deleted:
            return self.deleted
        if not self.topics.check_deleted() and not self.source.sees(self.topic):
            self.end()
        return self.deleted

    def work(self, run_queue: RunQueue) -> None:
        """Continues to deliver the current frame, or makes the next one."""
        if self.deleted or self._reading:
            return
        if self._frame is not None or self._frames:
            self._give_out(run_queue)
            return
        if not self._live:
            self._backlog = False
            self._move(self._target)
        elif self.position < self._target and not run_queue.hold(self):
            frame = self._frame_at_hand()
            if frame is not None:
                self._hand_out(frame, run_queue)
                return
            self._reading = True
            target = self._target
            self.read(self.position, target, lambda outcome: self._got(outcome, target))
        elif self.position >= self._target and self.source.has_ended(self.topic):
            self._frames = (self.caught_up_frame(),)
            self._give_out(run_queue)

    def _frame_at_hand(self) -> Frame | None:
        """Returns the next frame if it needs no read: another feed has just made it, or it is the topic's last
        block."""
        topics, topic, position, target = self.topics, self.topic, self.position, self._target
        if self.check_deleted():
            return None
        if topic.config.ttl_ms:
            # Like a read: records of the frame may have expired.
            topics.engine.expire(topic)
        alone = len(self.kin.feeds) == 1
        shared = None if alone else topics.cache.find(self, position, target)
        if shared is not None:
            return shared
        frame = self.source.newest(topics.engine, topic, position, target)
        if frame is not None and not alone:
            topics.cache.put(self, frame, False)
        return frame

    def _got(self, outcome: Found | TopicsError, target: Cursor) -> None:
        self._reading = False
        if self.check_deleted():
            return
        run_queue = self.topics.run_queue
        if isinstance(outcome, TopicsError):
            # Each subscription reads for itself, gets the same error and reports it.
            self._backlog = False
            fallen, self._live = self._live, {}
            self._move(self._target)
            for subscription in fallen:
                subscription.live = False
                run_queue.add(subscription)
            return
        run_queue.spend(len(outcome.body))
        self._frames += self._with_notice(self.frames(outcome, self.position, False), target)
        if run_queue.running:
            # In the same turn: the next feed then includes records that arrive meanwhile.
            self._give_out(run_queue)
        else:
            run_queue.add(self)

    def _with_notice(self, frames: list[Frame], target: Cursor) -> tuple[Frame, ...]:
        """The frames of a read up to `target`, and a caught-up notice if they end a backlog of several reads."""
        end = frames[-1].cursor
        ends_backlog = self.in_backlog and end >= target
        self._backlog = end < target
        if not ends_backlog:
            return tuple(frames)
        data = self.source.framing.caught_up(self.topic.name, end)
        return (*frames, Frame(FrameKind.CAUGHT_UP, data, end, end))

    def _hand_out(self, frame: Frame, run_queue: RunQueue) -> None:
        """Delivers a frame to all followers at once if the allowance permits: most topics have few."""
        cost = run_queue.cost(len(frame.data)) * len(self._live)
        if cost > run_queue.left or self._backlog or frame.cursor < self._target:
            self._frames = self._with_notice([frame], self._target)
            self._give_out(run_queue)
            return
        run_queue.left -= cost
        self._move(frame.cursor)
        self._give(frame, list(self._live))
        if self.position < self._target:
            run_queue.add(self)

    def _give_out(self, run_queue: RunQueue) -> None:
        if self._frame is None:
            frame, *others = self._frames
            self._frame, self._frames = frame, tuple(others)
            self._receivers = list(self._live)
            if self._joined is not None:
                if frame.kind is FrameKind.CAUGHT_UP:
                    self._receivers = [receiver for receiver in self._receivers if receiver not in self._joined]
                self._joined = None
            # A subscription that reaches the position from now on has this frame's records already.
            self._move(frame.cursor)
        receivers = self._receivers
        # The kernel copies a frame for every receiver, so a large one goes to fewer of them per tick.
        cost = run_queue.cost(len(self._frame.data))
        some = receivers[-max(run_queue.left // cost, 1) :]
        del receivers[-len(some) :]
        run_queue.left -= len(some) * cost
        self._give(self._frame, some)
        if receivers:
            # Before any other feed, so that a finished frame does not wait.
            run_queue.go_on(self)
            return
        self._frame = None
        if self._frames or self.position < self._target:
            run_queue.add(self)

    def _give(self, frame: Frame, receivers: list[Subscription]) -> None:
        """The hot loop: one call of the connection's write for each subscriber."""
        cursor, data = frame.cursor, frame.data
        silent = not data
        for subscription in receivers:
            if not subscription.live:
                continue
            sink = subscription.sink
            if silent:
                subscription.cursor = cursor
            elif sink.full:
                subscription.live = False
                del self._live[subscription]
                sink.lagging.append(subscription)
            else:
                subscription.cursor = cursor
                sink.sent = True
                push = sink.push
                try:
                    if push is None:
                        sink.transmit(subscription, frame)
                    elif not push(data):
                        sink.filled()
                except Exception:
                    _logger.exception("live connection failed")
                    subscription.cancel()

    def _move(self, position: Cursor) -> None:
        if position > self.position:
            self.position = position
        if self._ahead:
            waiting, self._ahead = self._ahead, None
            for subscription in waiting:
                self.topics.run_queue.add(subscription)

    def _ask_for_durable(self) -> None:
        if not self._asking:
            self._asking = True
            self.topics.when_durable(self._durable)

    def _durable(self, head: int) -> None:
        self._asking = False
        if self.deleted:
            return
        self._target = max(self._target, head)
        self.topics.run_queue.add(self)
        if self.topic.visible_head > head:
            self._ask_for_durable()

    # Reading and encoding.

    def read(self, cursor: Cursor, up_to: Cursor, done: Done, room: int | None = None) -> None:
        """Reads from a cursor, now or later.

        `room` is the maximum number of bytes for a read on behalf of one connection.
        """
        if self.check_deleted():
            done(TopicNotFoundError(self.topic.name))
            return
        try:
            source = self.source if room is None else self.source.within(room)
            source.read(self.topics.engine, self.topic, cursor, up_to, done)
        except TopicsError as error:
            done(error)

    def frames(self, found: Found, cursor: Cursor, too_old: bool) -> list[Frame]:
        """Returns the frames of a read from `cursor`, in order; cached for other subscriptions at that cursor."""
        frames = self.source.frames(self.topic, found, cursor, too_old)
        last = frames[-1]
        if last.kind is FrameKind.RECORDS and last.data:
            self.topics.cache.put(self, last, self.source.is_full(found))
        return frames

    def shared_frame(self, cursor: Cursor, up_to: Cursor) -> Frame | None:
        """Returns the cached frame from this cursor, if a read up to `up_to` would return no more."""
        # Like a read: records of the frame may have expired.
        self.topics.engine.expire(self.topic)
        return self.topics.cache.find(self, cursor, up_to)

    def caught_up_frame(self, cursor: Cursor = None) -> Frame:
        """Returns the caught-up notice for a cursor; by default for the feed's position."""
        at = self.position if cursor is None else cursor
        return Frame(FrameKind.CAUGHT_UP, self.source.framing.caught_up(self.topic.name, at), at, at)

    def deleted_frame(self, cursor: Cursor) -> Frame:
        data = self.source.framing.deleted(self.topic.name, self.topic.visible_head, cursor)
        return Frame(FrameKind.DELETED, data, cursor, cursor)

    def error_frame(self, cursor: Cursor, error: TopicsError) -> Frame:
        return Frame(FrameKind.ERROR, self.source.framing.error(self.topic.name, error), cursor, cursor)
