import pytest

from topics.model.topic_config import Durability

ROWS = [
    # member, wire name, logged, acks_after_sync, reserves_seqs
    (Durability.EPHEMERAL, "ephemeral", False, False, False),
    (Durability.MEMORY, "memory", True, False, False),
    (Durability.DISK, "disk", True, False, True),
    (Durability.FSYNC, "fsync", True, True, False),
    (Durability.REMOTE, "remote", True, True, False),
]


@pytest.mark.parametrize(("member", "name", "logged", "acks_after_sync", "reserves_seqs"), ROWS)
def test_each_class(member: Durability, name: str, logged: bool, acks_after_sync: bool, reserves_seqs: bool) -> None:
    assert member.value == name
    assert member.logged is logged
    assert member.acks_after_sync is acks_after_sync
    assert member.reserves_seqs is reserves_seqs


def test_every_class_has_a_row() -> None:
    assert [row[0] for row in ROWS] == list(Durability)
