"""PUT, HEAD, DELETE and OPTIONS of a stream."""

from pathlib import Path

import httpx
import pytest

from tests.http.live import LiveServer
from tests.http.streams.conftest import append, create, create_with, offset_of, reason_of


def test_a_new_stream_is_reported_with_its_address_and_its_end(http: httpx.Client, path: str) -> None:
    answer = create(http, path, "text/plain; charset=utf-8")
    assert answer.status_code == 201
    assert answer.headers["location"] == f"{http.base_url}{path}".replace("//v1", "/v1")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert len(offset_of(answer)) == 26
    assert answer.content == b""


def test_location_does_not_reflect_a_foreign_host(tmp_path: Path) -> None:
    key = "a-key-of-the-tests"
    with LiveServer(tmp_path, api_keys=key, allowed_hosts="topics.lan") as live:
        port = live.url.rpartition(":")[2]
        cases = {
            "evil.example": "", "127.0.0.1.evil.example": "", "evil.example:4000": "", "[::2]": "", "10.0.0.9": "",
            "@127.0.0.1": "", "evil.example/@127.0.0.1": "",
            "topics.lan": "http://topics.lan", f"localhost:{port}": f"http://localhost:{port}",
        }  # fmt: skip
        for number, (host, front) in enumerate(cases.items()):
            path = f"/v1/stream/s{number}"
            answer = httpx.put(live.url + path, headers={"host": host, "authorization": f"Bearer {key}"})
            if answer.status_code != 400:
                assert (answer.status_code, answer.headers["location"]) == (201, front + path), host


def test_without_a_content_type_it_holds_bytes(http: httpx.Client, path: str) -> None:
    assert http.put(path).headers["content-type"] == "application/octet-stream"


def test_the_same_again_is_no_mistake(http: httpx.Client, path: str) -> None:
    create(http, path, stream_ttl="3600")
    answer = create(http, path, "TEXT/plain;charset=utf-8", stream_ttl="1h")
    assert answer.status_code == 200
    assert "location" not in answer.headers


@pytest.mark.parametrize(
    ("content_type", "headers"),
    [
        ("application/json", {}),
        ("text/plain", {"stream_ttl": "60"}),
        ("text/plain", {"stream_expires_at": "2099-01-01T00:00:00Z"}),
        ("text/plain", {"stream_closed": "true"}),
        ("text/plain", {"stream_forked_from": "/v1/stream/the-source"}),
    ],
)
def test_other_settings_are_a_conflict(
    http: httpx.Client, path: str, content_type: str, headers: dict[str, str]
) -> None:
    create(http, "/v1/stream/the-source")
    create(http, path)
    answer = create_with(http, path, content_type, headers)
    assert (answer.status_code, reason_of(answer)) == (409, "stream_conflict")


def test_a_body_is_the_first_content(http: httpx.Client, path: str) -> None:
    create(http, path, "application/json", b'[{"n": 1}, 2.0]')
    assert http.get(path).content == b'[{"n": 1},2.0]'


@pytest.mark.parametrize(("content_type", "body", "found"), [("application/json", "[1,2]", "[1,2]"), ("", "ab", "ab")])
def test_the_first_content_has_the_key_and_the_time_that_it_was_given(
    http: httpx.Client, path: str, content_type: str, body: str, found: str
) -> None:
    headers = {"content-type": content_type} if content_type else {}
    given = {**headers, "stream-key": "k", "stream-timestamp": "2020-01-01T00:00:00Z"}
    assert http.put(path, content=body, headers=given).status_code == 201
    assert http.get(path, params={"key": "k"}).text == found
    assert http.get(path, params={"since": "2020-01-01T00:00:00Z"}).text == found
    assert http.get(path, params={"since": "2020-01-01T00:00:00.001Z"}).text in ("", "[]")


def test_a_bad_key_or_time_creates_nothing(http: httpx.Client, path: str) -> None:
    for headers in ({"stream-key": "k" * 300}, {"stream-timestamp": "soon"}):
        assert http.put(path, content=b"x", headers=headers).status_code == 400
        assert http.head(path).status_code == 404


def test_a_fork_whose_entries_bring_their_keys_takes_no_other(http: httpx.Client, path: str) -> None:
    create(http, path, "application/json")
    http.post(f"{path}/_schema", json={"routingKey": {"jsonPointer": "/k", "required": True}})
    headers = {"stream-forked-from": path, "content-type": "application/json"}
    refused = http.put(f"{path}-f", content=b'{"k":"a"}', headers={**headers, "stream-key": "b"})
    assert (refused.status_code, refused.json()["error"]["detail"]["field"]) == (400, "Stream-Key")
    assert http.put(f"{path}-f", content=b'{"k":"a"}', headers=headers).status_code == 201
    assert http.get(f"{path}-f", params={"key": "a"}).json() == [{"k": "a"}]


def test_a_long_first_content_needs_no_type_either(http: httpx.Client, path: str) -> None:
    body = b"x" * 3_000_000
    answer = http.put(path, content=body, headers={"stream-key": "k"})
    assert (answer.status_code, answer.headers["content-type"]) == (201, "application/octet-stream")
    found, offset = b"", "-1"
    while len(found) < len(body):
        part = http.get(path, params={"offset": offset, "key": "k"})
        found, offset = found + part.content, offset_of(part)
        assert part.content
    assert found == body


def test_bad_json_creates_nothing(http: httpx.Client, path: str) -> None:
    assert create(http, path, "application/json", b"[1,").status_code == 400
    assert http.head(path).status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"stream_ttl": "+60"}, {"stream_ttl": "060"}, {"stream_ttl": "1.5"}, {"stream_ttl": "1e3"},
        {"stream_ttl": "-1"}, {"stream_ttl": "1500ms"}, {"stream_ttl": "x"}, {"stream_expires_at": "tomorrow"},
        {"stream_expires_at": "2026-13-01T00:00:00Z"},
        {"stream_ttl": "60", "stream_expires_at": "2099-01-01T00:00:00Z"},
        {"stream_fork_sub_offset": "0"}, {"stream_fork_offset": "-1"}, {"stream_forked_from": "nowhere"},
    ],
)  # fmt: skip
def test_a_header_that_is_malformed_is_refused(http: httpx.Client, path: str, headers: dict[str, str]) -> None:
    answer = create_with(http, path, "text/plain", headers)
    assert (answer.status_code, reason_of(answer)) == (400, "invalid_request")
    assert http.head(path).status_code == 404


@pytest.mark.parametrize("segment", ["%00", "%0A", "a%7F", "x" * 1025])
def test_a_name_that_cannot_be_is_refused(http: httpx.Client, segment: str) -> None:
    assert http.put(f"/v1/stream/{segment}").status_code == 400


def test_slashes_are_part_of_a_name_however_they_are_spelled(http: httpx.Client, name: str) -> None:
    create(http, f"/v1/stream/{name}/a/b", body=b"x")
    assert http.get(f"/v1/stream/{name}%2Fa%2Fb/").text == "x"
    assert http.get(f"/v1/stream/{name}/a").status_code == 404


def test_head_reports_all_there_is_to_report(http: httpx.Client, path: str) -> None:
    create(http, path, stream_ttl="2m", stream_closed="true", body=b"abc")
    answer = http.head(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain"
    assert answer.headers["stream-next-offset"] == answer.headers["stream-end-offset"] == offset_of(http.get(path))
    assert answer.headers["stream-ttl"] == "120"
    assert answer.headers["stream-expires-at"].endswith("Z")
    assert answer.headers["stream-closed"] == "true"
    assert answer.headers["cache-control"] == "no-store"


def test_an_expiry_is_reported_as_it_was_given(http: httpx.Client, path: str) -> None:
    given = {"stream_expires_at": "2099-06-01T12:00:00.25+02:00"}
    first, again = (create_with(http, path, "text/plain", given, body) for body in (b"x", b""))
    read = http.get(path)
    unchanged = http.get(path, headers={"if-none-match": read.headers["etag"]})
    polls = [http.get(path, params={"offset": offset, "live": "long-poll"}) for offset in ("-1", "now")]
    answers = [first, again, http.head(path), read, unchanged, http.get(f"{path}?offset=now"), *polls]
    assert [answer.status_code for answer in answers] == [201, 200, 200, 200, 304, 200, 200, 204]
    assert {answer.headers.get("stream-expires-at") for answer in answers} == {"2099-06-01T10:00:00.250Z"}
    with http.stream("GET", path, params={"offset": "-1", "live": "sse"}) as events:
        assert events.headers["stream-expires-at"] == "2099-06-01T10:00:00.250Z"


def test_a_time_to_live_is_reported_as_the_moment_it_leads_to(http: httpx.Client, path: str) -> None:
    """A read renews it before it answers, so the reported moment is never earlier than a previous one."""
    reported = [answer.headers["stream-expires-at"] for answer in (create(http, path, stream_ttl="1h"), http.get(path))]
    assert reported == sorted(reported)
    assert http.head(path).headers["stream-expires-at"] == reported[-1]


def test_a_stream_without_an_end_reports_none(http: httpx.Client, path: str) -> None:
    for answer in (create(http, path, body=b"x"), http.get(path), http.head(path)):
        assert "stream-expires-at" not in answer.headers


def test_a_stream_past_its_expiry_is_not_there_and_its_name_is_free(http: httpx.Client, path: str) -> None:
    assert create(http, path, stream_expires_at="2001-01-01T00:00:00Z").status_code == 201
    assert http.head(path).status_code == http.get(path).status_code == append(http, path, b"x").status_code == 404
    assert create(http, path, "application/json").status_code == 201


def test_a_deleted_stream_is_gone_and_deleting_it_again_reports_it(http: httpx.Client, path: str) -> None:
    end = offset_of(create(http, path, body=b"abc"))
    deleted = http.delete(path)
    assert (deleted.status_code, offset_of(deleted)) == (204, end)
    assert http.delete(path).status_code == http.get(path).status_code == http.head(path).status_code == 404


@pytest.mark.parametrize("path_", ["/v1/stream/nowhere", "/v1/stream/nowhere/_schema", "/v1/stream/__ds/nothing"])
def test_every_answer_states_that_its_type_is_not_to_be_guessed(http: httpx.Client, path_: str) -> None:
    answer = http.get(path_)
    assert answer.status_code == 404
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["access-control-allow-origin"] == "*"
    assert set(answer.json()["error"]) >= {"code", "message"}


def test_a_browser_may_ask_first(http: httpx.Client, path: str) -> None:
    answer = http.options(path)
    assert answer.status_code == 204
    assert "PUT" in answer.headers["access-control-allow-methods"]
    assert "If-None-Match" in answer.headers["access-control-allow-headers"]


def test_other_methods_are_reported_what_is_possible(http: httpx.Client, path: str) -> None:
    answer = http.patch(path)
    assert answer.status_code == 405
    assert "PUT" in answer.headers["allow"]


def test_the_list_has_every_stream_by_name(http: httpx.Client, name: str) -> None:
    for number in range(3):
        create(http, f"/v1/stream/list/{name}/{number}", body=b"x" * number)
    found = http.get("/v1/streams", params={"prefix": f"list/{name}/"}).json()
    assert [entry["name"] for entry in found] == [f"list/{name}/{number}" for number in range(3)]
    assert [entry["next_offset"] for entry in found] == ["0", "1", "1"]
    assert set(found[0]) == {
        "name", "created_at", "expires_at", "epoch", "next_offset", "sealed_through", "uploaded_through", "profile",
    }  # fmt: skip
    assert found[0]["profile"] == "generic" and found[0]["expires_at"] is None
    page = http.get("/v1/streams", params={"prefix": f"list/{name}/", "limit": "1", "offset": "1"}).json()
    assert [entry["name"] for entry in page] == [f"list/{name}/1"]


@pytest.mark.parametrize("query", ["limit=x", "limit=0", "offset=-1", "limit=1.5"])
def test_a_page_that_is_malformed_is_refused(http: httpx.Client, query: str) -> None:
    assert http.get(f"/v1/streams?{query}").status_code == 400
