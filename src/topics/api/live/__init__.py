"""Live delivery: records pushed to whoever follows a topic. Event streams of both protocols, WebSockets and requests
that wait all read through it and differ in their framing only.

    engine ── one waiter a topic ──▶ TopicFeeds ──▶ Feed (one a source) ──▶ Subscription ──▶ Sink ──▶ transport
                                                       reads once, encodes one frame,             one a connection
                                                       same bytes for everyone at its position

A `Feed` stands at a position of one topic. When the topic changes it reads once from there, has its `Source` make
one frame, and hands the same bytes to every subscription that stands at the same position: those are *live*. Any
other subscription is *behind*: new, or refused by a full transport. It reads by its own cursor, one frame a turn, up to
the feed's position and never past it, and is told that it caught up when it joins the live ones.

There is no task and no queue a connection. A connection that cannot take a frame is not given it: its subscription
falls behind and reads on from its cursor once there is room, in larger batches. What waits for a slow client is
therefore its transport's buffer and one number a topic.

What this guarantees to a subscription, from its cursor on:

* every record of the topic in order and once, or a tombstone for the range in which it would have been;
* no lost wake-up: the waiter is put back before the topic is read;
* the end of the topic is told, also to who was behind, and records of a later topic of the same name never follow.

How to use it:

1. `Live` has everything once: `feeds`, `run_queue`, `sweep`, `connections`, `slow_limits`; handlers have it as
   `call.live`.
2. A connection makes one `Sink` (subclass it: `transmit`, `end_slow`, `end_subscription`, `beat`), tells it `filled`,
   `drained` and `close`, counts in with `Connections.enter`, and is swept by `Sweep` for slowness and idleness.
3. `feeds.subscribe(sink, topic, source, cursor)` gives a `Subscription`; `cancel` ends it. Its `cursor` is the
   last seq that was handed to the transport.

Everything runs on the event loop's thread.
"""

from topics.api.live.event_sink import EventSink
from topics.api.live.feed import Feed, Subscription
from topics.api.live.feeds import Feeds, Live, LiveLimits
from topics.api.live.frames import Cursor, Found, Frame, FrameKind, Framing, Projection, Source
from topics.api.live.long_poll import LongPoll
from topics.api.live.run_queue import RunQueue
from topics.api.live.sink import Connections, Sink, SlowLimits, Sweep
from topics.api.live.watch_sessions import Session, Sessions

__all__ = [
    "Connections",
    "Cursor",
    "EventSink",
    "Feed",
    "Feeds",
    "Found",
    "Frame",
    "FrameKind",
    "Framing",
    "Live",
    "LiveLimits",
    "LongPoll",
    "Projection",
    "RunQueue",
    "Session",
    "Sessions",
    "Sink",
    "SlowLimits",
    "Source",
    "Subscription",
    "Sweep",
]
