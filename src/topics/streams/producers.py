"""Idempotent producers: whether a batch is new, a repetition, too early, or of a run that was replaced. Pure."""

from enum import Enum, auto

from topics.core.errors import InvalidRequestError, ProducerFencedError, ProducerGapError
from topics.formats.stream import Producer


class Verdict(Enum):
    NEW = auto()
    DUPLICATE = auto()


def judge(known: Producer | None, sent: Producer) -> Verdict:
    """Decides on a batch by where its producer stands. Raises for what is neither new nor a repetition."""
    if known is None:
        # Also when it is not the first: one that pipelines is told what to send first, and loses nothing.
        if sent.seq:
            raise ProducerGapError(sent.id, 0, sent.seq)
        return Verdict.NEW
    if sent.epoch < known.epoch:
        raise ProducerFencedError(sent.id, known.epoch)
    if sent.epoch > known.epoch:
        if sent.seq:
            raise InvalidRequestError("Producer-Seq: a new epoch begins with 0", field="Producer-Seq")
        return Verdict.NEW
    if sent.seq <= known.seq:
        return Verdict.DUPLICATE
    if sent.seq > known.seq + 1:
        raise ProducerGapError(sent.id, known.seq + 1, sent.seq)
    return Verdict.NEW
