"""Pages over HTTP: available without a key, in every state of the server, and with a strict content security policy."""

from pathlib import Path

import httpx
import pytest

from tests.http.api.conftest import refused
from tests.http.live import LiveServer, wait_until_ready


def test_the_page_and_its_files_are_there(api: httpx.Client) -> None:
    page = api.get("/console")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert '<script type="module" src="console/main.js">' in page.text
    script = api.get("/console/main.js")
    assert (script.status_code, script.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert api.get("/console/pages/overview.js").status_code == 200


@pytest.mark.parametrize("path", ["/console", "/console/main.js", "/console/base.css"])
def test_the_policy_is_strict(api: httpx.Client, path: str) -> None:
    headers = api.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_cached_file_is_answered_with_304(api: httpx.Client) -> None:
    for coding in ("gzip", "identity"):
        first = api.get("/console/main.js", headers={"accept-encoding": coding})
        assert first.headers.get_list("vary") == ["accept-encoding"]
        tag = first.headers["etag"]
        again = api.get("/console/main.js", headers={"accept-encoding": coding, "if-none-match": tag})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        head = api.head("/console/main.js", headers={"accept-encoding": coding})
        assert (head.content, head.headers["etag"]) == (b"", tag)


def test_the_front_door_is_for_browsers(api: httpx.Client) -> None:
    sent = api.get("/", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (sent.status_code, sent.headers["location"]) == (303, "console")
    refused(api.get("/"), 404, "not_found")
    refused(api.post("/", json={}), 405, "method_not_allowed")
    slash = api.get("/console/")
    assert (slash.status_code, slash.headers["location"]) == (308, "../console")


@pytest.mark.parametrize(
    "path",
    ["/console/nothing.js", "/console/index.html", "/console/../server.py", "/console/%2e%2e/site.py", "/console//",
     "/console/pages", "/console/site.py", "/console/README.md"],
)  # fmt: skip
def test_nothing_but_the_files_is_there(server: LiveServer, path: str) -> None:
    # As it stands: a client would tidy the path up.
    with httpx.Client() as client:
        request = client.build_request("GET", server.url)
        request.url = request.url.copy_with(raw_path=path.encode())
        refused(client.send(request), 404, "not_found")


def test_another_path_that_begins_alike_is_another_path(api: httpx.Client) -> None:
    refused(api.get("/consoles"), 404, "not_found")
    assert refused(api.post("/console", json={}), 405, "method_not_allowed")["allowed"] == ["GET", "HEAD"]
    assert api.head("/console").status_code == 200


def test_console_files_need_no_key_but_data_does(tmp_path: Path) -> None:
    with LiveServer(tmp_path, api_keys="boss,till:rw:shop.|common.", probe_auth="1", max_topics="77") as live:
        wait_until_ready(live.url, "boss")
        with httpx.Client(base_url=live.url) as api:
            assert api.get("/console").status_code == 200
            assert api.get("/console/api.js").status_code == 200
            refused(api.get("/v0/self"), 401, "unauthorized")
            reported = api.get("/v0/self", headers={"authorization": "Bearer till"}).json()
            assert reported["key"] == {"name": "#2", "scopes": ["read", "write"], "prefixes": ["shop.", "common."]}
            assert reported["keys_required"]
            assert reported["limits"]["max_topics"] == 77


def test_self_reports_full_access_without_keys(api: httpx.Client) -> None:
    reported = api.get("/v0/self").json()
    assert reported["key"] == {"name": "", "scopes": ["read", "write", "delete", "admin"], "prefixes": []}
    assert not reported["keys_required"]


def test_without_keys_a_name_of_elsewhere_gets_no_page(tmp_path: Path) -> None:
    with LiveServer(tmp_path, allowed_hosts="console.example") as live:
        refused(httpx.get(f"{live.url}/console", headers={"host": "evil.example"}), 403, "forbidden")
        assert httpx.get(f"{live.url}/console", headers={"host": "console.example"}).status_code == 200
        elsewhere = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        refused(httpx.get(f"{live.url}/console", headers=elsewhere), 403, "forbidden")


def test_metrics_without_series_by_topic(api: httpx.Client, name: str) -> None:
    api.post(f"/v0/topics/{name}", json={"records": [{"data": 1}]}).raise_for_status()
    assert f'topic="{name}"' in api.get("/v0/metrics").text
    short = api.get("/v0/metrics", params={"topics": "false"}).text
    assert "topics_topic_head_seq" not in short
    assert "topics_topic_metrics_truncated 1.0" in short
    assert "topics_topic_head_seq" not in api.get("/v0/metrics?topics=0", headers={"accept": "application/json"}).json()


def test_the_reference_is_there_with_all_of_its_files(api: httpx.Client) -> None:
    page = api.get("/docs")
    assert "docs/swagger-ui-bundle.js" in page.text
    assert "'unsafe" not in page.headers["content-security-policy"]
    bundle = api.get("/docs/swagger-ui-bundle.js")
    assert (bundle.status_code, bundle.headers["content-encoding"]) == (200, "gzip")
    assert len(bundle.content) > 1_000_000
    assert api.get("/docs/swagger-ui.css").status_code == api.get("/docs/start.js").status_code == 200
    refused(api.get("/docs/index.css"), 404, "not_found")
    slash = api.get("/docs/")
    assert (slash.status_code, slash.headers["location"]) == (308, "../docs")
