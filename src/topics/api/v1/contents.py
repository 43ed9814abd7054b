"""The body of an append: as it is where it is short, and read in portions where it is long or holds many values."""

from collections.abc import Callable
from functools import partial

from topics.api.calls import Call
from topics.api.portions import Work, do_in_turns, drafted, read_array
from topics.api.v1.answers import refuse
from topics.core.errors import InvalidRequestError, RecordTooLargeError
from topics.core.limits import KIB
from topics.engine.streams.state import stream_of
from topics.streams.contents import (
    Content,
    is_json,
    kind_of_values,
    pack_bytes,
    packed_record,
    read_values,
)

_MANY_VALUES = 4_000
"""So many take some milliseconds, however short they are."""
_SHORT_BYTES = 24 * KIB
"""What is no longer than this is read at once, whatever is in it: to count its values would cost as much as to write
them down where they are few, and where they are many it is some milliseconds, too."""
_WHITE = b" \t\n\r"
_SPACE_BYTES = 1024
"""How much space may stand before such an array, and behind it."""


def with_content(
    call: Call, key: str | None, ts: int | None, then: Callable[[Content], None], default_type: str = ""
) -> None:
    """Calls `then` with what the body brings, at once or when it is read. `key` and `ts` are those of its values, and
    `default_type` is what it is of where the request does not say."""
    exchange = call.exchange
    body, large = exchange.body, exchange.large_body
    if large is None and len(body) < _SHORT_BYTES:
        then(body)
        return
    content_type = exchange.head.headers.get("content-type", "") or default_type
    if not is_json(content_type):
        if large is None:
            then(body)
        elif not content_type:
            raise InvalidRequestError("Content-Type: must say what a body of this length is", field="Content-Type")
        else:
            do_in_turns(call, _pack(call, large.view, content_type, key, ts, then), partial(refuse, call))
        return
    if large is None and body.count(b",") < _MANY_VALUES:
        then(body)
        return
    view = memoryview(body) if large is None else large.view
    begin = bytes(view[:_SPACE_BYTES])
    start = len(begin) - len(begin.lstrip(_WHITE))
    if begin[start : start + 1] == b"[":
        do_in_turns(call, _read(call, view, start + 1, key, ts, then), partial(refuse, call))
        return
    largest = call.engine.core.limits.max_record_bytes
    if len(view) > largest:
        raise RecordTooLargeError(
            f"the value takes {len(view)} bytes, at most {largest} are allowed", index=0, bytes=len(view), max=largest
        )
    then(bytes(view))


def _pack(
    call: Call, view: memoryview, content_type: str, key: str | None, ts: int | None, then: Callable[[Content], None]
) -> Work:
    place = yield from pack_bytes(view)
    if call.exchange.large_body is not None:
        call.exchange.large_body.forget()
    topic = call.engine.core.by_name.get(call.topic)
    state = None if topic is None else stream_of(topic)
    record = packed_record(place, content_type if state is None else state.content_type, key)
    records = yield from drafted(call, call.topic, [record], None, ts, place)
    then(records if isinstance(records, list) else list(records))


def _read(
    call: Call, view: memoryview, start: int, key: str | None, ts: int | None, then: Callable[[Content], None]
) -> Work:
    portions = yield from read_array(view, start, read_values(key), kind_of_values(call.engine.core.limits))
    if len(view) - portions.end > _SPACE_BYTES or bytes(view[portions.end :]).strip(_WHITE) != b"]":
        raise InvalidRequestError("body: something follows the array")
    if call.exchange.large_body is not None:
        call.exchange.large_body.forget()
    if not portions.items:
        raise InvalidRequestError("the body is an empty array: there is nothing to append")
    records = yield from drafted(call, call.topic, portions.items, None, ts)
    then(records if isinstance(records, list) else list(records))
