"""Topics themselves: PUT, GET, list, DELETE."""

import msgspec

from topics.api.app import Call
from topics.api.auth import check_config
from topics.api.v0.request_parsing import PAGE_SIZE, PAGE_SIZE_MAX, allowed_prefixes, read_cursor, write_cursor
from topics.engine.engine import TopicInfo
from topics.engine.results import DropResult, PutResult
from topics.model.errors import TopicsError
from topics.model.topic_config import parse_config
from topics_protocol.v0 import DropAnswer, ListAnswer, PutAnswer, QueueCounters, TopicAnswer, TopicSummary

_encode = msgspec.json.Encoder().encode


def put_topic(call: Call) -> None:
    def done(outcome: PutResult | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            call.refuse(outcome)
        else:
            answer = PutAnswer(topic=outcome.topic, created=outcome.created, config=outcome.config)
            call.reply(201 if outcome.created else 200, _encode(answer))

    strict = call.flag("strict", call.engine.limits.strict_config)
    patch = parse_config(call.exchange.body, strict=strict)
    known = call.engine.find(call.topic)
    check_config(call.key, patch, None if known is None else known.config)
    call.engine.put_topic(call.topic, patch, done)


def get_topic(call: Call) -> None:
    info = call.engine.info(call.topic, touch=call.flag("touch", True), streams=call.flag("streams", False))
    answer = TopicAnswer(
        topic=info.topic, type=info.config.type.value, head_seq=info.head_seq, earliest_seq=info.earliest_seq,
        next_seq=info.next_seq, count=info.count, bytes=info.bytes, config=info.config,
        queue=_counters(info),
        effective_priority=info.effective_priority, last_write_ts=info.last_write_ts, last_read_ts=info.last_read_ts,
        epoch=info.epoch,
    )  # fmt: skip
    call.reply(200, _encode(answer))


def _counters(info: TopicInfo) -> QueueCounters | msgspec.UnsetType:
    return QueueCounters(**msgspec.structs.asdict(info.queue)) if info.queue is not None else msgspec.UNSET


def list_topics(call: Call) -> None:
    query = call.query
    page_size = call.number("page_size", PAGE_SIZE, PAGE_SIZE_MAX)
    after = read_cursor(query.get("cursor", ""))
    touch, streams = call.flag("touch", False), call.flag("streams", False)
    found: list[TopicInfo] = []
    for prefix in allowed_prefixes(query.get("prefix", ""), call.key.prefixes):
        found += call.engine.list_topics(prefix, after, page_size + 1 - len(found), touch, streams)
        if len(found) > page_size:
            break
    more = len(found) > page_size
    page = found[:page_size]
    topics = [
        TopicSummary(
            topic=info.topic, head_seq=info.head_seq, earliest_seq=info.earliest_seq, count=info.count,
            bytes=info.bytes, durable=info.config.durable, effective_priority=info.effective_priority,
            queue=_counters(info),
            epoch=info.epoch,
        )
        for info in page
    ]  # fmt: skip
    cursor = write_cursor(page[-1].topic) if more else msgspec.UNSET
    call.reply(200, _encode(ListAnswer(topics=topics, next_cursor=cursor)))


def drop_topic(call: Call) -> None:
    def done(outcome: DropResult | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            call.refuse(outcome)
        else:
            # A key with prefixes is not told names outside of them.
            removed = [name for name in outcome.routers_removed if call.key.may_touch(name)]
            answer = DropAnswer(topic=outcome.topic, deleted=outcome.deleted, routers_removed=removed)
            call.reply(200, _encode(answer))

    call.engine.drop_topic(call.topic, call.flag("if_empty", False), done)
