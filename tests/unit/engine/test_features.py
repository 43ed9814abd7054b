"""Changes over two shards keep out of the way of a checkpoint."""

from topics.engine.features import CrossShardGate


def test_a_crossing_starts_at_once_while_no_checkpoint_turns_the_shards() -> None:
    crossings, seen = CrossShardGate(), []
    crossings.enter(lambda: seen.append("crossed"))
    assert seen == ["crossed"]


def test_a_checkpoint_waits_for_crossings_on_their_way() -> None:
    crossings, seen = CrossShardGate(), []
    crossings.enter(lambda: None)
    crossings.enter(lambda: None)
    crossings.close(lambda: seen.append("closed"))
    crossings.leave()
    assert seen == []
    crossings.leave()
    assert seen == ["closed"]


def test_a_crossing_that_comes_while_the_shards_turn_starts_behind_the_turn() -> None:
    crossings, seen = CrossShardGate(), []
    crossings.close(lambda: seen.append("closed"))
    crossings.enter(lambda: seen.append("crossed"))
    assert seen == ["closed"]
    crossings.reopen()
    assert seen == ["closed", "crossed"]
    crossings.leave()


def test_a_crossing_entered_by_one_that_was_held_is_counted() -> None:
    crossings, seen = CrossShardGate(), []
    crossings.close(lambda: None)
    crossings.enter(lambda: crossings.enter(lambda: seen.append("inner")))
    crossings.reopen()
    crossings.close(lambda: seen.append("closed"))
    crossings.leave()
    assert seen == ["inner"]
    crossings.leave()
    assert seen == ["inner", "closed"]
