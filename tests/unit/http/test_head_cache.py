"""A head that a connection has sent before is not read again, and means the same as it did."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.protocol.memory import Memory
from tests.http.protocol.support import App, Gathering, get, keep, post, split_answers
from topics.http import Refusal, RequestHead
from topics.http.exchange import OneRequest


def bodies(memory: Memory) -> list[bytes]:
    return [exchange.body for exchange in memory.app.exchanges]


def test_a_repeated_head_is_read_once_and_each_body_is_its_own() -> None:
    memory = Memory(App())
    for body in (b"first", b"other", b"third"):
        memory.send(post("/", body))
    assert len(memory.app.admitted) == 1
    assert bodies(memory) == [b"first", b"other", b"third"]
    assert len(split_answers(memory.answered)) == 3
    memory.leave()


def test_a_request_without_a_body_repeats_too() -> None:
    memory = Memory(App())
    for _ in range(3):
        memory.send(get("/"))
    assert len(memory.app.admitted) == 1
    assert len(split_answers(memory.answered)) == 3
    memory.leave()


@pytest.mark.parametrize("last", [(), ("x: y",)], ids=["at the end", "in the middle"])
def test_bodies_of_any_length_have_the_same_head(last: tuple[str, ...]) -> None:
    memory = Memory(App())
    sent = [b"x" * length for length in (3, 1, 10, 999, 1000, 20_000)]
    for body in sent:
        memory.send(get("/", f"Content-Length: {len(body)}", *last, method="POST") + body)
    assert len(memory.app.admitted) == 1
    assert bodies(memory) == sent
    assert all("content-length" not in exchange.head.headers for exchange in memory.app.exchanges[1:])
    memory.leave()


def test_every_length_around_one_more_digit() -> None:
    memory = Memory(App())
    lengths = [5, *range(1, 120), *range(985, 1015), *range(9985, 10_015), *range(99_985, 100_015)]
    for length in lengths:
        memory.send(post("/", b"x" * length))
    assert len(memory.app.admitted) == 1
    assert [len(body) for body in bodies(memory)] == lengths
    memory.leave()


def test_a_request_with_a_body_is_not_known_by_one_without() -> None:
    memory = Memory(App())
    for body in (b"", b"1", b""):
        memory.send(post("/", body))
    assert len(memory.app.admitted) == 2
    assert bodies(memory) == [b"", b"1", b""]
    memory.leave()


def test_a_body_longer_than_was_allowed_is_refused_as_ever() -> None:
    memory = Memory(App(admit=lambda head: 10))
    memory.send(post("/", b"x" * 10))
    memory.send(post("/", b"x" * 11))
    assert [answer.status for answer in split_answers(memory.answered)] == [200, 413]
    memory.leave()


def test_a_head_that_may_have_short_bodies_only_is_not_known() -> None:
    app = Steady()
    app.verdict = 10
    memory = Memory(app)
    for asked in (1, 2, 3):
        memory.send(post("/", b"x" * 10))
        assert app.asked == asked
    assert len(memory.connection._framer) == 0
    app.verdict, app.admission = 1_000_000, "more"
    for asked in (4, 5, 5):
        memory.send(post("/", b"x" * 10))
        assert app.asked == asked
    app.verdict, app.admission = 10, "less"
    memory.send(post("/", b"x" * 11))
    assert [answer.status for answer in split_answers(memory.answered)] == [200] * 6 + [413]
    memory.leave()


def test_a_large_body_is_read_as_ever() -> None:
    memory = Memory(App())
    for length in (10, 200_000, 200_000):
        memory.send(post("/", b"x" * length))
    assert len(memory.app.admitted) == 3
    assert [len(body) for body in bodies(memory)] == [10, 200_000, 200_000]
    memory.leave()


def seen(app: App, *requests: bytes) -> tuple[list[tuple[str, bytes, list[tuple[str, str]]]], list[int], bool]:
    """Returns the parts of requests that the application receives, each request in a separate read, and the answers to
    the client."""
    memory = Memory(app)
    memory.send(*requests)
    shown = [
        (
            exchange.head.target.decode("latin-1"),
            exchange.body,
            [(name, value) for name, value in exchange.head.headers if name != "content-length"],
        )
        for exchange in memory.app.exchanges
    ]
    statuses = [answer.status for answer in split_answers(memory.answered)]
    closing = memory.wire.closing or memory.wire.ended
    memory.leave()
    return shown, statuses, closing


def assert_read_alike(known: bytes, request: bytes) -> None:
    """A connection that knows a head parses a request like one without known heads."""
    shown, statuses, closing = seen(App(), request)
    first, first_statuses, _ = seen(App(), known)
    expected = (first + shown, first_statuses + statuses, closing)
    assert seen(App(), known, request) == expected
    # Known three times: by its head, by the bytes before the body of one, and by the head of one that was cut off.
    again = (first * 2 + expected[0], first_statuses * 2 + expected[1], closing)
    assert seen(Gathering(), known, known + known, request) == again


@pytest.mark.parametrize(
    "spelled",
    ["5", "05", "005", "+5", "-5", " 5", "5 ", "5\t", "\t5", "0x5", "5.0", "5,5", "5, 5", "1_0", "", "0", "4", "6",
     "\xb5", "18446744073709551621", "99999999999999999999", "5;a=b", "five", "5\r\ncontent-length: 5", "5\r\nx: y",
     "5\r\ntransfer-encoding: chunked", "5\r\nexpect: 100-continue", "5\r\nconnection: close", "5\n", "5\r"],
)  # fmt: skip
@pytest.mark.parametrize("place", ["last", "middle"])
def test_only_a_number_as_everybody_writes_it_is_a_length(spelled: str, place: str) -> None:
    behind = ("x: z",) if place == "middle" else ()
    known = get("/", "content-length: 3", *behind, method="POST") + b"abc"
    assert_read_alike(known, get("/", f"content-length: {spelled}", *behind, method="POST") + b"hello")


@given(
    st.integers(0, 90), st.integers(0, 8), st.binary(max_size=6) | st.sampled_from([b"\r\n", b"\r\n\r\n", b"0", b"12"])
)
def test_a_damaged_request_is_never_taken_for_a_known_one(at: int, cut: int, instead: bytes) -> None:
    known = post("/topic", b"hello", "content-type: application/json")
    assert_read_alike(known, known[:at] + instead + known[at + cut :])


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nhost: x\r\nx: content-length\r\ncontent-length: 5\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\nx-content-length: 7\r\ncontent-length: 5\r\n\r\n",
    ],
)
def test_a_head_that_speaks_of_lengths_twice_is_not_known(head: bytes) -> None:
    memory = Memory(App())
    memory.send(head + b"hello")
    memory.send(head + b"hello")
    assert len(memory.app.admitted) == 2
    memory.leave()


def test_another_head_is_read() -> None:
    memory = Memory(App())
    memory.send(post("/a", b"1"))
    memory.send(post("/b", b"1"))
    memory.send(post("/a", b"1", "x: y"))
    memory.send(post("/a", b"1"))
    assert [head.path for head in memory.app.admitted] == ["/a", "/b", "/a"]
    assert [exchange.head.path for exchange in memory.app.exchanges] == ["/a", "/b", "/a", "/a"]
    memory.leave()


def test_a_repeated_request_in_pieces_is_read_as_ever_and_the_next_repeats() -> None:
    memory = Memory(App())
    memory.send(post("/", b"whole"))
    memory.send(post("/", b"split")[:-3])
    memory.send(b"lit")
    memory.send(post("/", b"again"))
    assert len(memory.app.admitted) == 2
    assert bodies(memory) == [b"whole", b"split", b"again"]
    memory.leave()


def test_what_follows_a_request_in_the_same_piece_is_not_taken_for_its_body() -> None:
    memory = Memory(App())
    memory.send(post("/", b"first"))
    memory.send(post("/", b"other") + post("/", b"third"))
    memory.send(post("/", b"forth"))
    assert bodies(memory) == [b"first", b"other", b"third", b"forth"]
    memory.leave()


def test_requests_that_come_in_one_piece_are_known_each() -> None:
    memory = Memory(App())
    for number in range(4):
        memory.send(post("/a", b"a" * (number + 8)) + post("/b", b"b") + get("/c"))
        memory.send(post("/d", b"d" * (number + 8)))
    exchanges = memory.app.exchanges
    assert [exchange.head.path for exchange in exchanges] == ["/a", "/b", "/c", "/d"] * 4
    assert [len(body) for body in bodies(memory)] == [n for number in range(4) for n in (number + 8, 1, 0, number + 8)]
    # From the second time on the head is the same object: nothing was read.
    for place in range(4):
        assert exchanges[4 + place].head is exchanges[8 + place].head is exchanges[12 + place].head
    assert len(split_answers(memory.answered)) == 16
    memory.leave()


def test_a_long_piece_of_known_requests_needs_no_parser() -> None:
    memory = Memory(App())
    memory.send(post("/a", b"a"))
    piece = b"".join(post("/a", b"a" * (number % 3 + 200)) for number in range(100))
    memory.send(piece, post("/b", b"b"), piece[:9000], piece[9000:])
    exchanges = memory.app.exchanges
    assert [len(exchange.body) for exchange in exchanges if exchange.head.path == "/a"] == [
        1, *[number % 3 + 200 for number in range(100)] * 2
    ]  # fmt: skip
    # Except for the request that was cut in two and the ones that the parser got with its other half.
    first = exchanges[1].head
    assert all(exchange.head is first for exchange in exchanges[1:101])
    assert sum(exchange.head is first for exchange in exchanges) > 120
    assert len(split_answers(memory.answered)) == 202
    memory.leave()


def test_a_long_piece_is_not_read_further_than_there_is_room_for_answers() -> None:
    memory = Memory(App(keep), pipeline_depth=8)
    memory.send(post("/", b"first"))
    memory.app.exchanges[0].respond(200, b"1")
    memory.send(post("/", b"x" * 300) * 50)
    assert (len(memory.app.exchanges), memory.wire.reading) == (9, False)
    for number in range(1, 51):
        memory.app.exchanges[number].respond(200, b"%d" % number)
        memory.deliver()
    assert [answer.body for answer in split_answers(memory.answered)] == [b"1"] + [b"%d" % n for n in range(1, 51)]
    memory.leave()


def test_known_requests_do_not_overtake_those_that_wait() -> None:
    memory = Memory(App(keep), write_buffer_bytes=1000)
    memory.send(post("/", b"first"))
    memory.app.exchanges[0].respond(200, b"1")
    memory.send(post("/", b"a") + post("/", b"b"))
    # Its answer is held until the one before it is there, and is too long for others to be begun meanwhile.
    memory.app.exchanges[2].respond(200, b"x" * 5000)
    memory.send(post("/", b"c"), post("/", b"d") + post("/", b"e" * 300) * 30)
    assert len(memory.app.exchanges) == 3
    memory.app.exchanges[1].respond(200, b"2")
    memory.deliver()
    done = 3
    while done < len(memory.app.exchanges):
        memory.app.exchanges[done].respond(200, b"n")
        done += 1
        memory.deliver()
    assert [exchange.body[:1] for exchange in memory.app.exchanges] == [b"f", b"a", b"b", b"c", b"d", *[b"e"] * 30]
    assert len(split_answers(memory.answered)) == 35
    memory.leave()


def test_a_piece_that_begins_with_known_requests_is_read_on_from_there() -> None:
    memory = Memory(App())
    memory.send(post("/a", b"first"))
    memory.send(post("/a", b"other") + post("/a", b"third") + post("/b", b"split")[:-2])
    memory.send(b"it")
    memory.send(post("/b", b"again"))
    assert bodies(memory) == [b"first", b"other", b"third", b"split", b"again"]
    assert memory.app.exchanges[1].head is memory.app.exchanges[2].head
    memory.leave()


def test_requests_in_one_piece_wait_for_the_answers_before_them() -> None:
    memory = Memory(App(keep))
    memory.send(post("/", b"first"))
    memory.app.exchanges[0].respond(200, b"1")
    memory.send(post("/", b"other") + post("/", b"third"))
    memory.app.exchanges[2].respond(200, b"3")
    assert len(split_answers(memory.answered)) == 1
    memory.app.exchanges[1].respond(200, b"2")
    assert [answer.body for answer in split_answers(memory.answered)] == [b"1", b"2", b"3"]
    memory.leave()


@given(
    st.integers(0, 190), st.integers(0, 8),
    st.binary(max_size=6) | st.sampled_from([b"\r\n", b"\r\n\r\n", b"0", b"12", b"4", b"6"]),
)  # fmt: skip
def test_damaged_requests_in_one_piece_are_never_taken_for_known_ones(at: int, cut: int, instead: bytes) -> None:
    known = post("/topic", b"hello", "content-type: application/json")
    two = known + known
    assert_read_alike(known, two[:at] + instead + two[at + cut :])


@given(st.integers(0, 8_000), st.integers(0, 200), st.sampled_from([b"", b"\r\n", b"\r\n\r\n", b"0", b"12", b"4"]))
def test_damage_in_a_long_piece_is_read_as_the_parser_reads_it(at: int, cut: int, instead: bytes) -> None:
    known = post("/topic", b"hello", "content-type: application/json")
    many = known * 90
    assert_read_alike(known, many[:at] + instead + many[at + cut :])


@pytest.mark.parametrize("between", [b"\r\n", b"\r\n\r\n", b"\r\n\r\n\r\n"])
def test_empty_lines_between_requests_make_no_head_known(between: bytes) -> None:
    inner = b"GET /inner HTTP/1.1\r\nhost: x\r\nkey: other\r\n\r\n"
    one = post("/a", b"x" * 40 + inner)
    assert_read_alike(one + between + one + post("/a", inner), inner)
    assert_read_alike(one + between + one + post("/a", inner), one + between + inner + one)


def test_requests_with_one_head_that_come_together_are_gathered_together() -> None:
    app = Gathering(keep)
    memory = Memory(app, pipeline_depth=8)
    one = post("/", b"12345")
    for place in range(2):
        memory.send(one)
        app.exchanges[place].respond(200, b"")
    assert app.gathered == [1], "the first was read by the parser"
    memory.send(one * 3)
    memory.send(one * 3)
    assert app.gathered == [1, 1, 1, 1, 3], "what stands before a body is known once one was cut off"
    memory.send(one * 4)
    assert (app.gathered[5:], len(app.exchanges)) == ([2], 10), "no more than have room"
    for place in range(2, 12):
        app.exchanges[place].respond(200, b"%d" % place)
        memory.deliver()
    assert [answer.body for answer in split_answers(memory.answered)] == [b"", b""] + [b"%d" % n for n in range(2, 12)]
    memory.leave()


def test_a_run_ends_where_another_request_begins() -> None:
    lead = post("/", b"x" * 300).removesuffix(b"x" * 300)
    plain, other, inner = post("/", b"x" * 300), post("/other", b"y"), post("/", lead + b"z" * (300 - len(lead)))
    for piece in (plain * 3 + other + plain, plain + inner + plain * 2, inner * 3, plain * 2 + plain[:-7], plain[:70]):
        app = Gathering()
        memory = Memory(app)
        memory.send(plain, plain * 2, piece)
        expected = Memory(App())
        expected.send(plain, plain * 2, piece)
        assert bodies(memory) == bodies(expected)
        assert memory.answered == expected.answered
        memory.leave()


def test_what_is_not_gathered_is_handled() -> None:
    app = Gathering()
    app.gather = lambda exchanges, nbytes: False
    memory = Memory(app)
    one = post("/", b"12345")
    memory.send(one, one, one * 3, one * 3)
    assert bodies(memory) == [b"12345"] * 8
    assert len(split_answers(memory.answered)) == 8
    memory.leave()


def test_a_repeat_waits_for_the_answer_before_it() -> None:
    memory = Memory(App(keep))
    memory.send(post("/", b"first"))
    memory.app.exchanges[0].respond(200, b"1")
    memory.send(post("/", b"other"))
    memory.send(post("/", b"third"))
    memory.app.exchanges[2].respond(200, b"3")
    assert len(split_answers(memory.answered)) == 1
    memory.app.exchanges[1].respond(200, b"2")
    assert [answer.body for answer in split_answers(memory.answered)] == [b"1", b"2", b"3"]
    memory.leave()


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-encoding: identity\r\ncontent-length: 1\r\n\r\n",
        b"POST / HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\n",
        b"HEAD / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n",
    ],
)
def test_a_head_with_a_wish_of_its_own_is_never_known(head: bytes) -> None:
    memory = Memory(App())
    memory.send(head + b"x")
    assert len(memory.connection._framer) == 0
    memory.leave()


def test_every_request_is_decided_on_whether_its_head_is_known_or_not() -> None:
    verdicts: Iterator[int | Refusal] = iter(
        # A refused request is read like any other, and so admitted anew.
        [Refusal(401, b"no"), 1_000_000, *[Refusal(403, b"no")] * 2, 1_000_000, 0, 0]
    )

    def admit(head: RequestHead) -> int | Refusal:
        return next(verdicts)

    memory = Memory(App(admit=admit))
    memory.send(post("/", b"1"))
    memory.send(post("/", b"2"))
    memory.send(post("/", b"3"))
    memory.send(post("/", b"4"))
    memory.send(post("/", b"5"))
    assert [answer.status for answer in split_answers(memory.answered)] == [401, 200, 403, 200, 413]
    assert bodies(memory) == [b"2", b"4"]
    memory.leave()


def test_a_mistake_in_admitting_a_known_head_is_reported_and_ends_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[RequestHead] = []

    def admit(head: RequestHead) -> int:
        asked.append(head)
        if len(asked) > 1:
            raise RuntimeError("oops")
        return 1000

    memory = Memory(App(admit=admit))
    memory.send(post("/", b"1"))
    memory.send(post("/", b"2"))
    assert [answer.status for answer in split_answers(memory.answered)] == [200, 500]
    assert "request admission failed" in caplog.text
    memory.leave()


def test_ever_new_heads_cost_bounded_memory() -> None:
    memory = Memory(App())
    most = 0
    for number in range(60):
        memory.send(post(f"/{number}", b"x"))
        most = max(most, len(memory.connection._framer))
    assert most == 8
    memory.leave()


def test_a_long_head_is_not_kept() -> None:
    memory = Memory(App())
    memory.send(post("/" + "y" * 3000, b"x"))
    assert len(memory.connection._framer) == 0
    memory.leave()


def test_a_connection_that_never_repeats_itself_is_given_up() -> None:
    memory = Memory(App())
    for number in range(70):
        memory.send(post(f"/{number}", b"x"))
    assert len(memory.connection._framer) == 0
    for _ in range(2):
        memory.send(post("/", b"x"))
    assert len(memory.app.admitted) == 72
    memory.leave()


def test_a_connection_that_repeats_itself_now_and_then_is_not() -> None:
    memory = Memory(App())
    for number in range(200):
        memory.send(post(f"/{number // 2}", b"x"))
    assert len(memory.app.admitted) == 100
    memory.leave()


def test_what_was_found_for_a_request_stays_while_it_is_under_way() -> None:
    """An application that counts requests by its admission value would otherwise release the wrong one."""

    class Deciding(App):
        admission: object = None

        def admit(self, head: RequestHead) -> int:
            head.context = self.admission
            return 1_000_000

    app = Deciding(keep)
    memory = Memory(app)
    for admission in ("first", "second", "third"):
        app.admission = admission
        memory.send(post("/", b"x"), post("/", b"x"))
    assert [exchange.head.context for exchange in app.exchanges] == ["first"] * 2 + ["second"] * 2 + ["third"] * 2
    for exchange in app.exchanges:
        exchange.respond(200)
    memory.leave()


def test_a_stopping_server_refuses_what_it_used_to_admit() -> None:
    memory = Memory(App())
    memory.send(post("/", b"1"))
    memory.server_state.draining = True
    memory.connection.expect_end()
    memory.send(post("/", b"2"))
    assert [answer.status for answer in split_answers(memory.answered)] == [200, 503]
    memory.leave()


class Steady(App):
    """An application whose decisions hold until it changes them; it counts the calls."""

    admission: object = "first"
    asked = 0
    verdict: int | Refusal = 1_000_000

    def admit(self, head: RequestHead) -> int | Refusal:
        self.asked += 1
        return self.verdict


def test_a_known_head_is_asked_about_once_for_as_long_as_that_holds() -> None:
    app = Steady()
    memory = Memory(app)
    for _ in range(5):
        memory.send(get("/"))
    assert (app.asked, len(app.exchanges)) == (2, 5), "when it was new, and when it was known for the first time"
    app.admission, app.verdict = "second", Refusal(503)
    memory.send(get("/"))
    assert len(app.exchanges) == 5 and b" 503 " in memory.answered
    app.admission, app.verdict = "third", 1_000_000
    for _ in range(3):
        memory.send(get("/"))
    assert len(app.exchanges) == 8
    memory.leave()


def test_what_holds_for_one_request_is_asked_each_time() -> None:
    app = Steady()
    app.verdict = OneRequest(1_000_000)
    memory = Memory(app)
    for _ in range(5):
        memory.send(get("/"))
    assert (app.asked, len(app.exchanges)) == (5, 5)
    memory.leave()


def test_each_head_is_asked_about_and_a_longer_body_is_measured() -> None:
    app = Steady()
    memory = Memory(app)
    memory.send(get("/a"))
    memory.send(get("/a"))
    memory.send(get("/b"))
    asked = app.asked
    memory.send(get("/b"))
    assert app.asked == asked + 1, "what was decided of /a says nothing of /b"
    for _ in range(3):
        memory.send(get("/a"))
        memory.send(get("/b"))
    assert app.asked == asked + 1, "and holds as long as it does"
    app.admission = "other"
    memory.send(get("/a"))
    memory.send(get("/b"))
    assert app.asked == asked + 3
    app.verdict, app.admission = 10, "less"
    post = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%b"
    memory.send(post % (4, b"1234"))
    memory.send(post % (4, b"1234"))
    memory.send(post % (11, b"12345678901"))
    assert b" 413 " in memory.answered
