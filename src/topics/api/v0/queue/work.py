"""`GET /v0/topics/{topic}/work`: jobs pushed to a worker over an event stream.

The engine keeps up to `max` jobs leased to the connection and hands over another for each that is acknowledged, given
back or lost. The stream only carries them: one write for all jobs of a tick. A client that does not read is given no
more jobs, and after a while no more patience. However the connection ends, what was delivered over it and is not
settled is free at that moment, for whoever works next.
"""

import msgspec

from topics.api.auth import ANYONE
from topics.api.calls import Call
from topics.api.errors import SlowConsumerError, status_of
from topics.api.live import EventSink
from topics.api.v0.bodies import query_number
from topics.api.v0.watch.event_streams import check_accepts_events, start_events
from topics.api.v0.watch.watch_frames import RETRY, error_event, event, heartbeat
from topics.core.config import TopicType
from topics.core.errors import InvalidRequestError, NotAQueueError, ShuttingDownError, TopicNotFoundError, TopicsError
from topics.engine.queues.messages import ClaimedJob, WorkerRequest
from topics.engine.queues.state import Worker

HEARTBEAT_MS = 15_000
_RETRY_AFTER_STOP_MS = 2_000
_encode = msgspec.json.Encoder().encode


def open_work(call: Call) -> None:
    """Opens the stream. Everything that can be refused is refused before it begins."""
    request, heartbeat_ms = _asked(call)
    check_accepts_events(call.exchange.head)
    _check_queue(call)
    if call.exchange.head.method == "HEAD":
        start_events(call).close()
        return
    if call.key is ANYONE:
        # An image of a page would claim jobs otherwise.
        check_accepts_events(call.exchange.head, by_name=True)
    WorkStream(call, heartbeat_ms).open(request)


def _asked(call: Call) -> tuple[WorkerRequest, int]:
    query = call.query
    node = query.get("node")
    if not node:
        raise InvalidRequestError("query node: the worker's name is needed", field="node")
    lease_ms = query.get("lease_ms")
    request = WorkerRequest(
        node=node,
        max=query_number(query.get("max"), "max", 1),
        lease_ms=query_number(lease_ms, "lease_ms", 0) if lease_ms else None,
    )
    heartbeat_ms = query_number(query.get("heartbeat_ms"), "heartbeat_ms", HEARTBEAT_MS)
    return request, call.live.limits.clamp_heartbeat_ms(heartbeat_ms)


def _check_queue(call: Call) -> None:
    if call.engine.core.existing(call.topic).config.type is not TopicType.QUEUE:
        raise NotAQueueError(call.topic)


class WorkStream(EventSink):
    """The connection of one worker."""

    __slots__ = ("_call", "_prefix", "_topic_id", "_worker")

    def __init__(self, call: Call, heartbeat_ms: int) -> None:
        super().__init__(call.live, call.key, call.waits)
        self._call = call
        self._prefix = b'{"topic":%b,' % _encode(call.topic)
        self._worker: Worker | None = None
        self.idle_timeout_s = heartbeat_ms / 1000.0

    def open(self, request: WorkerRequest) -> None:
        """Registers the worker, which may be refused, and begins the answer. Jobs come from the next tick on."""
        call = self._call
        try:
            self._worker = call.engine.queues.open_worker(call.topic, request, self._push, self._ended)
        except TopicsError:
            self.over()
            raise
        self._topic_id = call.engine.core.existing(call.topic).id
        self._live.paced.setdefault(self._topic_id, set()).add(self)
        self.attach(start_events(call), RETRY + heartbeat(self._live.clock.now_ms()))

    # What the queue calls.

    def _push(self, jobs: list[ClaimedJob]) -> None:
        prefix = self._prefix
        self.write(b"".join([b"id: %d\n%b" % (job.seq, event(b"job", prefix + job.fragment[1:])) for job in jobs]))
        self.sent = True

    def _ended(self, error: TopicsError) -> None:
        """The queue is gone, or the engine stops."""
        if isinstance(error, TopicNotFoundError):
            try:
                _check_queue(self._call)
            except NotAQueueError as other:
                # There is a topic of that name again, and it is none to work on.
                error = other
            except TopicNotFoundError:
                pass
        self._end_with(error)

    # What the sweep, the transport and the server call.

    def filled(self) -> None:
        super().filled()
        if self._worker is not None:
            self._worker.pause()

    def drained(self) -> None:
        super().drained()
        if self._worker is not None and not self.closed:
            self._worker.resume()

    def pace(self, retry_after_ms: int) -> None:
        """Pressure makes jobs late: only advice, they come by themselves."""
        if not self.full:
            self.write(error_event(429, "work throttled under pressure", retry_after_ms, [self._call.topic]))
            self.sent = True

    def beat(self) -> None:
        self.write(heartbeat(self._live.clock.now_ms()))

    def end_slow(self) -> None:
        self._end_with(SlowConsumerError())

    def end(self) -> None:
        self._end_with(ShuttingDownError())

    def _end_with(self, error: TopicsError) -> None:
        retry_after_ms = _RETRY_AFTER_STOP_MS if isinstance(error, ShuttingDownError) else None
        self.end_with(error_event(status_of(error), error.message, retry_after_ms))

    def let_go(self) -> None:
        if self._worker is None:
            return
        others = self._live.paced[self._topic_id]
        others.discard(self)
        if not others:
            del self._live.paced[self._topic_id]
        self._worker.close()
