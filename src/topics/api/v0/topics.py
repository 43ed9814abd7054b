"""Topics themselves: PUT, GET, list, DELETE."""

import base64
import binascii
from collections.abc import Iterator

import msgspec

from topics.api.calls import Call
from topics.core.config import TopicType, parse_config
from topics.core.errors import InvalidRequestError, TopicsError
from topics.engine import DropResult, PutResult, TopicInfo
from topics.wire.v0 import (
    DropAnswer,
    ListAnswer,
    PageCursor,
    PutAnswer,
    QueueCounters,
    TopicAnswer,
    TopicSummary,
)

_PAGE_SIZE = 100
_PAGE_SIZE_MAX = 1000
_encode = msgspec.json.Encoder().encode
_decode_cursor = msgspec.json.Decoder(PageCursor).decode


def put_topic(call: Call) -> None:
    def done(outcome: PutResult | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            call.refuse(outcome)
        else:
            answer = PutAnswer(topic=outcome.topic, created=outcome.created, config=outcome.config)
            call.reply(201 if outcome.created else 200, _encode(answer))

    call.engine.put_topic(call.topic, parse_config(call.exchange.body), done)


def get_topic(call: Call) -> None:
    info = call.engine.info(call.topic, touch=call.flag("touch", True))
    is_queue = info.config.type is TopicType.QUEUE
    answer = TopicAnswer(
        topic=info.topic, type=info.config.type.value, head_seq=info.head_seq, earliest_seq=info.earliest_seq,
        next_seq=info.next_seq, count=info.count, bytes=info.bytes, config=info.config,
        queue=QueueCounters(ready=info.count, in_flight=0, dead_lettered=0) if is_queue else msgspec.UNSET,
        effective_priority=info.effective_priority, last_write_ts=info.last_write_ts, last_read_ts=info.last_read_ts,
        epoch=info.epoch,
    )  # fmt: skip
    call.reply(200, _encode(answer))


def list_topics(call: Call) -> None:
    query = call.query
    page_size = call.number("page_size", _PAGE_SIZE, _PAGE_SIZE_MAX)
    after = _read_cursor(query.get("cursor", ""))
    touch = call.flag("touch", False)
    found: list[TopicInfo] = []
    for prefix in _allowed_prefixes(query.get("prefix", ""), call.key.prefixes):
        found += call.engine.list_topics(prefix, after, page_size + 1 - len(found), touch)
        if len(found) > page_size:
            break
    more = len(found) > page_size
    page = found[:page_size]
    topics = [
        TopicSummary(
            topic=info.topic, head_seq=info.head_seq, earliest_seq=info.earliest_seq, count=info.count,
            bytes=info.bytes, durable=info.config.durable, effective_priority=info.effective_priority,
        )
        for info in page
    ]  # fmt: skip
    cursor = _write_cursor(page[-1].topic) if more else msgspec.UNSET
    call.reply(200, _encode(ListAnswer(topics=topics, next_cursor=cursor)))


def drop_topic(call: Call) -> None:
    def done(outcome: DropResult | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            call.refuse(outcome)
        else:
            call.reply(200, _encode(DropAnswer(topic=outcome.topic, deleted=outcome.deleted)))

    call.engine.drop_topic(call.topic, call.flag("if_empty", False), done)


def _allowed_prefixes(asked: str, allowed: tuple[str, ...]) -> Iterator[str]:
    """The prefixes to list, in order and apart: what was asked for, within what the key may see."""
    if not allowed:
        yield asked
        return
    within = sorted({max(asked, one, key=len) for one in allowed if one.startswith(asked) or asked.startswith(one)})
    last: str | None = None
    for prefix in within:
        if last is None or not prefix.startswith(last):
            yield prefix
            last = prefix


def _read_cursor(text: str) -> str:
    if not text:
        return ""
    try:
        return _decode_cursor(base64.b64decode(text, validate=True)).after
    except (ValueError, binascii.Error, msgspec.DecodeError) as error:
        raise InvalidRequestError("query cursor: it is not one that a list gave out", field="cursor") from error


def _write_cursor(name: str) -> str:
    return base64.b64encode(_encode(PageCursor(name))).decode()
