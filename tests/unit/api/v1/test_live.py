"""Cursors, events and deadlines."""

import asyncio

import pytest

from tests.unit.timeless import run
from topics.api.v1.protocol import Deadlines, Pending, cursor_after
from topics.api.v1.reads import Control, control_event, data_event


def test_a_cursor_counts_intervals_and_is_always_above_the_given_one() -> None:
    start = 1_728_432_000_000
    assert cursor_after(start, "") == "0"
    assert cursor_after(start + 19_999, "") == "0"
    assert cursor_after(start + 20_000, "") == "1"
    assert cursor_after(start, "0") == "1"
    assert cursor_after(start + 100_000, "3") == "5"
    for nonsense in ("x", "-1", "9" * 30, "1.5"):
        assert cursor_after(start + 20_000, nonsense) == "1"


@pytest.mark.parametrize(
    ("body", "event"),
    [
        (b"a", b"event: data\ndata:a\n\n"),
        (b" a", b"event: data\ndata:  a\n\n"),
        (b"a\nb", b"event: data\ndata:a\ndata:b\n\n"),
        (b"a\r\nb\rc", b"event: data\ndata:a\ndata:b\ndata:c\n\n"),
        (b"\n", b"event: data\ndata:\ndata:\n\n"),
    ],
)
def test_text_is_framed_line_by_line(body: bytes, event: bytes) -> None:
    assert data_event(body, as_text=True) == event


def test_bytes_are_framed_as_base64() -> None:
    assert data_event(b"\x00\n", as_text=False) == b"event: data\ndata:AAo=\n\n"


def test_a_control_event_states_only_what_there_is_to_state() -> None:
    assert control_event(Control("o", "7", True)) == (
        b'event: control\ndata:{"streamNextOffset":"o","streamCursor":"7","upToDate":true}\n\n'
    )
    assert control_event(Control("o", "", False, True)) == (
        b'event: control\ndata:{"streamNextOffset":"o","streamClosed":true}\n\n'
    )


def test_a_deadline_is_met_or_missed_and_never_both() -> None:
    async def play() -> list[str]:
        reported: list[str] = []
        deadlines = Deadlines(0.0)
        met, missed = (
            deadlines.begin(lambda: reported.append("met")),
            deadlines.begin(lambda: reported.append("missed")),
        )
        assert met.met() and not met.met()
        while not reported:
            await asyncio.sleep(0.01)
        assert not missed.met()
        return reported

    assert run(play()) == ["missed"]


def test_a_deadline_that_fails_keeps_no_other_from_its_end() -> None:
    async def play() -> list[str]:
        reported: list[str] = []
        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["exception"]))
        deadlines = Deadlines(0.0)

        def fail() -> None:
            raise RuntimeError("it was answered already")

        deadlines.begin(fail)
        deadlines.begin(lambda: reported.append("beside it"))
        while not reported:
            await asyncio.sleep(0.01)
        deadlines.begin(lambda: reported.append("behind it"))
        while len(reported) < 2:
            await asyncio.sleep(0.01)
        assert len(complaints) == 1
        return reported

    assert run(play()) == ["beside it", "behind it"]


def test_only_what_is_not_answered_at_once_gets_a_deadline() -> None:
    async def play() -> None:
        pending = Pending()
        reported: list[str] = []
        assert pending.open and pending.met() and not pending.open
        late = Pending()
        Deadlines(0.0).begin(lambda: reported.append("missed"), late)
        while not reported:
            await asyncio.sleep(0.01)
        assert not late.met()

    run(play())
