"""One follower of one topic.

behind ── cursor reaches the feed's position ──▶ live ── its transport is full ──▶ lagging ── drained ──▶ behind
   │                                               │                                  │
   └───────────── the topic is deleted, or cannot be read on: told, then over ────────┘
"""

import logging
from typing import TYPE_CHECKING

from topics.api.live.frames import Cursor, Found, Frame, FrameKind
from topics.api.live.run_queue import RunQueue
from topics.api.live.sink import Sink
from topics.core.errors import TopicsError

if TYPE_CHECKING:
    from topics.api.live.feed import Feed

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
