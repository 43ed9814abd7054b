"""RunQueue: no task works for longer than a tick allows, and costly delivery is followed by a pause."""

from collections.abc import Callable

from topics.api.live.run_queue import ALLOWANCE, RunQueue
from topics.testing import ManualClock


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.ticks: list[Callable[[], None]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.run_queue = RunQueue(
            self.ticks.append, lambda wait, run: self.timers.append((wait, run)), self.clock.monotonic
        )

    def tick(self) -> None:
        due, self.ticks[:] = list(self.ticks), []
        for run in due:
            run()


class Greedy:
    """Wants turns for ever, and spends some of the allowance each."""

    pauses = False

    def __init__(self, cost: int = 100) -> None:
        self.queued = False
        self.cost = cost
        self.worked = 0

    def work(self, run_queue: RunQueue) -> None:
        self.worked += 1
        run_queue.left -= self.cost
        run_queue.add(self)


def test_a_tick_does_what_its_allowance_allows_and_the_next_goes_on() -> None:
    bench = Bench()
    greedy = Greedy()
    bench.run_queue.add(greedy)
    assert greedy.worked == 0
    bench.tick()
    first = greedy.worked
    assert first == -(-ALLOWANCE // 100)
    bench.tick()
    assert greedy.worked == 2 * first
    assert len(bench.ticks) == 1


def test_everyone_gets_turns() -> None:
    bench = Bench()
    workers = [Greedy() for _ in range(5)]
    for worker in workers:
        bench.run_queue.add(worker)
    for _ in range(5):
        bench.tick()
    assert max(w.worked for w in workers) - min(w.worked for w in workers) <= 1


def test_costly_delivery_is_followed_by_a_pause() -> None:
    bench = Bench()
    greedy = Greedy(ALLOWANCE)
    bench.run_queue.add(greedy)
    assert not bench.run_queue.hold(Greedy())
    bench.tick()
    bench.clock.advance(8)
    bench.tick()
    waiting = Greedy()
    assert bench.run_queue.hold(waiting)
    [(wait, release)] = bench.timers
    assert 0.001 < wait <= 0.002 + 1e-9
    assert waiting.worked == 0
    bench.clock.advance(8)
    release()
    assert not bench.run_queue.hold(Greedy())
    for _ in range(3):
        bench.tick()
    assert waiting.worked >= 1


def test_a_pause_ends_however_many_ask_for_turns_meanwhile() -> None:
    bench = Bench()

    class Frames:
        """Makes a costly frame whenever it may."""

        queued = False
        pauses = True
        made = 0

        def work(self, run_queue: RunQueue) -> None:
            if not run_queue.hold(self):
                self.made += 1
                run_queue.left -= ALLOWANCE
                bench.clock.advance(8)

    class Idle:
        """Asks for turns and does nothing with them."""

        queued = False
        pauses = False

        def work(self, run_queue: RunQueue) -> None: ...

    frames, idle = Frames(), Idle()
    for _ in range(100):
        bench.run_queue.add(frames)
        bench.run_queue.add(idle)
        bench.tick()
        bench.clock.advance(1)
        due, bench.timers[:] = list(bench.timers), []
        for wait, run in due:
            bench.timers.append((wait - 0.001, run)) if wait > 0.001 else run()
    assert frames.made > 20


def test_short_ticks_that_follow_each_other_make_a_pause_together() -> None:
    bench = Bench()
    greedy = Greedy(ALLOWANCE)
    bench.run_queue.add(greedy)
    for _ in range(3):
        bench.tick()
        assert not bench.run_queue.hold(Greedy())
        bench.clock.advance(2)
    bench.tick()
    assert bench.run_queue.hold(Greedy())


def test_workers_waiting_for_a_pause_run_first() -> None:
    bench = Bench()
    bench.run_queue.add(Greedy(ALLOWANCE))
    bench.tick()
    bench.clock.advance(8)
    bench.tick()
    assert bench.run_queue.hold(Greedy())
    bench.clock.advance(8)
    # The pause is over, and the timer has not come yet.
    assert bench.run_queue.hold(Greedy())
    bench.timers[0][1]()
    assert not bench.run_queue.hold(Greedy())


def test_a_pause_asks_one_and_holds_all_who_would_be_notified_of_the_same() -> None:
    bench = Bench()
    asked: list[int] = []
    served: list[int] = []

    class Frames:
        """Makes a frame when it may, and costly ones to begin with."""

        pauses = True

        def __init__(self, number: int) -> None:
            self.queued = False
            self.number = number

        def work(self, run_queue: RunQueue) -> None:
            asked.append(self.number)
            if not run_queue.hold(self):
                served.append(self.number)
                run_queue.left -= ALLOWANCE if not self.number else 1

    class Behind:
        """Has no news, and catches up."""

        queued = pauses = False

        def work(self, run_queue: RunQueue) -> None:
            served.append(-1)

    for number in range(10):
        bench.run_queue.add(Frames(number))
    bench.run_queue.add(Behind())
    bench.tick()
    assert served == [0]
    bench.clock.advance(8)
    bench.tick()
    assert (asked, served) == ([0, 1], [0, -1])
    bench.run_queue.add(Frames(10))
    bench.clock.advance(8)
    bench.tick()
    bench.timers[0][1]()
    bench.tick()
    assert served == [0, -1, *range(1, 11)]


def test_a_pause_is_never_long() -> None:
    bench = Bench()
    bench.run_queue.add(Greedy(ALLOWANCE))
    bench.tick()
    bench.clock.advance(5_000)
    bench.tick()
    assert bench.run_queue.hold(Greedy())
    assert bench.timers[0][0] <= 0.02


def test_a_worker_that_fails_does_not_stop_the_others() -> None:
    class Broken:
        queued = pauses = False

        def work(self, run_queue: RunQueue) -> None:
            raise ValueError

    bench = Bench()
    healthy = Greedy()
    bench.run_queue.add(Broken())
    bench.run_queue.add(healthy)
    bench.tick()
    assert healthy.worked
