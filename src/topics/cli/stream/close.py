"""`topics stream close`."""

from topics.cli.shared.connection import HERE, Server
from topics.cli.shared.output import line
from topics.cli.stream.http import path_of, streams_of


def close(name: str, /, *, server: Server = HERE) -> int:
    """Close a stream: it can be read, and nothing more can be appended.

    Parameters
    ----------
    name
        Its name.
    """
    with streams_of(server) as streams:
        streams.ask("POST", path_of(name), {"stream-closed": "true"}, b"")
    line(f"closed {name}")
    return 0
