"""Routers from and into streams: every stream stays readable, nothing is put behind an end, and every wait is
reported."""

import base64
import logging

import pytest

from tests.unit.conftest import append as write
from tests.unit.conftest import put, read, values
from tests.unit.routers.conftest import ask_route, route, router
from tests.unit.streams.conftest import append, create, delete, fork, reopened, slice_of, text
from topics.model.errors import StreamClosedError, StreamGoneError
from topics.model.router_rules import Guarantee, TagMatch
from topics.model.topic_config import Discard, TopicConfigPatch
from topics.streams.streams import Streams
from topics.testing import FakeDisk, ManualClock

JSON = "application/json"
PNG = "image/png"
RAW = bytes(range(256))


def body_of(streams: Streams, name: str, as_json: bool) -> bytes:
    return bytes(slice_of(streams, name, as_json=as_json).body)


@pytest.mark.parametrize(
    ("source", "body", "dest", "expected"),
    [
        (JSON, b'{"a":1}', JSON, b'[{"a":1}]'),
        (PNG, RAW, PNG, RAW),
        (PNG, RAW, "text/plain", RAW),
        (JSON, b'{"a":1}', PNG, b'{"a":1}'),
        (JSON, b'"QUJD"', PNG, b'"QUJD"'),
        (PNG, RAW, JSON, b'["%b"]' % base64.b64encode(RAW)),
    ],
)
@pytest.mark.parametrize("guarantee", [*Guarantee])
def test_a_copy_is_readable_whatever_the_streams_hold(
    streams: Streams, disk: FakeDisk, clock: ManualClock, source: str, body: bytes, dest: str, expected: bytes,
    guarantee: Guarantee,
) -> None:  # fmt: skip
    create(streams, "from", source)
    create(streams, "into", dest)
    route(streams.engine, "from", "into", "", guarantee=guarantee)
    append(streams, "from", body, source)
    assert body_of(streams, "into", dest == JSON) == expected
    again = reopened(disk, clock)
    assert body_of(again, "into", dest == JSON) == expected


def test_copies_and_appends_of_both_protocols_stand_in_one_order(streams: Streams) -> None:
    create(streams, "into", "text/plain", body=b"one,")
    route(streams.engine, "from", "into")
    write(streams.engine, "from", 2)
    append(streams, "into", b",three")
    assert text(streams, "into") == "one,2,three"


def test_a_router_into_a_closed_stream_is_refused(streams: Streams) -> None:
    create(streams, "into", JSON, closed=True)
    assert isinstance(_refusal(streams, "from", "into"), StreamClosedError)
    assert "from" not in streams.engine.core.directory


def _refusal(streams: Streams, source: str, dest: str) -> object:
    with pytest.raises((StreamClosedError, StreamGoneError)) as refused:
        ask_route(streams.engine, source, dest)
    return refused.value


def test_a_router_of_a_retired_stream_is_refused(streams: Streams) -> None:
    create(streams, "old", JSON, body=b"[1]")
    fork(streams, "f", "old")
    delete(streams, "old")
    assert isinstance(_refusal(streams, "old", "into"), StreamGoneError)
    assert isinstance(_refusal(streams, "from", "old"), StreamGoneError)


def test_a_stream_that_closes_blocks_its_router_and_reports_it_once(
    streams: Streams, disk: FakeDisk, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    engine = streams.engine
    create(streams, "into", JSON)
    route(engine, "from", "into")
    write(engine, "from", 1)
    append(streams, "into", b"2", JSON, close=True)
    with caplog.at_level(logging.WARNING):
        for number in range(3, 6):
            write(engine, "from", number)
            clock.advance(1000)
            engine.housekeeper.tick()
    info = engine.router("from->into")
    assert (info.blocked, info.blocked_by, info.lag) == (True, "stream_closed", 3)
    assert engine.stats().routers_blocked == 1
    assert len([line for line in caplog.records if line.message == "router blocked"]) == 1
    assert slice_of(streams, "into", as_json=True).body == b"[1,2]"
    again = reopened(disk, clock)
    again.engine.routing.kick()
    assert slice_of(again, "into", as_json=True).body == b"[1,2]"
    assert again.engine.router("from->into").blocked_by == "stream_closed"


def test_no_gap_is_put_behind_the_end_of_a_closed_stream(streams: Streams) -> None:
    """Also where nothing is left to forward, so that only a gap would be left to report."""
    engine = streams.engine
    put(engine, "from", cap_records=1)
    create(streams, "into", JSON, body=b"[0]")
    route(engine, "from", "into", "", filter=TagMatch("wanted"))
    append(streams, "into", b"1", JSON, close=True)
    # It does not come to the records in time.
    engine.core.cross_shard_gate.close(lambda: None)
    router(engine, "from->into").blocked = True
    for number in range(5):
        write(engine, "from", number)
    engine.core.cross_shard_gate.reopen()
    assert engine.info("into").head_seq == 2
    assert read(engine, "into", from_seq=2).tombstone is None


def test_a_stream_whose_time_is_over_is_not_brought_back(streams: Streams, clock: ManualClock) -> None:
    engine = streams.engine
    create(streams, "into", JSON, ttl_s=10)
    route(engine, "from", "into")
    clock.advance(9_000)
    write(engine, "from", 1)
    clock.advance(9_000)
    assert streams.topic("into").head == 1, "a copy renews it, as every append does"
    clock.advance(2_000)
    write(engine, "from", 2)
    engine.housekeeper.tick()
    assert "into" not in engine.core.directory
    assert engine.list_routers("", "", 10, lambda info: True) == []


def test_deleting_a_stream_takes_its_routers_along_also_where_forks_are_left(
    streams: Streams, disk: FakeDisk, clock: ManualClock
) -> None:
    engine = streams.engine
    create(streams, "middle", JSON, body=b"[1]")
    fork(streams, "f", "middle")
    route(engine, "from", "middle")
    route(engine, "middle", "end")
    write(engine, "from", 2)
    assert values(engine, "end") == [2]
    assert sorted(delete(streams, "middle").routers_removed) == ["from->middle", "middle->end"]
    write(engine, "from", 3)
    assert engine.list_routers("", "", 10, lambda info: True) == []
    again = reopened(disk, clock)
    again.engine.routing.kick()
    assert again.engine.list_routers("", "", 10, lambda info: True) == []
    assert values(again.engine, "end") == [2]
    assert slice_of(again, "f", as_json=True).body == b"[1]"


def test_a_router_of_a_fork_forwards_what_the_fork_itself_was_given(streams: Streams) -> None:
    create(streams, "a", JSON, body=b"[1,2]")
    fork(streams, "f", "a")
    route(streams.engine, "f", "copy", "", from_seq=0)
    append(streams, "f", b"3", JSON)
    assert values(streams.engine, "copy") == [3]
    assert read(streams.engine, "copy").tombstone is None


def test_a_full_stream_is_distinguished_from_a_closed_one(streams: Streams) -> None:
    engine = streams.engine
    create(streams, "into", JSON)
    engine.put_topic("into", TopicConfigPatch(cap_records=1, discard=Discard.REJECT), lambda outcome: None)
    route(engine, "from", "into")
    write(engine, "from", 1, 2)
    assert engine.router("from->into").blocked_by == "topic_full"
