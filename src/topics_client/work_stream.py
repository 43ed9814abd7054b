"""Jobs pushed over a work stream: requests, jobs, and resumption after a disconnect. No function here waits.

The stream has no cursor. When its connection breaks, the server releases its unsettled jobs, and the next stream begins
with the jobs that are ready then. So jobs queued here are dropped: other workers may have them by now.
"""

import math
from collections import deque

import msgspec

from topics_client.errors import ClientError, ConnectionFailed, ShuttingDown, refusal
from topics_client.requests import Request, topic_path
from topics_client.system import logger
from topics_client.transport.http1 import Response
from topics_client.transport.sse import EventParser, ServerEvent
from topics_protocol.records import Job
from topics_protocol.watch import ErrorEvent

_HEARTBEAT_MS = 15_000
# A stream is given up when it is quiet for two heartbeats and this.
_SLACK_S = 5.0
_CODES = {404: "topic_not_found", 409: "not_a_queue"}
"""An event has the status only; these are the ends after which coming back is in vain."""
_ADVISORY_STATUS = 429


class WorkStream:
    """The state of a work stream, used by both clients."""

    ended = False

    def __init__(self, target: str, topic: str, heartbeat_ms: int, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._target = target
        self.what = f"the work stream of {topic}"
        self._topic = topic
        self._quiet_s = 2 * heartbeat_ms / 1000 + _SLACK_S
        self._parser = EventParser()
        self._waiting: deque[Job] = deque()

    def next_item(self) -> Job | None:
        return self._waiting.popleft() if self._waiting else None

    def request(self) -> Request[None] | None:
        return None

    def made(self, answer: None) -> None:
        """Nothing is asked before."""

    def open(self) -> tuple[str, dict[str, str], float]:
        self._parser = EventParser()
        return self._target, {}, self._quiet_s

    def opened(self, response: Response) -> None:
        """The head of the answer is not used."""

    def feed(self, chunk: bytes) -> bool:
        events = self._parser.feed(chunk)
        for event in events:
            self._take(event)
        return bool(events)

    def broke(self, error: ClientError) -> ClientError | None:
        self._waiting.clear()
        return error

    def _take(self, event: ServerEvent) -> None:
        try:
            if event.name == "job":
                self._waiting.append(msgspec.json.decode(event.data, type=Job))
                return
            if event.name != "error":
                # A newer server knows more events.
                return
            error = msgspec.json.decode(event.data, type=ErrorEvent)
        except (ValueError, RecursionError) as problem:
            raise ConnectionFailed(f"an event cannot be understood: {problem}", maybe_done=False) from problem
        if error.code == _ADVISORY_STATUS:
            logger(__name__).info("%s slowed down by the server: %s", self.what, error.error)
            return
        wait_s = error.retry_after_ms / 1000 if isinstance(error.retry_after_ms, int) else None
        if error.code == 503:
            raise ShuttingDown(503, "shutting_down", error.error, None, wait_s)
        if error.code in _CODES:
            raise refusal(error.code, _CODES[error.code], error.error, {"topic": self._topic}, wait_s)
        raise ConnectionFailed(f"the server ended the stream: {error.error} ({error.code})", maybe_done=False)


def work(
    topic: str,
    node: str,
    *,
    max: int = 1,
    lease_ms: int | None = None,
    heartbeat_ms: int = _HEARTBEAT_MS,
    deadline_s: float = math.inf,
) -> WorkStream:
    """Iterates over jobs that the server pushes: at most `max` are leased at a time.

    Acknowledge with `ack` of the same `node`. When the loop is closed, or its connection breaks, everything that is not
    settled is free for others at that moment. A connection that breaks is made again for `deadline_s`, by default for
    ever.
    """
    query = {"node": node, "max": max, "lease_ms": lease_ms, "heartbeat_ms": heartbeat_ms}
    return WorkStream(topic_path(topic, "/work", query), topic, heartbeat_ms, deadline_s)
