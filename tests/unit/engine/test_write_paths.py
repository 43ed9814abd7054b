"""Every way of writing meets everything that can be in its way: one cell of a table each.

A refused write fails with the error in the table and changes nothing: no seq, no byte, no key, no lease, no cursor, no
reference count of a fork. Where the obstacle can be removed, the same write then succeeds. Where an obstacle does not
affect a write, the table gives the reason, and the write succeeds in spite of it.

A new way of writing, or a new obstacle, is a new row or column here, and the tests fail until all its cells are filled.
"""

import logging
from collections.abc import Iterator

import msgspec
import pytest

from tests.unit.conftest import Answers, keys_on_their_way
from tests.unit.engine.refusals import REFUSALS, UnwillingError
from tests.unit.engine.write_paths import PATHS, Held
from tests.unit.engine.writing_world import Books, Warnings, World, books, changes
from topics.model.errors import (
    InvalidRequestError,
    ReadOnlyError,
    RecordTooLargeError,
    RouterNotFoundError,
    ShuttingDownError,
    StreamClosedError,
    StreamConflictError,
    StreamGoneError,
    ThrottledError,
    TopicFullError,
    TopicNotFoundError,
    TopicsError,
)

Error = type[TopicsError]


class Goes(msgspec.Struct, frozen=True):
    """The write succeeds in spite of the obstacle."""

    because: str


class Waits(msgspec.Struct, frozen=True):
    """The write is not answered while the obstacle lasts; then it ends like this."""

    then: Error | Goes


class Changed(AssertionError):
    """A write was refused, and something is not as it was."""


class Answered(AssertionError):
    """A write had another outcome than the one in the table, or none."""


class SchemaHeld(TopicsError):
    """The error of a router that stops at a record which its destination rejects."""

    code = "schema"


Cell = Error | Goes | Waits
Row = dict[str, Cell]

_APPEND: Row = {
    "closed": StreamClosedError,
    "gone": TopicNotFoundError,
    "being deleted": Waits(TopicNotFoundError),
    "retired": StreamGoneError,
    "over": TopicNotFoundError,
    "full": TopicFullError,
    "quota": ThrottledError,
    "read-only": ReadOnlyError,
    "this write fails": ReadOnlyError,
    "guard": UnwillingError,
    "schema": InvalidRequestError,
    "shutting down": ShuttingDownError,
    "record too large": RecordTooLargeError,
}
_POST: Row = {
    **_APPEND,
    "over": TopicNotFoundError,
    # A stream that is being deleted is gone for users of streams: they cannot create another by an append.
    "being deleted": TopicNotFoundError,
    # Under another guard than that of the streams a topic is none.
    "guard": TopicNotFoundError,
}
_NO_RECORD = Goes("it brings no record")
_FORK: Row = {
    "closed": Goes("a fork reads what its source holds, and has an end of its own"),
    "gone": TopicNotFoundError,
    "being deleted": TopicNotFoundError,
    "retired": StreamConflictError,
    "over": TopicNotFoundError,
    "full": Goes("nothing is added to the source"),
    "quota": Goes("a fork without records of its own takes no room"),
    "read-only": ReadOnlyError,
    "this write fails": ReadOnlyError,
    "guard": TopicNotFoundError,
    "schema": Goes("nothing is added to the source"),
    "shutting down": ShuttingDownError,
    "record too large": _NO_RECORD,
}
_CONFIRMED = Goes("a stream that is there as it should be is only confirmed")
_BURIAL: Row = {
    "closed": StreamClosedError,
    "gone": Goes("a dead letter topic that is not there is made"),
    "being deleted": TopicNotFoundError,
    "retired": StreamGoneError,
    "over": TopicNotFoundError,
    "full": TopicFullError,
    "quota": Goes("what is moved was there before"),
    "read-only": ReadOnlyError,
    "this write fails": ReadOnlyError,
    "guard": UnwillingError,
    "schema": InvalidRequestError,
    "shutting down": ShuttingDownError,
    "record too large": Goes("the job was let in where it entered; where it is from is not held against it"),
}
_COMMIT: Row = {
    **_APPEND,
    "being deleted": TopicNotFoundError,
    "quota": Goes("what is staged was counted when it was staged, and is counted once"),
    "record too large": Goes("it was let in when it was staged"),
}
_REDRIVE: Row = {
    **_BURIAL,
    "gone": TopicNotFoundError,
    "retired": TopicNotFoundError,
    "over": TopicNotFoundError,
}
_JOB: Row = {
    "closed": Goes("nothing is added to the queue"),
    "gone": TopicNotFoundError,
    "being deleted": TopicNotFoundError,
    "retired": TopicNotFoundError,
    "over": TopicNotFoundError,
    "full": Goes("nothing is added to the queue"),
    "quota": Goes("nothing is added to the queue"),
    "read-only": ReadOnlyError,
    "this write fails": ReadOnlyError,
    "guard": Goes("nothing is added to the queue"),
    "schema": Goes("nothing is added to the queue"),
    "shutting down": ShuttingDownError,
    "record too large": _NO_RECORD,
}
_CONSUMER: Row = {name: Goes("no record is added") if isinstance(cell, Goes) else cell for name, cell in _JOB.items()}
_TOPIC: Row = {
    "closed": Goes("an end of the records is none of the topic"),
    "gone": Goes("the topic is made"),
    "being deleted": Waits(Goes("it concerns the next topic of the name")),
    "retired": StreamGoneError,
    "over": Goes("it concerns the next topic of the name"),
    "full": Goes("it brings no record"),
    "quota": Goes("it brings no record"),
    "read-only": ReadOnlyError,
    "this write fails": ReadOnlyError,
    "guard": Goes("it brings no record"),
    "schema": Goes("it brings no record"),
    "shutting down": ShuttingDownError,
    "record too large": _NO_RECORD,
}

TABLE: dict[str, Row] = {
    "append of a batch": _APPEND,
    "lone append": _APPEND,
    "deferred append": _APPEND,
    "deferred keyed append": _APPEND,
    "keyed append": _APPEND,
    "lone keyed append": _APPEND,
    "conditional append": _APPEND,
    "set a fence": _CONSUMER,
    "append that makes its topic": {
        **_APPEND,
        "gone": Goes("the topic is made"),
        "being deleted": Waits(Goes("it concerns the next topic of the name, which is made")),
        "over": Goes("it concerns the next topic of the name, which is made"),
    },
    "append to a stream": _POST,
    "append by a producer": _POST,
    "append that closes": _POST,
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
        "quota": ThrottledError,
        # It has the schema of its source.
        "schema": InvalidRequestError,
        "record too large": RecordTooLargeError,
    },
    "create a stream with a body": {
        "closed": StreamConflictError,
        "gone": Goes("the name is free"),
        "being deleted": Waits(Goes("the name is about to be free")),
        "retired": StreamConflictError,
        "over": Goes("the name is about to be free"),
        "full": _CONFIRMED,
        "quota": ThrottledError,
        "read-only": ReadOnlyError,
        "this write fails": ReadOnlyError,
        "guard": _CONFIRMED,
        "schema": _CONFIRMED,
        "shutting down": ShuttingDownError,
        "record too large": RecordTooLargeError,
    },
    "forward": {
        "closed": StreamClosedError,
        # The routers of a topic go with it.
        "gone": RouterNotFoundError,
        "being deleted": TopicNotFoundError,
        "retired": RouterNotFoundError,
        "over": TopicNotFoundError,
        "full": TopicFullError,
        "quota": ThrottledError,
        "read-only": ReadOnlyError,
        "this write fails": ReadOnlyError,
        "guard": UnwillingError,
        "schema": SchemaHeld,
        "shutting down": ShuttingDownError,
        # Where it would have entered the source.
        "record too large": RecordTooLargeError,
    },
    "dead letter, one shard": _BURIAL,
    "dead letter, two shards": _BURIAL,
    "redrive, one shard": _REDRIVE,
    "redrive, two shards": _REDRIVE,
    "redrive, its source": {
        **_JOB,
        "this write fails": Goes("the jobs have arrived, and the next start takes them away where they were"),
        "record too large": _BURIAL["record too large"],
    },
    "stage for a transaction": {
        **_APPEND,
        "being deleted": TopicNotFoundError,
        "full": Goes("there may be room by the time it is committed"),
    },
    "commit, one shard": _COMMIT,
    "commit, two shards": _COMMIT,
    "commit, its books": _COMMIT,
    "ack": _JOB,
    "ack, gathered": _JOB,
    "nack": {**_JOB, "this write fails": ReadOnlyError},
    "extend": {
        **_JOB,
        "this write fails": ReadOnlyError,
    },
    "claim": _JOB,
    "cancel a job": _JOB,
    "release a job": {**_JOB, "this write fails": ReadOnlyError},
    "promote a job": {**_JOB, "this write fails": ReadOnlyError},
    "pause": {**_JOB, "this write fails": ReadOnlyError},
    "create a consumer": _CONSUMER,
    "commit": _CONSUMER,
    "delete a consumer": _CONSUMER,
    "create a schedule": _CONSUMER,
    "delete a schedule": {**_CONSUMER, **dict.fromkeys(("gone", "retired", "over"), Goes("it went with its topic"))},
    "delete records": {
        **_TOPIC,
        "gone": TopicNotFoundError,
        "being deleted": Waits(TopicNotFoundError),
        "retired": TopicNotFoundError,
        "over": TopicNotFoundError,
    },
    "change the config": _TOPIC,
    "make a topic": _TOPIC,
    "put a router": {
        **_TOPIC,
        "closed": StreamClosedError,
        "gone": TopicNotFoundError,
        "being deleted": Waits(TopicNotFoundError),
        "over": TopicNotFoundError,
        "guard": TopicNotFoundError,
    },
    "drop": {
        **_TOPIC,
        "gone": Goes("there is nothing to delete"),
        "being deleted": Waits(Goes("there is nothing left to delete")),
        "retired": Goes("it is deleted already"),
        "over": Goes("it is deleted already"),
    },
}


def _cells() -> Iterator[object]:
    for path in PATHS:
        for refusal in REFUSALS:
            yield pytest.param(path, refusal, id=f"{path} / {refusal}")


def test_every_cell_is_filled_and_none_is_left_over() -> None:
    assert {path: set(row) for path, row in TABLE.items()} == {path: set(REFUSALS) for path in PATHS}


@pytest.fixture
def warnings() -> Iterator[Warnings]:
    """Returns the warnings about jobs that could not be moved."""
    logger, heard = logging.getLogger("topics.queues.dead_letters"), Warnings()
    logger.addHandler(heard)
    yield heard
    logger.removeHandler(heard)


@pytest.mark.parametrize(("path_name", "refusal_name"), list(_cells()))
def test_a_write_meets_an_obstacle(path_name: str, refusal_name: str, warnings: Warnings) -> None:
    path, refusal, requested = PATHS[path_name], REFUSALS[refusal_name], TABLE[path_name][refusal_name]
    world = World(warnings, refusal.max_total_bytes)
    path.prepare(world)
    assert not path.done(world), "the test would prove nothing"
    refusal.place(world, path)

    blind = refusal.blind(path)
    seen, before = path.done(world), books(world.engine, blind)
    answers = path.call(world)
    if isinstance(requested, Waits):
        _check_answer(answers, [])
        _check_unchanged(before, books(world.engine, blind))
        assert refusal.passes is not None
        refusal.passes(world, path)
        requested = requested.then
    elif not isinstance(requested, Goes):
        _check_unchanged(before, books(world.engine, blind))
        assert path.done(world) == seen
        if refusal.passes is not None:
            refusal.passes(world, path)
    _check_settled(world)
    if isinstance(requested, Goes):
        _check_answer(answers, [""])
        assert path.done(world)
        return

    _check_answer(answers, [requested.code])
    assert all(isinstance(answer, (requested, Held)) for answer in answers)
    if refusal.lift is None:
        return
    refusal.lift(world, path)
    if refusal.takes:
        path.prepare(world)
    answers = path.call(world) if refusal.takes else path.try_again(world)
    _check_answer(answers, [""])
    assert path.done(world)
    _check_settled(world)


def _code(answer: object) -> str:
    """Why a write was not done; empty where it was."""
    return answer.code or "held" if isinstance(answer, (TopicsError, Held)) else ""


def _check_answer(answers: Answers, codes: list[str]) -> None:
    if [_code(answer) for answer in answers] != codes:
        raise Answered(f"{answers} instead of {codes}")


def _check_unchanged(before: Books, after: Books) -> None:
    if found := changes(before, after):
        raise Changed(found)


def _check_settled(world: World) -> None:
    """Nothing is on its way, and nothing counts that is not there."""
    core = world.engine.core
    assert core.staged_bytes == 0
    assert core.total_bytes == sum(topic.live_bytes for topic in core.topics.values())
    assert sorted(core.directory.resident) == sorted(topic.name for topic in core.topics.values())
    for topic in core.topics.values():
        assert (topic.staged_head, topic.staged_count, topic.staged_bytes) == (topic.head, 0, 0), topic.name
        assert (topic.sync_inflight, keys_on_their_way(topic)) == (0, []), topic.name
        assert topic.staged_config == topic.config
