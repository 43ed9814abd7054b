"""`topics stream close`."""

from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import line
from topics.cli.stream.contents import name_of


def close(name: str, /, *, server: Server = HERE) -> int:
    """Close a stream: it can be read, and nothing more can be appended.

    Parameters
    ----------
    name
        Its name.
    """
    with connected(server) as client:
        client.close_stream(name_of(name))
    line(f"closed {name}")
    return 0
