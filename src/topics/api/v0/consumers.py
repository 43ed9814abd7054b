"""Named consumers: PUT, GET, list, DELETE, commit, and reads from the committed cursor.

A consumer is a reader, so all calls except DELETE need only the scope read, like an offset commit in Kafka.
"""

import msgspec

from topics.api.app import Call, Operation, Parameter, Route
from topics.api.auth import Scope
from topics.api.v0.records import diff_as, topic_of
from topics.api.v0.request_parsing import (
    PAGE_SIZE,
    PAGE_SIZE_MAX,
    allowed_prefixes,
    begin_elsewhere,
    check_number,
    decode_body,
    read_cursor,
    write_cursor,
)
from topics.consumers.consumers import ConsumerCommitted, ConsumerDeleted, ConsumerInfo, ConsumerPut
from topics.engine.read import ReadRequest
from topics.engine.topic import Topic
from topics.model.errors import InvalidRequestError, TopicsError
from topics.model.limits import MAX_U64
from topics_protocol.v0 import (
    CommitConsumerBody,
    ConsumerBody,
    ConsumerCommitAnswer,
    ConsumerDropAnswer,
    ConsumerListAnswer,
    ConsumerOut,
    ConsumerPutAnswer,
    DiffAnswer,
    DiffBody,
    ReadConsumerBody,
)

_encode = msgspec.json.Encoder().encode
_decode_put = msgspec.json.Decoder(ConsumerBody).decode
_decode_commit = msgspec.json.Decoder(CommitConsumerBody).decode
_decode_read = msgspec.json.Decoder(ReadConsumerBody).decode
_SEPARATOR = "\n"
"""Separates topic and consumer in the cursor of a list; it occurs in no name."""


def put_consumer(call: Call) -> None:
    raw = call.exchange.body
    body = decode_body("consumer", _decode_put, raw) if raw else ConsumerBody()
    topic = _topic(call)

    def done(outcome: ConsumerPut | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            call.refuse(outcome)
            return
        answer = ConsumerPutAnswer(**msgspec.structs.asdict(outcome.info), created=outcome.created)
        call.reply(201 if outcome.created else 200, _encode(answer))

    seq = _place(call, topic, body.from_seq, body.since_ts, body.last)
    call.engine.consumers.put(topic, call.part, seq, call.key.name, done)


def get_consumer(call: Call) -> None:
    info = call.engine.consumers.info(_topic(call), call.part)
    call.reply(200, _encode(_out(info)))


def delete_consumer(call: Call) -> None:
    def done(outcome: ConsumerDeleted | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            call.refuse(outcome)
        else:
            answer = ConsumerDropAnswer(topic=outcome.topic, consumer=outcome.consumer, deleted=outcome.deleted)
            call.reply(200, _encode(answer))

    call.engine.consumers.delete(_topic(call), call.part, done)


def commit(call: Call) -> None:
    body = decode_body("commit", _decode_commit, call.exchange.body)
    topic = _topic(call)

    def done(outcome: ConsumerCommitted | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            call.refuse(outcome)
            return
        timing = outcome.timing
        answer = ConsumerCommitAnswer(**msgspec.structs.asdict(outcome.info), moved=outcome.moved)
        measured = b',"wal_append_ms":%.3f,"fsync_ms":%.3f' % (timing.write_ms, timing.sync_ms)
        call.reply(200, _encode(answer), measured)

    if body.seq is None and body.since_ts is None and body.last is None:
        raise InvalidRequestError("commit: seq is required", field="seq")
    call.overrides = body.force
    seq = _place(call, topic, body.seq or 0, body.since_ts, body.last)
    consumers = call.engine.consumers
    consumers.commit(topic, call.part, seq, call.key.name, done, force=body.force, epoch=body.epoch)


def read(call: Call) -> None:
    raw = call.exchange.body
    body = decode_body("read", _decode_read, raw) if raw else ReadConsumerBody()
    topic = _topic(call)
    cursor = call.engine.consumers.cursor(topic, call.part)
    diff_as(call, DiffBody(from_seq=cursor, epoch=topic.epoch, **msgspec.structs.asdict(body)))


def list_of_topic(call: Call) -> None:
    size = call.number("page_size", PAGE_SIZE, PAGE_SIZE_MAX)
    after = read_cursor(call.query.get("cursor", ""))
    found = call.engine.consumers.list_topic(_topic(call), after, size + 1)
    _reply_page(call, found, size, found[size - 1].consumer if len(found) > size else "")


def list_all(call: Call) -> None:
    size = call.number("page_size", PAGE_SIZE, PAGE_SIZE_MAX)
    topic, _, name = read_cursor(call.query.get("cursor", "")).partition(_SEPARATOR)
    found: list[ConsumerInfo] = []
    for prefix in allowed_prefixes(call.query.get("prefix", ""), call.key.prefixes):
        found += call.engine.consumers.list_all(prefix, (topic, name), size + 1 - len(found))
        if len(found) > size:
            break
    last = found[size - 1] if len(found) > size else None
    _reply_page(call, found, size, "" if last is None else f"{last.topic}{_SEPARATOR}{last.consumer}")


def _reply_page(call: Call, found: list[ConsumerInfo], size: int, after: str) -> None:
    cursor = write_cursor(after) if after else msgspec.UNSET
    call.reply(200, _encode(ConsumerListAnswer(consumers=[_out(info) for info in found[:size]], next_cursor=cursor)))


def _topic(call: Call) -> Topic:
    return topic_of(call.engine, call.topic, call.flag("streams", False))


def _out(info: ConsumerInfo) -> ConsumerOut:
    return ConsumerOut(**msgspec.structs.asdict(info))


def _place(call: Call, topic: Topic, seq: int, since_ts: int | str | None, last: int | None) -> int:
    """Returns the cursor of a request: a seq, a time, or a number of records."""
    check_number("consumer", "seq", seq, MAX_U64)
    if since_ts is None and last is None:
        # A client may have seen records in a router's source that are not copied yet.
        call.engine.catch_up(topic)
        return seq
    asked = DiffBody(from_seq=seq, since_ts=since_ts, last=last)
    return begin_elsewhere(call.engine, topic, asked, ReadRequest()).from_seq


_TEXT: dict[str, object] = {"type": "string"}
_STREAMS = Parameter("streams", {"type": "boolean"}, "Include streams whose names topics cannot have. Default: false.")
_PAGE = (
    Parameter("page_size", {"type": "integer", "minimum": 0}, "Size of the page, clamped to 1 to 1000. Default: 100."),
    Parameter("cursor", _TEXT, "`next_cursor` of the previous page."),
)
_FOUND = ("topic_not_found", "consumer_not_found")
_WRITES = ("read_only", "disk_full", "shutting_down")

CONSUMER_ROUTES = (
    Route(
        "GET", "/v0/consumers", list_all, Scope.READ,
        operation=Operation(
            "listConsumers", "Named consumers of all topics, by topic and name.", {200: ConsumerListAnswer},
            query=(Parameter("prefix", _TEXT, "Only consumers of topics with this prefix."), *_PAGE),
        ),
    ),
    Route(
        "GET", "/v0/topics/{topic}/consumers", list_of_topic, Scope.READ,
        operation=Operation(
            "listTopicConsumers", "Named consumers of a topic, by name.", {200: ConsumerListAnswer},
            ("topic_not_found",), query=(*_PAGE, _STREAMS), any_name=True,
        ),
    ),
    Route(
        "PUT", "/v0/topics/{topic}/consumers/{consumer}", put_consumer, Scope.READ, takes_body=True,
        operation=Operation(
            "putConsumer", "Create a consumer; one that exists stays as it is.",
            {200: ConsumerPutAnswer, 201: ConsumerPutAnswer}, ("topic_not_found", *_WRITES), ConsumerBody,
            query=(_STREAMS,), any_name=True,
        ),
    ),
    Route(
        "GET", "/v0/topics/{topic}/consumers/{consumer}", get_consumer, Scope.READ,
        operation=Operation(
            "getConsumer", "A consumer's cursor, lag and last commit.", {200: ConsumerOut}, _FOUND,
            query=(_STREAMS,), any_name=True,
        ),
    ),
    Route(
        "DELETE", "/v0/topics/{topic}/consumers/{consumer}", delete_consumer, Scope.DELETE,
        operation=Operation(
            "deleteConsumer", "Delete a consumer and its cursor.", {200: ConsumerDropAnswer},
            ("topic_not_found", *_WRITES), query=(_STREAMS,), any_name=True,
        ),
    ),
    Route(
        "POST", "/v0/topics/{topic}/consumers/{consumer}/commit", commit, Scope.READ, takes_body=True,
        operation=Operation(
            "commitConsumer", "Commit a cursor: everything up to it is processed.", {200: ConsumerCommitAnswer},
            (*_FOUND, "topic_recreated", *_WRITES), CommitConsumerBody, True, (_STREAMS,), True,
        ),
    ),
    Route(
        "POST", "/v0/topics/{topic}/consumers/{consumer}/read", read, Scope.READ, takes_body=True,
        operation=Operation(
            "readConsumer", "The records behind the committed cursor, as a diff gives them.", {200: DiffAnswer},
            (*_FOUND, "corrupt_segment", "cold_store_unavailable"), ReadConsumerBody, query=(_STREAMS,), any_name=True,
        ),
    ),
)  # fmt: skip
"""The routes of consumers, with their requirements and answers."""
