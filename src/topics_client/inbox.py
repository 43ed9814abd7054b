"""Inbox of a live connection: records, gaps and cursors that have arrived and were not handed out yet."""

from collections import deque

import msgspec

from topics_client.errors import ApiError, GapError
from topics_protocol.records import Gap, Record
from topics_protocol.watch import TombstoneEvent


class TopicRecord(msgspec.Struct, frozen=True):
    """A record, and where it is from."""

    topic: str
    record: Record


class TopicGap(msgspec.Struct, frozen=True):
    """Records of a topic were lost before they were read, without a delete request."""

    topic: str
    gap: Gap


class CaughtUp(msgspec.Struct, frozen=True):
    """All existing records of the topic were delivered; later items are new."""

    topic: str
    head_seq: int


class TopicGone(msgspec.Struct, frozen=True):
    """The topic was deleted. Nothing more comes from it, also not from a later one of its name."""

    topic: str
    head_seq: int


class TopicFailed(msgspec.Struct, frozen=True):
    """The topic cannot be read on, and is followed no longer."""

    topic: str
    error: ApiError


LiveItem = TopicRecord | TopicGap | CaughtUp | TopicGone | TopicFailed


class TombstoneMessage(TombstoneEvent, frozen=True, kw_only=True):
    """A loss, in the form of event streams and WebSockets."""

    @property
    def cursor(self) -> int:
        """The reader's cursor after the loss."""
        return self.earliest_seq - 1 if self.reason == "recreated" else self.gap_to

    def to_gap(self) -> Gap:
        return Gap(
            gap_from=self.gap_from,
            gap_to=self.gap_to,
            reason=self.reason,
            missed_estimate=max(self.gap_to - self.gap_from + 1, 0),
            earliest_seq=self.earliest_seq,
            head_seq=self.head_seq,
        )


class Inbox:
    """Items that have arrived and are yet to be handed out, in order, and the cursors of both ends.

    `received` is the position from which a broken connection resumes, because queued items need not be sent twice.
    `cursors` is the caller's position; stored together with the result of an item, it resumes another process exactly
    after it.
    """

    def __init__(self, raise_on_gap: bool) -> None:
        self.received: dict[str, int] = {}
        self.cursors: dict[str, int] = {}
        # The epoch of the topic of each received cursor, if known, and the epoch that the server reports now. They
        # differ until the tombstone of the old topic arrives.
        self._epochs: dict[str, int | None] = {}
        self._told_epochs: dict[str, int | None] = {}
        self._raise_on_gap = raise_on_gap
        self._waiting: deque[tuple[LiveItem, int | None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, topic: str, cursor: int, epoch: int | None, expected: int | None = None) -> None:
        """A topic is followed from here, for the first time or after a break. `expected` is the epoch of the cursor,
        where that was said."""
        self.received[topic] = cursor
        self.cursors.setdefault(topic, cursor)
        self._told_epochs[topic] = epoch
        self._epochs.setdefault(topic, epoch if expected is None else expected)

    def start(self, topic: str) -> dict[str, object]:
        """Where to take a topic up again, in the protocol's words."""
        epoch = self._epochs.get(topic)
        return {"from_seq": self.received[topic], **({} if epoch is None else {"epoch": epoch})}

    def records(self, topic: str, records: list[Record], to_seq: int) -> None:
        for record in records:
            self._waiting.append((TopicRecord(topic, record), record.seq))
        if records:
            # Records skipped behind the last record are passed over together with it.
            self._waiting[-1] = (self._waiting[-1][0], to_seq)
        elif topic in self.cursors:
            self.cursors[topic] = to_seq
        self.received[topic] = to_seq

    def tombstone(self, reported: TombstoneMessage) -> None:
        self._waiting.append((TopicGap(reported.topic, reported.to_gap()), reported.cursor))
        self.received[reported.topic] = reported.cursor
        if reported.reason == "recreated":
            # The server may have found out within a session, and then the new epoch is not known.
            known, said = self._epochs.get(reported.topic), self._told_epochs.get(reported.topic)
            self._epochs[reported.topic] = None if said == known else said

    def caught_up(self, topic: str, head_seq: int) -> None:
        self._waiting.append((CaughtUp(topic, head_seq), head_seq))
        self.received[topic] = head_seq

    def gone(self, topic: str, head_seq: int) -> None:
        self._waiting.append((TopicGone(topic, head_seq), None))
        self._end(topic)

    def failed(self, topic: str, error: ApiError) -> None:
        self._waiting.append((TopicFailed(topic, error), None))
        self._end(topic)

    def forget(self, topic: str) -> None:
        """Nothing of a topic is handed out any more."""
        self._waiting = deque(pair for pair in self._waiting if pair[0].topic != topic)
        self._end(topic)
        self.cursors.pop(topic, None)

    def _end(self, topic: str) -> None:
        self.received.pop(topic, None)
        self._epochs.pop(topic, None)
        self._told_epochs.pop(topic, None)

    def next_item(self) -> LiveItem | None:
        """The next one; None when more has to come first. Raises `GapError` where that was asked for."""
        if not self._waiting:
            return None
        item, cursor = self._waiting.popleft()
        if cursor is not None:
            self.cursors[item.topic] = cursor
        if self._raise_on_gap and isinstance(item, TopicGap):
            raise GapError(item.topic, item.gap)
        return item
