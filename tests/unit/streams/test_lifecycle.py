"""Streams coming to be and going, by hand and by themselves."""

from typing import Any

import pytest

from tests.unit.conftest import checkpoint, flush, hold, killed, logged, open_engine
from tests.unit.streams.conftest import append, create, delete, fork, reopened, text
from topics.log.frame import FrameKind
from topics.model.errors import (
    DiskFullError,
    InvalidRequestError,
    StreamConflictError,
    ThrottledError,
    TopicNotFoundError,
    TopicsError,
)
from topics.model.limits import Limits
from topics.streams import lifecycle
from topics.streams.lifecycle import CONTENT_TYPE_BYTES_MAX, TTL_S_MAX, Created, CreateRequest, Deleted
from topics.streams.streams import Streams, inline_streams
from topics.testing import NO_FAULTS, FakeDisk, Fault, FaultPlan, FaultyFileSystem, ManualClock


@pytest.mark.parametrize("settings", [{"ttl_s": TTL_S_MAX + 1}, {"content_type": "x" * (CONTENT_TYPE_BYTES_MAX + 1)}])
def test_settings_that_could_not_be_kept_are_refused_and_the_name_stays_free(
    streams: Streams, settings: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError):
        streams.create("a", CreateRequest(**settings), lambda outcome: None)
    assert create(streams, "a", ttl_s=TTL_S_MAX).created


def test_concurrent_creations_of_one_stream_succeed(streams: Streams) -> None:
    hold(streams.engine)
    answers: list[Created | TopicsError] = []
    for _ in range(2):
        streams.create("a", CreateRequest(content_type="text/plain", body=b"x"), answers.append)
    with pytest.raises(TopicNotFoundError):
        streams.topic("a")
    flush(streams.engine)
    flush(streams.engine)
    assert [isinstance(answer, Created) and answer.created for answer in answers] == [True, False]
    assert text(streams, "a") == "x"


def test_a_name_is_free_when_the_deletion_is_safe(streams: Streams) -> None:
    create(streams, "a", body=b"old")
    hold(streams.engine)
    dropped: list[Deleted | TopicsError] = []
    made: list[Created | TopicsError] = []
    streams.delete("a", dropped.append)
    for use in (lambda: append(streams, "a", b"x"), lambda: fork(streams, "f", "a"), lambda: text(streams, "a")):
        with pytest.raises(TopicNotFoundError):
            use()
    streams.create("a", CreateRequest(content_type="application/json"), made.append)
    assert made == dropped == []
    flush(streams.engine)
    flush(streams.engine)
    assert isinstance(made[0], Created) and made[0].created


def test_a_server_at_its_limit_creates_no_more() -> None:
    streams = inline_streams(open_engine(limits=Limits(max_topics=1)))
    create(streams, "a")
    with pytest.raises(ThrottledError):
        create(streams, "b")
    assert not create(streams, "a").created


def test_a_lifetime_slides_with_every_use_and_not_with_a_look(streams: Streams, clock: ManualClock) -> None:
    create(streams, "a", ttl_s=10)
    for _ in range(3):
        clock.advance(9_000)
        streams.renew_ttl(streams.topic("a"))
    clock.advance(9_000)
    append(streams, "a", b"x")
    clock.advance(9_999)
    streams.info("a")
    clock.advance(1)
    with pytest.raises(TopicNotFoundError):
        streams.info("a")


def test_expired_stream_is_deleted(streams: Streams, clock: ManualClock) -> None:
    create(streams, "a", ttl_s=10)
    create(streams, "b", expires_ms=clock.now_ms() + 5_000)
    create(streams, "c")
    clock.advance(20_000)
    streams.engine.housekeeper.tick()
    assert list(streams.engine.core.names) == ["c"]


def test_renewals_survive_a_kill_and_are_never_forgotten_early(
    streams: Streams, disk: FakeDisk, clock: ManualClock
) -> None:
    create(streams, "a", ttl_s=160)
    clock.advance(150_000)
    streams.renew_ttl(streams.topic("a"))
    clock.advance(9_000)
    streams.renew_ttl(streams.topic("a"))
    again = reopened(disk, clock)
    clock.advance(159_000)
    assert again.info("a").ttl_s == 160
    clock.advance(12_000)
    with pytest.raises(TopicNotFoundError):
        again.info("a")


def test_restarts_do_not_keep_a_stream_alive(streams: Streams, disk: FakeDisk, clock: ManualClock) -> None:
    create(streams, "a", ttl_s=160)
    for _ in range(8):
        clock.advance(20_000)
        checkpoint(streams.engine)
        disk = killed(disk)
        streams = inline_streams(open_engine(disk, clock, wal_shards=2))
    clock.advance(15_000)
    with pytest.raises(TopicNotFoundError):
        streams.info("a")


@pytest.mark.parametrize("name", ["__registry__", "a/_schema", "a/pk/k", "a/touch/x"])
def test_a_folder_that_holds_a_reserved_name_opens_and_keeps_its_stream(
    streams: Streams, disk: FakeDisk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with monkeypatch.context() as before:
        before.setattr(lifecycle, "check_not_reserved", lambda name: None)
        create(streams, name, body=b"old")
    again = reopened(disk, clock)
    assert text(again, name) == "old"
    assert not create(again, name).created, "it is there as asked"
    append(again, name, b"er")
    assert [info.name for info in again.listed(name, "", 0, (), system=True)] == [name]
    delete(again, name)
    with pytest.raises(InvalidRequestError):
        create(again, name)


def test_a_list_reports_how_far_streams_are_sealed(streams: Streams) -> None:
    for name in "ab":
        create(streams, name, body=b"x")
    for _ in range(5):
        append(streams, "b", b"y")
    assert [info.sealed_through for info in streams.listed("", "", 0, ())] == [-1, 3]


def test_a_stream_whose_time_is_over_stays_gone_when_the_clock_is_set_back(
    streams: Streams, disk: FakeDisk, clock: ManualClock
) -> None:
    create(streams, "short", ttl_s=10)
    create(streams, "unseen", ttl_s=10)
    clock.advance(11_000)
    with pytest.raises(TopicNotFoundError):
        streams.topic("short")
    clock.jump(-3_600_000)
    with pytest.raises(TopicNotFoundError):
        streams.topic("short")
    assert [info.name for info in streams.listed("", "", 0, ())] == ["unseen"], "nobody knows that it was over"
    streams.engine.streams.tick()
    assert "short" not in streams.engine.core.directory
    again = reopened(disk, clock)
    assert [info.name for info in again.listed("", "", 0, ())] == ["unseen"]


YEAR_MS = 365 * 86_400_000


def test_a_lifetime_that_began_while_the_clock_ran_ahead_is_mended_by_the_next_use(
    streams: Streams, clock: ManualClock
) -> None:
    clock.jump(YEAR_MS)
    for name in ("read", "appended"):
        create(streams, name, ttl_s=10)
    append(streams, "appended", b"x")
    clock.advance(1_000)
    streams.engine.housekeeper.tick()
    clock.jump(-YEAR_MS)
    streams.renew_ttl(streams.topic("read"))
    append(streams, "appended", b"y")
    assert streams.info("read").deadline_ms == streams.info("appended").deadline_ms == clock.now_ms() + 10_000
    streams.engine.housekeeper.tick()
    clock.advance(10_000)
    streams.engine.housekeeper.tick()
    assert not list(streams.engine.core.names), "nobody had to look"


def test_expired_stream_is_deleted_after_a_read_only_log_recovers(clock: ManualClock) -> None:
    fs = FaultyFileSystem(FakeDisk())
    streams = inline_streams(open_engine(fs, clock, full_disk_reserve_bytes=0))
    for name in ("seen", "unseen", "source"):
        create(streams, name, ttl_s=10, body=b"x")
    create(streams, "other")
    fork(streams, "fork", "source", expires_ms=clock.now_ms() + 10_000)
    fs.plan = FaultPlan(fs.calls + 1, Fault.ENOSPC, lasting=True)
    with pytest.raises(DiskFullError):
        append(streams, "other", b"x")
    clock.advance(10_000)
    streams.engine.housekeeper.tick()
    with pytest.raises(TopicNotFoundError):
        streams.topic("seen")
    streams.engine.housekeeper.tick()
    assert len(streams.engine.core.names) == 5
    fs.plan = NO_FAULTS
    for _ in range(4):
        streams.engine.housekeeper.tick()
    assert list(streams.engine.core.names) == ["other"]


def test_a_deletion_that_fails_on_its_way_is_tried_again(clock: ManualClock) -> None:
    fs = FaultyFileSystem(FakeDisk())
    streams = inline_streams(open_engine(fs, clock, full_disk_reserve_bytes=0))
    create(streams, "a", ttl_s=10)
    clock.advance(10_000)
    hold(streams.engine)
    streams.engine.streams.tick()
    fs.plan = FaultPlan(fs.calls + 1, Fault.ENOSPC, lasting=True)
    flush(streams.engine)
    assert list(streams.engine.core.names) == ["a"]
    fs.plan = NO_FAULTS
    for _ in range(3):
        streams.engine.housekeeper.tick()
    assert not list(streams.engine.core.names)


def test_the_name_of_a_source_whose_time_is_over_is_not_free_and_not_there(
    streams: Streams, clock: ManualClock
) -> None:
    create(streams, "a", ttl_s=10, body=b"x")
    fork(streams, "f", "a", expires_ms=clock.now_ms() + YEAR_MS)
    clock.advance(10_000)
    hold(streams.engine)
    for _ in range(2):
        with pytest.raises(StreamConflictError, match="forks still use it"):
            create(streams, "a", ttl_s=10)
    streams.engine.streams.tick()
    flush(streams.engine)
    with pytest.raises(StreamConflictError, match="forks still use it"):
        create(streams, "a", ttl_s=10)
    assert text(streams, "f") == "x"
    assert logged(streams.engine, streams.engine.core.directory.load("a").shard).count(FrameKind.STREAM_RETIRE) == 1
