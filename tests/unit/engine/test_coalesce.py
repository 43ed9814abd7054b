"""Single records of one tick share a block, and neither the answers nor the order show it."""

from functools import partial
from typing import NamedTuple

import msgspec
import pytest

from tests.unit.conftest import (
    DISK,
    EPHEMERAL,
    FSYNC,
    Answers,
    ask_append,
    ask_delete,
    ask_drop,
    ask_put,
    batch_of,
    checkpoint,
    committers,
    flush,
    killed,
    logged,
    one,
    open_engine,
    put,
    read,
    seqs,
    topic,
    values,
)
from topics.engine.coalesce import DecodedAppends
from topics.engine.engine import Engine
from topics.engine.results import AppendResult, DropResult
from topics.log.frame import FrameKind
from topics.log.wal import Submission
from topics.model.errors import ReadOnlyError, TopicsError
from topics.model.limits import Limits
from topics.model.records import Batch, Record
from topics.model.topic_config import Discard
from topics.testing import FakeDisk, FaultPlan, FaultyFileSystem


def gather(engine: Engine) -> None:
    """From now on single records wait for `flush`, together."""
    for committer in committers(engine):
        committer.hold = committer.coalesces = True


class Asked(NamedTuple):
    name: str
    caller: str
    record: Record
    key: str | None


class Callers:
    """Callers whose requests are decoded and answered together; the engine's `AppendSource`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.outcomes: list[tuple[list[str], object]] = []
        self.alone: list[str] = []
        """The callers whose requests were handled one by one."""

    def ask(self, name: str, caller: str, record: Record | None = None, key: str | None = None) -> bool:
        return self._engine.append_requests(name, [Asked(name, caller, record or Record(b"1"), key)], self)

    def append(self, name: str, caller: str, record: Record) -> None:
        """As the API does: a request that is not taken is handled by itself."""
        if not self.ask(name, caller, record):
            self.handle_each([Asked(name, caller, record, None)])

    def decode(self, requests: list[Asked]) -> DecodedAppends:
        return DecodedAppends.of([asked.record for asked in requests], [asked.key for asked in requests])

    def handle_each(self, requests: list[Asked]) -> None:
        for asked in requests:
            self.alone.append(asked.caller)
            batch = Batch(records=[asked.record], idempotency_key=asked.key or None)
            try:
                self._engine.append(asked.name, batch, partial(self.answer, [asked]))
            except TopicsError as error:
                self.answer([asked], error)

    def answer(self, requests: list[Asked], outcome: AppendResult | TopicsError) -> None:
        self.outcomes.append(([asked.caller for asked in requests], outcome))


def known_as_plain(engine: Engine, name: str, **config: object) -> Callers:
    """A topic to which a single record was appended before, and callers that append the next ones."""
    put(engine, name, **config)
    gather(engine)
    ask_append(engine, name, 0)
    flush(engine)
    gather(engine)
    return Callers(engine)


def reported(answers: list[Answers]) -> list[tuple[int, int, int]]:
    results = [one(each, AppendResult) for each in answers]
    return [(result.first_seq, result.last_seq, result.head_seq) for result in results]


@pytest.mark.parametrize("durability", [DISK, FSYNC])
def test_single_records_of_a_tick_are_one_frame_and_each_has_its_own_answer(engine: Engine, durability: object) -> None:
    put(engine, "a", durability=durability)
    before = logged(engine).count(FrameKind.APPEND)
    gather(engine)
    answers = [ask_append(engine, "a", value) for value in "xyz"]
    assert answers == [[], [], []]
    flush(engine)
    assert reported(answers) == [(1, 1, 1), (2, 2, 2), (3, 3, 3)]
    assert values(engine, "a") == ["x", "y", "z"]
    assert logged(engine).count(FrameKind.APPEND) == before + 1
    assert len(topic(engine, "a").tail) == 1


def test_topics_are_gathered_apart(engine: Engine) -> None:
    put(engine, "a")
    put(engine, "b")
    gather(engine)
    answers = [ask_append(engine, name, value) for name, value in (("a", 1), ("b", 2), ("a", 3))]
    flush(engine)
    assert reported(answers) == [(1, 1, 1), (1, 1, 1), (2, 2, 2)]
    assert values(engine, "a") == [1, 3]
    assert values(engine, "b") == [2]


@pytest.mark.parametrize("special", [{"key": "k"}, {"node": "n"}, {"values": (2, 3)}], ids=["key", "node", "batch"])
def test_a_special_append_keeps_its_place_among_the_gathered(engine: Engine, special: dict[str, object]) -> None:
    put(engine, "a")
    gather(engine)
    inner = special.pop("values", (2,))
    assert isinstance(inner, tuple)
    ask_append(engine, "a", 1)
    ask_append(engine, "a", *inner, **special)
    ask_append(engine, "a", 4)
    flush(engine)
    assert values(engine, "a") == [1, *inner, 4]


def test_a_config_comes_behind_what_was_gathered_before_it(engine: Engine) -> None:
    put(engine, "a")
    gather(engine)
    ask_append(engine, "a", 1)
    ask_put(engine, "a", cap_records=1)
    ask_append(engine, "a", 2)
    flush(engine)
    kinds = [kind for kind in logged(engine) if kind is not FrameKind.CEILING]
    assert kinds[-3:] == [FrameKind.APPEND, FrameKind.CONFIG, FrameKind.APPEND]
    assert values(engine, "a") == [2]


def test_a_delete_and_a_drop_come_behind_what_was_gathered_before_them(engine: Engine) -> None:
    put(engine, "a")
    gather(engine)
    first = ask_append(engine, "a", 1)
    ask_delete(engine, "a", before_seq=2)
    second = ask_append(engine, "a", 2)
    dropped = ask_drop(engine, "a")
    flush(engine)
    assert reported([first, second]) == [(1, 1, 1), (2, 2, 2)]
    assert one(dropped, DropResult).deleted


@pytest.mark.parametrize(
    "config", [{"durability": EPHEMERAL}, {"ttl_ms": 1000}, {"cap_records": 5, "discard": Discard.REJECT}]
)
def test_topics_whose_rules_look_at_each_request_are_not_gathered(engine: Engine, config: dict[str, object]) -> None:
    put(engine, "a", **config)
    gather(engine)
    ask_append(engine, "a", 1)
    assert not engine.core.shards[0].coalesced
    flush(engine)
    assert values(engine, "a") == [1]


def test_a_block_of_gathered_records_is_bounded(engine: Engine) -> None:
    put(engine, "a")
    gather(engine)
    answers = [ask_append(engine, "a", number) for number in range(600)]
    flush(engine)
    assert [len(each) for each in answers] == [1] * 600
    assert [block.count for block in topic(engine, "a").tail] == [256, 256, 88]
    assert seqs(engine, "a") == list(range(1, 601))


def test_a_checkpoint_has_what_was_gathered_before_it(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "a")
    gather(engine)
    ask_append(engine, "a", 1)
    checkpoint(engine)
    flush(engine)
    ask_append(engine, "a", 2)
    assert values(open_engine(killed(disk)), "a") == [1, 2]


def test_when_the_log_fails_everybody_is_notified(disk: FakeDisk) -> None:
    fs = FaultyFileSystem(disk)
    engine = open_engine(fs)
    put(engine, "a")
    gather(engine)
    answers = [ask_append(engine, "a", number) for number in range(3)]
    fs.plan = FaultPlan(call=fs.calls + 1)
    flush(engine)
    assert [type(answer) for each in answers for answer in each] == [ReadOnlyError] * 3
    assert values(engine, "a") == []
    assert topic(engine, "a").staged_head == 0


def test_a_broken_callback_keeps_no_answer_from_the_others(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    put(engine, "a")
    gather(engine)

    def broken(outcome: object) -> None:
        raise RuntimeError("broken")

    engine.append("a", batch_of(1), broken)
    answers = ask_append(engine, "a", 2)
    flush(engine)
    assert reported([answers]) == [(2, 2, 2)]
    assert "commit callback failed" in caplog.text


def test_a_cohort_is_counted_by_those_who_wait(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    put(engine, "a")
    shard, callers = engine.core.shards[0], []
    whole = shard.submit

    def submit(submission: Submission) -> None:
        callers.append(submission.callers)
        whole(submission)

    monkeypatch.setattr(shard, "submit", submit)
    gather(engine)
    for number in range(3):
        ask_append(engine, "a", number)
    ask_append(engine, "a", 3, 4, 5)
    ask_append(engine, "a", 6)
    flush(engine)
    assert [count for count in callers if count > 1] == [3]


def test_coalesced_requests_are_answered_together(engine: Engine) -> None:
    callers = known_as_plain(engine, "a")
    assert all([callers.ask("a", caller, Record(b"%d" % n)) for n, caller in enumerate("xyz", 1)])
    flush(engine)
    ((names, outcome),) = callers.outcomes
    assert names == ["x", "y", "z"]
    assert isinstance(outcome, AppendResult)
    assert (outcome.topic, outcome.first_seq, outcome.last_seq, outcome.head_seq) == ("a", 2, 4, 4)
    assert values(engine, "a") == [0, 1, 2, 3]


def test_two_ways_to_append_keep_the_order_of_arrival(engine: Engine) -> None:
    callers, others = known_as_plain(engine, "a"), Callers(engine)
    callers.ask("a", "first", Record(b"1"))
    answers = ask_append(engine, "a", 2)
    others.append("a", "third", Record(b"3"))
    callers.append("a", "fourth", Record(b"4"))
    flush(engine)
    assert values(engine, "a") == [0, 1, 2, 3, 4]
    assert reported([answers]) == [(3, 3, 3)]
    assert [names for names, _ in callers.outcomes] == [["first"], ["fourth"]]
    assert [names for names, _ in others.outcomes] == [["third"]]


def test_group_of_coalesced_requests_is_bounded(engine: Engine) -> None:
    callers = known_as_plain(engine, "a")
    assert all([callers.ask("a", str(number)) for number in range(600)])
    flush(engine)
    assert [len(names) for names, _ in callers.outcomes] == [256, 256, 88]
    assert seqs(engine, "a") == list(range(1, 602))


def test_a_record_may_have_a_tag_a_node_and_meta(engine: Engine) -> None:
    callers = known_as_plain(engine, "a")
    record = Record(b"1", tag="t", node="n", meta=msgspec.Raw(b'{"k":"v"}'))
    assert callers.ask("a", "x", record)
    assert callers.ask("a", "y")
    flush(engine)
    text = read(engine, "a", include_tags=True).body
    assert b'"$node":"n","data":1,"meta":{"k":"v"},"$tag":"t"},{' in text


@pytest.mark.parametrize(
    "record",
    [
        Record(b'"%b"' % (b"x" * 300)),
        Record(b"1", tag="t" * 300),
        Record(b"1", node="n" * 300),
        Record(b"1", meta=msgspec.Raw(b"[]")),
    ],
    ids=["too large", "tag", "node", "meta"],
)
def test_invalid_record_is_handled_by_itself_and_refused(record: Record) -> None:
    engine = open_engine(limits=Limits(max_record_bytes=256))
    callers = known_as_plain(engine, "a")
    assert callers.ask("a", "x", record)
    flush(engine)
    assert callers.alone == ["x"]
    ((names, outcome),) = callers.outcomes
    assert (names, isinstance(outcome, TopicsError)) == (["x"], True)
    assert not engine.core.shards[0].coalesced
    assert topic(engine, "a").staged_head == 1


@pytest.mark.parametrize(
    "config", [{"durability": EPHEMERAL}, {"ttl_ms": 1000}, {"cap_records": 5, "discard": Discard.REJECT}]
)
def test_a_topic_with_rules_of_its_own_is_left_to_append(engine: Engine, config: dict[str, object]) -> None:
    assert not known_as_plain(engine, "a", **config).ask("a", "x")


def test_a_topic_that_is_not_there_is_left_to_append(engine: Engine) -> None:
    put(engine, "new")
    callers = Callers(engine)
    assert not callers.ask("a", "x")
    assert not callers.ask("new", "x")


def test_a_topic_that_changes_is_left_to_append(engine: Engine) -> None:
    callers = known_as_plain(engine, "a")
    answers = ask_put(engine, "a", ttl_ms=1000)
    assert not callers.ask("a", "x")
    flush(engine)
    assert answers
    assert not callers.ask("a", "x")


def test_a_topic_on_its_way_out_is_left_to_append(engine: Engine) -> None:
    callers = known_as_plain(engine, "a")
    ask_drop(engine, "a")
    assert not callers.ask("a", "x")


def test_a_quota_is_left_to_append() -> None:
    engine = open_engine(limits=Limits(max_total_bytes=1000))
    assert not known_as_plain(engine, "a").ask("a", "x")


def test_no_request_is_coalesced_under_pressure(engine: Engine) -> None:
    callers = known_as_plain(engine, "a")
    engine.admission.set_policy(refusing=True, retry_after_ms=100)
    assert not callers.ask("a", "x")
    engine.admission.set_policy(refusing=False, retry_after_ms=0)
    engine.sealer.failures = 1
    assert not callers.ask("a", "x")
    engine.sealer.failures = 0
    assert callers.ask("a", "x")
    engine.core.closed = True
    assert not callers.ask("a", "y")


def test_no_request_is_coalesced_after_a_log_failure(disk: FakeDisk) -> None:
    fs = FaultyFileSystem(disk)
    engine = open_engine(fs)
    callers = known_as_plain(engine, "a")
    assert callers.ask("a", "x")
    fs.plan = FaultPlan(call=fs.calls + 1)
    flush(engine)
    ((names, outcome),) = callers.outcomes
    assert names == ["x"]
    assert isinstance(outcome, ReadOnlyError)
    assert not callers.ask("a", "y")


def test_shards_gather_apart() -> None:
    engine = open_engine(wal_shards=2)
    names = [f"t{number}" for number in range(8)]
    for name in names:
        put(engine, name)
    gather(engine)
    for name in names:
        ask_append(engine, name, 0)
    flush(engine)
    gather(engine)
    assert {topic(engine, name).shard for name in names} == {0, 1}
    callers = Callers(engine)
    assert all([callers.ask(name, name) for name in names])
    engine.core.shards[1].stage_coalesced()
    assert engine.core.shards[0].coalesced
    flush(engine)
    assert sorted(names for (names,), _ in callers.outcomes) == names
    assert [values(engine, name) for name in names] == [[0, 1]] * 8
