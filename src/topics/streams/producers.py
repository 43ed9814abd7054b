"""Idempotent producers: whether a batch is new, a duplicate, too early, or fenced by a newer epoch. Pure."""

from collections.abc import Callable
from enum import Enum, auto

from topics.model.errors import InvalidRequestError, ProducerFencedError, ProducerGapError
from topics.streams.stream_frames import Producer


class Verdict(Enum):
    NEW = auto()
    DUPLICATE = auto()


def judge(known: Producer | None, sent: Producer) -> Verdict:
    """Whether a batch is new or a duplicate, by its producer's state. Raises if it is neither."""
    if known is None:
        # Also if it is not the first: a pipelining producer learns what to send first, and loses nothing.
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


# Reorder buffer: batches that arrive before their predecessor are held for a moment.
#
# A producer with several requests in flight over several connections cannot control their order of arrival. Refusing
# early ones would make it send most of them again, although the predecessor is nearly always a moment away.

Later = Callable[[float, Callable[[], None]], Callable[[], None]]
"""Runs a function after some seconds; returns a function that cancels it."""

HOLD_S = 0.05
AHEAD_MAX = 16
HELD_MAX = 1_000


class ReorderBuffer:
    def __init__(self, later: Later) -> None:
        self._later = later
        self._held: dict[tuple[int, str, int, int], tuple[Callable[[], None], Callable[[], None]]] = {}
        """Held batches by stream, producer, epoch and number: the retry, and how to cancel its timeout."""

    def hold(
        self,
        topic_id: int,
        sent: Producer,
        gap: ProducerGapError,
        retry: Callable[[], None],
        give_up: Callable[[], None],
    ) -> bool:
        """Hold a batch until its predecessor arrives, or fail it after a timeout."""
        key = (topic_id, sent.id, sent.epoch, sent.seq)
        if gap.received - gap.expected > AHEAD_MAX or len(self._held) >= HELD_MAX or key in self._held:
            return False

        def over() -> None:
            del self._held[key]
            give_up()

        self._held[key] = (retry, self._later(HOLD_S, over))
        return True

    def accepted(self, topic_id: int, producer: Producer) -> None:
        """Release the batch that follows an accepted one."""
        if not self._held:
            return
        found = self._held.pop((topic_id, producer.id, producer.epoch, producer.seq + 1), None)
        if found is not None:
            retry, take_back = found
            take_back()
            retry()
