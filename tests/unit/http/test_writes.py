"""The number of writes of a connection, and its buffer, seen at its transport."""

import gc
import weakref

from tests.http.protocol.memory import Memory
from tests.http.protocol.support import App, get, keep, post, split_answers
from topics.http import Exchange, Fault, HttpError, HttpLimits, Refusal
from topics.http.exchange import respond_each


def test_an_answer_is_one_write() -> None:
    memory = Memory(App())
    for number in range(1, 4):
        memory.send(get("/"))
        assert len(memory.wire.writes) == number
    memory.send(post("/", b"x" * 1000))
    assert len(memory.wire.writes) == 4
    memory.leave()


def test_a_large_answer_is_one_write() -> None:
    memory = Memory(App(lambda exchange: exchange.respond(200, bytes(1_000_000))))
    memory.send(get("/"))
    assert len(memory.wire.writes) == 1
    memory.leave()


def test_answers_that_are_given_together_share_a_write_a_connection() -> None:
    app = App(keep)
    memory = Memory(app)
    memory.send(get("/") * 10)
    respond_each(app.exchanges, [b"%d" % number for number in range(10)])
    assert len(memory.wire.writes) == 1
    assert [answer.body for answer in split_answers(memory.answered)] == [b"%d" % number for number in range(10)]
    memory.leave()


def test_answers_that_are_given_together_wait_for_one_between_them() -> None:
    app = App(keep)
    memory = Memory(app)
    memory.send(get("/") * 5)
    first, second, between, last, other = app.exchanges
    respond_each([first, second, last], [b"1", b"2", b"4"])
    memory.deliver()
    assert [answer.body for answer in split_answers(memory.answered)] == [b"1", b"2"]
    between.respond(200, b"3")
    other.respond(200, b"5")
    memory.deliver()
    assert [answer.body for answer in split_answers(memory.answered)] == [b"1", b"2", b"3", b"4", b"5"]
    memory.leave()


def test_a_connection_without_room_is_read_until_more_comes() -> None:
    app = App(keep)
    memory = Memory(app, pipeline_depth=4)
    memory.send(get("/") * 4)
    assert (len(app.exchanges), memory.wire.reading) == (4, True), "most that send so many then wait"
    memory.send(get("/") * 2, get("/"))
    assert (len(app.exchanges), memory.wire.reading) == (4, False)
    for number in range(7):
        app.exchanges[number].respond(200, b"%d" % number)
        memory.deliver()
    assert [answer.body for answer in split_answers(memory.answered)] == [b"%d" % number for number in range(7)]
    assert memory.wire.reading
    memory.leave()


def test_an_answer_takes_those_along_that_waited_for_it() -> None:
    app = App(keep)
    memory = Memory(app)
    memory.send(get("/") * 3)
    app.exchanges[1].respond(200, b"2")
    app.exchanges[2].respond(200, b"3")
    assert memory.wire.writes == []
    app.exchanges[0].respond(200, b"1")
    memory.deliver()
    assert len(memory.wire.writes) == 1
    assert [answer.body for answer in split_answers(memory.answered)] == [b"1", b"2", b"3"]
    memory.leave()


def test_the_last_of_several_answers_goes_out_with_those_before_it() -> None:
    app = App(keep)
    memory = Memory(app)
    memory.send(get("/") * 2)
    app.exchanges[0].respond(200, b"1")
    assert memory.wire.writes == [], "those that were asked together are mostly answered together"
    app.exchanges[1].respond(200, b"2")
    assert len(memory.wire.writes) == 1
    memory.deliver()
    assert len(memory.wire.writes) == 1
    assert [answer.body for answer in split_answers(memory.answered)] == [b"1", b"2"]
    memory.leave()


def test_answers_to_one_packet_share_a_write() -> None:
    memory = Memory(App())
    memory.send(get("/") * 10)
    assert len(memory.wire.writes) == 1
    assert len(split_answers(memory.answered)) == 10
    memory.leave()


def test_answers_that_waited_for_another_share_its_write() -> None:
    memory = Memory(App(keep))
    memory.send(get("/") * 5)
    for exchange in reversed(memory.app.exchanges):
        assert memory.wire.writes == []
        exchange.respond(200, b"x")
    assert len(memory.wire.writes) == 1
    memory.leave()


def test_shared_writes_are_bounded() -> None:
    memory = Memory(App(lambda exchange: exchange.respond(200, bytes(20_000))), pipeline_depth=1000)
    memory.send(get("/") * 100)
    assert max(map(len, memory.wire.writes)) < 20 * 21_000
    assert len(split_answers(memory.answered)) == 100
    memory.leave()


def test_a_client_with_very_much_to_ask_lets_others_have_their_turn() -> None:
    memory = Memory(App())
    memory.connection.data_received(get("/") * 10_000)
    started = len(memory.app.exchanges)
    assert 0 < started < 5_000
    assert not memory.wire.reading
    assert len(split_answers(memory.answered)) == started
    memory.deliver()
    assert len(memory.app.exchanges) == 10_000
    assert memory.wire.reading
    memory.leave()


def test_no_handler_starts_while_the_client_reads_nothing() -> None:
    memory = Memory(App())
    memory.send(get("/"))
    memory.connection.pause_writing()
    assert not memory.wire.reading
    # Bytes that the loop had read already.
    memory.connection.data_received(get("/") * 3)
    assert len(memory.app.exchanges) == 1
    memory.connection.resume_writing()
    assert memory.wire.reading
    assert len(memory.app.exchanges) == 4
    memory.leave()


def test_a_full_buffer_stops_a_packet_of_requests() -> None:
    """The pause comes from within the write of an answer, while the parser is in the middle of the next requests."""
    memory = Memory(App(lambda exchange: exchange.respond(200, bytes(100_000))))
    write = memory.wire.write

    def fill(data: bytes) -> None:
        write(data)
        memory.connection.pause_writing()

    memory.wire.write = fill  # type: ignore[method-assign]
    memory.send(get("/") * 50)
    assert len(memory.app.exchanges) == 1
    for number in range(2, 51):
        memory.connection.resume_writing()
        memory.deliver()
        assert len(memory.app.exchanges) == number
    assert len(split_answers(memory.answered)) == 50
    memory.leave()


def test_an_exchange_that_is_answered_holds_nothing_of_its_connection() -> None:
    memory = Memory(App())
    memory.send(get("/"))
    [exchange] = memory.app.exchanges
    assert exchange.channel is None
    assert exchange.payload is None
    memory.leave()


def test_a_lost_connection_is_gone_without_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        memory = Memory(App())
        memory.send(get("/"), b"GET / HTTP/1.1\r\n")
        memory.leave()
        # The connection holds its server_state, and the server_state the application: nothing else holds it here.
        app = weakref.ref(memory.app)
        memory.app.exchanges.clear()
        del memory
        assert app() is None
    finally:
        gc.enable()


def test_a_handler_may_answer_from_within_what_it_is_notified() -> None:
    """A waiting read that is notified of its client's end may answer the next one at once."""
    held: list[Exchange] = []

    def handler(exchange: Exchange) -> None:
        held.append(exchange)
        exchange.on_disconnect(lambda: held[0].respond(200, b"never seen"))

    memory = Memory(App(handler))
    memory.send(get("/"), get("/"))
    memory.leave()
    assert memory.answered == b""


def test_a_connection_that_ends_while_its_client_sends_is_read_on() -> None:
    """A close with bytes unread is a reset, which can overtake the answer. So only our side is closed at first."""
    refused_body = get("/", "content-length: 10", "connection: close", method="POST") + b"abc"
    last_and_more = get("/", "connection: close") + get("/")
    for app, request in ((App(admit=lambda head: Refusal(404)), refused_body), (App(keep), last_and_more)):
        memory = Memory(app)
        memory.send(request, b"more")
        for exchange in app.exchanges:
            exchange.respond(200)
        assert memory.wire.ended and not memory.wire.closing
        memory.leave()


def test_a_connection_that_ends_in_peace_is_closed_at_once() -> None:
    memory = Memory(App())
    memory.send(get("/", "connection: close"))
    assert memory.wire.closing and not memory.wire.ended
    memory.leave()


def test_faults_are_statuses_and_words() -> None:
    for fault in Fault:
        error = HttpError(fault)
        assert 400 <= error.status < 600
        assert error.code == fault.name.lower()
        assert error.message == str(error)
    assert HttpError(Fault.TIMEOUT, "so late").message == "so late"


def test_the_sweep_is_as_fine_as_the_shortest_time() -> None:
    assert HttpLimits().sweep_s == 1.0
    assert HttpLimits(keep_alive_s=0.4).sweep_s == 0.1


def test_refusals_that_wait_behind_a_request_do_not_keep_it_from_being_started() -> None:
    refused = Refusal(403, b"{}")
    memory = Memory(App(keep, admit=lambda head: refused if head.path == "/no" else 1000), pipeline_depth=4)
    memory.send(get("/") * 5 + get("/no") * 4 + get("/"))
    started = 0
    while started < len(memory.app.exchanges):
        memory.app.exchanges[started].respond(200, b"x")
        started += 1
        memory.deliver()
    assert started == 6
    assert [answer.status for answer in split_answers(memory.answered)] == [200] * 5 + [403] * 4 + [200]
    memory.leave()
