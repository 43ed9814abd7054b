import asyncio

from topics.queues.queue_state import Alarms
from topics.system.clock import SystemClock
from topics.testing import ManualClock


def test_everything_due_is_done_in_order() -> None:
    clock, done = ManualClock(), list[int]()
    alarms = Alarms(clock.now_ms)
    for due in (30, 10, 20):
        alarms.at(clock.now_ms() + due, lambda due=due: done.append(due))  # type: ignore[misc]
    clock.advance(20)
    alarms.run_due()
    assert done == [10, 20]
    alarms.run_due()
    clock.advance(10)
    alarms.run_due()
    assert done == [10, 20, 30]


def test_a_cancelled_alarm_does_nothing() -> None:
    clock, done = ManualClock(), list[int]()
    alarms = Alarms(clock.now_ms)
    alarm = alarms.at(clock.now_ms(), lambda: done.append(1))
    alarm.cancel()
    alarms.run_due()
    assert done == []


def test_one_that_fails_does_not_keep_the_others() -> None:
    clock, done = ManualClock(), list[int]()
    alarms = Alarms(clock.now_ms)
    alarms.at(clock.now_ms(), lambda: done.append(1 // 0))
    alarms.at(clock.now_ms(), lambda: done.append(2))
    alarms.run_due()
    assert done == [2]


def test_a_loop_rings_them() -> None:
    async def test() -> None:
        loop, alarms = asyncio.get_running_loop(), Alarms(SystemClock().now_ms)
        rung: asyncio.Future[None] = loop.create_future()
        now = SystemClock().now_ms()
        alarms.at(now + 60_000, lambda: None)
        alarms.start(loop)
        alarms.at(now + 20, lambda: rung.set_result(None))
        alarms.at(now + 10, lambda: None)
        await asyncio.wait_for(rung, 10)
        alarms.stop()

    asyncio.run(test())
