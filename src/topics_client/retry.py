"""The retry state of one call, without waiting: the request, the answers, and whether and when to retry."""

from binascii import b2a_base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, cast

import msgspec

from topics_client.errors import (
    ApiError,
    AppendTimeout,
    ClientClosed,
    ClientError,
    ConnectionFailed,
    LeaseEnded,
    NotPrimary,
    NotReady,
    ServerTrouble,
    ShuttingDown,
    Throttled,
    TransactionBusy,
    UnexpectedAnswer,
    refusal,
)
from topics_client.options import RetryPolicy
from topics_client.requests import A, Request
from topics_client.system import Clock, Entropy, logger
from topics_client.transport.http1 import HttpRequest, Response
from topics_protocol.v0 import ErrorAnswer

if TYPE_CHECKING:
    from topics_client.session import Session

_KEY_BYTES = 15
"""A multiple of three, so that base64 needs no padding."""
_GZIP_BYTES_MIN = 1024
_ANSWER_SHOWN_CHARS_MAX = 200
_KEY_FIELDS = b'{"idempotency_key":"%b","idempotency_check":true,'
_JSON_LINE = b"content-type: application/json\r\n"
# Statuses of a proxy whose server is unreachable. It is unknown whether the server got the request.
_GATEWAY_STATUSES = (502, 503, 504)
_HEAD_CODES = {401: "unauthorized", 403: "forbidden", 404: "topic_not_found", 410: "stream_gone", 429: "throttled"}
"""An answer to HEAD has a status and no words."""

_decode_error = msgspec.json.Decoder(ErrorAnswer).decode


def new_key(entropy: Entropy) -> bytes:
    """An idempotency key: as short as uniqueness allows, because a server keeps many of them."""
    return b2a_base64(entropy.token(_KEY_BYTES), newline=False)


_ELSEWHERE = (ConnectionFailed, NotPrimary, LeaseEnded, NotReady, ShuttingDown)
"""Errors of a server that another one may not have."""


class Backoff:
    """Counts consecutive failures and computes the wait before each retry."""

    def __init__(
        self, policy: RetryPolicy, session: "Session", what: str, began: float | None = None, place: int | None = None
    ) -> None:
        self._policy = policy
        self._session = session
        self._what = what
        self._failures = 0
        self._place = session.place if place is None else place
        # When a call was made; a connection that had been of use counts from when it broke.
        self._began = began

    def succeeded(self) -> None:
        self._failures = 0
        self._began = None
        self._place = self._session.place

    def delay_after(self, error: ClientError, *, repeatable: bool = True) -> float | None:
        """How many seconds to wait before the next try; None when that is in vain, not safe, or too late."""
        if not may_try_again(error, repeatable):
            return None
        session, now = self._session, self._session.clock.monotonic()
        if isinstance(error, _ELSEWHERE):
            primary = (error.detail or {}).get("primary") if isinstance(error, NotPrimary) else None
            if not session.move_on(self._place, primary) and isinstance(error, NotPrimary):
                return None
        self._place = session.place
        self._began = now if self._began is None else self._began
        self._failures += 1
        asked_s = error.retry_after_s if isinstance(error, ApiError) else None
        delay = delay_before(self._policy, self._failures, asked_s, session.entropy)
        reached = session.reached or not isinstance(error, ConnectionFailed)
        if now + delay > self._began + self._policy.patience_s(reached):
            if self._failures > 1:
                error.add_note(f"gave up after {self._failures} tries")
            return None
        # The first failure may only be an idle connection that was closed. Later ones are reported ever more rarely,
        # because a follower may fail for days.
        is_news = self._failures > 1 and self._failures.bit_count() == 1
        log = logger(__name__)
        (log.warning if is_news else log.info)(
            "%s failed (%d), next try in %.2g s: %s", self._what, self._failures, delay, error
        )
        return delay


class Attempts(Generic[A]):
    """The state of one call. Every attempt sends the same request, with the same idempotency key."""

    def __init__(self, request: Request[A], session: "Session") -> None:
        self._request = request
        options = session.options
        self._session = session
        self._maybe_done = False
        self.repeatable = request.repeatable
        body, headers = request.body, session.standing_lines
        if request.headers:
            headers = session.lines_with(request.headers)
        elif body is not None:
            headers += _JSON_LINE
        if request.needs_key and options.idempotent_appends:
            assert body is not None
            # In the body, and not as a header: a server knows a head again that is the same every time.
            body = _KEY_FIELDS % new_key(session.entropy) + body[1:]
            self.repeatable = True
        if options.gzip and body is not None and len(body) >= _GZIP_BYTES_MIN:
            import gzip  # noqa: PLC0415 - few ask for it

            body = gzip.compress(body, mtime=0)
            headers += b"content-encoding: gzip\r\n"
        self.http = HttpRequest(request.method, request.target, headers, body, options.timeout_s + request.wait_s)

    def failed(self, error: ClientError) -> None:
        """An attempt failed. A last attempt without effect does not exclude an effect of earlier ones."""
        self._maybe_done = error.maybe_done = self._maybe_done or error.maybe_done

    def read(self, response: Response) -> A:
        """The answer in a response; raises `ApiError` when it is a refusal."""
        self._session.reached = True
        if not response.is_success:
            if response.status == self._request.partial_status:
                try:
                    return self._decoded(response)
                except (ValueError, KeyError, RecursionError):
                    pass  # The same status is a refusal if no outcome was reported.
            raise response_error(response, self._session.clock, _HEAD_CODES if self._request.method == "HEAD" else {})
        try:
            return self._decoded(response)
        except (ValueError, KeyError, RecursionError) as error:
            raise UnexpectedAnswer(response.status, f"the answer cannot be understood: {error}") from error

    def _decoded(self, response: Response) -> A:
        if self._request.read is not None:
            return self._request.read(response)
        return cast(A, msgspec.json.decode(response.content, type=self._request.answer))


def delay_before(policy: RetryPolicy, failures: int, retry_after_s: float | None, entropy: Entropy) -> float:
    # The exponent is bounded because a follower may fail for days.
    backoff = min(policy.backoff_min_s * 2.0 ** min(failures - 1, 60), policy.backoff_max_s)
    luck = int.from_bytes(entropy.token(4)) / 2**32
    if retry_after_s is None:
        return backoff * (1.0 - luck / 2)
    return retry_after_s + backoff * luck


def may_try_again(error: ClientError, repeatable: bool) -> bool:
    """Whether the same request could succeed later, and cannot do harm if it already did."""
    match error:
        case ClientClosed():
            return False
        case ConnectionFailed():
            return repeatable or not error.maybe_done
        case UnexpectedAnswer():
            return error.status == 429 or (repeatable and error.status in _GATEWAY_STATUSES)
        case AppendTimeout():
            return repeatable
        case ServerTrouble():
            return False
        case NotPrimary():
            return True
        case Throttled() | NotReady() | ShuttingDown() | TransactionBusy():
            return True
        case ApiError():
            return error.status in (429, 503)
    return False


def response_error(response: Response, clock: Clock, codes: Mapping[int, str] | None = None) -> ApiError:
    """The exception for an answer other than success; `codes` are for answers without a body."""
    asked_s = retry_after_s(response.headers.get("retry-after"), clock.now_ms())
    try:
        error = _decode_error(response.content).error
    except (ValueError, RecursionError):
        if codes and response.status in codes:
            return refusal(response.status, codes[response.status], response.reason, None, asked_s)
        shown = response.content[:_ANSWER_SHOWN_CHARS_MAX].decode("utf-8", "replace")
        return UnexpectedAnswer(response.status, f"{response.reason}: {shown}", asked_s)
    exact_ms = (error.detail or {}).get("retry_after_ms")
    if isinstance(exact_ms, int | float):
        # The header contains whole seconds only.
        asked_s = exact_ms / 1000
    return refusal(response.status, error.code, error.message, error.detail, asked_s)


def retry_after_s(value: str | None, now_ms: int) -> float | None:
    """The seconds that a Retry-After header asks for, which holds a number or a date."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value)
    import email.utils  # noqa: PLC0415 - our server never sends a date, and this is half of the package's import time

    try:
        moment = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - now_ms / 1000)
