"""Where a diff begins that names a time, or a number of records, instead of a cursor."""

import msgspec

from topics.api.v0.bodies import check_number
from topics.core.errors import InvalidRequestError
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.engine.state.seeking import seek_last, seek_time
from topics.engine.topic import SEQ_BASE, Topic
from topics.indexing.values import date_of
from topics.wire.v0 import DiffBody


def begin_elsewhere(engine: Engine, topic: Topic, asked: DiffBody, request: ReadRequest) -> ReadRequest:
    """The read, with its cursor found in the topic as it is now."""
    given = [name for name in ("since_ts", "last") if getattr(asked, name) is not None]
    if len(given) > 1 or asked.from_seq:
        raise InvalidRequestError("diff: from_seq, since_ts and last exclude each other", field=given[0])
    # Before anybody looks: what routers still have for it, and what time has taken.
    engine.catch_up(topic)
    engine.core.expire(topic)
    if asked.last is None:
        return msgspec.structs.replace(request, from_seq=_since(engine, topic, asked.since_ts), epoch=None)
    check_number("diff", "last", asked.last)
    limits = engine.core.limits
    wanted = limits.clamp_limit(asked.last) if asked.last else 0
    found = seek_last(topic, engine.core.reader, wanted) if wanted else topic.head
    return msgspec.structs.replace(
        request,
        # Who asks for more than there is reads from the beginning, and is told what is lost of it.
        from_seq=0 if found is None else found,
        limit=wanted if wanted and not asked.limit else request.limit,
        epoch=None,
    )


def _since(engine: Engine, topic: Topic, given: int | str | None) -> int:
    since_ms = date_of(given)
    if since_ms is None:
        raise InvalidRequestError("diff field since_ts: must be milliseconds since 1970, or a date", field="since_ts")
    found = seek_time(topic, engine.core.reader, since_ms)
    if found < topic.earliest and topic.evict_floor > SEQ_BASE:
        # Of what was lost nobody knows whether it was older. The read tells of it.
        return 0
    return found
