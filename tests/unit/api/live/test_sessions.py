"""Watch sessions and the counts of connections."""

import pytest

from topics.api.auth import ANYONE, Key, Scope
from topics.api.error_responses import NotFoundError
from topics.api.live import Connections, Projection, Session, Sessions
from topics.api.v0.watch import SHARED
from topics.model.errors import ThrottledError
from topics.testing import ManualClock, SeededEntropy


class Stream:
    def give_way(self) -> None: ...


class Desk:
    def __init__(self, sessions_max: int = 3) -> None:
        self.clock = ManualClock()
        self.sessions = Sessions(sessions_max, 1_000, self.clock, SeededEntropy(1))

    def make(self) -> Session:
        return self.sessions.create(ANYONE, Projection(framing=SHARED), 15_000, {"t": 0}, {"t": 1}, {"t": 1})


def test_an_idle_session_is_forgotten_after_its_time() -> None:
    desk = Desk()
    wid = desk.make().wid
    desk.clock.advance(999)
    assert desk.sessions.find(wid).wid == wid
    desk.clock.advance(2)
    with pytest.raises(NotFoundError):
        desk.sessions.find(wid)
    assert len(desk.sessions) == 0


def test_one_with_a_stream_never_is() -> None:
    desk = Desk()
    session, stream = desk.make(), Stream()
    desk.sessions.attach(session, stream)
    desk.clock.advance(100_000)
    assert desk.sessions.find(session.wid) is session
    desk.sessions.detach(session, stream)
    desk.clock.advance(999)
    assert desk.sessions.find(session.wid) is session
    desk.clock.advance(2)
    with pytest.raises(NotFoundError):
        desk.sessions.find(session.wid)


def test_idle_sessions_make_room_and_busy_ones_do_not() -> None:
    desk = Desk()
    first, *_ = [desk.make() for _ in range(3)]
    with pytest.raises(ThrottledError) as refused:
        desk.make()
    assert refused.value.detail == {"limit": "max_watch_sessions", "max": 3}
    desk.sessions.attach(first, Stream())
    desk.clock.advance(1_001)
    desk.make()
    desk.make()
    with pytest.raises(ThrottledError):
        desk.make()


def test_no_limit_is_no_limit() -> None:
    desk = Desk(sessions_max=0)
    assert len({desk.make().wid for _ in range(100)}) == 100


def test_a_stream_that_was_replaced_does_not_close_its_successor() -> None:
    desk = Desk()
    session, old, new = desk.make(), Stream(), Stream()
    desk.sessions.attach(session, old)
    desk.sessions.detach(session, old)
    desk.sessions.attach(session, new)
    desk.sessions.detach(session, old)
    assert session.stream is new


def test_connections_are_counted_in_all_and_by_key() -> None:
    connections = Connections(3, 2)
    one, other = (Key(number, b"", Scope.READ, ()) for number in range(2))
    leave = connections.enter(one)
    connections.enter(one)
    with pytest.raises(ThrottledError) as refused:
        connections.enter(one)
    assert refused.value.detail == {"limit": "max_sse_connections_per_key", "max": 2}
    connections.enter(other)
    with pytest.raises(ThrottledError) as refused:
        connections.enter(other)
    assert refused.value.detail == {"limit": "max_sse_connections", "max": 3}
    leave()
    leave()
    assert connections.open == 2
    connections.enter(one)


def test_without_keys_only_the_whole_is_counted() -> None:
    connections = Connections(0, 1)
    for _ in range(50):
        connections.enter(ANYONE)
    assert connections.open == 50


def test_one_key_does_not_take_the_room_of_others() -> None:
    clock = ManualClock()
    sessions = Sessions(10, 1_000, clock, SeededEntropy(1), per_key_max=2)
    mine, theirs = (Key(number, b"", Scope.READ, ()) for number in range(2))

    def make(key: Key) -> Session:
        return sessions.create(key, Projection(framing=SHARED), 15_000, {"t": 0}, {"t": 1}, {"t": 1})

    first, _ = make(mine), make(mine)
    with pytest.raises(ThrottledError) as refused:
        make(mine)
    assert refused.value.detail == {"limit": "max_watch_sessions_per_key", "max": 2}
    make(theirs)
    for _ in range(3):
        make(ANYONE)
    sessions.attach(first, Stream())
    clock.advance(1_001)
    make(mine)
    with pytest.raises(ThrottledError):
        make(mine)
