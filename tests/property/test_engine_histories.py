"""Histories that broke a law once, kept because chance does not find them every day.

Each runs on the machine of the random histories, and every law is checked after every step.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.property.test_engine_laws import EngineLaws
from topics.engine import apply as applying
from topics.engine import delete as deleting
from topics.engine.apply import MANY_RANGES
from topics.model.records import Batch, Record
from topics.model.router_rules import DeleteSelector, TagMatch
from topics.model.topic_config import Discard, Durability, TopicConfigPatch

Step = tuple[Any, ...]

DISK = TopicConfigPatch(durability=Durability.DISK)
EPHEMERAL = TopicConfigPatch(durability=Durability.EPHEMERAL)


def append(count: int = 1, tag: str | None = None) -> Step:
    return "append", ("append", "a", Batch(records=[Record(b"%d" % number, tag) for number in range(count)]))


def put(patch: TopicConfigPatch) -> Step:
    return "put", ("put", "a", patch)


def delete(before_seq: int | None = None, tag: str | None = None) -> Step:
    return "delete", ("delete", "a", DeleteSelector(before_seq, None if tag is None else TagMatch(tag)))


def group(*steps: Step) -> Step:
    return "group", [operation for _, operation in steps], True


def kill(back_ms: int = 0) -> Step:
    return "kill", 1, back_ms, []


RESTART: Step = ("restart", 1, 0)
CHECKPOINT: Step = ("checkpoint", False)

HISTORIES: dict[str, list[Step]] = {
    "a topic that rejects does not drop what is over its new cap": [
        append(5),
        put(TopicConfigPatch(cap_records=2, discard=Discard.REJECT)),
        append(),
        delete(before_seq=5),
        append(),
    ],
    "an append is refused by the cap of a config that is still on its way": [
        append(5),
        group(put(TopicConfigPatch(cap_records=5, discard=Discard.REJECT)), append()),
    ],
    "an append without a frame does not overtake a delete with one": [
        append(2),
        put(TopicConfigPatch(durability=Durability.EPHEMERAL, cap_records=2)),
        group(append(), delete(before_seq=3), append()),
    ],
    "seqs given out while a topic becomes ephemeral are never given out again": [
        group(append(), put(EPHEMERAL), append()),
        kill(),
        append(),
    ],
    "what expired under class ephemeral stays expired when the clock is set back": [
        append(3),
        ("advance", 200),
        put(TopicConfigPatch(durability=Durability.EPHEMERAL, ttl_ms=100)),
        kill(back_ms=700),
    ],
    "what a cap took because of records in memory stays gone when those are": [
        append(4),
        put(TopicConfigPatch(durability=Durability.EPHEMERAL, cap_records=6)),
        append(5),
        kill(),
    ],
    "and when they were put into a file that no snapshot names": [
        append(4),
        put(EPHEMERAL),
        append(5),
        put(TopicConfigPatch(durability=Durability.DISK, cap_records=8)),
        append(2),
        kill(),
    ],
    "what a delete took under class ephemeral stays deleted": [
        append(4, tag="t"),
        put(EPHEMERAL),
        append(2, tag="t"),
        delete(tag="t"),
        kill(),
    ],
    "records in memory are told lost although a snapshot knew the head": [
        put(EPHEMERAL),
        append(3),
        CHECKPOINT,
        put(DISK),
        append(2),
        kill(),
    ],
    "a second lost range behind deleted records is told too": [
        put(EPHEMERAL),
        append(2),
        RESTART,
        append(2),
        put(DISK),
        append(2),
        put(EPHEMERAL),
        append(2),
        RESTART,
        delete(before_seq=7),
    ],
    "a lost range is not told again at every start": [
        append(2),
        put(EPHEMERAL),
        append(2),
        RESTART,
        RESTART,
        kill(),
        RESTART,
    ],
    "the log of a topic that was deleted since is replayed without its files": [
        append(9, tag="t"),
        CHECKPOINT,
        delete(tag="t"),
        append(9, tag="u"),
        ("drop", "a", False),
        kill(),
    ],
    "fewer shards, then more": [
        append(3),
        ("restart", 3, 0),
        append(3),
        ("kill", 1, 0, []),
        append(),
        ("kill", 3, 0, []),
    ],
}


def run(history: list[Step]) -> None:
    machine = EngineLaws()
    machine.open(1, 0, ("put", "a", TopicConfigPatch()))
    for rule, *arguments in history:
        step: Callable[..., None] = getattr(machine, rule)
        step(*arguments)
        machine.laws_hold()


@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize("many", [0, MANY_RANGES])
def test_history(name: str, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (applying, deleting):
        monkeypatch.setattr(module, "MANY_RANGES", many)
    run(HISTORIES[name])


@pytest.mark.parametrize("calls", range(1, 41))
def test_a_checkpoint_killed_anywhere_changes_nothing(calls: int) -> None:
    """A delete that got into a file before the snapshot must not make replay see room that was not there."""
    run(
        [
            put(TopicConfigPatch(cap_records=5)),
            append(3),
            append(tag="t"),
            append(),
            ("cut", "a"),
            CHECKPOINT,
            append(),
            append(),
            delete(tag="t"),
            ("kill_in_checkpoint", 1, calls, False),
            append(3),
        ]
    )
