"""`topics serve` that counts its objects when it is asked to, and that may have a mistake planted in it.

Run as `python counted_server.py CENSUS [MISTAKE]`. On SIGUSR1 it collects garbage and writes into the file CENSUS how
many objects of the server's own classes there are; on SIGUSR2 how many of them only the collector could find, since the
last time, and from then on it collects none by itself. A mistake is made in the middle of things, so that a test that
would notice such a thing can be seen to notice it.
"""

import gc
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from topics.api.live.feed import Feed, Subscription
from topics.api.live.feeds import TopicFeeds
from topics.api.live.frames import Frame, FrameKind
from topics.cli import main

COUNTED = ("topics.api", "topics.http", "topics.engine.topic", "topics.engine.topic")
"""The modules with classes whose objects come and go with clients and topics."""
_AFTER = 100
"""The number of successes before a failure."""


class Once:
    """True one time, when it was asked often enough."""

    def __init__(self, after: int = _AFTER) -> None:
        self._left = after

    def __call__(self) -> bool:
        self._left -= 1
        return self._left == 0


class Often(Once):
    """True every so many times: a client that happens to return at that moment would hide the error."""

    def __call__(self) -> bool:
        self._left = self._left - 1 or _AFTER
        return self._left == _AFTER


def drop() -> None:
    """A watcher is not given a frame of records."""
    _instead_of_giving(lambda give, feed, frame, receivers: None)


def repeat() -> None:
    """A watcher is given a frame of records twice."""

    def twice(give: Callable[..., None], feed: Feed, frame: Frame, receivers: list[Subscription]) -> None:
        give(feed, frame, receivers)
        give(feed, frame, receivers)

    _instead_of_giving(twice)


def _instead_of_giving(wrong: Callable[..., None]) -> None:
    give, is_due = Feed._give, Often()

    def giving(feed: Feed, frame: Frame, receivers: list[Subscription]) -> None:
        if frame.kind is FrameKind.RECORDS and receivers and is_due():
            give(feed, frame, receivers[1:])
            wrong(give, feed, frame, receivers[:1])
        else:
            give(feed, frame, receivers)

    Feed._give = giving  # type: ignore[method-assign, assignment]


def leak() -> None:
    """One closed subscription stays among the subscriptions of its feed."""
    remove, is_due = Feed.remove, Once(after=50)

    def removing(feed: Feed, subscription: Subscription) -> None:
        if is_due():
            feed._live.pop(subscription, None)
        else:
            remove(feed, subscription)

    Feed.remove = removing  # type: ignore[method-assign, assignment]


def sleep_on() -> None:
    """One wake-up of a topic is lost, and with it all that follow."""
    woken, is_due = TopicFeeds._woken, Once()

    def waking(feeds: TopicFeeds) -> None:
        if not is_due():
            woken(feeds)

    TopicFeeds._woken = waking  # type: ignore[method-assign, assignment]


MISTAKES: dict[str, Callable[[], None]] = {"drop": drop, "repeat": repeat, "leak": leak, "sleep_on": sleep_on}


def count(census: Path) -> None:
    gc.collect()
    _write(census, gc.get_objects(), COUNTED)


def count_garbage(census: Path) -> None:
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    _write(census, gc.garbage, ("topics.",))
    gc.set_debug(0)
    gc.garbage.clear()
    gc.collect()


def _write(census: Path, objects: list[Any], modules: tuple[str, ...]) -> None:
    found = Counter(
        f"{kind.__module__}.{kind.__qualname__}" for kind in map(type, objects) if kind.__module__.startswith(modules)
    )
    ready = census.with_suffix(".new")
    ready.write_text(json.dumps(found))
    os.replace(ready, census)


def ask_census(pid: int, census: Path, number: signal.Signals, guard_s: float = 30.0) -> Counter[str]:
    """Returns the counts that such a server prints after a signal; for a caller that has started one."""
    census.unlink(missing_ok=True)
    os.kill(pid, number)
    give_up = time.monotonic() + guard_s
    while not census.exists():
        assert time.monotonic() < give_up, "the server does not count"
        time.sleep(0.02)
    return Counter(json.loads(census.read_text()))


def run(census: str, mistake: str | None = None) -> Any:
    if mistake is not None:
        MISTAKES[mistake]()
    signal.signal(signal.SIGUSR1, lambda *_: count(Path(census)))
    signal.signal(signal.SIGUSR2, lambda *_: count_garbage(Path(census)))
    return main(["serve"])


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
