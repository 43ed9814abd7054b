"""The losses of a consumer: every range behind its cursor that is gone, as its next reads will report it."""

from tests.unit.conftest import append, put, read, topic
from topics.consumers.consumers import LOSSES_MAX
from topics.engine.engine import Engine
from topics.model.seq_ranges import LossReason, Tombstone


def losses(engine: Engine) -> list[Tombstone]:
    info = engine.consumers.info(topic(engine, "t"), "c")
    assert info.lost == (info.losses[0] if info.losses and info.losses[0].gap_from == info.seq + 1 else None)
    return info.losses


def consume(engine: Engine) -> None:
    append(engine, "t", 1)
    engine.consumers.put(engine.existing("t"), "c", 0, "key", lambda answer: None)


def lose(engine: Engine, count: int, reason: LossReason = LossReason.CRASH) -> None:
    own = topic(engine, "t")
    engine.core.applier.gap(own, own.head + 1, own.head + count, reason)
    own.staged_head = own.head


def test_every_range_is_listed_and_reads_report_the_same(engine: Engine) -> None:
    consume(engine)
    for count in (3, 2):
        lose(engine, count)
        append(engine, "t", *range(4))
    put(engine, "t", cap_records=7)
    found = losses(engine)
    assert [(one.gap_from, one.gap_to) for one in found] == [(1, 5), (9, 10)]
    assert found[1].reason is LossReason.CRASH
    reported, cursor = [], 0
    while cursor < topic(engine, "t").head:
        answer = read(engine, "t", from_seq=cursor)
        reported += [answer.tombstone] if answer.tombstone is not None else []
        cursor = answer.next_from_seq
    assert reported == found


def test_ranges_before_the_cursor_are_not_listed(engine: Engine) -> None:
    consume(engine)
    lose(engine, 3)
    append(engine, "t", "a")
    assert len(losses(engine)) == 1
    engine.consumers.commit(topic(engine, "t"), "c", 5, "key", lambda answer: None)
    assert losses(engine) == []


def test_list_of_losses_is_bounded(engine: Engine) -> None:
    consume(engine)
    for _ in range(LOSSES_MAX + 20):
        lose(engine, 1)
        append(engine, "t", "a")
    assert len(losses(engine)) == LOSSES_MAX
