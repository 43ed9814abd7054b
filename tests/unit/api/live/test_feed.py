"""Delivery to followers of a topic: in order, once, the same bytes for all, and every loss told."""

from collections.abc import Callable

from tests.unit.api.live.rig import Rig
from topics.api.live.feed import FOLLOWERS_MAX
from topics.api.live.run_queue import BYTES_A_UNIT
from topics.log.group_commit import InlineCommitter
from topics.model.errors import CorruptSegmentError


def test_a_backlog_is_delivered_and_then_each_new_record() -> None:
    rig = Rig()
    rig.append("t", 3)
    follower = rig.follow("t")
    rig.run_until_idle()
    assert follower.story() == [[1, 2, 3], "caught_up"]
    rig.append("t")
    rig.run_until_idle()
    assert follower.story() == [[4]]
    assert follower.subscription.cursor == 4


def test_everyone_at_the_same_position_gets_the_very_same_bytes() -> None:
    rig = Rig()
    rig.put("t")
    followers = [rig.follow("t") for _ in range(50)]
    rig.run_until_idle()
    before = rig.framing.encoded
    rig.append("t", 2)
    rig.run_until_idle()
    assert rig.framing.encoded == before + 1
    assert len({id(f.sink.frames[-1][1].data) for f in followers}) == 1


def test_more_followers_than_a_tick_serves_still_share_one_frame() -> None:
    rig = Rig()
    rig.put("t")
    followers = [rig.follow("t") for _ in range(3 * FOLLOWERS_MAX)]
    rig.run_until_idle()
    before = rig.framing.encoded
    rig.append("t", 2)
    rig.run_until_idle()
    assert rig.framing.encoded == before + 1
    assert len({id(f.sink.frames[-1][1].data) for f in followers}) == 1


def test_turn_delivers_all_records_so_far() -> None:
    """A record that comes during a round goes with that round to every follower that still waits for it."""
    rig = Rig()
    rig.put("t")
    first, second = ([rig.follow("t") for _ in range(FOLLOWERS_MAX)] for _ in range(2))
    rig.run_until_idle()
    for follower in first + second:
        follower.take()
    rig.append("t")
    assert [len(f.sink.frames) for f in first + second] == [1] * FOLLOWERS_MAX + [0] * FOLLOWERS_MAX
    rig.append("t")
    rig.run_until_idle()
    assert all(f.story() == [[1], [2]] for f in first)
    assert all(f.story() == [[1, 2]] for f in second)


def test_a_frame_that_does_not_fit_into_a_tick_is_finished_before_another_feed_begins() -> None:
    rig = Rig()
    for topic in ("large", "small"):
        rig.put(topic)
    large = [rig.follow("large") for _ in range(FOLLOWERS_MAX)]
    small = rig.follow("small")
    rig.run_until_idle()
    for follower in [*large, small]:
        follower.take()
    rig.append("large", data="x" * 4 * BYTES_A_UNIT)
    rig.append("small")
    while not small.sink.frames:
        assert rig.tick()
    assert all(follower.story() == [[1]] for follower in large)
    rig.run_until_idle()
    assert small.story() == [[1]]


def test_feeds_are_forgotten_with_their_last_followers() -> None:
    rig = Rig()
    rig.append("t")
    followers = [rig.follow("t") for _ in range(2 * FOLLOWERS_MAX)]
    rig.run_until_idle()
    assert rig.feeds.cache.size
    for follower in followers[1:]:
        follower.subscription.cancel()
    rig.append("t")
    rig.run_until_idle()
    assert followers[0].story() == [[1], "caught_up", [2]]
    followers[0].subscription.cancel()
    assert len(rig.feeds) == rig.feeds.cache.size == 0


def test_a_full_connection_is_given_nothing_more_and_then_one_larger_batch() -> None:
    rig = Rig()
    rig.put("t")
    slow, quick = rig.follow("t"), rig.follow("t")
    rig.run_until_idle()
    slow.take(), quick.take()
    slow.sink.room = 1
    for _ in range(4):
        rig.append("t")
        rig.run_until_idle()
    assert quick.story() == [[1], [2], [3], [4]]
    assert slow.story() == [[1]]
    slow.sink.drain()
    rig.run_until_idle()
    assert slow.story() == [[2, 3, 4], "caught_up"]
    rig.append("t")
    rig.run_until_idle()
    assert slow.story() == quick.story() == [[5]]


def test_deletion_is_reported_to_every_follower_including_full_ones() -> None:
    rig = Rig()
    rig.append("t")
    quick, slow = rig.follow("t"), rig.follow("t")
    slow.sink.room = 1
    rig.run_until_idle()
    rig.append("t")
    rig.run_until_idle()
    rig.drop("t")
    rig.append("t", 5)
    rig.run_until_idle()
    assert quick.story() == [[1], "caught_up", [2], "deleted"]
    assert slow.story() == [[1]]
    slow.sink.drain()
    rig.run_until_idle()
    assert slow.story() == ["deleted"]
    assert quick.sink.ended == [quick.subscription]
    assert len(rig.feeds) == 0


def test_loss_is_reported_and_named_after_when_it_was_met() -> None:
    rig = Rig()
    rig.put("t", cap_records=3)
    rig.append("t", 10)
    late = rig.follow("t")
    rig.run_until_idle()
    assert late.story() == [("from_seq_too_old", 1, 7), [8, 9, 10], "caught_up"]
    late.sink.room = 1
    rig.append("t", 1)
    rig.append("t", 10)
    rig.run_until_idle()
    late.sink.drain()
    rig.run_until_idle()
    story = late.story()
    assert story[-3:] == [("cap", 12, 18), [19, 20, 21], "caught_up"]


def test_the_feed_itself_meets_a_loss_when_one_batch_exceeds_the_cap() -> None:
    rig = Rig()
    rig.put("t", cap_records=3)
    follower = rig.follow("t")
    rig.run_until_idle()
    rig.append("t", 10)
    rig.run_until_idle()
    assert follower.story() == ["caught_up", ("cap", 1, 7), [8, 9, 10]]


def test_records_of_the_readers_own_node_move_the_cursor_in_silence() -> None:
    rig = Rig()
    rig.put("t")
    follower = rig.follow("t", nodes=("me",))
    rig.run_until_idle()
    rig.append("t", 5, node="me")
    rig.append("t", 1, node="you")
    rig.append("t", 2, node="me")
    rig.run_until_idle()
    assert follower.story() == ["caught_up", [6]]
    assert follower.subscription.cursor == 8


def test_a_cursor_from_the_future_gets_a_tombstone_that_the_topic_began_again() -> None:
    rig = Rig()
    rig.append("t", 2)
    follower = rig.follow("t", cursor=900)
    rig.run_until_idle()
    assert follower.story() == [("recreated", 1, 2), [1, 2], "caught_up"]


def test_a_batch_beyond_the_limit_comes_in_several_frames() -> None:
    rig = Rig()
    rig.put("t")
    live = rig.follow("t", limit=4)
    rig.run_until_idle()
    rig.append("t", 10)
    late = rig.follow("t", limit=4)
    rig.run_until_idle()
    assert live.story() == ["caught_up", [1, 2, 3, 4], [5, 6, 7, 8], [9, 10], "caught_up"]
    assert late.story() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10], "caught_up"]


def test_a_follower_that_joins_within_a_backlog_is_caught_up_once() -> None:
    rig = Rig()
    rig.put("t")
    rig.follow("t", limit=1)
    rig.run_until_idle()
    rig.append("t", 200)
    rig.tick()
    late = rig.follow("t", 150, limit=1)
    rig.run_until_idle()
    assert late.story() == [*([seq] for seq in range(151, 201)), "caught_up"]


def test_nothing_is_kept_when_the_last_follower_leaves() -> None:
    rig = Rig()
    rig.append("t", 3)
    followers = [rig.follow("t"), rig.follow("t", include_tags=True)]
    rig.run_until_idle()
    for follower in followers:
        follower.subscription.cancel()
    assert len(rig.feeds) == 0
    assert not rig.engine.core.directory.load("t").waiters
    assert rig.feeds.cache.size == 0


def test_a_strong_follower_gets_records_only_once_they_are_on_the_disk() -> None:
    rig = Rig()
    rig.append("t", 1)
    strong, quick = rig.follow("t", strong=True), rig.follow("t")
    rig.run_until_idle()
    assert strong.story() == quick.story() == [[1], "caught_up"]
    shard = rig.engine.core.shards[0]
    committer = shard.committer
    assert isinstance(committer, InlineCommitter)
    committer.hold = True
    rig.append("t", 1)
    written, committer._held = committer._held, []
    shard.writer.commit(written, shard.finalize)
    rig.run_until_idle()
    assert quick.story() == [[2]]
    assert strong.story() == []
    committer.flush()
    rig.run_until_idle()
    assert strong.story() == [[2]]


def test_ten_thousand_followers_are_served_over_several_ticks() -> None:
    rig = Rig()
    rig.put("t")
    followers = [rig.follow("t") for _ in range(5_000)]
    rig.run_until_idle()
    rig.append("t")
    assert rig.run_until_idle() >= 4
    assert all(follower.story() == ["caught_up", [1]] for follower in followers)


def test_a_topic_that_everyone_left_during_its_wake_up_is_let_go() -> None:
    rig = Rig()
    rig.put("t")
    follower = rig.follow("t")
    rig.run_until_idle()
    # Woken before the feeds are: the waiters of a tick are called one after the other.
    topic = rig.engine.core.directory.load("t")
    assert topic.waiters is not None
    topic.waiters.insert(0, follower.subscription.cancel)
    rig.append("t")
    rig.run_until_idle()
    assert len(rig.feeds) == 0
    assert not topic.waiters


def test_a_strong_follower_that_is_behind_stops_at_what_is_on_the_disk() -> None:
    rig = Rig()
    rig.append("t", 3)
    shard = rig.engine.core.shards[0]
    committer = shard.committer
    assert isinstance(committer, InlineCommitter)
    strong = rig.follow("t", strong=True)
    committer.hold = True
    rig.append("t", 1)
    written, committer._held = committer._held, []
    shard.writer.commit(written, shard.finalize)
    rig.run_until_idle()
    assert strong.story() == [[1, 2, 3], "caught_up"]
    committer.flush()
    rig.run_until_idle()
    assert strong.story() == [[4]]


def test_large_frames_are_given_to_fewer_in_a_tick() -> None:
    rig = Rig()
    rig.put("t")
    followers = [rig.follow("t") for _ in range(500)]
    rig.run_until_idle()
    rig.append("t")
    small = rig.run_until_idle()
    rig.append("t", data="x" * 400_000)
    large = rig.run_until_idle()
    assert large >= small + 5
    assert all(follower.story() == ["caught_up", [1], [2]] for follower in followers)


def test_unreadable_records_end_the_subscription_with_an_error() -> None:
    rig = Rig()
    rig.append("t", 3)
    live = rig.follow("t")
    rig.run_until_idle()
    assert live.story() == [[1, 2, 3], "caught_up"]
    rig.read_with(lambda name, request, done: done(CorruptSegmentError(name, 4, 4)))
    rig.append("t")
    late = rig.follow("t", cursor=2)
    rig.run_until_idle()
    assert live.story() == late.story() == ["error"]
    assert live.sink.ended == [live.subscription]
    assert len(rig.feeds) == 0


def test_reads_of_the_cold_folder_take_their_time_and_keep_the_order() -> None:
    rig = Rig()
    rig.append("t", 4)
    pending: list[Callable[[], None]] = []
    read = rig.engine.read
    rig.read_with(lambda name, request, done: pending.append(lambda: read(name, request, done)))
    follower, other = rig.follow("t", limit=2), rig.follow("t", limit=2)
    rig.run_until_idle()
    rig.append("t")
    rig.run_until_idle()
    while pending:
        pending.pop()()
        rig.run_until_idle()
    assert follower.story() == other.story() == [[1, 2], [3, 4], [5], "caught_up"]


def test_a_topic_deleted_while_its_cold_part_is_read_is_reported() -> None:
    rig = Rig()
    rig.append("t", 4)
    pending: list[Callable[[], None]] = []
    read = rig.engine.read
    rig.read_with(lambda name, request, done: pending.append(lambda: read(name, request, done)))
    follower = rig.follow("t")
    rig.run_until_idle()
    rig.drop("t")
    rig.append("t", 9)
    rig.run_until_idle()
    assert follower.story() == []
    # By now it would read from another topic of the name.
    pending.pop()()
    rig.run_until_idle()
    assert follower.story() == ["deleted"]


def test_new_follower_of_a_destination_gets_pending_copies() -> None:
    rig = Rig()
    rig.route("a", "b")
    later: list[Callable[[], None]] = []
    rig.engine.core.defer.use(later.append)
    rig.append("a", 2)
    follower = rig.follow("b")
    rig.run_until_idle()
    assert follower.story() == [[1, 2], "caught_up"]
