"""Create, append, read and delete as the engine sees them: what waits for what, and what a failure leaves."""

import pytest

from tests.unit.engine.conftest import checkpoint, flush, hold, open_engine
from tests.unit.streams.conftest import append, create, delete, fork, produce, reopened, slice_of, text
from topics.core.config import Discard, TopicConfigPatch
from topics.core.errors import (
    ReadOnlyError,
    SequenceConflictError,
    StreamClosedError,
    StreamConflictError,
    StreamGoneError,
    ThrottledError,
    TopicFullError,
    TopicNotFoundError,
    TopicsError,
)
from topics.core.limits import Limits
from topics.core.selectors import DeleteSelector
from topics.engine import DropResult
from topics.engine.stream_state import PRODUCERS_MAX, stream_of
from topics.formats.stream import Producer, StreamMark
from topics.streams import Appended, AppendRequest, Created, CreateRequest, Position, Streams
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, ManualClock


def ask(streams: Streams, body: bytes, seq: int) -> list[Appended | TopicsError]:
    """A producer's append whose answer comes later."""
    answers: list[Appended | TopicsError] = []
    request = AppendRequest(body=body, content_type="text/plain", producer=Producer("p", 0, seq))
    streams.append("a", request, answers.append)
    return answers


def test_a_repetition_is_answered_when_what_it_repeats_is_safe(streams: Streams) -> None:
    create(streams, "a")
    hold(streams.engine)
    first, second, again = ask(streams, b"1", 0), ask(streams, b"2", 1), ask(streams, b"1", 0)
    assert first == second == again == []
    flush(streams.engine)
    assert isinstance(first[0], Appended) and not first[0].duplicate
    assert isinstance(again[0], Appended) and again[0].duplicate and again[0].producer == Producer("p", 0, 1)
    assert text(streams, "a") == "12"
    state = stream_of(streams.topic("a"))
    assert state is not None and state.staged is None


def test_a_repetition_of_what_failed_fails_too() -> None:
    disk = FakeDisk()
    fs = FaultyFileSystem(disk, FaultPlan(None, Fault.EIO, lasting=True))
    streams = Streams(open_engine(fs))
    create(streams, "a")
    hold(streams.engine)
    first, again = ask(streams, b"1", 0), ask(streams, b"1", 0)
    fs.plan = FaultPlan(len(fs.trace) + 1, Fault.EIO, lasting=True)
    flush(streams.engine)
    assert isinstance(first[0], ReadOnlyError) and isinstance(again[0], ReadOnlyError)
    assert text(streams, "a") == ""


def test_a_topic_at_its_cap_takes_the_batch_once_there_is_room(streams: Streams) -> None:
    create(streams, "a")
    patch = TopicConfigPatch(cap_records=1, discard=Discard.REJECT)
    streams.engine.put_topic("a", patch, lambda answer: None)
    produce(streams, "a", b"1", 0, 0)
    with pytest.raises(TopicFullError):
        produce(streams, "a", b"2", 0, 1)
    streams.engine.delete_records("a", DeleteSelector(2, None), lambda answer: None)
    assert not produce(streams, "a", b"2", 0, 1).duplicate
    assert text(streams, "a") == "2"


def test_a_stream_remembers_so_many_producers(streams: Streams) -> None:
    create(streams, "a")
    state = streams.engine.streams.state(streams.topic("a"))
    for number in range(PRODUCERS_MAX + 3):
        state.apply(StreamMark(0, producer=Producer(str(number), 0, 0)))
    assert state.producers is not None
    assert len(state.producers) == PRODUCERS_MAX
    assert next(iter(state.producers)) == "3"


def test_sequences_are_compared_as_bytes(streams: Streams) -> None:
    create(streams, "a")
    append(streams, "a", b"1", seq="9")
    with pytest.raises(SequenceConflictError):
        append(streams, "a", b"2", seq="10")
    append(streams, "a", b"2", seq="é")


def test_an_append_on_its_way_decides_about_the_next(streams: Streams) -> None:
    create(streams, "a")
    hold(streams.engine)
    answers: list[Appended | TopicsError] = []
    request = AppendRequest(body=b"end", content_type="text/plain", close=True, seq="5")
    streams.append("a", request, answers.append)
    with pytest.raises(StreamClosedError):
        append(streams, "a", b"late")
    assert answers == []
    flush(streams.engine)
    assert isinstance(answers[0], Appended)


def test_two_who_create_the_same_at_once_both_have_it(streams: Streams) -> None:
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
    dropped: list[DropResult | TopicsError] = []
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
    streams = Streams(open_engine(limits=Limits(max_topics=1)))
    create(streams, "a")
    with pytest.raises(ThrottledError):
        create(streams, "b")
    assert not create(streams, "a").created


def test_a_lifetime_slides_with_every_use_and_not_with_a_look(streams: Streams, clock: ManualClock) -> None:
    create(streams, "a", ttl_s=10)
    for _ in range(3):
        clock.advance(9_000)
        streams.touch(streams.topic("a"))
    clock.advance(9_000)
    append(streams, "a", b"x")
    clock.advance(9_999)
    streams.info("a")
    clock.advance(1)
    with pytest.raises(TopicNotFoundError):
        streams.info("a")


def test_what_is_over_goes_by_itself(streams: Streams, clock: ManualClock) -> None:
    create(streams, "a", ttl_s=10)
    create(streams, "b", expires_ms=clock.now_ms() + 5_000)
    create(streams, "c")
    clock.advance(20_000)
    streams.engine.housekeeper.tick()
    assert streams.engine.core.names == ["c"]


def test_renewals_survive_a_kill_and_are_never_forgotten_early(
    streams: Streams, disk: FakeDisk, clock: ManualClock
) -> None:
    create(streams, "a", ttl_s=160)
    clock.advance(150_000)
    streams.touch(streams.topic("a"))
    clock.advance(9_000)
    streams.touch(streams.topic("a"))
    again = reopened(disk, clock)
    clock.advance(159_000)
    assert again.info("a").ttl_s == 160
    clock.advance(12_000)
    with pytest.raises(TopicNotFoundError):
        again.info("a")


def test_a_source_whose_time_is_over_stays_for_its_fork(streams: Streams, disk: FakeDisk, clock: ManualClock) -> None:
    create(streams, "a", body=b"x", ttl_s=10)
    fork(streams, "f", "a", ttl_s=10_000)
    clock.advance(11_000)
    streams.engine.housekeeper.tick()
    with pytest.raises(StreamGoneError):
        streams.topic("a")
    assert text(streams, "f") == "x"
    again = reopened(disk, clock)
    assert text(again, "f") == "x"
    with pytest.raises(StreamConflictError):
        create(again, "a")
    delete(again, "f")
    assert create(again, "a").created


def test_a_fork_through_snapshots_and_segments(streams: Streams, disk: FakeDisk, clock: ManualClock) -> None:
    create(streams, "a")
    for number in range(10):
        append(streams, "a", b"<%d>" % number)
    checkpoint(streams.engine)
    fork(streams, "f", "a")
    append(streams, "f", b"own")
    checkpoint(streams.engine)
    again = reopened(disk, clock)
    whole = "".join(f"<{number}>" for number in range(10))
    assert text(again, "f") == whole + "own"
    assert text(again, "a") == whole
    found = slice_of(again, "f", Position(8), as_json=False)
    assert (found.body, found.position, found.at_tail) == (b"<8><9>own", (11, 0), True)


def test_time_works_in_the_source_of_a_fork(streams: Streams, clock: ManualClock) -> None:
    create(streams, "a", body=b"1")
    streams.engine.put_topic("a", TopicConfigPatch(ttl_ms=1000), lambda answer: None)
    fork(streams, "f", "a")
    append(streams, "f", b"own")
    clock.advance(5_000)
    found = slice_of(streams, "f", as_json=False)
    assert found.body == b"own"
    assert found.tombstone is not None and (found.tombstone.gap_from, found.tombstone.gap_to) == (1, 1)


def test_a_key_finds_its_entries_in_memory_and_in_segments(streams: Streams) -> None:
    create(streams, "a", "application/json")
    for number in range(11):
        append(streams, "a", b"%d" % number, "application/json", key="k" if number % 3 == 0 else None)
    found = slice_of(streams, "a", key="k")
    assert (found.body, found.position) == (b"[0,3,6,9]", (11, 0))
    part = slice_of(streams, "a", key="k", max_records=2)
    assert part.body == b"[0,3]" and part.position.counter >= 4
    assert slice_of(streams, "a", part.position, key="k").body == b"[6,9]"


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 7, 100])
def test_an_answer_never_exceeds_its_bound_and_loses_nothing(streams: Streams, most: int) -> None:
    create(streams, "a")
    for part in (b"abcdef", b"", b"g", b"hijklmnop"):
        if part:
            append(streams, "a", part)
    found, position = b"", Position(0)
    while True:
        part_ = slice_of(streams, "a", position, as_json=False, max_bytes=most)
        assert len(part_.body) <= most and part_.body
        found, position = found + part_.body, part_.position
        if part_.at_tail:
            break
    assert found == b"abcdefghijklmnop"
