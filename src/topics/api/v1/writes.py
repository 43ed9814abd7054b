"""PUT, POST and DELETE of a stream."""

from topics.api.auth import Scope
from topics.api.calls import Call
from topics.api.errors import RequestTimeoutError
from topics.api.v1.answers import CLOSED, Header, answer, base_url, expiry, refuse
from topics.api.v1.contents import with_content
from topics.api.v1.deadlines import Deadlines, Pending
from topics.api.v1.paths import read_name
from topics.api.v1.values import is_true, read_integer, read_producer, read_time_ms, read_ttl_s, utf8
from topics.core.errors import AppendTimeoutError, InvalidRequestError, TopicsError
from topics.http.headers import Headers
from topics.streams.appending import Appended, AppendRequest
from topics.streams.contents import Content
from topics.streams.lifecycle import DEFAULT_TYPE, Created, CreateRequest, Deleted, ForkFrom
from topics.streams.service import Streams

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
                headers.append(("location", base_url(call) + call.exchange.head.path))
            answer(call, 201 if outcome.created else 200, tuple(headers), b"", info.content_type)

        try:
            streams.create(call.topic, request, done)
        except Exception:
            # Whatever it was, somebody else answers it.
            deadline.met()
            raise

    def append(self, call: Call, streams: Streams) -> None:
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
            # Whatever it was, somebody else answers it.
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
    """What every entry of a body is given."""
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
    # With a producer, 200 is new data and 204 a repetition or nothing but the closure; without one it is always 204.
    new = producer is not None and not outcome.duplicate and bool(request.body)
    answer(call, 200 if new else 204, tuple(headers))


def _append_request(call: Call, key: str | None, ts: int | None, body: Content) -> AppendRequest:
    headers = call.exchange.head.headers
    close = is_true(headers.get("stream-closed"))
    content_type = headers.get("content-type", "")
    if not body and not close:
        raise InvalidRequestError("the body is empty: there is nothing to append")
    if body and not content_type:
        raise InvalidRequestError("Content-Type: must say what the body is", field="Content-Type")
    seq = headers.get("stream-seq")
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
