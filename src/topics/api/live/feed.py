"""One topic, as those see it who want the same of it.

The feed stands at a position. A new frame is made from there and given to all live subscriptions, as many a tick as the
allowance has room for; the next frame is made when everyone has the last one. Subscriptions that fall out on the way,
or come in meanwhile, read for themselves up to the position and never past it, so nobody is ever ahead of the feed
except where a gap carried it there.

A feed has about as many followers as are served in one tick; more make further feeds of their own, which share the
frames they make while they stand at the same position. Under load they do not: each gets, when its turn comes, all that
there is by then, so a record waits for one round of the feeds and not for the end of one round and then for the next.
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


# One follower of one topic.
#
# behind ── cursor reaches the feed's position ──▶ live ── its transport is full ──▶ lagging ── drained ──▶ behind
#    │                                               │                                  │
#    └───────────── the topic is deleted, or cannot be read on: told, then over ────────┘

_logger = logging.getLogger(__name__)


class Subscription:
    """`owner` is for whoever subscribed. Implements `run_queue.Worker` for the time it is behind."""

    __slots__ = ("_reading", "cursor", "feed", "live", "over", "owner", "queued", "sink", "too_old")

    pauses = False

    def __init__(self, feed: "Feed", sink: Sink, cursor: Cursor, owner: object = None) -> None:
        self.feed = feed
        self.sink = sink
        self.cursor = cursor
        """The last seq handed to the transport, or passed over because it is not for this reader."""
        self.owner = owner
        self.live = False
        """Whether it stands at its feed's position and gets the feed's frames."""
        self.over = False
        self.queued = False
        self.too_old = True
        """Whether a loss that it meets now happened before it came, or while it did not read."""
        self._reading = False

    @property
    def topic(self) -> str:
        return self.feed.topic.name

    def cancel(self) -> None:
        """Ends it without a word. May be called more than once, also from within a delivery."""
        if not self.over:
            self.over = True
            self.live = False
            self.feed.remove(self)

    def work(self, run_queue: RunQueue) -> None:
        """One step of catching up."""
        if self.over or self.live or self._reading:
            return
        feed = self.feed
        if feed.gone:
            self._finish(feed.deleted_frame(self.cursor))
        elif self.cursor == feed.position:
            if self.deliver(feed.caught_up_frame()):
                feed.join(self)
        elif feed.position < self.cursor <= feed.source.place(feed.topic.head):
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

    def deliver(self, frame: Frame) -> bool:
        """Hands a frame to the connection; False when it has no room, and then it is to be read again later."""
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
        if self.over or feed.look_if_gone():
            # Whoever is told of the end by its turn has that turn now.
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
            _logger.error("a topic cannot be delivered", extra={"topic": self.topic, "cursor": self.cursor})
        if self.deliver(frame):
            self.cancel()
            self.sink.end_subscription(self)


FOLLOWERS_MAX = ALLOWANCE - READ_COST
"""So many get a frame in the tick that makes it."""
_UNKNOWN = -1


class Feed:
    """Made by `Feeds.subscribe`. Implements `run_queue.Worker`."""

    # Of a thousand topics that change at once none is at hand: what is in one piece is fetched faster.
    __slots__ = (
        "_ahead", "_asking", "_frame", "_frames", "_live", "_members", "_reading", "_receivers", "_target", "gone",
        "kin", "position", "queued", "source", "topic", "topics",
    )  # fmt: skip

    pauses = True

    def __init__(self, topics: "TopicFeeds", source: Source, kin: Kin) -> None:
        self.topics = topics
        self.topic: Topic = topics.topic
        self.source = source
        self.kin = kin
        self.queued = False
        self.gone = False
        self.position: Cursor = _UNKNOWN if source.strong else source.place(self.topic.head)
        """The place up to which live subscriptions have everything."""
        self._target = self.position
        self._live: dict[Subscription, None] = {}
        self._members: set[Subscription] = set()
        # Mostly there is nobody and nothing: a list is made when there is, and the empty tuple is everyone's.
        self._ahead: list[Subscription] | None = None
        self._frames: tuple[Frame, ...] = ()
        self._frame: Frame | None = None
        self._receivers: list[Subscription] = []
        self._reading = False
        self._asking = False

    # Who follows.

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
        """A subscription has reached the position."""
        if not subscription.over:
            subscription.live = True
            subscription.too_old = False
            self._live[subscription] = None

    def await_position(self, subscription: Subscription) -> None:
        """A subscription is ahead of the position, and goes on when that has come to it."""
        if self._ahead is None:
            self._ahead = []
        self._ahead.append(subscription)

    # What moves it.

    def changed(self) -> None:
        """The topic, which is not deleted, changed; or the feed is new."""
        if self.gone:
            return
        source, topic = self.source, self.topic
        if not topic.rules.usual and not source.sees(topic):
            self.end()
        elif source.strong:
            self._ask_for_durable()
        else:
            self._target = source.place(topic.head)
            self.topics.run_queue.add(self)

    def end(self) -> None:
        """The topic is deleted: everyone is told, each in its turn."""
        self.gone = True
        self._frames = ()
        self._frame, self._receivers = None, []
        self._live.clear()
        self._ahead = None
        for subscription in self._members:
            subscription.live = False
            if subscription not in subscription.sink.lagging:
                self.topics.run_queue.add(subscription)

    def pace(self, retry_after_ms: int) -> None:
        """Tells those who would have the news by now that pressure keeps it from them for a while."""
        data = self.source.framing.paced(self.topic.name, retry_after_ms)
        if not data:
            return
        for subscription in list(self._live):
            sink, cursor = subscription.sink, subscription.cursor
            if not sink.full:
                sink.sent = True
                sink.transmit(subscription, Frame(FrameKind.PACED, data, cursor, cursor))

    def look_if_gone(self) -> bool:
        """Whether the topic is not there any more, for anyone or for those who follow it here."""
        # Asked for each frame of each topic. What is usual is not deleted, and has no guard that could hide it.
        if self.topic.rules.usual or self.gone:
            return self.gone
        if not self.topics.look_if_gone() and not self.source.sees(self.topic):
            self.end()
        return self.gone

    def work(self, run_queue: RunQueue) -> None:
        """Goes on with the frame that is being given out, or makes the next one."""
        if self.gone or self._reading:
            return
        if self._frame is not None or self._frames:
            self._give_out(run_queue)
            return
        if not self._live:
            self._move(self._target)
        elif self.position < self._target and not run_queue.hold(self):
            frame = self._frame_at_hand()
            if frame is not None:
                self._hand_out(frame, run_queue)
                return
            self._reading = True
            self.read(self.position, self._target, self._got)
        elif self.position >= self._target and self.source.has_ended(self.topic):
            self._frames = (self.caught_up_frame(),)
            self._give_out(run_queue)

    def _frame_at_hand(self) -> Frame | None:
        """The next frame where it takes no read: another feed just made it, or it is the topic's last block."""
        topics, topic, position, target = self.topics, self.topic, self.position, self._target
        if self.look_if_gone():
            return None
        if topic.config.ttl_ms:
            # As a read would: time may have taken records that the frame holds.
            topics.core.expire(topic)
        alone = len(self.kin.feeds) == 1
        shared = None if alone else topics.cache.find(self, position, target)
        if shared is not None:
            return shared
        frame = self.source.newest(topics.engine, topic, position, target)
        if frame is not None and not alone:
            topics.cache.put(self, frame, False)
        return frame

    def _got(self, outcome: Found | TopicsError) -> None:
        self._reading = False
        if self.look_if_gone():
            return
        run_queue = self.topics.run_queue
        if isinstance(outcome, TopicsError):
            # Everyone meets it by reading for themselves, and is told so.
            fallen, self._live = self._live, {}
            self._move(self._target)
            for subscription in fallen:
                subscription.live = False
                run_queue.add(subscription)
            return
        run_queue.spend(len(outcome.body))
        self._frames += tuple(self.frames(outcome, self.position, False))
        if run_queue.running:
            # At once, as what a turn makes it also gives out: the next feed then has what came meanwhile.
            self._give_out(run_queue)
        else:
            run_queue.add(self)

    def _hand_out(self, frame: Frame, run_queue: RunQueue) -> None:
        """Gives a frame to everyone at once, where there is allowance for that: mostly few follow a topic."""
        cost = run_queue.cost(len(frame.data)) * len(self._live)
        if cost > run_queue.left:
            self._frames = (frame,)
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
            # From now on who reaches the position for itself has this frame's records already.
            self._move(frame.cursor)
        receivers = self._receivers
        # The kernel copies a frame for everyone who gets it, so a large one is given to fewer in a tick.
        cost = run_queue.cost(len(self._frame.data))
        some = receivers[-max(run_queue.left // cost, 1) :]
        del receivers[-len(some) :]
        run_queue.left -= len(some) * cost
        self._give(self._frame, some)
        if receivers:
            # Before any other feed: what is made does not grow old while others have their run_queue.
            run_queue.go_on(self)
            return
        self._frame = None
        if self._frames or self.position < self._target:
            run_queue.add(self)

    def _give(self, frame: Frame, receivers: list[Subscription]) -> None:
        """The hot loop: one call a subscriber, of the connection's own write."""
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
                    _logger.exception("a connection failed to take a frame")
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
        if self.gone:
            return
        self._target = max(self._target, head)
        self.topics.run_queue.add(self)
        if self.topic.head > head:
            self._ask_for_durable()

    # Reading and encoding.

    def read(self, cursor: Cursor, up_to: Cursor, done: Done, room: int | None = None) -> None:
        """Reads from a cursor, at once or later. Says nothing when the topic is gone: everyone is told of that. `room`
        is how many bytes the one may get whom it is read for."""
        if self.look_if_gone():
            done(TopicNotFoundError(self.topic.name))
            return
        try:
            source = self.source if room is None else self.source.within(room)
            source.read(self.topics.engine, self.topic, cursor, up_to, done)
        except TopicsError as error:
            done(error)

    def frames(self, found: Found, cursor: Cursor, too_old: bool) -> list[Frame]:
        """What a read from `cursor` gives to tell, in order; others who stand there get the same."""
        frames = self.source.frames(self.topic, found, cursor, too_old)
        last = frames[-1]
        if last.kind is FrameKind.RECORDS and last.data:
            self.topics.cache.put(self, last, self.source.is_full(found))
        return frames

    def shared_frame(self, cursor: Cursor, up_to: Cursor) -> Frame | None:
        """The frame from this cursor that somebody else just had, if reading up to a seq would give no more."""
        # As a read would: time may have taken records that the frame holds.
        self.topics.core.expire(self.topic)
        return self.topics.cache.find(self, cursor, up_to)

    def caught_up_frame(self) -> Frame:
        data = self.source.framing.caught_up(self.topic.name, self.position)
        return Frame(FrameKind.CAUGHT_UP, data, self.position, self.position)

    def deleted_frame(self, cursor: Cursor) -> Frame:
        data = self.source.framing.deleted(self.topic.name, self.topic.head, cursor)
        return Frame(FrameKind.DELETED, data, cursor, cursor)

    def error_frame(self, cursor: Cursor, error: TopicsError) -> Frame:
        return Frame(FrameKind.ERROR, self.source.framing.error(self.topic.name, error), cursor, cursor)
