"""Heads in both directions: the handling of fields, and of the lines of an answer. Refused heads are tested in
tests/http/protocol."""

import pytest

from topics.http.exchange import Renderer
from topics.http.h2.frames import StreamFault
from topics.http.h2.stream import read_head, split_answer
from topics.http.messages import Fault, HttpError, HttpLimits

GET = [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/a?b=c"), (b":authority", b"host:1")]


def test_a_request_is_what_it_would_be_in_http_1() -> None:
    head, length = read_head([*GET, (b"x", b"1"), (b"x", b"2")], HttpLimits(), ended=True)
    assert (head.method, head.target, head.path, head.query, length) == ("GET", b"/a?b=c", "/a", "b=c", 0)
    assert (head.headers.get("host"), head.headers.get_list("x")) == ("host:1", "1, 2")
    assert (head.http_version, head.keep_alive, head.upgrade) == ("2", True, False)


@pytest.mark.parametrize(
    ("reported", "ended", "length"), [(b"5", False, 5), (None, False, None), (b"0", True, 0), (None, True, 0)]
)
def test_the_length_of_a_body_is_reported_or_it_is_chunked(
    reported: bytes | None, ended: bool, length: int | None
) -> None:
    fields = [*GET, *([] if reported is None else [(b"content-length", reported)])]
    head, found = read_head(fields, HttpLimits(), ended=ended)
    assert (found, head.headers.get("transfer-encoding")) == (length, "chunked" if length is None else None)


def test_options_has_a_path_of_its_own() -> None:
    options = [(b":method", b"OPTIONS"), GET[1], (b":path", b"*"), GET[3]]
    assert read_head(options, HttpLimits(), ended=True)[0].path == "*"
    with pytest.raises(StreamFault):
        read_head([GET[0], *options[1:]], HttpLimits(), ended=True)


def test_the_authority_counts_in_the_size_of_a_head() -> None:
    limits = HttpLimits(head_bytes=100)
    read_head([*GET[:3], (b":authority", b"x" * 80)], limits, ended=True)
    with pytest.raises(HttpError) as refused:
        read_head([*GET[:3], (b":authority", b"x" * 90)], limits, ended=True)
    assert refused.value.fault is Fault.HEAD_TOO_LARGE


def test_an_answer_keeps_its_fields_and_loses_those_of_the_connection() -> None:
    headers = [("X-One", "a: b"), ("Connection", "close"), ("Upgrade", "h2c"), ("x-empty", "")]
    payload = Renderer().answer(201, b"body\r\n\r\nmore", "text/plain", headers, b"connection: close\r\n")
    fields, parts = split_answer(payload)
    assert fields[0] == (b":status", b"201")
    assert fields[2:] == [
        (b"content-type", b"text/plain"), (b"x-one", b"a: b"), (b"x-empty", b""), (b"content-length", b"12"),
    ]  # fmt: skip
    assert parts == [b"body\r\n\r\nmore"]


def test_a_long_body_is_a_part_of_its_own_and_none_is_none() -> None:
    long = b"x" * 100_000
    assert split_answer(Renderer().answer(200, long, "a/b", [], b""))[1] == [long]
    assert split_answer(Renderer().answer(304, b"", "", [], b""))[1] == []
    assert split_answer(Renderer().stream_head(200, [("a", "b")], b"", chunked=True))[0][-1] == (b"a", b"b")
