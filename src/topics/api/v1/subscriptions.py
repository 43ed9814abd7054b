"""The resources below /v1/stream/__ds: subscriptions, what their workers say, and the key that signs webhooks.

PUT GET DELETE   __ds/subscriptions/{id}
POST             __ds/subscriptions/{id}/streams
DELETE           __ds/subscriptions/{id}/streams/{name}
POST             __ds/subscriptions/{id}/claim
POST             __ds/subscriptions/{id}/ack | callback | release      with the token of the claim
GET              __ds/jwks.json
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from topics.api.app import Route
from topics.api.auth import Scope
from topics.api.calls import Call
from topics.api.errors import MethodNotAllowedError, NotFoundError, error_headers, status_of
from topics.api.isolation import told_to
from topics.api.portions import Work, do_in_turns
from topics.api.v1.answers import NO_STORE, REFUSED, answer, base_url
from topics.api.v1.paths import ROOT, SUBSCRIPTIONS, decode
from topics.core.errors import InvalidRequestError, TopicsError, quoted
from topics.core.moments import write_time
from topics.engine.engine import Engine
from topics.streams.subscriptions.errors import BadTokenError
from topics.streams.subscriptions.model import Subscription, SubscriptionRequest
from topics.streams.subscriptions.patterns import literal_prefix
from topics.streams.subscriptions.service import Acks, Granted, Subscriptions

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
    def __init__(self, of: Callable[[Engine], Subscriptions]) -> None:
        self._of = of
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
            # Whoever has the token of a claim needs no key: it was given out for just this.
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
        self._of(call.engine).put(
            _id(call), request, root,
            lambda found, created: self._tell(call, found, 201 if created else 200), lambda error: refuse(call, error),
            call.key.prefixes,
        )  # fmt: skip

    def _get(self, call: Call) -> None:
        self._tell(call, self._reachable(call), 200)

    def _reachable(self, call: Call) -> Subscription:
        """The subscription of the path, if the key may have to do with it. Raises SubscriptionNotFoundError."""
        return self._of(call.engine).get(_id(call), call.key.prefixes)

    def _tell(self, call: Call, found: Subscription, status: int) -> None:
        if len(found.links) > _DESCRIBED_AT_ONCE:
            do_in_turns(call, self._describe(call, found, status), lambda error: refuse(call, error))
        else:
            self._answer(call, found, status, self._of(call.engine).describe_streams(found))

    def _describe(self, call: Call, found: Subscription, status: int) -> Work:
        """Of very many streams some at a time."""
        service, names = self._of(call.engine), list(found.links)
        streams: list[dict[str, object]] = []
        for begin in range(0, len(names), _DESCRIBED_AT_ONCE):
            streams += service.describe_streams(found, names[begin : begin + _DESCRIBED_AT_ONCE])
            yield None
        self._answer(call, found, status, streams)

    def _answer(self, call: Call, found: Subscription, status: int, streams: list[dict[str, object]]) -> None:
        service, request = self._of(call.engine), found.request
        told: dict[str, object] = {
            "id": found.id, "type": request.type, "pattern": request.pattern, "lease_ttl_ms": request.lease_ttl_ms,
            "description": request.description, "created_at": write_time(found.created_ms),
            "generation": found.generation, "status": "claimed" if found.claim is not None else "idle",
            "streams": streams,
        }  # fmt: skip
        if request.webhook is not None:
            signing = {"alg": "ed25519", "kid": service.signer.key_id, "jwks_url": f"{found.base_url}__ds/jwks.json"}
            told["webhook"] = {
                "url": request.webhook.url, "signing": signing, "failures": found.failures,
                "last_error": found.last_error or None,
            }  # fmt: skip
        if request.wake_stream is not None:
            told["wake_stream"] = request.wake_stream
        answer(call, status, (NO_STORE,), _encode(told), "application/json")

    def _delete(self, call: Call) -> None:
        self._of(call.engine).drop(self._reachable(call).id, _done(call))

    def _link(self, call: Call) -> None:
        names = _read(call, LinkRequest).streams
        for name in names:
            call.key.check(Scope(0), name)
        self._of(call.engine).link(self._reachable(call).id, names, _done(call))

    def _unlink(self, call: Call) -> None:
        name = decode(_segments(call)[2]) if len(_segments(call)) > 2 else ""
        if not name:
            raise InvalidRequestError("the path names no stream")
        call.key.check(Scope(0), name)
        self._of(call.engine).unlink(self._reachable(call).id, name, _done(call))

    def _claim(self, call: Call) -> None:
        worker = _read(call, ClaimRequest).worker if call.exchange.body else ""

        def done(outcome: Granted | TopicsError) -> None:
            if isinstance(outcome, TopicsError):
                refuse(call, outcome)
            else:
                answer(call, 200, (NO_STORE,), _encode(outcome), "application/json")

        self._of(call.engine).claim(self._reachable(call).id, worker, done)

    def _ack(self, call: Call) -> None:
        def done(outcome: bool | TopicsError) -> None:
            if isinstance(outcome, TopicsError):
                refuse(call, outcome)
            else:
                answer(call, 200, (NO_STORE,), _encode({"ok": True, "next_wake": outcome}), "application/json")

        self._of(call.engine).ack(_id(call), _token(call), _read(call, Acks), done)

    def _release(self, call: Call) -> None:
        said = _read(call, ReleaseRequest)
        self._of(call.engine).release(_id(call), _token(call), said.wake_id, said.generation)
        answer(call, 204, (NO_STORE,))

    def _jwks(self, call: Call) -> None:
        body = _encode(self._of(call.engine).signer.jwks())
        answer(call, 200, (("cache-control", "public, max-age=300"),), body, "application/jwk-set+json")


def refuse(call: Call, error: TopicsError) -> None:
    """An error with what is known beside its code, where other errors have it one level below."""
    error = told_to(call.key, error)
    told: dict[str, Any] = {**error.detail, "code": error.code, "message": error.message}
    call.finish(status_of(error), _encode({"error": told}), (*REFUSED, *error_headers(error)), "application/json")


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
    """The path behind `subscriptions/`: the id, a word, and whatever that word is about."""
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
