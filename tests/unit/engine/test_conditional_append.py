"""Conditional appends: an append goes through only if the topic has the expected head and the fence it names."""

import msgspec
import pytest

from tests.unit.conftest import (
    EPHEMERAL,
    FSYNC,
    Answers,
    after_power_cut,
    append,
    batch_of,
    checkpoint,
    committers,
    drop,
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
from tests.unit.transactions.conftest import anywhere, begin, ref, stage
from topics.engine.coalesce import DecodedAppends
from topics.engine.conditional_append import FENCE_BYTES_MAX, fence_of, newest_fence
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.log.frame import FrameKind, decode_fence, encode_fence
from topics.model.errors import (
    FenceMismatchError,
    HeadMismatchError,
    InvalidRequestError,
    ReadOnlyError,
    TopicNotFoundError,
    TopicsError,
)
from topics.model.records import Record
from topics.model.topic_config import Durability
from topics.testing import FakeDisk, FaultPlan, FaultyFileSystem
from topics.transactions.transaction_state import TransactionResult
from topics_protocol.transactions import Condition


def ask(
    engine: Engine,
    *payloads: object,
    expected: int | None = None,
    fence: str | None = None,
    new_fence: str | None = None,
    name: str = "t",
    **batch: object,
) -> Answers:
    answers: Answers = []
    made = batch_of(*payloads, **batch)  # type: ignore[arg-type]
    made = msgspec.structs.replace(made, expected_head_seq=expected, fence=fence, new_fence=new_fence)
    try:
        engine.append(name, made, answers.append)
    except TopicsError as error:
        answers.append(error)
    return answers


def set_fence(engine: Engine, token: str, held: str | None = None, name: str = "t") -> Answers:
    answers: Answers = []
    try:
        engine.fences.set(engine.existing(name), token, held, answers.append)
    except TopicsError as error:
        answers.append(error)
    return answers


def mismatch(answers: Answers, kind: type[TopicsError]) -> dict[str, object]:
    (error,) = answers
    assert isinstance(error, kind), error
    return error.detail


# Expected head


@pytest.mark.parametrize("payloads", [["b"], ["b", "c"]], ids=["single record", "batch"])
def test_append_with_the_expected_head_succeeds_and_with_another_is_refused(
    engine: Engine, payloads: list[str]
) -> None:
    append(engine, "t", "a")
    for expected in (0, 2, 2**64):
        assert mismatch(ask(engine, *payloads, expected=expected), HeadMismatchError) == {
            "topic": "t", "expected_head_seq": expected, "head_seq": 1,
        }  # fmt: skip
    assert values(engine, "t") == ["a"]
    one(ask(engine, *payloads, expected=1), AppendResult)
    assert values(engine, "t") == ["a", *payloads]


def test_head_counts_deleted_records_and_records_in_flight(engine: Engine) -> None:
    append(engine, "t", "a", "b")
    drop_all(engine)
    committers(engine)[0].hold = True
    first, second = ask(engine, "c", expected=2), ask(engine, "d", expected=2)
    assert first == []
    assert mismatch(second, HeadMismatchError)["head_seq"] == 3
    flush(engine)
    assert one(first, AppendResult).first_seq == 3


def drop_all(engine: Engine) -> None:
    put(engine, "t", cap_records=1)
    put(engine, "t")


def test_missing_topic_has_head_0(engine: Engine) -> None:
    assert mismatch(ask(engine, "a", expected=1), HeadMismatchError)["head_seq"] == 0
    assert mismatch(ask(engine, "a", fence="w"), FenceMismatchError)["fence"] == ""
    with pytest.raises(TopicNotFoundError):
        engine.existing("t")
    one(ask(engine, "a", expected=0, fence="", new_fence="w"), AppendResult)
    assert fence_of(topic(engine, "t")) == "w"


class _Source:
    """One undecoded request of the network (`AppendSource`)."""

    def __init__(self) -> None:
        self.outcomes: list[object] = []

    def decode(self, requests: list[str]) -> DecodedAppends:
        return DecodedAppends([Record.of(request) for request in requests], None)

    def handle_each(self, requests: list[str]) -> None:
        raise AssertionError

    def answer(self, requests: list[str], outcome: object) -> None:
        self.outcomes.append(outcome)


def test_head_counts_single_records_of_the_same_tick(engine: Engine) -> None:
    append(engine, "t", "a")
    for committer in committers(engine):
        committer.hold = committer.coalesces = True
    coalesced = ask(engine, "b")
    assert topic(engine, "t").coalesced is not None
    assert mismatch(ask(engine, "x", expected=1), HeadMismatchError)["head_seq"] == 2
    undecoded = _Source()
    assert engine.append_requests("t", ["c"], undecoded)
    late, right = ask(engine, "x", expected=2), ask(engine, "d", expected=3)
    behind = ask(engine, "e")
    flush(engine)
    assert mismatch(late, HeadMismatchError)["head_seq"] == 3
    assert [one(answers, AppendResult).first_seq for answers in (coalesced, right, behind)] == [2, 4, 5]
    assert values(engine, "t") == ["a", "b", "c", "d", "e"]


def test_repeated_key_is_deduplicated_before_the_condition_is_checked(engine: Engine) -> None:
    first = one(ask(engine, "a", expected=0, fence="", new_fence="w", key="k"), AppendResult)
    append(engine, "t", "b")
    again = one(ask(engine, "a", expected=0, fence="", new_fence="w", key="k"), AppendResult)
    assert (again.first_seq, again.deduped) == (first.first_seq, True)
    assert mismatch(ask(engine, "a", expected=0, key="l"), HeadMismatchError)["head_seq"] == 2


def test_refused_key_can_be_used_again(engine: Engine) -> None:
    append(engine, "t", "a")
    mismatch(ask(engine, "b", expected=0, key="k"), HeadMismatchError)
    assert not one(ask(engine, "b", expected=1, key="k"), AppendResult).deduped


# Fence


def test_append_with_another_fence_is_refused_and_one_without_is_not(engine: Engine) -> None:
    append(engine, "t", "a")
    assert set_fence(engine, "w1") == ["w1"]
    assert mismatch(ask(engine, "b", fence="w2"), FenceMismatchError) == {"topic": "t", "fence": "w1"}
    mismatch(ask(engine, "b", fence=""), FenceMismatchError)
    one(ask(engine, "b", fence="w1"), AppendResult)
    append(engine, "t", "c")
    assert values(engine, "t") == ["a", "b", "c"]


def test_new_fence_counts_from_its_append_on_also_in_flight(engine: Engine) -> None:
    append(engine, "t", "a")
    committers(engine)[0].hold = True
    took_over = ask(engine, "b", new_fence="w2")
    assert mismatch(ask(engine, "c", fence=""), FenceMismatchError)["fence"] == "w2"
    right = ask(engine, "c", "d", fence="w2", expected=2)
    flush(engine)
    assert [one(answers, AppendResult).last_seq for answers in (took_over, right)] == [2, 4]
    assert fence_of(topic(engine, "t")) == newest_fence(topic(engine, "t")) == "w2"


def test_set_fence_is_conditional_and_repeatable(engine: Engine) -> None:
    append(engine, "t", "a")
    assert set_fence(engine, "w1", "") == ["w1"]
    assert set_fence(engine, "w1", "") == ["w1"], "a repetition of what succeeded"
    mismatch(set_fence(engine, "w2", ""), FenceMismatchError)
    assert set_fence(engine, "", "w1") == [""]
    assert fence_of(topic(engine, "t")) == ""


@pytest.mark.parametrize("token", ["x" * (FENCE_BYTES_MAX + 1), "\ud800"])
def test_token_that_cannot_be_stored_is_refused(engine: Engine, token: str) -> None:
    append(engine, "t", "a")
    for answers in (set_fence(engine, token), ask(engine, "b", new_fence=token)):
        assert mismatch(answers, InvalidRequestError)["field"] == "new_fence"
    assert seqs(engine, "t") == [1]


def test_batch_and_its_fence_are_one_frame(engine: Engine) -> None:
    append(engine, "t", "a")
    before = len(logged(engine))
    ask(engine, "b", "c", new_fence="w")
    assert logged(engine)[before:] == [FrameKind.FENCE]


@pytest.mark.parametrize("durability", [FSYNC, Durability.DISK, Durability.MEMORY])
@pytest.mark.parametrize("snapshot", [False, True], ids=["log", "snapshot"])
def test_fence_and_records_survive_a_restart(disk: FakeDisk, durability: Durability, snapshot: bool) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=durability)
    set_fence(engine, "w1")
    ask(engine, "a", "b", fence="w1", new_fence="w2")
    if snapshot:
        checkpoint(engine)
    engine = open_engine(killed(disk))
    assert values(engine, "t") == ["a", "b"]
    assert fence_of(topic(engine, "t")) == "w2"
    assert mismatch(ask(engine, "c", fence="w1"), FenceMismatchError)["fence"] == "w2"


def test_fence_of_an_ephemeral_topic_survives_a_power_cut(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=EPHEMERAL)
    one(ask(engine, "a", new_fence="w"), AppendResult)
    engine = open_engine(after_power_cut(disk), boot_id="b")
    assert (values(engine, "t"), fence_of(topic(engine, "t"))) == ([], "w")


def test_recreated_topic_has_no_fence(engine: Engine) -> None:
    append(engine, "t", "a")
    set_fence(engine, "w")
    drop(engine, "t")
    append(engine, "t", "b")
    assert fence_of(topic(engine, "t")) == ""


def test_failed_append_leaves_the_fence_as_it_was() -> None:
    fs = FaultyFileSystem(FakeDisk())
    engine = open_engine(fs)
    append(engine, "t", "a")
    set_fence(engine, "w1")
    committers(engine)[0].hold = True
    failed = ask(engine, "b", new_fence="w2")
    fs.plan = FaultPlan(call=fs.calls + 1)
    flush(engine)
    assert isinstance(failed[0], ReadOnlyError)
    assert (fence_of(topic(engine, "t")), newest_fence(topic(engine, "t"))) == ("w1", "w1")


def test_fence_frame_that_is_cut_short_is_malformed() -> None:
    body = encode_fence("token")
    assert decode_fence(memoryview(body)) == ("token", None)
    token, block = decode_fence(memoryview(body + b"block"))
    assert (token, bytes(block or b"")) == ("token", b"block")
    for cut in range(len(body)):
        with pytest.raises(ValueError, match="shorter"):
            decode_fence(memoryview(body[:cut]))


# Transactions


def commit(engine: Engine, conditions: dict[str, Condition]) -> Answers:
    answers: Answers = []
    try:
        engine.transactions.commit(ref(), None, anywhere, answers.append, conditions)
    except TopicsError as error:
        answers.append(error)
    return answers


@pytest.mark.parametrize("shards", [1, 4])
def test_commit_is_refused_as_a_whole_if_one_topic_is_not_as_expected(shards: int) -> None:
    engine = open_engine(wal_shards=shards)
    for name in "ab":
        append(engine, name, "old")
    set_fence(engine, "w", name="b")
    begin(engine)
    stage(engine, "a", "new")
    stage(engine, "b", "new")
    wrong = commit(engine, {"a": Condition(expected_head_seq=1), "b": Condition(expected_head_seq=0)})
    assert mismatch(wrong, HeadMismatchError)["topic"] == "b"
    fenced = commit(engine, {"a": Condition(expected_head_seq=1), "b": Condition(fence="v")})
    assert mismatch(fenced, FenceMismatchError)["topic"] == "b"
    assert values(engine, "a") == values(engine, "b") == ["old"]
    right = {"a": Condition(expected_head_seq=1), "b": Condition(expected_head_seq=1, fence="w")}
    assert one(commit(engine, right), TransactionResult).state == "committed"
    assert values(engine, "a") == values(engine, "b") == ["old", "new"]
    assert one(commit(engine, right), TransactionResult).deduped, "a repetition of what succeeded"


def test_condition_for_a_missing_topic_is_refused_before_it_is_created(engine: Engine) -> None:
    begin(engine)
    stage(engine, "a", "new")
    assert mismatch(commit(engine, {"a": Condition(expected_head_seq=1)}), HeadMismatchError)["head_seq"] == 0
    assert mismatch(commit(engine, {"a": Condition(fence="w")}), FenceMismatchError)["fence"] == ""
    with pytest.raises(TopicNotFoundError):
        engine.existing("a")
    assert mismatch(commit(engine, {"b": Condition()}), InvalidRequestError)["field"] == "conditions"
    one(commit(engine, {"a": Condition(expected_head_seq=0)}), TransactionResult)


def test_large_commit_looks_at_the_head_again_before_the_first_records_of_each_topic(engine: Engine) -> None:
    for name in "ab":
        append(engine, name, "old")
    begin(engine)
    for _ in range(3):
        stage(engine, "a", *range(1000))
    stage(engine, "b", "new")
    committers(engine)[0].hold = True
    answers = commit(engine, {"a": Condition(expected_head_seq=1), "b": Condition(expected_head_seq=1)})
    overtaking = ask(engine, "faster", name="b")
    flush(engine)
    assert mismatch(answers, HeadMismatchError)["topic"] == "b"
    one(overtaking, AppendResult)
    assert (len(values(engine, "a")), values(engine, "b")) == (1, ["old", "faster"])
