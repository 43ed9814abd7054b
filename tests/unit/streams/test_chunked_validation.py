"""Batches that are looked at in portions: others have their turn, the order stays, and nothing old is decided."""

import json
from collections import deque
from collections.abc import Callable

import pytest

from tests.unit.conftest import batch_of, put
from tests.unit.streams.conftest import append, create, fork, slice_of
from tests.unit.streams.describing import JSON, NUMBERED, boundaries, evolve, profile, update
from topics.engine.engine import Engine
from topics.model.errors import InvalidRequestError, StreamClosedError, TopicsError
from topics.schema.documents import MAX_PORTION, PORTION_BYTES
from topics.streams.append import AppendRequest
from topics.streams.streams import Streams

MANY = 3 * MAX_PORTION + 1


class Ticks:
    """The turns of a loop, taken by hand."""

    def __init__(self, engine: Engine) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        engine.core.defer.use(self.waiting.append)

    def run(self) -> int:
        """Runs until nothing is due; how many turns that took."""
        count = 0
        while self.waiting:
            self.waiting.popleft()()
            count += 1
        return count


@pytest.fixture
def ticks(streams: Streams) -> Ticks:
    create(streams, "a", JSON)
    update(streams, "a", schema=NUMBERED)
    return Ticks(streams.engine)


def numbered(count: int, first: int = 0) -> list[dict[str, int]]:
    return [{"id": number} for number in range(first, first + count)]


def send(streams: Streams, values: object, **more: object) -> list[object]:
    answers: list[object] = []
    request = AppendRequest(body=json.dumps(values).encode(), content_type=JSON, **more)  # type: ignore[arg-type]
    streams.append("a", request, answers.append)
    return answers


def write(streams: Streams, *values: object, key: str | None = None) -> list[object]:
    answers: list[object] = []
    streams.engine.append("a", batch_of(*values, key=key), answers.append)
    return answers


def ids(streams: Streams) -> list[int]:
    return [entry["id"] for entry in json.loads(slice_of(streams, "a", max_records=10_000).body)]


def test_a_large_batch_takes_several_turns_and_is_one_batch(streams: Streams, ticks: Ticks) -> None:
    for answers in (send(streams, numbered(MANY)), write(streams, *numbered(MANY, MANY))):
        assert answers == []
    assert streams.engine.core.directory.load("a").staged_head == 0
    assert ticks.run() >= 8
    assert ids(streams) == list(range(2 * MANY))


def test_a_small_batch_is_decided_at_once(streams: Streams, ticks: Ticks) -> None:
    assert send(streams, numbered(MAX_PORTION)) != []
    assert write(streams, {"id": 1}) != []
    assert not ticks.waiting


def test_large_entries_make_small_portions(streams: Streams, ticks: Ticks) -> None:
    answers = send(streams, [{"id": 1, "x": "x" * PORTION_BYTES}, {"id": 2}])
    assert answers == [] and ticks.run() == 2
    assert ids(streams) == [1, 2]


def test_what_comes_for_the_same_stream_waits_behind_it(streams: Streams, ticks: Ticks) -> None:
    first = send(streams, numbered(MANY))
    second = write(streams, {"id": MANY})
    third = send(streams, numbered(MANY, MANY + 1))
    fourth = send(streams, {"id": 2 * MANY + 1}, close=True)
    assert [first, second, third, fourth] == [[], [], [], []]
    ticks.run()
    assert ids(streams) == list(range(2 * MANY + 2))
    for answers in (first, second, third, fourth):
        assert len(answers) == 1 and not isinstance(answers[0], TopicsError)


def test_other_streams_do_not_wait(streams: Streams, ticks: Ticks) -> None:
    create(streams, "b", JSON)
    update(streams, "b", schema=NUMBERED)
    send(streams, numbered(MANY))
    append(streams, "b", b'{"id":1}', JSON)
    assert slice_of(streams, "b").count == 1


@pytest.mark.parametrize("bad", [0, MAX_PORTION, MANY - 1])
def test_one_bad_entry_refuses_all_and_is_named(streams: Streams, ticks: Ticks, bad: int) -> None:
    values: list[object] = [*numbered(MANY)]
    values[bad] = {"id": "x"}
    for answers in (send(streams, values), write(streams, *values)):
        ticks.run()
        (refusal,) = answers
        assert isinstance(refusal, InvalidRequestError)
        assert (refusal.detail["index"], refusal.detail["reason"]) == (bad, "schema")
    assert ids(streams) == []


@pytest.mark.parametrize("values", [numbered(MANY), [{"number": n, "id": n} for n in range(MANY)]])
def test_a_schema_that_changed_meanwhile_is_the_one_that_counts(
    streams: Streams, ticks: Ticks, values: list[object]
) -> None:
    answers = send(streams, values)
    ticks.waiting.popleft()()
    evolve(streams, "a")
    ticks.run()
    (answer,) = answers
    good = isinstance(values[0], dict) and "number" in values[0]
    assert isinstance(answer, InvalidRequestError) != good
    assert boundaries(streams, "a") == [0, 0]
    assert streams.engine.core.directory.load("a").head == (MANY if good else 0)


def test_a_stream_that_was_closed_or_deleted_meanwhile_takes_nothing(streams: Streams, ticks: Ticks) -> None:
    answers = write(streams, *numbered(MANY))
    state = streams.engine.streams.state(streams.topic("a"))
    state.closed = True
    ticks.run()
    assert isinstance(answers[0], StreamClosedError)
    state.closed = False
    for sending in (send, write):
        answers = sending(streams, numbered(MANY)) if sending is send else write(streams, *numbered(MANY))
        streams.delete("a", lambda outcome: None)
        ticks.run()
        (answer,) = answers
        created = not isinstance(answer, TopicsError)
        # As any append of the other protocol, it makes the topic that it does not find.
        assert created == (sending is write)
        if not created:
            create(streams, "a", JSON)
            update(streams, "a", schema=NUMBERED)


def test_a_repeated_key_is_answered_once_the_first_is_there(streams: Streams, ticks: Ticks) -> None:
    first, second = write(streams, *numbered(MANY), key="k"), write(streams, *numbered(MANY), key="k")
    ticks.run()
    assert [len(first), len(second)] == [1, 1]
    assert ids(streams) == list(range(MANY))
    assert getattr(second[0], "deduped", None) is True


def test_without_a_loop_all_of_it_is_done_at_once(streams: Streams) -> None:
    put(streams.engine, "t")
    update(streams, "t", routingKey={"jsonPointer": "/key", "required": True})
    many = 200 * MAX_PORTION
    answers: list[object] = []
    streams.engine.append("t", batch_of(*({"key": str(n)} for n in range(9_000))), answers.append)
    body = json.dumps([{"key": str(n)} for n in range(many)]).encode()
    streams.append("t", AppendRequest(body=body, content_type=JSON), answers.append)
    assert len(answers) == 2 and streams.engine.core.directory.load("t").head == 9_000 + many


def test_a_profile_stores_every_portion_in_its_form(streams: Streams) -> None:
    create(streams, "log", JSON)
    profile(streams, "log", "evlog")
    body = json.dumps([{"requestId": str(n), "message": f" {n} "} for n in range(MANY)]).encode()
    append(streams, "log", body, JSON)
    found = json.loads(slice_of(streams, "log", key=str(MANY - 1)).body)
    assert [entry["message"] for entry in found] == [str(MANY - 1)]


def test_a_fork_with_a_large_body(streams: Streams, ticks: Ticks) -> None:
    fork(streams, "f", "a", body=json.dumps(numbered(MANY)).encode())
    assert slice_of(streams, "f").position.counter > 0
    with pytest.raises(InvalidRequestError) as caught:
        fork(streams, "g", "a", body=json.dumps([*numbered(MANY), {}]).encode())
    assert caught.value.detail["index"] == MANY
