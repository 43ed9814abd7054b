"""Schemas and profiles of streams: kept, changed in the order of the log, inherited by forks up to where they leave."""

import json

import pytest

from tests.unit.conftest import LOCAL, committers, open_engine, put
from tests.unit.conftest import append as write
from tests.unit.conftest import delete as erase
from tests.unit.streams.conftest import append, create, delete, fork, reopened, slice_of
from tests.unit.streams.describing import JSON, NUMBERED, RENAMED, boundaries, evolve, lens, profile, rename, update
from topics.model.bounded_cache import HolderCache
from topics.model.errors import (
    InvalidRequestError,
    StreamClosedError,
    StreamConflictError,
    TopicNotFoundError,
    TopicsError,
)
from topics.model.topic_config import Durability
from topics.schema.contract import Contract
from topics.schema.validation import COMPILED_PER_BYTE, pattern_bytes
from topics.streams import chunked_validation
from topics.streams.append import AppendRequest
from topics.streams.stream_state import Position, stream_of
from topics.streams.streams import Streams, inline_streams
from topics.testing import FakeDisk, ManualClock, Survival


def body(streams: Streams, name: str) -> object:
    return json.loads(slice_of(streams, name).body)


def test_a_stream_promises_nothing_at_first(streams: Streams) -> None:
    create(streams, "a", JSON)
    write(streams.engine, "t", 1)
    assert streams.contract("a") == streams.contract("t") == Contract()
    with pytest.raises(TopicNotFoundError):
        streams.contract("missing")


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_contract_survives_in_the_log_and_in_a_snapshot(
    streams: Streams, disk: FakeDisk, clock: ManualClock, checkpoint: bool
) -> None:
    create(streams, "a", JSON)
    create(streams, "plain", JSON)
    update(streams, "a", schema=NUMBERED, routingKey={"jsonPointer": "/key", "required": False})
    append(streams, "a", b'[{"id":1},{"id":2,"key":"k"}]', JSON)
    evolve(streams, "a")
    create(streams, "states", JSON)
    profile(streams, "states", "state-protocol", touch={"enabled": True})
    if checkpoint:
        streams.engine.run_job(streams.engine.checkpointer.job())
    requested = {name: streams.contract(name) for name in ("a", "plain", "states")}
    again = reopened(disk.clone(), clock)
    assert {name: again.contract(name) for name in requested} == requested
    assert boundaries(again, "a") == [0, 2]
    assert slice_of(again, "a", key="k").body == b'[{"key":"k","number":2}]'
    with pytest.raises(InvalidRequestError):
        append(again, "a", b'{"id":3}', JSON)
    assert again.info("states").profile == "state-protocol"
    assert again.info("plain").profile == "generic"


def test_a_stream_that_is_created_again_begins_with_nothing(streams: Streams) -> None:
    create(streams, "a", JSON)
    update(streams, "a", schema=NUMBERED)
    delete(streams, "a")
    create(streams, "a", JSON)
    assert streams.contract("a") == Contract()
    append(streams, "a", b'"anything"', JSON)


def test_a_topic_of_the_other_protocol_can_be_described(streams: Streams) -> None:
    put(streams.engine, "t")
    update(streams, "t", schema=NUMBERED)
    with pytest.raises(InvalidRequestError) as caught:
        write(streams.engine, "t", {"id": 1}, {"id": "x"})
    assert caught.value.detail["reason"] == "schema"
    assert caught.value.detail["index"] == 1
    write(streams.engine, "t", {"id": 1})
    assert body(streams, "t") == [{"id": 1}]


def test_a_refused_update_leaves_a_topic_as_plain_as_it_was(streams: Streams) -> None:
    put(streams.engine, "t")
    write(streams.engine, "t", 1)
    with pytest.raises(InvalidRequestError, match="empty stream"):
        update(streams, "t", schema=NUMBERED)
    topic = streams.engine.core.directory.load("t")
    assert topic.rules.plain and stream_of(topic) is None


def test_empty_means_that_nothing_was_ever_appended(streams: Streams) -> None:
    write(streams.engine, "t", 1)
    erase(streams.engine, "t")
    with pytest.raises(InvalidRequestError, match="empty stream"):
        update(streams, "t", schema=NUMBERED)


def test_streams_that_are_not_json_or_closed_are_refused(streams: Streams) -> None:
    create(streams, "text")
    with pytest.raises(InvalidRequestError, match="application/json"):
        update(streams, "text", schema=NUMBERED)
    with pytest.raises(InvalidRequestError, match="application/json"):
        profile(streams, "text", "evlog")
    profile(streams, "text", "generic")
    create(streams, "closed", JSON, closed=True)
    with pytest.raises(StreamClosedError):
        update(streams, "closed", schema=NUMBERED)
    with pytest.raises(StreamClosedError):
        profile(streams, "closed", "evlog")
    with pytest.raises(TopicNotFoundError):
        update(streams, "missing", schema=NUMBERED)


def test_a_lens_from_another_version_is_a_conflict(streams: Streams) -> None:
    create(streams, "a", JSON)
    update(streams, "a", schema=NUMBERED)
    with pytest.raises(StreamConflictError):
        update(streams, "a", schema=RENAMED, lens=lens("a", 2, rename("/id", "/number")))
    assert streams.contract("a").registry.current_version == 1


def test_a_boundary_stands_where_the_log_does_also_among_appends_on_their_way(streams: Streams) -> None:
    """Everything is held back by the disk: three appends of the old version, the update, and an append of the new."""
    create(streams, "a", JSON)
    update(streams, "a", schema=NUMBERED)
    for committer in committers(streams.engine):
        committer.hold = True
    answers: list[object] = []

    def send(value: object) -> None:
        streams.append("a", AppendRequest(body=json.dumps(value).encode(), content_type=JSON), answers.append)

    for number in range(3):
        send({"id": number})
    requested = {"schema": RENAMED, "lens": lens("a", 1, rename("/id", "/number"))}
    streams.update_schema("a", json.dumps(requested).encode(), answers.append)
    with pytest.raises(InvalidRequestError):
        send({"id": 3})
    send({"number": 3})
    assert answers == [] and boundaries(streams, "a") == [0]
    for committer in committers(streams.engine):
        committer.hold = False
        committer.flush()
    assert len(answers) == 5 and not any(isinstance(answer, TopicsError) for answer in answers)
    assert boundaries(streams, "a") == [0, 3]
    assert body(streams, "a") == [{"number": number} for number in range(4)]


def test_single_records_of_the_same_tick_are_in_front_of_the_update(streams: Streams) -> None:
    put(streams.engine, "t")
    for committer in committers(streams.engine):
        committer.coalesces = True
    write(streams.engine, "t", "first")
    with pytest.raises(InvalidRequestError, match="empty stream"):
        update(streams, "t", schema=NUMBERED)


def test_a_fork_inherits_the_versions_up_to_where_it_leaves(
    streams: Streams, disk: FakeDisk, clock: ManualClock
) -> None:
    create(streams, "a", JSON)
    update(streams, "a", schema=NUMBERED)
    early = append(streams, "a", b'{"id":1}', JSON).next_offset
    append(streams, "a", b'{"id":2}', JSON)
    evolve(streams, "a")
    append(streams, "a", b'{"number":3}', JSON)
    fork(streams, "early", "a", early)
    fork(streams, "late", "a")
    for each in (streams, reopened(disk.clone(), clock)):
        assert (boundaries(each, "early"), boundaries(each, "late")) == ([0], [0, 2])
        assert body(each, "early") == [{"id": 1}]
        assert body(each, "late") == [{"number": 1}, {"number": 2}, {"number": 3}]
    append(streams, "early", b'{"id":7}', JSON)
    append(streams, "late", b'{"number":7}', JSON)
    with pytest.raises(InvalidRequestError):
        append(streams, "late", b'{"id":7}', JSON)
    with pytest.raises(InvalidRequestError):
        fork(streams, "wrong", "a", body=b'{"id":7}')
    # From here on each has its own history.
    evolve(streams, "early")
    append(streams, "early", b'{"number":8}', JSON)
    assert boundaries(streams, "early") == [0, 2]
    assert body(streams, "early") == [{"number": 1}, {"number": 7}, {"number": 8}]


@pytest.mark.parametrize("durability", LOCAL)
@pytest.mark.parametrize("survival", [Survival.EVERYTHING, Survival.NOTHING])
def test_a_boundary_holds_for_every_class_whatever_is_lost(
    streams: Streams, disk: FakeDisk, clock: ManualClock, durability: Durability, survival: Survival
) -> None:
    """Records that a class does not keep may be gone after a crash, but the update is synced, and later records are
    behind it."""
    put(streams.engine, "t", durability=durability)
    update(streams, "t", schema=NUMBERED)
    write(streams.engine, "t", {"id": 0}, {"id": 1})
    evolve(streams, "t")
    write(streams.engine, "t", {"number": 2})
    crashed = disk.clone().crash(survival)
    again = inline_streams(open_engine(crashed, clock, boot_id="other", wal_shards=2, segment_max_events=4))
    assert boundaries(again, "t") == [0, 2]
    topic = again.topic("t")
    assert topic.staged_head >= 2, "no entry of the second version may come before its boundary"
    with pytest.raises(InvalidRequestError):
        write(again.engine, "t", {"id": 3})
    write(again.engine, "t", {"number": 3})
    for part in (
        slice_of(again, "t"),
        slice_of(again, "t", Position(2)),
        slice_of(again, "t", Position(topic.head - 1)),
    ):
        assert all(list(entry) == ["number"] for entry in json.loads(part.body))


def test_compiled_schemas_of_many_streams_are_bounded_and_made_again(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = COMPILED_PER_BYTE * len(json.dumps(NUMBERED, separators=(",", ":")))
    monkeypatch.setattr(chunked_validation, "COMPILED", HolderCache(2 * each))
    names = [f"s{number}" for number in range(8)]
    for name in names:
        create(streams, name, JSON)
        update(streams, name, schema=NUMBERED)
        append(streams, name, b'{"id":1}', JSON)
    registries = [streams.contract(name).registry for name in names]
    compiled = ["validator" in registry.__dict__ for registry in registries]
    assert compiled == [False] * 6 + [True] * 2
    for name in names:
        with pytest.raises(InvalidRequestError):
            append(streams, name, b'{"id":"x"}', JSON)
        append(streams, name, b'{"id":2}', JSON)
    assert len(chunked_validation.COMPILED) == 2


def test_a_pattern_is_weighed_by_what_it_repeats() -> None:
    def weight(pattern: str) -> int:
        return pattern_bytes({"properties": {"a": {"pattern": pattern}}})

    assert weight("^[a-z]+$") < 25_000 < weight("^(?:[a-z]{1,50}-){1,20}$")
    assert weight(r"^\w{1,500}$") > 1_000_000
    assert weight("(a{1000}){1000}") < 3_000_000, "the compiler has a limit"
    assert pattern_bytes({"patternProperties": {"^a": {}, "^b": {}}}) >= 40_000
    assert pattern_bytes({"properties": {"pattern": {"type": "string"}}}) == 0
