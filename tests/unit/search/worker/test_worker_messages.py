"""Messages between a server and its searching process."""

import pytest

from topics.search.worker.messages import (
    Add,
    Answer,
    AskMessage,
    Drop,
    Filter,
    Head,
    Hits,
    KeysQuery,
    Messages,
    Open,
    Piece,
    Result,
    SearchQuery,
    encode_message,
)

PIECE = Piece(7, 2, 100, 3, 4)
HEADS: list[Head] = [
    Open(1, b"registry"),
    Add(1, (PIECE,)),
    Drop(1),
    AskMessage(5, 1, 2.5, 1, 9, ((3, 4),), SearchQuery("a:1", ("offset:asc",), 5, [None, 2.5, "x", True, 7], True)),
    AskMessage(5, 1, 2.5, 1, 9, (), KeysQuery(None, 5)),
    Filter(6, 1, "a:1", (PIECE,)),
    Answer(5, Result(hits=Hits([7], [0.5], [[1], [None], None]), seqs=(1, 2), spent="time")),
    Answer(5, None, "it failed"),
]


@pytest.mark.parametrize("cut", [1, 3, 7, 50, 10_000])
def test_messages_come_through_however_they_are_cut(cut: int) -> None:
    sent = b"".join(encode_message(head, (b"rows", memoryview(b"text"))) for head in HEADS)
    messages = Messages()
    taken = [message for at in range(0, len(sent), cut) for message in messages.feed(sent[at : at + cut])]
    assert [message.head for message in taken] == HEADS
    assert all(bytes(message.body) == b"rowstext" for message in taken)


@pytest.mark.parametrize("begin", [0, 2, 20])
def test_messages_come_through_one_by_one(begin: int) -> None:
    """Also behind one of which only the beginning came at first."""
    frames = [encode_message(head, (b"text",)) for head in HEADS]
    messages = Messages()
    parts = [frames[0][:begin], frames[0][begin:], *frames[1:]]
    taken = [message for part in parts for message in messages.feed(part)]
    assert [message.head for message in taken] == HEADS
    assert all(bytes(message.body) == b"text" for message in taken)
