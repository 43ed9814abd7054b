"""Lookup of cursors for `diff` and `follow`: by time, or a number of records before the end."""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from topics_protocol.records import Record

if TYPE_CHECKING:
    from topics_client._async.client import AsyncClient

Matches = Callable[[Record], bool]


async def cursor_since(client: "AsyncClient", topic: str, since: datetime) -> int:
    """Behind which cursor everything was written at that moment or later; times never go back in a topic's order."""
    page = await client.diff(topic, since=since, limit=1, include_meta=False)
    while not page.records and not page.caught_up:
        # The record is deleted.
        page = await client.diff(topic, page.next_from_seq, limit=1, include_meta=False)
    return page.records[0].seq - 1 if page.records else page.next_from_seq


async def cursor_of_last(
    client: "AsyncClient", topic: str, count: int, matches: Matches | None, filter: str | None
) -> int:
    """Returns the cursor before the last `count` matching records.

    Deleted ones leave holes, and others do not match, so it may have to look further back.
    """
    state = await client.get_topic(topic, touch=False)
    if count <= 0:
        return state.head_seq
    reach = count
    while True:
        # Not before the first record: an old loss there is irrelevant to the caller.
        start = max(state.head_seq - reach, state.earliest_seq - 1)
        seqs = await _newest_seqs(client, topic, start, count, state.head_seq, matches, filter)
        if len(seqs) == count:
            return seqs[0] - 1
        if start == state.earliest_seq - 1:
            return start
        reach *= 4


async def _newest_seqs(
    client: "AsyncClient", topic: str, start: int, count: int, head: int, matches: Matches | None, filter: str | None
) -> list[int]:
    seqs: list[int] = []
    cursor = start
    while cursor < head:
        page = await client.diff(topic, cursor, limit=1000, include_tags=matches is not None, filter=filter)
        seqs += [record.seq for record in page.records if matches is None or matches(record)]
        del seqs[:-count]
        if page.caught_up:
            break
        cursor = page.next_from_seq
    return seqs
