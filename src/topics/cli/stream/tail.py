"""`topics stream tail`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import note
from topics.cli.shared.waiting import TOLD_AFTER_S, wait_for
from topics.cli.stream.contents import NOW, end_of, name_of, show
from topics.cli.stream.read import Filter, Key
from topics.client import Client, ConnectionFailed, OffsetGone, RetryLater

_START = "-1"


def tail(
    name: str,
    /,
    *,
    offset: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="Where to begin: an offset, -1 for the start, or now.")
    ] = NOW,
    key: Key = None,
    filter: Filter = None,
    server: Server = HERE,
) -> int:
    """Print what comes into a stream, until it is closed. A server that is restarted is waited for.

    Parameters
    ----------
    name
        Its name.
    """
    stream = name_of(name)
    with connected(server) as client:
        # A stream that is not there is told now, and not waited for.
        end = end_of(client, stream)
        _follow(client, stream, end.next_offset if offset == NOW else offset, key, filter)
    return 0


def _follow(client: Client, name: str, offset: str, key: str | None, filter: str | None) -> None:
    while True:
        pages = client.tail_stream(name, offset, key=key, filter=filter, live="long-poll", deadline_s=TOLD_AFTER_S)
        try:
            for page in pages:
                show(page)
            return
        except OffsetGone:
            note(f"{name}: the next entries are gone; it goes on with the first there is")
            offset = _START
        except (ConnectionFailed, RetryLater) as error:
            wait_for(client, error)
            offset = pages.offset
