"""Resources below /v1/stream/__ds: subscriptions, the calls of their workers, and the signing keys of webhooks.

PUT GET DELETE   __ds/subscriptions/{id}
POST             __ds/subscriptions/{id}/streams
DELETE           __ds/subscriptions/{id}/streams/{name}
POST             __ds/subscriptions/{id}/claim
POST             __ds/subscriptions/{id}/ack | callback | release      with the token of the claim
GET              __ds/jwks.json
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import httpx
import msgspec

from topics.api.app import Call, Route
from topics.api.auth import Scope, error_for
from topics.api.chunked_response import run_task
from topics.api.error_responses import MethodNotAllowedError, NotFoundError, error_headers, status_of
from topics.api.tracing import Tracing
from topics.api.v1.protocol import NO_STORE, REFUSED, ROOT, SUBSCRIPTIONS, answer, base_url, decode
from topics.model.errors import InvalidRequestError, TopicsError, quoted
from topics.streams.subscriptions.subscription import BadTokenError, Subscription, SubscriptionRequest, literal_prefix
from topics.streams.subscriptions.subscriptions import Acks, Granted, Subscriptions
from topics.streams.subscriptions.webhook_security import Target, check_address, check_url
from topics.streams.subscriptions.webhooks import NotTaken
from topics.system.fair_scheduler import Task
from topics_protocol.rfc3339 import write_time

T = TypeVar("T")
PREFIX = f"{ROOT}{SUBSCRIPTIONS}/"
_BEARER = "bearer "
_ID_BYTES_MAX = 255
_DESCRIBED_AT_ONCE = 500
_encode = msgspec.json.Encoder().encode


class LinkRequest(msgspec.Struct, frozen=True):
    streams: list[str]


class ClaimRequest(msgspec.Struct, frozen=True):
    worker: str = ""


class ReleaseRequest(msgspec.Struct, frozen=True):
    wake_id: str
    generation: int


class SubscriptionsApi:
    def __init__(self, service: Callable[[], Subscriptions]) -> None:
        """`service` returns the subscriptions, which exist after the log is replayed."""
        self._service = service
        one = "/v1/stream/__ds/subscriptions/{id}"
        self._tables: dict[str, dict[str, Route]] = {
            "": {
                "PUT": _route("PUT", one, self._put, Scope.ADMIN),
                "GET": _route("GET", one, self._get, Scope.READ),
                "DELETE": _route("DELETE", one, self._delete, Scope.ADMIN),
            },
            "streams": {
                "POST": _route("POST", f"{one}/streams", self._link, Scope.ADMIN),
                "DELETE": _route("DELETE", f"{one}/streams/{{name}}", self._unlink, Scope.ADMIN),
            },
            "claim": {"POST": _route("POST", f"{one}/claim", self._claim, Scope.READ)},
            # The token of a claim replaces an API key for these routes.
            "ack": {"POST": _route("POST", f"{one}/ack", self._ack, Scope(0), open_to_all=True)},
            "callback": {"POST": _route("POST", f"{one}/callback", self._ack, Scope(0), open_to_all=True)},
            "release": {"POST": _route("POST", f"{one}/release", self._release, Scope(0), open_to_all=True)},
        }
        self._jwks_route = _route("GET", "/v1/stream/__ds/jwks.json", self._jwks, Scope(0), open_to_all=True)

    def find(self, method: str, path: str) -> tuple[Route, str]:
        rest = path[len(PREFIX) :].rstrip("/")
        if rest == "jwks.json":
            table = {"GET": self._jwks_route, "HEAD": self._jwks_route}
        else:
            kind, _, after = rest.partition("/")
            word = after.partition("/")[2].partition("/")[0]
            table = self._tables.get(word, {}) if kind == "subscriptions" and after else {}
        if not table:
            raise NotFoundError(f"there is nothing at {quoted(path)}")
        route = table.get(method)
        if route is None:
            raise MethodNotAllowedError(method, tuple(table))
        return route, ""

    def listed(self) -> Iterator[tuple[str, str]]:
        for route in (self._jwks_route, *(route for table in self._tables.values() for route in table.values())):
            yield route.method, route.path

    def _put(self, call: Call) -> None:
        request = _read(call, SubscriptionRequest)
        named = [*request.streams, *filter(None, (request.wake_stream,))]
        for name in (*named, *([literal_prefix(request.pattern)] if request.pattern else [])):
            call.key.check(Scope(0), name)
        root = base_url(call) + ROOT
        self._service().put(
            _id(call), request, root,
            lambda found, made: self._report(call, found, 201 if made else 200), lambda error: refuse(call, error),
            call.key.prefixes,
        )  # fmt: skip

    def _get(self, call: Call) -> None:
        self._report(call, self._reachable(call), 200)

    def _reachable(self, call: Call) -> Subscription:
        """Returns the subscription of the path, if the key may use it. Raises SubscriptionNotFoundError."""
        return self._service().get(_id(call), call.key.prefixes)

    def _report(self, call: Call, found: Subscription, status: int) -> None:
        if len(found.links) > _DESCRIBED_AT_ONCE:
            run_task(call, self._describe(call, found, status), lambda error: refuse(call, error))
        else:
            self._answer(call, found, status, self._service().describe_streams(found))

    def _describe(self, call: Call, found: Subscription, status: int) -> Task:
        """In portions, because there may be very many streams."""
        service, names = self._service(), list(found.links)
        streams: list[dict[str, object]] = []
        for begin in range(0, len(names), _DESCRIBED_AT_ONCE):
            streams += service.describe_streams(found, names[begin : begin + _DESCRIBED_AT_ONCE])
            yield None
        self._answer(call, found, status, streams)

    def _answer(self, call: Call, found: Subscription, status: int, streams: list[dict[str, object]]) -> None:
        service, request = self._service(), found.request
        reported: dict[str, object] = {
            "id": found.id, "type": request.type, "pattern": request.pattern, "lease_ttl_ms": request.lease_ttl_ms,
            "description": request.description, "created_at": write_time(found.created_ms),
            "generation": found.generation, "status": "claimed" if found.claim is not None else "idle",
            "streams": streams,
        }  # fmt: skip
        if request.webhook is not None:
            signing = {"alg": "ed25519", "kid": service.signer.key_id, "jwks_url": f"{found.base_url}__ds/jwks.json"}
            reported["webhook"] = {
                "url": request.webhook.url, "signing": signing, "failures": found.failures,
                "last_error": found.last_error or None,
            }  # fmt: skip
        if request.wake_stream is not None:
            reported["wake_stream"] = request.wake_stream
        answer(call, status, (NO_STORE,), _encode(reported), "application/json")

    def _delete(self, call: Call) -> None:
        self._service().drop(self._reachable(call).id, _done(call))

    def _link(self, call: Call) -> None:
        names = _read(call, LinkRequest).streams
        for name in names:
            call.key.check(Scope(0), name)
        self._service().link(self._reachable(call).id, names, _done(call))

    def _unlink(self, call: Call) -> None:
        name = decode(_segments(call)[2]) if len(_segments(call)) > 2 else ""
        if not name:
            raise InvalidRequestError("the path names no stream")
        call.key.check(Scope(0), name)
        self._service().unlink(self._reachable(call).id, name, _done(call))

    def _claim(self, call: Call) -> None:
        worker = _read(call, ClaimRequest).worker if call.exchange.body else ""

        def done(outcome: Granted | TopicsError) -> None:
            if isinstance(outcome, TopicsError):
                refuse(call, outcome)
            else:
                answer(call, 200, (NO_STORE,), _encode(outcome), "application/json")

        self._service().claim(self._reachable(call).id, worker, done)

    def _ack(self, call: Call) -> None:
        def done(outcome: bool | TopicsError) -> None:
            if isinstance(outcome, TopicsError):
                refuse(call, outcome)
            else:
                answer(call, 200, (NO_STORE,), _encode({"ok": True, "next_wake": outcome}), "application/json")

        self._service().ack(_id(call), _token(call), _read(call, Acks), done)

    def _release(self, call: Call) -> None:
        said = _read(call, ReleaseRequest)
        self._service().release(_id(call), _token(call), said.wake_id, said.generation)
        answer(call, 204, (NO_STORE,))

    def _jwks(self, call: Call) -> None:
        body = _encode(self._service().signer.jwks())
        answer(call, 200, (("cache-control", "public, max-age=300"),), body, "application/jwk-set+json")


def refuse(call: Call, error: TopicsError) -> None:
    """Returns an error whose details are beside its code; other errors have them one level deeper."""
    error = error_for(call.key, error)
    reported: dict[str, Any] = {**error.detail, "code": error.code, "message": error.message}
    call.finish(status_of(error), _encode({"error": reported}), (*REFUSED, *error_headers(error)), "application/json")


def _route(
    method: str, path: str, handler: Callable[[Call], None], scopes: Scope, *, open_to_all: bool = False
) -> Route:
    def handle(call: Call) -> None:
        try:
            handler(call)
        except TopicsError as error:
            refuse(call, error)

    return Route(method, path, handle, scopes, open=open_to_all)


def _done(call: Call) -> Callable[[TopicsError | None], None]:
    return lambda error: answer(call, 204, ()) if error is None else refuse(call, error)


def _segments(call: Call) -> list[str]:
    """Splits the path after `subscriptions/`: the id, a word, and its argument."""
    return call.exchange.head.path[len(PREFIX) :].rstrip("/").split("/", 3)[1:]


def _id(call: Call) -> str:
    found = decode(_segments(call)[0])
    if len(found.encode()) > _ID_BYTES_MAX or not found.isprintable():
        raise InvalidRequestError(f"a subscription's id is printable text of at most {_ID_BYTES_MAX} bytes")
    return found


def _token(call: Call) -> str:
    given = call.exchange.head.headers.get("authorization", "")
    if given[: len(_BEARER)].lower() != _BEARER:
        raise BadTokenError()
    return given[len(_BEARER) :].strip()


def _read(call: Call, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(call.exchange.body, type=kind)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.from_decode("body", error, call.exchange.body) from error


# Calling webhooks. A call goes to a checked address, follows no redirects, and reads a bounded answer.
#
# Every call uses a new client, and so a new connection. A client pools connections and cookies by address, and many
# hosts share one address: a connection authenticated for one host would be used for others, whose certificates were
# never verified. Receivers are called once for each lease, so pooling would save little.

_TIMEOUT_S = 10.0
_ANSWER_BYTES_MAX = 64 * 1024
_log = logging.getLogger(__name__)


class WebhookCaller:
    def __init__(self, allow_loopback: bool, ca_file: str | None = None, tracing: Tracing | None = None) -> None:
        """`ca_file` has authorities that are trusted besides the public ones. Raises `OSError` if it has none."""
        self._allow_loopback = allow_loopback
        # Loaded on demand, because reading the public authorities takes a moment.
        self._trust = _trust(ca_file) if ca_file is not None else None
        self._calls: set[asyncio.Task[None]] = set()
        self._tracing = tracing
        self.calls = 0
        """The number of finished calls."""
        self.failures = 0
        """The number of calls that were not accepted."""

    def deliver(self, url: str, body: bytes, signature: str, done: Callable[[Any], None]) -> None:
        """Makes the call. Returns the JSON of the answer (an empty object if it has none), or NotTaken."""
        call = asyncio.get_running_loop().create_task(self._call(url, body, signature, done))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def close(self) -> None:
        for call in list(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _call(self, url: str, body: bytes, signature: str, done: Callable[[Any], None]) -> None:
        headers, span = ({}, None) if self._tracing is None else self._tracing.call(url, body)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                headers["webhook-signature"] = signature
                answer = await self._post(check_url(url, self._allow_loopback), body, headers)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, TopicsError, TimeoutError, ValueError) as error:
            answer = NotTaken(_reason(error))
            self.failures += 1
            _log.warning("webhook failed", extra={"url": url, "error": answer.reason})
        if span is not None:
            span.end(None, answer.reason if isinstance(answer, NotTaken) else "")
        self.calls += 1
        done(answer)

    async def _post(self, target: Target, body: bytes, headers: dict[str, str]) -> Any:
        address = await self._resolve(target)
        if self._trust is None:
            self._trust = _trust(None)
        shown = f"[{address}]" if ":" in address else address
        default = target.port == (443 if target.scheme == "https" else 80)
        host = f"[{target.host}]" if ":" in target.host else target.host
        headers = {
            "host": host if default else f"{host}:{target.port}",
            "content-type": "application/json",
            "user-agent": "topics",
            **headers,
        }
        call = httpx.AsyncClient(verify=self._trust, timeout=_TIMEOUT_S, follow_redirects=False, trust_env=False)
        async with call as client:
            # The certificate must match the host name, not the address.
            request = client.build_request(
                "POST", f"{target.scheme}://{shown}:{target.port}{target.path}", content=body, headers=headers,
                extensions={"sni_hostname": target.host},
            )  # fmt: skip
            response = await client.send(request, stream=True)
            try:
                if not 200 <= response.status_code < 300:
                    raise ValueError(f"it answered {response.status_code}")
                return _read_json(await _read_some(response))
            finally:
                await response.aclose()

    async def _resolve(self, target: Target) -> str:
        """Returns one of the addresses of a host, after all of them were checked."""
        found = await asyncio.get_running_loop().getaddrinfo(target.host, target.port, type=1)
        addresses = [str(entry[4][0]) for entry in found]
        for address in addresses:
            check_address(address, self._allow_loopback)
        if not addresses:
            raise ValueError("its host has no address")
        return addresses[0]


def _reason(error: Exception) -> str:
    """The reason why a call was not accepted."""
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return f"it did not answer within {_TIMEOUT_S:g} s"
    return str(error) or type(error).__name__


def _trust(ca_file: str | None) -> ssl.SSLContext:
    """Returns the trusted certificates: public authorities, and those of the setting.

    Environment variables are ignored, because they would be a hidden setting.
    """
    context = httpx.create_ssl_context(trust_env=False)
    if ca_file is not None:
        context.load_verify_locations(cafile=ca_file)
    return context


async def _read_some(response: httpx.Response) -> bytes:
    body = b""
    async for part in response.aiter_bytes():
        body += part
        if len(body) > _ANSWER_BYTES_MAX:
            raise ValueError("its answer is too long")
    return body


def _read_json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body) if body.strip() else {}
    except ValueError:
        return {}
