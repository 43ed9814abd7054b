"""Single records of one tick share a block, and nobody can tell from the answers or the order."""

import pytest

from tests.unit.engine.conftest import (
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
    seqs,
    topic,
    values,
)
from topics.core.config import Discard
from topics.core.errors import ReadOnlyError
from topics.engine import AppendResult, DropResult, Engine
from topics.formats.frame import FrameKind
from topics.storage.commit import Submission
from topics.testing import FakeDisk, FaultPlan, FaultyFileSystem


def gather(engine: Engine) -> None:
    """From now on single records wait for `flush`, together."""
    for committer in committers(engine):
        committer.hold = committer.gathers = True


def told(answers: list[Answers]) -> list[tuple[int, int, int]]:
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
    assert told(answers) == [(1, 1, 1), (2, 2, 2), (3, 3, 3)]
    assert values(engine, "a") == ["x", "y", "z"]
    assert logged(engine).count(FrameKind.APPEND) == before + 1
    assert len(topic(engine, "a").tail) == 1


def test_topics_are_gathered_apart(engine: Engine) -> None:
    put(engine, "a")
    put(engine, "b")
    gather(engine)
    answers = [ask_append(engine, name, value) for name, value in (("a", 1), ("b", 2), ("a", 3))]
    flush(engine)
    assert told(answers) == [(1, 1, 1), (1, 1, 1), (2, 2, 2)]
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
    assert told([first, second]) == [(1, 1, 1), (2, 2, 2)]
    assert one(dropped, DropResult).deleted


@pytest.mark.parametrize(
    "config", [{"durability": EPHEMERAL}, {"ttl_ms": 1000}, {"cap_records": 5, "discard": Discard.REJECT}]
)
def test_topics_whose_rules_look_at_each_request_are_not_gathered(engine: Engine, config: dict[str, object]) -> None:
    put(engine, "a", **config)
    gather(engine)
    ask_append(engine, "a", 1)
    assert engine.core.shards[0].gathered is None
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


def test_when_the_log_fails_everybody_is_told(disk: FakeDisk) -> None:
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
    assert told([answers]) == [(2, 2, 2)]
    assert "a commit callback failed" in caplog.text


def test_a_cohort_is_counted_by_those_who_wait(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    put(engine, "a")
    shard, askers = engine.core.shards[0], []
    whole = shard.submit

    def submit(submission: Submission) -> None:
        askers.append(submission.askers)
        whole(submission)

    monkeypatch.setattr(shard, "submit", submit)
    gather(engine)
    for number in range(3):
        ask_append(engine, "a", number)
    ask_append(engine, "a", 3, 4, 5)
    ask_append(engine, "a", 6)
    flush(engine)
    assert [count for count in askers if count > 1] == [3]
