"""A folder with a queue in it is damaged in one place: verify finds it, repair mends it, and no job is lost untold.

The log holds every frame that queues write. A job that can be found neither in its queue nor in the dead letter topic
must lie in a range that the repair reported. Repair cannot know whether a job in a damaged frame was claimed,
acknowledged or moved: such a job may be back, and is delivered once more.
"""

from random import Random

import pytest

from tests.crash.queue_world import DEAD, QUEUE, look
from tests.crash.wreckage import content, files, flip
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.log.frame import HEADER_BYTES, FrameKind, find_frames
from topics.log.layout import Layout
from topics.model.records import Batch, Record
from topics.model.topic_config import Durability, TopicConfigPatch, TopicType
from topics.ops.repair.repair import Repair, verify
from topics.queues.leases import ClaimRequest, ClaimResult, HeldRequest, NackRequest, RedriveRequest
from topics.testing import FakeDisk, ManualClock, SeededEntropy, Survival

STEP = 29
LAYOUT = Layout("data", None)


def options(shards: int) -> EngineOptions:
    return EngineOptions(data_dir="data", wal_shards=shards, wal_file_bytes=4096)


def ignore(outcome: object) -> None:
    assert not isinstance(outcome, Exception), outcome


def build(shards: int, snapshot: bool) -> FakeDisk:
    """Every kind of frame there is of queues, all of them behind the last snapshot or all of them in it."""
    disk, clock = FakeDisk(), ManualClock()
    engine = Engine.recover(disk, options(shards), clock, SeededEntropy(1), boot_id="a")
    patch = TopicConfigPatch(
        type=TopicType.QUEUE, durability=Durability.FSYNC, leases_durable=True, max_deliveries=1, dead_letter=DEAD
    )
    engine.put_topic(QUEUE, patch, ignore)
    queues = engine.queues
    for value in range(0, 8, 2):
        records = [Record.of(value, meta={"v": value}), Record.of(value + 1)]
        engine.append(QUEUE, Batch(records=records), ignore)
    queues.claim(QUEUE, ClaimRequest(node="a", max=4), ignore)
    queues.ack(QUEUE, HeldRequest(node="a", seqs=[1]), ignore)
    queues.nack(QUEUE, NackRequest(node="a", seqs=[2, 3]), ignore)
    queues.claim(QUEUE, ClaimRequest(node="b", max=1), ignore)
    engine.append(QUEUE, Batch(records=[Record.of(8)], delay_ms=5000), ignore)
    queues.redrive(QUEUE, RedriveRequest(max=1), ignore)
    engine.append(QUEUE, Batch(records=[Record.of(9)]), ignore)
    engine.append(DEAD, Batch(records=[Record.of(10)]), ignore)
    if snapshot:
        engine.run_job(engine.checkpointer.job())
    return disk.crash(Survival.EVERYTHING)


def places(disk: FakeDisk, seed: int) -> list[tuple[str, int]]:
    """One byte in so many of every file that counts, without the bytes that may be taken for a torn tail."""
    rng, found = Random(seed), []
    for path in files(disk):
        data = content(disk, path)
        if path.endswith(".wal"):
            frames = list(find_frames(memoryview(data), 0))
            size = frames[-1].start if frames else 0
        else:
            size = len(data) if "snapshot-" in path else 0
        found += [(path, start + rng.randrange(STEP)) for start in range(0, max(size - STEP, 0), STEP)]
    return found


def jobs_of(engine: Engine) -> dict[int, list[str]]:
    return {value: [sight.where for sight in sights] for value, sights in look(engine).jobs.items()}


@pytest.mark.parametrize("snapshot", [False, True], ids=["in the log", "in a snapshot"])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_flipped_byte_anywhere(shards: int, snapshot: bool, seed: int) -> None:
    whole = build(shards, snapshot)
    kinds = {frame.kind for path in files(whole) for frame in find_frames(memoryview(content(whole, path)), 0)}
    if not snapshot:
        assert kinds >= {FrameKind.LEASE, FrameKind.DELAY, FrameKind.ARRIVAL, FrameKind.DEPARTURE, FrameKind.DELETE}
    before = jobs_of(start(whole.clone(), shards))
    assert len(places(whole, seed)) > 30
    for path, offset in places(whole, seed):
        disk = whole.clone()
        flip(disk, path, offset)
        assert_mended(disk, shards, before, f"{path} at {offset}")


def start(disk: FakeDisk, shards: int) -> Engine:
    return Engine.recover(disk, options(shards), ManualClock(), SeededEntropy(2), boot_id="a")


def assert_mended(disk: FakeDisk, shards: int, before: dict[int, list[str]], where: str) -> None:
    assert not verify(disk, LAYOUT, "a").sound, f"{where}: verify finds nothing"
    report = Repair(disk, LAYOUT, ManualClock(), SeededEntropy(3), "a").run()
    assert report.after is not None and report.after.sound, f"{where}: {report.after}"
    engine = start(disk, shards)
    names = [name for name in engine.core.names if name.startswith("recovered-")]
    after = jobs_of(engine) if QUEUE in engine.core.directory or DEAD in engine.core.directory else {}
    if missing := before.keys() - after.keys():
        assert report.losses or names, f"{where}: {sorted(missing)} are lost and nobody is told"
    if doubled := [value for value, topics in after.items() if len(topics) > 1]:
        # Only where the frame that would take it away is the damaged one.
        assert any("deletes" in action for action in report.actions), f"{where}: {doubled} are in two places"
    topic = engine.core.directory.find(QUEUE)
    if topic is None or topic.config.type is not TopicType.QUEUE:
        return
    answers: list[object] = []
    engine._clock.advance(100_000)  # type: ignore[attr-defined]
    engine.queues.claim(QUEUE, ClaimRequest(node="all", max=100), answers.append)
    (answer,) = answers
    assert isinstance(answer, ClaimResult), f"{where}: {answer}"
    assert len(answer.jobs) == engine.queues.counters(QUEUE).in_flight == engine.info(QUEUE).count, where


def test_a_header_is_as_large_as_the_sweep_believes() -> None:
    assert HEADER_BYTES == 40
