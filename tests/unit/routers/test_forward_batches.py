"""Routers at the same position are decided for together; any difference of one of them must still count."""

from itertools import permutations

import pytest

from tests.unit.conftest import DISK, EPHEMERAL, FSYNC, MEMORY, after_power_cut, append, open_engine, put, read, values
from tests.unit.routers.conftest import EXACTLY_ONCE, go_on, route, router, unroute
from topics.engine.engine import Engine
from topics.log.frame import BASE_MAX
from topics.model.records import Batch, Record
from topics.model.router_rules import TagMatch
from topics.model.topic_config import Discard
from topics.routers.forwarding import CopyBatch, ForwardBatches, Forwarder, Load
from topics.routers.registry import Router
from topics.testing import FakeDisk

RECORDS = [Record.of(1, tag="a", node="n"), Record.of(2, tag="b"), Record.of(3)]

DEST: dict[str, dict[str, object]] = {
    "plain": {},
    "memory": {"durability": MEMORY},
    "ephemeral": {"durability": EPHEMERAL},
    "fsync": {"durability": FSYNC},
    "small": {"cap_records": 2},
    "full": {"cap_records": 2, "discard": Discard.REJECT},
}
"""Destinations by their special property."""
RULES: dict[str, dict[str, object]] = {
    "untagged": {"preserve_tag": False},
    "unnamed": {"preserve_node": False},
    "filtered": {"filter": TagMatch("b")},
    "stamped": {"guarantee": EXACTLY_ONCE},
}
"""Routers by their special property."""
EXPECTED = {"small": [3, 4], "full": [1, 2], "filtered": [2]}


@pytest.mark.parametrize("first", [*DEST, *RULES])
@pytest.mark.parametrize("second", ["plain", "fsync", "full"])
def test_each_router_gets_its_own(engine: Engine, first: str, second: str) -> None:
    order = dict.fromkeys((first, second, *DEST, *RULES))
    for name in order:
        put(engine, name, **{"durability": DISK, **DEST.get(name, {})})
        route(engine, "source", name, "", **RULES.get(name, {}))
    engine.append("source", Batch(records=RECORDS), lambda outcome: None)
    # By now one of them is full and stands where the others do not.
    append(engine, "source", 4)
    for name in order:
        assert values(engine, name) == EXPECTED.get(name, [1, 2, 3, 4]), name
    untagged = read(engine, "untagged", include_tags=True).records()
    assert not any("$tag" in record for record in untagged) and untagged[0]["$node"] == "n"
    unnamed = read(engine, "unnamed", include_tags=True).records()
    assert not any("$node" in record for record in unnamed) and unnamed[0]["$tag"] == "a"
    stamped = read(engine, "stamped").records()
    assert all("_topics_router" in str(record["meta"]) for record in stamped)
    assert not any("meta" in record for record in read(engine, "plain").records())


def batch(router: Router) -> CopyBatch:
    assert router.dest is not None
    load = Load(0, 1, [], None, router.rules, None, 0, by_value=False)
    return CopyBatch(router, router.dest, load)


def test_who_stands_elsewhere_does_not_go_along(engine: Engine) -> None:
    for dest in ("one", "two", "three"):
        route(engine, "source", dest)
    one, two, three = (router(engine, f"source->{dest}") for dest in ("one", "two", "three"))
    batches = ForwardBatches(engine.routing.registry)
    assert not batches.goes_along(two), "nobody went before"
    batches.add(batch(one), is_example=True)
    two.cursor += 1
    assert not batches.goes_along(two)
    two.cursor -= 1
    assert batches.goes_along(two)
    assert not batches.goes_along(two), "it is on its way already"
    route(engine, "source", "three", name="another")
    assert not batches.goes_along(three), "what it may stage depends on the other"
    assert [taken.router for taken in batches.take()] == [one, two]
    assert batches.take() == []
    assert not batches.goes_along(two)


def test_each_shard_has_its_example(disk: FakeDisk) -> None:
    engine = open_engine(disk, wal_shards=2)
    names = [f"d{number}" for number in range(8)]
    for name in names:
        route(engine, "source", name)
    routers = [router(engine, f"source->{name}") for name in names]
    batches = ForwardBatches(engine.routing.registry)
    firsts = {one.dest.shard: one for one in reversed(routers) if one.dest is not None}
    assert len(firsts) == 2
    for one in firsts.values():
        batches.add(batch(one), is_example=True)
    assert all(batches.goes_along(one) for one in routers if one not in firsts.values())
    assert {taken.router for taken in batches.take()} == set(routers)


@pytest.mark.parametrize("pair", [*permutations(("plain", "again"))])
def test_two_routers_into_one_topic_each_copy_everything(engine: Engine, pair: tuple[str, str]) -> None:
    for name in pair:
        route(engine, "source", "both", name=name)
    append(engine, "source", 1)
    assert values(engine, "both") == [1, 1]


def test_a_router_knows_whether_it_is_alone(engine: Engine) -> None:
    route(engine, "source", "both", name="one")
    route(engine, "source", "both", name="two")
    assert not router(engine, "one").alone and not router(engine, "two").alone
    unroute(engine, "one")
    assert router(engine, "two").alone


def test_who_stands_elsewhere_is_given_numbers_of_its_own(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    late, now = 9_000_000_000_000, 5_000_000_000_000
    # Seq, place in the text and time; each stands as the one before it, or differs from it in one of the three.
    stands = [
        (4, 0, 0), (4, 0, 0), (400, 0, 0), (400, 70, 0), (400, 70, 0), (400, 70, late), (4, 70, late), (4, 70, late),
        (4, BASE_MAX, late), (4, BASE_MAX, 0), (5, BASE_MAX, 0), (5, 0, 0),
    ]  # fmt: skip
    for number in range(len(stands)):
        route(engine, "source", f"d{number}")
    batches: list[CopyBatch] = []
    monkeypatch.setattr(Forwarder, "send", lambda self, some, finished: batches.extend(some))
    append(engine, "source", 1)
    for one, (head, base, ts) in zip(batches, stands, strict=True):
        one.dest.staged_head, one.dest.next_base, one.dest.staged_ts = head, base, ts
    for forward, (head, base, ts) in zip(Forwarder(engine.core)._stage(batches, now), stands, strict=True):
        block, dest = forward.block, forward.topic
        assert block is not None and b'"$seq":%d,"$ts":%d,' % (head + 1, max(now, ts)) in block.text
        assert (forward.first_seq, forward.ts, forward.base) == (head + 1, max(now, ts), base % BASE_MAX)
        assert (block.first_seq, block.ts, block.base, block.written) == (head + 1, max(now, ts), base % BASE_MAX, now)
        assert (dest.staged_head, dest.next_base, dest.staged_ts) == (head + 1, block.next_base, max(now, ts))


def test_what_travels_together_survives_together(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "source", 0)
    names = [f"d{number}" for number in range(40)]
    for name in names:
        put(engine, name, durability=FSYNC)
        route(engine, "source", name)
    append(engine, "source", 1)
    append(engine, "source", 2, 3)
    again = go_on(open_engine(after_power_cut(disk)))
    for name in names:
        assert values(again, name) == [1, 2, 3]
        assert again.routing.router(f"source->{name}").forwarded == 3
