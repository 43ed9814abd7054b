"""The time that commits stay open: the decisions, without a thread or a clock."""

import pytest

from topics.log.group_commit import (  # fmt: skip
    COMPANY,
    COMPANY_S,
    LOOP_SYNC_LONG_S,
    LOOP_SYNC_S,
    LOOP_SYNC_SHARE,
    SILENCE,
    SINGLE_CALLER_GROUPS,
    SINGLE_CALLER_SYNC_S,
    SLICE_S,
    WARY_GROUPS,
    WARY_SYNCS,
    WARY_SYNCS_MAX,
    CommitWindow,
    InlineSyncPolicy,
    TickWindow,
)


def ticks(window: TickWindow, now: float = 5.0) -> int:
    """The number of further ticks that a group stays open when time stands still."""
    window.open(lambda: now)
    count = 0
    while window.ticks_left and window.stays_open(now):
        count += 1
    return count


@pytest.mark.parametrize(("callers", "more"), [(0, 0), (1, 0), (COMPANY - 1, 0), (COMPANY, 2), (1000, 2)])
def test_a_group_stays_open_for_two_ticks_behind_one_of_several(callers: int, more: int) -> None:
    window = TickWindow()
    window.company = callers
    assert ticks(window) == more


def test_the_clock_is_asked_only_where_somebody_is_waited_for() -> None:
    window = TickWindow()
    moments = iter([5.0])
    window.open(lambda: next(moments))
    window.company = COMPANY
    window.open(lambda: next(moments))
    assert list(moments) == []
    with pytest.raises(StopIteration):
        window.open(lambda: next(moments))


def test_a_group_does_not_stay_open_where_ticks_are_long() -> None:
    window = TickWindow()
    window.company = COMPANY
    window.open(lambda: 5.0)
    assert window.stays_open(5.0 + COMPANY_S / 2)
    assert not window.stays_open(5.0 + COMPANY_S)


def test_the_first_group_waits_for_nobody_and_a_small_one_ends_the_waiting() -> None:
    window = TickWindow()
    assert ticks(window) == 0
    window.company = COMPANY
    assert ticks(window) == 2
    window.company = 1
    assert ticks(window) == 0


def test_a_group_that_is_complete_waits_for_nobody() -> None:
    window = TickWindow()
    window.close(16)
    window.open(lambda: 5.0)
    assert window.stays_open(5.0, 15)
    assert not window.stays_open(5.0, 16)


def test_a_smaller_group_does_not_make_the_next_one_smaller() -> None:
    window = TickWindow()
    window.close(16)
    window.close(6)
    window.open(lambda: 5.0)
    assert window.stays_open(5.0, 6), "ten are missing"
    for _ in range(10):
        window.close(6)
    window.open(lambda: 5.0)
    assert not window.stays_open(5.0, 6), "they have gone"


def test_each_stall_leaves_so_many_groups_to_the_thread() -> None:
    window = TickWindow()
    assert not window.is_wary(0)
    assert [window.is_wary(1) for _ in range(WARY_GROUPS + 2)] == [True] * WARY_GROUPS + [False] * 2
    assert [window.is_wary(2) for _ in range(10)] == [True] * 10
    # One more stall before they are over begins the count again.
    assert [window.is_wary(3) for _ in range(WARY_GROUPS + 1)] == [True] * WARY_GROUPS + [False]


def test_a_lone_caller_is_never_waited_with() -> None:
    window = CommitWindow(0.5)
    for _ in range(3):
        window.open(1.0)
        assert window.linger_s(1, 1.0) == 0.0
        window.close(1)


@pytest.mark.parametrize(("cohort", "waiting", "lingers"), [(8, 3, True), (8, 4, False), (8, 0, False), (2, 1, False)])
def test_a_commit_lingers_until_half_of_the_last_cohort_is_there(cohort: int, waiting: int, lingers: bool) -> None:
    window = CommitWindow(0.5)
    window.close(cohort)
    window.open(1.0)
    assert window.linger_s(waiting, 1.0) == (SLICE_S if lingers else 0.0)


def test_it_lingers_no_longer_than_the_window() -> None:
    window = CommitWindow(SLICE_S * 1.5)
    window.close(8)
    window.open(1.0)
    assert window.linger_s(1, 1.0) == SLICE_S
    assert window.linger_s(1, 1.0 + SLICE_S) == pytest.approx(SLICE_S / 2)
    assert window.linger_s(1, 1.0 + SLICE_S * 2) == 0.0
    without = CommitWindow(0.0)
    without.close(8)
    without.open(1.0)
    assert without.linger_s(1, 1.0) == 0.0


def test_a_widened_window_holds_for_everyone_who_syncs() -> None:
    window = CommitWindow(0.0005)
    window.widen(0.01)
    window.open(1.0)
    assert window.linger_s(1, 1.0) == pytest.approx(0.01 * SILENCE)
    assert window.linger_s(1, 1.0095) == pytest.approx(0.0005)
    assert window.linger_s(1, 1.02) == 0.0
    assert window.linger_s(0, 1.0) == 0.0
    window.widen(0.0)
    window.open(1.0)
    assert window.linger_s(1, 1.0) == 0.0


class Clients:
    """The requests of the clients, and the decisions of the loop."""

    def __init__(self, mean_s: float | None = LOOP_SYNC_S / 4) -> None:
        """On a disk whose syncs take so long, as the thread has found; None where nothing is known."""
        self.heard = 0
        self.syncs = InlineSyncPolicy(lambda: self.heard)
        for _ in range(0 if mean_s is None else 100):
            assert mean_s is not None
            self.syncs.synced(mean_s, by_loop=False)

    def group(self, callers: int = 1, requests: int = 1, now: float = 0.0, took_s: float = LOOP_SYNC_S / 4) -> bool:
        """A group that waits for a sync, behind so many requests; whether the loop syncs it."""
        self.heard += requests
        by_loop = self.syncs.allows(callers, now)
        self.syncs.synced(took_s, by_loop=by_loop)
        return by_loop

    def skipped(self, took_s: float) -> int:
        """How many groups of a lone client are left to the thread until the loop syncs one, which takes it so long."""
        for count in range(2 * WARY_SYNCS_MAX):
            self.heard += 1
            by_loop = self.syncs.allows(1, 0.0)
            self.syncs.synced(took_s if by_loop else LOOP_SYNC_S / 4, by_loop=by_loop)
            if by_loop:
                return count
        raise AssertionError("the loop never syncs again")


def lone_clients() -> Clients:
    clients = Clients()
    assert not any(clients.group() for _ in range(SINGLE_CALLER_GROUPS))
    return clients


def test_the_loop_syncs_for_a_client_once_nobody_else_was_heard_for_some_groups() -> None:
    clients = Clients()
    assert [clients.group() for _ in range(SINGLE_CALLER_GROUPS + 2)] == [False] * SINGLE_CALLER_GROUPS + [True] * 2


@pytest.mark.parametrize(("callers", "requests"), [(2, 2), (1, 2), (1, 0), (16, 1)])
def test_whoever_else_is_heard_ends_it(callers: int, requests: int) -> None:
    clients = Clients()
    assert [clients.group() for _ in range(SINGLE_CALLER_GROUPS + 1)][-1]
    assert not clients.group(callers, requests)
    assert [clients.group() for _ in range(SINGLE_CALLER_GROUPS + 1)] == [False] * SINGLE_CALLER_GROUPS + [True]


def test_on_a_disk_that_nothing_is_known_of_the_thread_syncs() -> None:
    clients = Clients(None)
    assert not any(clients.syncs.allows(1, float(now)) for now in range(100))


def test_where_syncs_take_long_the_thread_does_them() -> None:
    clients = Clients(2 * SINGLE_CALLER_SYNC_S)
    assert not any(clients.group(took_s=2 * SINGLE_CALLER_SYNC_S) for _ in range(100))
    assert any(clients.group() for _ in range(100))


def test_where_they_take_a_while_it_syncs_for_a_lone_client_only() -> None:
    took_s = (LOOP_SYNC_S + SINGLE_CALLER_SYNC_S) / 2
    clients = Clients(took_s)
    assert not any(clients.group(1, 10, float(number), took_s) for number in range(100))
    assert any(clients.group(took_s=took_s) for _ in range(100))


@pytest.mark.parametrize("callers", range(1, COMPANY))
def test_beside_others_the_loop_syncs_for_a_small_part_of_its_time(callers: int) -> None:
    clients, took_s, each_s = Clients(), LOOP_SYNC_S / 4, 0.001
    done = sum(clients.group(callers, 10, number * each_s, took_s) for number in range(10_000))
    assert 0.9 * LOOP_SYNC_SHARE < done * took_s / (10_000 * each_s) < 1.1 * LOOP_SYNC_SHARE


def test_who_was_alone_for_long_leaves_no_debt_behind() -> None:
    clients = Clients()
    for _ in range(10_000):
        clients.group()
    assert any(clients.group(1, 10, 0.01 * number) for number in range(60))


def test_under_pressure_it_syncs_for_a_lone_client_only() -> None:
    lone, beside = lone_clients(), Clients()
    lone.heard += 1
    assert lone.syncs.allows(1, 1.0, wide=True)
    slow = Clients((LOOP_SYNC_S + SINGLE_CALLER_SYNC_S) / 2)
    for _ in range(2 * SINGLE_CALLER_GROUPS):
        slow.heard += 1
        assert not slow.syncs.allows(1, 1.0, wide=True)
    beside.heard += 10
    assert not beside.syncs.allows(1, 1.0, wide=True)
    beside.heard += 10
    assert beside.syncs.allows(1, 1.0, wide=False)


def test_for_many_callers_the_thread_syncs() -> None:
    clients = Clients()
    assert not any(clients.group(COMPANY, 10, float(number)) for number in range(100))


def test_a_sync_that_takes_the_loop_long_leaves_some_groups_to_the_thread() -> None:
    clients = lone_clients()
    assert clients.group(took_s=2 * LOOP_SYNC_LONG_S)
    assert [clients.group() for _ in range(WARY_SYNCS + 1)] == [False] * WARY_SYNCS + [True]


def test_each_further_one_leaves_twice_as_many_to_it() -> None:
    clients = lone_clients()
    skipped = [clients.skipped(2 * LOOP_SYNC_LONG_S) for _ in range(10)]
    assert skipped == [0, *(min(WARY_SYNCS << number, WARY_SYNCS_MAX) for number in range(9))]
    assert skipped[-1] == skipped[-2] == WARY_SYNCS_MAX


def test_short_ones_between_them_make_up_for_it() -> None:
    clients = lone_clients()
    for _ in range(20):
        assert clients.skipped(2 * LOOP_SYNC_LONG_S) == 0
        assert clients.skipped(LOOP_SYNC_S / 4) == WARY_SYNCS
        assert all(clients.group() for _ in range(WARY_SYNCS))
