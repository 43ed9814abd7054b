"""Idempotency keys: single records with a key share a block like others, and a reused key is reported or refused."""

import msgspec
import pytest

from tests.unit.conftest import (
    DISK,
    FSYNC,
    append,
    ask_append,
    batch_of,
    checkpoint,
    delete,
    flush,
    hold,
    keys_on_their_way,
    killed,
    logged,
    one,
    open_engine,
    put,
    topic,
    values,
)
from tests.unit.engine.test_coalesce import Callers, gather, known_as_plain
from topics.engine.coalesce import GROUP_MAX
from topics.engine.engine import Engine
from topics.engine.results import AppendResult, deduped
from topics.log.frame import FrameKind
from topics.model.errors import IdempotencyConflictError, ReadOnlyError, ThrottledError
from topics.model.limits import Limits
from topics.model.records import Record
from topics.testing import FakeDisk, FaultPlan, FaultyFileSystem, ManualClock


class KeyedCallers(Callers):
    def ask_keyed(self, name: str, key: str, value: object = 1) -> bool:
        return self.ask_record(name, Record.of(value), key)

    def ask_record(self, name: str, record: Record, key: str | None) -> bool:
        return self.ask(name, str(key), record, key)


def prepared(engine: Engine, **config: object) -> KeyedCallers:
    """A plain topic with one record, in which single records of a tick now wait for each other."""
    known_as_plain(engine, "t", **config)
    return KeyedCallers(engine)


# In one block


@pytest.mark.parametrize("durability", [DISK, FSYNC])
def test_keyed_records_of_a_tick_are_one_frame_and_each_key_knows_its_own(engine: Engine, durability: object) -> None:
    callers = prepared(engine, durability=durability)
    before = logged(engine).count(FrameKind.APPEND)
    assert callers.ask_keyed("t", "a", 1)
    assert callers.ask("t", "plain", Record.of(2))
    assert callers.ask_keyed("t", "b", 3)
    flush(engine)
    assert logged(engine).count(FrameKind.APPEND) == before + 1
    assert [names for names, _ in callers.outcomes] == [["a", "plain", "b"]]
    assert append(engine, "t", 1, key="a") == deduped("t", 2, 2)
    assert append(engine, "t", 3, key="b") == deduped("t", 4, 4)
    assert append(engine, "t", 4, key="b") == deduped("t", 4, 4, differs=True)
    assert values(engine, "t") == [0, 1, 2, 3]


def test_one_that_is_alone_in_its_tick_is_logged_as_the_batch_it_is(engine: Engine) -> None:
    callers = prepared(engine)
    assert callers.ask_keyed("t", "a", 1)
    flush(engine)
    gather(engine)
    assert callers.ask_keyed("t", "b", 2)
    assert callers.ask_keyed("t", "c", 3)
    flush(engine)
    assert [block.key for block in topic(engine, "t").tail[-2:]] == ["a", {"b": 0, "c": 1}]
    assert append(engine, "t", 1, key="a") == deduped("t", 2, 2)


def test_the_long_way_gathers_them_too(engine: Engine) -> None:
    prepared(engine)
    before = logged(engine).count(FrameKind.APPEND)
    answers = [ask_append(engine, "t", number, key=f"k{number}") for number in range(1, 4)]
    assert answers == [[], [], []]
    flush(engine)
    assert [one(each, AppendResult).first_seq for each in answers] == [2, 3, 4]
    assert logged(engine).count(FrameKind.APPEND) == before + 1
    assert not keys_on_their_way(topic(engine, "t"))


def test_a_key_that_comes_twice_in_a_tick_is_appended_once(engine: Engine) -> None:
    callers = prepared(engine)
    assert callers.ask_keyed("t", "a", 1)
    assert callers.ask_keyed("t", "b", 2)
    assert callers.ask_keyed("t", "b", 2)
    same = ask_append(engine, "t", 2, key="b")
    other = ask_append(engine, "t", 3, key="b")
    checked: list[object] = []
    engine.append("t", batch_of(3, key="b", check=True), checked.append)
    assert (same, other, checked) == ([], [], [])
    flush(engine)
    assert callers.alone == ["a", "b", "b"]
    assert callers.outcomes[-1] == (["b"], deduped("t", 3, 3))
    assert same == [deduped("t", 3, 3)]
    assert other == [deduped("t", 3, 3, differs=True)]
    assert isinstance(checked[0], IdempotencyConflictError)
    assert values(engine, "t") == [0, 1, 2]
    assert not keys_on_their_way(topic(engine, "t"))


def test_a_key_that_is_on_its_way_or_known_is_not_taken_again(engine: Engine) -> None:
    callers = prepared(engine)
    assert callers.ask_keyed("t", "a", 1)
    engine.core.path.stage_coalesced(0)
    assert callers.ask_keyed("t", "a", 1)
    flush(engine)
    assert callers.alone == ["a"]
    gather(engine)
    assert callers.ask_keyed("t", "a", 1)
    flush(engine)
    assert callers.alone == ["a", "a"]
    assert [outcome for _, outcome in callers.outcomes[1:]] == [deduped("t", 2, 2)] * 2
    assert values(engine, "t") == [0, 1]


def test_keys_of_what_fails_are_new_again_and_those_that_are_known_stay() -> None:
    faulty = FaultyFileSystem(FakeDisk())
    engine = open_engine(faulty)
    callers = prepared(engine)
    assert callers.ask_keyed("t", "a", 1)
    flush(engine)
    gather(engine)
    assert callers.ask_keyed("t", "b", 2)
    assert callers.ask_keyed("t", "c", 3)
    faulty.plan = FaultPlan(call=faulty.calls + 1)
    flush(engine)
    assert list(topic(engine, "t").keys or ()) == ["a"]
    assert not keys_on_their_way(topic(engine, "t"))


def test_those_of_another_kind_of_caller_are_looked_at_as_well(engine: Engine) -> None:
    callers = prepared(engine)
    long_way = ask_append(engine, "t", 1, key="a")
    assert not callers.ask_keyed("t", "a", 1)
    flush(engine)
    assert one(long_way, AppendResult).first_seq == 2


def test_who_repeats_a_record_that_fails_fails_with_it() -> None:
    faulty = FaultyFileSystem(FakeDisk())
    engine = open_engine(faulty)
    callers = prepared(engine)
    assert callers.ask_keyed("t", "a", 1)
    same, other = ask_append(engine, "t", 1, key="a"), ask_append(engine, "t", 2, key="a", check=True)
    faulty.plan = FaultPlan(call=faulty.calls + 1)
    flush(engine)
    assert isinstance(callers.outcomes[0][1], ReadOnlyError)
    assert isinstance(same[0], ReadOnlyError)
    # Nothing was written under the key, so there is nothing to contradict.
    assert isinstance(other[0], ReadOnlyError)
    assert not keys_on_their_way(topic(engine, "t"))
    assert not topic(engine, "t").keys


@pytest.mark.parametrize("key", ["", "x" * 257])
def test_a_key_that_is_none_or_too_long_goes_the_long_way(engine: Engine, key: str) -> None:
    callers = prepared(engine)
    assert callers.ask_keyed("t", key)
    flush(engine)
    assert callers.alone == [key]


def test_where_no_key_is_remembered_none_shares_a_block(engine: Engine) -> None:
    callers = prepared(engine, idempotency_window_ms=0)
    assert callers.ask_keyed("t", "a")
    assert callers.ask("t", "plain")
    answers = [ask_append(engine, "t", 1, key="a") for _ in range(2)]
    flush(engine)
    assert callers.alone == ["a", "plain"]
    assert [one(each, AppendResult).deduped for each in answers] == [False, False]
    assert values(engine, "t") == [0, 1, 1, 1, 1]


def test_a_key_whose_window_has_passed_is_new_again(engine: Engine, clock: ManualClock) -> None:
    callers = prepared(engine, idempotency_window_ms=1000)
    assert callers.ask_keyed("t", "a", 1)
    flush(engine)
    clock.advance(1001)
    assert append(engine, "t", 2, key="a").first_seq == 3
    assert append(engine, "t", 2, key="a").first_seq == 3


def test_more_than_a_block_takes_are_two(engine: Engine) -> None:
    callers = prepared(engine)
    assert all([callers.ask_keyed("t", f"k{number}", number) for number in range(300)])
    flush(engine)
    assert [len(names) for names, _ in callers.outcomes] == [256, 44]
    assert append(engine, "t", 299, key="k299") == deduped("t", 301, 301)
    assert len(topic(engine, "t").keys or ()) == 300


@pytest.mark.parametrize("through_snapshot", [True, False])
def test_keys_of_single_records_survive_a_restart(disk: FakeDisk, clock: ManualClock, through_snapshot: bool) -> None:
    engine = open_engine(disk, clock)
    callers = prepared(engine)
    assert all([callers.ask_keyed("t", key, key) for key in ("a", "ü", "🦊")])
    assert callers.ask("t", "plain")
    flush(engine)
    if through_snapshot:
        checkpoint(engine)
    after = open_engine(killed(disk), clock)
    assert dict(topic(after, "t").keys or {}) == dict(topic(engine, "t").keys or {})
    assert append(after, "t", "🦊", key="🦊") == deduped("t", 4, 4)
    assert append(after, "t", "x", key="ü") == deduped("t", 3, 3, differs=True)
    assert append(after, "t", 5, key="new").first_seq == 6


# Something else under the same key

ORIGINAL = Record(msgspec.Raw(b'{"a": 1}'), "tag", "node", msgspec.Raw(b'{"m":1}'))
OTHERS = {
    "data": [msgspec.structs.replace(ORIGINAL, data=msgspec.Raw(b'{"a": 2}'))],
    "spelling": [msgspec.structs.replace(ORIGINAL, data=msgspec.Raw(b'{"a":1}'))],
    "tag": [msgspec.structs.replace(ORIGINAL, tag="gat")],
    "no tag": [msgspec.structs.replace(ORIGINAL, tag=None)],
    "node": [msgspec.structs.replace(ORIGINAL, node="other")],
    "meta": [msgspec.structs.replace(ORIGINAL, meta=msgspec.Raw(b'{"m":2}'))],
    "no meta": [msgspec.structs.replace(ORIGINAL, meta=None)],
    "one more": [ORIGINAL, ORIGINAL],
}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("other", OTHERS)
def test_whatever_is_stored_is_compared(disk: FakeDisk, clock: ManualClock, other: str, restarted: bool) -> None:
    engine = open_engine(disk, clock)
    append(engine, "t", ORIGINAL, key="k")
    if restarted:
        engine = open_engine(killed(disk), clock)
    assert append(engine, "t", ORIGINAL, key="k", check=True) == deduped("t", 1, 1)
    assert append(engine, "t", *OTHERS[other], key="k") == deduped("t", 1, 1, differs=True)
    with pytest.raises(IdempotencyConflictError) as refused:
        append(engine, "t", *OTHERS[other], key="k", check=True)
    assert refused.value.detail == {"topic": "t", "first_seq": 1, "last_seq": 1}
    assert len(values(engine, "t")) == 1


@pytest.mark.parametrize("restarted", ["no", "from the log", "from a snapshot"])
@pytest.mark.parametrize("company", [Record.of(0), Record.of(0, tag="t")], ids=["all plain", "one with a tag"])
def test_single_records_that_share_a_block_are_compared_each(
    disk: FakeDisk, clock: ManualClock, company: Record, restarted: str
) -> None:
    engine = open_engine(disk, clock)
    callers = prepared(engine)
    plain = Record(msgspec.Raw(b'{"a": 1}'))
    asked = [("k", plain), (None, company), ("l", Record.of(2))]
    assert all([callers.ask_record("t", record, key) for key, record in asked])
    flush(engine)
    if restarted == "from a snapshot":
        checkpoint(engine)
    if restarted != "no":
        engine = open_engine(killed(disk), clock)
    assert append(engine, "t", plain, key="k", check=True) == deduped("t", 2, 2)
    assert append(engine, "t", 2, key="l", check=True) == deduped("t", 4, 4)
    for change in ({"data": msgspec.Raw(b'{"a":1}')}, {"tag": "t"}, {"node": "n"}, {"meta": msgspec.Raw(b'{"m":1}')}):
        assert append(engine, "t", msgspec.structs.replace(plain, **change), key="k").differs, change
    assert append(engine, "t", plain, key="k", batch_node="n").differs
    assert append(engine, "t", plain, key="l").differs


@pytest.mark.parametrize("count", [1, 2, 1200])
def test_a_batch_is_compared_as_a_whole(engine: Engine, count: int) -> None:
    numbers = list(range(count))
    append(engine, "t", *numbers, key="k", batch_node="n")
    assert append(engine, "t", *numbers, key="k", batch_node="n", check=True) == deduped("t", 1, count)
    for others, node in (([*numbers[:-1], 9999], "n"), (numbers[:-1] or [1, 2], "n"), (numbers, None)):
        assert append(engine, "t", *others, key="k", batch_node=node).differs


def test_the_node_of_a_batch_is_that_of_its_records(engine: Engine) -> None:
    append(engine, "t", 1, key="k", batch_node="n")
    assert not append(engine, "t", 1, key="k", node="n").differs


def test_a_meta_of_null_is_none(engine: Engine) -> None:
    append(engine, "t", 1, key="k")
    again = append(engine, "t", Record(msgspec.Raw(b"1"), meta=msgspec.Raw(b"null")), key="k")
    assert again == deduped("t", 1, 1)


def test_what_was_deleted_is_still_compared(engine: Engine) -> None:
    append(engine, "t", 1, key="k")
    delete(engine, "t", before_seq=2)
    assert append(engine, "t", 2, key="k").differs
    assert not append(engine, "t", 1, key="k").differs


def test_one_that_is_on_its_way_is_compared_when_it_is_there(engine: Engine) -> None:
    put(engine, "t")
    hold(engine)
    first = ask_append(engine, "t", 1, 2, key="k")
    same, other = ask_append(engine, "t", 1, 2, key="k", check=True), ask_append(engine, "t", 1, 3, key="k", check=True)
    assert (same, other) == ([], [])
    flush(engine)
    assert one(first, AppendResult).first_seq == 1
    assert same == [deduped("t", 1, 2)]
    assert isinstance(other[0], IdempotencyConflictError)


def test_a_check_without_a_key_changes_nothing(engine: Engine) -> None:
    assert append(engine, "t", 1, check=True).first_seq == 1
    assert append(engine, "t", 1, check=True).first_seq == 2


# How many


def test_a_topic_remembers_so_many_keys_and_forgets_none_early(clock: ManualClock) -> None:
    engine = open_engine(clock=clock, limits=Limits(max_idempotency_keys=3))
    for number in range(3):
        append(engine, "t", number, key=f"k{number}")
    clock.advance(60_000)
    with pytest.raises(ThrottledError) as refused:
        append(engine, "t", "new", key="k3")
    assert refused.value.detail == {"limit": "max_idempotency_keys", "max": 3}
    # Records without a new key are not affected.
    assert append(engine, "t", 0, key="k0").deduped
    assert append(engine, "t", "plain").last_seq == 4
    assert append(engine, "other", "new", key="k3").last_seq == 1
    clock.advance(60_001)
    assert not append(engine, "t", "new", key="k3").deduped
    assert values(engine, "t") == [0, 1, 2, "plain", "new"]


def test_single_records_that_share_a_block_are_counted_by_their_keys() -> None:
    engine = open_engine(limits=Limits(max_idempotency_keys=GROUP_MAX + 1))
    callers = prepared(engine)
    assert all(callers.ask_keyed("t", f"k{number}") for number in range(GROUP_MAX))
    flush(engine)
    gather(engine)
    answer = ask_append(engine, "t", 1, key="c")
    flush(engine)
    assert one(answer, AppendResult).last_seq == GROUP_MAX + 2, "the first has no key"
    with pytest.raises(ThrottledError):
        append(engine, "t", 1, key="d")
    assert append(engine, "t", 1, key="c").deduped


def test_no_tick_brings_more_keys_than_a_topic_may_have() -> None:
    engine = open_engine(limits=Limits(max_idempotency_keys=2))
    prepared(engine)
    answers = [ask_append(engine, "t", 1, key=key) for key in "ab"]
    with pytest.raises(ThrottledError):
        ask_append(engine, "t", 1, key="c")
    flush(engine)
    assert [one(answer, AppendResult).first_seq for answer in answers] == [2, 3]


def test_the_second_block_of_a_tick_is_counted_as_the_first() -> None:
    engine = open_engine(limits=Limits(max_idempotency_keys=GROUP_MAX + 1))
    callers = prepared(engine)
    assert all([callers.ask_keyed("t", f"k{number}") for number in range(3 * GROUP_MAX)])
    flush(engine)
    assert callers.alone == [f"k{number}" for number in range(GROUP_MAX, 3 * GROUP_MAX)]
    refused = [names for names, outcome in callers.outcomes if isinstance(outcome, ThrottledError)]
    assert refused == [[f"k{number}"] for number in range(GROUP_MAX + 1, 3 * GROUP_MAX)]
    gather(engine)
    assert callers.ask("t", "plain", Record.of(1))
    flush(engine)
    assert callers.alone[-1] != "plain", "a record without a key needs no room for one"


@pytest.mark.parametrize("through_snapshot", [False, True])
def test_a_start_with_a_lower_limit_keeps_the_keys_it_finds(
    disk: FakeDisk, clock: ManualClock, through_snapshot: bool
) -> None:
    engine = open_engine(disk, clock)
    for number in range(5):
        append(engine, "t", number, key=f"k{number}")
    if through_snapshot:
        checkpoint(engine)
    again = open_engine(killed(disk), clock, limits=Limits(max_idempotency_keys=2))
    assert all(append(again, "t", number, key=f"k{number}").deduped for number in range(5))
    with pytest.raises(ThrottledError):
        append(again, "t", "new", key="new")
