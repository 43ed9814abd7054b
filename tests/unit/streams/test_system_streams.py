"""The streams that the server writes: their content, the permissions to change them, and their lifetime."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.unit.conftest import checkpoint, open_engine
from tests.unit.streams.conftest import append, create, fork, reopened
from tests.unit.streams.lifecycle_world import Turns, actual, believed, entries, opened
from topics.engine.read import ReadRequest, execute_read, plan_read
from topics.model.errors import InvalidRequestError, SystemStreamError, TopicsError
from topics.model.limits import Limits
from topics.model.topic_config import METRICS_STREAM, REGISTRY_STREAM, TopicConfig, TopicConfigPatch
from topics.streams.append import AppendRequest
from topics.streams.lifecycle import CreateRequest
from topics.streams.streams import Streams, inline_streams
from topics.streams.system_streams import registry_stream
from topics.streams.system_streams import registry_stream as log_module
from topics.streams.system_streams.registry_stream import LifecycleLog, SystemStream
from topics.streams.system_streams.system_streams import Around, SystemOptions, SystemStreams
from topics.testing import FakeDisk, ManualClock


def update(streams: Streams, name: str, profile: str) -> None:
    body = msgspec.json.encode({"profile": {"kind": profile}})
    streams.update_profile(name, body, lambda outcome: None)


def reported(streams: Streams) -> list[tuple[str, str]]:
    return [(one["event"], one["stream"]) for one in entries(streams)]


def test_registry_reports_events_in_order(streams: Streams) -> None:
    _, turns = opened(streams)
    create(streams, "a", "application/json")
    streams.update_schema("a", b'{"routingKey":{"jsonPointer":"/k","required":false}}', lambda outcome: None)
    update(streams, "a", "state-protocol")
    append(streams, "a", b'{"type":"t","key":"k","value":1,"headers":{"operation":"insert"}}', "application/json")
    streams.append("a", AppendRequest(body=b"", content_type="application/json", close=True), lambda outcome: None)
    streams.delete("a", lambda outcome: None)
    turns.run()
    assert reported(streams) == [
        ("created", "a"), ("schema", "a"), ("profile", "a"), ("closed", "a"), ("deleted", "a"),
    ]  # fmt: skip
    last = entries(streams)[-1]
    assert (last["next_offset"], last["profile"], last["closed"]) == ("1", "state-protocol", True)
    assert len({one["contract"] for one in entries(streams)}) == 3


def test_topics_of_the_other_protocol_are_reported_as_well(streams: Streams) -> None:
    _, turns = opened(streams)
    engine = streams.engine
    engine.put_topic("plain", TopicConfigPatch(), lambda outcome: None)
    engine.drop_topic("plain", False, lambda outcome: None)
    turns.run()
    assert reported(streams) == [("created", "plain"), ("deleted", "plain")]


def test_a_source_that_its_forks_keep_is_deleted_once(streams: Streams) -> None:
    _, turns = opened(streams)
    create(streams, "source", body=b"x")
    fork(streams, "fork", "source")
    streams.delete("source", lambda outcome: None)
    streams.delete("fork", lambda outcome: None)
    streams.engine.housekeeper.tick()
    turns.run()
    assert reported(streams) == [
        ("created", "source"), ("created", "fork"), ("deleted", "source"), ("deleted", "fork"),
    ]  # fmt: skip
    assert entries(streams)[1]["forked_from"] == "source"


def test_many_changes_of_one_turn_are_one_batch(streams: Streams) -> None:
    log, turns = opened(streams)
    head = streams.engine.core.shards[0].next_lsn + streams.engine.core.shards[1].next_lsn
    for number in range(20):
        create(streams, f"s{number}")
    assert reported(streams) == [], "nobody waits for what is told"
    turns.run()
    after = streams.engine.core.shards[0].next_lsn + streams.engine.core.shards[1].next_lsn
    # One frame each for the streams, one for the batch, and one at most that moves the ceiling of a class.
    assert after - head <= 22 and len(reported(streams)) == 20
    assert log.reconciled


def test_registry_stream_catches_up_after_a_restart(disk: FakeDisk, clock: ManualClock) -> None:
    streams = inline_streams(open_engine(disk, clock, wal_shards=2, segment_max_events=4))
    _, turns = opened(streams)
    for name in ("stays", "goes", "changes", "again"):
        create(streams, name, "application/json")
    turns.run()
    # Now without the registry: its log is there, without a writer.
    quiet = reopened(disk, clock)
    quiet.delete("goes", lambda outcome: None)
    quiet.delete("again", lambda outcome: None)
    create(quiet, "again", "application/json")
    create(quiet, "new", "application/json")
    update(quiet, "changes", "evlog")
    quiet.append("stays", AppendRequest(body=b"", content_type="application/json", close=True), lambda outcome: None)
    before = len(entries(quiet))
    opened(quiet)
    late = [(one["event"], one["stream"]) for one in entries(quiet)[before:]]
    assert sorted(late) == [
        ("closed", "stays"), ("created", "again"), ("created", "new"), ("deleted", "again"), ("deleted", "goes"),
        ("profile", "changes"),
    ]  # fmt: skip
    assert believed(entries(quiet)) == actual(quiet)


def test_streams_that_are_older_than_the_registry_count_as_reported(streams: Streams) -> None:
    create(streams, "old")
    _, turns = opened(streams)
    assert reported(streams) == []
    create(streams, "new")
    turns.run()
    assert reported(streams) == [("created", "new")]


def test_what_a_cap_took_out_of_the_registry_is_not_reported_again(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "CONFIG", TopicConfig(cap_records=5))
    _, turns = opened(streams)
    for number in range(12):
        create(streams, f"s{number:02}")
        turns.run()
    assert [name for _, name in reported(streams)] == [f"s{number:02}" for number in range(7, 12)]
    opened(streams)
    assert [name for _, name in reported(streams)] == [f"s{number:02}" for number in range(7, 12)]


def test_untold_streams_are_found_behind_an_oldest_creation_that_is_gone(
    disk: FakeDisk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "CONFIG", TopicConfig(cap_records=5))
    monkeypatch.setattr(log_module, "STEP", 2)
    streams = inline_streams(open_engine(disk, clock, wal_shards=2))
    _, turns = opened(streams)
    for number in range(12):
        create(streams, f"s{number:02}")
        clock.advance(1_000)
        turns.run()
    quiet = reopened(disk, clock)
    quiet.delete("s07", lambda outcome: None)
    for number in range(3):
        create(quiet, f"untold{number}")
    _, turns = opened(quiet)
    turns.run()
    assert [name for _, name in reported(quiet)][-4:] == ["s07", "untold0", "untold1", "untold2"]


def test_more_than_can_be_kept_is_found_by_comparing(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "PENDING_MAX", 3)
    _, turns = opened(streams)
    for number in range(30):
        create(streams, f"s{number}")
    for number in range(0, 30, 2):
        streams.delete(f"s{number}", lambda outcome: None)
    turns.run()
    assert believed(entries(streams)) == actual(streams)


def test_what_was_not_reported_of_streams_that_sleep_is_reported_and_they_sleep_on(
    disk: FakeDisk, clock: ManualClock
) -> None:
    def start(disk: FakeDisk) -> Streams:
        return inline_streams(open_engine(disk, clock, wal_shards=2, awake_topics=0))

    streams = start(disk)
    create(streams, "old")
    _, turns = opened(streams)
    create(streams, "told")
    create(streams, "closed")
    turns.run()
    streams.engine.close_inline()
    # Now without the registry: its log is there, without a writer.
    quiet = start(disk.clone())
    quiet.append("closed", AppendRequest(body=b"", content_type="text/plain", close=True), lambda outcome: None)
    create(quiet, "untold")
    checkpoint(quiet.engine)
    asleep = set(quiet.engine.core.pager.names)
    assert asleep >= {"old", "told", "closed", "untold"}
    opened(quiet)
    assert reported(quiet)[-2:] == [("closed", "closed"), ("created", "untold")]
    assert believed(entries(quiet)) == {name: one for name, one in actual(quiet).items() if name != "old"}
    assert set(quiet.engine.core.pager.names) == asleep


def test_streams_are_compared_in_short_steps_with_a_pause_behind_each(
    disk: FakeDisk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting, size in (("STEP", 2), ("_ENTRIES_A_STEP", 2), ("_NUMBERS_A_STEP", 5)):
        monkeypatch.setattr(registry_stream, setting, size)
    streams = inline_streams(open_engine(disk, clock, wal_shards=2))
    _, turns = opened(streams)
    for number in range(7):
        create(streams, f"told{number}")
    turns.run()
    quiet = reopened(disk, clock)
    untold = [f"untold{number}" for number in reversed(range(8))]
    for name in untold:
        create(quiet, name)
    pauses: list[float] = []

    def later(seconds: float, function: Callable[[], None]) -> Callable[[], None]:
        pauses.append(seconds)
        return turns.later(seconds, function)

    LifecycleLog(quiet, later).start()
    turns.run()
    assert reported(quiet)[7:] == [("created", name) for name in untold], "each once, in the order in which they came"
    # Four steps for the entries, three between the ones for their streams, and three at least for the new ones.
    assert pauses.count(registry_stream.PAUSE_S) >= 10


def test_a_registry_that_cannot_be_written_is_written_later(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    _, turns = opened(streams)
    write, refusals = SystemStream.write, [TopicsError("not now"), TopicsError("not now")]

    def refusing(self: SystemStream, records: Any, done: Any) -> None:
        if refusals:
            done(refusals.pop())
        else:
            write(self, records, done)

    monkeypatch.setattr(SystemStream, "write", refusing)
    create(streams, "a")
    turns.run()
    assert reported(streams) == [("created", "a")]


def test_an_entry_that_is_refused_for_good_holds_up_nothing(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    _, turns = opened(streams)
    write, refusals = SystemStream.write, [InvalidRequestError("never")]

    def refusing(self: SystemStream, records: Any, done: Any) -> None:
        if refusals:
            done(refusals.pop())
        else:
            write(self, records, done)

    monkeypatch.setattr(SystemStream, "write", refusing)
    create(streams, "a")
    turns.run()
    create(streams, "b")
    turns.run()
    assert reported(streams) == [("created", "b")]


@pytest.mark.parametrize("name", [REGISTRY_STREAM, METRICS_STREAM])
def test_writes_by_users_are_refused(streams: Streams, name: str) -> None:
    SystemStreams(streams, SystemOptions(), Turns().later, Around).start()
    json = "application/json"

    def nothing(outcome: object) -> None: ...

    for attempt in (
        lambda: streams.create(name, CreateRequest(content_type=json), nothing),
        lambda: streams.append(name, AppendRequest(body=b"{}", content_type=json), nothing),
        lambda: streams.append(name, AppendRequest(body=b"", content_type=json, close=True), nothing),
        lambda: streams.update_schema(name, b'{"routingKey":null}', nothing),
        lambda: streams.update_profile(name, b'{"profile":{"kind":"generic"}}', nothing),
        lambda: streams.delete(name, nothing),
    ):
        with pytest.raises(SystemStreamError):
            attempt()  # type: ignore[no-untyped-call]


def test_a_stream_that_had_the_name_before_is_left_alone(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("topics.streams.lifecycle.is_reserved_name", lambda name: False)
    create(streams, REGISTRY_STREAM, "application/json", body=b"[1]")
    _, turns = opened(streams)
    create(streams, "a")
    turns.run()
    topic = streams.topic(REGISTRY_STREAM)
    assert topic.head == 1 and "name of a system stream" in caplog.text
    streams.delete(REGISTRY_STREAM, lambda outcome: None)
    assert streams.engine.core.directory.find(REGISTRY_STREAM) is None


def test_system_streams_are_not_limited_or_archived(disk: FakeDisk, clock: ManualClock) -> None:
    streams = inline_streams(open_engine(disk, clock, limits=Limits(max_topics=2), segment_max_events=1))
    turns = Turns()
    SystemStreams(streams, SystemOptions(streams_metrics=False), turns.later, Around).start()
    create(streams, "one")
    create(streams, "two")
    turns.run()
    with pytest.raises(TopicsError, match="max_topics"):
        create(streams, "three")
    assert streams.engine.core.topic_count == 2
    streams.engine.run_job(streams.engine.checkpointer.job())
    assert streams.topic(REGISTRY_STREAM).segments
    assert not streams.engine.housekeeper.movable(streams.topic(REGISTRY_STREAM))
    assert REGISTRY_STREAM not in repr(streams.engine.checkpointer.catalog.__dict__)


class MetricsWorld:
    def __init__(self, streams: Streams, clock: ManualClock) -> None:
        self.streams, self.clock, self.turns = streams, clock, Turns()
        self.around = Around()
        options = SystemOptions(streams_registry=False, streams_metrics_ms=10_000, streams_metrics_retention_ms=60_000)
        SystemStreams(streams, options, self.turns.later, lambda: self.around).start()

    def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1000)
            self.turns.run(1)

    def intervals(self) -> list[dict[str, Any]]:
        topic = self.streams.topic(METRICS_STREAM)
        self.streams.engine.core.expire(topic)
        plan = plan_read(topic, ReadRequest(from_seq=0, limit=10_000, include_tags=True))
        found = execute_read(plan, self.streams.engine.core.reader).records()
        return [{"tag": record["$tag"], **record["data"]} for record in found]  # type: ignore[dict-item]


@pytest.fixture
def metrics(streams: Streams, clock: ManualClock) -> MetricsWorld:
    return MetricsWorld(streams, clock)


def test_an_interval_of_each_metric_every_ten_seconds(metrics: MetricsWorld) -> None:
    create(metrics.streams, "a", body=b"12345")
    metrics.around = Around(requests=7, pipeline_lag_ms=30)
    metrics.pass_seconds(9)
    assert metrics.intervals() == []
    metrics.around = Around(requests=9, pipeline_lag_ms=10)
    metrics.pass_seconds(1)
    found = {one["metric"]: one for one in metrics.intervals()}
    assert len(found) == len(metrics.intervals()) > 15
    assert found["topics.append.records"]["sum"] == 1
    assert found["topics.http.requests"]["sum"] == 9
    lag = found["topics.pipeline.lag"]
    assert (lag["count"], lag["min"], lag["max"]) == (11, 0, 30)
    assert found["topics.log.sync.time"]["count"] == sum(found["topics.log.sync.time"]["buckets"].values())
    assert {one["windowEnd"] - one["windowStart"] for one in metrics.intervals()} == {10_000}
    assert all(one["tag"] == one["seriesKey"] for one in metrics.intervals())
    metrics.pass_seconds(10)
    again = [one for one in metrics.intervals() if one["metric"] == "topics.http.requests"]
    assert [one["sum"] for one in again] == [9, 0]
    assert again[0]["windowEnd"] == again[1]["windowStart"]


def test_old_metrics_are_evicted(metrics: MetricsWorld) -> None:
    metrics.pass_seconds(100)
    ends = {one["windowEnd"] for one in metrics.intervals()}
    assert 5 <= len(ends) <= 7 and min(ends) >= metrics.clock.now_ms() - 60_000


def test_a_clock_that_is_set_back_makes_no_interval_that_ends_before_it_begins(metrics: MetricsWorld) -> None:
    metrics.pass_seconds(5)
    metrics.clock.jump(-3_600_000)
    metrics.pass_seconds(16)
    assert metrics.intervals()
    assert all(one["windowEnd"] >= one["windowStart"] for one in metrics.intervals())


def test_other_settings_after_a_restart_are_what_counts(disk: FakeDisk, clock: ManualClock) -> None:
    streams = inline_streams(open_engine(disk, clock))
    SystemStreams(streams, SystemOptions(streams_metrics_retention_ms=1000), Turns().later, Around).start()
    assert streams.topic(METRICS_STREAM).config.ttl_ms == 1000
    again = reopened(disk, clock)
    SystemStreams(again, SystemOptions(streams_metrics_retention_ms=2000), Turns().later, Around).start()
    assert again.topic(METRICS_STREAM).config.ttl_ms == 2000
    off = inline_streams(open_engine(FakeDisk(), clock))
    SystemStreams(off, SystemOptions(streams_metrics=False, streams_registry=False), Turns().later, Around).start()
    assert not off.engine.core.directory.resident
