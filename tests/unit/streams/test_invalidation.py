"""Touches: a waiter for a row, a query or a table is notified of its changes, and of others where the server cannot
decide."""

from typing import Any

import pytest

from tests.unit.conftest import append as write
from tests.unit.conftest import put
from tests.unit.streams.conftest import append, delete
from tests.unit.streams.describing import JSON, profile
from tests.unit.streams.invalidation_world import Timers, Waiting, activate, change, touch_of, touched_stream
from topics.model.errors import InvalidRequestError
from topics.model.topic_config import TopicConfigPatch
from topics.schema.invalidation_keys import parse_activation, parse_wait
from topics.streams.invalidation import Journal, Waiter
from topics.streams.streams import Streams, inline_streams
from topics.testing import ManualClock
from topics_protocol.touch_keys import membership_key, projection_key, table_key, watch_key

POSTS, USERS = table_key("posts"), table_key("users")
FLUSH = 100


@pytest.fixture
def timers(clock: ManualClock) -> Timers:
    return Timers(clock)


@pytest.fixture
def streams(streams: Streams, timers: Timers) -> Streams:
    """The streams of other tests, with delayed calls on timers."""
    return inline_streams(streams.engine, later=timers.later)


def test_touches_are_on_where_the_profile_reports_it(streams: Streams) -> None:
    touched_stream(streams)
    profile(streams, "s", "state-protocol", touch={"enabled": False})
    assert streams.invalidation.of(streams.topic("s")) is None
    put(streams.engine, "t")
    assert streams.invalidation.of(streams.topic("t")) is None


def test_a_table_is_touched_by_every_change_of_it_and_by_no_other(streams: Streams, timers: Timers) -> None:
    touch = touched_stream(streams)
    posts, users = Waiting(touch, POSTS), Waiting(touch, USERS)
    change(streams, "insert", after={"a": 1})
    assert not posts.outcomes, "changes are told together, after a moment"
    timers.advance(FLUSH)
    assert posts.touched and not users.outcomes
    (outcome,) = posts.outcomes
    assert outcome.cursor == f"{touch.journal.epoch}:1" and outcome.kind == "fineKey"
    assert outcome.generation.last_entry == 0


def test_a_mark_touches_nothing(streams: Streams, timers: Timers) -> None:
    touch = touched_stream(streams)
    waiting = Waiting(touch, POSTS)
    append(streams, "s", b'{"headers":{"control":"reset"}}', JSON)
    timers.advance(1000)
    assert not waiting.outcomes and touch.is_caught_up and touch.journal.last.number == 0


def test_changes_of_the_other_protocol_touch_as_well(streams: Streams, timers: Timers) -> None:
    touch = touched_stream(streams)
    waiting = Waiting(touch, POSTS)
    write(streams.engine, "s", {"type": "posts", "key": "1", "value": {}, "headers": {"operation": "insert"}})
    timers.advance(FLUSH)
    assert waiting.touched


def test_change_after_the_cursor_and_before_the_wait_is_reported(streams: Streams, timers: Timers) -> None:
    touch = touched_stream(streams)
    first = touch.journal.cursor
    change(streams, "insert", after={})
    timers.advance(FLUSH)
    change(streams, "insert", after={}, entity="users")
    timers.advance(FLUSH)
    second = f"{touch.journal.epoch}:1"
    assert Waiting(touch, POSTS, cursor=first).touched
    assert not Waiting(touch, POSTS, cursor=second).outcomes
    assert Waiting(touch, USERS, cursor=second).touched
    assert not Waiting(touch, USERS).outcomes


def test_queries_hear_of_rows_before_and_after(streams: Streams, timers: Timers) -> None:
    touch = touched_stream(streams)
    by_user = activate(touch, "tenant", "user")
    used: dict[str, Any] = {"templateIdsUsed": [by_user]}
    was, now, other = (Waiting(touch, watch_key(by_user, ["t", user]), **used) for user in ("1", "2", "3"))
    change(streams, "update", {"tenant": "t", "user": "1"}, {"tenant": "t", "user": "2"})
    timers.advance(FLUSH)
    assert (was.touched, now.touched, other.touched) == (True, True, False)


def test_membership_key_is_touched_by_added_and_removed_rows(streams: Streams, timers: Timers) -> None:
    touch = touched_stream(streams)
    by_tenant = activate(touch, "tenant")
    key = membership_key(by_tenant, ["t"])
    used: dict[str, Any] = {"templateIdsUsed": [by_tenant]}
    for operation, before, after, touched in (
        ("update", {"tenant": "t", "title": "a"}, {"tenant": "t", "title": "b"}, False),
        ("insert", None, {"tenant": "t"}, True),
        ("update", {"tenant": "t"}, {"tenant": "u"}, True),
        ("update", {"tenant": "u"}, {"tenant": "t"}, True),
        ("delete", {"tenant": "t"}, None, True),
        ("insert", None, {"tenant": "u"}, False),
        ("insert", None, {"tenant": None}, False),
    ):
        waiting = Waiting(touch, key, **used)
        change(streams, operation, before, after)
        timers.advance(FLUSH)
        assert waiting.touched == touched, (operation, before, after)


def test_projection_key_is_touched_by_its_field(streams: Streams, timers: Timers) -> None:
    touch = touched_stream(streams)
    by_tenant = activate(touch, "tenant")
    used: dict[str, Any] = {"templateIdsUsed": [by_tenant]}
    title = Waiting(touch, projection_key(by_tenant, "title", ["t"]), **used)
    size = Waiting(touch, projection_key(by_tenant, "size", ["t"]), **used)
    change(streams, "update", {"tenant": "t", "title": "a", "size": 1}, {"tenant": "t", "title": "b", "size": 1})
    timers.advance(FLUSH)
    assert (title.touched, size.touched) == (True, False)


@pytest.mark.parametrize(("missing", "wakes"), [("coarse", True), ("skipBefore", False)])
def test_a_change_that_does_not_state_what_was_before(
    streams: Streams, timers: Timers, missing: str, wakes: bool
) -> None:
    touch = touched_stream(streams, onMissingBefore=missing)
    by_tenant = activate(touch, "tenant")
    declared = Waiting(touch, watch_key(by_tenant, ["other"]), templateIdsUsed=[by_tenant])
    silent = Waiting(touch, watch_key(by_tenant, ["other"]))
    now = Waiting(touch, watch_key(by_tenant, ["t"]), templateIdsUsed=[by_tenant])
    change(streams, "update", None, {"tenant": "t"})
    timers.advance(FLUSH)
    assert (declared.touched, silent.touched, now.touched) == (wakes, wakes, True)


def test_a_profile_may_demand_what_was_before(streams: Streams) -> None:
    touched_stream(streams, onMissingBefore="error")
    with pytest.raises(InvalidRequestError, match="old_value"):
        change(streams, "update", None, {})
    change(streams, "update", {}, {})
    change(streams, "insert", None, {})


def test_over_the_budget_queries_hear_of_any_change_of_their_table(streams: Streams, timers: Timers) -> None:
    touch = touched_stream(streams, fineTouchBudgetPerBatch=3)
    by_tenant = activate(touch, "tenant")
    waiting = Waiting(touch, watch_key(by_tenant, ["other"]), templateIdsUsed=[by_tenant])
    change(streams, "insert", None, {"tenant": "t"})
    timers.advance(FLUSH)
    assert not waiting.outcomes
    change(streams, "insert", None, {"tenant": "t", "a": 1, "b": 2, "c": 3})
    timers.advance(FLUSH)
    assert waiting.touched and touch.counters.dropped > 0


def test_far_behind_only_tables_are_distinguished(streams: Streams, timers: Timers) -> None:
    touch = touched_stream(
        streams, lagDegradeFineTouchesAtSourceOffsets=10, lagRecoverFineTouchesAtSourceOffsets=0,
        lagReservedFineTouchBudgetPerBatch=0,
    )  # fmt: skip
    by_tenant = activate(touch, "tenant")
    waiting = Waiting(touch, watch_key(by_tenant, ["other"]), templateIdsUsed=[by_tenant])
    entry = b'{"type":"posts","key":"k","value":{"tenant":"t"},"headers":{"operation":"insert"}}'
    append(streams, "s", b"[%b]" % b",".join([entry] * 600), JSON)
    assert (touch.budget.mode, touch.lag > 0, touch.is_caught_up) == ("coarseOnly", True, False)
    assert Waiting(touch, POSTS, templateIdsUsed=[by_tenant]).end().kind == "templateKey"
    timers.advance(FLUSH)
    assert waiting.touched and (touch.budget.mode, touch.lag) == ("fine", 0)


def test_waits_that_ask_for_less(streams: Streams, timers: Timers) -> None:
    touch = touched_stream(streams)
    by_tenant = activate(touch, "tenant")
    key = watch_key(by_tenant, ["other"])
    coarse = Waiting(touch, key, templateIdsUsed=[by_tenant], interestMode="coarse")
    unknown = Waiting(touch, key, templateIdsUsed=["0" * 16])
    fine = Waiting(touch, key, templateIdsUsed=[by_tenant])
    change(streams, "insert", None, {"tenant": "t"})
    timers.advance(FLUSH)
    assert (coarse.touched, unknown.touched, fine.touched) == (True, True, False)
    assert {coarse.outcomes[0].kind, unknown.outcomes[0].kind} == {"tableKey"}


def test_changes_before_a_template_touch_old_cursors(streams: Streams, timers: Timers) -> None:
    touch = touched_stream(streams)
    begin = touch.journal.cursor
    change(streams, "insert", None, {"tenant": "t"})
    timers.advance(FLUSH)
    template = {"entity": "posts", "fields": [{"name": "tenant", "encoding": "string"}]}
    by_tenant = activate(touch, "tenant")
    key = watch_key(by_tenant, ["t"])
    assert Waiting(touch, key, cursor=begin, declareTemplates=[template]).touched
    assert not Waiting(touch, key, declareTemplates=[template]).outcomes
    change(streams, "insert", None, {"tenant": "t"})
    other = activate(touch, "user")
    waiting = Waiting(touch, watch_key(other, ["u"]), templateIdsUsed=[other])
    timers.advance(FLUSH)
    assert waiting.touched, "what was collected was not looked at for it"


def test_unused_template_is_deactivated_and_its_waiters_woken(streams: Streams, timers: Timers) -> None:
    touch = touched_stream(streams)
    short = activate(touch, "tenant", ttl_ms=1000)
    waiting = Waiting(touch, watch_key(short, ["t"]), templateIdsUsed=[short])
    timers.advance(2000)
    activate(touch, "user")
    timers.advance(FLUSH)
    assert len(touch.templates) == 1 and waiting.touched


def test_limits_of_templates(streams: Streams, timers: Timers) -> None:
    limits = {
        "maxActiveTemplatesPerEntity": 2, "maxActiveTemplatesPerStream": 3, "activationRateLimitPerMinute": 4,
    }  # fmt: skip
    touch = touched_stream(streams, templates=limits)

    def refused(entity: str, field: str, encoding: str = "string") -> str:
        body = b'{"templates":[{"entity":"%b","fields":[{"name":"%b","encoding":"%b"}]}]}'
        asked = parse_activation(body % (entity.encode(), field.encode(), encoding.encode()))
        ((_, refusal),) = touch.activate(asked)
        return refusal

    assert [refused("a", name) for name in "xyx"] == ["", "", ""]
    assert "entity" in refused("a", "z") and "encoding" in refused("a", "x", "bool")
    assert refused("b", "x") == "" and "stream" in refused("c", "x")


def test_a_cursor_of_another_epoch_is_stale(streams: Streams, timers: Timers) -> None:
    touch = touched_stream(streams)
    for cursor in ("0123456789abcdef:5", f"{touch.journal.epoch}:1"):
        waiting = Waiting(touch, POSTS, cursor=cursor)
        assert waiting.stale and waiting.outcomes[0].cursor == touch.journal.cursor
    for cursor in ("later", "a:b", f"{touch.journal.epoch}:-1", f"{touch.journal.epoch}:" + "9" * 30):
        with pytest.raises(InvalidRequestError):
            Waiting(touch, POSTS, cursor=cursor)
    again = inline_streams(streams.engine, later=timers.later)
    assert Waiting(touch_of(again), POSTS, cursor=touch.journal.cursor).stale, "a restart begins another epoch"


def test_the_end_of_touches_ends_every_wait(streams: Streams, timers: Timers) -> None:
    touch = touched_stream(streams)
    waiting = Waiting(touch, POSTS)
    profile(streams, "s", "generic")
    assert waiting.stale
    profile(streams, "s", "state-protocol", touch={"enabled": True})
    touch = touch_of(streams)
    waiting = Waiting(touch, POSTS)
    delete(streams, "s")
    assert waiting.stale and touch.journal.waiters == 0


def test_lost_entries_touch_every_key(streams: Streams, timers: Timers) -> None:
    touch = touched_stream(streams)
    waiting = Waiting(touch, USERS)
    streams.engine.put_topic("s", TopicConfigPatch(cap_records=1), lambda outcome: None)
    entry = b'{"type":"posts","key":"k","value":{},"headers":{"operation":"insert"}}'
    append(streams, "s", b"[%b]" % b",".join([entry] * 3), JSON)
    timers.advance(FLUSH)
    assert waiting.touched and touch.journal.overflows == 1


def test_settle_query_waits_until_invalidation_caught_up(streams: Streams, timers: Timers) -> None:
    touch = touched_stream(streams)
    reported: list[str] = []
    touch.when_caught_up(lambda: reported.append("at once"))
    change(streams, "insert", None, {})
    touch.when_caught_up(lambda: reported.append("later"))
    touch.when_caught_up(lambda: reported.append("never"))()
    assert reported == ["at once"]
    timers.advance(FLUSH)
    assert reported == ["at once", "later"]


def test_unused_invalidations_are_stopped(streams: Streams, timers: Timers) -> None:
    touch = touched_stream(streams)
    timers.advance(3_600_000 + 60_000)
    assert touch_of(streams).journal.epoch != touch.journal.epoch


def test_many_waiters_are_woken_in_turns_once_each(streams: Streams, timers: Timers) -> None:
    touch = touched_stream(streams)
    waits = [Waiting(touch, POSTS) for _ in range(1000)]
    others = [Waiting(touch, USERS) for _ in range(10)]
    change(streams, "insert", None, {})
    timers.advance(FLUSH)
    assert all(len(waiting.outcomes) == 1 and waiting.touched for waiting in waits)
    assert touch.journal.waiters == len(others)
    for waiting in others:
        assert not waiting.end().touched
    assert touch.journal.waiters == 0


def test_generation_cost_depends_on_touched_keys() -> None:
    class Counted(dict[int, set[Waiter]]):
        looked = 0

        def get(self, key: int, default: object = None) -> object:  # type: ignore[override]
            Counted.looked += 1
            return super().get(key, default)

    journal = Journal("e", lambda: 1000)
    for key in range(5000):
        journal.join(Waiter(frozenset((key,)), lambda: None))
    journal._waiting = Counted(journal._waiting)
    journal.touch([1, 2, 10_000], 0, 0)
    assert len(journal.flush(0)) == 2
    assert Counted.looked <= 5


def test_a_template_that_is_activated_while_changes_are_examined_is_touched(
    streams: Streams, timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch = touched_stream(streams)
    tasks: list[Any] = []
    monkeypatch.setattr(streams.engine, "run_task", lambda task, topic, short_units: tasks.append(task))
    for number in range(3):
        change(streams, "insert", None, {"a": str(number)})
    assert len(tasks) == 1 and not touch.is_caught_up
    next(tasks[0])
    template = activate(touch, "a")
    assert not touch.is_caught_up, "the rest has to be examined"
    while next(tasks[0], tasks) is not tasks:
        pass
    waiting = Waiting(touch, watch_key(template, ["0"]), templateIdsUsed=[template])
    timers.advance(FLUSH)
    assert waiting.touched, "an entry before the template was active may have had its keys"


def test_a_journal_keeps_its_part_of_the_keys_of_all(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.streams.invalidation._KEYS_MAX", 1000)
    one = touched_stream(streams, "one", memory={"pendingMaxKeys": 10**6})
    one.journal.touch(range(900), 0, 0)
    one.journal.flush(0)
    assert one.journal.size == 900
    touched_stream(streams, "other")
    one.journal.touch((1000,), 1, 0)
    one.journal.flush(0)
    assert one.journal.size == 500


def test_dropped_keys_count_as_touched() -> None:
    journal = Journal("e", lambda: 3)
    for key in range(5):
        journal.touch([key], key, 0)
        journal.flush(0)
    assert journal.is_touched(frozenset((77,)), 1)
    assert not journal.is_touched(frozenset((77,)), 2)
    assert journal.is_touched(frozenset((3,)), 2) and not journal.is_touched(frozenset((3,)), 4)
    journal.touch(range(10), 9, 0)
    assert journal.pending == 0 and journal.has_pending and journal.overflows == 1
    journal.flush(0)
    assert journal.is_touched(frozenset((77,)), 5) and not journal.is_touched(frozenset((77,)), 6)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b'{"cursor":"now"}', b'{"cursor":"now","keys":[]}', b'{"keys":["a"]}', b'{"cursor":1,"keys":["a"]}',
        b'{"cursor":"now","keys":["a"],"timeoutMs":120001}', b'{"cursor":"now","keys":["a"],"timeoutMs":-1}',
        b'{"cursor":"now","keyIds":[4294967296]}', b'{"cursor":"now","keys":["a"],"more":1}',
        b'{"cursor":"now","keys":["a"],"interestMode":"some"}',
        b'{"cursor":"now","keys":["a"],"templateIdsUsed":["x"]}',
        b'{"cursor":"now","keys":[' + b",".join([b'"a"'] * 1025) + b"]}",
    ],
)  # fmt: skip
def test_waits_that_are_malformed(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        parse_wait(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"templates":[]}', b'{"templates":[{"entity":"","fields":[{"name":"a","encoding":"string"}]}]}',
        b'{"templates":[{"entity":"a","fields":[]}]}',
        b'{"templates":[{"entity":"a","fields":[{"name":"a","encoding":"text"}]}]}',
        b'{"templates":[{"entity":"a","fields":[{"name":"a","encoding":"bool"},{"name":"a","encoding":"bool"}]}]}',
    ],
)  # fmt: skip
def test_templates_that_are_malformed(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        parse_activation(body)
