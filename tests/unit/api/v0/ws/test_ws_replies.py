"""Answers leave in the order of their commands, in whatever order they come."""

from hypothesis import given
from hypothesis import strategies as st

from topics.api.v0.ws.ws_replies import Replies, Reply


@given(st.lists(st.booleans(), max_size=30), st.randoms(use_true_random=False))
def test_answers_keep_their_order(later: list[bool], dice: object) -> None:
    sent: list[bytes] = []
    replies = Replies(sent.append)
    waiting: list[tuple[Reply, bytes]] = []
    for number, late in enumerate(later):
        frame = b"%d" % number
        if late:
            waiting.append((replies.later(), frame))
        else:
            replies.now(frame)
        assert len(sent) + len(replies) == number + 1
    dice.shuffle(waiting)  # type: ignore[attr-defined]
    for reply, frame in waiting:
        replies.give(reply, frame)
    assert sent == [b"%d" % number for number in range(len(later))]
    assert len(replies) == 0


def test_an_answer_with_nothing_before_it_is_sent_at_once() -> None:
    sent: list[bytes] = []
    replies = Replies(sent.append)
    replies.now(b"a")
    assert sent == [b"a"]
    reply = replies.later()
    replies.now(b"c")
    assert sent == [b"a"]
    replies.give(reply, b"b")
    assert sent == [b"a", b"b", b"c"]
