"""/v1 survives all values of its headers and parameters: every request is answered by the protocol, a refused request
changes nothing, and the server serves other clients, also after a crash that makes it read all of it again.
"""

import itertools
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given

from tests.http.live import LiveServer, wait_until_ready
from tests.property.effort import effort
from tests.property.stream_requests import NAMES, SEEN, Asked, each_part, each_value_alone, histories
from topics.api.error_responses import STATUS_BY_CODE, SUBSCRIPTIONS_ROOT, V1_CODE_BY_STATUS, V1_STATUS_BY_CODE
from topics.model.topic_config import REGISTRY_STREAM, is_server_name

# Only to fail instead of hanging.
PATIENCE_S = 20.0
SERVED = {200, 201, 204, 304}
REFUSED = {400, 403, 404, 405, 408, 409, 410, 413, 429, 431, 503}
_OFFSET = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
_REASONS = {"schema", *STATUS_BY_CODE, *V1_STATUS_BY_CODE, *V1_CODE_BY_STATUS.values()}
# Small, so that limits are met.
SETTINGS = {
    "streams_long_poll_ms": "10", "streams_long_poll_max_ms": "20",
    "max_record_bytes": "2000", "max_body_bytes": "65536", "segment_max_events": "20", "wal_file_bytes": "65536",
}  # fmt: skip


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder: Path = tmp_path_factory.mktemp("fuzz")
    with LiveServer(folder, **SETTINGS) as live:
        yield live
        check_all_is_there_after_a_kill(live)


def check_all_is_there_after_a_kill(server: LiveServer) -> None:
    """All results of the tests of this page can be read again from the log."""
    known = _listed(server)
    assert known
    server.kill()
    server.start()
    wait_until_ready(server.url)
    again = _listed(server)
    for name, stream in known.items():
        # The server writes some itself, for instance the end of a stream; streams with an end may have them.
        if is_server_name(name):
            assert int(again[name]["next_offset"]) >= int(stream["next_offset"])
        elif stream["expires_at"] is None:
            assert again[name]["next_offset"] == stream["next_offset"]
    # Notices that the kill interrupted are sent after the start, with some delay.
    give_up = time.monotonic() + PATIENCE_S
    while untrue := _told_untrue(server, again):
        assert time.monotonic() < give_up, f"told of what did not happen: {untrue}"
        time.sleep(0.05)
    assert '"level":"error"' not in server.log()


def _listed(server: LiveServer) -> dict[str, dict[str, Any]]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
        return {stream["name"]: stream for stream in http.get("/v1/streams?limit=1000").json()}


def _told_untrue(server: LiveServer, listed: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The last word of the registry on streams that do not stand like that."""
    last = {reported["stream"]: reported for reported in _told(server)}
    # Nothing is known of one with an end, which may come to it between two questions.
    lasting = [reported for name, reported in last.items() if (listed.get(name) or reported)["expires_at"] is None]
    return [reported for reported in lasting if (reported["stream"] in listed) != (reported["event"] != "deleted")]


def _told(server: LiveServer) -> list[dict[str, Any]]:
    """Reads the registry's events of streams, from the beginning."""
    entries: list[dict[str, Any]] = []
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
        offset, up_to_date = "-1", False
        while not up_to_date:
            page = http.get(f"/v1/stream/{REGISTRY_STREAM}", params={"offset": offset})
            entries += page.json()
            offset, up_to_date = page.headers["stream-next-offset"], "stream-up-to-date" in page.headers
    return entries


def ask(server: LiveServer, asked: Asked, folder: str, seen: str) -> Answer:
    """Sends a request byte by byte as it was made, and reads its answer; of an event stream only the beginning."""
    path = asked.path.replace("{}", folder) + (f"?{asked.query}".replace(SEEN, seen) if asked.query else "")
    headers = [(name.encode(), value.replace(SEEN.encode(), seen.encode())) for name, value in asked.headers]
    headers = [(name, value.replace(b"{}", folder.encode())) for name, value in headers]
    if not any(name == b"Host" for name, _ in headers):
        headers.append((b"Host", b"localhost"))
    headers += [(b"Content-Length", b"%d" % len(asked.body)), (b"Connection", b"close")]
    lines = [
        f"{asked.method} {path} HTTP/1.1".encode("utf-8", "replace"),
        *(b"%b: %b" % pair for pair in headers),
        b"",
        asked.body,
    ]
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as line:
        line.sendall(b"\r\n".join(lines))
        response = HTTPResponse(line, method=asked.method)
        try:
            response.begin()
            reported = {name.lower(): value for name, value in response.getheaders()}
            # A stream may hold text that looks like events, but then its answer has a length.
            events = reported.get("content-type") == "text/event-stream" and "content-length" not in reported
            body = _first_event(response) if events else response.read()
            return Answer(response.status, reported, body)
        finally:
            response.close()


def _first_event(response: HTTPResponse) -> bytes:
    """Every event stream begins with where the reader stands."""
    body = b""
    while b"event: control" not in body or not body.endswith(b"\n\n"):
        more = response.read1(65536)
        assert more, "the events ended before they said where the reader stands"
        body += more
    return body


def complaints(asked: Asked, answer: Answer) -> Iterator[str]:
    """Lists violations in an answer that hold for any request."""
    if answer.status not in SERVED | REFUSED:
        yield "a status that the protocol does not have"
    understood = "access-control-allow-origin" in answer.headers
    if understood and answer.headers.get("x-content-type-options") != "nosniff":
        yield "an answer that lets browsers guess"
    if answer.status >= 400 and asked.method != "HEAD":
        yield from _refusal_complaints(asked, answer)
    reported = answer.headers.get("stream-next-offset")
    if reported is not None and not _OFFSET.fullmatch(reported):
        yield "an offset that is none"
    speaks_of_a_stream = re.fullmatch(r"/v1/stream/\{\}/(a|b|c/d)", asked.path)
    if speaks_of_a_stream and asked.method in ("PUT", "POST", "HEAD") and answer.status in SERVED and reported is None:
        yield "no offset"


def _refusal_complaints(asked: Asked, answer: Answer) -> Iterator[str]:
    try:
        error: dict[str, Any] = msgspec.json.decode(answer.body)["error"]
        code, message = error["code"], error["message"]
    except (ValueError, KeyError, TypeError):
        yield "a refusal without its shape"
        return
    ours = {**STATUS_BY_CODE, **V1_STATUS_BY_CODE}.get(code) == answer.status
    # The protocol of a request is unknown when its head is not even HTTP.
    is_unread = message.startswith("this is not a valid HTTP")
    keeps_ours = is_unread or asked.path.startswith(SUBSCRIPTIONS_ROOT) or answer.status not in V1_CODE_BY_STATUS
    if code not in (V1_CODE_BY_STATUS.get(answer.status), "append_timeout") and not (keeps_ours and ours):
        yield f"a refusal with the code {code}"
    reason = (error.get("detail") or {}).get("reason", code)
    if reason not in _REASONS:
        yield f"a refusal with the reason {reason}"
    if not message or answer.headers.get("content-type") != "application/json":
        yield "a refusal that says nothing"


def state(server: LiveServer, folder: str) -> dict[str, tuple[str, ...]]:
    """Every stream of an example, as HEAD reports it."""
    found: dict[str, tuple[str, ...]] = {}
    for name in NAMES:
        answer = ask(server, Asked("HEAD", f"/v1/stream/{{}}/{name}"), folder, "")
        assert answer.status in (200, 404, 410), answer
        reported = ("stream-next-offset", "stream-closed", "stream-ttl", "content-type")
        found[name] = tuple(answer.headers.get(header, "") for header in reported) if answer.status == 200 else ()
    return found


_numbers = itertools.count(1)


class Play:
    """One folder of streams, and requests to it."""

    def __init__(self, server: LiveServer) -> None:
        self._server = server
        self._folder = f"fuzz-{next(_numbers)}"
        self._seen = "-1"

    def ask(self, asked: Asked) -> Answer:
        """Asks, and holds the answer to all that every answer must be."""
        before = state(self._server, self._folder) if asked.method in ("PUT", "POST", "DELETE") else {}
        answer = ask(self._server, asked, self._folder, self._seen)
        wrong = list(complaints(asked, answer))
        assert not wrong, (wrong, asked, answer)
        if answer.status >= 400 and before:
            now = state(self._server, self._folder)
            # One with a short time to live may have ended meanwhile.
            changed = {name: found for name, found in now.items() if found and found != before[name]}
            assert not changed, ("a refusal changed something", asked, answer, before, changed)
        self._seen = answer.headers.get("stream-next-offset", self._seen)
        return answer

    def check_others_are_served(self) -> None:
        with httpx.Client(base_url=self._server.url, timeout=PATIENCE_S) as http:
            path = f"/v1/stream/{self._folder}/plain"
            assert http.put(path, headers={"content-type": "text/plain"}, content=b"still ").status_code == 201
            assert http.post(path, headers={"content-type": "text/plain"}, content=b"here").status_code == 204
            assert http.get(path).text == "still here"
            assert http.get("/v1/streams").status_code == 200


def test_each_value_alone_is_answered_and_harms_nobody(server: LiveServer) -> None:
    play = Play(server)
    for name, content_type in zip(NAMES, (b"text/plain", b"text/plain", b"application/json"), strict=True):
        play.ask(Asked("PUT", f"/v1/stream/{{}}/{name}", headers=(("Content-Type", content_type),), body=b"[1]"))
    for asked in each_value_alone():
        answer = play.ask(asked)
        if asked.method == "PUT" and answer.status == 201:
            assert play.ask(Asked("HEAD", asked.path)).status in (200, 404), asked
    play.check_others_are_served()


def test_each_word_about_entries_is_answered_and_harms_nobody(server: LiveServer) -> None:
    play = Play(server)
    for name, content_type in zip(NAMES, (b"application/json", b"text/plain", b"application/json"), strict=True):
        play.ask(Asked("PUT", f"/v1/stream/{{}}/{name}", headers=(("Content-Type", content_type),)))
    for asked in each_part():
        play.ask(asked)
    play.check_others_are_served()


@given(histories)
@effort(120)
def test_whatever_is_asked_is_answered_and_harms_nobody(server: LiveServer, history: list[Asked]) -> None:
    play = Play(server)
    for asked in history:
        play.ask(asked)
    play.check_others_are_served()
