"""Every way of writing that clients have meets everything that can be in its way, over the wire.

The table is that of `tests/unit/engine/test_write_paths.py` with statuses and codes. A refused write has changed
nothing; where the obstacle can go away, the same request then succeeds; where it is none for a way of writing, the
table states why, and the request succeeds.
"""

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from tests.http.writing import BALLAST, DONE, HUGE, LARGEST, QUOTA, SMALL, WAYS, Answer, Site, Way
from tests.unit.engine.refusals import UnwillingGuard
from tests.unit.engine.writing_world import changes

READER = "reader"
Step = Callable[[Site, Way], None]


def _close(site: Site, way: Way) -> None:
    _ensure(site, way)
    site.must("POST", f"/v1/stream/{way.target}", stream_closed="true")


def _ensure(site: Site, way: Way) -> None:
    """The target exists, even if the write itself would create it."""
    if site.find(way.target) is None:
        site.must("PUT", f"/v1/stream/{way.target}", ["old"])


def _drop(site: Site, way: Way) -> None:
    _ensure(site, way)
    site.must("DELETE", f"/v0/topics/{way.target}")


def _begin_drop(site: Site, way: Way) -> None:
    _ensure(site, way)
    topic = site.find(way.target)
    assert topic is not None
    site.server.stall(True)
    site.later(lambda: site.ask("DELETE", f"/v0/topics/{way.target}"))
    site.until(lambda: topic.closing)


def _finish_drop(site: Site, way: Way) -> None:
    topic = site.find(way.target)
    site.server.stall(False)
    site.until(lambda: site.find(way.target) is not topic)


def _retire(site: Site, way: Way) -> None:
    _ensure(site, way)
    site.must("PUT", f"/v1/stream/{READER}", stream_forked_from=f"/v1/stream/{way.target}")
    _drop(site, way)


def _free(site: Site, way: Way) -> None:
    site.must("DELETE", f"/v1/stream/{READER}")
    site.until(lambda: site.find(way.target) is None)


def _config(site: Site, way: Way, **caps: object) -> None:
    topic = site.find(way.target)
    assert topic is not None
    kept = msgspec.to_builtins(topic.config)
    names = ("durability", "lease_ms", "leases_durable", "max_deliveries", "dead_letter")
    site.must("PUT", f"/v0/topics/{way.target}", {**{name: kept[name] for name in names}, **caps})


def _fill(site: Site, way: Way) -> None:
    _ensure(site, way)
    topic = site.find(way.target)
    assert topic is not None
    while topic.live_count < 2:
        site.post(way.target, "filler")
    _config(site, way, cap_records=topic.live_count, discard="reject")


def _fill_server(site: Site, way: Way) -> None:
    room: int = QUOTA - site.look(lambda engine: engine.core.total_bytes) - way.slack_bytes
    while room > 2:
        size = min(room, LARGEST)
        site.post(BALLAST, "b" * (size - 2))
        room -= size


def _guard(site: Site, way: Way) -> None:
    _ensure(site, way)
    site.look(lambda engine: setattr(engine.core.directory.load(way.target), "guard", UnwillingGuard(engine)))


def _unguard(site: Site, way: Way) -> None:
    topic = site.find(way.target)
    assert topic is not None
    topic.guard = site.server.engine.streams if "stream" in (topic.parts or ()) else None


def _describe(site: Site, way: Way) -> None:
    """From now on every record must contain its key, which no record of the tests does."""
    _ensure(site, way)
    site.must("POST", f"/v1/stream/{way.target}/_schema", {"routingKey": {"jsonPointer": "/key", "required": True}})


def _undescribe(site: Site, way: Way) -> None:
    site.must("POST", f"/v1/stream/{way.target}/_schema", {"routingKey": None})


def _bring(payload: str) -> Step:
    return lambda site, way: setattr(site, "payload", payload)


def _shut(closed: bool) -> Step:
    return lambda site, way: site.look(lambda engine: setattr(engine.core, "closed", closed))


@dataclass(frozen=True)
class Obstacle:
    place: Step
    lift: Step | None = None
    takes: bool = False
    passes: Step | None = None
    max_total_bytes: int = 0


def _nothing(site: Site, way: Way) -> None: ...


OBSTACLES: dict[str, Obstacle] = {
    "closed": Obstacle(_close),
    "gone": Obstacle(_drop, _nothing, takes=True),
    "being deleted": Obstacle(_begin_drop, _nothing, takes=True, passes=_finish_drop),
    "retired": Obstacle(_retire, _free, takes=True),
    "full": Obstacle(_fill, _config),
    "quota": Obstacle(
        _fill_server,
        lambda site, way: site.must("POST", f"/v0/topics/{BALLAST}/delete", {"before_seq": 1_000_000}),
        max_total_bytes=QUOTA,
    ),
    "read-only": Obstacle(lambda site, way: site.fail(), lambda site, way: site.restart()),
    "guard": Obstacle(_guard, _unguard),
    # The server is draining: it admits nothing new. Requests admitted before reach an engine that is closed.
    "draining": Obstacle(lambda site, way: site.drain(), lambda site, way: site.restart()),
    "shutting down": Obstacle(_shut(True), _shut(False)),
    "schema": Obstacle(_describe, _undescribe),
    "record too large": Obstacle(_bring(HUGE), _bring(SMALL)),
}


class Goes(msgspec.Struct, frozen=True):
    """The write succeeds in spite of the obstacle."""

    because: str


class Waits(msgspec.Struct, frozen=True):
    """The write is not answered while the obstacle lasts; then it ends like this."""

    then: Answer | Goes


Cell = Answer | Goes | Waits
Row = dict[str, Cell]

_STOPPING: Row = {"draining": (503, "shutting_down"), "shutting down": (503, "shutting_down")}
_APPEND: Row = {
    **_STOPPING,
    "closed": (409, "stream_closed"),
    "gone": (404, "topic_not_found"),
    "being deleted": Waits((404, "topic_not_found")),
    "retired": (410, "stream_gone"),
    "full": (422, "topic_full"),
    "quota": (429, "throttled"),
    "read-only": (503, "read_only"),
    # Not an error code of the server: the message of a guard reaches the client unchanged.
    "guard": (500, "unwilling"),
    "schema": (400, "schema"),
    "record too large": (400, "record_too_large"),
}
_CREATING: Row = {
    **_APPEND,
    "gone": Goes("the topic is made"),
    "being deleted": Waits(Goes("it concerns the next topic of the name, which is made")),
}
_POST: Row = {
    **_APPEND,
    "being deleted": (404, "topic_not_found"),
    "guard": (404, "topic_not_found"),
    "record too large": (413, "record_too_large"),
}
_NO_RECORD = Goes("it brings no record")
_FORK: Row = {
    **_STOPPING,
    "closed": Goes("a fork reads what its source holds, and has an end of its own"),
    "gone": (404, "topic_not_found"),
    "being deleted": (404, "topic_not_found"),
    "retired": (409, "stream_conflict"),
    "full": Goes("nothing is added to the source"),
    "quota": Goes("a fork without records of its own takes no room"),
    "read-only": (503, "read_only"),
    "guard": (404, "topic_not_found"),
    "schema": Goes("nothing is added to the source"),
    "record too large": _NO_RECORD,
}
_CONFIRMED = Goes("a stream that is there as it should be is only confirmed")
_MOVED = Goes("what is moved was there before")
_JOB: Row = {
    **_STOPPING,
    "closed": Goes("nothing is added to the queue"),
    "gone": (404, "topic_not_found"),
    "being deleted": (404, "topic_not_found"),
    "retired": (404, "topic_not_found"),
    "full": Goes("nothing is added to the queue"),
    "quota": Goes("nothing is added to the queue"),
    "read-only": (503, "read_only"),
    "guard": Goes("nothing is added to the queue"),
    "schema": Goes("nothing is added to the queue"),
    "record too large": _NO_RECORD,
}
_CONSUMER: Row = {name: Goes("no record is added") if isinstance(cell, Goes) else cell for name, cell in _JOB.items()}
_TOPIC: Row = {
    **_STOPPING,
    "closed": Goes("an end of the records is none of the topic"),
    "gone": Goes("the topic is made"),
    "being deleted": Waits(Goes("it concerns the next topic of the name")),
    "retired": (410, "stream_gone"),
    "full": _NO_RECORD,
    "quota": _NO_RECORD,
    "read-only": (503, "read_only"),
    "guard": _NO_RECORD,
    "schema": _NO_RECORD,
    "record too large": _NO_RECORD,
}

_STAGE: Row = {
    **_APPEND,
    "being deleted": (404, "topic_not_found"),
    "full": Goes("there may be room by the time it is committed"),
}

TABLE: dict[str, Row] = {
    "stage for a transaction": _STAGE,
    "commit": {
        **_APPEND,
        "being deleted": (404, "topic_not_found"),
        "quota": Goes("what is staged was counted when it was staged"),
        "record too large": Goes("it was let in when it was staged"),
    },
    "conditional append": _APPEND,
    "set a fence": _CONSUMER,
    "append of a batch": _APPEND,
    "lone append": _CREATING,
    "lone keyed append": _CREATING,
    "keyed append": _APPEND,
    "publish": {
        refusal: Waits((0, cell.then[1]))
        if isinstance(cell, Waits) and isinstance(cell.then, tuple)
        else (0, cell[1])
        if isinstance(cell, tuple)
        else cell
        for refusal, cell in {**_APPEND, "schema": (400, "invalid_request")}.items()
    },
    "Spark sink": {**_CREATING, "schema": (400, "invalid_request")},
    "append to a stream": _POST,
    "append by a producer": _POST,
    "close": {
        **_POST,
        "closed": Goes("closing twice is fine"),
        "full": Goes("an end takes no room"),
        "quota": Goes("an end takes no room"),
        "schema": _NO_RECORD,
        "record too large": _NO_RECORD,
    },
    "update of a profile": {
        **_POST,
        "full": _NO_RECORD,
        "quota": _NO_RECORD,
        "schema": _NO_RECORD,
        "record too large": _NO_RECORD,
    },
    "fork": _FORK,
    "fork with first records": {
        **_FORK,
        "quota": (429, "throttled"),
        "schema": (400, "schema"),
        "record too large": (413, "record_too_large"),
    },
    "create a stream with a body": {
        **_STOPPING,
        "closed": (409, "stream_conflict"),
        "gone": Goes("the name is free"),
        "being deleted": Waits(Goes("the name is about to be free")),
        "retired": (409, "stream_conflict"),
        "full": _CONFIRMED,
        "quota": (429, "throttled"),
        "read-only": (503, "read_only"),
        "guard": _CONFIRMED,
        "schema": _CONFIRMED,
        "record too large": (413, "record_too_large"),
    },
    "forward": {
        **_STOPPING,
        "closed": (0, "stream_closed"),
        "gone": (404, "router_not_found"),
        "being deleted": Waits((404, "router_not_found")),
        "retired": (404, "router_not_found"),
        "full": (0, "topic_full"),
        "quota": (0, "throttled"),
        "read-only": (503, "read_only"),
        "guard": (0, "unwilling"),
        "schema": (0, "schema"),
        "record too large": (400, "record_too_large"),
    },
    "dead letter": {
        **_STOPPING,
        "closed": (0, "kept"),
        "gone": Goes("a dead letter topic that is not there is made"),
        "being deleted": (0, "kept"),
        "retired": (0, "kept"),
        "full": (0, "kept"),
        "quota": _MOVED,
        "read-only": (0, "kept"),
        "guard": (0, "kept"),
        "schema": (0, "kept"),
        "record too large": Goes("the job was let in where it entered"),
    },
    "redrive": {
        **_STOPPING,
        "closed": (409, "stream_closed"),
        "gone": (404, "topic_not_found"),
        "being deleted": (404, "topic_not_found"),
        "retired": (404, "topic_not_found"),
        "full": (422, "topic_full"),
        "quota": _MOVED,
        "read-only": (503, "read_only"),
        "guard": (500, "unwilling"),
        "schema": (400, "schema"),
        "record too large": Goes("the job was let in where it entered"),
    },
    "ack": _JOB,
    "nack": _JOB,
    "extend": _JOB,
    "claim": _JOB,
    "cancel a job": _JOB,
    "release a job": _JOB,
    "promote a job": _JOB,
    "pause": _JOB,
    "create a consumer": _CONSUMER,
    "commit of a consumer": _CONSUMER,
    "delete a consumer": _CONSUMER,
    "create a schedule": _CONSUMER,
    "delete records": {
        **_TOPIC,
        "gone": (404, "topic_not_found"),
        "being deleted": Waits((404, "topic_not_found")),
        "retired": (404, "topic_not_found"),
    },
    "change the config": _TOPIC,
    "drop": {
        **_TOPIC,
        "gone": Goes("there is nothing to delete"),
        "being deleted": Waits(Goes("there is nothing left to delete")),
        "retired": Goes("it is deleted already"),
    },
}


def _cells() -> Iterator[object]:
    for way in WAYS:
        for obstacle in OBSTACLES:
            yield pytest.param(way, obstacle, id=f"{way} / {obstacle}")


def test_every_cell_is_filled_and_none_is_left_over() -> None:
    assert {way: set(row) for way, row in TABLE.items()} == {way: set(OBSTACLES) for way in WAYS}


@pytest.mark.parametrize(("way_name", "obstacle_name"), list(_cells()))
def test_a_write_meets_an_obstacle(way_name: str, obstacle_name: str, tmp_path: Path) -> None:
    way, obstacle, requested = WAYS[way_name], OBSTACLES[obstacle_name], TABLE[way_name][obstacle_name]
    with Site(tmp_path, obstacle.max_total_bytes) as site:
        way.prepare(site)
        assert not way.done(site), "the test would prove nothing"
        obstacle.place(site, way)

        before, seen = site.books(way.blind), way.done(site)
        if isinstance(requested, Waits):
            assert obstacle.passes is not None
            waiting = site.later(lambda: way.call(site))
            topic = site.find(way.target)
            assert topic is not None
            # It waits for the topic to be gone, or in the same log behind the frame that does away with it.
            site.until(lambda: topic.deletion_waiters or site.queued() > 1 or waiting.done())
            assert not waiting.done(), waiting.result()
            assert changes(before, site.books(way.blind)) == {}
            obstacle.passes(site, way)
            answer, requested = waiting.result(60), requested.then
        else:
            answer = way.call(site)
            if not isinstance(requested, Goes):
                assert (changes(before, site.books(way.blind)), way.done(site)) == ({}, seen), answer
                if obstacle.passes is not None:
                    obstacle.passes(site, way)
        if isinstance(requested, Goes):
            assert answer[1] == DONE, answer
            assert way.done(site)
            return

        assert answer == requested
        if obstacle.lift is None:
            return
        obstacle.lift(site, way)
        if obstacle.takes:
            way.prepare(site)
        answer = way.call(site) if obstacle.takes else way.try_again(site)
        assert answer[1] == DONE, answer
        assert way.done(site)


def test_a_draining_server_lets_no_repetition_in_either(tmp_path: Path) -> None:
    """Clients keep their connections and send the same head again and again, which the server knows by its bytes."""
    body = b'{"records":[{"data":1}]}'
    head = b"POST /v0/topics/t HTTP/1.1\r\nhost: [::1]\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    with Site(tmp_path) as site:
        address = urlsplit(site.server.url)
        with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=60) as connection:

            def status() -> bytes:
                connection.sendall(head % len(body) + body)
                return connection.recv(65_536).split(b" ", 2)[1]

            assert [status(), status()] == [b"201", b"200"]
            site.drain()
            assert status() == b"503"
