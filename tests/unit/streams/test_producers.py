import pytest

from topics.model.errors import InvalidRequestError, ProducerFencedError, ProducerGapError
from topics.streams.append import Verdict, judge
from topics.streams.stream_frames import Producer

KNOWN = Producer("p", 2, 5)


@pytest.mark.parametrize(
    ("known", "epoch", "seq", "verdict"),
    [
        (None, 0, 0, Verdict.NEW),
        (None, 7, 0, Verdict.NEW),
        (KNOWN, 2, 6, Verdict.NEW),
        (KNOWN, 2, 5, Verdict.DUPLICATE),
        (KNOWN, 2, 0, Verdict.DUPLICATE),
        (KNOWN, 3, 0, Verdict.NEW),
        (KNOWN, 9, 0, Verdict.NEW),
    ],
)
def test_a_batch_is_new_or_a_repetition(known: Producer | None, epoch: int, seq: int, verdict: Verdict) -> None:
    assert judge(known, Producer("p", epoch, seq)) is verdict


def test_a_batch_that_comes_too_early_gets_the_next_number() -> None:
    with pytest.raises(ProducerGapError) as gap:
        judge(KNOWN, Producer("p", 2, 8))
    assert (gap.value.expected, gap.value.received) == (6, 8)
    with pytest.raises(ProducerGapError) as gap:
        judge(None, Producer("p", 0, 3))
    assert (gap.value.expected, gap.value.received) == (0, 3)


def test_an_older_epoch_is_fenced() -> None:
    with pytest.raises(ProducerFencedError) as fenced:
        judge(KNOWN, Producer("p", 1, 6))
    assert fenced.value.epoch == 2


def test_a_new_epoch_begins_at_zero() -> None:
    with pytest.raises(InvalidRequestError):
        judge(KNOWN, Producer("p", 3, 1))
