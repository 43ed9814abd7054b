"""Appends of /v0 over HTTP and WebSocket: bodies, idempotency keys, answers, and how requests are batched."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import astuple, force_setattr, replace

from topics.api.app import refuse
from topics.api.auth import Key, Scope, check_config
from topics.api.v0.request_parsing import decode_body
from topics.engine.coalesce import DecodedAppends
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.http.exchange import Exchange, respond_each
from topics.http.messages import RequestHead
from topics.model.errors import TopicsError
from topics.model.records import AppendBody, Batch, RawJson, Record, Values
from topics.model.topic_config import TopicConfigPatch

_APPENDED = (
    b'{%b"topic":%b,"first_seq":%d,"last_seq":%d,%b"head_seq":%d,"count":%d,"created":%b,"deduped":%b,%b'
    b'"performance":{"server_total_ms":%.3f,"wal_append_ms":%.3f,"fsync_ms":%.3f%b}}'
)
_SINGLE_BEGIN = b'"topic":%b,"first_seq":'
_SINGLE_END = (
    b',"count":1,"created":false,"deduped":false,'
    b'"performance":{"server_total_ms":%%b,"wal_append_ms":%.3f,"fsync_ms":%.3f}}'
)
_READY_US = 5_000
_READY_MS = [b"%.3f" % (us / 1000) for us in range(_READY_US)]
_encode = msgspec.json.Encoder().encode
decode_ascii: Callable[[bytes], Batch] = msgspec.json.Decoder(AppendBody).decode
"""Decodes the body of an append that is known to be ASCII, so no payload can be invalid UTF-8."""
_MANY_BYTES = 2_000
"""The size in bytes from which a body usually has several records."""


class SingleAppendBody(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """The body of an append with one record and no other option than an idempotency key."""

    records: tuple[Record]
    idempotency_key: str | None = None
    idempotency_check: bool = False
    create: bool | None = None


decode_single = msgspec.json.Decoder(SingleAppendBody).decode


class _Data(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record that has only data."""

    data: RawJson


class _PlainBody(AppendBody, frozen=True, kw_only=True, gc=False):
    records: list[_Data]  # type: ignore[assignment]


_decode_plain = msgspec.json.Decoder(_PlainBody).decode


def decode_many(body: bytes) -> Batch:
    """Like `decode_ascii`, for a body that may have many records.

    If all records have only data, none is examined separately; otherwise the first record usually shows it.
    """
    try:
        batch = _decode_plain(body)
    except msgspec.ValidationError:
        return decode_ascii(body)
    force_setattr(batch, "records", Values([record.data for record in batch.records]))
    return batch


def decode_append(body: bytes) -> Batch:
    """Raises InvalidRequestError with the field and the reason."""
    return decode_body("append", decode_ascii if len(body) < _MANY_BYTES else decode_many, body)


decode_records = msgspec.json.Decoder(list[Record]).decode
"""An array of records that was cut out of a body, for `api.chunked_response`."""


def encode_singles(outcome: AppendResult, befores: Sequence[bytes], spent_s: Sequence[float]) -> list[bytes]:
    """Returns the answers to appends of one record each that share a block, as JSON objects.

    Each begins with its `before`, which is empty or ends with a comma.

    Common parts are encoded once, and no number is formatted twice, because these are the most frequent answers.
    """
    begin, end = _SINGLE_BEGIN % _encode(outcome.topic), _SINGLE_END % (outcome.wal_append_ms, outcome.fsync_ms)
    ready, reported, answers = _READY_MS, -1.0, []
    # The text between the seqs: joining it with a number is the fastest way to write that number four times.
    between: tuple[bytes, ...] = ()
    for seq, (before, spent) in enumerate(zip(befores, spent_s, strict=True), outcome.first_seq):
        if spent != reported or not between:
            # Requests of one batch usually have the same duration.
            reported, us = spent, int(spent * 1e6 + 0.5)
            spent_ms = ready[us] if 0 <= us < _READY_US else b"%.3f" % (spent * 1e3)
            between = (begin, b',"last_seq":', b',"seqs":[', b'],"head_seq":', end % spent_ms)
        answers.append(b"{" + before + (b"%d" % seq).join(between))
    return answers


def with_key(batch: Batch, key: str | None) -> Batch:
    """Returns the batch with this idempotency key."""
    return batch if batch.idempotency_key == key else replace(batch, idempotency_key=key)


def with_config_of(key: Key, engine: Engine, topic: str, batch: Batch) -> Batch:
    """Returns the batch with the config with which the key may create the topic. Raises ForbiddenError."""
    config = batch.config if batch.config is None else allowed_config(key, engine, topic, batch.config)
    return batch if config is batch.config else replace(batch, config=config)


def allowed_config(key: Key, engine: Engine, topic: str, config: TopicConfigPatch) -> TopicConfigPatch | None:
    """Returns the config with which the key may create the topic. Raises ForbiddenError.

    Creating a topic with a config needs the scope `admin`, like the control plane. If the topic exists, its config
    applies and this one is dropped, also for a key that may not create topics, because the topic may be deleted before
    the batch is admitted.
    """
    known = engine.find(topic)
    check_config(key, config, None if known is None else known.config)
    if known is None:
        key.check(Scope.ADMIN)
    elif Scope.ADMIN not in key.scopes:
        return None
    return config


def encode_appended(outcome: AppendResult, return_seqs: bool, spent_ms: float, before: bytes = b"") -> bytes:
    """Returns the answer as a JSON object; `before` has the first fields, each with its comma.

    It is formatted directly instead of encoded from `AppendAnswer`, because it is the most frequent answer.
    """
    topic, first, last, head, created, was_known, write_ms, sync_ms, parked_ms, differs = astuple(outcome)
    count = last - first + 1
    if not return_seqs:
        seqs = b""
    elif count == 1:
        seqs = b'"seqs":[%d],' % first
    else:
        seqs = b'"seqs":%b,' % _encode(list(range(first, last + 1)))
    return _APPENDED % (
        before, _encode(topic), first, last, seqs, head, count, b"true" if created else b"false",
        b"true" if was_known else b"false", b'"differs":true,' if differs else b"", spent_ms, write_ms, sync_ms,
        throttled(parked_ms) if parked_ms else b"",
    )  # fmt: skip


def throttled(wait_ms: float) -> bytes:
    """Returns the throttle field of the performance block, for a request that backpressure delayed."""
    return b',"throttle_wait_ms":%.3f' % wait_ms


class BatchedAppends:
    """The `BatchedProtocol` of appends to topics: bodies with one record and no other option than an idempotency key.
    All other bodies go to `records.append`."""

    body_bytes_max = 8_000
    """A longer body usually has several records. A group with such a body would be decoded in vain."""
    streams = False

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds

    def fits(self, head: RequestHead) -> bool:
        return not head.query and b"idempotency-key" not in head.headers.first

    def decode(self, exchanges: list[Exchange]) -> DecodedAppends | None:
        try:
            bodies = [exchange.body for exchange in exchanges]
            for body in bodies:
                if not body.isascii():
                    # The decoder does not check a Raw payload, so invalid UTF-8 in it must be found here.
                    body.decode()
            singles = list(map(decode_single, bodies))
        except (ValueError, RecursionError):
            return None
        if len(singles) == 1:
            (only,) = singles
            return DecodedAppends(only.records, None if only.idempotency_key is None else [only.idempotency_key])
        return DecodedAppends.of([each.records[0] for each in singles], [each.idempotency_key for each in singles])

    def release(self, exchanges: list[Exchange]) -> None:
        """Nothing was started for them."""

    def respond(self, exchanges: list[Exchange], result: AppendResult, engine: Engine) -> None:
        now = self._seconds()
        spent_s = [now - exchange.started for exchange in exchanges]
        bodies = encode_singles(result, [b""] * len(exchanges), spent_s)
        if len(exchanges) == 1:
            exchanges[0].respond(200, bodies[0])
        else:
            respond_each(exchanges, bodies)

    def refuse(self, exchange: Exchange, error: TopicsError) -> None:
        refuse(exchange, error, self._seconds())
