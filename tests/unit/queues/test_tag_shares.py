"""Fair shares of tags: the next job is of the tag with the fewest leased jobs."""

import random
from collections import Counter

import pytest

from tests.unit.conftest import FSYNC, HOMES, move, open_engine, open_with_cold
from tests.unit.queues.conftest import JOBS, Hands, ack, claim, counted, job_seqs, make_queue, nack, produce
from topics.engine.engine import Engine
from topics.model.records import Record
from topics.queues.queue_state import find_queue
from topics.queues.tag_shares import TagShares
from topics.testing import FakeDisk, ManualClock


def tagged(*tags: str | None) -> list[Record]:
    return [Record.of(number, tag=tag) for number, tag in enumerate(tags)]


def test_the_next_job_is_of_the_tag_with_the_fewest_leases(engine: Engine) -> None:
    make_queue(engine, fair_tags=True)
    produce(engine, *tagged("a", "a", "a", "a", "b", None, "c", "b"))
    assert job_seqs(claim(engine, 4)) == [1, 5, 6, 7]
    assert job_seqs(claim(engine, 2)) == [2, 8]
    ack(engine, 1, 2)
    assert job_seqs(claim(engine, 9)) == [3, 4]
    assert counted(engine) == (0, 6, 0, 0)


def test_a_large_backlog_of_one_tag_does_not_delay_others(engine: Engine) -> None:
    make_queue(engine, fair_tags=True)
    for _ in range(3):
        produce(engine, *tagged(*["noisy"] * 1000))
    claim(engine, 4)
    produce(engine, *tagged("quiet"))
    assert job_seqs(claim(engine, 1)) == [3001]
    assert len(claim(engine, 500)) == 500


def test_returned_jobs_keep_their_place_within_their_tag(engine: Engine) -> None:
    make_queue(engine, fair_tags=True)
    produce(engine, *tagged("a", "b"))
    assert job_seqs(claim(engine, 2)) == [1, 2]
    produce(engine, *tagged("a", "b"))
    nack(engine, 1, 2)
    assert sorted(job_seqs(claim(engine, 2))) == [1, 2]


@pytest.mark.parametrize("durable", [False, True])
def test_leases_that_end_in_any_way_free_the_share(engine: Engine, clock: ManualClock, durable: bool) -> None:
    make_queue(engine, fair_tags=True, leases_durable=durable, max_deliveries=1, dead_letter="dead")
    produce(engine, *tagged("a", "a", "a", "a", "b", "b", "b", "b"))
    assert job_seqs(claim(engine, 4)) == [1, 5, 2, 6]
    ack(engine, 1)
    nack(engine, 2)
    clock.advance(1001)
    assert sorted(job_seqs(claim(engine, 4))) == [3, 4, 7, 8]
    queue = find_queue(engine.core.existing(JOBS))
    assert queue is not None and queue.shares is not None
    ack(engine, 3, 4, 7, 8)
    assert not queue.shares._granted and not queue.shares._tags
    assert counted(engine) == (0, 0, 0, 3)


@pytest.mark.parametrize("durable", [False, True])
def test_shares_count_leases_of_before_a_restart(
    engine: Engine, disk: FakeDisk, clock: ManualClock, durable: bool
) -> None:
    make_queue(engine, fair_tags=True, leases_durable=durable, durability=FSYNC)
    produce(engine, *tagged("a", "a", "a", "b"))
    assert job_seqs(claim(engine, 1)) == [1]
    engine.close_inline()
    engine = open_engine(disk, clock)
    assert job_seqs(claim(engine, 2)) == ([4, 2] if durable else [1, 4])


def test_the_config_may_change_at_any_time(engine: Engine) -> None:
    produce(engine, *tagged("a", "a", "b", "a", "b"))
    assert job_seqs(claim(engine, 1)) == [1]
    make_queue(engine, fair_tags=True)
    assert job_seqs(claim(engine, 1)) == [3]
    make_queue(engine)
    assert job_seqs(claim(engine, 9)) == [2, 4, 5]
    nack(engine, 2)
    make_queue(engine, fair_tags=True)
    assert job_seqs(claim(engine, 9)) == [2]


def test_pushed_jobs_are_shared_by_tag(engine: Engine) -> None:
    make_queue(engine, fair_tags=True)
    produce(engine, *tagged("a", "a", "a", "b"))
    hands = Hands(engine, 2)
    assert hands.got == [1, 4]
    ack(engine, 4, node="w")
    assert hands.got == [1, 4, 2]


def test_deleted_jobs_are_not_handed_out(engine: Engine) -> None:
    make_queue(engine, fair_tags=True, cap_records=3)
    produce(engine, *tagged("a", "a"))
    claim(engine, 1)
    produce(engine, *tagged("b", "b", "b"))
    assert job_seqs(claim(engine, 9)) == [3, 4, 5]


@pytest.mark.parametrize("home", HOMES)
def test_tags_are_read_wherever_the_jobs_are(home: str, disk: FakeDisk) -> None:
    engine = open_with_cold(disk)
    make_queue(engine, fair_tags=True)
    produce(engine, *tagged("a", "a", "a", '"b'))
    move(engine, JOBS, home)
    assert job_seqs(claim(engine, 3)) == [1, 4, 2]


def test_random_shares_never_pass_over_a_tag_with_fewer_leases(seed: int) -> None:
    chance = random.Random(seed)
    shares, tags = TagShares(), [b"", b"a", b"b", b"c"]
    waiting: dict[int, tuple[bytes, int]] = {}
    leased: dict[int, bytes] = {}
    gone: set[int] = set()
    seq = 0
    for _ in range(3000):
        step = chance.random()
        if step < 0.4:
            seq += 1
            waiting[seq] = (chance.choice(tags), chance.choice([0, 0, 5, -5]))
            shares.add(seq, *waiting[seq])
        elif step < 0.45 and waiting:
            gone.add(waiting.popitem()[0])
        elif step < 0.75:
            for taken in shares.take(chance.randint(1, 3), lambda one: one not in gone):
                counts = Counter(leased.values())
                tag, priority = waiting.pop(taken)
                assert counts[tag] == min(counts[other] for other, _ in [*waiting.values(), (tag, 0)])
                mine = [(-more, one) for one, (other, more) in waiting.items() if other == tag]
                assert not mine or (-priority, taken) < min(mine)
                leased[taken] = tag
        elif leased:
            ended = chance.choice(list(leased))
            del leased[ended]
            shares.end(ended)
    assert len(shares.take(10_000, lambda one: one not in gone)) == len(waiting)
    assert shares.waiting == 0 and len(shares._order) < 1100
