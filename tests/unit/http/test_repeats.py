"""A head that a connection has sent before is not read again, and means the same as it did."""

from collections.abc import Iterator

import pytest

from tests.http.protocol.memory import Memory
from tests.http.protocol.support import App, get, keep, post, split_answers
from topics.http import Refusal, RequestHead


def bodies(memory: Memory) -> list[bytes]:
    return [exchange.body for exchange in memory.app.exchanges]


def test_a_repeated_head_is_admitted_once_and_each_body_is_its_own() -> None:
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


def test_another_head_is_read() -> None:
    memory = Memory(App())
    memory.send(post("/a", b"1"))
    memory.send(post("/b", b"1"))
    memory.send(post("/a", b"22"))
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
    assert memory.connection._known == {}
    memory.leave()


def test_a_refused_head_is_refused_each_time() -> None:
    refusals: Iterator[int | Refusal] = iter([Refusal(401, b"no"), 1000, Refusal(403, b"no")])

    def admit(head: RequestHead) -> int | Refusal:
        return next(refusals)

    memory = Memory(App(admit=admit))
    memory.send(post("/", b"1"))
    memory.send(post("/", b"2"))
    memory.send(post("/", b"3"))
    assert [answer.status for answer in split_answers(memory.answered)] == [401, 200, 200]
    memory.leave()


def test_ever_new_heads_cost_bounded_memory() -> None:
    memory = Memory(App())
    for number in range(100):
        memory.send(post(f"/{number}", b"x"))
    assert len(memory.connection._known) <= 8
    memory.send(post("/" + "y" * 3000, b"x"))
    assert all(len(head) < 3000 for head in memory.connection._known)
    memory.leave()


def test_a_stopping_server_refuses_what_it_used_to_admit() -> None:
    memory = Memory(App())
    memory.send(post("/", b"1"))
    memory.hub.draining = True
    memory.send(post("/", b"2"))
    assert [answer.status for answer in split_answers(memory.answered)] == [200, 503]
    memory.leave()
