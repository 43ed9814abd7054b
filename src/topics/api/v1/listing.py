"""GET /v1/streams: a page of streams by name. The cost is that of the page, however many there are."""

import msgspec

from topics.api.calls import Call
from topics.api.v1.answers import NO_STORE, answer
from topics.api.v1.values import read_integer
from topics.core.errors import InvalidRequestError
from topics.core.moments import write_time
from topics.streams.listing import ListedInfo
from topics.streams.service import Streams

_LIMIT = 100
_LIMIT_MAX = 1000
_encode = msgspec.json.Encoder().encode


class ListedStream(msgspec.Struct, gc=False):
    """One stream of a list. Counters are strings, as JavaScript would not count them exactly."""

    name: str
    created_at: str
    expires_at: str | None
    epoch: int
    next_offset: str
    sealed_through: str
    uploaded_through: str
    profile: str


def list_streams(call: Call, streams: Streams) -> None:
    query = call.query
    limit = _number(query.get("limit"), "limit", _LIMIT)
    offset = _number(query.get("offset"), "offset", 0)
    if not limit:
        raise InvalidRequestError("query limit: must be at least 1", field="limit")
    limit = min(limit, _LIMIT_MAX)
    found = streams.listed(query.get("prefix", ""), query.get("after", ""), offset, call.key.prefixes, limit)
    page = [_listed(info) for info in found]
    answer(call, 200, (NO_STORE,), _encode(page), "application/json")


def _number(text: str | None, field: str, default: int) -> int:
    return default if text is None else read_integer(f"query {field}", text)


def _listed(info: ListedInfo) -> ListedStream:
    sealed = str(info.sealed_through)
    expires_at = None if info.deadline_ms is None else write_time(info.deadline_ms)
    # By their places: there are a hundred of them on a page, and names cost as much as everything else here.
    return ListedStream(
        info.name, write_time(info.created_ms), expires_at, info.epoch, str(info.head), sealed, sealed, info.profile
    )
