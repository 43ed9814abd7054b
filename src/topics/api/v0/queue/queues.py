"""Queues: claim, acknowledge, give back, extend, redrive, and who holds what. Jobs come in by an ordinary append."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from topics.api.auth import Scope
from topics.api.calls import Call
from topics.api.isolation import check_found
from topics.api.v0.bodies import check_number, decode_body, query_number
from topics.core.config import TopicType
from topics.core.errors import NotAQueueError, TopicsError
from topics.core.limits import MAX_U64
from topics.engine.queues.messages import (
    AckResult,
    ClaimRequest,
    ClaimResult,
    ExtendRequest,
    ExtendResult,
    HeldRequest,
    NackRequest,
    NackResult,
    RedriveRequest,
    RedriveResult,
)
from topics.wire.queues import (
    AckBody,
    ClaimBody,
    ExtendAnswer,
    ExtendBody,
    LeaseOut,
    LeasesAnswer,
    NackAnswer,
    NackBody,
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


def claim(call: Call) -> None:
    body = decode_body("claim", _decode_claim, call.exchange.body)
    request = ClaimRequest(node=body.node, max=body.max, lease_ms=body.lease_ms)
    cancel = call.engine.queues.claim(call.topic, request, _answering(call, _answer_claim))
    if not call.exchange.answered:
        # It waits for its window or for the log. Jobs for a worker that went away meanwhile are free again at once.
        call.on_gone(cancel)


def _answer_claim(call: Call, outcome: ClaimResult) -> None:
    jobs = outcome.jobs
    encoded = b'{"topic":%b,"claimed":[%b],"count":%d,"ready":%d}' % (
        _encode(outcome.topic), outcome.body, len(jobs), outcome.ready,
    )  # fmt: skip
    call.reply(200, encoded, _measured(outcome.wal_append_ms, outcome.fsync_ms))


def ack(call: Call) -> None:
    body = decode_body("ack", _decode_ack, call.exchange.body)
    _check_seqs("ack", body.seqs)
    request = HeldRequest(node=body.node, seqs=body.seqs, lease_ids=body.lease_ids)
    call.engine.queues.ack(call.topic, request, _answering(call, _answer_ack))


def _answer_ack(call: Call, outcome: AckResult) -> None:
    # An `AckAnswer`, spelled out: a worker gets one for all it does.
    encoded = b'{"topic":%b,"acked":%d,"skipped":%b,"ready":%d,"in_flight":%d}' % (
        _encode(outcome.topic), outcome.acked, _encode(outcome.skipped), outcome.ready, outcome.in_flight,
    )  # fmt: skip
    call.reply(200, encoded, _measured(outcome.wal_append_ms, outcome.fsync_ms))


def nack(call: Call) -> None:
    body = decode_body("nack", _decode_nack, call.exchange.body)
    _check_seqs("nack", body.seqs)
    request = NackRequest(node=body.node, seqs=body.seqs, lease_ids=body.lease_ids, delay_ms=body.delay_ms)
    call.engine.queues.nack(call.topic, request, _answering(call, _answer_nack))


def _answer_nack(call: Call, outcome: NackResult) -> None:
    answer = NackAnswer(
        topic=outcome.topic, nacked=outcome.nacked, skipped=outcome.skipped, ready=outcome.ready,
        in_flight=outcome.in_flight,
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
    # The records are taken out of that topic, whether its name stands in the request or in the config.
    call.key.check(Scope.READ, asked.source)
    config = call.engine.core.existing(call.topic).config
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


def _check_seqs(what: str, seqs: Sequence[int]) -> None:
    if seqs:
        check_number(what, "seqs", max(seqs), MAX_U64)


def _answering(call: Call, answer: Callable[[Call, R], None]) -> Callable[[R | TopicsError], None]:
    # No function within this one: what its parameters are would be worked out anew for every request.
    return partial(_tell, call, answer)


def _tell(call: Call, answer: Callable[[Call, R], None], outcome: R | TopicsError) -> None:
    if isinstance(outcome, TopicsError):
        call.refuse(outcome)
    else:
        answer(call, outcome)


def _measured(write_ms: float, sync_ms: float) -> bytes:
    return b',"wal_append_ms":%.3f,"fsync_ms":%.3f' % (write_ms, sync_ms)
