"""Topics: PUT, GET, list, DELETE, and their fence tokens.

A list is sorted by name and read page by page from the index of names. With a substring, another sort order or a total
it examines all names, as a task of the fair scheduler, which interleaves other requests.
"""

from collections.abc import Callable
from heapq import nsmallest
from itertools import chain, islice

import msgspec
from msgspec import UNSET, UnsetType

from topics.api.app import Call
from topics.api.auth import check_config
from topics.api.chunked_response import run_task
from topics.api.v0.request_parsing import (
    PAGE_SIZE,
    PAGE_SIZE_MAX,
    allowed_prefixes,
    decode_body,
    read_page_cursor,
    write_cursor,
)
from topics.engine.conditional_append import fence_of
from topics.engine.engine import Engine, TopicInfo
from topics.engine.results import DropResult, PutResult
from topics.engine.topic import Topic
from topics.model.errors import InvalidRequestError, TopicsError
from topics.model.topic_config import parse_config
from topics.system.fair_scheduler import Task, in_slices
from topics_protocol.v0 import (
    DropAnswer,
    FenceAnswer,
    FenceBody,
    ListAnswer,
    ListTotal,
    PageCursor,
    PutAnswer,
    QueueCounters,
    TopicAnswer,
    TopicSummary,
)

_encode = msgspec.json.Encoder().encode
_decode_fence = msgspec.json.Decoder(FenceBody).decode


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
        epoch=info.epoch, content_type=_content_type(info),
    )  # fmt: skip
    call.reply(200, _encode(answer))


def get_fence(call: Call) -> None:
    topic = call.engine.existing(call.topic)
    call.reply(200, _encode(FenceAnswer(topic=topic.name, fence=fence_of(topic), head_seq=topic.head)))


def put_fence(call: Call) -> None:
    call.overrides = True
    body = decode_body("fence", _decode_fence, call.exchange.body)
    topic = call.engine.existing(call.topic)

    def done(outcome: str | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            call.refuse(outcome)
        else:
            call.reply(200, _encode(FenceAnswer(topic=topic.name, fence=outcome, head_seq=topic.head)))

    call.engine.fences.set(topic, body.new_fence, body.fence, done)


def _counters(info: TopicInfo) -> QueueCounters | UnsetType:
    queue = info.queue
    if queue is None:
        return UNSET
    return QueueCounters(
        ready=queue.ready, in_flight=queue.in_flight, delayed=queue.delayed, dead_lettered=queue.dead_lettered,
        paused=True if queue.paused else UNSET,
    )  # fmt: skip


def _content_type(info: TopicInfo) -> str | UnsetType:
    return UNSET if info.content_type is None else info.content_type


_SORT_VALUES: dict[str, Callable[[Topic], int]] = {
    "count": lambda topic: topic.live_count,
    "bytes": lambda topic: topic.live_bytes,
    "head_seq": lambda topic: topic.head,
}
SORTS = ("name", *_SORT_VALUES)
_NAMES_A_UNIT = 200
LISTED_MAX = 20_000
"""The maximum number of matching topics that a list with another order or a total examines."""


class _ListRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The selection of a list."""

    prefix: str
    contains: str
    sort: str
    descending: bool
    page_size: int
    cursor: PageCursor
    touch: bool
    streams: bool
    system: bool
    total: bool


def list_topics(call: Call) -> None:
    query = call.query
    sort, _, order = query.get("sort", "name").partition(":")
    if sort not in SORTS or order not in ("", "asc", "desc") or (sort, order) == ("name", "desc"):
        raise InvalidRequestError(
            "query sort: must be name, or one of count, bytes and head_seq with :asc or :desc", field="sort"
        )
    prefix = query.get("prefix", "")
    request = _ListRequest(
        prefix=prefix, contains=query.get("contains", "").lower(), sort=sort, descending=order == "desc",
        page_size=call.number("page_size", PAGE_SIZE, PAGE_SIZE_MAX),
        cursor=read_page_cursor(query.get("cursor", "")), touch=call.flag("touch", False),
        streams=call.flag("streams", False), system=call.flag("system", prefix.startswith("_")),
        total=call.flag("total", False),
    )  # fmt: skip
    if request.contains or request.total or sort != "name" or request.system:
        run_task(call, in_slices(_scan(call, request), call.seconds), call.refuse)
    else:
        _list_by_name(call, request)


def _list_by_name(call: Call, request: _ListRequest) -> None:
    found: list[TopicInfo] = []
    for prefix in allowed_prefixes(request.prefix, call.key.prefixes):
        left = request.page_size + 1 - len(found)
        found += call.engine.list_topics(prefix, request.cursor.after, left, request.touch, request.streams)
        if len(found) > request.page_size:
            break
    page = found[: request.page_size]
    cursor = write_cursor(page[-1].topic) if len(found) > request.page_size else UNSET
    call.reply(200, _encode(ListAnswer(topics=list(map(_summary, page)), next_cursor=cursor)))


def _summary(info: TopicInfo) -> TopicSummary:
    return TopicSummary(
        topic=info.topic, head_seq=info.head_seq, earliest_seq=info.earliest_seq, count=info.count,
        bytes=info.bytes, durable=info.config.durable, effective_priority=info.effective_priority,
        queue=_counters(info), epoch=info.epoch, content_type=_content_type(info),
    )  # fmt: skip


_Place = tuple[int, str]
"""Returns the sort key of a topic: equal values are sorted by name, also in a descending list."""


def _scan(call: Call, request: _ListRequest) -> Task:
    """Answers with a page of the matching topics, which are examined in portions."""
    engine, cursor, most = call.engine, request.cursor, request.page_size + 1
    by_name = request.sort == "name"
    # A page sorted by name begins after its cursor, unless all topics are counted.
    begin = cursor.after if by_name and not request.total else ""
    start = (_signed(request, cursor.value or 0), cursor.after) if cursor.after else None
    page: list[_Place] = []
    matches = 0
    for prefix in allowed_prefixes(request.prefix, call.key.prefixes):
        after = begin
        while names := list(islice(engine.names_from(prefix, after), _NAMES_A_UNIT)):
            after = names[-1]
            found = _places(engine, request, names)
            matches += len(found)
            page = nsmallest(most, chain(page, (one for one in found if start is None or start < one)))
            counted = matches >= LISTED_MAX or not request.total
            if (counted and len(page) == most) if by_name else matches >= LISTED_MAX:
                return _answer_page(call, request, page, matches)
            yield None
    return _answer_page(call, request, page, matches)


def _places(engine: Engine, request: _ListRequest, names: list[str]) -> list[_Place]:
    """Returns the positions of the matching topics among these names."""
    value_of = _SORT_VALUES.get(request.sort)
    found: list[_Place] = []
    for name in names:
        if request.contains in name.lower():
            topic = engine.listed_topic(name, request.streams, request.system)
            if topic is not None:
                found.append((0 if value_of is None else _signed(request, value_of(topic)), name))
    return found


def _signed(request: _ListRequest, value: int) -> int:
    return -value if request.descending else value


def _answer_page(call: Call, request: _ListRequest, page: list[_Place], matches: int) -> None:
    shown = page[: request.page_size]
    topics = (call.engine.listed_topic(name, request.streams, request.system) for _, name in shown)
    infos = call.engine.describe_listed((topic for topic in topics if topic is not None), request.touch)
    last = shown[-1] if len(page) > request.page_size else None
    total = ListTotal(value=matches, relation="gte" if matches >= LISTED_MAX else "eq")
    answer = ListAnswer(
        topics=list(map(_summary, infos)),
        next_cursor=UNSET if last is None else write_cursor(last[1], abs(last[0]) or None),
        total=total if request.total else UNSET,
    )
    call.reply(200, _encode(answer))


def drop_topic(call: Call) -> None:
    def done(outcome: DropResult | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            call.refuse(outcome)
        else:
            # A key with prefixes gets no names outside of them.
            removed = [name for name in outcome.routers_removed if call.key.may_touch(name)]
            answer = DropAnswer(topic=outcome.topic, deleted=outcome.deleted, routers_removed=removed)
            call.reply(200, _encode(answer))

    call.engine.drop_topic(call.topic, call.flag("if_empty", False), done)
