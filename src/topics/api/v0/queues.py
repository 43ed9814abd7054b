"""Queues: claim, acknowledge, return, extend, redrive, and list leases. Jobs are added by ordinary appends."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from topics.api.app import Call, Operation, Parameter, Route
from topics.api.auth import ANYONE, Key, Scope, check_found
from topics.api.error_responses import SlowConsumerError, status_of
from topics.api.live import EventSink
from topics.api.v0.request_parsing import check_number, decode_body, query_number
from topics.api.v0.watch import RETRY, check_accepts_events, error_event, event, heartbeat, start_events
from topics.model.errors import InvalidRequestError, NotAQueueError, ShuttingDownError, TopicNotFoundError, TopicsError
from topics.model.limits import MAX_U64
from topics.model.topic_config import TopicType
from topics.queues.job_operations import DEAD, DONE, READY, STATES, JobChanged, JobPage, QueuePausedResult
from topics.queues.job_results import JobResult
from topics.queues.leases import (
    AckRequest,
    AckResult,
    ClaimedJob,
    ClaimRequest,
    ClaimResult,
    ExtendRequest,
    ExtendResult,
    HeldRequest,
    NackRequest,
    NackResult,
    RedriveRequest,
    RedriveResult,
    WorkerRequest,
)
from topics.queues.queue_state import Worker
from topics_protocol.queues import (
    AckAnswer,
    AckBody,
    CancelBody,
    ClaimAnswer,
    ClaimBody,
    ExtendAnswer,
    ExtendBody,
    JobAnswer,
    JobResultOut,
    JobsAnswer,
    LeaseOut,
    LeasesAnswer,
    NackAnswer,
    NackBody,
    QueueAnswer,
    QueueBody,
    RedriveAnswer,
    RedriveBody,
)

R = TypeVar("R")

PAGE_SIZE = 100
PAGE_SIZE_MAX = 1000
_encode = msgspec.json.Encoder().encode
_decode_claim = msgspec.json.Decoder(ClaimBody).decode
_decode_ack = msgspec.json.Decoder(AckBody).decode
_decode_nack = msgspec.json.Decoder(NackBody).decode
_decode_extend = msgspec.json.Decoder(ExtendBody).decode
_decode_redrive = msgspec.json.Decoder(RedriveBody).decode
_decode_cancel = msgspec.json.Decoder(CancelBody).decode
_decode_queue = msgspec.json.Decoder(QueueBody).decode


def claim(call: Call) -> None:
    body = decode_body("claim", _decode_claim, call.exchange.body)
    request = ClaimRequest(node=body.node, max=body.max, lease_ms=body.lease_ms)
    cancel = call.engine.queues.claim(call.topic, request, _answering(call, _answer_claim))
    if not call.exchange.answered:
        # It waits for its window or for the log. Jobs of a worker that has disconnected meanwhile are released
        # immediately.
        call.on_disconnect(cancel)


def _answer_claim(call: Call, outcome: ClaimResult) -> None:
    jobs = outcome.jobs
    encoded = b'{"topic":%b,"claimed":[%b],"count":%d,"ready":%d}' % (
        _encode(outcome.topic), outcome.body, len(jobs), outcome.ready,
    )  # fmt: skip
    call.reply(200, encoded, _measured(outcome.wal_append_ms, outcome.fsync_ms))


def ack(call: Call) -> None:
    body = decode_body("ack", _decode_ack, call.exchange.body)
    _check_seqs("ack", body.seqs)
    request: HeldRequest
    if body.result:
        # A copy: the text would keep the whole request alive.
        request = AckRequest(node=body.node, seqs=body.seqs, lease_ids=body.lease_ids, result=bytes(body.result))
    else:
        request = HeldRequest(node=body.node, seqs=body.seqs, lease_ids=body.lease_ids)
    call.engine.queues.ack(call.topic, request, _answering(call, _answer_ack))


def _answer_ack(call: Call, outcome: AckResult) -> None:
    # An `AckAnswer`, formatted directly, because workers get it most often.
    encoded = b'{"topic":%b,"acked":%d,"skipped":%b,"ready":%d,"in_flight":%d}' % (
        _encode(outcome.topic), outcome.acked, _encode(outcome.skipped), outcome.ready, outcome.in_flight,
    )  # fmt: skip
    call.reply(200, encoded, _measured(outcome.wal_append_ms, outcome.fsync_ms))


def nack(call: Call) -> None:
    body = decode_body("nack", _decode_nack, call.exchange.body)
    _check_seqs("nack", body.seqs)
    request = NackRequest(
        node=body.node, seqs=body.seqs, lease_ids=body.lease_ids, delay_ms=body.delay_ms, reason=body.reason,
        fatal=body.fatal,
    )  # fmt: skip
    call.engine.queues.nack(call.topic, request, _answering(call, _answer_nack))


def _answer_nack(call: Call, outcome: NackResult) -> None:
    answer = NackAnswer(
        topic=outcome.topic, nacked=outcome.nacked, skipped=outcome.skipped, ready=outcome.ready,
        in_flight=outcome.in_flight, dead_lettered=outcome.dead_lettered,
    )  # fmt: skip
    call.reply(200, _encode(answer), _measured(outcome.wal_append_ms, outcome.fsync_ms))


def extend(call: Call) -> None:
    body = decode_body("extend", _decode_extend, call.exchange.body)
    _check_seqs("extend", body.seqs)
    request = ExtendRequest(node=body.node, seqs=body.seqs, lease_ids=body.lease_ids, lease_ms=body.lease_ms)
    call.engine.queues.extend(call.topic, request, _answering(call, _answer_extend))


def _answer_extend(call: Call, outcome: ExtendResult) -> None:
    answer = ExtendAnswer(
        topic=outcome.topic, extended=outcome.extended, skipped=outcome.skipped, deadlines=outcome.deadlines
    )
    call.reply(200, _encode(answer), _measured(outcome.wal_append_ms, outcome.fsync_ms))


def redrive(call: Call) -> None:
    body = call.exchange.body
    asked = decode_body("redrive", _decode_redrive, body) if body else RedriveBody()
    # The records are removed from that topic, whether the request or the config names it.
    call.key.check(Scope.READ, asked.source)
    config = call.engine.existing(call.topic).config
    if config.type is not TopicType.QUEUE:
        raise NotAQueueError(call.topic)
    if asked.source is None and config.dead_letter is not None:
        check_found(call.key, (config.dead_letter,), "the dead letter topic")
    request = RedriveRequest(max=asked.max, source=asked.source)
    call.engine.queues.redrive(call.topic, request, _answering(call, _answer_redrive))


def _answer_redrive(call: Call, outcome: RedriveResult) -> None:
    answer = RedriveAnswer(
        topic=outcome.topic, source=outcome.source, moved=outcome.moved, first_seq=outcome.first_seq,
        last_seq=outcome.last_seq, more=outcome.more,
    )  # fmt: skip
    call.reply(200, _encode(answer), _measured(outcome.wal_append_ms, outcome.fsync_ms))


def list_leases(call: Call) -> None:
    query = call.query
    after = query_number(query.get("after"), "after", 0, MAX_U64)
    page_size = call.number("page_size", PAGE_SIZE, PAGE_SIZE_MAX)
    page = call.engine.queues.list_leases(call.topic, after, page_size, query.get("node") or None)
    leases = [
        LeaseOut(seq=lease.seq, node=lease.node, deadline=lease.deadline, deliveries=lease.deliveries)
        for lease in page.leases
    ]
    next_after = msgspec.UNSET if page.next_after is None else page.next_after
    call.reply(200, _encode(LeasesAnswer(topic=page.topic, leases=leases, next_after=next_after)))


def list_jobs(call: Call) -> None:
    """Answers with a page of the jobs of one state."""
    query = call.query
    state = query.get("state") or READY
    if state not in STATES:
        raise InvalidRequestError(f"query state: must be one of {', '.join(STATES)}", field="state")
    if state == DEAD:
        _check_dead_letter_topic(call)
    after = query_number(query.get("cursor"), "cursor", 0, MAX_U64)
    limit = call.number("limit", PAGE_SIZE, PAGE_SIZE_MAX)

    def answer(call: Call, page: JobPage) -> None:
        more = b"" if page.next_seq is None else b',"next_cursor":"%d"' % page.next_seq
        call.reply(200, b'{"topic":%b,"state":"%b","jobs":[%b]%b}' % (
            _encode(page.topic), state.encode(), page.body, more,
        ))  # fmt: skip

    call.engine.queues.list_jobs(
        call.topic, state, _answering(call, answer), tag=query.get("tag"), after=after, limit=limit
    )


def _check_dead_letter_topic(call: Call) -> None:
    """Raises unless the key may use the dead-letter topic in the config of a queue."""
    config = call.engine.existing(call.topic).config
    if config.type is not TopicType.QUEUE:
        raise NotAQueueError(call.topic)
    if config.dead_letter is not None:
        check_found(call.key, (config.dead_letter,), "the dead letter topic")


def _change_job(call: Call, verb: str, dead: bool = False) -> None:
    seq = query_number(call.part, "seq", 0, MAX_U64)
    call.engine.queues.change_job(call.topic, seq, verb, _answering(call, _answer_job), dead)


def _answer_job(call: Call, outcome: JobChanged) -> None:
    answer = JobAnswer(topic=outcome.topic, seq=outcome.seq, changed=outcome.changed, state=outcome.state)
    call.reply(200, _encode(answer), _measured(outcome.wal_append_ms, outcome.fsync_ms))


def retry_job(call: Call) -> None:
    """Moves one dead letter back into its queue."""
    _check_dead_letter_topic(call)
    _change_job(call, "retry")


def cancel_job(call: Call) -> None:
    """Deletes a job, or a dead letter."""
    raw = call.exchange.body
    body = decode_body("cancel", _decode_cancel, raw) if raw else CancelBody()
    if body.dead:
        _check_dead_letter_topic(call)
    _change_job(call, "cancel", body.dead)


def promote_job(call: Call) -> None:
    """Makes a delayed job ready."""
    _change_job(call, "promote")


def release_job(call: Call) -> None:
    """Ends the lease of a job."""
    _change_job(call, "release")


def put_queue(call: Call) -> None:
    """Pauses or resumes a queue."""
    body = decode_body("queue", _decode_queue, call.exchange.body)

    def answer(call: Call, outcome: QueuePausedResult) -> None:
        encoded = _encode(QueueAnswer(topic=outcome.topic, paused=outcome.paused))
        call.reply(200, encoded, _measured(outcome.wal_append_ms, outcome.fsync_ms))

    call.engine.queues.pause(call.topic, body.paused, _answering(call, answer))


def _check_seqs(what: str, seqs: Sequence[int]) -> None:
    if seqs:
        check_number(what, "seqs", max(seqs), MAX_U64)


def _answering(call: Call, answer: Callable[[Call, R], None]) -> Callable[[R | TopicsError], None]:
    # No nested function: its signature would be evaluated again for every request.
    return partial(_reply_outcome, call, answer)


def _reply_outcome(call: Call, answer: Callable[[Call, R], None], outcome: R | TopicsError) -> None:
    if isinstance(outcome, TopicsError):
        call.refuse(outcome)
    else:
        answer(call, outcome)


def _measured(write_ms: float, sync_ms: float) -> bytes:
    return b',"wal_append_ms":%.3f,"fsync_ms":%.3f' % (write_ms, sync_ms)


# `GET /v0/topics/{topic}/work`: jobs pushed to a worker over an event stream.
#
# The engine keeps up to `max` jobs leased to the connection and delivers another for each that is acknowledged,
# returned or lost. The stream only transports them: one write for all jobs of a tick. A client that does not read gets
# no more jobs, and is disconnected after a while. When the connection ends, for any reason, its unsettled deliveries
# are released immediately for other workers.

HEARTBEAT_MS = 15_000
_RETRY_AFTER_STOP_MS = 2_000


def open_work(call: Call) -> None:
    """Opens the stream. All checks are done before it begins."""
    request, heartbeat_ms = _asked(call)
    check_accepts_events(call.exchange.head)
    _check_queue(call)
    if call.exchange.head.method == "HEAD":
        start_events(call).close()
        return
    if call.key is ANYONE:
        # Otherwise an image element of a page could claim jobs.
        check_accepts_events(call.exchange.head, by_name=True)
    WorkStream(call, heartbeat_ms).open(request)


def _asked(call: Call) -> tuple[WorkerRequest, int]:
    query = call.query
    node = query.get("node")
    if not node:
        raise InvalidRequestError("query node: the name of the worker is required", field="node")
    lease_ms = query.get("lease_ms")
    request = WorkerRequest(
        node=node,
        max=query_number(query.get("max"), "max", 1),
        lease_ms=query_number(lease_ms, "lease_ms", 0) if lease_ms else None,
    )
    heartbeat_ms = query_number(query.get("heartbeat_ms"), "heartbeat_ms", HEARTBEAT_MS)
    return request, call.live.limits.clamp_heartbeat_ms(heartbeat_ms)


def _check_queue(call: Call) -> None:
    if call.engine.existing(call.topic).config.type is not TopicType.QUEUE:
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
        """Registers the worker, which may be refused, and begins the answer.

        Jobs are delivered from the next tick on.
        """
        call = self._call
        try:
            self._worker = call.engine.queues.open_worker(call.topic, request, self._push, self._ended)
        except TopicsError:
            self.over()
            raise
        self._topic_id = call.engine.existing(call.topic).id
        self._live.paced.setdefault(self._topic_id, set()).add(self)
        self.attach(start_events(call), RETRY + heartbeat(self._live.clock.now_ms()))

    # Called by the queue.

    def _push(self, jobs: list[ClaimedJob]) -> None:
        prefix = self._prefix
        self.write(b"".join([b"id: %d\n%b" % (job.seq, event(b"job", prefix + job.fragment[1:])) for job in jobs]))
        self.sent = True

    def _ended(self, error: TopicsError) -> None:
        """Called when the queue was deleted, or the engine stops."""
        if isinstance(error, TopicNotFoundError):
            try:
                _check_queue(self._call)
            except NotAQueueError as other:
                # A topic of that name exists again, but it is not a queue.
                error = other
            except TopicNotFoundError:
                pass
        self._end_with(error)

    # Called by the sweep, the transport and the server.

    def filled(self) -> None:
        super().filled()
        if self._worker is not None:
            self._worker.pause()

    def drained(self) -> None:
        super().drained()
        if self._worker is not None and not self.closed:
            self._worker.resume()

    def pace(self, retry_after_ms: int) -> None:
        """Notifies the worker that pressure delays jobs, which are delivered later."""
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


# Results of jobs.

_NULL = msgspec.Raw(b"null")


def get_result(call: Call) -> None:
    seq = query_number(call.part, "seq", 0, MAX_U64)
    wait_ms = call.engine.limits.clamp_wait_ms(query_number(call.query.get("wait_ms"), "wait_ms", 0))
    found = call.engine.queues.result(call.topic, seq)
    if found.state == DONE or not wait_ms:
        _answer_result(call, found)
    else:
        _ResultPoll(call, seq, wait_ms / 1000.0)


class _ResultPoll:
    """A request that waits for a result; ended by the result, its timer, its client or a stopping server."""

    def __init__(self, call: Call, seq: int, wait_s: float) -> None:
        self._call = call
        self._seq = seq
        self._cancel: Callable[[], None] | None = call.engine.queues.wait_for_result(call.topic, seq, self._gone)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self.end)
        call.waits.add(self)
        call.on_disconnect(self._over)

    @property
    def key(self) -> Key:
        """The key of the request."""
        return self._call.key

    def _gone(self) -> None:
        # The acknowledgement that ends it is not over yet.
        self._call.engine.defer(self.end)

    def end(self) -> None:
        """Answers immediately with the current result."""
        if self._cancel is None:
            return
        self._over()
        try:
            _answer_result(self._call, self._call.engine.queues.result(self._call.topic, self._seq))
        except TopicsError as error:
            self._call.refuse(error)

    def _over(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
            self._timer.cancel()
            self._call.waits.discard(self)


def _answer_result(call: Call, found: JobResult) -> None:
    finished = found.finished
    answer = JobResultOut(
        topic=call.topic, seq=found.seq, state=found.state,
        result=_NULL if finished is None else msgspec.Raw(finished.result),
        finished_ms=None if finished is None else finished.at_ms, node=None if finished is None else finished.node,
    )  # fmt: skip
    call.reply(200, _encode(answer))


# The routes of queues, with their requirements and answers.

_UNSIGNED: dict[str, object] = {"type": "integer", "minimum": 0}
_QUEUE = ("topic_not_found", "not_a_queue")
_CHANGES = (
    *_QUEUE,
    "read_only",
    "shutting_down",
    "remote_unavailable",
    "no_backup_place",
    "lease_ended",
    "not_primary",
)
_HELD = (*_CHANGES, "batch_too_large")
_JOB = (*_CHANGES, "job_not_found")

QUEUE_ROUTES = (
    Route(
        "POST", "/v0/topics/{topic}/claim", claim, Scope.READ | Scope.WRITE, takes_body=True,
        operation=Operation(
            "claim", "Lease jobs to a worker.", {200: ClaimAnswer},
            (*_CHANGES, "corrupt_segment", "cold_store_unavailable"), ClaimBody, True,
        ),
    ),
    Route(
        "POST", "/v0/topics/{topic}/ack", ack, Scope.WRITE, takes_body=True,
        operation=Operation("ack", "Jobs are done: delete them.", {200: AckAnswer}, _HELD, AckBody, True),
    ),
    Route(
        "POST", "/v0/topics/{topic}/nack", nack, Scope.WRITE, takes_body=True,
        operation=Operation("nack", "Give jobs back, at once or later.", {200: NackAnswer}, _HELD, NackBody, True),
    ),
    Route(
        "POST", "/v0/topics/{topic}/extend", extend, Scope.WRITE, takes_body=True,
        operation=Operation("extend", "Hold jobs for longer.", {200: ExtendAnswer}, _HELD, ExtendBody, True),
    ),
    Route(
        "POST", "/v0/topics/{topic}/redrive", redrive, Scope.READ | Scope.WRITE | Scope.DELETE, takes_body=True,
        operation=Operation(
            "redrive", "Move dead letters back into their queue.", {200: RedriveAnswer},
            (*_CHANGES, "corrupt_segment", "cold_store_unavailable", "topic_full", "record_too_large"), RedriveBody,
        ),
    ),
    Route(
        "GET", "/v0/topics/{topic}/jobs", list_jobs, Scope.READ,
        operation=Operation(
            "listJobs", "List the jobs of a queue in one state, by seq.", {200: JobsAnswer},
            (*_QUEUE, "corrupt_segment", "cold_store_unavailable"),
            query=(
                Parameter("state", {"type": "string", "enum": list(STATES)}, "State of the jobs. Default: `ready`."),
                Parameter("tag", {"type": "string"}, "Only jobs with this tag."),
                Parameter("limit", _UNSIGNED, "Most jobs of the page, clamped to 1 to 1000. Default: 100."),
                Parameter("cursor", {"type": "string"}, "`next_cursor` of the previous page."),
            ),
        ),
    ),
    Route(
        "GET", "/v0/topics/{topic}/jobs/{seq}/result", get_result, Scope.READ,
        operation=Operation(
            "getResult", "The result of a job, or its state while it is in the queue.", {200: JobResultOut},
            ("topic_not_found", "not_a_queue", "job_not_found"),
            query=(
                Parameter("wait_ms", {"type": "integer", "minimum": 0},
                    "How long to wait until the job is done, at most 30000. Default: 0."),
            ),
        ),
    ),
    Route(
        "POST", "/v0/topics/{topic}/jobs/{seq}/retry", retry_job, Scope.READ | Scope.WRITE | Scope.DELETE,
        takes_body=True,
        operation=Operation(
            "retryJob", "Move one dead letter back into its queue.", {200: JobAnswer},
            (*_JOB, "corrupt_segment", "cold_store_unavailable", "topic_full", "record_too_large"),
        ),
    ),
    Route(
        "POST", "/v0/topics/{topic}/jobs/{seq}/cancel", cancel_job, Scope.DELETE, takes_body=True,
        operation=Operation(
            "cancelJob", "Delete a job in any state.", {200: JobAnswer},
            (*_JOB, "corrupt_segment", "cold_store_unavailable"), CancelBody,
        ),
    ),
    Route(
        "POST", "/v0/topics/{topic}/jobs/{seq}/promote", promote_job, Scope.WRITE, takes_body=True,
        operation=Operation("promoteJob", "Make a delayed job ready now.", {200: JobAnswer}, _JOB),
    ),
    Route(
        "POST", "/v0/topics/{topic}/jobs/{seq}/release", release_job, Scope.WRITE, takes_body=True,
        operation=Operation("releaseJob", "End the lease of a job.", {200: JobAnswer}, _JOB),
    ),
    Route(
        "PUT", "/v0/topics/{topic}/queue", put_queue, Scope.ADMIN, takes_body=True,
        operation=Operation(
            "pauseQueue", "Pause a queue, or resume it.", {200: QueueAnswer}, _CHANGES, QueueBody, True
        ),
    ),
    Route(
        "GET", "/v0/topics/{topic}/work", open_work, Scope.READ | Scope.WRITE, query_token=True,
        operation=Operation(
            "work", "A stream of events that jobs are pushed over.", {200: "text/event-stream"},
            (*_QUEUE, "not_acceptable", "shutting_down"),
            query=(
                Parameter("node", {"type": "string"}, "Name of the worker; required."),
                Parameter("max", _UNSIGNED,
                    "Maximum of jobs in flight; 0 is 1, more than `max_claim` is clamped. Default: 1."),
                Parameter("lease_ms", _UNSIGNED, "Length of a lease. Default: that of the config."),
                Parameter("heartbeat_ms", _UNSIGNED,
                    "Silence before a heartbeat, clamped to 1000 to 60000. Default: 15000."),
                Parameter("token", {"type": "string"}, "A short-lived token, or the key, for browsers."),
            ),
        ),
    ),
    Route(
        "GET", "/v0/topics/{topic}/leases", list_leases, Scope.READ,
        operation=Operation(
            "listLeases", "List the leases of a queue, by seq.", {200: LeasesAnswer}, _QUEUE,
            query=(
                Parameter("after", _UNSIGNED, "Only jobs with a higher seq: `next_after` of the previous page."),
                Parameter("page_size", _UNSIGNED, "Size of the page, clamped to 1 to 1000. Default: 100."),
                Parameter("node", {"type": "string"}, "Only leases of this worker."),
            ),
        ),
    ),
)  # fmt: skip
