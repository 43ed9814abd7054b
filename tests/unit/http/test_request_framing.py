"""Begin and end of requests: counted in the bytes that came."""

import pytest

from topics.http.h1.request_framing import RequestFramer
from topics.http.messages import Headers, RequestHead

HEAD = b"POST /t HTTP/1.1\r\nhost: h\r\ncontent-length: 3"
WHOLE = HEAD + b"\r\n\r\nabc"


def head() -> RequestHead:
    headers = Headers({b"host": b"h", b"content-length": b"3"}, [])
    return RequestHead("POST", b"/t", "/t", "", headers, "1.1", keep_alive=True)


def edges(fresh: bytes) -> RequestFramer:
    made = RequestFramer(1000)
    made.begin(fresh, len(fresh))
    return made


def test_heads_of_a_piece_are_cut_out_one_after_the_other() -> None:
    between = edges(WHOLE + WHOLE)
    assert [between.candidate(head(), 3), between.candidate(head(), 3)] == [HEAD, HEAD]
    assert between.since_bytes == between.due_bytes
    assert between.candidate(head(), 3) is None


def test_a_body_that_is_not_whole_leaves_the_rest_of_it() -> None:
    between = edges(WHOLE[:-1])
    assert between.candidate(head(), 3) == HEAD
    assert between.left_of_request(0) == 1
    between.since_bytes += 1
    assert between.left_of_request(0) == 0 and between.left_of_request(1) == 1


@pytest.mark.parametrize(
    ("fresh", "length"),
    [(b"\r\n" + WHOLE, 3), (WHOLE, None), (HEAD, 3)],
    ids=["an empty line before it", "a body of unknown length", "an end that is not there"],
)
def test_where_it_is_not_certain_nobody_can_report_any_more(fresh: bytes, length: int | None) -> None:
    between = edges(fresh)
    assert between.candidate(head(), length) is None
    assert between.fresh is None and between.left_of_request(0) < 0
