import msgspec
import pytest

from topics.model.seq_ranges import LossReason, LostRange, Tombstone


def test_the_reasons_are_a_closed_set() -> None:
    assert [reason.value for reason in LossReason] == [
        "cap",
        "ttl",
        "mixed",
        "recreated",
        "source_trim",
        "crash",
        "restored",
        "failover",
        "corrupt",
    ]


def test_a_tombstone_is_answered_as_published() -> None:
    tombstone = Tombstone(478501, 479100, LossReason.CAP, 600, 479101, 480234)
    assert msgspec.json.encode(tombstone) == (
        b'{"gap_from":478501,"gap_to":479100,"reason":"cap","missed_estimate":600,'
        b'"earliest_seq":479101,"head_seq":480234}'
    )


@pytest.mark.parametrize("reason", LossReason)
def test_a_lost_range_can_be_stored(reason: LossReason) -> None:
    lost = LostRange(3, 2**64 - 1, reason)
    assert msgspec.json.decode(msgspec.json.encode(lost), type=LostRange) == lost


def test_both_are_values() -> None:
    assert len({LostRange(1, 2, LossReason.CRASH), LostRange(1, 2, LossReason.CRASH)}) == 1
    with pytest.raises(AttributeError):
        LostRange(1, 2, LossReason.CRASH).to_seq = 5  # type: ignore[misc]
