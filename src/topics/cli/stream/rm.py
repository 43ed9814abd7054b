"""`topics stream rm`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.asking import Yes, confirm
from topics.cli.shared.connection import HERE, Server
from topics.cli.shared.output import line
from topics.cli.stream.http import path_of, streams_of


def rm(*names: Annotated[str, Parameter(required=True)], yes: Yes = False, server: Server = HERE) -> int:
    """Delete streams with everything in them. On a terminal it asks first.

    Parameters
    ----------
    names
        Their names.
    """
    confirm(f"delete {', '.join(names)} with everything in it?", yes)
    with streams_of(server) as streams:
        for name in names:
            streams.ask("DELETE", path_of(name))
            line(f"deleted {name}")
    return 0
