"""Single records that are not decoded yet are gathered, read together at the end of the tick, and share a block."""

from collections.abc import Sequence
from functools import partial

import pytest

from tests.unit.conftest import (
    ask_append,
    ask_delete,
    ask_drop,
    batch_of,
    flush,
    killed,
    logged,
    one,
    open_engine,
    put,
    topic,
    values,
)
from tests.unit.engine.test_coalesce import gather, known_as_plain
from topics.engine.coalesce import GROUP_MAX, DecodedAppends
from topics.engine.engine import Engine
from topics.engine.results import AppendResult, deduped
from topics.log.frame import FrameKind
from topics.model.errors import ReadOnlyError, TopicNotEmptyError, TopicsError
from topics.model.limits import Limits
from topics.model.records import Record
from topics.model.topic_config import Discard
from topics.testing import FakeDisk, FaultPlan, FaultyFileSystem

Asked = tuple[object, str | None]
"""A value to append, and a key."""


class Source:
    """A source of records: callers are the records they request. A caller with None cannot be read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.reads = 0
        self.alone: list[Asked] = []
        self.outcomes: list[tuple[list[Asked], object]] = []

    def ask(self, *callers: Asked, name: str = "t") -> bool:
        return self._engine.append_requests(name, callers, self)

    def decode(self, callers: list[Asked]) -> DecodedAppends | None:
        self.reads += 1
        if any(value is None for value, _ in callers):
            return None
        keys = [key for _, key in callers]
        return DecodedAppends(
            [Record.of(value) for value, _ in callers], None if keys.count(None) == len(keys) else keys
        )

    def handle_each(self, callers: list[Asked]) -> None:
        self.alone += callers

    def answer(self, callers: list[Asked], outcome: AppendResult | TopicsError) -> None:
        self.outcomes.append((callers, outcome))


def gathering(engine: Engine, **config: object) -> Source:
    """A plain topic with one record."""
    known_as_plain(engine, "t", **config)
    return Source(engine)


def reported(source: Source) -> list[tuple[int, int]]:
    """The number of callers of each block, and its first seq."""
    return [(len(callers), one([outcome], AppendResult).first_seq) for callers, outcome in source.outcomes]


def plain(values: Sequence[object]) -> list[Asked]:
    return [(value, None) for value in values]


def test_they_are_read_once_and_are_one_frame(engine: Engine) -> None:
    source = gathering(engine)
    before = logged(engine).count(FrameKind.APPEND)
    assert source.ask(*plain("a")) and source.ask(*plain("bc")) and source.ask(*plain("d"))
    assert source.reads == 0
    flush(engine)
    assert (source.reads, reported(source)) == (1, [(4, 2)])
    assert source.outcomes[0][0] == plain("abcd")
    assert values(engine, "t") == [0, "a", "b", "c", "d"]
    assert logged(engine).count(FrameKind.APPEND) == before + 1


def test_where_one_cannot_be_read_all_are_taken_one_by_one_in_their_order(engine: Engine) -> None:
    source = gathering(engine)
    source.ask(("a", None), (None, None), ("b", None))
    flush(engine)
    assert source.alone == [("a", None), (None, None), ("b", None)]
    assert (source.outcomes, values(engine, "t")) == ([], [0])


@pytest.mark.parametrize("wrong", ["x" * 200, {"long": "y" * 100}])
def test_where_one_is_too_large_all_are_taken_one_by_one(wrong: object) -> None:
    engine = open_engine(limits=Limits(max_record_bytes=100))
    source = gathering(engine)
    source.ask(("a", None), (wrong, None))
    flush(engine)
    assert len(source.alone) == 2 and values(engine, "t") == [0]


def test_a_tag_that_is_right_is_shared_and_one_that_is_not_is_left_to_be_refused(engine: Engine) -> None:
    source = gathering(engine)
    records = [Record.of(1, tag="t"), Record.of(2)]
    source.decode = lambda callers: DecodedAppends(records, None)  # type: ignore[method-assign]
    source.ask(*plain("ab"))
    flush(engine)
    assert (reported(source), values(engine, "t")) == ([(2, 2)], [0, 1, 2])
    records[0] = Record.of(1, tag="t" * 10_000)
    source.ask(*plain("ab"))
    flush(engine)
    assert (len(source.alone), values(engine, "t")) == (2, [0, 1, 2])


def test_new_keys_are_taken_and_known_after_a_kill(engine: Engine, disk: FakeDisk) -> None:
    source = gathering(engine)
    source.ask(("a", "k"), ("b", None), ("c", "l"))
    flush(engine)
    assert reported(source) == [(3, 2)]
    for each in (engine, open_engine(killed(disk))):
        first, last = ask_append(each, "t", "a", key="k"), ask_append(each, "t", "other", key="l")
        flush(each)
        assert one(first, AppendResult) == deduped("t", 2, 2)
        assert one(last, AppendResult) == deduped("t", 4, 4, differs=True)


class OneByOne(Source):
    """Records that are taken one by one share a block after all, in the usual way."""

    def handle_each(self, callers: list[Asked]) -> None:
        super().handle_each(callers)
        for value, key in callers:
            if value is not None:
                done = partial(self.answer, [(value, key)])
                self._engine.append("t", batch_of(value, key=key), done)


@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("again", [("a",), ("a", "b")], ids=["one", "several"])
def test_a_key_that_nobody_has_read_yet_is_used_once(engine: Engine, readable: bool, again: tuple[str, ...]) -> None:
    gathering(engine)
    source = OneByOne(engine)
    source.ask(("a", "k"), ("b" if readable else None, "l"))
    repeated = ask_append(engine, "t", *again, key="k")
    flush(engine)
    assert one(repeated, AppendResult) == deduped("t", 2, 2, differs=len(again) > 1)
    assert values(engine, "t") == ([0, "a", "b"] if readable else [0, "a"])


@pytest.mark.parametrize("between", ["unread", "lone"])
def test_those_who_are_taken_one_by_one_are_not_forgotten_behind_the_next(engine: Engine, between: str) -> None:
    gathering(engine)
    first, second = OneByOne(engine), Source(engine)
    first.ask(("a", "k"), (None, None))
    if between == "unread":
        assert second.ask(("b", None))
    else:
        ask_append(engine, "t", "b")
    repeated = ask_append(engine, "t", "a", key="k")
    flush(engine)
    assert one(repeated, AppendResult) == deduped("t", 2, 2)
    assert values(engine, "t") == [0, "a", "b"]


@pytest.mark.parametrize("readable", [True, False])
def test_a_topic_with_records_that_nobody_has_read_yet_is_not_empty(engine: Engine, readable: bool) -> None:
    gathering(engine)
    source = OneByOne(engine)
    ask_delete(engine, "t", before_seq=2)
    flush(engine)
    gather(engine)
    source.ask(("a", None), ("b" if readable else None, None))
    with pytest.raises(TopicNotEmptyError):
        ask_drop(engine, "t", if_empty=True)
    flush(engine)
    assert values(engine, "t") == (["a", "b"] if readable else ["a"])


@pytest.mark.parametrize("asked", [[("a", "k"), ("b", "k")], [("a", "known")], [("a", "on its way")], [("a", "")]])
@pytest.mark.parametrize("more", [[], [("z", "new")], [("z", None)]])
def test_where_a_key_is_taken_or_none_all_are_taken_one_by_one(
    engine: Engine, asked: list[Asked], more: list[Asked]
) -> None:
    source = gathering(engine)
    ask_append(engine, "t", 1, key="known")
    flush(engine)
    ask_append(engine, "t", 2, key="on its way")
    source.ask(*asked, *more)
    flush(engine)
    assert source.alone == [*asked, *more]
    assert "new" not in (topic(engine, "t").keys or {})
    assert values(engine, "t") == [0, 1, 2]


def test_no_more_keys_are_taken_than_there_is_room_for() -> None:
    engine = open_engine(limits=Limits(max_idempotency_keys=2))
    source = gathering(engine)
    source.ask(("a", "1"), ("b", "2"), ("c", "3"))
    flush(engine)
    assert len(source.alone) == 3 and topic(engine, "t").keys is None
    source.ask(("a", "1"), ("b", "2"))
    flush(engine)
    assert values(engine, "t") == [0, "a", "b"]


def test_keys_are_nothing_new_where_the_topic_remembers_none(engine: Engine) -> None:
    source = gathering(engine, idempotency_window_ms=0)
    source.ask(("a", "k"))
    flush(engine)
    assert source.alone == [("a", "k")]


def test_who_comes_another_way_comes_behind_them_and_those_after_it_behind_it(engine: Engine) -> None:
    source, other = gathering(engine), Source(engine)
    source.ask(*plain("ab"))
    answers = ask_append(engine, "t", "c")
    assert other.ask(*plain("d")) is False, "one that has come by itself is waiting: this one shares its block"
    ask_append(engine, "t", "d")
    flush(engine)
    source.ask(*plain("e"))
    other.ask(*plain("f"))
    source.ask(*plain("g"))
    flush(engine)
    assert one(answers, AppendResult).first_seq == 4
    assert values(engine, "t") == [0, *"abcdefg"]
    assert (reported(source), reported(other)) == ([(2, 2), (1, 6), (1, 8)], [(1, 7)])


@pytest.mark.parametrize("full", [False, True])
def test_those_who_are_taken_one_by_one_are_staged_before_who_made_them_so(engine: Engine, full: bool) -> None:
    """They open their own group while another one is about to be opened, and must not be forgotten for it."""
    source, other = gathering(engine), Source(engine)
    singles: list[object] = []
    source.handle_each = lambda callers: singles.extend(  # type: ignore[method-assign]
        ask_append(engine, "t", value) for value, _ in callers if value is not None
    )
    source.ask(("a", None), (None, None), ("b", None))
    follows = [*plain(range(GROUP_MAX))] if full else plain("c")
    assert (source if full else other).ask(*follows)
    flush(engine)
    assert len(singles) == 2
    assert values(engine, "t") == [0, "a", "b", *(value for value, _ in follows)]


def test_a_group_has_its_bound(engine: Engine) -> None:
    source = gathering(engine)
    source.ask(*plain(range(GROUP_MAX - 1)))
    source.ask(*plain([1, 2]))
    flush(engine)
    assert reported(source) == [(GROUP_MAX - 1, 2), (2, GROUP_MAX + 1)]


def test_lone_request_is_a_group_of_one(engine: Engine) -> None:
    source = gathering(engine)
    assert source.ask(("a", None))
    assert source.reads == 0
    flush(engine)
    assert (source.reads, reported(source)) == (1, [(1, 2)])
    gather(engine)
    assert source.ask(("b", "k"))
    flush(engine)
    assert reported(source) == [(1, 2), (1, 3)]
    assert [block.key for block in topic(engine, "t").tail[-2:]] == [None, "k"]


@pytest.mark.parametrize("config", [{"discard": Discard.REJECT, "cap_records": 5}, {"ttl_ms": 1000}])
def test_a_topic_that_is_not_plain_takes_none(engine: Engine, config: dict[str, object]) -> None:
    put(engine, "other", **config)
    source = gathering(engine)
    assert not source.ask(*plain("ab"), name="other")
    assert not source.ask(*plain("ab"), name="nowhere")
    engine.core.closed = True
    assert not source.ask(*plain("ab"))


def test_a_topic_that_goes_in_the_same_tick_takes_them_first(engine: Engine) -> None:
    source = gathering(engine)
    source.ask(*plain("ab"))
    ask_drop(engine, "t")
    flush(engine)
    assert reported(source) == [(2, 2)]


def test_a_failure_is_reported_to_all_of_them() -> None:
    fs = FaultyFileSystem(FakeDisk())
    engine = open_engine(fs)
    source = gathering(engine)
    source.ask(("a", "k"), ("b", None))
    fs.plan = FaultPlan(call=fs.calls + 1)
    flush(engine)
    ((callers, outcome),) = source.outcomes
    assert (len(callers), type(outcome)) == (2, ReadOnlyError)
    assert values(engine, "t") == [0] and topic(engine, "t").keys is None
