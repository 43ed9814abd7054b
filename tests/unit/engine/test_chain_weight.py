"""When the snapshots that make up the state are rewritten."""

from tests.unit.conftest import append, checkpoint, drop, killed, open_engine
from topics.engine.checkpoint import ChainWeight
from topics.testing import FakeDisk


def weight_of(*found: tuple[int, int, int]) -> ChainWeight:
    weight = ChainWeight()
    for size, reported, live in found:
        weight.found(size, reported, live)
    return weight


def test_what_is_new_makes_nothing_superfluous() -> None:
    weight = weight_of()
    weight.rewritten(1000, 10)
    for number in range(1, 50):
        weight.added(number, 1000, 1000, 10, 0)
    assert (weight.live_bytes, weight.live_topics, weight.is_mostly_dead) == (50_000, 500, False)


def test_what_is_reported_again_does() -> None:
    weight = weight_of()
    weight.rewritten(1000, 10)
    weight.added(1, 1000, 0, 0, 0)
    assert not weight.is_mostly_dead
    weight.added(2, 1, 0, 0, 0)
    assert weight.is_mostly_dead
    # Two of the three become one.
    weight.added(1, 500, 0, 0, 0)
    assert weight.sizes == [1000, 500]
    assert not weight.is_mostly_dead


def test_topics_that_come_and_go_are_no_reason_to_keep_what_was_stated_of_them() -> None:
    weight = weight_of()
    weight.rewritten(1000, 10)
    for number in range(1, 4):
        weight.added(number, 1000, 1000, 10, 10)
    assert (weight.live_bytes, weight.live_topics, weight.is_mostly_dead) == (1000, 10, True)
    weight.added(4, 10, 0, 0, 99)
    assert (weight.live_bytes, weight.live_topics) == (0, 0)


def test_a_start_finds_out_how_much_still_counts() -> None:
    """The newest snapshot first; of the older ones only the parts that no newer one has."""
    assert weight_of((300, 3, 3), (1000, 10, 7)).live_bytes == 1000
    assert weight_of((300, 3, 3), (1000, 10, 7)).sizes == [1000, 300]
    assert weight_of((100, 0, 0)).live_bytes == 0


def test_what_is_kept_as_the_weight_is_what_a_rewritten_snapshot_has(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    for number in range(20):
        append(engine, f"t{number}", "x" * 200)
        if number % 5 == 4:
            checkpoint(engine)
    assert len(engine.checkpointer.chain) == 4
    weight = engine.checkpointer.weight
    # Its own frames are in it, too.
    assert 0.8 * sum(weight.sizes) < weight.live_bytes <= sum(weight.sizes)
    for number in range(7):
        append(engine, f"t{number}", "y")
    drop(engine, "t9")
    checkpoint(engine)
    again = open_engine(killed(disk)).checkpointer.weight
    assert again.sizes == [again.live_bytes]
    assert again.live_topics == weight.live_topics == 19
    assert abs(again.live_bytes - weight.live_bytes) < 0.1 * again.live_bytes


def test_a_start_that_leaves_topics_asleep_weighs_as_whoever_wrote_them(disk: FakeDisk) -> None:
    engine = open_engine(disk, awake_topics=0)
    for number in range(20):
        append(engine, f"t{number}", "x" * 200)
        if number % 5 == 4:
            checkpoint(engine)
    for number in range(7):
        append(engine, f"t{number}", "y")
    checkpoint(engine)
    weight, chain = engine.checkpointer.weight, engine.checkpointer.chain
    again = open_engine(killed(disk), awake_topics=0).checkpointer
    assert again.chain[: len(chain)] == chain
    assert again.weight.sizes[: len(chain)] == weight.sizes
    assert again.weight.live_topics == weight.live_topics
    assert abs(again.weight.live_bytes - weight.live_bytes) < 0.1 * sum(weight.sizes)


def test_rewriting_waits_until_it_leaves_out_more_than_it_has(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    for number in range(10):
        append(engine, f"t{number}", "x" * 200)
        checkpoint(engine)
    assert len(engine.checkpointer.chain) == 10
    for number in range(12):
        append(engine, f"t{number % 10}", "y")
        checkpoint(engine)
    assert len(engine.checkpointer.chain) < 10
