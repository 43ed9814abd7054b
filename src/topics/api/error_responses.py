"""Errors as HTTP answers: the one place where a code gets its status.

Refusals specific to HTTP (authentication, path, method, format) are defined here; all others come from
`topics.model.errors`.
"""

import msgspec

from topics.model.errors import TopicsError
from topics_protocol.v0 import ErrorAnswer, ErrorBody

STATUS_BY_CODE: dict[str, int] = {
    "invalid_request": 400,
    "invalid_json": 400,
    "batch_too_large": 400,
    "record_too_large": 400,
    "transaction_too_large": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "transaction_foreign": 403,
    "not_found": 404,
    "topic_not_found": 404,
    "router_not_found": 404,
    "consumer_not_found": 404,
    "schedule_not_found": 404,
    "job_not_found": 404,
    "transaction_not_found": 404,
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "request_timeout": 408,
    "slow_consumer": 408,
    "idempotency_conflict": 409,
    "stream_closed": 409,
    "topic_exists_incompatible": 409,
    "topic_not_empty": 409,
    "topic_recreated": 409,
    "head_mismatch": 409,
    "fence_mismatch": 409,
    "not_a_queue": 409,
    "router_cycle": 409,
    "backup_running": 409,
    "no_backup_place": 409,
    "transaction_busy": 409,
    "transaction_fenced": 409,
    "transaction_incomplete": 409,
    "transaction_sequence": 409,
    "stream_gone": 410,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "unsupported_message": 415,
    "expectation_failed": 417,
    "not_primary": 421,
    "topic_full": 422,
    "upgrade_required": 426,
    "throttled": 429,
    "headers_too_large": 431,
    "internal": 500,
    "corrupt_segment": 500,
    "damage": 500,
    "damaged_backup": 500,
    "newer_format": 500,
    "not_implemented": 501,
    "backup_failed": 503,
    "cold_store_unavailable": 503,
    "remote_unavailable": 503,
    "lease_ended": 503,
    "disk_full": 503,
    "system_busy": 503,
    "search_unavailable": 503,
    "not_ready": 503,
    "shutting_down": 503,
    "read_only": 503,
    "folder_busy": 503,
}
"""Every code a client of /v0 can meet. A test fails when an error class has a code that is in neither table."""

V1_STATUS_BY_CODE: dict[str, int] = {
    "WEBHOOK_URL_REJECTED": 400,
    "INVALID_TOKEN": 401,
    "producer_fenced": 403,
    "system_stream": 403,
    "SUBSCRIPTION_NOT_FOUND": 404,
    "append_timeout": 408,
    "ALREADY_CLAIMED": 409,
    "FENCED": 409,
    "NO_PENDING_WORK": 409,
    "SUBSCRIPTION_CONFLICT": 409,
    "producer_gap": 409,
    "sequence_conflict": 409,
    "stream_conflict": 409,
    "offset_gone": 410,
}
"""Codes that only /v1 answers with. Codes of subscriptions are spelled as the protocol spells them."""

_RETRY_AFTER_S = 1
_encode = msgspec.json.Encoder(enc_hook=str).encode


class UnauthorizedError(TopicsError):
    code = "unauthorized"

    def __init__(self) -> None:
        super().__init__("the request has no valid key. Send one as Authorization: Bearer KEY")


class ForbiddenError(TopicsError):
    code = "forbidden"


class NotFoundError(TopicsError):
    code = "not_found"


class MethodNotAllowedError(TopicsError):
    code = "method_not_allowed"

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        super().__init__(f"method {method} is not allowed here. See the header Allow", allowed=list(allowed))
        self.allowed = allowed


class NotAcceptableError(TopicsError):
    code = "not_acceptable"

    def __init__(self) -> None:
        super().__init__("the answer is an event stream. Send Accept: text/event-stream")


class RequestTimeoutError(TopicsError):
    code = "request_timeout"

    def __init__(self, message: str = "request timed out") -> None:
        super().__init__(message)


class PayloadTooLargeError(TopicsError):
    """A message on a WebSocket that is longer than a body may be."""

    code = "payload_too_large"


class UnsupportedMediaTypeError(TopicsError):
    code = "unsupported_media_type"

    def __init__(self) -> None:
        super().__init__("the body must be sent as content-type application/json")


class UpgradeRequiredError(TopicsError):
    code = "upgrade_required"

    def __init__(self, message: str, headers: tuple[tuple[str, str], ...]) -> None:
        super().__init__(message)
        self.headers = headers


class InvalidJsonError(TopicsError):
    """A message on a WebSocket that is not a command."""

    code = "invalid_json"


class UnsupportedMessageError(TopicsError):
    code = "unsupported_message"

    def __init__(self) -> None:
        super().__init__("binary messages are not supported. Send commands as text")


class SlowConsumerError(TopicsError):
    code = "slow_consumer"

    def __init__(self) -> None:
        super().__init__("the client did not read for too long. Reconnect and resume from the last cursor")


def status_of(error: TopicsError) -> int:
    return STATUS_BY_CODE.get(error.code) or V1_STATUS_BY_CODE.get(error.code, 500)


def render_error(error: TopicsError, spent_ms: float | None = None) -> bytes:
    """The answer; `spent_ms` is how long the request was here, where it got as far as its handler."""
    body = _encode(ErrorAnswer(error=ErrorBody(code=error.code, message=error.message, detail=error.detail or None)))
    if spent_ms is None:
        return body
    return b'%b,"performance":{"server_total_ms":%.3f}}' % (body[:-1], spent_ms)


def render_fault(code: str, message: str) -> bytes:
    """The answer to a refusal of the HTTP layer, which is not an exception of this package."""
    return _encode(ErrorAnswer(error=ErrorBody(code=code, message=message)))


def error_headers(error: TopicsError) -> tuple[tuple[str, str], ...]:
    """The headers of an error response."""
    status = status_of(error)
    if isinstance(error, MethodNotAllowedError):
        return (("Allow", ", ".join(error.allowed)),)
    if isinstance(error, UpgradeRequiredError):
        return error.headers
    if status == 401:
        return (("WWW-Authenticate", "Bearer"),)
    if status in (429, 503):
        wait_ms = error.detail.get("retry_after_ms")
        seconds = -(-wait_ms // 1000) if isinstance(wait_ms, int) else _RETRY_AFTER_S
        return (("Retry-After", str(max(seconds, 1))),)
    return ()


# Refusals in the words of the protocol that was spoken: the one place where a code of ours gets another name.
#
# /v0      `code` is ours, and the body ends with the time that the request took
# /v1      `code` is the protocol's word for the status; a more specific code of ours is in `detail.reason`
# __ds     the subscriptions below /v1 keep the codes that their protocol spells out

V1_ROOT = "/v1/"
SUBSCRIPTIONS_ROOT = "/v1/stream/__ds/"

V1_CODE_BY_STATUS: dict[int, str] = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    409: "conflict",
    410: "gone",
    413: "payload_too_large",
    415: "unsupported_media_type",
    429: "overloaded",
    500: "internal",
    503: "unavailable",
}
"""The words of /v1. A status that is not here, such as that of a full topic, has no word but ours."""

_V1_STATUS = {"record_too_large": 413, "batch_too_large": 413}
"""Where /v1 has another status for a refusal."""
_OWN_WORDS = frozenset(("append_timeout",))
"""Codes of ours that the protocol has as well, beside the one of their status."""


def refusal_of(error: TopicsError, path: str, spent_ms: float | None = None) -> tuple[int, bytes]:
    """Status and body of a refusal; `path` is that of the request, empty if unknown."""
    if not _speaks_v1(path):
        return status_of(error), render_error(error, spent_ms)
    status = _V1_STATUS.get(error.code) or status_of(error)
    return status, _render_v1(status, error.code, error.message, error.detail)


def fault_of(status: int, code: str, message: str, path: str) -> bytes:
    """The body of a refusal of the HTTP layer, which is not an exception of this package."""
    return _render_v1(status, code, message, {}) if _speaks_v1(path) else render_fault(code, message)


def _speaks_v1(path: str) -> bool:
    return path.startswith(V1_ROOT) and not path.startswith(SUBSCRIPTIONS_ROOT)


def _render_v1(status: int, code: str, message: str, detail: dict[str, object]) -> bytes:
    word = code if code in _OWN_WORDS else V1_CODE_BY_STATUS.get(status, code)
    # An error with its own reason is already distinguished by it.
    reported = detail if word == code or "reason" in detail else {**detail, "reason": code}
    return _encode(ErrorAnswer(error=ErrorBody(code=word, message=message, detail=reported or None)))
