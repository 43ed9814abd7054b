"""The search process's handling of messages, without a process."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from topics.schema.registry import Registry, encode_registry
from topics.search.file_index.file_format import IndexFileDamagedError, SectionFile, SectionWriter
from topics.search.file_index.merge import build
from topics.search.query.plan import Entry
from topics.search.worker.messages import (
    Answer,
    AskMessage,
    Drop,
    Finish,
    KeysQuery,
    Mapped,
    Message,
    Messages,
    More,
    Open,
    Question,
    Result,
    Trim,
    encode_message,
)
from topics.search.worker.search_worker import RunningQuery, Worker, map_file, serve

COUNT = 4


class NamedHead(msgspec.Struct):
    name: str


def index_file(first: int) -> memoryview:
    data = bytearray()
    rows = [Entry(number, None, 1, f"k{number}") for number in range(first, first + 10)]
    build(Registry(), [rows], 1, first, first + 9, data.extend)
    return memoryview(bytes(data))


FILES = {str(first): index_file(first) for first in range(10, 10 * (COUNT + 1), 10)}
ALL = tuple(Mapped(name, int(name), int(name) + 9) for name in FILES)


class QuerySession:
    """A query for keys that waits for parts."""

    def __init__(self, now: Callable[[], float] = lambda: 0.0, broken: str | None = None) -> None:
        def map_file(path: str) -> memoryview:
            if path == broken:
                raise OSError("gone")
            return FILES[path]

        self._worker = Worker(now, map_file)
        self._worker.take(Message(Open(1, encode_registry(Registry())), memoryview(b"")))
        self.ask(AskMessage(1, 1, 1e9, 1, 0, (), KeysQuery(None, 100), stays=True))

    def ask(self, question: Question) -> Result:
        answer = self._answer(question)
        assert answer.result is not None, answer
        return answer.result

    def problem(self, question: Question) -> str:
        return self._answer(question).problem

    def _answer(self, question: Question) -> Answer:
        (answer,) = Messages().feed(self._worker.take(Message(question, memoryview(b""))) or b"")
        assert isinstance(answer.head, Answer)
        return answer.head

    def keys(self) -> set[str]:
        return set(self.ask(Finish(9, 1)).keys)


def expected(*names: str) -> set[str]:
    return {f"k{number}" for name in names for number in range(int(name), int(name) + 10)}


def test_index_files_are_asked_together() -> None:
    session = QuerySession()
    assert session.ask(More(2, 1, mapped=ALL)).looked_up == COUNT
    assert session.keys() == expected(*FILES)


def test_removed_entries_are_excluded_from_every_part() -> None:
    session = QuerySession()
    session.ask(More(2, 1, mapped=ALL, removed=((15, 24), (49, 49))))
    assert session.keys() == expected(*FILES) - {f"k{number}" for number in (*range(15, 25), 49)}


def test_one_that_cannot_be_read_ends_the_row_and_is_not_part_of_it() -> None:
    session = QuerySession(broken="30")
    reported = session.ask(More(2, 1, mapped=ALL))
    assert (reported.looked_up, reported.unreadable) == (2, "gone")
    assert session.ask(More(3, 1, mapped=ALL[3:])).looked_up == 1
    assert session.keys() == expected("10", "20", "40")


def test_a_query_is_finished_with_its_last_part() -> None:
    session = QuerySession()
    assert not session.ask(More(2, 1, mapped=ALL[:2])).is_final
    reported = session.ask(More(3, 1, mapped=ALL[2:], is_last=True))
    assert (reported.is_final, reported.looked_up, set(reported.keys)) == (True, 2, expected(*FILES))
    assert session.problem(Finish(4, 1)), "nothing is kept of it"


def test_a_query_is_not_finished_while_one_of_the_last_index_files_is_left() -> None:
    moments = iter(range(1, 1_000))
    session = QuerySession(now=lambda: next(moments))
    assert not session.ask(More(2, 1, mapped=ALL, is_last=True)).is_final
    unreadable = QuerySession(broken="40")
    assert not unreadable.ask(More(2, 1, mapped=ALL, is_last=True)).is_final
    assert unreadable.keys() == expected("10", "20", "30")


def test_nothing_is_kept_of_a_query_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    session = QuerySession()
    monkeypatch.setattr(RunningQuery, "take_index_file", lambda *_: 1 / 0)
    assert "ZeroDivisionError" in session.problem(More(2, 1, mapped=ALL))
    assert session.problem(Finish(3, 1))


def test_one_query_does_not_hold_up_the_others_for_long() -> None:
    moments = iter(range(1, 1_000))
    session = QuerySession(now=lambda: next(moments))
    left, rounds = ALL, 0
    while left:
        reported = session.ask(More(2 + rounds, 1, mapped=left))
        assert reported.looked_up == 1, "each goes on by one at least, and no further once the time is over"
        left, rounds = left[reported.looked_up :], rounds + 1
    assert session.keys() == expected(*FILES)


def test_index_files_can_be_asked_with_the_question_itself() -> None:
    session = QuerySession()
    reported = session.ask(AskMessage(2, 1, 1e9, 1, 0, (), KeysQuery(None, 100), ALL, stays=True, is_last=True))
    assert (reported.is_final, reported.looked_up, set(reported.keys)) == (True, COUNT, expected(*FILES))
    assert session.problem(Finish(3, 2)), "nothing is kept of it"


def test_a_question_goes_on_where_an_index_file_of_it_cannot_be_read_or_time_is_over() -> None:
    session = QuerySession(broken="20")
    reported = session.ask(AskMessage(2, 1, 1e9, 1, 0, (), KeysQuery(None, 100), ALL, stays=True, is_last=True))
    assert (reported.is_final, reported.looked_up, reported.unreadable) == (False, 1, "gone")
    reported = session.ask(More(3, 2, mapped=ALL[2:], is_last=True))
    assert (reported.is_final, set(reported.keys)) == (True, expected("10", "30", "40"))
    moments = iter(range(1, 1_000))
    slow = QuerySession(now=lambda: next(moments))
    reported = slow.ask(AskMessage(2, 1, 1e9, 1, 0, (), KeysQuery(None, 100), ALL, stays=True, is_last=True))
    assert (reported.is_final, reported.looked_up) == (False, 1)
    assert set(slow.ask(More(3, 2, mapped=ALL[1:2], is_last=True)).keys) == expected("10", "20")


def keys_query(request: int, owner: str, index: int = 1) -> bytes:
    return encode_message(AskMessage(request, index, 1e9, 1, 0, (), KeysQuery(None, 100), owner=owner))


def answers_to(sent: bytes, count: int) -> list[Answer]:
    """Returns the answers of the search process to messages that came at once, in its order."""
    ours, theirs = socket.socketpair()
    ours.settimeout(30.0)
    ours.sendall(sent)
    serving = threading.Thread(target=serve, args=(theirs, Worker(lambda: 0.0, lambda path: FILES[path])))
    serving.start()
    found: list[Answer] = []
    messages = Messages()
    try:
        while len(found) < count:
            for message in messages.feed(ours.recv(1 << 16)):
                assert isinstance(message.head, Answer)
                found.append(message.head)
    finally:
        ours.close()
        serving.join()
        theirs.close()
    return found


def test_owners_are_served_in_turns() -> None:
    opened = encode_message(Open(1, encode_registry(Registry())))
    greedy = b"".join(keys_query(request, "greedy") for request in range(1, 17))
    modest = keys_query(17, "modest") + keys_query(18, "modest")
    served = [answer.request for answer in answers_to(opened + greedy + modest, 18)]
    assert served[:5] == [1, 17, 2, 18, 3]
    assert served[5:] == list(range(4, 17))


@pytest.mark.parametrize("change", [Drop(1), Trim(1, 10)])
def test_questions_about_an_index_are_answered_before_it_is_taken_away(change: Drop | Trim) -> None:
    opened = b"".join(encode_message(Open(index, encode_registry(Registry()))) for index in (1, 2))
    asked = keys_query(1, "a", 2) + keys_query(2, "a", 1) + keys_query(3, "b", 1)
    answers = answers_to(opened + asked + encode_message(change), 3)
    assert sorted(answer.request for answer in answers) == [1, 2, 3]
    assert [answer.problem for answer in answers] == ["", "", ""]


def test_index_file_is_read_before_its_mapping_is_touched(tmp_path: Path) -> None:
    """A file that is cut after it was mapped is damaged, and does not end the process with SIGBUS."""
    path = tmp_path / "one.companion"
    data = bytearray()
    writer = SectionWriter(data.extend)
    writer.add("first", np.arange(1 << 16, dtype=np.int64))
    writer.add("second", np.arange(1 << 16, dtype=np.int64))
    writer.finish(NamedHead("head"))
    path.write_bytes(data)
    sections = SectionFile(map_file(str(path)))
    assert int(sections.array("first")[-1]) == (1 << 16) - 1
    os.truncate(path, 1 << 19)
    with pytest.raises(IndexFileDamagedError, match="shorter than it was"):
        sections.array("second")
    with pytest.raises(IndexFileDamagedError):
        SectionFile(map_file(str(path)))
