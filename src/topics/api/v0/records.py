"""Records: append, diff with long-poll, delete."""

from functools import partial

import msgspec

from topics.api.app import Call
from topics.api.chunked_response import check_marked, is_heavy, preencode, read_records, run_task
from topics.api.live import Frame, LongPoll, Projection
from topics.api.live.frames import Done
from topics.api.live.transports import found_frame
from topics.api.request_batching import back_off
from topics.api.v0.appends import (
    decode_append,
    decode_records,
    encode_appended,
    throttled,
    with_config_of,
    with_key,
)
from topics.api.v0.request_parsing import begin_elsewhere, check_number, decode_body
from topics.api.v0.watch import SHARED
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, ReadResult, execute_read
from topics.engine.results import AppendResult, DeleteResult
from topics.engine.topic import Topic
from topics.http.request_body import LargeBody
from topics.model.errors import TopicsError
from topics.model.limits import MAX_U64, Limits
from topics.model.records import Batch, check_batch
from topics.model.router_rules import parse_selector
from topics.model.topic_config import check_inline_config
from topics.search.query.schemaless_filter import free_filter
from topics.search.service.search_service import StreamSearch
from topics.system.fair_scheduler import Task
from topics_protocol.v0 import DeleteAnswer, DeleteBody, DiffBody

_encode = msgspec.json.Encoder().encode
_decode_diff = msgspec.json.Decoder(DiffBody).decode
_decode_delete = msgspec.json.Decoder(DeleteBody).decode


def append(call: Call) -> None:
    if call.exchange.large_body is not None:
        run_task(call, _append_large(call, call.exchange.large_body), call.refuse)
        return
    # Neither the body nor its values are kept until the answer. Memory that is freed immediately is reused by the next
    # request while it is in the processor's cache, which saves a third of the cost of a batch.
    body, call.exchange.body = call.exchange.body, b""
    batch = decode_append(body)
    if len(batch.records) > 1:
        back_off(call.exchange)
    if is_heavy(batch.records):
        run_task(call, _append_preencoded(call, batch, body), call.refuse)
    else:
        _append(call, batch, body)


def _append_large(call: Call, large: LargeBody) -> Task:
    rest, records = yield from read_records(large, "append", call.engine.limits, decode_records)
    batch = decode_append(rest)
    check_marked("append", batch.records, records)
    yield from _append_preencoded(call, msgspec.structs.replace(batch, records=records), rest)


def _append_preencoded(call: Call, batch: Batch, body: bytes) -> Task:
    batch = _with_key(call, batch)
    check_batch(batch.records, call.engine.limits, batch.node, batch.idempotency_key)
    records = yield from preencode(call.engine, call.topic, batch.records, batch.node, checks=True)
    _append(call, msgspec.structs.replace(batch, records=records), body)


def _append(call: Call, batch: Batch, body: bytes) -> None:
    """`body` is the request body of the batch without its records."""
    batch = _with_key(call, batch)
    if batch.config is not None:
        if call.flag("strict", call.engine.limits.strict_config):
            check_inline_config(body)
        batch = with_config_of(call.key, call.engine, call.topic, batch)
    call.engine.append(call.topic, batch, partial(_answer_append, call))


def _answer_append(call: Call, outcome: AppendResult | TopicsError) -> None:
    if isinstance(outcome, TopicsError):
        call.refuse(outcome)
        return
    return_seqs = call.flag("return_seqs", True)
    call.finish(201 if outcome.created else 200, encode_appended(outcome, return_seqs, call.spent_ms()))


def _with_key(call: Call, batch: Batch) -> Batch:
    """Returns the batch with its idempotency key: from the body, otherwise from the head."""
    headers = call.exchange.head.headers
    if batch.idempotency_key is not None or b"idempotency-key" not in headers.first:
        return batch
    # An empty header counts as missing.
    return with_key(batch, headers.get("idempotency-key") or None)


class DiffSource(Projection, frozen=True, kw_only=True):
    """The records for a waiting diff."""

    epoch: int | None = None
    streams: bool = False
    """Whether the topic may have a name that is reserved for streams."""
    filter: str | None = None
    search: StreamSearch | None = None
    """Executes the search."""

    def sees(self, topic: Topic) -> bool:
        return topic.guard is None or not (topic.guard.over(topic) if self.streams else topic.guard.hides(topic))

    def read(self, engine: Engine, topic: Topic, cursor: int, up_to: int, done: Done) -> None:
        request = ReadRequest(
            from_seq=cursor, limit=self.limit, nodes=self.nodes, include_tags=self.include_tags,
            include_meta=self.include_meta, max_bytes=self.max_bytes, up_to=up_to, epoch=self.epoch,
        )  # fmt: skip
        # By the name, like every read: a topic that was recreated during the wait is reported as another one.
        _read(engine, topic.name, request, self.streams, self.filter, self.search, done)

    def newest(self, engine: Engine, topic: Topic, cursor: int, up_to: int) -> Frame | None:
        # An answer has more fields than a frame.
        return None

    def frames(self, topic: Topic, found: ReadResult, cursor: int, too_old: bool) -> list[Frame]:
        return [found_frame(self, found, cursor)]


def diff(call: Call) -> None:
    body = call.exchange.body
    diff_as(call, decode_body("diff", _decode_diff, body) if body else DiffBody())


def diff_as(call: Call, asked: DiffBody) -> None:
    """Answers a diff that was decoded, or built from another request."""
    limits = call.engine.limits
    request = _read_request(asked, limits, call.room(limits.clamp_batch_bytes(asked.max_batch_bytes)))
    wait_ms = limits.clamp_wait_ms(asked.wait_ms)
    streams = call.flag("streams", False) if call.exchange.head.query else False
    text, search = asked.filter, None
    if text is not None:
        # Refused here, before the search for matching records.
        free_filter(text)
        search = call.live.search
    if asked.since_ts is not None or asked.last is not None:
        request = begin_elsewhere(call.engine, topic_of(call.engine, call.topic, streams), asked, request)
    if not wait_ms:
        _read(
            call.engine, call.topic, request, streams, text, search, lambda outcome: _answer_read(call, outcome)
        )  # fmt: skip
        return
    source = DiffSource(
        framing=SHARED, nodes=request.nodes, include_tags=request.include_tags, include_meta=request.include_meta,
        limit=request.limit, max_bytes=request.max_bytes, epoch=request.epoch, streams=streams, filter=text,
        search=search,
    )  # fmt: skip
    # Records of the reader's own node, and records that do not match, move its cursor and do not end the wait.
    answer = partial(_answer_read, call)
    topic = topic_of(call.engine, call.topic, streams)
    LongPoll(call, topic, source, wait_ms / 1000.0, answer).begin(request.from_seq)


def topic_of(engine: Engine, name: str, streams: bool) -> Topic:
    return engine.readable(name) if streams else engine.existing(name)


def _read(
    engine: Engine,
    name: str,
    request: ReadRequest,
    streams: bool,
    text: str | None,
    search: StreamSearch | None,
    done: Done,
) -> None:
    if text is not None:
        assert search is not None, "this server was opened without a search service"
        topic = topic_of(engine, name, streams)
        engine.catch_up(topic)
        search.diff(topic, request, text, done)
    elif streams:
        engine.read_as(engine.readable(name), request, execute_read, done)
    else:
        engine.read(name, request, done)


def _read_request(asked: DiffBody, limits: Limits, max_bytes: int) -> ReadRequest:
    check_number("diff", "from_seq", asked.from_seq, MAX_U64)
    check_number("diff", "limit", asked.limit)
    check_number("diff", "wait_ms", asked.wait_ms)
    check_number("diff", "max_batch_bytes", asked.max_batch_bytes)
    if asked.epoch is not None:
        check_number("diff", "epoch", asked.epoch, MAX_U64)
    node = asked.node
    return ReadRequest(
        from_seq=asked.from_seq, limit=limits.clamp_limit(asked.limit),
        nodes=() if node is None else (node,) if isinstance(node, str) else tuple(node),
        include_tags=asked.include_tags, include_meta=asked.include_meta,
        max_bytes=max_bytes, epoch=asked.epoch,
    )  # fmt: skip


def _answer_read(call: Call, outcome: ReadResult | TopicsError, throttled_ms: int = 0) -> None:
    if isinstance(outcome, TopicsError):
        call.refuse(outcome)
        return
    tombstone = b"null" if outcome.tombstone is None else _encode(outcome.tombstone)
    next_from_seq, head = outcome.next_from_seq, outcome.head_seq
    encoded = (
        b'{"topic":%b,"records":[%b],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"caught_up":%b,'
        b'"tombstone":%b,"lag":%d,"epoch":%d}'
    ) % (
        _encode(call.topic), outcome.body, next_from_seq, head, outcome.earliest_seq,
        b"true" if next_from_seq == head else b"false", tombstone, head - next_from_seq,
        outcome.epoch,
    )  # fmt: skip
    measured = b',"records_scanned":%d' % outcome.scanned
    call.reply(200, encoded, measured + throttled(throttled_ms) if throttled_ms else measured)


def delete(call: Call) -> None:
    body = decode_body("delete", _decode_delete, call.exchange.body)
    selector = parse_selector(body.before_seq, body.match)

    def done(outcome: DeleteResult | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            call.refuse(outcome)
            return
        answer = DeleteAnswer(
            topic=outcome.topic, deleted=outcome.deleted, earliest_seq=outcome.earliest_seq,
            head_seq=outcome.head_seq, count=outcome.count, bytes=outcome.bytes,
        )  # fmt: skip
        call.reply(200, _encode(answer))

    call.engine.delete_records(call.topic, selector, done)
