"""Where to begin to read, as people say it: from a seq, since a moment, the last so many."""

from datetime import UTC, datetime
from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.amounts import moment_ms
from topics.cli.shared.failures import UsageError
from topics.cli.topic.filters import Meant
from topics.client import Client

From = Annotated[int | None, Parameter(name="--from", help="The first seq to print.")]
Since = Annotated[
    str | None, Parameter(help="The first moment: so long ago, such as 10m, or a date such as 2026-02-24T12:00:00Z.")
]
Last = Annotated[int | None, Parameter(name=["--last", "-n"], help="So many of the newest records.")]


def moment_of(since: str, now_ms: int) -> datetime:
    """The moment that somebody means by --since."""
    return datetime.fromtimestamp(moment_ms(since, "--since", now_ms) / 1000, UTC)


def cursor_of(
    client: Client,
    topic: str,
    from_seq: int | None,
    since: str | None,
    last: int | None,
    now_ms: int,
    wanted: Meant,
) -> int:
    """The cursor behind which the records are that somebody asks for; the last so many are of those that match."""
    if sum(given is not None for given in (from_seq, since, last)) > 1:
        raise UsageError("--from, --since and --last are three ways to say where to begin: give one of them")
    if from_seq is not None:
        return max(from_seq - 1, 0)
    if since is not None:
        return client.seek(topic, since=moment_of(since, now_ms))
    if last is not None:
        return client.seek(topic, last=last, matches=wanted.matches, filter=wanted.query)
    return 0
