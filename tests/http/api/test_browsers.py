"""The rights of a page in a browser: without keys only same-origin requests, with keys the origins of a setting."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.http.api.conftest import refused
from tests.http.api.events import EventStream
from tests.http.api.sockets import open_socket
from tests.http.live import LiveServer

ELSEWHERE = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
IMAGE = {"accept": "image/avif,image/webp,*/*;q=0.8"}
APP = "https://app.example"
ONE = {"records": [{"data": 1}]}
_ASKED = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v0/topics"), ("PUT", "/v0/topics/page"), ("POST", "/v0/topics/page"), ("DELETE", "/v0/topics/page"),
        ("GET", "/v1/streams"), ("GET", "/v1/stream/page"), ("PUT", "/v1/stream/page"), ("DELETE", "/v1/stream/page"),
        ("GET", "/v0/metrics"), ("GET", "/v0/health"), ("GET", "/docs"), ("GET", "/nowhere"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "headers",
    [ELSEWHERE, {"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"},
     {"host": "evil.example:4000"}, {"host": "evil.example", "origin": "http://evil.example"}],
    ids=["page", "old browser", "sandbox", "no-cors", "rebound", "rebound page"],
)  # fmt: skip
def test_without_keys_nothing_of_elsewhere_gets_in(
    api: httpx.Client, method: str, path: str, headers: dict[str, str]
) -> None:
    answer = api.request(method, path, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    if "origin" in headers:
        assert "access-control-allow-origin" not in answer.headers


def test_a_connection_that_was_let_in_is_asked_again(server: LiveServer) -> None:
    """The head of a request is remembered by its connection; another head is another page."""
    with httpx.Client(base_url=server.url) as client:
        for _ in range(3):
            assert client.get("/v0/topics").status_code == 200
            assert client.get("/v0/topics", headers=ELSEWHERE).status_code == 403
            assert client.get("/v0/topics", headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:4000"])
def test_names_of_this_machine_are_served(api: httpx.Client, host: str) -> None:
    assert api.get("/v0/topics", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("path", ["/v0/topics", "/v1/streams"])
def test_a_page_of_this_machine_may_read(api: httpx.Client, path: str) -> None:
    page = "http://localhost:3000"
    answer = api.get(path, headers={"origin": page, "sec-fetch-site": "same-site"})
    assert answer.status_code == 200
    assert answer.headers.get_list("access-control-allow-origin") == [page]
    assert "origin" in answer.headers["vary"]
    preflight = api.options(path, headers={"origin": page, **_ASKED})
    assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (204, page)


@pytest.mark.parametrize("path", ["/v0/topics/t", "/v1/stream/s"])
def test_a_preflight_of_elsewhere_allows_nothing(api: httpx.Client, path: str) -> None:
    answer = api.options(path, headers={**ELSEWHERE, **_ASKED})
    assert answer.status_code == 204
    assert "access-control-allow-origin" not in answer.headers


def test_an_image_claims_no_jobs(api: httpx.Client, server: LiveServer, name: str) -> None:
    api.put(f"/v0/topics/{name}", json={"type": "queue"})
    api.post(f"/v0/topics/{name}", json=ONE)
    path = f"/v0/topics/{name}/work?node=w"
    refused(api.get(path, headers={**IMAGE, "sec-fetch-site": "cross-site"}), 403, "forbidden")
    # An old browser does not send the origin of the page.
    refused(api.get(path, headers=IMAGE), 406, "not_acceptable")
    refused(api.get(path, headers={"accept": "*/*"}), 406, "not_acceptable")
    assert api.get(f"/v0/topics/{name}").json()["queue"]["in_flight"] == 0
    for headers in ({"accept": "text/event-stream"}, None):
        with EventStream(server.url, path, headers) as stream:
            assert stream.event().name == "job"


def test_the_socket_is_closed_to_a_name_that_was_made_to_lead_here(api: httpx.Client) -> None:
    handshake = {
        "connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }  # fmt: skip
    rebound = {"origin": "http://evil.example", "host": "evil.example"}
    refused(api.get("/v0/ws", headers={**handshake, **rebound}), 403, "forbidden")
    refused(api.get("/v0/ws", headers={**handshake, **ELSEWHERE}), 403, "forbidden")


def test_other_hosts_can_be_allowed(tmp_path: Path) -> None:
    with LiveServer(tmp_path, allowed_hosts="topics.lan", cors_origins=APP) as live, httpx.Client() as client:
        url = f"{live.url}/v0/topics"
        assert client.get(url, headers={"host": "topics.lan:4000"}).status_code == 200
        assert client.get(url, headers={"host": "other.lan"}).status_code == 403
        named = client.get(url, headers={"origin": APP, "sec-fetch-site": "cross-site"})
        assert (named.status_code, named.headers["access-control-allow-origin"]) == (200, APP)


def test_a_server_for_everyone_answers_to_every_name(tmp_path: Path) -> None:
    with LiveServer(tmp_path, host="0.0.0.0", allow_insecure_no_auth="1") as live, httpx.Client() as client:
        assert client.get(f"{live.url}/v0/topics", headers={"host": "box.lan"}).status_code == 200
        assert client.get(f"{live.url}/v0/topics", headers={"host": "box.lan", **ELSEWHERE}).status_code == 403


@pytest.mark.parametrize("given", [{"cors_origins": "app.example"}, {"allowed_hosts": "a:80"}])
def test_invalid_origin_settings_prevent_the_start(tmp_path: Path, given: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match=f"TOPICS_{next(iter(given)).upper()}"):
        LiveServer(tmp_path, **given).start()


# With keys.


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    keys = "all,mine:r+w:mine.,other"
    with LiveServer(
        tmp_path_factory.mktemp("keyed"), api_keys=keys, cors_origins=APP, max_inflight_per_key="3"
    ) as live:
        yield live


@pytest.fixture
def keyed_api(keyed: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=keyed.url, headers={"authorization": "Bearer all"}, timeout=30.0) as client:
        yield client


@pytest.mark.parametrize(
    "path", ["/v0/topics", "/v1/streams", "/v0/topics/nowhere", "/v1/stream/nowhere", "/v0/nowhere"]
)
def test_the_setting_states_which_pages_may_read(keyed_api: httpx.Client, path: str) -> None:
    app = keyed_api.get(path, headers={"origin": APP, "sec-fetch-site": "cross-site"})
    assert app.headers.get_list("access-control-allow-origin") == [APP]
    assert app.headers["access-control-expose-headers"] == "*"
    other = keyed_api.get(path, headers=ELSEWHERE)
    assert other.status_code == app.status_code, "a page that has a key may send; it cannot read"
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("path", ["/v0/topics/t", "/v0/watch", "/v0/tokens", "/v1/stream/s", "/v1/streams"])
def test_a_page_may_ask_first_without_a_key(keyed: LiveServer, path: str) -> None:
    answer = httpx.options(keyed.url + path, headers={"origin": APP, **_ASKED})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (204, APP)
    assert "authorization" in answer.headers["access-control-allow-headers"].lower()
    assert "DELETE" in answer.headers["access-control-allow-methods"]
    other = httpx.options(keyed.url + path, headers={**ELSEWHERE, **_ASKED})
    assert "access-control-allow-origin" not in other.headers


def test_a_refusal_can_be_read_too(keyed: LiveServer) -> None:
    answer = httpx.get(f"{keyed.url}/v0/topics", headers={"origin": APP})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, APP)


# Tokens, for clients that can send nothing but a URL.


def token_of(api: httpx.Client, ttl_ms: int = 60_000, key: str = "all") -> str:
    answer = api.post("/v0/tokens", json={"ttl_ms": ttl_ms}, headers={"authorization": f"Bearer {key}"})
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store"), answer.text
    reported = answer.json()
    assert set(reported) == {"token", "expires_ms", "performance"}
    return str(reported["token"])


def test_a_token_opens_every_kind_of_stream(keyed: LiveServer, keyed_api: httpx.Client) -> None:
    keyed_api.put("/v0/topics/mine.jobs", json={"type": "queue"})
    keyed_api.post("/v0/topics/mine.jobs", json=ONE)
    keyed_api.post("/v0/topics/mine.t", json=ONE)
    keyed_api.put("/v1/stream/mine.s", content=b"x", headers={"content-type": "text/plain"})
    mine = {"authorization": "Bearer mine"}
    watch = keyed_api.post("/v0/watch", json={"topics": {"mine.t": {}}}, headers=mine).json()["stream_url"]
    token = token_of(keyed_api, key="mine")
    for path in (f"{watch}?x=y", "/v0/topics/mine.jobs/work?node=w"):
        with EventStream(keyed.url, f"{path}&token={token}") as stream:
            assert stream.event().name in ("record", "job")
    with httpx.stream("GET", f"{keyed.url}/v1/stream/mine.s?offset=-1&live=sse&token={token}") as events:
        assert next(events.iter_lines()) == "event: data"
    with open_socket(keyed.url, query=f"?token={token}") as socket:
        assert socket.ask({"op": "publish", "topic": "mine.t", **ONE})["op"] == "ack"
        socket.refused({"op": "publish", "topic": "other", **ONE}, "forbidden")
        socket.refused({"op": "subscribe", "topic": "other"}, "forbidden")
    assert token not in keyed.log()


def test_a_token_has_the_rights_of_its_key(keyed: LiveServer, keyed_api: httpx.Client) -> None:
    keyed_api.put("/v1/stream/other", content=b"x", headers={"content-type": "text/plain"})
    keyed_api.put("/v0/topics/jobs", json={"type": "queue"})
    watch = keyed_api.post("/v0/watch", json={"topics": {"jobs": {}}}).json()["stream_url"]
    token = token_of(keyed_api, key="mine")
    with httpx.Client(base_url=keyed.url, headers={"accept": "text/event-stream"}) as page:
        refused(page.get(f"/v0/topics/jobs/work?node=w&token={token}"), 403, "forbidden")
        assert page.get(f"/v1/stream/other?offset=-1&live=sse&token={token}").status_code == 403
        refused(page.get(f"{watch}?token={token}"), 401, "unauthorized")


def test_a_token_is_for_streams_and_for_nothing_else(keyed: LiveServer, keyed_api: httpx.Client) -> None:
    token = token_of(keyed_api)
    with httpx.Client(base_url=keyed.url) as page:
        for headers in ({}, {"authorization": f"Bearer {token}"}):
            for method, path in (
                ("GET", "/v0/topics"),
                ("POST", "/v0/tokens"),
                ("DELETE", "/v0/topics/t"),
                ("GET", "/v1/streams"),
            ):
                assert page.request(method, f"{path}?token={token}", headers=headers).status_code == 401
        # Where keys were never taken from a URL, only tokens are.
        assert page.get("/v1/stream/s?token=all").status_code == 401
        refused(page.get("/v0/ws?token=all"), 401, "unauthorized")


@pytest.mark.parametrize("spoilt", ["tok_", "tok_x", "tok_AAAA", "tok_" + "A" * 48, "tok_" + "A" * 5000, "tok_é"])
def test_invalid_token_is_refused(keyed: LiveServer, spoilt: str) -> None:
    path = f"{keyed.url}/v1/stream/s?offset=-1"
    refused_ = httpx.get(path, params={"offset": "-1", "token": spoilt})
    assert refused_.status_code == 401


def test_a_token_that_was_changed_is_refused(keyed: LiveServer, keyed_api: httpx.Client) -> None:
    token = token_of(keyed_api)
    for place in (4, 10, 20, 40, len(token) - 1):
        other = "B" if token[place] == "A" else "A"
        changed = token[:place] + other + token[place + 1 :]
        assert httpx.get(f"{keyed.url}/v1/stream/s", params={"token": changed}).status_code == 401


@pytest.mark.parametrize("body", [{"ttl_ms": 0}, {"ttl_ms": -1}, {"ttl_ms": 3_600_001}, {"ttl_ms": "1"}, []])
def test_a_token_lasts_for_an_hour_at_most(keyed_api: httpx.Client, body: object) -> None:
    refused(keyed_api.post("/v0/tokens", json=body), 400, "invalid_request")


def test_without_keys_a_token_changes_nothing(api: httpx.Client, server: LiveServer) -> None:
    token = api.post("/v0/tokens", json={}).json()["token"]
    with open_socket(server.url, query=f"?token={token}") as socket:
        socket.quiet()
