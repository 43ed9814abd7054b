"""Staying awake: only while requests come densely, never for the sake of it."""

from collections.abc import Callable

from topics.http.server_state import AdaptiveSpin

WINDOW_S = 0.0002
DENSE_S, SPARSE_S = 0.0001, 0.001


class Loop:
    """A loop that sleeps whenever nothing is deferred; each turn takes a microsecond."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self.now = 100.0
        self._ready: list[Callable[[], None]] = []
        self.turns = 0
        self.said = 0
        self.spin = AdaptiveSpin(self._ready.append, lambda: self.now, lambda: self.said, window_s)

    def hear(self) -> None:
        """A client sends a request."""
        self.said += 1
        if not self.spin.polling:
            self.spin.rouse()

    def wait(self, seconds: float) -> None:
        """Time passes without a request, awake for as long as the spin lasts."""
        until = self.now + seconds
        while self._ready and self.now < until:
            self.turn()
        self.now = max(self.now, until)

    def turn(self, seconds: float = 0.000001) -> None:
        self.now += seconds
        self.turns += 1
        ready, self._ready[:] = list(self._ready), []
        for run in ready:
            run()

    def requests(self, count: int, gap_s: float) -> None:
        for _ in range(count):
            self.hear()
            self.wait(gap_s)


def test_dense_requests_keep_it_awake() -> None:
    loop = Loop()
    loop.requests(10, DENSE_S)
    assert loop.spin.polling
    before = loop.turns
    loop.requests(10, DENSE_S)
    assert loop.turns - before > 500


def test_a_silent_client_lets_it_sleep_after_the_window() -> None:
    loop = Loop()
    loop.requests(10, DENSE_S)
    before = loop.turns
    loop.wait(1.0)
    assert not loop.spin.polling
    assert loop.turns - before <= 201


def test_sparse_requests_never_keep_it_awake() -> None:
    loop = Loop()
    loop.requests(100, SPARSE_S)
    assert loop.turns == 2 * 100
    assert not loop.spin.polling


def test_requests_that_come_in_pairs_do_not_either() -> None:
    """Every second guess would be wrong."""
    loop = Loop()
    for _ in range(100):
        loop.requests(1, DENSE_S)
        loop.requests(1, SPARSE_S)
        assert not loop.spin.polling
    assert loop.turns == 2 * 200


def test_it_goes_on_after_a_single_delay() -> None:
    loop = Loop()
    loop.requests(20, DENSE_S)
    loop.wait(SPARSE_S)
    assert not loop.spin.polling
    loop.requests(3, DENSE_S)
    assert loop.spin.polling


def test_the_loops_own_work_is_not_a_clients_silence() -> None:
    loop = Loop()
    loop.requests(10, DENSE_S)
    for _ in range(5):
        loop.hear()
        loop.turn(WINDOW_S)
        loop.turn(WINDOW_S)
        loop.wait(DENSE_S)
        assert loop.spin.polling


def test_a_request_that_takes_its_time_is_not_a_silent_client() -> None:
    """The next one comes soon after the answer, though long after the last one."""
    loop = Loop()
    for _ in range(10):
        loop.hear()
        loop.turn(WINDOW_S)
        loop.turn(WINDOW_S)
        loop.wait(DENSE_S)
    assert loop.spin.polling


def test_it_leaves_the_processor_to_threads_that_work_on_the_answers() -> None:
    loop = Loop()
    loop.requests(10, DENSE_S)
    loop.spin.busy.append(lambda: True)
    before = loop.turns
    loop.requests(10, DENSE_S)
    assert loop.turns - before <= 20
    loop.spin.busy[0] = lambda: False
    loop.requests(2, DENSE_S)
    assert loop.spin.polling


def test_without_a_window_it_never_asks_for_a_turn() -> None:
    loop = Loop(window_s=0.0)
    loop.requests(100, DENSE_S)
    assert loop.turns == 0
