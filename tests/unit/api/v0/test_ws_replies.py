"""Answers leave in the order of their commands, for every order of completion."""

from hypothesis import given
from hypothesis import strategies as st

from topics.api.v0.websocket_messages import Replies, Reply


@given(st.lists(st.booleans(), max_size=30), st.randoms(use_true_random=False))
def test_answers_keep_their_order(later: list[bool], rng: object) -> None:
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
    rng.shuffle(waiting)  # type: ignore[attr-defined]
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


def test_answers_that_come_together_count_each() -> None:
    sent: list[bytes] = []
    replies = Replies(sent.append)
    first, several = replies.later(), replies.later(3)
    replies.now(b"last")
    assert len(replies) == 5
    replies.give(several, b"234")
    assert (sent, len(replies)) == ([], 5)
    replies.give(first, b"1")
    assert (sent, len(replies)) == ([b"1", b"234", b"last"], 0)


def test_released_position_does_not_block_later_answers() -> None:
    sent: list[bytes] = []
    replies = Replies(sent.append)
    first = replies.later()
    replies.withdraw(replies.later(3))
    assert len(replies) == 1
    replies.give(first, b"1")
    replies.now(b"2")
    assert sent == [b"1", b"2"]


def test_a_place_for_several_is_parted_where_it_is() -> None:
    sent: list[bytes] = []
    replies = Replies(sent.append)
    first, several, last = replies.later(), replies.later(3), replies.later()
    parts = replies.part(several)
    assert len(replies) == 5
    for reply, frame in ((last, b"5"), (parts[1], b"3"), (first, b"1"), (parts[0], b"2"), (parts[2], b"4")):
        replies.give(reply, frame)
    assert (sent, len(replies)) == ([b"1", b"2", b"3", b"4", b"5"], 0)


def test_a_place_is_parted_when_nobody_hears_any_more() -> None:
    sent: list[bytes] = []
    replies = Replies(sent.append)
    several = replies.later(2)
    replies.close()
    for part in replies.part(several):
        replies.give(part, b"x")
    assert (sent, len(replies)) == ([], 0)
