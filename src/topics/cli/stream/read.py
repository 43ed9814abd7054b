"""`topics stream read`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.connection import HERE, Server
from topics.cli.stream.http import path_of, streams_of
from topics.cli.stream.reading import is_at_end, is_closed, printed

Offset = Annotated[str, Parameter(allow_leading_hyphen=True, help="Where to begin: an offset, or -1 for the start.")]
Key = Annotated[str | None, Parameter(help="Only entries of this key.")]


def read(name: str, /, *, offset: Offset = "-1", key: Key = None, server: Server = HERE) -> int:
    """Print what a stream holds, up to its end: JSON one value a line, bytes as they are.

    Parameters
    ----------
    name
        Its name.
    """
    with streams_of(server) as streams:
        while True:
            query = {"offset": offset, **({"key": key} if key is not None else {})}
            answer = streams.ask("GET", path_of(name), query=query)
            offset = printed(name, answer)
            if is_at_end(answer) or is_closed(answer):
                return 0
