"""Live delivery: new records of a topic pushed to its followers (also known as: fan-out, push, tailing).

Server-sent events of both protocols, WebSockets and long polls use it and differ in their framing only.

    engine ── one waiter per topic ──▶ TopicFeeds ──▶ Feed (per source) ──▶ Subscription ──▶ Sink ──▶ transport
                                                       reads once, encodes one frame,             per connection
                                                       same bytes for all at its position

A `Feed` has a position in one topic. When the topic changes, the feed reads once from there, its `Source` makes one
frame, and every subscription at the same position gets the same bytes: those subscriptions are *live*. All others are
*behind*, because they are new or their transport was full. They read from their own cursor, one frame per turn, up to
the feed's position and never past it, and get a caught-up notice when they join the live ones.

Backpressure: there is no task and no queue per connection. A connection that is full gets no frame; its subscription
falls behind and reads on from its cursor once there is room, in larger batches. A slow client therefore costs its
transport's buffer and one number per topic.

Guarantees to a subscription, from its cursor on:

* every record of the topic, in order and once, or a tombstone for the range that contained it;
* no lost wake-up: the waiter is registered again before the topic is read;
* a notice when the topic is deleted, also for subscriptions that are behind; records of a later topic of the same
  name never follow.

Usage:

1. `Live` holds the singletons of a server: `feeds`, `run_queue`, `sweep`, `connections`, `slow_limits`; handlers find
   it as `call.live`.
2. A connection creates one `Sink` (a subclass with `transmit`, `end_slow`, `end_subscription`, `beat`), calls its
   `filled`, `drained` and `close`, registers with `Connections.enter`, and is checked by `Sweep` for slowness and
   idleness.
3. `feeds.subscribe(sink, topic, source, cursor)` returns a `Subscription`; `cancel` ends it. Its `cursor` is the last
   seq that was handed to the transport.

Everything runs on the event loop's thread.
"""

from topics.api.live.feed import Feed, Subscription
from topics.api.live.feeds import Feeds, Live, LiveLimits
from topics.api.live.frames import Cursor, Found, Frame, FrameKind, Framing, Projection, Source
from topics.api.live.run_queue import RunQueue
from topics.api.live.sink import Connections, Sink, SlowLimits, Sweep
from topics.api.live.transports import EventSink, LongPoll
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
