"""`topics tail`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.connection import HERE, PATIENT_S, Server, connected
from topics.cli.shared.output import flush
from topics.cli.shared.waiting import TOLD_AFTER_S, wait_for
from topics.cli.topic.filters import Filter, Tag, meant
from topics.cli.topic.positions import From, Last, Since, cursor_of
from topics.cli.topic.printing import Printer, RecordForm
from topics.client import Client, ConnectionFailed, RetryLater
from topics.system.clock import SystemClock

_LAST = 10


def tail(
    topic: str,
    /,
    *,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative="", show_default=False, help="Wait for more, for ever.")
    ] = False,
    from_: From = None,
    since: Since = None,
    last: Last = None,
    tag: Tag = None,
    filter: Filter = None,
    output: RecordForm = None,
    server: Server = HERE,
) -> int:
    """Print the last records of a topic, 10 unless told otherwise, and follow it.

    A server that is restarted is waited for, and what was lost meanwhile is told.

    Parameters
    ----------
    topic
        Its name.
    """
    if from_ is None and since is None and last is None:
        last = _LAST
    wanted = meant(tag, filter)
    printer = Printer(topic, output, wanted.matches)
    with connected(server) as client:
        cursor = cursor_of(client, topic, from_, since, last, SystemClock().now_ms(), wanted)
        if follow:
            _follow(client, topic, cursor, printer, wanted.query)
        else:
            for item in client.follow(
                topic, cursor, wait_ms=0, include_tags=True, deadline_s=PATIENT_S, filter=wanted.query
            ):
                printer.take(item)
    return 0


def _follow(client: Client, topic: str, cursor: int, printer: Printer, query: str | None) -> None:
    epoch: int | None = None
    while True:
        follower = client.follow(topic, cursor, epoch=epoch, include_tags=True, deadline_s=TOLD_AFTER_S, filter=query)
        try:
            for item in follower:
                printer.take(item)
                flush()
        except (ConnectionFailed, RetryLater) as error:
            wait_for(client, error)
        # Of another topic of the name, the cursor would leave out what that one has before it.
        cursor, epoch = follower.cursor, follower.epoch
