"""Texts of refusals on /v1, as they come over the wire: the protocol's in `code`, the server's in `detail.reason`."""

from collections.abc import Iterator

import httpx
import pytest

from tests.http.live import LiveServer
from tests.http.streams.conftest import append, code_of, create, offset_of, reason_of

BODY_MAX = 4096


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("refusals")
    with LiveServer(folder, api_keys="all,reader:read", max_body_bytes=str(BODY_MAX), max_record_bytes="1024") as live:
        yield live


@pytest.fixture(scope="module")
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30.0, headers={"authorization": "Bearer all"}) as client:
        yield client


def words(response: httpx.Response) -> tuple[int, str, str]:
    return response.status_code, code_of(response), reason_of(response)


def test_requests_that_are_wrong(http: httpx.Client, path: str) -> None:
    create(http, path)
    assert words(http.get(f"{path}?offset=7")) == (400, "bad_request", "invalid_request")
    assert words(http.get(f"{path}-no")) == (404, "not_found", "topic_not_found")
    assert words(http.get("/v1/nothing")) == (404, "not_found", "not_found")
    assert words(http.patch(path)) == (405, "method_not_allowed", "method_not_allowed")
    assert words(http.get("/v1/streams?limit=")) == (400, "bad_request", "invalid_request")
    assert words(http.post("/v1/streams")) == (405, "method_not_allowed", "method_not_allowed")


def test_no_cache_keeps_a_refusal(http: httpx.Client, server: LiveServer, path: str) -> None:
    """Caches keep some refusals without any header, and the stream may exist a moment later."""
    create(http, path, "application/json")
    refused = [
        http.get(f"{path}-no"), http.head(f"{path}-no"), http.get(f"{path}?offset=7"), http.patch(path),
        http.get(f"{path}/touch/meta"), http.get("/v1/nothing"), http.get("/v1/stream/__ds/subscriptions/none"),
        http.post(f"{path}-no", content=b"1", headers={"content-type": "application/json"}),
        http.post(path, content=b"{", headers={"content-type": "application/json"}), httpx.get(server.url + path),
    ]  # fmt: skip
    assert [answer.headers.get("cache-control") for answer in refused] == ["no-store"] * len(refused)
    assert {answer.status_code for answer in refused} == {400, 401, 404, 405}


def test_keys_that_do_not_suffice(server: LiveServer, path: str) -> None:
    with httpx.Client(base_url=server.url) as nobody:
        assert words(nobody.get(path)) == (401, "unauthorized", "unauthorized")
    with httpx.Client(base_url=server.url, headers={"authorization": "Bearer reader"}) as reader:
        assert words(create(reader, path)) == (403, "forbidden", "forbidden")


def test_streams_in_another_state(http: httpx.Client, path: str) -> None:
    create(http, path, body=b"a")
    assert words(create(http, path, "application/json")) == (409, "conflict", "stream_conflict")
    assert words(append(http, path, b"{}", "application/json")) == (409, "conflict", "stream_conflict")
    append(http, path, b"b", stream_seq="2")
    assert words(append(http, path, b"b", stream_seq="1")) == (409, "conflict", "sequence_conflict")
    ahead = append(http, path, b"b", producer_id="p", producer_epoch="0", producer_seq="99")
    assert words(ahead) == (409, "conflict", "producer_gap")
    append(http, path, b"b", producer_id="p", producer_epoch="1", producer_seq="0")
    late = append(http, path, b"b", producer_id="p", producer_epoch="0", producer_seq="1")
    assert words(late) == (403, "forbidden", "producer_fenced")
    append(http, path, b"end", stream_closed="true")
    assert words(append(http, path, b"b")) == (409, "conflict", "stream_closed")


def test_deleted_and_expired_streams_are_refused(http: httpx.Client, path: str) -> None:
    stale = offset_of(create(http, path, body=b"a"))
    create(http, f"{path}-fork", stream_forked_from=path)
    assert http.delete(path).status_code == 204
    assert words(http.get(path)) == (410, "gone", "stream_gone")
    http.delete(f"{path}-fork")
    create(http, path)
    assert words(http.get(f"{path}?offset={stale}")) == (410, "gone", "offset_gone")


def test_too_large_bodies_are_refused(http: httpx.Client, path: str) -> None:
    create(http, path, "application/json")
    long = append(http, path, b'"' + b"x" * 2000 + b'"', "application/json")
    assert words(long) == (413, "payload_too_large", "record_too_large")
    body = append(http, path, b"[" + b"1," * BODY_MAX + b"1]", "application/json")
    assert words(body) == (413, "payload_too_large", "payload_too_large")


def test_unknown_content_encoding_is_refused(http: httpx.Client, path: str) -> None:
    create(http, path)
    answer = append(http, path, b"x", content_encoding="br")
    assert words(answer) == (415, "unsupported_media_type", "unsupported_media_type")


def test_a_fault_in_the_framing_of_a_body(http: httpx.Client, path: str) -> None:
    answer = append(http, path, b"x", expect="wonders")
    assert words(answer) == (417, "expectation_failed", "expectation_failed")


def test_subscriptions_keep_their_words(http: httpx.Client) -> None:
    assert words(http.get("/v1/stream/__ds/subscriptions/none"))[:2] == (404, "SUBSCRIPTION_NOT_FOUND")
    assert words(http.put("/v1/stream/__ds/subscriptions/none", json={"type": 1}))[:2] == (400, "invalid_request")
