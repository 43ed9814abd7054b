import pytest

from topics.queues.leases import Holder, InFlight, Lease, LeaseTable


class Log:
    """Jobs that are there."""

    def __init__(self, *seqs: int) -> None:
        self.live = set(seqs)

    def is_live(self, seq: int) -> bool:
        return seq in self.live

    def live_from(self, seq: int, requested: int) -> tuple[list[int], int]:
        found = sorted(live for live in self.live if live >= seq)[:requested]
        return found, found[-1] + 1 if len(found) == requested else max(self.live, default=0) + 1


class Hands:
    def __init__(self) -> None:
        self.lost: list[int] = []

    def ended(self, seq: int) -> None:
        self.lost.append(seq)


def grant(
    lease_table: LeaseTable, jobs: list[int], node: str, deadline: int, tokens: range, holder: Holder | None = None
) -> list[Lease]:
    leases = [
        Lease(seq, node, token, deadline, lease_table.delivered.get(seq, 0) + 1, holder)
        for seq, token in zip(jobs, tokens, strict=False)
    ]
    lease_table.claim(leases)
    return leases


def claim(
    lease_table: LeaseTable, log: Log, requested: int, now: int = 0, node: str = "a", most: int = 0
) -> list[Lease]:
    jobs, _ = lease_table.take(requested, log, most)
    return grant(lease_table, jobs, node, now + 100, range(1, requested + 1))


def seqs(leases: list[Lease]) -> list[int]:
    return [lease.seq for lease in leases]


def test_fresh_jobs_come_in_order() -> None:
    lease_table, log = LeaseTable(), Log(1, 2, 3, 5)
    assert seqs(claim(lease_table, log, 2)) == [1, 2]
    assert seqs(claim(lease_table, log, 5)) == [3, 5]
    assert claim(lease_table, log, 1) == []
    assert (lease_table.in_flight, lease_table.ready(4)) == (4, 0)


def test_a_lease_is_over_only_once_its_deadline_has_passed() -> None:
    lease_table, log = LeaseTable(), Log(1)
    claim(lease_table, log, 1, now=0)
    assert not lease_table.sweep(100) and not lease_table.ready(1)
    assert lease_table.sweep(101) and lease_table.ready(1) == 1


def test_what_was_freed_comes_before_what_is_fresh_and_the_lowest_first() -> None:
    lease_table, log = LeaseTable(), Log(1, 2, 3, 4, 5)
    leases = claim(lease_table, log, 3)
    lease_table.release(seqs(leases[::-1]), 0)
    assert seqs(claim(lease_table, log, 2)) == [1, 2]
    assert seqs(claim(lease_table, log, 2)) == [3, 4]


def test_each_grant_counts_as_a_delivery_and_an_extension_does_not() -> None:
    lease_table, log = LeaseTable(), Log(1)
    for deliveries in (1, 2, 3):
        (lease,) = claim(lease_table, log, 1)
        assert lease.deliveries == deliveries
        lease_table.extend([lease.seq], 500)
        lease_table.release([lease.seq], 0)


def test_an_extended_lease_outlives_its_first_deadline() -> None:
    lease_table, log = LeaseTable(), Log(1)
    lease_table.extend(seqs(claim(lease_table, log, 1)), 300)
    assert not lease_table.sweep(200)
    assert lease_table.sweep(301)


def test_a_shortened_lease_ends_earlier() -> None:
    lease_table, log = LeaseTable(), Log(1)
    lease_table.extend(seqs(claim(lease_table, log, 1)), 50)
    assert lease_table.next_change() == 51
    assert lease_table.sweep(51)
    assert not lease_table.sweep(101)


def test_jobs_past_their_deliveries_are_distinguished_and_do_not_use_up_the_claim() -> None:
    lease_table, log = LeaseTable(), Log(1, 2, 3)
    lease_table.release(seqs(claim(lease_table, log, 2)), 0)
    jobs, doomed = lease_table.take(1, log, max_deliveries=1)
    assert (jobs, doomed) == ([3], [1, 2])


def test_a_delayed_job_is_neither_ready_nor_in_flight_until_its_moment() -> None:
    lease_table, log = LeaseTable(), Log(1)
    lease_table.release(seqs(claim(lease_table, log, 1)), 500)
    assert (lease_table.ready(1), lease_table.in_flight, len(lease_table.delayed), lease_table.next_change()) == (
        0,
        0,
        1,
        500,
    )
    assert not lease_table.sweep(499) and claim(lease_table, log, 1) == []
    assert lease_table.sweep(500) and lease_table.ready(1) == 1
    assert seqs(claim(lease_table, log, 1)) == [1]


def test_a_job_that_was_appended_with_a_delay_is_met_by_the_cursor_or_by_its_moment() -> None:
    lease_table, log = LeaseTable(), Log(1, 2, 3)
    lease_table.delay(range(1, 3), 50)
    assert seqs(claim(lease_table, log, 5)) == [3]
    lease_table.sweep(50)
    assert seqs(claim(lease_table, log, 5)) == [1, 2]
    other = LeaseTable()
    other.delay(range(1, 3), 500)
    other.sweep(500)
    assert seqs(claim(other, log, 5)) == [1, 2, 3]


def test_only_the_holder_is_found_and_only_once() -> None:
    lease_table, log = LeaseTable(), Log(1, 2, 3)
    claim(lease_table, log, 2)
    claim(lease_table, log, 1, node="b")
    leases, skipped = lease_table.held("a", [3, 1, 1, 9, 2], None)
    assert (seqs(leases), skipped) == ([1, 2], [3, 1, 9])


def test_a_stale_token_is_skipped_and_no_token_fences_nothing() -> None:
    lease_table, log = LeaseTable(), Log(1, 2, 3)
    first, second, _ = claim(lease_table, log, 3)
    leases, skipped = lease_table.held("a", [1, 2, 3], [first.token, second.token + 7, None])
    assert (seqs(leases), skipped) == ([1, 3], [2])


def test_what_is_leaving_is_nobodys_and_comes_back_when_it_could_not() -> None:
    lease_table, log = LeaseTable(), Log(1)
    leases = claim(lease_table, log, 1)
    lease_table.leave(leases)
    assert lease_table.held("a", [1], None).skipped == [1]
    assert not lease_table.sweep(1000) and claim(lease_table, log, 1) == []
    assert (lease_table.in_flight, lease_table.ready(1)) == (1, 0)
    lease_table.stay([1], 0)
    assert seqs(lease_table.held("a", [1], None).leases) == [1]
    assert lease_table.sweep(1000)


def test_a_job_that_could_not_be_moved_is_tried_again_later() -> None:
    lease_table, log = LeaseTable(), Log(1)
    lease_table.release(seqs(claim(lease_table, log, 1)), 0)
    _, doomed = lease_table.take(1, log, 1)
    lease_table.leave_unleased(doomed)
    assert lease_table.take(1, log, 1) == ([], [])
    assert (lease_table.in_flight, lease_table.held_back, lease_table.ready(1)) == (0, 1, 0)
    lease_table.stay(doomed, 700)
    assert (lease_table.in_flight, lease_table.held_back, lease_table.ready(1)) == (0, 1, 0)
    assert len(lease_table.delayed) == 1
    lease_table.sweep(700)
    assert lease_table.take(1, log, 1).doomed == [1]


def test_a_job_that_was_deleted_on_its_way_is_forgotten() -> None:
    lease_table, log = LeaseTable(), Log(1, 2)
    lease_table.release(seqs(claim(lease_table, log, 2)), 0)
    _, doomed = lease_table.take(2, log, 1)
    lease_table.leave_unleased(doomed)
    lease_table.forget(0, [(1, 1)])
    lease_table.forget_below(3)
    assert (lease_table.moving, lease_table.delivered, lease_table.held_back) == (set(), {}, 0)
    lease_table.stay(doomed, 700)
    assert lease_table.held_back == 0


def test_a_grant_that_was_never_reported_does_not_count() -> None:
    lease_table, log = LeaseTable(), Log(1)
    for deliveries in (1, 2):
        jobs, _ = lease_table.take(1, log, 0)
        lease_table.leave_unleased(jobs)
        assert lease_table.take(1, log, 0).jobs == []
        lease_table.withdraw([Lease(1, "a", 7, 100, deliveries)])
        (lease,) = claim(lease_table, log, 1)
        assert lease.deliveries == deliveries
        lease_table.release([lease.seq], 0)


def test_deleted_jobs_are_forgotten_whatever_they_were() -> None:
    lease_table, log = LeaseTable(), Log(*range(1, 9))
    hands = Hands()
    jobs, _ = lease_table.take(5, log, 0)
    leases = grant(lease_table, jobs, "a", 100, range(5), hands)
    lease_table.leave(leases[4:])
    lease_table.release(seqs(leases[2:3]), 0)
    lease_table.release(seqs(leases[3:4]), 500)
    hands.lost.clear()
    log.live = {2, 8}
    lease_table.forget(0, [(1, 1), (3, 7)])
    assert (list(lease_table.leases), lease_table.leaving, lease_table.delayed, lease_table.delivered) == (
        [2],
        {},
        {},
        {},
    )
    assert hands.lost == [1]
    assert lease_table.ready(2) == 1
    assert seqs(claim(lease_table, log, 5)) == [8]


def test_a_bound_forgets_everything_below_it() -> None:
    lease_table, log = LeaseTable(), Log(1, 2, 3)
    claim(lease_table, log, 3)
    lease_table.forget(3, [])
    assert list(lease_table.leases) == [3]


def test_a_large_range_is_forgotten_by_what_is_known() -> None:
    lease_table, log = LeaseTable(), Log(1, 2, 3)
    claim(lease_table, log, 3)
    lease_table.forget(0, [(2, 10**12)])
    assert list(lease_table.leases) == [1]


def test_the_floor_is_looked_at_when_it_rises() -> None:
    lease_table, log = LeaseTable(), Log(1, 2, 3)
    claim(lease_table, log, 2)
    assert lease_table.forget_below(2)
    assert list(lease_table.leases) == [2]
    assert not lease_table.forget_below(2)


def test_a_floor_that_rises_below_everything_known_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lease_table, log = LeaseTable(), Log(*range(1, 2000))
    claim(lease_table, log, 1000)
    lease_table.forget(0, [(1, 500)])
    assert not lease_table.forget_below(400)
    monkeypatch.setattr(LeaseTable, "_known_seqs", None)  # They are not read again.
    assert not lease_table.forget_below(501)


def test_ended_leases_do_not_pile_up_behind_a_long_deadline() -> None:
    lease_table, log = LeaseTable(), Log(*range(1, 20_001))
    for _ in range(2_000):
        jobs, _ = lease_table.take(10, log, 0)
        lease_table.leave(grant(lease_table, jobs, "a", 10**9, range(10)))
        lease_table.forget(0, [(jobs[0], jobs[-1])])
    assert lease_table._noted < 2_000
    assert sum(len(entry) for _, _, entry in lease_table._deadlines) == lease_table._noted


def test_ended_leases_do_not_set_an_alarm() -> None:
    lease_table, log = LeaseTable(), Log(1, 2)
    leases = claim(lease_table, log, 1, now=0)
    claim(lease_table, log, 1, now=50)
    assert lease_table.next_change() == 101
    lease_table.leave(leases)
    assert lease_table.next_change() == 151


def test_replaying_twice_is_the_same_as_once() -> None:
    books = LeaseTable(), LeaseTable()
    for lease_table, times in zip(books, (1, 2), strict=True):
        for _ in range(times):
            lease_table.claim([Lease(1, "a", 7, 100, 1)])
        for _ in range(times):
            lease_table.extend([1, 9], 200)
        for _ in range(times):
            lease_table.claim([Lease(2, "a", 8, 100, 2)])
        for _ in range(times):
            lease_table.release([2], 300)
        lease_table.rebuild(lambda seq: True)
    assert [(lease.seq, lease.deadline) for lease in books[0].leases.values()] == [(1, 200)]
    for lease_table in books:
        assert (list(lease_table.leases), lease_table.delayed, lease_table.delivered) == ([1], {2: 300}, {2: 2})


def test_after_a_restart_nothing_is_stranded_before_what_was_claimed() -> None:
    """The claim of job 2 was lost in the crash, that of job 3 was not."""
    lease_table, log = LeaseTable(), Log(1, 2, 3, 4)
    lease_table.claim([Lease(1, "a", 7, 100, 1)])
    lease_table.claim([Lease(3, "b", 8, 100, 1)])
    lease_table.rebuild(log.is_live)
    assert seqs(claim(lease_table, log, 5, now=50)) == [2, 4]
    lease_table.sweep(101)
    assert seqs(claim(lease_table, log, 5, now=101)) == [1, 3]


def test_after_a_restart_what_is_not_there_is_forgotten() -> None:
    lease_table = LeaseTable()
    lease_table.claim([Lease(1, "a", 7, 100, 1)])
    lease_table.delayed[9] = 500
    lease_table.rebuild(lambda seq: False)
    assert (lease_table.leases, lease_table.delayed, lease_table.next_change()) == ({}, {}, None)


def test_books_share_a_sum_of_what_is_in_flight() -> None:
    everything = InFlight()
    first, other, log = LeaseTable(everything), LeaseTable(everything), Log(*range(1, 20))

    def check() -> None:
        assert everything.total == first.in_flight + other.in_flight

    leases = claim(first, log, 8)
    claim(other, log, 2)
    assert everything.total == 10
    first.leave(leases[:2])
    check()
    first.stay([1], 0)
    check()
    first.forget(0, [(2, 2)])
    check()
    first.release(seqs(leases[2:4]), 0)
    check()
    first.withdraw(leases[4:6])
    check()
    first.forget_below(8)
    check()
    first.leave_unleased([15, 16])
    check()
    first.stay([15, 16], 500)
    check()
    assert everything.total == 3
    first.sweep(101)
    assert everything.total == other.in_flight == 2
    other.rebuild(lambda seq: seq != 1)
    assert everything.total == 1


def test_a_book_of_a_queue_that_is_gone_is_no_part_of_the_sum() -> None:
    everything = InFlight()
    lease_table, other, log = LeaseTable(everything), LeaseTable(everything), Log(1, 2, 3)
    leases = claim(lease_table, log, 2)
    claim(other, log, 1)
    lease_table.uncount()
    assert everything.total == 1
    lease_table.release(seqs(leases), 0)
    lease_table.uncount()
    assert everything.total == 1
