"""Creating, changing and deleting routers: refusals, results, and the order of effects."""

import pytest

from tests.unit.conftest import (
    append,
    ask_append,
    ask_drop,
    ask_put,
    committers,
    drop,
    flush,
    hold,
    killed,
    logged,
    open_engine,
    put,
    read,
    topic,
    values,
)
from tests.unit.routers.conftest import EXACTLY_ONCE, ask_route, ask_unroute, go_on, route, router, unroute, wish_of
from topics.engine.engine import Engine
from topics.log.frame import FrameKind
from topics.model.errors import (
    InvalidRequestError,
    ReadOnlyError,
    RouterCycleError,
    RouterNotFoundError,
    ShuttingDownError,
    ThrottledError,
    TopicExistsIncompatibleError,
    TopicNotFoundError,
    TopicsError,
)
from topics.model.limits import Limits
from topics.model.router_rules import TagMatch
from topics.model.topic_config import Discard
from topics.routers.routers import RouterPutResult, RouterRemoveResult
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem


def test_topics_are_made_where_they_are_missing(engine: Engine) -> None:
    assert route(engine, "a", "b").created
    assert {info.topic for info in engine.list_topics()} == {"a", "b"}


def test_a_dest_that_must_exist(engine: Engine) -> None:
    with pytest.raises(TopicNotFoundError):
        route(engine, "a", "b", create_dest=False)
    assert engine.list_topics() == []
    put(engine, "b")
    assert route(engine, "a", "b", create_dest=False).created


@pytest.mark.parametrize("name", ["", "-a", "a b", "ä", "a" * 256, "a/b"])
def test_names(engine: Engine, name: str) -> None:
    with pytest.raises(InvalidRequestError):
        engine.put_router(name, wish_of("a", "b"), lambda answer: None)
    assert not engine.core.directory.resident


@pytest.mark.parametrize(("source", "dest"), [("a", "a"), ("", "b"), ("a", "b c")])
def test_topics_that_cannot_be_connected(engine: Engine, source: str, dest: str) -> None:
    with pytest.raises(InvalidRequestError):
        route(engine, source, dest, "r")
    assert not engine.core.directory.resident


def test_a_cycle_names_its_topics(engine: Engine) -> None:
    route(engine, "a", "b")
    route(engine, "b", "c")
    with pytest.raises(RouterCycleError) as refused:
        route(engine, "c", "a")
    assert refused.value.detail == {"cycle": ["c", "a", "b", "c"]}


def test_a_cycle_that_is_allowed_stays_allowed(engine: Engine) -> None:
    route(engine, "a", "b")
    route(engine, "b", "a", allow_cycle=True)
    assert router(engine, "a->b").cyclic and router(engine, "b->a").cyclic
    with pytest.raises(RouterCycleError):
        route(engine, "b", "a")
    with pytest.raises(RouterCycleError):
        route(engine, "a", "b", preserve_tag=False)
    unroute(engine, "b->a")
    assert not router(engine, "a->b").cyclic


def test_a_destination_has_one_source(engine: Engine) -> None:
    route(engine, "a", "b")
    with pytest.raises(TopicExistsIncompatibleError) as refused:
        route(engine, "c", "b")
    assert refused.value.detail["reason"] == "router_dest_fan_in"
    assert "c" not in engine.core.directory
    assert route(engine, "a", "b", "second").created
    unroute(engine, "a->b")
    unroute(engine, "second")
    assert route(engine, "c", "b").created


def test_two_routers_between_the_same_topics_both_copy(engine: Engine) -> None:
    route(engine, "a", "b", filter=TagMatch("x"))
    route(engine, "a", "b", "second", filter=TagMatch("y"))
    append(engine, "a", 1, tag="x")
    append(engine, "a", 2, tag="y")
    assert values(engine, "b") == [1, 2]


def test_a_router_goes_nowhere_else(engine: Engine) -> None:
    route(engine, "a", "b", "r")
    for source, dest in (("a", "c"), ("c", "b")):
        with pytest.raises(TopicExistsIncompatibleError) as refused:
            route(engine, source, dest, "r")
        assert refused.value.detail["reason"] == "router_repoint_forbidden"
    assert "c" not in engine.core.directory


def test_a_change_keeps_cursor_and_total(engine: Engine) -> None:
    route(engine, "a", "b")
    append(engine, "a", 1, 2)
    changed = route(engine, "a", "b", filter=TagMatch("x"), from_seq=0)
    assert not changed.created
    assert (changed.info.cursor, changed.info.forwarded_total) == (2, 2)
    append(engine, "a", 3, tag="y")
    assert values(engine, "b") == [1, 2]


def test_the_same_again_logs_nothing(engine: Engine) -> None:
    route(engine, "a", "b")
    before = logged(engine)
    assert not route(engine, "a", "b").created
    assert logged(engine) == before


def test_the_cap_counts_new_routers_only() -> None:
    engine = open_engine(limits=Limits(max_routers=1))
    route(engine, "a", "b")
    with pytest.raises(ThrottledError) as refused:
        route(engine, "c", "d")
    assert refused.value.detail == {"limit": "max_routers", "max": 1}
    assert set(engine.core.directory.resident) == {"a", "b"}
    assert not route(engine, "a", "b", preserve_node=False).created


def test_a_cap_of_topics_is_met_before_any_is_made() -> None:
    engine = open_engine(limits=Limits(max_topics=1, max_routers=0))
    with pytest.raises(ThrottledError):
        route(engine, "a", "b")
    assert not engine.core.directory.resident


def test_from_seq_beyond_the_head(engine: Engine) -> None:
    append(engine, "a", 1)
    with pytest.raises(InvalidRequestError) as refused:
        route(engine, "a", "b", from_seq=2)
    assert refused.value.detail == {"field": "from_seq", "head_seq": 1}


def test_removing_one_that_is_not_there(engine: Engine) -> None:
    assert unroute(engine, "r") == RouterRemoveResult("r", False)
    with pytest.raises(RouterNotFoundError):
        engine.router("r")


def test_a_removed_router_forwards_nothing_more(engine: Engine) -> None:
    route(engine, "a", "b")
    append(engine, "a", 1)
    assert unroute(engine, "a->b").deleted
    append(engine, "a", 2)
    assert values(engine, "b") == [1]
    route(engine, "a", "b")
    append(engine, "a", 3)
    assert values(engine, "b") == [1, 3]


def test_a_removal_waits_for_what_is_on_its_way(engine: Engine) -> None:
    route(engine, "a", "b")
    committer = committers(engine)[0]
    committer.hold = True
    appended = ask_append(engine, "a", 1)
    batch, committer._held = committer._held, []
    engine.core.shards[0].writer.commit(batch, engine.core.shards[0].finalize)
    assert len(appended) == 1 and router(engine, "a->b").inflight
    removed = ask_unroute(engine, "a->b")
    again = ask_route(engine, "a", "b")
    assert not removed
    flush(engine)
    assert removed == [RouterRemoveResult("a->b", True)]
    assert values(engine, "b") == [1]
    (made,) = again
    assert isinstance(made, RouterPutResult) and made.created


def test_changes_take_turns(engine: Engine) -> None:
    hold(engine)
    answers = [
        ask_route(engine, "a", "b"),
        ask_route(engine, "c", "b"),
        ask_route(engine, "a", "b", preserve_tag=False),
    ]
    assert answers == [[], [], []]
    flush(engine)
    first, second, third = (answer for (answer,) in answers)
    assert isinstance(first, RouterPutResult) and first.created
    assert isinstance(second, TopicExistsIncompatibleError)
    assert isinstance(third, RouterPutResult) and not third.created


def test_a_topic_that_is_being_created_is_waited_for(engine: Engine) -> None:
    hold(engine)
    made = ask_put(engine, "b", cap_records=7)
    asked = ask_route(engine, "a", "b")
    flush(engine)
    assert len(made) == 1
    assert isinstance(asked[0], RouterPutResult)
    assert topic(engine, "b").config.cap_records == 7


def test_a_topic_that_is_being_deleted_is_waited_for(engine: Engine) -> None:
    append(engine, "b", 1)
    hold(engine)
    dropped = ask_drop(engine, "b")
    asked = ask_route(engine, "a", "b")
    flush(engine)
    assert len(dropped) == 1
    assert isinstance(asked[0], RouterPutResult)
    assert values(engine, "b") == []


def test_a_router_whose_destination_goes_meanwhile(engine: Engine) -> None:
    put(engine, "a")
    put(engine, "b")
    hold(engine)
    asked = ask_route(engine, "a", "b")
    dropped = ask_drop(engine, "b")
    flush(engine)
    assert isinstance(asked[0], RouterPutResult)
    assert dropped[0].routers_removed == ["a->b"]  # type: ignore[attr-defined]
    assert not engine.list_routers()


def test_deleting_a_topic_takes_its_routers_along(engine: Engine, disk: FakeDisk) -> None:
    route(engine, "a", "b")
    route(engine, "b", "c")
    route(engine, "a", "d")
    assert drop(engine, "b").routers_removed == ["a->b", "b->c"]
    append(engine, "a", 1)
    assert values(engine, "d") == [1]
    assert [info.router for info in open_engine(killed(disk)).list_routers()] == ["a->d"]


def test_a_topic_of_the_same_name_is_another_one(engine: Engine, disk: FakeDisk) -> None:
    route(engine, "a", "b")
    append(engine, "a", 1)
    drop(engine, "a")
    append(engine, "a", "new")
    assert values(engine, "b") == [1]
    again = open_engine(killed(disk))
    assert again.list_routers() == []
    assert values(again, "b") == [1]


def test_lists(engine: Engine) -> None:
    for name in ("b", "a", "c"):
        route(engine, "s", name, name)
    assert [info.router for info in engine.list_routers()] == ["a", "b", "c"]
    assert [info.router for info in engine.list_routers(after="a", limit=1)] == ["b"]
    assert [info.router for info in engine.list_routers(prefix="c")] == ["c"]
    assert [info.router for info in engine.list_routers(requested=lambda info: info.dest != "b")] == ["a", "c"]


def test_a_closing_engine_takes_no_changes(engine: Engine) -> None:
    engine.core.closed = True
    for ask in (lambda: route(engine, "a", "b"), lambda: unroute(engine, "r")):
        with pytest.raises(ShuttingDownError):
            ask()


def test_a_failed_sync_leaves_no_router(disk: FakeDisk) -> None:
    faulty = FaultyFileSystem(disk)
    engine = open_engine(faulty)
    put(engine, "a")
    put(engine, "b")
    faulty.plan = FaultPlan(len(faulty.trace) + 2, Fault.EIO, lasting=True)
    (answer,) = ask_route(engine, "a", "b")
    assert isinstance(answer, ReadOnlyError)
    assert engine.list_routers() == []
    with pytest.raises(TopicsError):
        route(engine, "a", "b")


def test_definitions_cursors_and_totals_survive(engine: Engine, disk: FakeDisk) -> None:
    put(engine, "full", cap_records=1, discard=Discard.REJECT)
    route(engine, "a", "b", preserve_node=False, preserve_tag=False, filter=TagMatch("x", True), allow_cycle=True)
    route(engine, "a", "c", guarantee=EXACTLY_ONCE)
    route(engine, "a", "full")
    append(engine, "a", 1, 2, tag="xy")
    append(engine, "a", 3, tag="z")
    expected = engine.list_routers()
    for again in (open_engine(killed(disk.clone())), clean_restart(engine, disk)):
        found = again.list_routers()
        assert [(i.router, i.rules, i.forwarded_total) for i in found] == [
            (i.router, i.rules, i.forwarded_total) for i in expected
        ]
        assert again.router("a->full").cursor == 1
        go_on(again)
        assert again.router("a->full").blocked
        assert read(again, "full").records() == read(engine, "full").records()


def clean_restart(engine: Engine, disk: FakeDisk) -> Engine:
    engine.close_inline()
    return open_engine(disk.clone())


def test_an_unrouted_router_stays_gone(engine: Engine, disk: FakeDisk) -> None:
    route(engine, "a", "b")
    unroute(engine, "a->b")
    assert FrameKind.UNROUTE in logged(engine)
    assert open_engine(killed(disk)).list_routers() == []
