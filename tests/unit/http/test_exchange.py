"""Many answers at once equal as many answers one by one."""

import pytest

from tests.http.protocol.memory import Memory
from tests.http.protocol.support import App, Reply, get, keep, post, split_answers
from topics.http.exchange import respond_each


def answers(memory: Memory) -> list[Reply]:
    return split_answers(memory.answered)


def test_many_are_answered_as_one_is() -> None:
    app = App(keep)
    memories = [Memory(app) for _ in range(3)]
    for memory in memories:
        memory.send(post("/", b"x"))
    app.exchanges[0].respond(200, b'{"n":0}')
    respond_each(app.exchanges[1:], [b'{"n":1}', b'{"n":2}'])
    first, *others = [answers(memory) for memory in memories]
    assert [(reply.status, reply.body) for (reply,) in others] == [(200, b'{"n":1}'), (200, b'{"n":2}')]
    assert all(reply.headers == first[0].headers for (reply,) in others)
    for memory in memories:
        memory.leave()


def test_requests_of_one_connection_are_answered_in_their_order() -> None:
    memory = Memory(App(keep))
    memory.send(post("/", b"a") + post("/", b"b") + post("/", b"c"))
    first, second, third = memory.app.exchanges
    respond_each([third, first], [b"3", b"1"])
    assert answers(memory) == []
    # The one behind it does not come in this turn of the loop, and is not waited for.
    memory.deliver()
    assert [reply.body for reply in answers(memory)] == [b"1"]
    respond_each([second], [b"2"])
    assert [reply.body for reply in answers(memory)] == [b"1", b"2", b"3"]
    memory.leave()


def test_what_was_asked_together_and_is_answered_together_is_one_write() -> None:
    memory = Memory(App(keep))
    memory.send(b"".join(post("/", b"%d" % number) for number in range(5)))
    respond_each(memory.app.exchanges, [b"%d" % number for number in range(5)])
    assert len(memory.wire.writes) == 1
    assert [reply.body for reply in answers(memory)] == [b"0", b"1", b"2", b"3", b"4"]
    memory.deliver()
    assert len(memory.wire.writes) == 1
    memory.leave()


@pytest.mark.parametrize(
    "request_bytes",
    [
        get("/", "accept-encoding: gzip"),
        get("/", "connection: close"),
        get("/", version="1.0"),
        get("/", method="HEAD"),
    ],
    ids=["gzip", "close", "1.0", "head"],
)
@pytest.mark.parametrize("size", [10, 5000])
def test_whoever_wants_another_form_gets_it(request_bytes: bytes, size: int) -> None:
    body = b'"%b"' % (b"x" * size)
    alone, together = Memory(App(keep)), Memory(App(keep))
    for memory in (alone, together):
        memory.send(request_bytes)
    alone.app.exchanges[0].respond(200, body)
    respond_each(together.app.exchanges, [body])
    assert together.answered == alone.answered != b""
    assert together.wire.closing == alone.wire.closing
    alone.leave()
    together.leave()


def test_one_that_cannot_be_answered_keeps_no_answer_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    app = App(keep)
    memories = [Memory(app) for _ in range(3)]
    for memory in memories:
        memory.send(get("/"))
    app.exchanges[0].respond(200, b"done")
    memories[1].leave()
    respond_each(app.exchanges, [b"0", b"1", b"2"])
    assert [[reply.body for reply in answers(memory)] for memory in memories] == [[b"done"], [], [b"2"]]
    assert caplog.text.count("answer failed") == 1
    memories[0].leave()
    memories[2].leave()
