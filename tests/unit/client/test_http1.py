"""Answers out of bytes, wherever these are cut."""

import gzip

import pytest

from topics_client.transport.http1 import ProtocolError, ResponseParser, header_lines

HEAD = b"HTTP/1.1 200 Fine, thanks\r\n"
PACKED = gzip.compress(b"hello" * 20)
WHOLE = {
    "a length": (HEAD + b"content-length: 5\r\nX-A: 1\r\nx-a:  2 \r\n\r\nhello", b"hello"),
    "chunks": (HEAD + b"transfer-encoding: chunked\r\n\r\n3;a=b\r\nhel\r\n2\r\nlo\r\n0\r\nx-t: 1\r\n\r\n", b"hello"),
    "nothing": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "an interim answer": (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"content-length: 5\r\n\r\nhello", b"hello"),
    "gzip": (HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(PACKED) + PACKED, b"hello" * 20),
}


def read(parts: list[bytes], method: str = "GET") -> tuple[ResponseParser, bytes]:
    parser, body = ResponseParser(method), b""
    for part in parts:
        assert not parser.done
        parser.feed(part)
        body += parser.take_body()
    return parser, body


@pytest.mark.parametrize("name", WHOLE)
def test_an_answer_may_be_cut_anywhere(name: str) -> None:
    text, body = WHOLE[name]
    for cut in range(1, len(text)):
        parser, found = read([text[:cut], text[cut:]])
        assert parser.done and parser.keep_alive
        assert found == body
        assert parser.response is not None and parser.response.is_success
    parser, _ = read([bytes([byte]) for byte in text])
    assert parser.done


def test_headers_are_found_by_small_letters_and_repeated_ones_are_joined() -> None:
    parser, _ = read([WHOLE["a length"][0]])
    assert parser.response is not None
    assert (parser.response.status, parser.response.reason) == (200, "Fine, thanks")
    assert parser.response.headers == {"content-length": "5", "x-a": "1, 2"}


def test_an_answer_to_head_has_no_body_whatever_it_states() -> None:
    parser, body = read([HEAD + b"content-length: 5\r\n\r\n"], "HEAD")
    assert (parser.done, parser.keep_alive, body) == (True, True, b"")
    parser, body = read([HEAD + b"content-length: 5\r\n\r\nhello"], "HEAD")
    assert (parser.done, parser.keep_alive, body) == (True, False, b"")


def test_a_second_answer_spoils_neither_the_first_nor_the_next_request() -> None:
    whole = WHOLE["a length"][0]
    parser, body = read([whole + whole])
    assert (parser.done, parser.keep_alive, body) == (True, False, b"hello")
    assert parser.response is not None and parser.response.headers["x-a"] == "1, 2"


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    parser, body = read([HEAD + b"\r\nhel", b"lo", b""])
    assert (parser.done, parser.keep_alive, body) == (True, False, b"hello")


@pytest.mark.parametrize("name", WHOLE)
def test_an_end_in_the_middle_is_not_an_answer(name: str) -> None:
    text, _ = WHOLE[name]
    for cut in range(len(text)):
        with pytest.raises(ProtocolError):
            read([text[:cut], b""] if cut else [b""])


def test_a_header_is_sent_as_it_was_given() -> None:
    assert header_lines({"x": " a b ", "y": "ü"}) == "x: a b\r\ny: ü\r\n".encode()
    for headers in ({"x": "a\nb"}, {"x": "\x7f"}, {"a b": "1"}, {"ä": "1"}):
        with pytest.raises(ValueError, match="header"):
            header_lines(headers)
