"""Transactions: begin, get, stage, commit, abort.

A key may stage and commit to topics that it may write. Transaction ids are separate from topic names: every tenant, the
keys with the same prefixes, has a separate set. An open transaction belongs to the key that began it.
"""

from functools import partial
from typing import Annotated

import msgspec

from topics.api.app import Call, Operation, Route
from topics.api.auth import Scope
from topics.api.chunked_response import check_marked, preencode, read_records, run_task
from topics.api.v0.appends import allowed_config, decode_records
from topics.api.v0.request_parsing import decode_body
from topics.http.request_body import LargeBody
from topics.model.errors import TopicsError
from topics.model.limits import MAX_PRIORITY, MIB, MIN_PRIORITY
from topics.model.records import Records, check_batch
from topics.model.topic_config import TRANSACTIONS_TOPIC, TopicConfigPatch
from topics.queues.queue_frames import NO_TERMS, JobTerms
from topics.system.fair_scheduler import Task
from topics.transactions.transaction_state import (
    BeginRequest,
    StagedResult,
    StageRequest,
    TransactionRef,
    TransactionResult,
    scoped,
)
from topics_protocol.transactions import (
    AbortBody,
    CommitBody,
    PlacedOut,
    Sequence,
    StageAnswer,
    TransactionAnswer,
    TransactionBody,
)


class StageBody(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Records for one topic, kept unseen until the transaction is committed."""

    sequence: Sequence
    attempt: str | None = None
    part: str
    topic: str
    records: Records
    node: str | None = None
    create: bool | None = None
    config: TopicConfigPatch | None = None
    delay_ms: Annotated[int, msgspec.Meta(ge=0)] = 0
    run_at: Annotated[int, msgspec.Meta(ge=0)] | None = None
    priority: Annotated[int, msgspec.Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)] = 0


_encode = msgspec.json.Encoder().encode
_decode_begin = msgspec.json.Decoder(TransactionBody).decode
_decode_stage = msgspec.json.Decoder(StageBody).decode
_decode_commit = msgspec.json.Decoder(CommitBody).decode
_decode_abort = msgspec.json.Decoder(AbortBody).decode


def begin(call: Call) -> None:
    body = decode_body("transaction", _decode_begin, call.exchange.body)
    known = call.engine.transactions.table.open.get(scoped(call.key.tenant, body.id))
    attempt = known.attempt if known is not None else None

    def done(outcome: TransactionResult | TopicsError) -> None:
        begun = not isinstance(outcome, TopicsError) and outcome.state == "open" and outcome.attempt != attempt
        _answer(call, outcome, 201 if begun else 200)

    request = BeginRequest(
        id=body.id,
        sequence=body.sequence,
        attempt=body.attempt,
        timeout_ms=body.timeout_ms,
        owner=call.key.owner,
        tenant=call.key.tenant,
    )
    call.engine.transactions.begin(request, partial(_permit, call), done)


def look(call: Call) -> None:
    _answer(call, call.engine.transactions.find(call.topic, call.key.owner, partial(_permit, call), call.key.tenant))


def stage(call: Call) -> None:
    if call.exchange.large_body is not None:
        run_task(call, _stage_large(call, call.exchange.large_body), call.refuse)
        return
    _stage(call, decode_body("stage", _decode_stage, call.exchange.body))


def _stage_large(call: Call, large: LargeBody) -> Task:
    rest, items = yield from read_records(large, "stage", call.engine.limits, decode_records)
    body = decode_body("stage", _decode_stage, rest)
    check_marked("stage", body.records, items)
    check_batch(items, call.engine.limits, body.node)
    records = yield from preencode(call.engine, TRANSACTIONS_TOPIC, items, body.node, checks=True)
    _stage(call, msgspec.structs.replace(body, records=records))


def _stage(call: Call, body: StageBody) -> None:
    _permit(call, body.topic)
    config = None if body.config is None else allowed_config(call.key, call.engine, body.topic, body.config)

    def done(outcome: StagedResult | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            call.refuse(outcome)
            return
        answer = StageAnswer(
            id=outcome.id, sequence=outcome.sequence, attempt=outcome.attempt, part=outcome.part, topic=outcome.topic,
            count=outcome.count, records=outcome.records, bytes=outcome.bytes,
        )  # fmt: skip
        call.reply(200, _encode(answer))

    terms = JobTerms(body.delay_ms, body.run_at, body.priority)
    request = StageRequest(
        ref=_ref(call, body.sequence, body.attempt), topic=body.topic, records=body.records, part=body.part,
        node=body.node, create=body.create, config=config, terms=None if terms == NO_TERMS else terms,
    )  # fmt: skip
    call.engine.transactions.stage(request, done)


def commit(call: Call) -> None:
    body = decode_body("commit", _decode_commit, call.exchange.body)
    ref = _ref(call, body.sequence, body.attempt)
    permit, answer = partial(_permit, call), partial(_answer, call)
    call.engine.transactions.commit(ref, body.parts, permit, answer, body.conditions)


def abort(call: Call) -> None:
    body = decode_body("abort", _decode_abort, call.exchange.body)
    call.engine.transactions.abort(_ref(call, body.sequence, body.attempt), partial(_answer, call))


def _ref(call: Call, sequence: int, attempt: str | None) -> TransactionRef:
    return TransactionRef(
        id=call.topic, sequence=sequence, attempt=attempt, owner=call.key.owner, tenant=call.key.tenant
    )


def _permit(call: Call, topic: str) -> None:
    call.key.check(Scope.WRITE, topic)


def _answer(call: Call, outcome: TransactionResult | TopicsError, status: int = 200) -> None:
    if isinstance(outcome, TopicsError):
        call.refuse(outcome)
        return
    if outcome.state == "committed":
        placed = [
            PlacedOut(topic=one.topic, first_seq=one.first_seq, last_seq=one.last_seq, count=one.count)
            for one in outcome.topics
        ]
        answer = TransactionAnswer(
            id=outcome.id, sequence=outcome.sequence, state=outcome.state, records=outcome.records,
            deduped=outcome.deduped, topics=placed,
        )  # fmt: skip
    elif outcome.state == "open":
        answer = TransactionAnswer(
            id=outcome.id, sequence=outcome.sequence, state=outcome.state, attempt=outcome.attempt or msgspec.UNSET,
            parts=outcome.parts, records=outcome.records, bytes=outcome.bytes, expires_ts=outcome.expires_ts,
        )  # fmt: skip
    else:
        answer = TransactionAnswer(id=outcome.id, sequence=outcome.sequence, state=outcome.state, records=0)
    call.reply(status, _encode(answer))


# The routes of transactions, with their requirements and answers.

_WRITES = ("read_only", "shutting_down")
_OPEN = ("transaction_not_found", "transaction_foreign", "transaction_fenced", "transaction_sequence",
         "transaction_busy", *_WRITES)  # fmt: skip
_REFUSED = ("topic_not_found", "topic_full", "stream_closed", "stream_gone")

TRANSACTION_ROUTES = (
    Route(
        "POST", "/v0/transactions", begin, Scope.WRITE, takes_body=True,
        operation=Operation(
            "beginTransaction", "Begin an attempt at a transaction, or join it.",
            {200: TransactionAnswer, 201: TransactionAnswer},
            ("transaction_foreign", "transaction_fenced", "transaction_sequence", "transaction_busy", *_WRITES),
            TransactionBody, True,
        ),
    ),
    Route(
        "GET", "/v0/transactions/{transaction}", look, Scope.WRITE, free_name=True,
        operation=Operation(
            "getTransaction", "The open transaction of an id, or its last commit.", {200: TransactionAnswer},
            ("transaction_not_found", "transaction_foreign"),
        ),
    ),
    Route(
        "POST", "/v0/transactions/{transaction}/stage", stage, Scope.WRITE, takes_body=True,
        free_name=True, large_body=True,
        operation=Operation(
            "stage", "Keep records unseen until the transaction is committed.", {200: StageAnswer},
            ("batch_too_large", "record_too_large", "transaction_too_large", *_REFUSED, *_OPEN), StageBody, True,
        ),
    ),
    Route(
        "POST", "/v0/transactions/{transaction}/commit", commit, Scope.WRITE, takes_body=True,
        free_name=True, body_bytes_max=4 * MIB,
        operation=Operation(
            "commitTransaction", "Make all that is staged visible at once, once.", {200: TransactionAnswer},
            (
                "record_too_large", "transaction_incomplete", "corrupt_segment", "head_mismatch", "fence_mismatch",
                *_REFUSED, *_OPEN,
            ),
            CommitBody, True,
        ),
    ),
    Route(
        "POST", "/v0/transactions/{transaction}/abort", abort, Scope.WRITE, takes_body=True,
        free_name=True,
        operation=Operation(
            "abortTransaction", "End a transaction; what was staged is gone.", {200: TransactionAnswer}, _OPEN,
            AbortBody, True,
        ),
    ),
)  # fmt: skip
