"""The routes of queues, with what they need and what they answer."""

from topics.api.app import Route
from topics.api.auth import Scope
from topics.api.openapi_operation import Operation, Parameter
from topics.api.v0.queue import queues, work
from topics.wire.queues import (
    AckAnswer,
    AckBody,
    ClaimAnswer,
    ClaimBody,
    ExtendAnswer,
    ExtendBody,
    LeasesAnswer,
    NackAnswer,
    NackBody,
    RedriveAnswer,
    RedriveBody,
)

_UNSIGNED: dict[str, object] = {"type": "integer", "minimum": 0}
_QUEUE = ("topic_not_found", "not_a_queue")
_CHANGES = (*_QUEUE, "read_only", "shutting_down")
_HELD = (*_CHANGES, "batch_too_large")

QUEUE_ROUTES = (
    Route(
        "POST", "/v0/topics/{topic}/claim", queues.claim, Scope.READ | Scope.WRITE, takes_body=True,
        operation=Operation(
            "claim", "Lease jobs to a worker.", {200: ClaimAnswer},
            (*_CHANGES, "corrupt_segment", "cold_store_unavailable"), ClaimBody, True,
        ),
    ),
    Route(
        "POST", "/v0/topics/{topic}/ack", queues.ack, Scope.WRITE, takes_body=True,
        operation=Operation("ack", "Jobs are done: delete them.", {200: AckAnswer}, _HELD, AckBody, True),
    ),
    Route(
        "POST", "/v0/topics/{topic}/nack", queues.nack, Scope.WRITE, takes_body=True,
        operation=Operation("nack", "Give jobs back, at once or later.", {200: NackAnswer}, _HELD, NackBody, True),
    ),
    Route(
        "POST", "/v0/topics/{topic}/extend", queues.extend, Scope.WRITE, takes_body=True,
        operation=Operation("extend", "Hold jobs for longer.", {200: ExtendAnswer}, _HELD, ExtendBody, True),
    ),
    Route(
        "POST", "/v0/topics/{topic}/redrive", queues.redrive, Scope.READ | Scope.WRITE | Scope.DELETE, takes_body=True,
        operation=Operation(
            "redrive", "Move dead letters back into their queue.", {200: RedriveAnswer},
            (*_CHANGES, "corrupt_segment", "cold_store_unavailable", "topic_full", "record_too_large"), RedriveBody,
        ),
    ),
    Route(
        "GET", "/v0/topics/{topic}/work", work.open_work, Scope.READ | Scope.WRITE, query_token=True,
        operation=Operation(
            "work", "A stream of events that jobs are pushed over.", {200: "text/event-stream"},
            (*_QUEUE, "not_acceptable", "shutting_down"),
            query=(
                Parameter("node", {"type": "string"}, "Who the jobs are leased to; needed."),
                Parameter("max", _UNSIGNED, "Jobs that are out at the same time; 1 unless told."),
                Parameter("lease_ms", _UNSIGNED, "How long each lease lasts; as in the config unless told."),
                Parameter("heartbeat_ms", _UNSIGNED, "How long nothing may be sent before a heartbeat is."),
                Parameter("token", {"type": "string"}, "The key, for browsers, which send no header here."),
            ),
        ),
    ),
    Route(
        "GET", "/v0/topics/{topic}/leases", queues.list_leases, Scope.READ,
        operation=Operation(
            "listLeases", "Who holds which job, in the order of the seqs.", {200: LeasesAnswer}, _QUEUE,
            query=(
                Parameter("after", _UNSIGNED, "Only behind this seq: the page's next_after."),
                Parameter("page_size", _UNSIGNED, "How many; 100 unless told, 1000 at most."),
                Parameter("node", {"type": "string"}, "Only what this worker holds."),
            ),
        ),
    ),
)  # fmt: skip
