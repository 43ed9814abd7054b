"""One call over all its tries, without the waiting: both clients ask here what to send, what came, and how to go on."""

import email.utils
import gzip
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, cast

import httpx
import msgspec

from topics import __version__
from topics.client.backoff import delay_before, may_try_again
from topics.client.errors import ApiError, ClientError, ConnectionFailed, UnexpectedAnswer, refusal
from topics.client.options import ClientOptions, RetryPolicy
from topics.client.requests import A, Request
from topics.system.clock import Clock
from topics.system.dice import Dice
from topics.wire.v0 import ErrorAnswer

_KEY_BYTES = 16
_GZIP_BYTES_MIN = 1024
_ANSWER_SHOWN_CHARS_MAX = 200
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
# These blame the caller, not the line.
_BUGS = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)

_log = logging.getLogger(__name__)
_decode_error = msgspec.json.Decoder(ErrorAnswer).decode


class Attempts(Generic[A]):
    """The state of one call. What is sent is the same in every try, the idempotency key above all."""

    def __init__(
        self, request: Request[A], options: ClientOptions, policy: RetryPolicy, clock: Clock, dice: Dice
    ) -> None:
        self._request = request
        self._policy = policy
        self._clock = clock
        self._dice = dice
        self._deadline = clock.monotonic() + policy.deadline_s
        self._failures = 0
        self._repeatable = request.repeatable
        self._body = request.body
        self._headers: dict[str, str] = {}
        self._timeout = httpx.Timeout(
            options.timeout_s, connect=options.connect_timeout_s, read=options.timeout_s + request.wait_s
        )
        if request.body is not None:
            self._headers["content-type"] = "application/json"
        if request.wants_key and options.idempotent_appends:
            self._headers["idempotency-key"] = dice.token(_KEY_BYTES).hex()
            self._repeatable = True
        if options.gzip and request.body is not None and len(request.body) >= _GZIP_BYTES_MIN:
            self._body = gzip.compress(request.body, mtime=0)
            self._headers["content-encoding"] = "gzip"

    def build(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """The next try, to be sent."""
        return http.build_request(
            self._request.method,
            self._request.target,
            content=self._body,
            headers=self._headers,
            timeout=self._timeout,
        )

    def read(self, response: httpx.Response) -> A:
        """The answer in a response; raises `ApiError` when it is a refusal."""
        if not response.is_success:
            raise response_error(response, self._clock)
        try:
            return cast(A, msgspec.json.decode(response.content, type=self._request.answer))
        except (ValueError, RecursionError) as error:
            raise UnexpectedAnswer(response.status_code, f"the answer cannot be understood: {error}") from error

    def delay_after(self, error: ClientError) -> float | None:
        """How many seconds to wait before trying again; None when that is in vain, not safe, or too late."""
        self._failures += 1
        if not (self._request.patient and may_try_again(error, self._repeatable)):
            return None
        asked_s = error.retry_after_s if isinstance(error, ApiError) else None
        delay = delay_before(self._policy, self._failures, asked_s, self._dice)
        if self._clock.monotonic() + delay > self._deadline:
            if self._failures > 1:
                error.add_note(f"gave up after {self._failures} tries")
            return None
        _log.info("a request will be tried again", extra={"failures": self._failures, "cause": str(error)})
        return delay


def read_refusal(status: int, phrase: str, retry_after: str | None, body: bytes, clock: Clock) -> ApiError:
    """The exception for an answer that is no success."""
    asked_s = retry_after_s(retry_after, clock.now_ms())
    try:
        error = _decode_error(body).error
    except (ValueError, RecursionError):
        shown = body[:_ANSWER_SHOWN_CHARS_MAX].decode("utf-8", "replace")
        return UnexpectedAnswer(status, f"{phrase}: {shown}", asked_s)
    exact_ms = (error.detail or {}).get("retry_after_ms")
    if isinstance(exact_ms, int | float):
        # The header can only say whole seconds.
        asked_s = exact_ms / 1000
    return refusal(status, error.code, error.message, error.detail, asked_s)


def response_error(response: httpx.Response, clock: Clock) -> ApiError:
    """What a response that is no success says, once its body was read."""
    retry_after = response.headers.get("retry-after")
    return read_refusal(response.status_code, response.reason_phrase, retry_after, response.content, clock)


def retry_after_s(value: str | None, now_ms: int) -> float | None:
    """The seconds that a Retry-After header asks for, which holds a number or a date."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - now_ms / 1000)


@contextmanager
def connection_errors() -> Iterator[None]:
    """Turns what the HTTP library says of the line into `ConnectionFailed`."""
    try:
        yield
    except _BUGS:
        raise
    except (httpx.TransportError, httpx.DecodingError) as error:
        what = str(error) or type(error).__name__
        raise ConnectionFailed(what, maybe_done=not isinstance(error, _NEVER_SENT)) from error


def standing_headers(api_key: str | None, options: ClientOptions) -> dict[str, str]:
    """The headers of every request."""
    headers = {
        "accept": "application/json",
        "accept-encoding": "gzip" if options.gzip else "identity",
        "user-agent": f"topics-client/{__version__}",
        **{name.lower(): value for name, value in options.headers.items()},
    }
    if api_key is not None:
        headers["authorization"] = f"Bearer {api_key}"
    return headers
