"""Where to begin to read, as people say it: from a seq, since a moment, the last so many."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.amounts import moment_ms
from topics.cli.shared.failures import UsageError
from topics.cli.topic.filters import Matches
from topics.client import Client, Record

From = Annotated[int | None, Parameter(name="--from", help="The first seq to print.")]
Since = Annotated[
    str | None, Parameter(help="The first moment: so long ago, such as 10m, or a date such as 2026-02-24T12:00:00Z.")
]
Last = Annotated[int | None, Parameter(name=["--last", "-n"], help="So many of the newest records.")]


def cursor_of(
    client: Client,
    topic: str,
    from_seq: int | None,
    since: str | None,
    last: int | None,
    now_ms: int,
    matches: Matches | None = None,
) -> int:
    """The cursor behind which the records are that somebody asks for; the last so many are of those that match."""
    if sum(given is not None for given in (from_seq, since, last)) > 1:
        raise UsageError("--from, --since and --last are three ways to say where to begin: give one of them")
    if from_seq is not None:
        return max(from_seq - 1, 0)
    if since is not None:
        return cursor_since(client, topic, moment_ms(since, "--since", now_ms))
    if last is not None:
        return cursor_of_last(client, topic, last, matches)
    return 0


def cursor_since(client: Client, topic: str, moment: int) -> int:
    """Behind which cursor everything was written at that moment or later; times never go back in a topic's order."""
    state = client.get_topic(topic, touch=False)
    low, high = state.earliest_seq - 1, state.head_seq
    while low < high:
        middle = (low + high) // 2
        found = _first_behind(client, topic, middle)
        if found is None or found.ts >= moment:
            high = middle
        else:
            low = found.seq
    return low


def _first_behind(client: Client, topic: str, cursor: int) -> Record | None:
    """The first record behind a cursor; None where everything there was deleted."""
    while True:
        page = client.diff(topic, cursor, limit=1, include_meta=False)
        if page.records:
            return page.records[0]
        if page.caught_up:
            return None
        cursor = page.next_from_seq


def cursor_of_last(client: Client, topic: str, count: int, matches: Matches | None = None) -> int:
    """Behind which cursor there are so many records that match.

    Deleted ones leave holes, and others do not match, so it may have to look further back.
    """
    state = client.get_topic(topic, touch=False)
    if count <= 0:
        return state.head_seq
    reach = count
    while True:
        # Not before the first record: what was lost there long ago is not what somebody asks about.
        start = max(state.head_seq - reach, state.earliest_seq - 1)
        seqs = _newest_seqs(client, topic, start, count, state.head_seq, matches)
        if len(seqs) == count:
            return seqs[0] - 1
        if start == state.earliest_seq - 1:
            return start
        reach *= 4


def _newest_seqs(
    client: Client, topic: str, start: int, count: int, head: int, matches: Matches | None
) -> list[int]:  # fmt: skip
    seqs: list[int] = []
    cursor = start
    while cursor < head:
        page = client.diff(topic, cursor, limit=1000, include_meta=False, include_tags=matches is not None)
        seqs += [record.seq for record in page.records if matches is None or matches(record)]
        del seqs[:-count]
        if page.caught_up:
            break
        cursor = page.next_from_seq
    return seqs
