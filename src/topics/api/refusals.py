"""Refusals in the words of the protocol that was spoken: the one place where a code of ours gets another name.

/v0      `code` is ours, and the body ends with the time that the request took
/v1      `code` is the protocol's word for the status; ours, where it says more, is `detail.reason`
__ds     the subscriptions below /v1 keep the codes that their protocol spells out
"""

import msgspec

from topics.api.errors import render_error, render_fault, status_of
from topics.core.errors import TopicsError
from topics.wire.v0 import ErrorAnswer, ErrorBody

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
_encode = msgspec.json.Encoder(enc_hook=str).encode


def refusal_of(error: TopicsError, path: str, spent_ms: float | None = None) -> tuple[int, bytes]:
    """Status and body of a refusal; `path` is what was asked for, empty where nobody knows."""
    if not _speaks_v1(path):
        return status_of(error), render_error(error, spent_ms)
    status = _V1_STATUS.get(error.code) or status_of(error)
    return status, _render_v1(status, error.code, error.message, error.detail)


def fault_of(status: int, code: str, message: str, path: str) -> bytes:
    """The body of a refusal of the HTTP layer, which is no exception of ours."""
    return _render_v1(status, code, message, {}) if _speaks_v1(path) else render_fault(code, message)


def _speaks_v1(path: str) -> bool:
    return path.startswith(V1_ROOT) and not path.startswith(SUBSCRIPTIONS_ROOT)


def _render_v1(status: int, code: str, message: str, detail: dict[str, object]) -> bytes:
    word = code if code in _OWN_WORDS else V1_CODE_BY_STATUS.get(status, code)
    # An error that has a reason of its own is told apart by it already.
    told = detail if word == code or "reason" in detail else {**detail, "reason": code}
    return _encode(ErrorAnswer(error=ErrorBody(code=word, message=message, detail=told or None)))
