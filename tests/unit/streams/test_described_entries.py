"""Whichever way entries come into a stream that describes them: checked, normalised, given keys, all or nothing."""

import json
from typing import Any

import pytest

from tests.unit.conftest import append as write
from tests.unit.conftest import batch_of, delete, put, read
from tests.unit.engine.writing_world import reported
from tests.unit.queues.conftest import make_queue
from tests.unit.routers.conftest import route
from tests.unit.streams.conftest import append, create, reopened, slice_of
from tests.unit.streams.describing import JSON, NUMBERED, evolve, profile, update
from topics.engine.engine import Engine
from topics.model.errors import InvalidRequestError, TopicsError
from topics.model.records import Batch, Record
from topics.model.router_rules import Guarantee
from topics.queues.leases import ClaimRequest, RedriveRequest
from topics.streams.streams import Streams
from topics.testing import FakeDisk, ManualClock

KEYED = {"jsonPointer": "/key", "required": True}


def body(streams: Streams, name: str, key: str | None = None) -> list[Any]:
    found: list[Any] = json.loads(slice_of(streams, name, key=key).body)
    return found


def records(engine: Engine, name: str) -> list[Any]:
    return list(read(engine, name, include_tags=True).records())


def tags(engine: Engine, name: str) -> list[str | None]:
    return [record.get("$tag") for record in records(engine, name)]


def test_a_batch_with_one_bad_entry_stores_nothing(streams: Streams) -> None:
    create(streams, "a", JSON)
    update(streams, "a", schema=NUMBERED)
    for send in (
        lambda: append(streams, "a", b'[{"id":1},{"id":2},{}]', JSON),
        lambda: write(streams.engine, "a", {"id": 1}, {"id": 2}, {}),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            send()
        assert (caught.value.detail["index"], caught.value.detail["reason"]) == (2, "schema")
        assert caught.value.code == "invalid_request"
    assert body(streams, "a") == []
    assert streams.engine.core.directory.load("a").staged_head == 0


def test_a_stream_that_describes_its_entries_takes_them_as_json_only(streams: Streams) -> None:
    create(streams, "a", JSON)
    update(streams, "a", schema=NUMBERED)
    with pytest.raises(InvalidRequestError, match="application/json"):
        append(streams, "a", b"text")


def test_keys_come_out_of_entries_and_are_tags(streams: Streams) -> None:
    create(streams, "a", JSON)
    update(streams, "a", routingKey=KEYED)
    append(streams, "a", b'[{"key":"x"},{"key":"y"}]', JSON)
    write(streams.engine, "a", {"key": "x", "n": 2})
    assert tags(streams.engine, "a") == ["x", "y", "x"]
    assert body(streams, "a", key="x") == [{"key": "x"}, {"key": "x", "n": 2}]
    for value in ({}, {"key": 1}, {"key": None}):
        with pytest.raises(InvalidRequestError):
            write(streams.engine, "a", value)


def test_a_key_of_the_writer_is_refused_beside_them(streams: Streams) -> None:
    create(streams, "a", JSON)
    update(streams, "a", routingKey=KEYED | {"required": False})
    with pytest.raises(InvalidRequestError, match="Stream-Key not allowed when routingKey is configured"):
        append(streams, "a", b'{"key":"x"}', JSON, key="x")
    batch = Batch(records=[Record(b'{"key":"x"}'), Record(b'{"key":"x"}', tag="x")])
    with pytest.raises(InvalidRequestError) as caught:
        streams.engine.append("a", batch, lambda outcome: None)
    assert (caught.value.detail["reason"], caught.value.detail["index"]) == ("schema", 1)
    append(streams, "a", b"{}", JSON)
    assert tags(streams.engine, "a") == [None]


def test_a_key_may_be_longer_than_a_tag(streams: Streams) -> None:
    long = "k" * 1024
    assert len(long) > streams.engine.core.limits.max_tag_bytes
    create(streams, "a", JSON)
    update(streams, "a", routingKey=KEYED)
    append(streams, "a", json.dumps({"key": long}).encode(), JSON)
    for number in range(8):  # Enough for a segment.
        append(streams, "a", b'{"key":"%d"}' % number, JSON)
    assert body(streams, "a", key=long) == [{"key": long}]
    with pytest.raises(InvalidRequestError):
        append(streams, "a", json.dumps({"key": long + "k"}).encode(), JSON)


def test_a_profile_normalises_and_gives_keys(streams: Streams, disk: FakeDisk, clock: ManualClock) -> None:
    create(streams, "log", JSON)
    profile(streams, "log", "evlog")
    append(streams, "log", b'{"message":" hi ","requestId":"r1","extra":1}', JSON)
    write(streams.engine, "log", {"message": "two", "requestId": "r2"})
    append(streams, "log", b'{"message":"three","requestId":"r3"}', JSON, key="mine")
    for each in (streams, reopened(disk.clone(), clock)):
        first, *_ = entries = body(each, "log")
        assert [entry["message"] for entry in entries] == ["hi", "two", "three"]
        assert first["context"] == {"extra": 1}
        assert tags(each.engine, "log") == ["r1", "r2", "mine"]


def test_a_keyed_append_is_answered_before_it_is_looked_at_again(streams: Streams) -> None:
    put(streams.engine, "t")
    update(streams, "t", schema=NUMBERED)
    for _ in range(2):
        (answer,) = reported(lambda done: streams.engine.append("t", batch_of({"id": 1}, key="k"), done))
        assert not isinstance(answer, TopicsError)
    evolve(streams, "t")
    (answer,) = reported(lambda done: streams.engine.append("t", batch_of({"id": 1}, key="k"), done))
    assert not isinstance(answer, TopicsError), "it is what was appended before"


# Routers


@pytest.mark.parametrize("guarantee", [*Guarantee])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_copy_gets_the_key_of_its_entry(
    streams: Streams, disk: FakeDisk, clock: ManualClock, guarantee: Guarantee, checkpoint: bool
) -> None:
    create(streams, "into", JSON)
    update(streams, "into", routingKey=KEYED)
    put(streams.engine, "from")
    route(streams.engine, "from", "into", "", guarantee=guarantee)
    batch = Batch(records=[Record(b'{"key":"x"}', "old", "node", b'{"m":1}'), Record(b'{"key":"y","n":1.50}')])
    streams.engine.append("from", batch, lambda outcome: None)
    if checkpoint:
        streams.engine.run_job(streams.engine.checkpointer.job())
    again = reopened(disk.clone(), clock)
    for each in (streams, again):
        first, second = records(each.engine, "into")
        assert (first["data"], first["$tag"], first["$node"]) == ({"key": "x"}, "x", "node")
        assert first["meta"]["m"] == 1
        assert (second["data"], second["$tag"]) == ({"key": "y", "n": 1.5}, "y")
        assert slice_of(each, "into", key="y").body == b'[{"key":"y","n":1.50}]'
        assert each.engine.router("from->into").lag == 0


def test_a_router_stands_before_a_record_that_is_not_taken_until_that_changes(
    streams: Streams, disk: FakeDisk, clock: ManualClock
) -> None:
    create(streams, "into", JSON)
    update(streams, "into", schema=NUMBERED)
    put(streams.engine, "from")
    route(streams.engine, "from", "into", "")
    write(streams.engine, "from", {"id": 1}, {"id": 2}, {"number": 3}, {"number": 4})
    for each in (streams, reopened(disk.clone(), clock)):
        each.engine.routing.kick()
        info = each.engine.router("from->into")
        assert (info.blocked, info.blocked_by, info.blocked_seq, info.cursor) == (True, "schema", 3, 2)
        assert body(each, "into") == [{"id": 1}, {"id": 2}]
        each.engine.routing.pump.retry()
        write(each.engine, "from", {"number": 5}) if each is streams else None
        assert each.engine.router("from->into").blocked_seq == 3
    evolve(streams, "into")
    info = streams.engine.router("from->into")
    assert (info.blocked, info.blocked_by, info.blocked_seq, info.lag) == (False, "", 0, 0)
    assert body(streams, "into") == [{"number": number} for number in range(1, 6)]


def test_a_router_goes_on_when_the_record_is_deleted(streams: Streams) -> None:
    create(streams, "into", JSON)
    update(streams, "into", schema=NUMBERED)
    put(streams.engine, "from")
    route(streams.engine, "from", "into", "")
    write(streams.engine, "from", {"number": 1})
    write(streams.engine, "from", {"id": 2})
    assert streams.engine.router("from->into").blocked_seq == 1
    delete(streams.engine, "from", 2)
    assert streams.engine.router("from->into").lag == 0
    assert body(streams, "into") == [{"id": 2}]


# Dead letters


def test_a_dead_letter_that_is_not_taken_stays_in_its_queue(
    streams: Streams, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    engine = streams.engine
    create(streams, "dead", JSON)
    update(streams, "dead", schema=NUMBERED)
    make_queue(engine, "jobs", max_deliveries=1, dead_letter="dead", lease_ms=100)
    write(engine, "jobs", {"id": "no"}, {"id": 1})

    def claim() -> None:
        clock.advance(2000)
        reported(lambda done: engine.queues.claim("jobs", ClaimRequest(node="a", max=10), done))

    for _ in range(4):
        claim()
    assert body(streams, "dead") == [{"id": 1}], "one that is not taken keeps none of the others"
    assert engine.core.directory.load("jobs").live_count == 1
    assert "dead-letter move failed" in caplog.text
    assert engine.stats().dead_letters_refused >= 1
    update(streams, "dead", schema={"type": "object", "properties": {"x": {"type": "integer"}}}, lens={
        "apiVersion": "durable.lens/v1", "schema": "dead", "from": 1, "to": 2,
        "ops": [{"op": "add", "path": "/x", "schema": {"type": "integer"}, "default": 1}],
    })  # fmt: skip
    for _ in range(4):
        claim()
    assert body(streams, "dead") == [{"id": 1, "x": 1}, {"id": "no"}]
    assert engine.core.directory.load("jobs").live_count == 0
    reported(lambda done: engine.queues.redrive("jobs", RedriveRequest(), done))
    assert engine.core.directory.load("jobs").live_count == 2
