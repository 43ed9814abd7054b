"""Whether a time is over that began at a moment which was noted earlier."""


def is_over(since_ms: int, for_ms: int, now_ms: int) -> bool:
    """A moment further ahead than the time is long was noted while the clock was wrong. Nobody knows how long ago that
    was, and to wait for it could take years: the time is over then, too."""
    return abs(now_ms - since_ms) >= for_ms
