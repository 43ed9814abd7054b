"""PUT, POST and DELETE of a stream."""

from collections.abc import Callable
from functools import partial

from topics.api.app import Call, match_of
from topics.api.auth import Scope
from topics.api.chunked_response import preencode, read_array, run_task
from topics.api.error_responses import RequestTimeoutError
from topics.api.request_batching import back_off
from topics.api.v1.protocol import (
    CLOSED,
    EVERY,
    Deadlines,
    ExchangeDeadlines,
    Header,
    Pending,
    answer,
    expiry,
    is_true,
    location,
    read_integer,
    read_name,
    read_producer,
    read_time_ms,
    read_ttl_s,
    refuse,
    refuse_exchange,
    utf8,
)
from topics.engine.coalesce import DecodedAppends
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.http.exchange import Exchange, header_lines, respond_bodiless
from topics.http.messages import Headers, RequestHead
from topics.model.errors import AppendTimeoutError, InvalidRequestError, RecordTooLargeError, TopicsError
from topics.model.limits import KIB
from topics.model.records import Values
from topics.streams.append import Appended, AppendRequest
from topics.streams.entry_encoding import (
    Content,
    decode_value,
    is_json,
    kind_of_values,
    pack_bytes,
    packed_record,
    read_values,
)
from topics.streams.lifecycle import DEFAULT_TYPE, Created, CreateRequest, Deleted, ForkFrom
from topics.streams.stream_state import Position, encode_offset, epoch_at, offset_of, stream_of
from topics.streams.streams import Streams
from topics.system.fair_scheduler import Task

# The body of an append: parsed at once if it is short, and in portions if it is long or has many values.

_MANY_VALUES = 4_000
"""This many values take some milliseconds, however short they are."""
_SHORT_BYTES = 24 * KIB
"""Bodies up to this size are parsed at once: counting their values would cost as much as decoding them."""
_WHITE = b" \t\n\r"
_SPACE_BYTES = 1024
"""The maximum white space before and after such an array."""


def with_content(
    call: Call, key: str | None, ts: int | None, then: Callable[[Content], None], default_type: str = ""
) -> None:
    """Calls `then` with the values of the body, immediately or after they were parsed.

    `key` and `ts` apply to its values, and `default_type` is the content type of a request without one.
    """
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
            raise InvalidRequestError("Content-Type: is required for a body of this length", field="Content-Type")
        else:
            run_task(call, _pack(call, large.view, content_type, key, ts, then), partial(refuse, call))
        return
    if large is None and body.count(b",") < _MANY_VALUES:
        then(body)
        return
    view = memoryview(body) if large is None else large.view
    begin = bytes(view[:_SPACE_BYTES])
    start = len(begin) - len(begin.lstrip(_WHITE))
    if begin[start : start + 1] == b"[":
        run_task(call, _read(call, view, start + 1, key, ts, then), partial(refuse, call))
        return
    largest = call.engine.limits.max_record_bytes
    if len(view) > largest:
        raise RecordTooLargeError(
            f"the value takes {len(view)} bytes, at most {largest} are allowed", index=0, bytes=len(view), max=largest
        )
    then(bytes(view))


def _pack(
    call: Call, view: memoryview, content_type: str, key: str | None, ts: int | None, then: Callable[[Content], None]
) -> Task:
    place = yield from pack_bytes(view)
    if call.exchange.large_body is not None:
        call.exchange.large_body.forget()
    topic = call.engine.find(call.topic)
    state = None if topic is None else stream_of(topic)
    record = packed_record(place, content_type if state is None else state.content_type, key)
    records = yield from preencode(call.engine, call.topic, [record], None, ts, place)
    then(records if isinstance(records, list) else list(records))


def _read(
    call: Call, view: memoryview, start: int, key: str | None, ts: int | None, then: Callable[[Content], None]
) -> Task:
    portions = yield from read_array(view, start, read_values(key), kind_of_values(call.engine.limits))
    if len(view) - portions.end > _SPACE_BYTES or bytes(view[portions.end :]).strip(_WHITE) != b"]":
        raise InvalidRequestError("body: something follows the array")
    if call.exchange.large_body is not None:
        call.exchange.large_body.forget()
    if not portions.items:
        raise InvalidRequestError("the body is an empty array. Send at least one value")
    records = yield from preencode(call.engine, call.topic, portions.items, None, ts)
    then(records if isinstance(records, list) else list(records))


APPEND_TIMEOUT_S = 3.0


class Writes:
    def __init__(self, others: Deadlines) -> None:
        self._deadlines = Deadlines(APPEND_TIMEOUT_S)
        self._others = others

    def create(self, call: Call, streams: Streams) -> None:
        key, ts = _key_and_time(call)
        fork = "stream-forked-from" in call.exchange.head.headers
        with_content(
            call, key, ts, lambda body: self._create(call, streams, _create_request(call, key, ts, body)),
            "" if fork else DEFAULT_TYPE,
        )  # fmt: skip

    def _create(self, call: Call, streams: Streams, request: CreateRequest) -> None:
        deadline = self._deadlines.begin(lambda: refuse(call, AppendTimeoutError()))

        def done(outcome: Created | TopicsError) -> None:
            if not deadline.met():
                return
            if isinstance(outcome, TopicsError):
                refuse(call, outcome)
                return
            info = outcome.info
            headers: list[Header] = [("stream-next-offset", info.next_offset), *expiry(info.deadline_ms)]
            if info.closed:
                headers.append(CLOSED)
            if outcome.created:
                headers.append(("location", location(call)))
            answer(call, 201 if outcome.created else 200, tuple(headers), b"", info.content_type)

        try:
            streams.create(call.topic, request, done)
        except Exception:
            # The caller answers the error.
            deadline.met()
            raise

    def append(self, call: Call, streams: Streams) -> None:
        body = call.exchange.body
        if body and body[0] in _NO_VALUE:
            back_off(call.exchange)
        key, ts = _key_and_time(call)
        with_content(call, key, ts, lambda body: self._append(call, streams, _append_request(call, key, ts, body)))

    def _append(self, call: Call, streams: Streams, request: AppendRequest) -> None:
        deadline = self._deadlines.begin(lambda: refuse(call, AppendTimeoutError()))

        def done(outcome: Appended | TopicsError) -> None:
            if not deadline.met():
                return
            if isinstance(outcome, TopicsError):
                refuse(call, outcome)
            else:
                _answer_append(call, request, outcome)

        try:
            streams.append(call.topic, request, done)
        except Exception:
            # The caller answers the error.
            deadline.met()
            raise

    def delete(self, call: Call, streams: Streams) -> None:
        pending = Pending()

        def done(outcome: Deleted | TopicsError) -> None:
            if not pending.met():
                return
            if isinstance(outcome, TopicsError):
                refuse(call, outcome)
            else:
                answer(call, 204, (("stream-next-offset", outcome.next_offset),))

        streams.delete(call.topic, done)
        if pending.open:
            self._others.begin(lambda: refuse(call, RequestTimeoutError()), pending)


def _key_and_time(call: Call) -> tuple[str | None, int | None]:
    """Returns the key and the timestamp of all entries of a body."""
    headers = call.exchange.head.headers
    key, ts = headers.get("stream-key"), headers.get("stream-timestamp")
    return (
        None if key is None else utf8(key, "Stream-Key"),
        None if ts is None else read_time_ms("Stream-Timestamp", ts),
    )


def _answer_append(call: Call, request: AppendRequest, outcome: Appended) -> None:
    headers: list[Header] = [("stream-next-offset", outcome.next_offset)]
    if outcome.closed:
        headers.append(CLOSED)
    producer = outcome.producer
    if producer is not None:
        headers.append(("producer-epoch", str(producer.epoch)))
        headers.append(("producer-seq", str(producer.seq)))
    # With a producer, 200 means new data and 204 a repetition or only a close; without one it is always 204.
    new = producer is not None and not outcome.duplicate and bool(request.body)
    answer(call, 200 if new else 204, tuple(headers))


def _append_request(call: Call, key: str | None, ts: int | None, body: Content) -> AppendRequest:
    headers = call.exchange.head.headers
    close = is_true(headers.get("stream-closed"))
    content_type = headers.get("content-type", "")
    if not body and not close:
        raise InvalidRequestError("the body is empty. Send data, or Stream-Closed: true to close the stream")
    if body and not content_type:
        raise InvalidRequestError("Content-Type: is required for a request with a body", field="Content-Type")
    seq = headers.get("stream-seq")
    if seq == "":
        raise InvalidRequestError("Stream-Seq: must not be empty", field="Stream-Seq")
    return AppendRequest(
        body=body,
        content_type=content_type,
        key=key,
        ts=ts,
        seq=None if seq is None else utf8(seq, "Stream-Seq"),
        producer=read_producer(headers),
        close=close,
    )


def _create_request(call: Call, key: str | None, ts: int | None, body: Content) -> CreateRequest:
    headers = call.exchange.head.headers
    ttl, expires = headers.get("stream-ttl"), headers.get("stream-expires-at")
    if ttl is not None and expires is not None:
        raise InvalidRequestError("Stream-TTL and Stream-Expires-At exclude each other", field="Stream-TTL")
    return CreateRequest(
        content_type=headers.get("content-type", ""),
        ttl_s=None if ttl is None else read_ttl_s(ttl),
        expires_ms=None if expires is None else read_time_ms("Stream-Expires-At", expires),
        closed=is_true(headers.get("stream-closed")),
        body=body,
        key=key,
        ts=ts,
        fork=_fork(call, headers),
    )


def _fork(call: Call, headers: Headers) -> ForkFrom | None:
    source, offset = headers.get("stream-forked-from"), headers.get("stream-fork-offset")
    sub_offset = headers.get("stream-fork-sub-offset")
    if source is None:
        for name, value in (("Stream-Fork-Offset", offset), ("Stream-Fork-Sub-Offset", sub_offset)):
            if value is not None:
                raise InvalidRequestError(f"{name}: needs Stream-Forked-From", field=name)
        return None
    name = read_name(source)
    call.key.check(Scope.READ, name)
    sub = 0 if sub_offset is None else read_integer("Stream-Fork-Sub-Offset", sub_offset)
    return ForkFrom(name, offset, sub)


_WORDS = (
    b"stream-key", b"stream-timestamp", b"stream-seq", b"stream-closed", b"producer-id", b"producer-epoch",
    b"producer-seq",
)  # fmt: skip
"""Headers of an append besides its content type."""
_NO_VALUE = frozenset(b"[ \t\n\r")
"""An array is several values, and may follow blanks."""
_EVERY_LINES = header_lines(EVERY)
_NO_CONTENT = 204


class BatchedStreamAppends:
    """The `BatchedProtocol` of appends to streams: bodies with one JSON value and no other headers.

    Appends with a key, a producer, a time or a close, and appends to streams with a contract, are left to `Writes`.
    """

    body_bytes_max = 8_000
    """Longer ones need more checks (`with_content`)."""
    streams = True

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._deadlines = ExchangeDeadlines(APPEND_TIMEOUT_S, seconds, self._miss)

    def fits(self, head: RequestHead) -> bool:
        first = head.headers.first
        says_more = head.query or any(word in first for word in _WORDS)
        return not says_more and is_json(head.headers.get("content-type", ""))

    def decode(self, exchanges: list[Exchange]) -> DecodedAppends | None:
        bodies = [exchange.body for exchange in exchanges]
        if not _NO_VALUE.isdisjoint([body[0] for body in bodies]):
            return None
        try:
            for body in bodies:
                if not body.isascii():
                    # The decoder does not check a Raw value, so invalid UTF-8 in it must be found here.
                    body.decode()
            values = Values(list(map(decode_value, bodies)))
        except (ValueError, RecursionError):
            return None
        for exchange in exchanges:
            self._deadlines.begin(exchange)
        return DecodedAppends(values, None)

    def release(self, exchanges: list[Exchange]) -> None:
        self._deadlines.forget(exchanges)

    def respond(self, exchanges: list[Exchange], result: AppendResult, engine: Engine) -> None:
        topic, first = engine.load(result.topic), result.first_seq
        epoch = epoch_at(topic, first)
        lines = [
            b"%bstream-next-offset: %b\r\n\r\n" % (_EVERY_LINES, encode_offset(epoch, seq).encode())
            for seq in range(first, first + len(exchanges))
        ]

        def otherwise(exchange: Exchange, number: int) -> None:
            if not exchange.answered:
                offset = offset_of(topic, Position(first + number))
                exchange.respond(_NO_CONTENT, b"", "", (*EVERY, ("stream-next-offset", offset)))

        respond_bodiless(exchanges, _NO_CONTENT, lines, otherwise)

    def refuse(self, exchange: Exchange, error: TopicsError) -> None:
        refuse_exchange(exchange, match_of(exchange.head).key, error)

    def _miss(self, exchange: Exchange) -> None:
        self.refuse(exchange, AppendTimeoutError())
