"""Finding routes, and giving refusals their one shape."""

import json

import pytest

from topics.api.app import Api, Route, Routes
from topics.api.auth import KeyRing, Tokens
from topics.api.error_responses import MethodNotAllowedError, NotFoundError, error_headers, status_of
from topics.http.messages import Fault, Headers, HttpError, RequestHead
from topics.model.errors import NotReadyError, ThrottledError, TopicsError
from topics.testing import ManualClock, SeededEntropy

ROUTES = Routes(
    (
        Route("GET", "/v0/topics", lambda call: None),
        Route("GET", "/v0/topics/{topic}", lambda call: None),
        Route("POST", "/v0/topics/{topic}", lambda call: None),
        Route("POST", "/v0/topics/{topic}/diff", lambda call: None),
    )
)


@pytest.mark.parametrize(
    ("method", "path", "route", "topic"),
    [
        ("GET", "/v0/topics", "/v0/topics", ""),
        ("HEAD", "/v0/topics", "/v0/topics", ""),
        ("GET", "/v0/topics/a", "/v0/topics/{topic}", "a"),
        ("GET", "/v0/topics/a%3Ab", "/v0/topics/{topic}", "a:b"),
        ("GET", "/v0/topics/a%2Fb", "/v0/topics/{topic}", "a/b"),
        ("GET", "/v0/topics/%C3%A9", "/v0/topics/{topic}", "é"),
        ("POST", "/v0/topics/a/diff", "/v0/topics/{topic}/diff", "a"),
    ],
)
def test_a_route_is_found_by_its_shape(method: str, path: str, route: str, topic: str) -> None:
    found, name = ROUTES.find(method, path)
    assert (found.path, name) == (route, topic)


@pytest.mark.parametrize(
    "path", ["/", "/v0", "/v0/topics/", "/v0/topics//diff", "/v0/topics/a/b", "/v0/topics/%ff", ""]
)
def test_elsewhere_there_is_nothing(path: str) -> None:
    with pytest.raises(NotFoundError):
        ROUTES.find("GET", path)


def test_a_wrong_method_is_reported_the_right_ones() -> None:
    with pytest.raises(MethodNotAllowedError) as refusal:
        ROUTES.find("DELETE", "/v0/topics/a")
    assert error_headers(refusal.value) == (("Allow", "GET, HEAD, POST"),)


@pytest.mark.parametrize("fault", list(Fault))
def test_every_fault_of_the_http_layer_has_the_products_shape(fault: Fault) -> None:
    api = Api(ROUTES, KeyRing.parse(""), ManualClock(), 1000, 0)
    refusal = api.refuse(HttpError(fault), "/v0/topics")
    error = json.loads(refusal.body)["error"]
    crowded = fault in (Fault.TOO_MANY_CONNECTIONS, Fault.TOO_MANY_BODIES)
    assert refusal.status == (429 if crowded else fault.value[0])
    assert ("Retry-After", "1") in refusal.headers or refusal.status not in (429, 503)
    assert error["code"]
    assert error["message"]


@pytest.mark.parametrize(
    ("error", "status", "seconds"),
    [
        (ThrottledError.over_cap("max_topics", 3), 429, "1"),
        (ThrottledError.under_pressure(retry_after_ms=1500), 429, "2"),
        (NotReadyError(0.5), 503, "1"),
    ],
)
def test_retry_after_header_is_sent(error: TopicsError, status: int, seconds: str) -> None:
    assert (status_of(error), error_headers(error)) == (status, (("Retry-After", seconds),))


@pytest.mark.parametrize(
    ("path", "query", "authorization", "admitted"),
    [
        ("/stream", "token=secret", None, True),
        ("/stream", "a=b&token=s%65cret", None, True),
        ("/stream", "token=secret&token=wrong", None, True),
        ("/stream", "token=wrong", None, False),
        ("/stream", "", None, False),
        ("/stream", "", "Bearer secret", True),
        ("/stream", "token=secret", "Bearer wrong", False),
        ("/plain", "token=secret", None, False),
    ],
)
def test_only_streams_take_their_key_from_the_query(
    path: str, query: str, authorization: str | None, admitted: bool
) -> None:
    routes = Routes(
        (
            Route("GET", "/stream", lambda exchange: None, ops=True, query_token=True),
            Route("GET", "/plain", lambda exchange: None, ops=True),
        )
    )
    api = Api(routes, KeyRing.parse("secret"), ManualClock(), 1000, 0)
    headers = Headers.of([] if authorization is None else [(b"authorization", authorization.encode())])
    head = RequestHead("GET", b"", path, query, headers, "1.1", True)
    verdict = api.admit(head)
    assert (verdict == 1000) if admitted else (not isinstance(verdict, int) and verdict.status == 401)


def _head(path: str, query: str = "", authorization: str | None = None) -> RequestHead:
    headers = Headers.of([] if authorization is None else [(b"authorization", authorization.encode())])
    return RequestHead("GET", b"", path, query, headers, "1.1", True)


def test_cached_match_is_valid_while_the_keys_are_unchanged() -> None:
    """A connection remembers heads, and asks for each request whether it is admitted."""
    keys = KeyRing.parse("secret")
    api = Api(Routes((Route("GET", "/plain", lambda exchange: None, ops=True),)), keys, ManualClock(), 1000, 0)
    head = _head("/plain", authorization="Bearer secret")
    assert api.admit(head) == 1000
    found = head.context
    assert api.admit(head) == 1000
    assert head.context is found
    keys.replace([])
    verdict = api.admit(head)
    assert not isinstance(verdict, int) and verdict.status == 401


@pytest.mark.parametrize("name", ["token", "t%6Fken"])
def test_a_token_is_asked_for_each_request_whether_it_has_ended(name: str) -> None:
    clock, keys = ManualClock(), KeyRing.parse("secret")
    tokens = keys.tokens = Tokens(clock, SeededEntropy(1))
    routes = Routes((Route("GET", "/stream", lambda exchange: None, ops=True, query_short_token=True),))
    api = Api(routes, keys, clock, 1000, 0)
    head = _head("/stream", f"{name}={tokens.issue(keys.find('secret'), 1000)[0]}")
    assert api.admit(head) == 1000
    clock.advance(1000)
    verdict = api.admit(head)
    assert not isinstance(verdict, int) and verdict.status == 401
    plain = api.admit(_head("/stream", f"{name}=secret"))
    assert not isinstance(plain, int) and plain.status == 401
