"""A stream's records and everything else about it survive a crash together, or not at all.

Each test stops one play after every file-system call and lets the machine end in four ways: killed, without anything
that was not synced, with a torn last write, and with a random part of what was not synced.
"""

from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from tests.crash.streams import (
    Player,
    broken_promises,
    check_described,
    check_producers,
    check_streams,
    fork_of,
    promises_broken_by_failures,
)
from tests.property.totals import all_topics
from topics.model.errors import StreamGoneError, TopicNotFoundError
from topics.streams.stream_frames import Producer
from topics.testing import FakeDisk, Fault

SHOWN = 10


def assert_none(broken: Iterator[str]) -> None:
    shown = list(islice(broken, SHOWN))
    assert not shown, "\n".join(shown)


def writing(player: Player) -> None:
    player.create("a", body=b"first|")
    for number in range(6):
        player.append("a", f"<{number}>")
    player.create("empty")
    player.checkpoint()
    player.append("a", "<after>")
    player.append("empty", "<late>")


def test_an_acknowledged_append_is_there_and_nothing_is_there_in_parts() -> None:
    assert_none(broken_promises(writing, check_streams))


def producing(player: Player) -> None:
    player.create("p")
    for seq in range(4):
        player.append("p", f"<one {seq}>", Producer("one", 0, seq))
        player.append("p", f"<two {seq}>", Producer("two", 0, seq))
    player.checkpoint()
    player.append("p", "<one again>", Producer("one", 1, 0))
    player.append("p", "<last>", Producer("two", 0, 4), close=True)


def test_a_producer_that_repeats_itself_after_a_crash_appends_once() -> None:
    assert_none(broken_promises(producing, check_producers))


def closing(player: Player) -> None:
    player.create("c", body=b"x|")
    player.append("c", "<end>", close=True)
    player.append("c", "<too late>")
    player.create("d")
    player.close("d")
    player.checkpoint()
    player.append("d", "<too late>")


def test_a_closed_stream_stays_closed() -> None:
    assert_none(broken_promises(closing, check_streams))


def forking(player: Player) -> None:
    player.create("source", body=b"<0>")
    for number in range(1, 5):
        player.append("source", f"<{number}>")
    player.create("fork", fork=fork_of("source"), body=b"|own")
    player.append("source", "|only in the source")
    player.append("fork", "|more")
    player.checkpoint()
    player.create("fork of fork", fork=fork_of("fork"))
    player.delete("source")
    player.append("fork of fork", "|grandchild")
    player.delete("fork")
    player.delete("fork of fork")


def check_forks(player: Player) -> Iterator[str]:
    for name in ("fork", "fork of fork"):
        if name in player.created and name not in player.maybe_deleted:
            text = player.read(name)
            if not text.startswith("<0><1><2><3><4>"):
                yield f"{name} has lost what it inherited: {text!r}"
    if {"source", "fork", "fork of fork"} <= player.deleted:
        player.engine.housekeeper.tick()
        player.engine.housekeeper.tick()
        if all_topics(player.engine):
            yield f"deleted streams are kept for nobody: {[t.name for t in all_topics(player.engine)]}"
    elif "source" in player.deleted:
        try:
            player.streams.topic("source")
            yield "the source is back"
        except (StreamGoneError, TopicNotFoundError):
            pass


def test_a_fork_keeps_what_it_inherits_and_a_source_goes_with_its_last_fork() -> None:
    assert_none(broken_promises(forking, check_forks))


def lasting(player: Player) -> None:
    player.create("short", ttl_s=60, body=b"a")
    player.clock.advance(50_000)
    player.append("short", "b")
    player.checkpoint()
    player.clock.advance(50_000)
    player.streams.renew_ttl(player.streams.topic("short"))


def check_ttl(player: Player) -> Iterator[str]:
    name = "short"
    if name not in player.created:
        return
    state = player.streams.state(player.engine.core.directory.load(name))
    if state is None or state.ttl_s != 60:
        yield "the time to live is lost"
    if sum(sent.acked for sent in player.sent) == 2:
        try:
            player.read(name)
        except TopicNotFoundError:
            yield "it ended although it was used in time"
    player.clock.advance(10_000_000)
    try:
        player.read(name)
        yield "it does not end any more"
    except TopicNotFoundError:
        pass


def test_a_time_to_live_survives_with_the_stream() -> None:
    assert_none(broken_promises(lasting, check_ttl))


def evolving(player: Player) -> None:
    player.create_described("s")
    player.append_entry("s", 1, 1)
    player.hold(True)
    for number in range(2, 4):
        player.append_entry("s", 1, number)
    player.evolve("s", 2)
    player.append_entry("s", 2, 4)
    player.append_entry("s", 1, 99)
    player.hold(False)
    player.checkpoint()
    player.append_entry("s", 2, 5)
    player.hold(True)
    player.append_entry("s", 2, 6)
    player.evolve("s", 3)
    player.append_entry("s", 3, 7)
    player.evolve("s", 4)
    player.hold(False)
    player.append_entry("s", 4, 8)
    player.create_described("empty")
    player.evolve("empty", 2)
    player.append_entry("empty", 2, 1)


def test_a_schema_changes_exactly_where_its_answer_stated() -> None:
    whole = Player(FakeDisk())
    evolving(whole)
    reported = [(change.stream, change.boundary) for change in whole.changed]
    assert reported == [("s", 0), ("s", 3), ("s", 6), ("s", 7), ("empty", 0), ("empty", 0)], (
        "the test would prove nothing"
    )
    assert [sent.values[0] for sent in whole.sent if not sent.acked] == ['{"v1":99}']
    assert list(check_described(whole)) == []
    assert_none(broken_promises(evolving, check_described))


@pytest.mark.parametrize(
    ("scenario", "check"),
    [
        (writing, check_streams), (producing, check_producers), (closing, check_streams), (forking, check_forks),
        (evolving, check_described),
    ],
    ids=["writing", "producing", "closing", "forking", "evolving"],
)  # fmt: skip
def test_streams_keep_their_promises_when_a_call_fails(
    scenario: Callable[[Player], None], check: Callable[[Player], Iterator[str]]
) -> None:
    assert_none(promises_broken_by_failures(scenario, check))


@pytest.mark.parametrize(
    ("scenario", "check"),
    [
        (writing, check_streams), (producing, check_producers), (closing, check_streams), (forking, check_forks),
        (evolving, check_described),
    ],
    ids=["writing", "producing", "closing", "forking", "evolving"],
)  # fmt: skip
def test_a_shortage_breaks_no_promise(
    scenario: Callable[[Player], None], check: Callable[[Player], Iterator[str]]
) -> None:
    assert_none(promises_broken_by_failures(scenario, check, (Fault.ENOSPC, Fault.EMFILE)))
