"""Short lives of a queue. A sweep stops or fails them at every call."""

from collections.abc import Callable

from tests.crash.queue_world import QueueWorld

Scenario = Callable[[QueueWorld], None]


def working(world: QueueWorld) -> None:
    """Claims, acknowledgements, nacks and extensions, before and behind checkpoints."""
    world.begin()
    world.append(4)
    world.claim("a", 3)
    world.ack("a", [1])
    world.nack("a", [2], delay_ms=500)
    world.extend("a", [3], 5000)
    world.checkpoint()
    world.claim("b", 1)
    world.nack("b", [4])
    world.pass_time(600)
    world.claim("b", 2)
    world.ack("b", [2, 4])
    world.sync()
    world.append(3)
    world.claim("a", 2)
    world.pass_time(1500)
    world.claim("b", 3)
    world.ack("b", [5, 6, 7])


def working_in_groups(world: QueueWorld) -> None:
    """Operations that build on each other share one write: a claim, and the outcome of its jobs."""
    world.begin(max_deliveries=2)
    world.append(4)
    world.hold()
    world.append(2)
    world.claim("a", 3)
    world.nack("a", [2])
    world.ack("a", [1])
    world.append(1, delay_ms=500)
    world.claim("b", 1)
    world.extend("b", [2], 3000)
    world.flush()
    world.checkpoint()
    world.hold()
    world.nack("b", [2])
    world.claim("b", 2)
    world.ack("a", [3])
    world.append(1)
    world.flush()
    world.sync()


def acknowledging_in_groups(world: QueueWorld) -> None:
    """Several workers are done in one tick, while others append: one delete for all of them."""
    world.begin()
    world.append(6)
    world.claim("a", 2)
    world.claim("b", 2)
    world.claim("c", 2)
    world.hold()
    world.ack("a", [1, 2])
    world.append(2)
    world.ack("b", [4])
    world.append(1)
    world.ack("c", [5, 6])
    world.flush()
    world.checkpoint()
    world.claim("a", 3)
    world.hold()
    world.ack("a", [7, 9])
    world.ack("b", [3])
    world.extend("a", [8], 3000)
    world.flush()
    world.sync()


def delaying(world: QueueWorld) -> None:
    """Jobs that are delayed by their writers, across checkpoints and restarts."""
    world.begin()
    world.append(2, delay_ms=700)
    world.append(1)
    world.claim("a", 5)
    world.checkpoint()
    world.append(2, delay_ms=300)
    world.pass_time(400)
    world.claim("b", 1)
    world.restart(clean=False)
    world.pass_time(400)
    world.claim("b", 5)
    world.restart(clean=True)
    world.append(1, delay_ms=100)


def prioritizing(world: QueueWorld) -> None:
    """Jobs of several priorities, some delayed, are claimed, returned and deleted across checkpoints and restarts."""
    world.begin()
    world.append(2)
    world.append(2, priority=5)
    world.append(1, priority=-5)
    world.claim("a", 3)
    world.nack("a", [4])
    world.hold()
    world.append(1, delay_ms=300, priority=9)
    world.ack("a", [3])
    world.flush()
    world.checkpoint()
    world.change_job(5, "cancel")
    world.append(1, priority=-1)
    world.pass_time(400)
    world.restart(clean=False)
    world.claim("b", 2)
    world.restart(clean=True)
    world.sync()


def limiting(world: QueueWorld) -> None:
    """A queue with both limits and fair shares: claims, ends of leases, checkpoints and restarts."""
    world.begin(max_leased=2, max_per_second=3, fair_tags=True)
    world.append(5)
    world.pass_time(1000)
    world.claim("a", 3)
    world.ack("a", [1])
    world.claim("b", 3)
    world.hold()
    world.nack("a", [2])
    world.append(1)
    world.flush()
    world.checkpoint()
    world.pass_time(1000)
    world.claim("b", 3)
    world.restart(clean=False)
    world.pass_time(1000)
    world.claim("a", 1)
    world.restart(clean=True)
    world.sync()


def failing(world: QueueWorld) -> None:
    """Jobs fail with a reason, for good, or with their worker, before and behind checkpoints."""
    world.begin(max_deliveries=3)
    world.append(5)
    world.claim("a", 4)
    world.nack("a", [1], reason="first")
    world.nack("a", [2], delay_ms=500, reason="later")
    world.nack("a", [3], reason="hopeless", fatal=True)
    world.checkpoint()
    world.pass_time(1500)
    world.claim("b", 3)
    world.hold()
    world.nack("b", [1], reason="second")
    world.append(1)
    world.claim("c", 1)
    world.flush()
    world.nack("b", [2, 4], fatal=True)
    world.sync()


def touching(world: QueueWorld) -> None:
    """People promote, release, cancel and retry single jobs, and pause the queue."""
    world.begin(max_deliveries=1)
    world.append(2, delay_ms=5000)
    world.append(3)
    world.change_job(1, "promote")
    world.claim("a", 3)
    world.change_job(1, "release")
    world.pause(True)
    world.change_job(3, "cancel")
    world.checkpoint()
    world.claim("b", 2)
    world.change_job(2, "promote")
    world.pause(False)
    world.claim("b", 2)
    world.nack("b", [2], reason="no", fatal=True)
    world.change_job(1, "retry")
    world.change_job(2, "cancel")
    world.sync()


def burying(world: QueueWorld) -> None:
    """Jobs are delivered too often and move to the dead letter topic, which the first of them creates."""
    world.begin(max_deliveries=1)
    world.append(4)
    world.claim("a", 2)
    world.nack("a", [1])
    world.claim("b", 1)
    world.pass_time(1500)
    world.claim("b", 1)
    world.checkpoint()
    world.pass_time(1500)
    world.claim("a", 5)
    world.sync()


def redriving(world: QueueWorld) -> None:
    """Dead letters come back, one after the other, and die again."""
    world.begin(max_deliveries=1)
    world.append(3)
    world.claim("a", 3)
    world.nack("a", [1, 2, 3])
    world.claim("a", 3)
    world.redrive(1)
    world.checkpoint()
    world.redrive(2)
    world.claim("b", 2)
    world.sync()
    world.pass_time(1500)
    world.claim("b", 2)
    world.redrive(5)
