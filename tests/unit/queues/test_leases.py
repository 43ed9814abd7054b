import pytest

from topics.queues.leases import Holder, InFlight, Lease, LeaseTable


class Log:
    """Jobs that are there."""

    def __init__(self, *seqs: int) -> None:
        self.live = set(seqs)

    def is_live(self, seq: int) -> bool:
        return seq in self.live

    def live_from(self, seq: int, wanted: int) -> tuple[list[int], int]:
        found = sorted(live for live in self.live if live >= seq)[:wanted]
        return found, found[-1] + 1 if len(found) == wanted else max(self.live, default=0) + 1


class Hands:
    def __init__(self) -> None:
        self.lost: list[int] = []

    def ended(self, seq: int) -> None:
        self.lost.append(seq)


def grant(
    book: LeaseTable, jobs: list[int], node: str, deadline: int, tokens: range, holder: Holder | None = None
) -> list[Lease]:
    leases = [
        Lease(seq, node, token, deadline, book.delivered.get(seq, 0) + 1, holder)
        for seq, token in zip(jobs, tokens, strict=False)
    ]
    book.claim(leases)
    return leases


def claim(book: LeaseTable, log: Log, wanted: int, now: int = 0, node: str = "a", most: int = 0) -> list[Lease]:
    jobs, _ = book.take(wanted, log, most)
    return grant(book, jobs, node, now + 100, range(1, wanted + 1))


def seqs(leases: list[Lease]) -> list[int]:
    return [lease.seq for lease in leases]


def test_fresh_jobs_come_in_order() -> None:
    book, log = LeaseTable(), Log(1, 2, 3, 5)
    assert seqs(claim(book, log, 2)) == [1, 2]
    assert seqs(claim(book, log, 5)) == [3, 5]
    assert claim(book, log, 1) == []
    assert (book.in_flight, book.ready(4)) == (4, 0)


def test_a_lease_is_over_only_once_its_deadline_has_passed() -> None:
    book, log = LeaseTable(), Log(1)
    claim(book, log, 1, now=0)
    assert not book.sweep(100) and not book.ready(1)
    assert book.sweep(101) and book.ready(1) == 1


def test_what_was_freed_comes_before_what_is_fresh_and_the_lowest_first() -> None:
    book, log = LeaseTable(), Log(1, 2, 3, 4, 5)
    leases = claim(book, log, 3)
    book.release(seqs(leases[::-1]), 0)
    assert seqs(claim(book, log, 2)) == [1, 2]
    assert seqs(claim(book, log, 2)) == [3, 4]


def test_each_grant_counts_as_a_delivery_and_an_extension_does_not() -> None:
    book, log = LeaseTable(), Log(1)
    for deliveries in (1, 2, 3):
        (lease,) = claim(book, log, 1)
        assert lease.deliveries == deliveries
        book.extend([lease.seq], 500)
        book.release([lease.seq], 0)


def test_an_extended_lease_outlives_its_first_deadline() -> None:
    book, log = LeaseTable(), Log(1)
    book.extend(seqs(claim(book, log, 1)), 300)
    assert not book.sweep(200)
    assert book.sweep(301)


def test_a_shortened_lease_ends_earlier() -> None:
    book, log = LeaseTable(), Log(1)
    book.extend(seqs(claim(book, log, 1)), 50)
    assert book.next_change() == 51
    assert book.sweep(51)
    assert not book.sweep(101)


def test_jobs_past_their_deliveries_are_told_apart_and_do_not_use_up_the_claim() -> None:
    book, log = LeaseTable(), Log(1, 2, 3)
    book.release(seqs(claim(book, log, 2)), 0)
    jobs, doomed = book.take(1, log, max_deliveries=1)
    assert (jobs, doomed) == ([3], [1, 2])


def test_a_delayed_job_is_neither_ready_nor_in_flight_until_its_moment() -> None:
    book, log = LeaseTable(), Log(1)
    book.release(seqs(claim(book, log, 1)), 500)
    assert (book.ready(1), book.in_flight, len(book.delayed), book.next_change()) == (0, 0, 1, 500)
    assert not book.sweep(499) and claim(book, log, 1) == []
    assert book.sweep(500) and book.ready(1) == 1
    assert seqs(claim(book, log, 1)) == [1]


def test_a_job_that_was_appended_with_a_delay_is_met_by_the_cursor_or_by_its_moment() -> None:
    book, log = LeaseTable(), Log(1, 2, 3)
    book.delay(range(1, 3), 50)
    assert seqs(claim(book, log, 5)) == [3]
    book.sweep(50)
    assert seqs(claim(book, log, 5)) == [1, 2]
    other = LeaseTable()
    other.delay(range(1, 3), 500)
    other.sweep(500)
    assert seqs(claim(other, log, 5)) == [1, 2, 3]


def test_only_the_holder_is_found_and_only_once() -> None:
    book, log = LeaseTable(), Log(1, 2, 3)
    claim(book, log, 2)
    claim(book, log, 1, node="b")
    leases, skipped = book.held("a", [3, 1, 1, 9, 2], None)
    assert (seqs(leases), skipped) == ([1, 2], [3, 1, 9])


def test_a_stale_token_is_skipped_and_no_token_fences_nothing() -> None:
    book, log = LeaseTable(), Log(1, 2, 3)
    first, second, _ = claim(book, log, 3)
    leases, skipped = book.held("a", [1, 2, 3], [first.token, second.token + 7, None])
    assert (seqs(leases), skipped) == ([1, 3], [2])


def test_what_is_leaving_is_nobodys_and_comes_back_when_it_could_not() -> None:
    book, log = LeaseTable(), Log(1)
    leases = claim(book, log, 1)
    book.leave(leases)
    assert book.held("a", [1], None).skipped == [1]
    assert not book.sweep(1000) and claim(book, log, 1) == []
    assert (book.in_flight, book.ready(1)) == (1, 0)
    book.stay([1], 0)
    assert seqs(book.held("a", [1], None).leases) == [1]
    assert book.sweep(1000)


def test_a_job_that_could_not_be_moved_is_tried_again_later() -> None:
    book, log = LeaseTable(), Log(1)
    book.release(seqs(claim(book, log, 1)), 0)
    _, doomed = book.take(1, log, 1)
    book.leave_unleased(doomed)
    assert book.take(1, log, 1) == ([], [])
    assert (book.in_flight, book.held_back, book.ready(1)) == (0, 1, 0)
    book.stay(doomed, 700)
    assert (book.in_flight, book.held_back, book.ready(1)) == (0, 1, 0)
    assert len(book.delayed) == 1
    book.sweep(700)
    assert book.take(1, log, 1).doomed == [1]


def test_a_job_that_was_deleted_on_its_way_is_forgotten() -> None:
    book, log = LeaseTable(), Log(1, 2)
    book.release(seqs(claim(book, log, 2)), 0)
    _, doomed = book.take(2, log, 1)
    book.leave_unleased(doomed)
    book.forget(0, [(1, 1)])
    book.forget_below(3)
    assert (book.moving, book.delivered, book.held_back) == (set(), {}, 0)
    book.stay(doomed, 700)
    assert book.held_back == 0


def test_a_grant_that_was_never_told_does_not_count() -> None:
    book, log = LeaseTable(), Log(1)
    for deliveries in (1, 2):
        jobs, _ = book.take(1, log, 0)
        book.leave_unleased(jobs)
        assert book.take(1, log, 0).jobs == []
        book.withdraw([Lease(1, "a", 7, 100, deliveries)])
        (lease,) = claim(book, log, 1)
        assert lease.deliveries == deliveries
        book.release([lease.seq], 0)


def test_deleted_jobs_are_forgotten_whatever_they_were() -> None:
    book, log = LeaseTable(), Log(*range(1, 9))
    hands = Hands()
    jobs, _ = book.take(5, log, 0)
    leases = grant(book, jobs, "a", 100, range(5), hands)
    book.leave(leases[4:])
    book.release(seqs(leases[2:3]), 0)
    book.release(seqs(leases[3:4]), 500)
    hands.lost.clear()
    log.live = {2, 8}
    book.forget(0, [(1, 1), (3, 7)])
    assert (list(book.leases), book.leaving, book.delayed, book.delivered) == ([2], {}, {}, {})
    assert hands.lost == [1]
    assert book.ready(2) == 1
    assert seqs(claim(book, log, 5)) == [8]


def test_a_bound_forgets_everything_below_it() -> None:
    book, log = LeaseTable(), Log(1, 2, 3)
    claim(book, log, 3)
    book.forget(3, [])
    assert list(book.leases) == [3]


def test_a_large_range_is_forgotten_by_what_is_known() -> None:
    book, log = LeaseTable(), Log(1, 2, 3)
    claim(book, log, 3)
    book.forget(0, [(2, 10**12)])
    assert list(book.leases) == [1]


def test_the_floor_is_looked_at_when_it_rises() -> None:
    book, log = LeaseTable(), Log(1, 2, 3)
    claim(book, log, 2)
    assert book.forget_below(2)
    assert list(book.leases) == [2]
    assert not book.forget_below(2)


def test_a_floor_that_rises_below_everything_known_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    book, log = LeaseTable(), Log(*range(1, 2000))
    claim(book, log, 1000)
    book.forget(0, [(1, 500)])
    assert not book.forget_below(400)
    monkeypatch.setattr(LeaseTable, "_known_seqs", None)  # Nobody looks at them again.
    assert not book.forget_below(501)


def test_ended_leases_do_not_pile_up_behind_a_long_deadline() -> None:
    book, log = LeaseTable(), Log(*range(1, 20_001))
    for _ in range(2_000):
        jobs, _ = book.take(10, log, 0)
        book.leave(grant(book, jobs, "a", 10**9, range(10)))
        book.forget(0, [(jobs[0], jobs[-1])])
    assert book._noted < 2_000
    assert sum(len(entry) for _, _, entry in book._deadlines) == book._noted


def test_ended_leases_do_not_set_an_alarm() -> None:
    book, log = LeaseTable(), Log(1, 2)
    leases = claim(book, log, 1, now=0)
    claim(book, log, 1, now=50)
    assert book.next_change() == 101
    book.leave(leases)
    assert book.next_change() == 151


def test_replaying_twice_is_the_same_as_once() -> None:
    books = LeaseTable(), LeaseTable()
    for book, times in zip(books, (1, 2), strict=True):
        for _ in range(times):
            book.claim([Lease(1, "a", 7, 100, 1)])
        for _ in range(times):
            book.extend([1, 9], 200)
        for _ in range(times):
            book.claim([Lease(2, "a", 8, 100, 2)])
        for _ in range(times):
            book.release([2], 300)
        book.rebuild(lambda seq: True)
    assert [(lease.seq, lease.deadline) for lease in books[0].leases.values()] == [(1, 200)]
    for book in books:
        assert (list(book.leases), book.delayed, book.delivered) == ([1], {2: 300}, {2: 2})


def test_after_a_restart_nothing_is_stranded_before_what_was_claimed() -> None:
    """The claim of job 2 was lost in the crash, that of job 3 was not."""
    book, log = LeaseTable(), Log(1, 2, 3, 4)
    book.claim([Lease(1, "a", 7, 100, 1)])
    book.claim([Lease(3, "b", 8, 100, 1)])
    book.rebuild(log.is_live)
    assert seqs(claim(book, log, 5, now=50)) == [2, 4]
    book.sweep(101)
    assert seqs(claim(book, log, 5, now=101)) == [1, 3]


def test_after_a_restart_what_is_not_there_is_forgotten() -> None:
    book = LeaseTable()
    book.claim([Lease(1, "a", 7, 100, 1)])
    book.delayed[9] = 500
    book.rebuild(lambda seq: False)
    assert (book.leases, book.delayed, book.next_change()) == ({}, {}, None)


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
    book, other, log = LeaseTable(everything), LeaseTable(everything), Log(1, 2, 3)
    leases = claim(book, log, 2)
    claim(other, log, 1)
    book.uncount()
    assert everything.total == 1
    book.release(seqs(leases), 0)
    book.uncount()
    assert everything.total == 1
