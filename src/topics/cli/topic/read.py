"""`topics read`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.connection import HERE, PATIENT_S, Server, connected
from topics.cli.shared.failures import UsageError
from topics.cli.topic.filters import Filter, Tag, meant
from topics.cli.topic.positions import From, Last, Since, cursor_of
from topics.cli.topic.printing import Printer, RecordForm
from topics.system.clock import SystemClock


def read(
    topic: str,
    /,
    *,
    from_: From = None,
    since: Since = None,
    last: Last = None,
    tag: Tag = None,
    filter: Filter = None,
    limit: Annotated[int | None, Parameter(help="Print at most so many.")] = None,
    output: RecordForm = None,
    server: Server = HERE,
) -> int:
    """Print the records of a topic up to its end.

    Parameters
    ----------
    topic
        Its name.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit is {limit}; accepted is a whole number of at least 1")
    wanted = meant(tag, filter)
    printer = Printer(topic, output, wanted.matches)
    with connected(server) as client:
        cursor = cursor_of(client, topic, from_, since, last, SystemClock().now_ms(), wanted)
        # No page larger than what is printed of it.
        page = limit if limit is not None and wanted.matches is None and limit < 1000 else 1000
        for item in client.follow(
            topic, cursor, wait_ms=0, include_tags=True, limit=page, deadline_s=PATIENT_S, filter=wanted.query
        ):
            printer.take(item)
            if printer.count == limit:
                break
    return 0
