"""Frames shared with later readers: only as long as reading again would give the same."""

from tests.unit.api.live.rig import Rig


def test_reconnecting_followers_share_cached_frames() -> None:
    rig = Rig()
    rig.append("t", 10)
    followers = [rig.follow("t", limit=5) for _ in range(100)]
    rig.run_until_idle()
    assert all(f.story() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], "caught_up"] for f in followers)
    # Two frames of records, and a caught-up for each.
    assert rig.framing.encoded == 102


def test_a_deleted_record_is_not_delivered_from_memory() -> None:
    rig = Rig()
    rig.append("t", 3)
    first = rig.follow("t")
    rig.run_until_idle()
    assert first.story() == [[1, 2, 3], "caught_up"]
    rig.delete("t", 3)
    second = rig.follow("t")
    rig.run_until_idle()
    assert second.story() == [[3], "caught_up"]


def test_an_expired_record_is_not_delivered_from_memory() -> None:
    rig = Rig()
    rig.put("t", ttl_ms=1000)
    rig.append("t", 3)
    first = rig.follow("t")
    rig.run_until_idle()
    assert first.story() == [[1, 2, 3], "caught_up"]
    rig.clock.advance(5000)
    second = rig.follow("t")
    rig.run_until_idle()
    assert second.story() == [("from_seq_too_old", 1, 3), "caught_up"]


def test_small_frame_does_not_slow_a_follower_far_behind() -> None:
    rig = Rig()
    rig.put("t")
    live = rig.follow("t")
    rig.run_until_idle()
    for _ in range(5):
        rig.append("t")
        rig.run_until_idle()
    assert live.story() == ["caught_up", [1], [2], [3], [4], [5]]
    late = rig.follow("t")
    rig.run_until_idle()
    assert late.story() == [[1, 2, 3, 4, 5], "caught_up"]


def test_the_cache_is_bounded() -> None:
    rig = Rig()
    rig.append("t", 200, data="x" * 1000)
    rig.feeds.cache._bytes_max = 20_000
    follower = rig.follow("t", limit=5)
    rig.run_until_idle()
    assert len(follower.story()) == 41
    assert 0 < rig.feeds.cache.size <= 20_000
