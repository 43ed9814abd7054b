"""Following a topic: the follower's cursor, its next request, and its items. No function here waits."""

import math
from collections import deque
from collections.abc import Callable, Sequence

from topics_client.answers import Diff
from topics_client.errors import GapError
from topics_client.requests import Request, diff
from topics_protocol.records import Gap, Record

Item = Record | Gap

_WAIT_MS = 20_000
_LIMIT = 1_000


class Following:
    """The state of a follower; the followers of both clients drive it."""

    def __init__(
        self,
        topic: str,
        from_seq: int,
        epoch: int | None,
        read_from: Callable[[int, int | None], Request[Diff]],
        *,
        endless: bool,
        raise_on_gap: bool,
        deadline_s: float,
    ) -> None:
        self.epoch = epoch
        """The epoch of the topic, for a later follower that starts from the cursor; None before the first answer."""
        self.cursor = from_seq
        """Everything up to here was handed out or passed over: a follower that starts from it goes on exactly there."""
        self.deadline_s = deadline_s
        self.ended = False
        """Whether a follower that does not wait has read to the end of the topic."""
        self._topic = topic
        self._read_from = read_from
        self._endless = endless
        self._raise_on_gap = raise_on_gap
        self._read_to = from_seq
        self._read_epoch = epoch
        self._waiting: deque[tuple[Item, int]] = deque()

    def request(self) -> Request[Diff]:
        """The next read; to be sent when there is no next item."""
        return self._read_from(self._read_to, self._read_epoch)

    def take(self, answer: Diff) -> None:
        """Queues the read items, each with the cursor after it."""
        records, end = answer.records, answer.next_from_seq
        self._read_epoch = answer.epoch or None
        if answer.tombstone is not None:
            # Not the end of the gap: where a topic was made again, its records begin below the old cursor.
            self._waiting.append((answer.tombstone, records[0].seq - 1 if records else end))
        for record in records:
            self._waiting.append((record, record.seq))
        if self._waiting:
            # Records skipped behind the last item are passed over together with it.
            self._waiting[-1] = (self._waiting[-1][0], end)
        else:
            self.cursor, self.epoch = end, self._read_epoch
        self._read_to = end
        self.ended = answer.caught_up and not self._endless

    def next_item(self) -> Item | None:
        """The next record or gap; None when more has to be read."""
        if not self._waiting:
            return None
        item, self.cursor = self._waiting.popleft()
        self.epoch = self._read_epoch
        if self._raise_on_gap and isinstance(item, Gap):
            raise GapError(self._topic, item)
        return item


def follow(
    topic: str,
    from_seq: int = 0,
    *,
    wait_ms: int = _WAIT_MS,
    limit: int | None = _LIMIT,
    node: str | Sequence[str] | None = None,
    include_tags: bool = False,
    include_meta: bool = True,
    max_batch_bytes: int | None = None,
    raise_on_gap: bool = False,
    deadline_s: float = math.inf,
    epoch: int | None = None,
    filter: str | None = None,
) -> Following:
    """Iterates over all records behind the cursor `from_seq`, waits for new ones, and yields a `Gap` for lost ones.

    Each request waits in the server for up to `wait_ms`; with 0 the iterator ends at the end of the topic. It retries
    for `deadline_s`, by default forever, when the server restarts, throttles or is unreachable. `filter` selects
    records as in `diff`. With `raise_on_gap` a gap is raised as a `GapError`. A topic that is deleted and created again
    is reported by a gap `recreated`; the `epoch` of an earlier follower also detects this between two followers.
    """

    def read_from(cursor: int, epoch: int | None) -> Request[Diff]:
        return diff(
            topic,
            cursor,
            limit=limit,
            node=node,
            include_tags=include_tags,
            include_meta=include_meta,
            wait_ms=wait_ms,
            max_batch_bytes=max_batch_bytes,
            epoch=epoch,
            filter=filter,
        )

    return Following(
        topic, from_seq, epoch, read_from, endless=wait_ms > 0, raise_on_gap=raise_on_gap, deadline_s=deadline_s
    )
