"""One refusal in the format of each protocol."""

from typing import Any

import msgspec
import pytest

from topics.api.error_responses import (
    STATUS_BY_CODE,
    V1_CODE_BY_STATUS,
    V1_STATUS_BY_CODE,
    NotFoundError,
    UnauthorizedError,
    fault_of,
    refusal_of,
)
from topics.model.errors import (
    AppendTimeoutError,
    BatchTooLargeError,
    InvalidRequestError,
    OffsetGoneError,
    ProducerFencedError,
    ProducerGapError,
    ReadOnlyError,
    RecordTooLargeError,
    SequenceConflictError,
    ShuttingDownError,
    StreamClosedError,
    StreamConflictError,
    StreamGoneError,
    ThrottledError,
    TopicFullError,
    TopicNotFoundError,
    TopicsError,
)

STREAM, SUBSCRIPTION, TOPIC = "/v1/stream/a", "/v1/stream/__ds/subscriptions/a", "/v0/topics/a"


def reported(error: TopicsError, path: str) -> tuple[int, str, Any]:
    status, body = refusal_of(error, path)
    said = msgspec.json.decode(body)["error"]
    assert said["message"] == error.message
    return status, said["code"], (said.get("detail") or {}).get("reason")


@pytest.mark.parametrize(
    ("error", "status", "code", "reason"),
    [
        (InvalidRequestError("no", field="offset"), 400, "bad_request", "invalid_request"),
        (InvalidRequestError("no", reason="schema", index=1), 400, "bad_request", "schema"),
        (UnauthorizedError(), 401, "unauthorized", None),
        (ProducerFencedError("p", 2), 403, "forbidden", "producer_fenced"),
        (NotFoundError("no"), 404, "not_found", None),
        (TopicNotFoundError("a"), 404, "not_found", "topic_not_found"),
        (AppendTimeoutError(), 408, "append_timeout", None),
        (StreamClosedError("a"), 409, "conflict", "stream_closed"),
        (StreamConflictError("no"), 409, "conflict", "stream_conflict"),
        (SequenceConflictError("1", "2"), 409, "conflict", "sequence_conflict"),
        (ProducerGapError("p", 1, 2), 409, "conflict", "producer_gap"),
        (StreamGoneError("a"), 410, "gone", "stream_gone"),
        (OffsetGoneError("no"), 410, "gone", "offset_gone"),
        (RecordTooLargeError("no"), 413, "payload_too_large", "record_too_large"),
        (BatchTooLargeError("no"), 413, "payload_too_large", "batch_too_large"),
        (TopicFullError("a", cap_records=1, cap_bytes=0, head_seq=1, earliest_seq=1), 422, "topic_full", None),
        (ThrottledError.under_pressure(5), 429, "overloaded", "throttled"),
        (TopicsError("no"), 500, "internal", None),
        (ReadOnlyError(0, "no"), 503, "unavailable", "read_only"),
        (ShuttingDownError(), 503, "unavailable", "shutting_down"),
    ],
    ids=lambda value: getattr(value, "code", None),
)
def test_v1_states_the_protocols_word_and_ours_below_it(
    error: TopicsError, status: int, code: str, reason: str | None
) -> None:
    assert reported(error, STREAM) == (status, code, reason)


def test_what_else_is_known_stays_beside_the_reason() -> None:
    _, body = refusal_of(ThrottledError.over_cap("max_topics", 7), STREAM)
    detail = msgspec.json.decode(body)["error"]["detail"]
    assert detail == {"limit": "max_topics", "max": 7, "reason": "throttled"}


@pytest.mark.parametrize("path", [TOPIC, SUBSCRIPTION, ""])
def test_everywhere_else_the_code_is_ours(path: str) -> None:
    assert reported(StreamClosedError("a"), path) == (409, "stream_closed", None)
    assert reported(RecordTooLargeError("no"), path) == (400, "record_too_large", None)


@pytest.mark.parametrize(("code", "status"), sorted({**STATUS_BY_CODE, **V1_STATUS_BY_CODE}.items()))
def test_no_code_of_ours_is_lost_in_v1(code: str, status: int) -> None:
    """It is the word itself or the reason below it, and the word is the one of the status."""

    class Made(TopicsError):
        pass

    Made.code = code
    found, word, reason = reported(Made("no"), STREAM)
    assert found in (status, 413)
    assert (reason or word) == code
    assert word in (V1_CODE_BY_STATUS.get(found), code)


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (400, "invalid_request", {"code": "bad_request", "message": "no", "detail": {"reason": "invalid_request"}}),
        (413, "payload_too_large", {"code": "payload_too_large", "message": "no"}),
        (431, "headers_too_large", {"code": "headers_too_large", "message": "no"}),
    ],
)
def test_a_fault_of_the_http_layer_speaks_the_protocol_that_was_asked(
    status: int, code: str, said: dict[str, object]
) -> None:
    assert msgspec.json.decode(fault_of(status, code, "no", STREAM)) == {"error": said}
    assert msgspec.json.decode(fault_of(status, code, "no", TOPIC)) == {"error": {"code": code, "message": "no"}}
