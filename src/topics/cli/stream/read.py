"""`topics stream read`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.connection import HERE, PATIENT_S, Server, connected
from topics.cli.shared.failures import UsageError
from topics.cli.stream.contents import name_of, show
from topics.cli.topic.positions import Since, moment_of
from topics.system.clock import SystemClock

Offset = Annotated[
    str | None,
    Parameter(
        allow_leading_hyphen=True,
        help="Where to begin: an offset, or -1 for the start.",
        show_default=lambda _: "-1",
    ),
]
Key = Annotated[str | None, Parameter(help="Only entries of this key.")]


Filter = Annotated[
    str | None,
    Parameter(
        allow_leading_hyphen=True,
        help="Only entries that match, a query over declared fields such as 'status:>=500 -service:search'.",
    ),
]


def read(
    name: str,
    /,
    *,
    offset: Offset = None,
    since: Since = None,
    key: Key = None,
    filter: Filter = None,
    server: Server = HERE,
) -> int:
    """Print what a stream holds, up to its end: JSON one value a line, bytes as they are.

    Parameters
    ----------
    name
        Its name.
    """
    if offset is not None and since is not None:
        raise UsageError("--offset and --since are two ways to say where to begin: give one of them")
    moment = None if since is None else moment_of(since, SystemClock().now_ms())
    stream = name_of(name)
    with connected(server, PATIENT_S) as client:
        while True:
            page = client.read_stream(stream, offset, since=moment, key=key, filter=filter)
            show(page)
            if page.up_to_date or page.closed:
                return 0
            offset, moment = page.next_offset, None
