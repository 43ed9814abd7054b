"""`GET /v0/topics/{topic}/work`: jobs pushed to a worker over an event stream.

The engine keeps up to `max` jobs leased to the connection and hands over another for each that is acknowledged, given
back or lost. The stream only carries them: one write for all jobs of a tick. A client that does not read is given no
more jobs, and after a while no more patience. However the connection ends, what was delivered over it and is not
settled is free at that moment, for whoever works next.
"""

import msgspec

from topics.api.calls import Call
from topics.api.errors import SlowConsumerError, status_of
from topics.api.live import Outlet
from topics.api.v0.bodies import query_number
from topics.api.v0.event_streams import check_accepts_events, start_events
from topics.api.v0.watch_frames import RETRY, error_event, event, heartbeat
from topics.core.config import TopicType
from topics.core.errors import InvalidRequestError, NotAQueueError, ShuttingDownError, TopicNotFoundError, TopicsError
from topics.engine.queues import ClaimedJob, WorkerRequest
from topics.http.streams import Stream

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


class WorkStream(Outlet):
    """The connection of one worker."""

    __slots__ = ("_call", "_leave", "_live", "_prefix", "_stream", "_topic_id", "_unsweep", "_worker")

    def __init__(self, call: Call, heartbeat_ms: int) -> None:
        live = call.live
        super().__init__(live.turns, live.patience)
        self._call = call
        self._live = live
        self._prefix = b'{"topic":%b,' % _encode(call.topic)
        self._stream = Stream.lost()
        self.idle_timeout_s = heartbeat_ms / 1000.0

    def open(self, request: WorkerRequest) -> None:
        """Registers the worker, which may be refused, and begins the answer. Jobs come from the next tick on."""
        call = self._call
        self._leave = self._live.connections.enter(call.key)
        try:
            self._worker = call.engine.queues.open_worker(call.topic, request, self._push, self._ended)
        except TopicsError:
            self._leave()
            raise
        self._unsweep = self._live.sweep.add(self)
        self._topic_id = call.engine.core.existing(call.topic).id
        self._live.paced.setdefault(self._topic_id, set()).add(self)
        call.waits.add(self)
        self._stream = stream = start_events(call)
        self._write(RETRY + heartbeat(self._live.clock.now_ms()))
        stream.on_drain(self.drained)
        stream.on_gone(self._over)

    # What the queue calls.

    def _push(self, jobs: list[ClaimedJob]) -> None:
        prefix = self._prefix
        self._write(b"".join([b"id: %d\n%b" % (job.seq, event(b"job", prefix + job.fragment[1:])) for job in jobs]))
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
        self._worker.pause()

    def drained(self) -> None:
        super().drained()
        if not self.closed:
            self._worker.resume()

    def pace(self, retry_after_ms: int) -> None:
        """Pressure makes jobs late: only advice, they come by themselves."""
        if not self.full:
            text = error_event(429, "work throttled under pressure", retry_after_ms, [self._call.topic])
            self._write(text)
            self.sent = True

    def waiting_bytes(self) -> int:
        return self._stream.buffered_bytes

    def beat(self) -> None:
        self._write(heartbeat(self._live.clock.now_ms()))

    def end_slow(self) -> None:
        self._end_with(SlowConsumerError())

    def end(self) -> None:
        """The server stops."""
        self._end_with(ShuttingDownError())

    def _end_with(self, error: TopicsError) -> None:
        """Tells why, and ends the stream and its connection, as its client may not read on."""
        if self.closed:
            return
        retry_after_ms = _RETRY_AFTER_STOP_MS if isinstance(error, ShuttingDownError) else None
        self._stream.write(error_event(status_of(error), error.message, retry_after_ms))
        self._over()
        self._stream.close(last=True)

    def _over(self) -> None:
        if self.closed:
            return
        self.close()
        self._call.waits.discard(self)
        others = self._live.paced[self._topic_id]
        others.discard(self)
        if not others:
            del self._live.paced[self._topic_id]
        self._unsweep()
        self._leave()
        self._worker.close()

    def _write(self, text: bytes) -> None:
        if not self._stream.write(text):
            self.filled()
