"""What an append asks for, as it comes from the wire and as the engine takes it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec

from topics.core.config import TopicConfigPatch
from topics.core.records import Record, Values

if TYPE_CHECKING:
    Records = Sequence[Record]
else:
    # The decoder must see a list; Python code may pass any sequence.
    Records = list[Record]


class Batch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Records to append, in order, all of them or none."""

    records: Records
    node: str | None = None
    idempotency_key: str | None = None
    idempotency_check: bool = False
    """A key that was used for other records is then an error, instead of an answer that says so."""
    create: bool | None = None
    config: TopicConfigPatch | None = None
    delay_ms: Annotated[int, msgspec.Meta(ge=0)] = 0
    """For a queue: how long its jobs are held back before they can be claimed; cut to a day."""
    disable_backpressure: bool = False
    """Rather wait for a full log than be refused."""


def lone_record(batch: Batch) -> Record | None:
    """The record of a batch that has no other and asks for nothing more, except perhaps for a key, or for a topic in
    case there is none: those of one tick may share a block (`engine.write.coalescing`)."""
    if (
        len(batch.records) != 1
        or batch.node is not None
        or batch.config is not None
        or batch.delay_ms
        or batch.disable_backpressure
    ):
        return None
    return batch.records[0]


def payload_bytes(records: Sequence[Record]) -> int:
    """What records count against caps and quotas."""
    if type(records) is Values:
        return sum(records.plain.sizes)
    return sum([len(record.data) + len(record.meta or b"") for record in records])
