"""The frame that is made of a topic's last block: exactly the one that a read would have made, or none."""

import random

import msgspec
import pytest

from tests.unit.api.live.rig import Rig
from topics.api.live import Frame, Projection
from topics.engine.topic import Topic
from topics.model.records import Batch, Record


def frames_of(rig: Rig, source: Projection, topic: Topic, cursor: int, up_to: int) -> list[Frame]:
    found: list[Frame] = []
    source.read(rig.engine, topic, cursor, up_to, lambda read: found.extend(source.frames(topic, read, cursor, False)))
    return found


def write(rig: Rig, rng: random.Random) -> None:
    records = [
        Record.of(
            "x" * rng.choice([1, 1, 300]), tag=rng.choice([None, "t"]), node=rng.choice([None, "me"]),
            meta=rng.choice([None, {"a": 1}]),
        )
        for _ in range(rng.randrange(1, 5))
    ]  # fmt: skip
    rig.engine.append("t", Batch(records=records), lambda outcome: None)


def change(rig: Rig, rng: random.Random) -> None:
    """Something that may make of the last block other than all there is."""
    topic = rig.engine.core.existing("t")
    match rng.randrange(6):
        case 0:
            rig.delete("t", rng.randrange(1, topic.head + 3))
        case 1:
            rig.put("t", cap_records=rng.choice([0, 1, 3]))
        case 2:
            rig.put("t", ttl_ms=rng.choice([0, 50]))
            rig.clock.advance(rng.choice([0, 100]))
            rig.engine.core.expire(topic)
        case 3:
            rig.engine.core.applier.gap(topic, topic.head + 1, topic.head + 2, None)
            topic.staged_head = topic.head
        case 4:
            rig.put("t", durability=rng.choice(["disk", "memory"]))
        case _:
            pass


SOURCES: tuple[dict[str, object], ...] = (
    {}, {"include_tags": True}, {"include_meta": False}, {"include_data": False}, {"nodes": ("me",)}, {"limit": 2},
    {"max_bytes": 100},
)  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_frame_of_a_read(seed: int) -> None:
    rig, rng = Rig(segment_max_events=6), random.Random(seed)
    rig.put("t")
    made = 0
    for _ in range(60):
        write(rig, rng)
        change(rig, rng)
        topic = rig.engine.core.existing("t")
        for options in SOURCES:
            source = msgspec.structs.replace(rig.projection, **options)
            for cursor in range(max(topic.head - 6, 0), topic.head + 1):
                for up_to in (topic.head, max(topic.head - 1, cursor)):
                    frame = source.newest(rig.engine, topic, cursor, up_to)
                    if frame is not None:
                        made += 1
                        assert frames_of(rig, source, topic, cursor, up_to) == [frame]
    assert made > 30


def test_live_followers_get_the_last_block_without_a_read() -> None:
    rig = Rig()
    rig.put("t")
    follower = rig.follow("t", include_tags=True)
    rig.run_until_idle()

    def refuse(*_: object) -> None:
        raise AssertionError("nothing has to be read")

    rig.read_with(refuse)
    before = rig.engine.core.totals.reads
    rig.clock.advance(10)
    rig.append("t", 2)
    rig.run_until_idle()
    assert follower.story() == ["caught_up", [1, 2]]
    # It counts as one all the same.
    assert rig.engine.core.totals.reads == before + 1
    assert rig.engine.core.existing("t").last_read_ts == rig.clock.now_ms()
