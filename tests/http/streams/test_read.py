"""GET: catching up, caching, keys, times, waiting, and events."""

import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.http.streams.conftest import append, create, offset_of, reason_of
from topics.streams.stream_state import decode_offset, encode_offset


def fill(http: httpx.Client, path: str, count: int) -> None:
    create(http, path, "application/json", b"[%b]" % b",".join(b"%d" % n for n in range(count)))


def test_a_reader_goes_on_where_it_stopped(http: httpx.Client, path: str) -> None:
    fill(http, path, 2500)
    found: list[int] = []
    answer = http.get(path)
    while True:
        found += answer.json()
        if answer.headers.get("stream-up-to-date"):
            break
        assert offset_of(answer) < answer.headers["stream-end-offset"]
        answer = http.get(path, params={"offset": offset_of(answer)})
    assert found == list(range(2500))
    assert offset_of(answer) == answer.headers["stream-end-offset"] == offset_of(http.head(path))
    at_end = http.get(path, params={"offset": offset_of(answer)})
    assert (at_end.status_code, at_end.json(), offset_of(at_end)) == (200, [], offset_of(answer))


@pytest.mark.parametrize(
    "query",
    [
        "offset=", "offset=0", "offset=12", "offset=-2", "offset=a,b", "offset=%20", "offset=a%2Fb", "offset=%00",
        "offset=-1&offset=-1", "offset=ZZZZZZZZZZZZZZZZZZZZZZZZZZ", "offset=0000000000000000_0000000000000000",
        "filter=", "filter=%20", "filter=a:1", "live=maybe&offset=-1", "live=sse", "live=long-poll", "format=xml",
        "since=soon", "offset=-1&live=true&timeout=long",
    ],
)  # fmt: skip
def test_a_question_that_is_malformed_is_refused(http: httpx.Client, path: str, query: str) -> None:
    fill(http, path, 1)
    answer = http.get(f"{path}?{query}")
    assert (answer.status_code, reason_of(answer)) == (400, "invalid_request")


def test_unknown_parameters_of_a_read_are_ignored(http: httpx.Client, path: str) -> None:
    fill(http, path, 1)
    assert http.get(f"{path}?offset=-1&foo=bar").json() == [0]


def test_an_offset_may_be_written_small(http: httpx.Client, path: str) -> None:
    fill(http, path, 3)
    end = offset_of(http.get(path))
    assert http.get(path, params={"offset": end.lower()}).json() == []
    assert http.get(path, params={"offset": "O" * 26}).json() == [0, 1, 2]


def test_now_is_the_end(http: httpx.Client, path: str) -> None:
    fill(http, path, 3)
    answer = http.get(path, params={"offset": "now"})
    assert (answer.json(), answer.headers["stream-up-to-date"]) == ([], "true")
    assert answer.headers["cache-control"] == "no-store" and "etag" not in answer.headers
    assert offset_of(answer) == offset_of(http.head(path))


def test_json_may_be_read_raw_and_bytes_not_as_json(http: httpx.Client, path: str) -> None:
    create(http, path, "application/json", b'[1,"a"]')
    assert http.get(path, params={"format": "raw"}).content == b'1"a"'
    assert http.get(path, params={"format": "json"}).json() == [1, "a"]
    create(http, f"{path}-bytes")
    assert http.get(f"{path}-bytes", params={"format": "json"}).status_code == 400


def test_an_offset_of_an_earlier_stream_leads_nowhere(http: httpx.Client, path: str) -> None:
    fill(http, path, 3)
    old = offset_of(http.get(path))
    http.delete(path)
    fill(http, path, 5)
    answer = http.get(path, params={"offset": old})
    assert (answer.status_code, reason_of(answer)) == (410, "offset_gone")


# Caching


def test_a_full_chunk_never_changes_and_the_end_does(http: httpx.Client, path: str) -> None:
    fill(http, path, 2500)
    first = http.get(path, params={"offset": "-1"})
    assert "immutable" not in first.headers["cache-control"], "the start has no epoch, so the address may be reused"
    second = http.get(path, params={"offset": offset_of(first)})
    assert second.headers["cache-control"] == "public, max-age=31536000, immutable"
    last = http.get(path, params={"offset": offset_of(second)})
    assert last.headers["cache-control"] == "public, max-age=60, stale-while-revalidate=300"
    nothing = http.get(path, params={"offset": offset_of(last)})
    assert nothing.headers["cache-control"] == "no-store"


def test_matching_etag_is_304_until_the_stream_closes(http: httpx.Client, path: str) -> None:
    create(http, path, body=b"abc")
    answer = http.get(path)
    tag = answer.headers["etag"]
    start, end = tag.removeprefix('W/"slice:').split(":")[:2]
    assert end == offset_of(answer) and len(start) == 26
    unchanged = http.get(path, headers={"if-none-match": tag})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert offset_of(unchanged) == offset_of(answer)
    http.post(path, headers={"stream-closed": "true"})
    changed = http.get(path, headers={"if-none-match": tag})
    assert (changed.status_code, changed.text) == (200, "abc")
    assert changed.headers["etag"].endswith(':c"')


# Keys and times


@pytest.mark.parametrize("key", ["a", "user/1", "with space", "ünï", 'q"uote'])
def test_a_key_reads_its_own_entries_only(http: httpx.Client, path: str, key: str) -> None:
    create(http, path, "application/json")
    for number in range(120):
        mine = number % 40 == 3
        headers = {b"content-type": b"application/json", b"stream-key": (key if mine else "other").encode()}
        http.post(path, content=b"%d" % number, headers=headers)
    answer = http.get(path, params={"key": key})
    assert answer.json() == [3, 43, 83]
    assert offset_of(answer) == offset_of(http.head(path)), "the cursor goes past what did not match"
    quoted = httpx.URL("http://x/").copy_with(path="/" + key).raw_path.decode()[1:].replace("/", "%2F")
    assert http.get(f"{path}/pk/{quoted}").json() == [3, 43, 83]
    assert http.get(path, params={"key": "nobody"}).json() == []


def test_since_begins_at_a_time(http: httpx.Client, path: str) -> None:
    create(http, path, "application/json")
    for year in range(2000, 2010):
        append(http, path, b"%d" % year, "application/json", stream_timestamp=f"{year}-06-01T00:00:00Z")
    assert http.get(path, params={"since": "2007-06-01T00:00:00Z"}).json() == [2007, 2008, 2009]
    assert http.get(path, params={"since": "2007-06-01T00:00:00.001Z"}).json() == [2008, 2009]
    assert http.get(path, params={"since": "0"}).json() == list(range(2000, 2010))
    assert http.get(path, params={"since": "2027-01-01T00:00:00Z"}).json() == []
    assert len(http.get(path, params={"since": "2009-01-01T00:00:00Z", "offset": "-1"}).json()) == 10, "offset wins"


def beyond(http: httpx.Client, path: str, more: int = 5) -> str:
    """An offset of the stream that lies some entries beyond its end."""
    epoch, counter, _ = decode_offset(offset_of(http.head(path)))
    return encode_offset(epoch, counter + more)


def test_a_read_beyond_the_end_echoes_its_offset(http: httpx.Client, path: str) -> None:
    fill(http, path, 3)
    offset = beyond(http, path)
    for query in ({}, {"key": "a"}, {"format": "raw"}):
        answer = http.get(path, params={"offset": offset.lower(), **query})
        assert (answer.status_code, offset_of(answer)) == (200, offset)
        assert answer.content in (b"[]", b"") and answer.headers["stream-up-to-date"] == "true"
        assert answer.headers["stream-end-offset"] == offset_of(http.head(path))
    epoch, counter, _ = decode_offset(offset)
    foreign = http.get(path, params={"offset": encode_offset(epoch + 1, counter)})
    assert (foreign.status_code, reason_of(foreign)) == (410, "offset_gone")


def test_a_long_poll_beyond_the_end_ends_with_its_offset(http: httpx.Client, path: str) -> None:
    fill(http, path, 1)
    offset = beyond(http, path, 1)
    waited = http.get(path, params={"offset": offset, "live": "true", "timeout": "50ms"})
    assert (waited.status_code, offset_of(waited)) == (204, offset)
    http.post(path, headers={"stream-closed": "true"})
    closed = http.get(path, params={"offset": offset, "live": "true", "timeout": "1h"})
    assert (closed.status_code, closed.headers["stream-closed"]) == (204, "true")


def test_events_beyond_the_end_begin_behind_their_offset(http: httpx.Client, path: str) -> None:
    fill(http, path, 1)
    offset = beyond(http, path, 2)
    with http.stream("GET", path, params={"offset": offset, "live": "sse"}) as answer:
        found = events(answer.iter_lines())
        kind, control = next(found)
        assert kind == "control" and offset in control and '"upToDate":true' in control
        append(http, path, b"[1]", "application/json")
        append(http, path, b"[2,3,4]", "application/json")
        assert next(found) == ("data", "[3,4]")
        assert offset_of(http.head(path)) in next(found)[1]


def test_events_beyond_the_end_of_a_stream_that_closes_end(http: httpx.Client, path: str) -> None:
    fill(http, path, 1)
    with http.stream("GET", path, params={"offset": beyond(http, path), "live": "sse"}) as answer:
        found = events(answer.iter_lines())
        next(found)
        http.post(path, headers={"stream-closed": "true"})
        assert '"streamClosed":true' in next(found)[1]
        assert list(found) == []


@pytest.mark.parametrize("live", ["true", "sse"])
def test_a_live_read_may_begin_at_a_time(http: httpx.Client, path: str, live: str) -> None:
    create(http, path, "application/json")
    for year in ("2007", "2008", "2009"):
        append(http, path, year.encode(), "application/json", stream_timestamp=f"{year}-01-01T00:00:00Z")
    http.post(path, headers={"stream-closed": "true"})
    answer = http.get(path, params={"since": "2008-01-01T00:00:00Z", "live": live})
    assert answer.status_code == 200
    assert (answer.json() if live == "true" else next(events(iter(answer.text.split("\n"))))) == (
        [2008, 2009] if live == "true" else ("data", "[2008,2009]")
    )
    assert http.get(path, params={"live": live}).status_code == 400


# Waiting


@pytest.mark.parametrize("live", ["true", "1", "long-poll"])
def test_a_wait_without_news_ends_with_nothing(http: httpx.Client, path: str, live: str) -> None:
    fill(http, path, 1)
    end = offset_of(http.head(path))
    answer = http.get(path, params={"offset": end, "live": live, "timeout": "50ms"})
    assert (answer.status_code, answer.content, offset_of(answer)) == (204, b"", end)
    assert answer.headers["stream-end-offset"] == end
    assert answer.headers["stream-up-to-date"] == "true"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["stream-cursor"].isdigit()


def test_a_cursor_is_always_above_the_one_before(http: httpx.Client, path: str) -> None:
    fill(http, path, 1)
    given = "9" * 12
    answer = http.get(path, params={"offset": "-1", "live": "long-poll", "cursor": given})
    assert int(answer.headers["stream-cursor"]) > int(given)


@pytest.mark.parametrize("ending", ["append", "close", "delete"])
def test_long_poll_is_answered_by_an_append(http: httpx.Client, path: str, ending: str) -> None:
    create(http, path)
    end = offset_of(http.head(path))

    def act() -> None:
        time.sleep(0.2)
        if ending == "append":
            append(http, path, b"news")
        elif ending == "close":
            http.post(path, headers={"stream-closed": "true"})
        else:
            http.delete(path)

    acting = threading.Thread(target=act)
    acting.start()
    answer = http.get(path, params={"offset": end, "live": "long-poll", "timeout": "4s"})
    acting.join()
    if ending == "append":
        assert (answer.status_code, answer.text) == (200, "news")
    elif ending == "close":
        assert (answer.status_code, answer.headers["stream-closed"]) == (204, "true")
    else:
        assert answer.status_code == 404


def test_live_read_at_the_end_of_a_closed_stream_returns_immediately(http: httpx.Client, path: str) -> None:
    create(http, path, stream_closed="true")
    answer = http.get(path, params={"offset": "-1", "live": "long-poll", "timeout": "1h"})
    assert (answer.status_code, answer.headers["stream-closed"]) == (204, "true")


# Events


def events(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """The events of a stream, each with its data as a client would have it."""
    kind, data = "", []
    for line in lines:
        if line.startswith("event:"):
            kind = line[6:].strip()
        elif line.startswith("data:"):
            data.append(line[6:] if line[5:6] == " " else line[5:])
        elif not line and kind:
            yield kind, "\n".join(data)
            kind, data = "", []


def test_events_carry_data_and_then_where_the_reader_is(http: httpx.Client, path: str) -> None:
    create(http, path, "application/json", b"[1,2]")
    with http.stream("GET", path, params={"offset": "-1", "live": "sse"}) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        assert "no-cache" in answer.headers["cache-control"]
        found = events(answer.iter_lines())
        assert next(found) == ("data", "[1,2]")
        kind, control = next(found)
        assert kind == "control" and '"upToDate":true' in control and '"streamCursor":"' in control
        append(http, path, b"3", "application/json")
        assert next(found) == ("data", "[3]")
        assert offset_of(http.head(path)) in next(found)[1]
        append(http, path, b"4", "application/json", stream_closed="true")
        assert next(found) == ("data", "[4]")
        kind, control = next(found)
        assert '"streamClosed":true' in control and "streamCursor" not in control
        assert list(found) == [], "the end of the stream is the end of the answer"


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        ("hello", "hello"), (" leading", " leading"), ("a\nb", "a\nb"), ("a\r\nb\rc\n", "a\nb\nc\n"),
        ("event: data\n\ndata: x", "event: data\n\ndata: x"), ("ünï", "ünï"),
    ],
)  # fmt: skip
def test_text_comes_through_line_by_line(http: httpx.Client, path: str, sent: str, found: str) -> None:
    create(http, path, body=sent.encode(), stream_closed="true")
    with http.stream("GET", path, params={"offset": "-1", "live": "sse"}) as answer:
        assert "stream-sse-data-encoding" not in answer.headers
        raw = b"".join(answer.iter_raw()).decode()
    assert next(events(iter(raw.split("\n")))) == ("data", found)


def test_bytes_come_as_base64(http: httpx.Client, path: str) -> None:
    create(http, path, "application/octet-stream", b"\x00\xff\n", stream_closed="true")
    with http.stream("GET", path, params={"offset": "-1", "live": "sse"}) as answer:
        assert answer.headers["stream-sse-data-encoding"] == "base64"
        assert next(events(answer.iter_lines())) == ("data", "AP8K")


def test_events_from_now_begin_with_where_now_is(http: httpx.Client, path: str) -> None:
    create(http, path, body=b"old")
    with http.stream("GET", path, params={"offset": "now", "live": "sse"}) as answer:
        found = events(answer.iter_lines())
        kind, control = next(found)
        assert kind == "control" and offset_of(http.head(path)) in control
        append(http, path, b"new")
        assert next(found) == ("data", "new")


def test_a_bad_place_is_refused_before_any_event(http: httpx.Client, path: str) -> None:
    create(http, path)
    old = offset_of(http.head(path))
    http.delete(path)
    create(http, path)
    assert http.get(path, params={"offset": old, "live": "sse"}).status_code == 410
    assert http.get("/v1/stream/nowhere", params={"offset": "-1", "live": "sse"}).status_code == 404
