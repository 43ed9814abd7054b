"""A delete of many ranges is made in parts, and is one delete for whoever asked."""

import pytest

from tests.unit.conftest import (
    append,
    ask_delete,
    ask_drop,
    checkpoint,
    delete,
    drop,
    eq,
    flush,
    hold,
    killed,
    logged,
    one,
    open_engine,
    seqs,
)
from topics.engine import delete as deleting
from topics.engine.engine import Engine
from topics.engine.results import DeleteResult
from topics.log.frame import FrameKind
from topics.model.errors import TopicNotFoundError
from topics.model.records import Batch, Record
from topics.testing import FakeDisk


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleting, "_RANGES_A_PART", 3)


def fill(engine: Engine) -> None:
    """Twenty records, every second of them tagged."""
    tags = ["odd" if number % 2 else None for number in range(20)]
    engine.append("t", Batch(records=[Record.of(n, tag=tag) for n, tag in enumerate(tags)]), lambda outcome: None)


@pytest.mark.parametrize("sealed", [False, True])
def test_it_is_answered_once_with_all_it_removed(disk: FakeDisk, sealed: bool) -> None:
    engine = open_engine(disk, segment_max_events=8 if sealed else 10_000)
    fill(engine)
    if sealed:
        checkpoint(engine)
    assert delete(engine, "t", match=eq("odd")).deleted == 10
    assert seqs(engine, "t") == list(range(1, 21, 2))
    assert logged(engine).count(FrameKind.DELETE) == 4
    assert seqs(open_engine(killed(disk)), "t") == list(range(1, 21, 2))


def test_what_is_appended_between_two_parts_stays(engine: Engine) -> None:
    fill(engine)
    hold(engine)
    answers = ask_delete(engine, "t", match=eq("odd"))
    later = Batch(records=[Record.of("new", tag="odd")])
    engine.append("t", later, lambda outcome: None)
    flush(engine)
    assert one(answers, DeleteResult).deleted == 10
    assert seqs(engine, "t") == [*range(1, 21, 2), 21]


def test_a_topic_that_goes_between_two_parts_ends_it(engine: Engine) -> None:
    fill(engine)
    hold(engine)
    answers = ask_delete(engine, "t", match=eq("odd"))
    ask_drop(engine, "t")
    flush(engine)
    assert [type(answer) for answer in answers] == [TopicNotFoundError]


def test_a_crash_between_two_parts_leaves_the_rest(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    fill(engine)
    kept: list[object] = []
    engine.core.defer.use(kept.append)
    answers = ask_delete(engine, "t", match=eq("odd"))
    assert len(kept) == 1 and not answers
    left = seqs(open_engine(killed(disk)), "t")
    assert left == [seq for seq in range(1, 21) if seq not in (2, 4, 6)]


def test_a_topic_that_is_not_there_is_told_as_ever(engine: Engine) -> None:
    append(engine, "t", 1)
    drop(engine, "t")
    with pytest.raises(TopicNotFoundError):
        ask_delete(engine, "t", match=eq("odd"))
