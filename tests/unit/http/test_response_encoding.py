"""Answers as bytes, at a given second."""

import pytest

from topics.http.exchange import LENGTH_LINES, Renderer, connection_line, header_lines, is_bodiless

DATE = b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"


def test_a_whole_answer() -> None:
    pieces = Renderer().answer(200, b"{}", "application/json", [("a", "b")], b"")
    assert pieces == (
        b"HTTP/1.1 200 OK\r\n" + DATE + b"content-type: application/json\r\na: b\r\ncontent-length: 2\r\n\r\n{}",
    )


def test_a_large_body_is_not_copied() -> None:
    body = bytes(100_000)
    head, sent = Renderer().answer(200, body, "application/json", [], b"")
    assert sent is body
    assert head.endswith(b"content-length: 100000\r\n\r\n")


def test_the_date_is_made_once_a_second() -> None:
    renderer = Renderer()
    first = renderer.prefix(200, "text/plain")
    renderer.set_time(999)
    assert renderer.prefix(200, "text/plain") is first
    renderer.set_time(1000)
    assert b"00:00:01 GMT" in renderer.prefix(200, "text/plain")


def test_only_answers_with_a_body_are_found_ready() -> None:
    renderer = Renderer()
    for status in (204, 304):
        assert b"content-type" not in renderer.prefix(status, "text/plain")
        assert is_bodiless(status)
    assert renderer.prefixes == {}
    renderer.prefix(404, "text/plain")
    assert list(renderer.prefixes) == [(404, "text/plain")]


def test_the_lines_of_small_lengths() -> None:
    assert LENGTH_LINES[0] == b"content-length: 0\r\n\r\n"
    assert LENGTH_LINES[1023] == b"content-length: 1023\r\n\r\n"


@pytest.mark.parametrize(
    ("version", "keep", "line"),
    [
        ("1.1", True, b""),
        ("1.1", False, b"connection: close\r\n"),
        ("1.0", True, b"connection: keep-alive\r\n"),
        ("1.0", False, b"connection: close\r\n"),
    ],
)
def test_the_connection_line(version: str, keep: bool, line: bytes) -> None:
    assert connection_line(version, keep=keep) == line


@pytest.mark.parametrize("bad", ["a\rb", "a\nb", "a\0b"])
def test_no_line_ends_in_headers(bad: str) -> None:
    with pytest.raises(ValueError, match="line end"):
        header_lines([(bad, "x")])
    with pytest.raises(ValueError, match="line end"):
        header_lines([("x", bad)])
    with pytest.raises(ValueError, match="line end: 'y'"):
        header_lines([("x", "a: b"), ("y", bad), ("z", "c")])


def test_the_lines_of_headers() -> None:
    assert header_lines([]) == b""
    assert header_lines([("x", "a: b"), ("y", "\u00e9")]) == b"x: a: b\r\ny: \xe9\r\n"
